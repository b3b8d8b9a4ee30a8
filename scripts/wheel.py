"""Builds the wheel, compares it with the repository, and runs a job from it.

    scripts/wheel.py        exit code 1 when a file is missing, or the job fails

The wheel is installed, as a user would and without extras, into an environment that is thrown away.
The job runs in an empty directory, so that it cannot find this checkout.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from scripts.size import install  # noqa: E402

PROGRAM = """
import sys

import numpy as np

import telegrad as tg
from telegrad import dist_autograd, rpc


def squared(x):
    return (x * x).sum()


assert tg.__file__.startswith(sys.prefix), tg.__file__
with rpc.init_rpc() as agent, dist_autograd.context() as context_id:
    x = tg.Tensor(np.arange(3.0), requires_grad=True)
    dist_autograd.backward(context_id, [rpc.rpc_sync(f"worker{1 - agent.rank}", squared, (x,))])
    print("gradient", dist_autograd.get_gradients(context_id)[x].tolist())
"""
PRINTED = "gradient [0.0, 2.0, 4.0]"


def build(place: Path) -> Path:
    """Returns the wheel of this checkout; the environment that runs this has the build backend."""
    command = [sys.executable, "-m", "pip", "--quiet", "wheel", "--no-deps"]
    subprocess.run(
        [*command, "--no-build-isolation", "--wheel-dir", str(place), str(ROOT)], check=True
    )
    (wheel,) = place.glob("telegrad-*.whl")
    return wheel


def differences(wheel: Path) -> list[str]:
    """Returns in words which files of the package the wheel lacks, and which nobody committed."""
    listed = subprocess.run(
        ["git", "ls-files", "telegrad"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    committed = set(listed.stdout.splitlines())
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    return [
        *(f"{name} is not in the wheel" for name in sorted(committed - packed)),
        *(f"{name} is in the wheel and not committed" for name in sorted(packed - committed)),
    ]


def run_job(python: Path, place: Path) -> str:
    """Runs a job of two workers in an empty directory; returns what they print."""
    script, empty = place / "program" / "job.py", place / "empty"
    for directory in (script.parent, empty):
        directory.mkdir()
    script.write_text(PROGRAM)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(python.parent / "telegrad"), "run", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(
        command, cwd=empty, env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout


def main() -> int:
    """Runs the command; returns its exit code."""
    with tempfile.TemporaryDirectory(prefix="telegrad-wheel-") as directory:
        place = Path(directory)
        try:
            wheel = build(place)
            wrong = differences(wheel)
            printed = run_job(install(place / "environment", wheel), place)
        except subprocess.CalledProcessError as failed:
            sys.stderr.write(f"error: {failed}\n")
            return 1
        size = wheel.stat().st_size
    if printed.count(PRINTED) != 2:
        wrong.append(f"the job printed {printed!r}, not {PRINTED!r} from each worker")
    if wrong:
        sys.stderr.write("".join(f"error: {line}\n" for line in wrong))
        return 1
    sys.stdout.write(f"{wheel.name}: {size / 1e6:.1f} MB, has every file; a job ran from it\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
