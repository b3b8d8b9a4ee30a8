"""Counts telegrad's Python functions that run for one call, in both processes.

    python benchmarks/functions.py [--calls 1000] [--most]

Times depend on the machine and counts do not. Two workers on this machine; worker 0 makes an empty
`rpc_sync`, a step of distributed autograd (context, one call, backward, get_gradients), and an empty call
that observers see at both ends, one after the other. Printed are the functions of telegrad's that ran in all threads of both, the modules that they are of,
and how many stand on one another in a thread. `--most` fails if there are more than `MOST`. Of all calls only
the quarter with the fewest functions counts: in others the beat ran, too, which comes with time and not with
calls; on a slow machine it runs in every second one.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import functions  # this module by its name: what runs is called __main__, and calls go by name
import numpy as np
from machine import machine, say

import telegrad as tg
from telegrad import dist_autograd, rpc
from telegrad.rpc.seams import CallFacts, current_agent

OURS = str(Path(tg.__file__).parent)
WARM_UP = 100
COUNTED = 0.25  # of the calls: those with the fewest functions
LEAST_SHARE = 0.5  # of these in which a module has a part; a rarer one is no part of the path

# Functions, modules and depth that a test allows; those of an empty call are a promise, and the others have a
# twentieth to spare.
MOST = {
    "empty call": (130, 38, 20),  # as many were counted
    "autograd step": (815, 86, 25),
    "observed call": (135, 42, 20),
}


class Counts:
    """What ran in this process, in all its threads.

    Attributes:
        calls: Of each call, how many functions ran and of which modules.
        depth: How many stood on one another, at most.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[int, set[str]]] = []
        self.depth = 0
        self._functions = 0  # that ran in the call under way
        self._present: set[str] = set()  # their modules
        self._depths: Counter[int] = Counter()  # by thread
        self._files: dict[str, str] = {}  # the module of a file; empty for what is not telegrad's

    def on_event(self, frame: FrameType, event: str, argument: Any) -> None:
        """Is what `sys.setprofile` calls."""
        del argument
        if event not in ("call", "return"):
            return
        file = frame.f_code.co_filename
        module = self._files.get(file)
        if module is None:
            module = self._files[file] = file.removeprefix(OURS) if OURS in file else ""
        if not module:
            return
        thread = threading.get_ident()
        if event == "return":
            self._depths[thread] = max(self._depths[thread] - 1, 0)
            return
        self._depths[thread] += 1
        self.depth = max(self.depth, self._depths[thread])
        self._functions += 1
        self._present.add(module)

    def next_call(self) -> None:
        """Ends what counts as one call."""
        self.calls.append((self._functions, self._present))
        self._functions, self._present = 0, set()

    def clear(self) -> None:
        """Forgets all but how deep each thread is."""
        self.next_call()
        self.calls.clear()
        self.depth = 0

    def path(self) -> tuple[float, set[str], int]:
        """Returns how many functions run for one call, their modules, and their depth."""
        few = sorted(self.calls, key=lambda call: call[0])[: round(COUNTED * len(self.calls))]
        parts = Counter(module for _, present in few for module in present)
        modules = {module for module, times in parts.items() if times >= LEAST_SHARE * len(few)}
        return statistics.median(functions for functions, _ in few), modules, self.depth


COUNTS = Counts()


def nothing() -> None:
    """Is called."""
    functions.COUNTS.next_call()


def twice(x: tg.Tensor) -> tg.Tensor:
    """Is called with gradients."""
    functions.COUNTS.next_call()
    return x + x


def begin() -> None:
    """Begins to count at the callee."""
    functions.COUNTS.clear()


def end() -> tuple[float, set[str], int]:
    """Returns what was counted at the callee."""
    return functions.COUNTS.path()


class Observer:
    """Sees calls, and does nothing."""

    def on_begin(self, facts: CallFacts) -> None:
        """Is called at the begin of a call."""

    def on_end(self, facts: CallFacts) -> None:
        """Is called at its end."""


def observe() -> None:
    """Adds an observer to this worker."""
    current_agent().observe(Observer())


def call() -> None:
    """Makes an empty call."""
    rpc.rpc_sync(1, functions.nothing)


def step() -> None:
    """Makes a step of distributed autograd."""
    with dist_autograd.context() as context:
        y = rpc.rpc_sync(1, functions.twice, (X,))
        dist_autograd.backward(context, [y])
        dist_autograd.get_gradients(context)


X = tg.tensor(np.ones(()), requires_grad=True)


def count(run: Callable[[], None], calls: int) -> tuple[int, int, int]:
    """Returns the functions, the modules and the depth of one run, of both processes."""
    for _ in range(WARM_UP):
        run()
    rpc.rpc_sync(1, functions.begin)
    functions.COUNTS.clear()
    for _ in range(calls):
        run()
        functions.COUNTS.next_call()
    ran, modules, depth = functions.COUNTS.path()
    their, theirs, their_depth = rpc.rpc_sync(1, functions.end)
    return round(ran + their), len(modules | theirs), max(depth, their_depth)


def work(rank: int, meet: str) -> None:
    """Is one of the two workers."""
    threading.setprofile(functions.COUNTS.on_event)
    if rank == 0:
        sys.setprofile(functions.COUNTS.on_event)
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, init_method=meet)


def main() -> int:
    """Counts, and prints what there is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--most", action="store_true", help="fail if there are more than before")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        meet = f"file://{directory}/meet"
        other = multiprocessing.get_context("spawn").Process(target=functions.serve, args=(meet,))
        other.start()
        work(0, meet)
        found = {
            "empty call": count(call, arguments.calls),
            "autograd step": count(step, arguments.calls),
        }
        observe()
        rpc.rpc_sync(1, functions.observe)
        found["observed call"] = count(call, arguments.calls)
        sys.setprofile(None)
        rpc.shutdown()
        other.join()
    found_on = machine()
    say(f"{found_on['date']}, Python {found_on['python']}")
    sys.stdout.write("|  | functions | modules | depth |\n|---|--:|--:|--:|\n")
    for name, (ran, modules, depth) in found.items():
        sys.stdout.write(f"| {name} | {ran:,} | {modules} | {depth} |\n")
    above = [
        name
        for name, values in found.items()
        if any(a > b for a, b in zip(values, MOST[name], strict=True))
    ]
    if arguments.most and above:
        sys.stdout.write(f"more than before: {', '.join(above)}; at most {MOST}\n")
        return 1
    return 0


def serve(meet: str) -> None:
    """Is the callee, until the caller is done."""
    work(1, meet)
    rpc.shutdown()


if __name__ == "__main__":
    sys.exit(main())
