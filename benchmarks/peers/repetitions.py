"""What benchmarks/autograd.py asks of a peer: to repeat a case so many times, and how long it took.

A peer's program has a table of cases, each a function that makes what it needs and returns what is
repeated, and hands it to `serve`. Requests are lines of JSON on standard input:

    {"case": "chain"}                  ──▶  {"values": [...]}   the gradients, to compare the peers by
    {"case": "chain", "number": 20}    ──▶  {"seconds": 0.4}    of 20 repetitions
    {"case": "chain", "memory": true}  ──▶  {"bytes": 123}      that the case and its repetitions
                                                                kept resident at most, in a process
                                                                that does nothing else

A case that the peer has not, or that fails, is answered by {"error": "..."}.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Case", "serve"]

# Makes a case; what it returns runs it once and returns the gradients.
Case = Callable[[], Callable[[], Iterable[Any]]]


def serve(version: str, cases: Mapping[str, Case]) -> None:
    """Answers requests until there are none."""
    ready: dict[str, Callable[[], Iterable[Any]]] = {}
    answers = sys.stdout
    sys.stdout = sys.stderr  # what a library prints is no answer
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = _answer(request, version, cases, ready)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _answer(
    request: dict[str, Any],
    version: str,
    cases: Mapping[str, Case],
    ready: dict[str, Callable[[], Iterable[Any]]],
) -> dict[str, Any]:
    name = request["case"]
    if name not in cases:
        return {"error": "this peer has no such case", "missing": True, "version": version}
    if request.get("memory"):
        return {"bytes": _peak_of(cases[name])}
    if name not in ready:
        ready[name] = cases[name]()
    run = ready[name]
    if "number" not in request:
        return {"values": [np.asarray(each).ravel()[:64].tolist() for each in run()]}
    repetitions = range(request["number"])
    gc.collect()
    began = time.perf_counter()
    for _ in repetitions:
        run()
    return {"seconds": time.perf_counter() - began}


def _peak_of(case: Case) -> int:
    """Returns the peak of what a case and its repetitions keep resident, on Linux.

    The case was run once before, so that code and tables that the library loads at its first step
    are not counted.
    """
    case()()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what was freed is not resident any more
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what is resident now
    before = _status("VmRSS")
    run = case()
    for _ in range(3):
        run()
    return _status("VmHWM") - before


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return 1024 * int(line.split()[1])
    raise OSError(f"/proc/self/status has no {key}")
