"""Runs the programs of peers, each in a process tree of its own, in turns that are fair."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from machine import python_of

__all__ = ["ENVIRONMENT", "PEERS", "outcome", "pin", "rotated", "run"]

PEERS = Path(__file__).resolve().parent / "peers"
# One program's limit: the figures of two states, the start, and slow peers on slow machines.
PROGRAM_SECONDS = 300.0
ENVIRONMENT = {
    "PYTHONPATH": str(PEERS),  # processes that a peer starts import its program
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else it warns of its future
}


def run(peer: str, program: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Runs a peer's program to its end; returns what it reported, or what went wrong."""
    process = subprocess.Popen(
        [python_of(peer), PEERS / program, *arguments],
        env={**os.environ, **ENVIRONMENT},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=PROGRAM_SECONDS)
    except subprocess.TimeoutExpired:
        return {"error": f"no end within {PROGRAM_SECONDS:g} s"}
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return outcome(process.returncode, output, errors)


def outcome(status: int, output: str, errors: str) -> dict[str, Any]:
    """Returns what a program that has ended reported in its last line, or what went wrong."""
    if status:
        said = "".join((errors or output).strip().splitlines()[-1:])
        return {"error": said or f"it ended with status {status}"}
    try:
        reported: dict[str, Any] = json.loads(output.splitlines()[-1])
    except (IndexError, ValueError):
        return {"error": "it ended without a report"}
    return reported


def pin(cores: int) -> None:
    """Has this process, and all that it starts from now on, run on the first so many cores.

    All peers then share the same ones, however many processes and threads each of them has.
    """
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, allowed[:cores])


def rotated(peers: Sequence[str], round_number: int) -> list[str]:
    """Returns the peers, beginning with another one each round."""
    shift = round_number % len(peers)
    return [*peers[shift:], *peers[:shift]]
