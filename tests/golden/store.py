"""Golden files: trees of plain values and arrays, as JSON with the numbers beside it in an .npz file.

    programs.json   one entry a line; "$3" is a reference to value 3, "@f 2 3" an array of shape
                    (2, 3), {"tuple": [0, 1]} a tuple, {"slice": [0, 4, null]} a slice
    programs.npz    one vector of float64 with the numbers of all arrays in their order, a complex
                    number being two of them

scripts/make_golden.py writes them with torch; tests read them and need none.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["HERE", "Value", "close", "direction", "load", "replace", "save"]

HERE = Path(__file__).resolve().parent
KINDS = {"f": np.float64, "c": np.complex128, "i": np.int64, "b": np.bool_}
TOLERANCE = 1e-10


@dataclass(frozen=True)
class Value:
    """A reference to what came before in a program: an input, or a step's result."""

    number: int


def save(path: Path, head: dict[str, Any], entries: list[dict[str, Any]]) -> None:
    """Writes `path` and, with the suffix .npz, the numbers of its arrays."""
    parts: list[npt.NDArray[Any]] = []
    lines = [json.dumps(_written(entry, parts), separators=(",", ":")) for entry in entries]
    start = json.dumps(head)[:-1]
    path.write_text(f'{start}, "entries": [\n' + ",\n".join(lines) + "\n]}\n")
    np.savez_compressed(path.with_suffix(".npz"), numbers=np.concatenate(parts))


def load(path: Path) -> list[dict[str, Any]]:
    """Returns the entries of a file."""
    with np.load(path.with_suffix(".npz")) as stored:
        numbers = Numbers(stored["numbers"])
    entries: list[dict[str, Any]] = _read(json.loads(path.read_text())["entries"], numbers)
    return entries


def replace(tree: Any, values: list[Any]) -> Any:
    """Returns arguments with the values that they refer to."""
    if isinstance(tree, Value):
        return values[tree.number]
    if isinstance(tree, (list, tuple)):
        return type(tree)(replace(part, values) for part in tree)
    if isinstance(tree, dict):
        return {key: replace(part, values) for key, part in tree.items()}
    return tree


def close(found: Any, expected: Any, tolerance: float = TOLERANCE) -> bool:
    """Whether shapes are equal, and numbers to `tolerance` of the largest."""
    found, expected = 1.0 * np.asarray(found), 1.0 * np.asarray(expected)
    if found.shape != expected.shape:
        return False
    scale = max(float(np.abs(expected).max(initial=0.0)), 1e-4)
    return bool((np.abs(found - expected) <= tolerance * scale).all())


@dataclass
class Numbers:
    """The numbers of a file, taken from its beginning on."""

    vector: npt.NDArray[Any]
    place: int = 0

    def take(self, kind: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """Returns the next array."""
        count = math.prod(shape) * (2 if kind == "c" else 1)
        part = self.vector[self.place : self.place + count]
        self.place += count
        part = part.view(np.complex128) if kind == "c" else part.astype(KINDS[kind])
        return part.reshape(shape).copy()


def direction(shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Returns the weights of a gradient in the sum that is differentiated again."""
    return np.asarray((np.arange(math.prod(shape)) % 7 - 2.5) / 4).reshape(shape)


def _written(tree: Any, parts: list[npt.NDArray[Any]]) -> Any:
    if isinstance(tree, np.ndarray):
        kind = tree.dtype.kind
        flat: npt.NDArray[Any] = np.ascontiguousarray(tree, KINDS[kind]).ravel()
        parts.append(flat.view(np.float64) if kind == "c" else flat.astype(np.float64))
        return " ".join([f"@{kind}", *map(str, tree.shape)])
    if isinstance(tree, dict):
        return {key: _written(part, parts) for key, part in tree.items()}
    if isinstance(tree, list):
        return [_written(part, parts) for part in tree]
    if isinstance(tree, tuple):
        return {"tuple": [_written(part, parts) for part in tree]}
    if isinstance(tree, Value):
        return f"${tree.number}"
    if isinstance(tree, slice):
        return {"slice": [tree.start, tree.stop, tree.step]}
    return {"ellipsis": []} if tree is ... else tree


def _read(tree: Any, numbers: Numbers) -> Any:
    if isinstance(tree, str) and tree.startswith("$"):
        return Value(int(tree[1:]))
    if isinstance(tree, str) and tree.startswith("@"):
        return numbers.take(tree[1], tuple(map(int, tree[2:].split())))
    if isinstance(tree, list):
        return [_read(part, numbers) for part in tree]
    if not isinstance(tree, dict):
        return tree
    match list(tree.items()):
        case [("tuple", list(parts))]:
            return tuple(_read(part, numbers) for part in parts)
        case [("slice", list(bounds))]:
            return slice(*bounds)
        case [("ellipsis", [])]:
            return ...
    return {key: _read(part, numbers) for key, part in tree.items()}
