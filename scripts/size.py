"""Measures what telegrad costs its users: megabytes on disk and seconds of import.

    scripts/size.py         exit code 1 when a bound is missed

Telegrad is built and installed, as a user would and without extras, into an environment that is
thrown away. What is bounded is what the wheels bring; with the bytecode that pip makes of it, which
is a quarter more and mostly NumPy's, it is told beside. Each import is the fastest of interpreters
of its own, taken in turns: whatever else the machine does only makes it slower.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MEGABYTE = 10**6
MOST_MEGABYTES = 100.0
MOST_IMPORT = 1.5  # times what NumPy takes
BASELINE, MEASURED, TOLD = "numpy", "telegrad", "telegrad.rpc"
ROUNDS = 15
TIMED = """
import time
began = time.perf_counter()
import {module}
print(time.perf_counter() - began)
"""


def install(place: Path, source: Path = ROOT) -> Path:
    """Makes an environment with telegrad, of a checkout or a wheel; returns its interpreter."""
    venv.create(place, with_pip=False, symlinks=True)
    python = place / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--quiet"]
    quiet = ["--disable-pip-version-check", "--no-input"]
    pinned = ["--constraint", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, "install", *quiet, *pinned, str(source)], check=True)
    return python


def sizes(python: Path) -> dict[str, float]:
    """Returns the megabytes of each thing in site-packages, the largest first."""
    (packages,) = python.parent.parent.glob("lib/python*/site-packages")
    found = {
        entry.name: sum(f.lstat().st_size for f in [entry, *entry.rglob("*")] if f.is_file())
        for entry in packages.iterdir()
    }
    return {name: size / MEGABYTE for name, size in sorted(found.items(), key=lambda i: -i[1])}


def bytecode(python: Path) -> float:
    """Returns the megabytes of what pip compiled, which are in the sizes too."""
    compiled = python.parent.parent.glob("lib/python*/site-packages/**/*.pyc")
    return sum(file.lstat().st_size for file in compiled) / MEGABYTE


def import_seconds(python: Path) -> dict[str, float]:
    """Returns the fewest seconds of each import, by module."""
    modules = (BASELINE, MEASURED, TOLD)
    found: dict[str, list[float]] = {module: [] for module in modules}
    for turn in range(ROUNDS + 1):
        for module in modules:
            command = [str(python), "-c", TIMED.format(module=module)]
            done = subprocess.run(command, check=True, capture_output=True, text=True, cwd="/")
            if turn > 0:  # the first reads files into memory
                found[module].append(float(done.stdout))
    return {module: min(seconds) for module, seconds in found.items()}


def main() -> int:
    """Runs the command; returns its exit code."""
    with tempfile.TemporaryDirectory(prefix="telegrad-size-") as place:
        try:
            python = install(Path(place))
        except subprocess.CalledProcessError as failed:
            sys.stderr.write(
                f"error: pip could not install telegrad (exit code {failed.returncode})\n"
            )
            return 1
        by_name, compiled, seconds = sizes(python), bytecode(python), import_seconds(python)
    megabytes = sum(by_name.values()) - compiled
    ratio = seconds[MEASURED] / seconds[BASELINE]
    largest = ", ".join(f"{name} {size:.1f}" for name, size in list(by_name.items())[:5])
    lines = [f"installed: {megabytes:.1f} MB of at most {MOST_MEGABYTES:.0f}, without bytecode"]
    lines += [f"with bytecode: {megabytes + compiled:.1f} MB ({largest}, ...)"]
    lines += [f"import {module}: {1000 * took:.0f} ms" for module, took in seconds.items()]
    lines += [f"import {MEASURED}: {ratio:.2f} times numpy's, of at most {MOST_IMPORT}"]
    sys.stdout.write("\n".join(lines) + "\n")
    missed = [
        *(["the installed size"] if megabytes >= MOST_MEGABYTES else []),
        *([f"the time of import {MEASURED}"] if ratio >= MOST_IMPORT else []),
    ]
    if missed:
        sys.stderr.write(f"error: out of bounds: {' and '.join(missed)}\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
