"""Writes the test vectors in tests/vectors, or checks that the encoder still makes these bytes.

    scripts/make_vectors.py [--check]

The values are in tests/wire/vector_cases.py, the frames, handshakes and conversation in
tests/wire/vector_streams.py; docs/wire-format.md says how to read the files.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
VECTORS = ROOT / "tests" / "vectors"

sys.path.insert(0, str(ROOT))

from telegrad.wire import Buffer, describe, encode, place_by  # noqa: E402
from telegrad.wire.values import array_types  # noqa: E402
from tests.gpu.stand_in.stand_in import stand_in  # noqa: E402
from tests.wire import vector_cases, vector_streams  # noqa: E402

FREE = tuple(f'{{"name": "{name}"' for name in vector_cases.FREE_ORDER)


def value_vector(name: str, value: object) -> dict[str, Any]:
    """Returns one value, as JSON shows it and as bytes."""
    if isinstance(value, vector_cases.Beside):
        with mock.patch.object(array_types, "BESIDE_BYTES", 1):
            encoded = encode(value.value)
    elif isinstance(value, vector_cases.ForGpu):
        return _vector(name, value, *_sent_to_gpu(value))
    else:
        encoded = encode(value)
    return _vector(name, value, encoded.document, *describe(encoded.externals))


def _sent_to_gpu(value: vector_cases.ForGpu) -> tuple[bytes, bytes, list[Buffer]]:
    cupy = stand_in()
    with mock.patch.dict(sys.modules, {"cupy": cupy}):
        encoded = encode(cupy.array(value.value))
        return encoded.document, *describe(encoded.externals, place_by({0: value.number}))


def _vector(
    name: str, value: object, document: bytes, metadata: bytes, buffers: Sequence[Buffer]
) -> dict[str, Any]:
    form, objects = vector_cases.shown(value)
    return {
        "name": name,
        "value": form,
        "objects": objects,
        "document": document.hex(),
        "externals": metadata.hex(),
        "buffers": [bytes(buffer).hex() for buffer in buffers],
    }


def make() -> dict[str, Any]:
    """Returns the contents of each file, by its name."""
    values = {
        f"{table}.json": [value_vector(name, value) for name, value in cases.items()]
        for table, cases in vector_cases.TABLES.items()
    }
    return values | {
        "frames.json": {"frames": vector_streams.frames(), "chunks": vector_streams.chunks()},
        "handshake.json": {
            "handshakes": vector_streams.handshakes(),
            "refusals": vector_streams.refusals(),
        },
        "conversation.json": {
            "token": vector_streams.TOKEN.decode(),
            "steps": vector_streams.conversation(),
        },
    }


def text_of(content: Any) -> str:
    """Returns a file's text; one vector to a line, so that a difference shows which it is."""

    def text(part: Any) -> str:
        if isinstance(part, list):
            return "[\n" + ",\n".join(json.dumps(each, allow_nan=False) for each in part) + "\n]"
        return json.dumps(part)

    if not isinstance(content, dict):
        return f"{text(content)}\n"
    items = ",\n".join(f"{json.dumps(key)}: {text(each)}" for key, each in content.items())
    return f"{{\n{items}\n}}\n"


def differences() -> list[str]:
    """Returns the lines of the files that are not as committed, each with its file."""
    found = []
    for name, content in make().items():
        path = VECTORS / name
        known = path.read_text().splitlines() if path.exists() else []
        for fresh, old in zip_longest(text_of(content).splitlines(), known, fillvalue=""):
            if fresh != old and not fresh.startswith(FREE):
                found.append(f"{name}: {fresh[:120]}")
    return found


def main() -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    if parser.parse_args().check:
        stale = differences()
        for line in stale:
            sys.stderr.write(f"{line}\n")
        return 1 if stale else 0
    VECTORS.mkdir(exist_ok=True)
    for name, content in make().items():
        (VECTORS / name).write_text(text_of(content))
    return 0


if __name__ == "__main__":
    sys.exit(main())
