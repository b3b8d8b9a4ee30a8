"""A process that calls every listed function with small arguments that ask for much work.

The kernel ends it where one call computes for longer than SECONDS; its last line names the call.
"""

from __future__ import annotations

import importlib
import itertools
import resource
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

from telegrad.errors import CallRefusedError
from telegrad.rpc.policy.allowed import ALLOWED_NAMES
from telegrad.rpc.policy.bounds import check_call

SECONDS = 3.0  # of the processor; every call takes milliseconds
MEMORY = 2**29  # bytes more than at the start: whoever asks for more gets a MemoryError at once

LARGE: dict[str, Any] = {
    "7": 7,
    "3 * 10**8": 3 * 10**8,
    "10**12": 10**12,
    "2**100_000": 2**100_000,
    "a Decimal": Decimal("1e99999999"),
    "a range": range(10**12),
    "a text": "%9999999999d",
    "[7, None]": [7, None],
    "a Fraction": Fraction(3 * 10**8),
}
ALONE: dict[str, Any] = {
    "-10**18": -(10**18),
    "digits": "9" * 20_000,
    "lists": [[1]] * 2000,
    "colliding": [i * (2**61 - 1) for i in range(20_000)],
    "Fractions": [Fraction(2**63, 2**63 + i) for i in range(10_000)],
}
OPTIONS: list[dict[str, Any]] = [{"dtype": "O"}, {"dtype": dict}, {"signature": "OO->O"}]


def calls() -> Iterator[tuple[str, tuple[str, ...], dict[str, Any]]]:
    for name in sorted(ALLOWED_NAMES):
        if name.startswith("cupy"):
            continue
        for one in (*LARGE, *ALONE):
            yield name, (one,), {}
        for two in itertools.product(LARGE, LARGE):
            yield name, two, {}
        if name.startswith("numpy"):
            for option in OPTIONS:
                yield name, ("7", "3 * 10**8"), option


def function(name: str) -> Any:
    module, _, path = name.partition(":")
    return getattr(importlib.import_module(module), path, None)


def main() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")
    values = {**LARGE, **ALONE}
    called = refused = 0
    for name, args, kwargs in calls():
        func = function(name)
        if func is None:  # this version of NumPy or Python lacks it
            continue
        given = [list(each) if type(each) is list else each for each in map(values.get, args)]
        sys.stdout.write(f"{name} of {', '.join(args)} {kwargs}\n")
        sys.stdout.flush()
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            check_call(name, given, kwargs)
        except CallRefusedError:
            refused += 1
            continue
        called += 1
        with suppress(Exception):
            func(*given, **kwargs)
    sys.stdout.write(f"done: {called} called, {refused} refused\n")


if __name__ == "__main__":
    main()
