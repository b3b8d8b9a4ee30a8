"""Collectives that telegrad, torch and OpenMPI run alike, and the clock of their ranks.

Each rank is a process that runs a peer's program. The first rank starts the others; hosts.py and `mpirun`
start all of them, with `--rank`.

A figure is the time of the slowest rank. All ranks run an operation equally often between two
barriers, several times over. They share their times by the peer's own all_reduce.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

__all__ = ["FIGURES", "Library", "Plan", "measure", "plan", "run", "timed"]

SIZES = {"4 B": 1, "1 MiB": 2**18, "64 MiB": 2**24}  # in items of float32
PLAIN, RESIDENT = "all_reduce 64 MiB", "resident 64 MiB"
FIGURES = (
    *(f"all_reduce {size}" for size in SIZES),
    RESIDENT,
    "barrier",
    "exchange 4 B",
    "exchange 64 MiB",
)
SAMPLES = 5
WARM_UP = 3  # times; the second warm-up is as long as a sample
# Of the seconds of a figure: these figures are many, and a sample already is a mean.
SHARE = 0.3
END_SECONDS = 20.0  # for a rank to end after the first one


class Plan(argparse.Namespace):
    """The command line of a peer's program.

    Attributes:
        ranks: The number of ranks.
        seconds: For each figure.
        figures: The figures to measure.
        rank: The rank of this process; None for one that starts the others.
        meet: Where ranks meet, as `init_method` says it.
        insecure: Whether nothing is encrypted between hosts, where that can be chosen.
    """

    ranks: int
    seconds: float
    figures: list[str]
    rank: int | None
    meet: str
    insecure: bool


class Library(Protocol):
    """A peer. Its arrays hold float32; they need slices, and `np.asarray`."""

    version: str

    def join(self, told: Plan) -> None:
        """Joins the other ranks."""

    def leave(self) -> None:
        """Leaves them."""

    def zeros(self, n: int) -> Any:
        """Returns an array of n zeros."""

    def resident(self, n: int) -> Any:
        """Returns the same in memory that ranks of one host share; None if the peer has none."""

    def all_reduce(self, array: Any) -> None:
        """Replaces each rank's array by the sum of all."""

    def barrier(self) -> None:
        """Waits for all ranks."""

    def send(self, array: Any, to: int) -> None:
        """Sends an array to another rank."""

    def recv(self, array: Any, of: int) -> None:
        """Replaces an array by the one that another rank sends."""


AnyLibrary = TypeVar("AnyLibrary", bound=Library)


def plan(arguments: list[str] | None = None, figures: Sequence[str] = FIGURES) -> Plan:
    """Reads the command line of a peer's program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--figures", nargs="+", choices=figures, default=list(figures))
    parser.add_argument("--rank", type=int)
    parser.add_argument("--meet", default="")
    parser.add_argument("--insecure", action="store_true")
    return parser.parse_args(arguments, Plan())


# -- the operations --------------------------------------------------------------------------------


def measure(lib: Library, told: Plan) -> dict[str, Any]:
    """Returns the figures, in microseconds.

    A peer without resident memory has its figure of a plain array there.
    """
    found: dict[str, Any] = {}
    for name in [name for name in FIGURES if name in told.figures]:
        run_once = operation(lib, told, name)
        if run_once is None:
            found[name] = found[PLAIN]
        else:
            found[name] = timed(lib, told, run_once, SHARE * told.seconds)
    return found


def operation(lib: Library, told: Plan, name: str) -> Callable[[], None] | None:
    """Returns an operation that has brought the right numbers once; None if the peer has none."""
    kind, _, size = name.partition(" ")
    if kind == "barrier":
        return lib.barrier
    array = (lib.resident if kind == "resident" else lib.zeros)(SIZES[size])
    if array is None:
        return None
    if kind == "exchange":
        return exchange(lib, told, array)
    array[:] = told.rank + 1
    lib.all_reduce(array)
    check(name, array, told.ranks * (told.ranks + 1) / 2)
    array[:] = 0  # the sum of anything else would grow beyond all numbers
    return lambda: lib.all_reduce(array)


def exchange(lib: Library, told: Plan, array: Any) -> Callable[[], None]:
    """Returns an array's way from the first rank to the second one and back."""

    def there_and_back() -> None:
        lib.send(array, 1)
        lib.recv(array, 1)

    def back() -> None:
        lib.recv(array, 0)
        lib.send(array, 0)

    array[:] = 0 if told.rank else 7
    run_once = back if told.rank else there_and_back
    run_once()
    check("exchange", array, 7)
    return run_once


def check(name: str, array: Any, value: float) -> None:
    """Raises an error if an array does not hold this number everywhere."""
    if not np.all(np.asarray(array) == value):
        raise RuntimeError(f"{name}: an array does not hold {value:g} everywhere")


# -- how they are measured -------------------------------------------------------------------------


def timed(
    lib: Library, told: Plan, run_once: Callable[[], Any], seconds: float
) -> dict[str, float]:
    """Returns the time of the slowest rank, the median of the samples, in microseconds."""
    share = seconds / SAMPLES
    count = WARM_UP
    for _ in range(2):
        (once,) = slowest(lib, told, [sample(lib, run_once, count)])
        count = max(1, round(share / once))
    samples = slowest(lib, told, [sample(lib, run_once, count) for _ in range(SAMPLES)])
    return {"p50": statistics.median(samples) * 1e6, "samples": SAMPLES * count}


def sample(lib: Library, run_once: Callable[[], Any], count: int) -> float:
    """Returns the seconds that one operation of so many takes this rank."""
    repetitions = range(count)
    lib.barrier()
    began = time.perf_counter()
    for _ in repetitions:
        run_once()
    return (time.perf_counter() - began) / count


def slowest(lib: Library, told: Plan, mine: list[float]) -> list[float]:
    """Returns the longest time of any rank for each of these, the same on all ranks."""
    times = lib.zeros(told.ranks * len(mine))
    for i, each in enumerate(mine):
        times[told.rank * len(mine) + i] = each
    lib.all_reduce(times)  # others add zeros alone, so the order of the sum does not matter
    longest: list[float] = np.asarray(times).reshape(told.ranks, -1).max(axis=0).tolist()
    return longest


# -- the ranks -------------------------------------------------------------------------------------


def run(
    lib: AnyLibrary,
    measured: Callable[[AnyLibrary, Plan], dict[str, Any]],
    figures: Sequence[str] = FIGURES,
) -> None:
    """Runs one rank, or all of them; the first one reports in the last line."""
    told = plan(figures=figures)
    with others(told) if told.rank is None else contextlib.nullcontext():
        lib.join(told)
        found = measured(lib, told)
        lib.leave()
    if told.rank == 0:
        sys.stdout.write(json.dumps({"version": lib.version, "figures": found}) + "\n")
        sys.stdout.flush()


@contextlib.contextmanager
def others(told: Plan) -> Iterator[None]:
    """Makes this process the first rank, and starts the others, which end with it."""
    os.environ["TELEGRAD_TOKEN"] = secrets.token_hex(16)
    with tempfile.TemporaryDirectory() as directory:
        told.rank, told.meet = 0, f"file://{directory}/store"
        words = [sys.executable, *sys.argv, "--meet", told.meet, "--rank"]
        processes = [
            subprocess.Popen([*words, str(r)], stdout=subprocess.DEVNULL)
            for r in range(1, told.ranks)
        ]
        try:
            yield
            for each in processes:
                each.wait(END_SECONDS)
        finally:
            for each in processes:
                each.kill()
                each.wait()
