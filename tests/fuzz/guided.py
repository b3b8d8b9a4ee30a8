"""Runs one target under atheris, which looks for inputs that reach new lines; see `scripts/fuzz.py`.

The arguments are the target's name and then libFuzzer's own.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["telegrad.wire", "telegrad.transport"]):
    from tests.fuzz.engine import run_one


def main() -> None:
    """Runs until libFuzzer has had enough."""
    target = sys.argv[1]

    def one(data: bytes) -> None:
        run_one(target, data)

    atheris.Setup([sys.argv[0], *sys.argv[2:]], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
