"""Runs a target over inputs and watches it: errors, imports, and how long one of them takes."""

from __future__ import annotations

import faulthandler
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from tests.fuzz.mutations import inputs
from tests.fuzz.seeds import corpus
from tests.fuzz.targets import TARGETS

__all__ = ["Broken", "Report", "run", "run_one"]

HANG_SECONDS = 20.0  # for one input, on however busy a machine


class Broken(AssertionError):
    """A target did not keep its promise; says with which input."""


@dataclass
class Report:
    """What one run found.

    Attributes:
        target: Which.
        count: Inputs.
        seconds: Of the clock.
        slowest: Seconds of the processor that one input took at most.
        slowest_size: Its bytes.
    """

    target: str
    count: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    slowest_size: int = 0


def run_one(target: str, data: bytes) -> float:
    """Runs one input; returns the seconds of the processor that it took.

    Raises:
        Broken: It raised, or imported something.
    """
    modules = len(sys.modules)
    began = time.thread_time()
    try:
        TARGETS[target].run(data)
    except Exception as error:
        raise Broken(f"{target}: {error!r} for {data!r}") from error
    taken = time.thread_time() - began
    if len(sys.modules) != modules:
        raise Broken(f"{target}: {list(sys.modules)[modules:]} imported for {data!r}")
    return taken


def run(target: str, count: int, seed: int, keep: Path | None = None) -> Report:
    """Runs the corpus and then mutations of it.

    Args:
        target: Which.
        count: Mutations.
        seed: Of the mutations.
        keep: Where the input that broke it is left.

    Raises:
        Broken: Of the first input that broke it.
    """
    report = Report(target)
    began = time.monotonic()
    for data in _inputs(target, count, seed):
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        try:
            taken = run_one(target, data)
        except Broken:
            if keep is not None:
                (keep / f"broken-{target}").write_bytes(data)
            raise
        report.count += 1
        if taken > report.slowest:
            report.slowest, report.slowest_size = taken, len(data)
    faulthandler.cancel_dump_traceback_later()
    report.seconds = time.monotonic() - began
    return report


def _inputs(target: str, count: int, seed: int) -> Iterator[bytes]:
    kept = corpus(target)
    yield from kept
    mutations = inputs(kept, seed, parts=TARGETS[target].parts, trees=target == "decoder")
    yield from islice(mutations, count)
