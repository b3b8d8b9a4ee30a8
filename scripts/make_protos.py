"""Generates the message classes in telegrad/pb from protos/, or checks the committed ones."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"
SUFFIXES = ("_pb2.py", "_pb2.pyi")


def generate(target: Path) -> None:
    """Writes `telegrad/pb/*_pb2.py` and `.pyi` below a directory."""
    sources = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.rglob("*.proto"))
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    arguments = ["protoc", f"-I{PROTOS}", f"-I{well_known}"]
    arguments += [f"--python_out={target}", f"--pyi_out={target}", *sources]
    if protoc.main(arguments) != 0:
        raise SystemExit("protoc failed")


def differences(fresh: Path) -> list[str]:
    """Returns the generated files that are missing, superfluous or not as committed."""
    made = {str(p.relative_to(fresh)): p.read_bytes() for p in fresh.rglob("*") if p.is_file()}
    package = ROOT / "telegrad" / "pb"
    committed = {
        str(p.relative_to(ROOT)): p.read_bytes()
        for p in package.iterdir()
        if p.name.endswith(SUFFIXES)
    }
    names = sorted(made.keys() | committed.keys())
    return [name for name in names if made.get(name) != committed.get(name)]


def main() -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    if not parser.parse_args().check:
        generate(ROOT)
        return 0
    with tempfile.TemporaryDirectory() as fresh:
        generate(Path(fresh))
        stale = differences(Path(fresh))
    for name in stale:
        sys.stderr.write(f"{name} is not what protos/ makes; run python scripts/make_protos.py\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
