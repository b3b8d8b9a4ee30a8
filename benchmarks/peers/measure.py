"""What is measured of every peer, and what the callees run; needs NumPy alone.

A peer's program makes a `Caller` and hands it to `measure`. All methods of a Caller are `async def`,
for the peers that know nothing else; the coroutines of blocking ones never suspend and are driven
without an event loop, which costs them 0.1 us a call.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

__all__ = ["Caller", "Plan", "drive", "echo", "make", "measure", "nothing", "report", "set_busy"]

T = TypeVar("T")
Figures = dict[str, float]

KIB, MIB = 2**10, 2**20
SIZES = {"1 KiB": KIB, "1 MiB": MIB, "64 MiB": 64 * MIB}
# So many that no peer waits for a round trip: more made none of the four faster.
IN_FLIGHT = 1000
WARM_UP = 200
LEAST = 5  # samples, however long one takes


class Caller(Protocol):
    """One worker that calls the others; callees are counted from 0."""

    async def call(self, callee: int) -> None:
        """Has a callee do nothing, and waits."""

    async def calls(self, callees: list[int]) -> None:
        """Has each of these callees do nothing, all at once, and waits for all."""

    async def echo(self, array: npt.NDArray[np.float32]) -> Any:
        """Sends an array to callee 0 and returns what comes back."""

    async def reference(self) -> int:
        """Has callee 0 make a value that stays there; returns a copy, drops the reference."""

    async def set_busy(self, on: bool) -> None:
        """Has callee 0 compute in pure Python beside, or stop it."""


# What the callees run.


def nothing() -> None:
    """Returns at once."""


def echo(value: T) -> T:
    """Returns what it is given."""
    return value


def make() -> int:
    """Returns what a reference is made to."""
    return 7


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
    """What a peer's program was told: how many workers, and how long each figure may take."""

    workers: int
    seconds: float
    growth: bool


def plan(arguments: list[str] | None = None) -> Plan:
    """Reads the command line of a peer's program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2, help="the caller included")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each figure")
    parser.add_argument("--growth", action="store_true", help="empty calls to all callees alone")
    return parser.parse_args(arguments, Plan())


async def measure(caller: Caller, told: Plan) -> dict[str, Any]:
    """Returns the figures: microseconds, and calls per second."""
    if told.growth:
        return {"idle": await _empty_calls(caller, told)}
    found = {}
    for state in ("idle", "busy"):
        await caller.set_busy(state == "busy")
        found[state] = {
            **await _empty_calls(caller, told),
            **{f"echo {size}": await _echo(caller, n, told) for size, n in SIZES.items()},
            "reference": await _latency(caller.reference, told.seconds),
        }
    await caller.set_busy(False)
    return found


async def _empty_calls(caller: Caller, told: Plan) -> dict[str, Figures]:
    callees = told.workers - 1
    turn = 0

    async def call() -> None:
        nonlocal turn
        turn = (turn + 1) % callees
        await caller.call(turn)

    for _ in range(max(WARM_UP, callees)):
        await call()
    one = await _latency(call, told.seconds)
    spread = [i % callees for i in range(IN_FLIGHT)]
    await caller.calls(spread)
    done, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < told.seconds or not done:
        await caller.calls(spread)
        done += IN_FLIGHT
    return {"call": one, "calls": {"per_second": done / elapsed}}


async def _echo(caller: Caller, size: int, told: Plan) -> Figures:
    array = np.random.default_rng(0).random(size // 4, dtype=np.float32)
    back = await caller.echo(array)
    if not np.array_equal(np.asarray(back), array):
        raise RuntimeError(f"an array of {size} bytes came back changed")
    return await _latency(lambda: caller.echo(array), told.seconds)


async def _latency(call: Callable[[], Awaitable[Any]], seconds: float) -> Figures:
    samples = []
    end = time.perf_counter() + seconds
    while len(samples) < LEAST or time.perf_counter() < end:
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


def report(version: str, startup: float, figures: dict[str, Any]) -> None:
    """Writes what was found as the last line, for benchmarks/rpc.py.

    Args:
        version: The peer's.
        startup: Seconds from nothing to a caller that may call all callees.
        figures: What `measure` returned.
    """
    figures["idle"]["start"] = {"ms": startup * 1e3}
    line = {"version": version, "figures": figures}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
