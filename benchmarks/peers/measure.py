"""What is measured of every peer, and what the callees run; needs NumPy alone.

A peer's program makes a `Caller` and hands it to `measure`. All methods of a Caller are `async def`,
for the peers that know nothing else; the coroutines of blocking ones never suspend and are driven
without an event loop, which costs them 0.1 us a call.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

__all__ = [
    "Caller",
    "Plan",
    "drive",
    "echo",
    "make",
    "measure",
    "nothing",
    "other",
    "report",
    "set_busy",
]

T = TypeVar("T")
Figures = dict[str, float]

KIB, MIB = 2**10, 2**20
SIZES = {"1 KiB": KIB, "1 MiB": MIB, "64 MiB": 64 * MIB}
# So many that no peer waits for a round trip: more made none of the four faster.
IN_FLIGHT = 1000
REFERENCES = 1000
WARM_UP = 200
LEAST = 5  # samples, however long one takes
FEWEST = 1  # of a thousand references, which take some peers seconds

FIGURES = (
    "call",
    "calls",
    "awaited",
    "awaited at once",
    *(f"echo {size}" for size in SIZES),
    "reference",
    "other 64 MiB",
    "references",
)

Made: TypeAlias = list[int]
"""What a reference is made to."""


class Caller(Protocol):
    """One worker that calls the others; callees are counted from 0."""

    async def call(self, callee: int) -> None:
        """Has a callee do nothing, and waits."""

    async def calls(self, callees: list[int]) -> None:
        """Has each of these callees do nothing, all at once, and waits for all."""

    async def echo(self, array: npt.NDArray[np.float32]) -> Any:
        """Sends an array to callee 0 and returns what comes back."""

    async def other(self, array: npt.NDArray[np.float32]) -> Any:
        """Sends an array to callee 0 and returns one of the callee's own, as big, that stays there."""

    async def awaited(self, callee: int) -> None:
        """Has a callee do nothing and awaits that, on the caller's own event loop."""

    async def awaited_at_once(self, callees: list[int]) -> None:
        """Has each of these callees do nothing, all at once, and awaits all on that loop."""

    async def reference(self) -> Made:
        """Has callee 0 make a value that stays there; returns a copy, drops the reference."""

    async def references(self, n: int) -> list[Made]:
        """Has callee 0 make so many, then fetches all; returns copies, drops the references."""

    async def set_busy(self, on: bool) -> None:
        """Has callee 0 compute in pure Python beside, or stop it."""


# What the callees run.


def nothing() -> None:
    """Returns at once."""


def echo(value: T) -> T:
    """Returns what it is given."""
    return value


_others: dict[int, Any] = {}  # of the callee's process, by their sizes


def other(value: Any) -> Any:
    """Returns what has the same numbers, made at the first call of its size and kept."""
    if len(value) not in _others:
        _others[len(value)] = value * 1
    return _others[len(value)]


def make() -> Made:
    """Returns what a reference is made to: nothing constant, which telegrad's owner sends at once."""
    return [7]


class Beside:
    """A thread that computes in pure Python, as a training loop of the callee's own does."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def set(self, on: bool) -> None:
        """Starts the thread, or ends it."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None
        if on:
            self._stop.clear()
            self._thread = threading.Thread(target=self._compute, daemon=True)
            self._thread.start()

    def _compute(self) -> None:
        x = 1
        while not self._stop.is_set():
            for _ in range(10_000):
                x = (x * 31 + 7) % 1_000_003


_beside = Beside()  # of the callee's process


def set_busy(on: bool) -> None:
    """Starts or stops what computes beside the calls in this process."""
    _beside.set(on)


# What the caller measures.


class Plan(argparse.Namespace):
    """What a peer's program was told: how many workers, and how long each figure may take.

    Attributes:
        workers: How many, the caller included.
        seconds: For each figure.
        growth: Whether empty calls to all callees are all that is measured.
        idle: Which figures, with a callee that does nothing else.
        busy: Which figures, with one that computes in pure Python.
        rank: Which worker this process is; None for one that starts the others itself.
        meet: Where workers that are started one by one meet, as `init_method` says it.
        insecure: Whether nothing is encrypted between hosts, where that can be chosen.
        direct: Whether calls between hosts may go past gRPC, where that can be chosen.
        grpc: Whether telegrad takes gRPC on one host, too; torch takes what it always takes.
    """

    workers: int
    seconds: float
    growth: bool
    idle: list[str]
    busy: list[str]
    rank: int | None
    meet: str
    insecure: bool
    direct: bool
    grpc: bool


def plan(arguments: list[str] | None = None) -> Plan:
    """Reads the command line of a peer's program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--growth", action="store_true")
    all_of_calls = [figure for figure in FIGURES if not figure.startswith("awaited")]
    parser.add_argument("--idle", nargs="*", choices=FIGURES, default=all_of_calls)
    parser.add_argument("--busy", nargs="*", choices=FIGURES, default=all_of_calls)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--meet", default="")
    parser.add_argument("--insecure", action="store_true")
    parser.add_argument("--no-direct", dest="direct", action="store_false")
    parser.add_argument("--grpc", action="store_true")
    return parser.parse_args(arguments, Plan())


async def measure(caller: Caller, told: Plan) -> dict[str, Any]:
    """Returns the figures: microseconds, and calls per second; none for what a peer has not."""
    if told.growth:
        return {"idle": await _some(caller, ["call", "calls"], told)}
    found = {"idle": await _some(caller, told.idle, told)}
    if told.busy:
        await caller.set_busy(True)
        found["busy"] = await _some(caller, told.busy, told)
        await caller.set_busy(False)
    return found


async def _some(caller: Caller, figures: list[str], told: Plan) -> dict[str, Figures]:
    found = {}
    for figure in figures:
        try:
            found[figure] = await _figure(caller, figure, told)
        except NotImplementedError:  # the peer has nothing of the kind
            continue
    return found


async def _figure(caller: Caller, figure: str, told: Plan) -> Figures:
    callees = told.workers - 1
    spread = [i % callees for i in range(IN_FLIGHT)]
    if figure == "call":
        return await _one_by_one(caller.call, callees, told.seconds)
    if figure == "calls":
        return await _rate(lambda: caller.calls(spread), told.seconds)
    if figure == "awaited":
        return await _on_a_loop(lambda: _one_by_one(caller.awaited, callees, told.seconds))
    if figure == "awaited at once":
        return await _on_a_loop(lambda: _rate(lambda: caller.awaited_at_once(spread), told.seconds))
    if figure == "reference":
        return await _latency(caller.reference, told.seconds)
    if figure == "references":
        return await _references(caller, told.seconds)
    if figure.startswith("other "):
        return await _echo(caller.other, SIZES[figure.removeprefix("other ")], told.seconds)
    return await _echo(caller.echo, SIZES[figure.removeprefix("echo ")], told.seconds)


async def _one_by_one(
    call: Callable[[int], Awaitable[None]], callees: int, seconds: float
) -> Figures:
    turn = 0

    async def next_call() -> None:
        nonlocal turn
        turn = (turn + 1) % callees
        await call(turn)

    for _ in range(max(WARM_UP, callees)):
        await next_call()
    return await _latency(next_call, seconds)


async def _rate(calls: Callable[[], Awaitable[None]], seconds: float) -> Figures:
    await calls()  # the first thousand warms up
    done, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < seconds or not done:
        await calls()
        done += IN_FLIGHT
    return {"per_second": done / elapsed}


async def _on_a_loop(measured: Callable[[], Coroutine[Any, Any, Figures]]) -> Figures:
    """Runs on the loop that runs already, else on one of its own as a program has it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(measured())
    return await measured()


async def _echo(
    call: Callable[[npt.NDArray[np.float32]], Awaitable[Any]], size: int, seconds: float
) -> Figures:
    array = np.random.default_rng(0).random(size // 4, dtype=np.float32)
    back = await call(array)
    if not np.array_equal(np.asarray(back), array):
        raise RuntimeError(f"an array of {size} bytes came back changed")
    return await _latency(lambda: call(array), seconds)


async def _references(caller: Caller, seconds: float) -> Figures:
    if await caller.references(10) != [make()] * 10:
        raise RuntimeError("references brought other values than were made")
    return await _latency(lambda: caller.references(REFERENCES), seconds, least=FEWEST)


async def _latency(
    call: Callable[[], Awaitable[Any]], seconds: float, *, least: int = LEAST
) -> Figures:
    samples = []
    end = time.perf_counter() + seconds
    while len(samples) < least or time.perf_counter() < end:
        began = time.perf_counter()
        await call()
        samples.append(time.perf_counter() - began)
    samples.sort()
    return {
        "p50": statistics.median(samples) * 1e6,
        "p99": samples[min(len(samples) - 1, int(len(samples) * 0.99))] * 1e6,
        "samples": len(samples),
    }


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    raise RuntimeError("a blocking peer's coroutine was suspended")


def report(version: str, startup: float, figures: dict[str, Any], **more: str) -> None:
    """Writes what was found as the last line, for whoever runs the program.

    Args:
        version: The peer's.
        startup: Seconds from nothing to a caller that may call all callees.
        figures: What `measure` returned.
        more: What else is known of this run.
    """
    figures["idle"]["start"] = {"ms": startup * 1e3}
    line = {"version": version, "figures": figures, **more}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
