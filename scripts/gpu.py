"""Runs what there is for GPUs: all tests that take arrays of CuPy, and the kernels timed.

    scripts/gpu.py [--venv .venv] [--json gpu.json] [--write]
    scripts/gpu.py --render gpu.json    runs nothing: writes the tables of that run

    exit code 0    everything passed; the table is printed, and gpu.json says it all
              1    no GPU, no CuPy, or something failed; the words say which, and what to do

`--write` puts the tables into docs/gpu.md. Nothing is installed and nothing is fetched. The first of
these interpreters that has all that is needed is used, with telegrad of this checkout: this one,
$PYTHON, python3, and that of the virtual environment.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "gpu.md"
MARKS = ("<!-- measured: written by make gpu GPU_ARGS=--write -->", "<!-- end of measured -->")
# Tests with the marker `xp`: those with an array library as their argument, and all of tests/gpu.
FOLDERS = ("arrays", "autograd", "gpu", "kernels", "nn", "optim")
MARKERS = "xp: runs on arrays of CuPy\nlong: belongs to make test-long"
# The first run compiles a kernel for each function and dtype: minutes; later ones take seconds.
ASK_SECONDS = 120  # for what a machine has; CuPy may compile its first kernel
TEST_SECONDS = 300
ONE_TEST_SECONDS = 120
TIMING_SECONDS = 220
MOST_PROCESSES = 12  # that run tests at once, where pytest-xdist is installed
# The oldest driver of each extra's CUDA (its release notes, minor version compatibility).
DRIVERS = ((580, "cuda13x"), (525, "cuda12x"))
OF_TESTS = ("pytest", "hypothesis", "ml_dtypes", "safetensors", "scipy")
NEEDED = ("cupy", "numpy", "grpc", "msgpack", "google.protobuf", *OF_TESTS)
OLDEST_PYTEST = 9  # its subtests
LOOK = f"""
import importlib.metadata, importlib.util, sys
def there(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:
        return False
print(*[name for name in {NEEDED!r} if not there(name)])
if there("pytest") and int(importlib.metadata.version("pytest").split(".")[0]) < {OLDEST_PYTEST}:
    print("pytest>={OLDEST_PYTEST}")
sys.exit(sys.version_info < (3, 11))
"""
TRY = """
import json, platform
import cupy, numpy
cupy.zeros(1).sum().item()
properties = cupy.cuda.runtime.getDeviceProperties(0)
name = properties["name"]
print(json.dumps({
    "name": name.decode() if isinstance(name, bytes) else name,
    "devices": cupy.cuda.runtime.getDeviceCount(),
    "memory_gib": round(properties["totalGlobalMem"] / 2**30, 1),
    "compute_capability": cupy.cuda.Device(0).compute_capability,
    "cupy": cupy.__version__,
    "numpy": numpy.__version__,
    "python": platform.python_version(),
    "cuda_runtime": cupy.cuda.runtime.runtimeGetVersion(),
    "cuda_driver": cupy.cuda.runtime.driverGetVersion(),
}))
"""


class UnableError(Exception):
    """There is nothing to run on; the message says why and what to do."""


# -- what the machine has ------------------------------------------------------------------------


def driver() -> tuple[str, str] | None:
    """Returns the name of the first GPU and the driver's version, by nvidia-smi; None without."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return None
    command = [smi, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    done = _ask(command)
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        return None
    name, _, version = lines[0].rpartition(",")
    return name.strip(), version.strip()


def _ask(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs a short program in this checkout; one that does not end in time has failed."""
    options: dict[str, Any] = {"capture_output": True, "text": True, "cwd": ROOT, "check": False}
    try:
        return subprocess.run(command, timeout=ASK_SECONDS, **options)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"no answer in {ASK_SECONDS} s")


def extra_for(version: str) -> str:
    """Returns what to install for a driver, as words."""
    major = int(version.split(".")[0]) if version.split(".")[0].isdecimal() else 0
    for oldest, extra in DRIVERS:
        if major >= oldest:
            return (
                f"pip install '.[{extra}]', and 'cupy-{extra}[ctk]' where the CUDA toolkit is not "
                "installed"
            )
    return f"a driver of version {DRIVERS[-1][0]} or later, then: pip install '.[cuda12x]'"


def find_interpreter(venv: Path) -> tuple[str | None, list[str]]:
    """Returns the interpreter to use, or None and what each of those found lacks."""
    words = [sys.executable, os.environ.get("PYTHON") or "python3", "python3"]
    found = [path for path in (shutil.which(word) for word in words) if path]
    if (venv / "bin" / "python").exists():
        found.append(str((venv / "bin" / "python").absolute()))
    lacking = []
    for python in dict.fromkeys(found):
        done = _ask([python, "-c", LOOK])
        missing = done.stdout.split()
        if done.returncode == 0 and not missing:
            return python, []
        why = ", ".join(missing) if missing else "Python 3.11 or later"
        lacking.append(f"{python} lacks {why}")
    return None, lacking


def find_gpu(venv: Path) -> tuple[str, dict[str, Any]]:
    """Returns the interpreter to use and what is known of the GPU.

    Raises:
        UnableError: There is no GPU, or no interpreter with what is needed.
    """
    seen = driver()
    python, lacking = find_interpreter(venv)
    if python is None:
        if seen is None:
            raise UnableError(
                "there is no GPU here: nvidia-smi is not there or finds none; run make gpu on a "
                "machine with an NVIDIA GPU and its driver"
            )
        raise UnableError(
            f"there is a GPU ({seen[0]}, driver {seen[1]}) but no Python that can use it for this:"
            f"\n  {'; '.join(lacking)}\ninstall {extra_for(seen[1])}; and pip install "
            f"'pytest>={OLDEST_PYTEST}' hypothesis ml_dtypes safetensors scipy"
        )
    done = _ask([python, "-c", TRY])
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
        if seen is None:
            raise UnableError(
                f"there is no GPU here: nvidia-smi is not there or finds none, and CuPy says: "
                f"{reason}"
            )
        raise UnableError(
            f"there is a GPU ({seen[0]}, driver {seen[1]}), but CuPy of {python} does not work: "
            f"{reason}\ninstall {extra_for(seen[1])}"
        )
    machine: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return python, machine | {"driver": seen[1] if seen else "unknown"}


# -- tests and timings ---------------------------------------------------------------------------


def environment() -> dict[str, str]:
    """What the tests and timings run under: this checkout, and the GPU a must."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {
        **os.environ,
        **threads,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(":"),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # whatever else is installed there
        "TELEGRAD_GPU": "required",
    }


def pytest_command(python: str, results: Path) -> list[str]:
    """How pytest is started: without pyproject.toml, whose plugins need not be there."""
    folders = [f"tests/{folder}" for folder in FOLDERS]
    command = [python, "-m", "pytest", *folders, "-m", "xp", "-c", os.devnull, f"--rootdir={ROOT}"]
    command += ["-o", f"markers={MARKERS}", "--import-mode=importlib", "-p", "no:cacheprovider"]
    # The conftest of tests/ needs more than such a machine has; those of the folders do not.
    command += [f"--confcutdir={ROOT / 'tests' / 'gpu'}"]
    command += ["-q", "-ra", "--tb=short", f"--junitxml={results}"]
    if _imports(python, "pytest_timeout"):
        command += ["-p", "pytest_timeout", f"--timeout={ONE_TEST_SECONDS}"]
    if _imports(python, "xdist"):  # each process keeps a context on the GPU, of about half a GiB
        processes = min(MOST_PROCESSES, max(1, (os.cpu_count() or 1) - 2))
        command += ["-p", "xdist.plugin", "-n", str(processes), "--dist", "worksteal"]
    return command


def _imports(python: str, module: str) -> bool:
    """Returns whether this interpreter has a module."""
    return _ask([python, "-c", f"import {module}"]).returncode == 0


def run_tests(python: str) -> list[dict[str, Any]]:
    """Runs the tests; returns one entry for each, and one for what kept them from running."""
    with tempfile.TemporaryDirectory(prefix="telegrad-gpu-") as place:
        results = Path(place) / "results.xml"
        try:
            done = subprocess.run(
                pytest_command(python, results),
                cwd=ROOT,
                env=environment(),
                timeout=TEST_SECONDS,
                check=False,
            )
            ended = f"pytest ended with {done.returncode}"
        except subprocess.TimeoutExpired:
            ended = f"the tests took longer than {TEST_SECONDS} s"
        if not results.exists():
            return [_entry("tests", "run", "failed", 0.0, f"{ended} and without results")]
        found = read_results(results)
    if not found:
        return [_entry("tests", "run", "failed", 0.0, f"{ended} and ran no test")]
    return found


def read_results(path: Path) -> list[dict[str, Any]]:
    """Reads what pytest wrote."""
    found = []
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        outcome, messages = "passed", []
        for kind, word in (("skipped", "skipped"), ("failure", "failed"), ("error", "failed")):
            for part in case.iter(kind):  # a failure for each subtest that failed, and one for all
                outcome = word
                messages.append(part.get("message") or "")
        file = "/".join(case.get("classname", "").split(".")[-2:]) or "tests"
        seconds = float(case.get("time", "0"))
        name, message = case.get("name", ""), "\n".join(messages)[:1000]
        found.append(_entry(file, name, outcome, seconds, message))
    return found


def _entry(file: str, name: str, outcome: str, seconds: float, message: str) -> dict[str, Any]:
    return {
        "file": file,
        "name": name,
        "outcome": outcome,
        "seconds": round(seconds, 3),
        "message": message,
    }


def run_timings(python: str) -> dict[str, Any]:
    """Times the kernels; returns what scripts/gpu_timing.py printed last, and its error if any."""
    command = [python, str(ROOT / "scripts" / "gpu_timing.py")]
    with tempfile.TemporaryFile("w+") as printed, tempfile.TemporaryFile("w+") as said:
        error = ""
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=environment(),
                stdout=printed,
                stderr=said,
                timeout=TIMING_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            error = f"the timings took longer than {TIMING_SECONDS} s"
        else:
            said.seek(0)
            if done.returncode != 0:
                error = (said.read().strip().splitlines() or ["no words"])[-1]
        printed.seek(0)
        lines = [line for line in printed if line.startswith("{") and line.endswith("}\n")]
    timings: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    return timings | {"error": error} if error or not lines else timings


# -- the result ----------------------------------------------------------------------------------


def commit() -> str:
    """Returns the commit of this checkout, where git knows it."""
    try:
        return _ask(["git", "rev-parse", "HEAD"]).stdout.strip() or "unknown"
    except OSError:
        return "unknown"


def table(rows: list[tuple[str, ...]]) -> str:
    """Writes rows, the first of them the heading, as a table of Markdown."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(n) for cell, n in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (n + 2) for n in widths) + "|")
    return "\n".join(lines)


def test_table(tests: list[dict[str, Any]]) -> str:
    """Says how many tests of each file passed, were skipped, failed, and how long they took."""
    rows: list[tuple[str, ...]] = [("tests", "passed", "skipped", "failed", "seconds")]
    for file in dict.fromkeys(test["file"] for test in tests):
        own = [test for test in tests if test["file"] == file]
        counts = Counter(test["outcome"] for test in own)
        numbers = [str(counts[word]) for word in ("passed", "skipped", "failed")]
        rows.append((file, *numbers, f"{sum(test['seconds'] for test in own):.1f}"))
    return table(rows)


def timing_table(timings: dict[str, Any]) -> str:
    """Says the medians of both libraries and what part of the memory's speed CuPy reaches.

    Fused kernels come in a table of their own, beside CuPy's functions call by call and torch; so
    do training steps, calls and reductions.
    """
    if "rows" not in timings:
        return f"no timings: {timings['error']}"
    rows: list[tuple[str, ...]] = [
        ("what", "size", "NumPy, ms", "CuPy, ms", "times faster", "GB/s", "of a copy's")
    ]
    fused: list[tuple[str, ...]] = [
        ("fused kernel", "size", "ms", "call by call, ms", "torch, ms", "of torch's", "of a copy's")
    ]
    for row in timings["rows"]:
        numpy_ms, cupy_ms, rate = row["numpy_ms"], row["cupy_ms"], row["gb_per_s"]
        part = "" if rate is None else f"{100 * rate / timings['copy_gb_per_s']:.0f} %"
        begin = (row["what"], row["size"])
        if "torch_ms" in row:
            others = [row["composed_ms"], row["torch_ms"]]
            numbers = ["" if ms is None else f"{ms:.4f}" for ms in (cupy_ms, *others)]
            times = "" if not row["torch_ms"] else f"{cupy_ms / row['torch_ms']:.2f}"
            fused.append((*begin, *numbers, times, part))
            continue
        rows.append(
            (
                *begin,
                "" if numpy_ms is None else f"{numpy_ms:.3f}",
                f"{cupy_ms:.3f}",
                "" if numpy_ms is None else f"{numpy_ms / cupy_ms:.1f}",
                "" if rate is None else f"{rate:.1f}",
                part,
            )
        )
    beside = (
        fused,
        step_rows(timings.get("steps", [])),
        call_rows(timings.get("calls", [])),
        reduction_rows(timings.get("reductions", [])),
    )
    tables = [table(rows), *(table(found) for found in beside if len(found) > 1)]
    if "error" in timings:
        tables.append(f"not all of it: {timings['error']}")
    return "\n\n".join(tables)


def step_rows(steps: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Says the times of training steps, ours and torch's, by events and by the clock."""
    heading = ("ms", "torch, ms", "of torch's", "by the clock, ms", "torch, ms", "of torch's")
    rows: list[tuple[str, ...]] = [("training step", "size", *heading, "host, ms", "torch, ms")]
    for step in steps:
        ours, others = step["ours"] or {}, step["torch"] or {}
        cells = [
            cell for way in ("gpu", "wall") for cell in _beside(ours.get(way), others.get(way))
        ]
        cells += _beside(ours.get("host"), others.get("host"))[:2]
        if step["why"]:
            cells[1] = step["why"]
        rows.append((step["what"], step["size"], *cells))
    return rows


def call_rows(calls: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Says the times of calls that return a copy, ours and torch's."""
    heading = ("by the host, ms", "shared, ms", "torch, ms", "shared, of torch's")
    rows: list[tuple[str, ...]] = [("call with", *heading)]
    for call in calls:
        shared, torch, part = _beside(call["shared"], call["torch"])
        rows.append((call["size"], f"{call['host']:.3f}", shared, torch or call["why"], part))
    return rows


def reduction_rows(reductions: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Says the times of `all_reduce` between two processes that share a GPU."""
    heading = ("by the host, ms", "shared, ms", "shared, of the host's")
    rows: list[tuple[str, ...]] = [("all_reduce of two ranks", *heading)]
    for each in reductions:
        shared, host, part = _beside(each["shared"], each["host"])
        rows.append((each["size"], host, shared, part))
    return rows


def _beside(ours: float | None, torch: float | None) -> list[str]:
    """Writes two times, and the first as a part of the second."""
    cells = ["" if ms is None else f"{ms:.3f}" for ms in (ours, torch)]
    return [*cells, f"{ours / torch:.2f}" if ours and torch else ""]


def measured(result: dict[str, Any]) -> str:
    """Says what docs/gpu.md says of a run: its machine, the tests, and the times but for pieces."""
    machine, tests, timings = result["machine"], result["tests"], result["timings"]
    counts = Counter(test["outcome"] for test in tests)
    said = (
        f"{result['when'][:10]}, commit {result['commit'][:7]}: {machine['name']}, driver "
        f"{machine['driver']}, CuPy {machine['cupy']}, NumPy {machine['numpy']}, Python "
        f"{machine['python']}. Of {len(tests)} tests, {counts['passed']} passed, "
        f"{counts['failed']} failed and {counts['skipped']} were skipped."
    )
    lines = textwrap.wrap(said, 100, break_on_hyphens=False)
    if "rows" in timings:
        kept = [row for row in timings["rows"] if "in pieces" not in row["what"]]
        timings = {**timings, "rows": kept}
    return "\n".join([*lines, "", timing_table(timings)])


def put(page: Path, text: str) -> None:
    """Puts a text between the marks of a page.

    Raises:
        ValueError: The page has not both marks, once each and in order.
    """
    begin, end = MARKS
    whole = page.read_text()
    if whole.count(begin) != 1 or whole.count(end) != 1 or whole.index(begin) > whole.index(end):
        raise ValueError(f"{page} needs {begin!r} and then {end!r}, once each")
    before, after = whole.partition(begin)[0], whole.partition(end)[2]
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")


def write(path: Path, result: dict[str, Any]) -> None:
    """Writes what is known so far."""
    path.write_text(json.dumps(result, indent=1) + "\n")


def main() -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv", help="where to look for CuPy")
    parser.add_argument("--json", type=Path, default=ROOT / "gpu.json", help="where results go")
    parser.add_argument("--write", action="store_true", help="puts the tables into docs/gpu.md")
    parser.add_argument("--render", type=Path, metavar="JSON", help="writes the tables of this run")
    options = parser.parse_args()
    if options.render is not None:
        put(PAGE, measured(json.loads(options.render.read_text())))
        return 0
    try:
        python, machine = find_gpu(options.venv)
    except UnableError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write(f"{machine['name']}, CuPy {machine['cupy']}, {python}\n")
    sys.stdout.flush()
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    result: dict[str, Any] = {"when": when, "commit": commit(), "machine": machine}
    result["tests"] = tests = run_tests(python)
    write(options.json, result)
    result["timings"] = timings = run_timings(python)
    write(options.json, result)
    if options.write:
        put(PAGE, measured(result))
    failed = [test for test in tests if test["outcome"] == "failed"]
    sys.stdout.write(
        f"\n{test_table(tests)}\n\n{timing_table(timings)}\n\nall of it: {options.json}\n"
    )
    if failed or "error" in timings:
        names = ", ".join(f"{test['file']}::{test['name']}" for test in failed[:10])
        sys.stderr.write(f"error: {len(failed)} tests failed ({names or 'the timings did'})\n")
        return 1
    broken = [f"{step['what']}: {step['why']}" for step in timings.get("steps", []) if step["why"]]
    if broken:
        sys.stderr.write(f"error: {len(broken)} training steps failed ({'; '.join(broken)})\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
