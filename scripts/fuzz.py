"""Fuzzes what reads bytes from others: as many inputs as are asked for, and what they showed.

With atheris installed (`pip install atheris`) inputs are led towards new lines of code; without it
they are mutations of the corpus by a seeded generator. Findings lie in the directory that is named.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.fuzz.engine import run  # noqa: E402  # what is run here is not installed
from tests.fuzz.seeds import CORPUS  # noqa: E402
from tests.fuzz.targets import TARGETS  # noqa: E402

INPUTS = 100_000
SLICE = 20_000  # inputs of one seed
LONGEST = 4096  # bytes of a guided input


def main(argv: Sequence[str] | None = None) -> None:
    """Reads the arguments and fuzzes each target in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=INPUTS, help="for each target")
    parser.add_argument("--target", choices=TARGETS, action="append", help="all by default")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first slice")
    parser.add_argument("--engine", choices=("guided", "seeded"), default=None)
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"))
    options = parser.parse_args(argv)
    guided = importlib.util.find_spec("atheris") is not None
    engine = options.engine or ("guided" if guided else "seeded")
    options.findings.mkdir(parents=True, exist_ok=True)
    print(f"engine: {engine}, seed: {options.seed}", flush=True)
    fuzz = _guided if engine == "guided" else _seeded
    for target in options.target or TARGETS:
        fuzz(target, options.inputs, options.seed, options.findings.resolve())


def _seeded(target: str, count: int, seed: int, findings: Path) -> None:
    done, seconds, slowest = 0, 0.0, (0.0, 0)
    while done < count:
        report = run(target, min(SLICE, count - done), seed, findings)
        seed += 1
        done += report.count
        seconds += report.seconds
        slowest = max(slowest, (report.slowest, report.slowest_size))
    _say(target, done, seconds, f"slowest: {slowest[0] * 1000:.1f} ms for {slowest[1]} bytes")


def _guided(target: str, count: int, seed: int, findings: Path) -> None:
    """Runs libFuzzer, whose corpus of what it found grows beside the one that is kept."""
    own = findings / f"corpus-{target}"
    own.mkdir(exist_ok=True)
    command = [
        sys.executable, "-m", "tests.fuzz.guided", target, str(own), str(CORPUS / target),
        f"-runs={count}", f"-seed={seed % 2**31}", f"-max_len={LONGEST}", "-timeout=20",
        "-rss_limit_mb=2048", f"-artifact_prefix={findings}/{target}-", "-print_final_stats=1",
    ]  # fmt: skip
    began = time.monotonic()
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    if ran.returncode:
        sys.exit(f"{ran.stdout[-2000:]}\n{ran.stderr[-6000:]}")
    done, memory, coverage = (
        (re.findall(pattern, ran.stderr) or ["0"])[-1]
        for pattern in (r"number_of_executed_units: (\d+)", r"peak_rss_mb: +(\d+)", r"cov: (\d+)")
    )
    told = f"peak memory: {memory} MiB, points of code reached: {coverage}"
    _say(target, int(done), time.monotonic() - began, told)


def _say(target: str, count: int, seconds: float, more: str) -> None:
    print(f"{target}: {count} inputs in {seconds:.0f} s, nothing broke ({more})", flush=True)


if __name__ == "__main__":
    main()
