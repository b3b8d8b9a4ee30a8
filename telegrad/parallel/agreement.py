"""What the ranks of a data-parallel module must have in common, and the first difference."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Any

import numpy as np

from telegrad.autograd import Tensor
from telegrad.nn import Module
from telegrad.types import Array, Rank

__all__ = ["Description", "Entry", "describe", "first_difference"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One parameter or buffer of a module.

    Attributes:
        kind: `parameter` or `buffer`.
        name: Dotted, as in `state_dict()`.
        shape: Its shape.
        dtype: The name of its dtype.
        requires_grad: Whether it is trained.
    """

    kind: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    requires_grad: bool


@dataclass(frozen=True, slots=True)
class Description:
    """What one rank says of its module."""

    entries: tuple[Entry, ...]
    bucket_bytes: int

    def to_array(self) -> Array:
        """Returns it as bytes, of shape (length,)."""
        return np.frombuffer(json.dumps(asdict(self)).encode(), np.uint8)

    @classmethod
    def from_array(cls, array: Array) -> Description:
        """Returns what `to_array` was called on."""
        found: dict[str, Any] = json.loads(array.tobytes())
        entries = (Entry(**{**entry, "shape": tuple(entry["shape"])}) for entry in found["entries"])
        return cls(tuple(entries), found["bucket_bytes"])


def describe(module: Module, bucket_bytes: int) -> Description:
    """Returns what this rank has to say of its module."""
    entries = [_entry("parameter", name, value) for name, value in module.named_parameters()]
    entries += [_entry("buffer", name, value) for name, value in module.named_buffers()]
    return Description(tuple(entries), bucket_bytes)


def _entry(kind: str, name: str, value: Tensor) -> Entry:
    return Entry(kind, name, value.shape, str(value.dtype), value.requires_grad)


def first_difference(descriptions: Sequence[Description], ranks: Sequence[Rank]) -> str | None:
    """Returns in words where the first rank that is unlike the first of all differs; or None.

    Args:
        descriptions: By rank in the group; so every member finds the same difference.
        ranks: The numbers to call them by.

    >>> weight = Entry("parameter", "weight", (2, 3), "float32", True)
    >>> other = Entry("parameter", "weight", (2, 4), "float32", True)
    >>> first_difference([Description((weight,), 8), Description((other,), 8)], [0, 1])
    "parameter 'weight' has shape (2, 3) on rank 0 and (2, 4) on rank 1"
    """
    first = descriptions[0]
    for r, other in zip(ranks[1:], descriptions[1:], strict=True):
        if other != first:
            return _difference(first, other, ranks[0], r)
    return None


def _difference(left: Description, right: Description, r: Rank, other: Rank) -> str:
    for i, (a, b) in enumerate(zip_longest(left.entries, right.entries)):
        if a is None or b is None:
            found, with_it, without = (b, other, r) if a is None else (a, r, other)
            return f"{found.kind} {found.name!r} is on rank {with_it} and not on rank {without}"
        if (a.kind, a.name) != (b.kind, b.name):
            return (
                f"number {i} is {a.kind} {a.name!r} on rank {r} and {b.kind} {b.name!r} on rank "
                f"{other}"
            )
        for what, x, y in (
            ("shape", a.shape, b.shape),
            ("dtype", a.dtype, b.dtype),
            ("requires_grad", a.requires_grad, b.requires_grad),
        ):
            if x != y:
                return f"{a.kind} {a.name!r} has {what} {x} on rank {r} and {y} on rank {other}"
    return (
        f"bucket_bytes is {left.bucket_bytes} on rank {r} and {right.bucket_bytes} on rank {other}"
    )
