"""Writes tests/golden: what torch finds for random programs, for modules and for optimizers.

    make golden        # or: .venv-bench-torch/bin/python scripts/make_golden.py [programs ...]

The tests read these files and need no torch. With the same torch and NumPy the files come out the
same, but for the last digits of some numbers.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

import torch  # noqa: E402
from golden import modules, optimizers, programs  # noqa: E402

from tests.golden.store import HERE, save  # noqa: E402

COUNT, SEED = 305, 6
MAKERS = {
    "programs": lambda: programs.programs(COUNT, SEED),
    "modules": modules.modules,
    "optimizers": optimizers.trajectories,
    "schedules": optimizers.schedules,
    "clippings": optimizers.clippings,
}


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*", metavar="FILE", help=f"of {', '.join(MAKERS)}; all")
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    for name in parser.parse_args().files or MAKERS:
        path = HERE / f"{name}.json"
        save(path, {"torch": torch.__version__}, MAKERS[name]())
        size = path.stat().st_size + path.with_suffix(".npz").stat().st_size
        sys.stdout.write(f"{name}: {size:,} bytes\n")


if __name__ == "__main__":
    main()
