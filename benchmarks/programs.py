"""Runs the programs of peers, each in a process tree of its own, in turns that are fair."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar, final

from machine import python_of

__all__ = ["ENVIRONMENT", "PEERS", "Repeater", "outcome", "pin", "repeat", "rotated", "run"]

T = TypeVar("T")

PEERS = Path(__file__).resolve().parent / "peers"
# One program's limit: the figures of two states, the start, and slow peers on slow machines.
PROGRAM_SECONDS = 300.0
SAMPLES = 5  # of a case that is repeated
ENVIRONMENT = {
    "PYTHONPATH": str(PEERS),  # processes that a peer starts import its program
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else it warns of its future
}


def environment(tree: Path | None = None) -> dict[str, str]:
    """Returns the environment of a program; its telegrad is the one of a tree, if there is one."""
    found = {**os.environ, **ENVIRONMENT}
    if tree:
        found["PYTHONPATH"] = f"{programs_of(tree)}{os.pathsep}{tree}"
    return found


def programs_of(tree: Path | None = None) -> Path:
    """Returns where the programs of a tree are; without one, those of this one."""
    return tree / "benchmarks" / "peers" if tree else PEERS


def run(
    peer: str, program: str, arguments: Sequence[str], *, tree: Path | None = None
) -> dict[str, Any]:
    """Runs a peer's program to its end; returns what it reported, or what went wrong.

    Args:
        peer: Whose.
        program: Its program.
        arguments: The program's.
        tree: Whose programs and whose telegrad are run; None for this tree's programs, and the
            telegrad that is installed.
    """
    process = subprocess.Popen(
        [python_of(peer), programs_of(tree) / program, *arguments],
        env=environment(tree),
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


@final
class Repeater:
    """A program of peers/repetitions.py, which repeats the cases that it is asked for.

    Args:
        name: Whose.
        program: Its program.
        more: Variables of its environment beside the usual ones.
        tree: As `run` takes it.
    """

    def __init__(
        self,
        name: str,
        program: str,
        *,
        more: Mapping[str, str] = MappingProxyType({}),
        tree: Path | None = None,
    ) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [python_of(name), programs_of(tree) / program],
            env={**environment(tree), **more},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        """Returns its answer; an error where it has gone."""
        questions, answers = self._process.stdin, self._process.stdout
        assert questions is not None
        assert answers is not None
        try:
            questions.write(json.dumps(request) + "\n")
            questions.flush()
            line = answers.readline()
        except BrokenPipeError:
            line = ""
        answer: dict[str, Any] = json.loads(line) if line else {"error": "its process has ended"}
        return answer

    def close(self) -> None:
        """Ends it."""
        self._process.communicate()


def repeat(
    peer: str, program: str, arguments: Sequence[str], *, tree: Path | None = None
) -> dict[str, Any]:
    """Has a `Repeater` repeat one case; returns a report as `run` does.

    Args:
        peer: Whose.
        program: Its program.
        arguments: The case, "--seconds", and for how long it is repeated.
        tree: As `run` takes it.
    """
    case, _, seconds = arguments
    repeater = Repeater(peer, program, tree=tree)

    def answer(key: str, **request: Any) -> Any:
        answered = repeater.ask(**request)
        if key not in answered:
            raise LookupError(answered["error"])
        return answered[key]

    try:
        version = answer("version", case="")  # the answer to a case that it has not
        values = answer("values", case=case)
        once = answer("seconds", case=case, number=SAMPLES) / SAMPLES
        number = max(1, round(float(seconds) / SAMPLES / once))
        taken = [answer("seconds", case=case, number=number) / number for _ in range(SAMPLES)]
    except LookupError as error:
        return {"error": str(error)}
    finally:
        repeater.close()
    figure = {"p50": 1e6 * statistics.median(taken), "values": [x for some in values for x in some]}
    return {"version": version, "figures": {case: figure}}


def pin(cores: int) -> None:
    """Has this process, and all that it starts from now on, run on the first so many cores.

    All peers then share the same ones, however many processes and threads each of them has.
    """
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, allowed[:cores])


def rotated(peers: Sequence[T], round_number: int) -> list[T]:
    """Returns the peers, beginning with another one each round."""
    shift = round_number % max(1, len(peers))
    return [*peers[shift:], *peers[:shift]]
