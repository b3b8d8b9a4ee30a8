"""Where an operation's time goes: the chain of 2,000 of benchmarks/autograd.py, taken apart.

    python benchmarks/chain_profile.py [--rounds 21] [--seconds 10]

The first table is by subtraction, each row the median over the rounds, in microseconds an operation:
the chain in NumPy alone, with Tensors that are not recorded, recorded, and its backward beside the
products that a backward by hand would make. The second is by sampling, a thousand times a second,
which function is running; what NumPy computes counts for the function that called it.
"""

from __future__ import annotations

import argparse
import gc
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from machine import ROOT, machine, say

sys.path.insert(0, str(ROOT))

import telegrad as tg

OPERATIONS = 2000
INTERVAL = 0.001  # seconds between two samples
SHOWN = 12


def forward(y: Any) -> Any:
    """The chain: two operations a turn."""
    for _ in range(OPERATIONS // 2):
        y = y * 0.999 + 0.001
    return y


def backward_by_hand() -> Any:
    """The products of its backward; an addition passes the gradient on."""
    g = np.ones(10)
    for _ in range(OPERATIONS // 2):
        g = g * 0.999
    return g


def seconds(function: Callable[..., Any], *args: Any) -> float:
    """Returns how long a call takes; nothing is freed within it."""
    began = time.perf_counter()
    kept = function(*args)
    taken = time.perf_counter() - began
    del kept
    return taken


def measured() -> dict[str, float]:
    """Returns the seconds of each part of one round."""
    array = np.full(10, 0.5)
    x = tg.tensor(array, requires_grad=True)
    plain = seconds(forward, array)
    with tg.no_grad():
        wrapped = seconds(forward, x)
    recorded = seconds(forward, x)
    products = seconds(backward_by_hand)
    y = forward(x).sum()
    back = seconds(tg.grad, y, x)
    return {
        "forward: NumPy's own": plain,
        "forward: from Tensors to arrays and back": wrapped - plain,
        "forward: the node, its edges, what is saved": recorded - wrapped,
        "backward: NumPy's own": products,
        "backward: order, rules, sums": back - products,
        "all": recorded + back,
    }


def sampled(limit: float) -> Counter[str]:
    """Returns how often each function was seen running."""
    seen: Counter[str] = Counter()

    def look(_: int, frame: FrameType | None) -> None:
        if frame is not None:
            code = frame.f_code
            seen[f"{Path(code.co_filename).stem}.{code.co_qualname}"] += 1

    x = tg.tensor(np.full(10, 0.5), requires_grad=True)
    before = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, INTERVAL, INTERVAL)
    try:
        end = time.perf_counter() + limit
        while time.perf_counter() < end:
            tg.grad(forward(x).sum(), x)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    return seen


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--seconds", type=float, default=10.0, help="of sampling")
    told = parser.parse_args()
    here = machine()
    say("timing")
    rounds = []
    for _ in range(told.rounds):
        gc.collect()
        rounds.append(measured())
    say("sampling")
    seen = sampled(told.seconds)
    sys.stdout.write(f"{here['date']}, {here['cores']} cores of {here['cpu']}, ")
    sys.stdout.write(f"Python {here['python']}, load {here['load']:.1f}\n\n")
    sys.stdout.write("| us an operation | |\n|---|---|\n")
    for part in rounds[0]:
        each = 1e6 * statistics.median(found[part] for found in rounds) / OPERATIONS
        sys.stdout.write(f"| {part} | {each:.2f} |\n")
    sys.stdout.write("\n| function | of the time |\n|---|---|\n")
    for name, count in seen.most_common(SHOWN):
        sys.stdout.write(f"| `{name}` | {count / max(1, seen.total()):.1%} |\n")


if __name__ == "__main__":
    main()
