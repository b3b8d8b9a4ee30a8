"""What all benchmarks need: the machine that they ran on, the peers' environments, progress."""

from __future__ import annotations

import datetime
import os
import platform
import sys
from pathlib import Path
from typing import Any

__all__ = ["HERE", "ROOT", "machine", "python_of", "say"]

ROOT = Path(__file__).resolve().parent.parent
HERE = ("telegrad", "numpy")  # the peers that this environment has itself


def python_of(peer: str) -> Path:
    """Returns the interpreter that has a peer."""
    if peer in HERE:
        return Path(sys.executable)
    return ROOT / f".venv-bench-{peer}" / "bin" / "python"


def machine() -> dict[str, Any]:
    """Says what this was measured on."""
    model = platform.processor() or platform.machine()
    cpus = Path("/proc/cpuinfo")
    if cpus.exists():
        names = [line for line in cpus.read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def say(text: str) -> None:
    """Writes a line of progress, beside the table."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
