"""Functions that broadcast arrays against each other, written with others."""

from __future__ import annotations

from typing import Any

import numpy as np

from telegrad.autograd.extend import composed
from telegrad.autograd.ops import broadcast_to, reshape
from telegrad.autograd.rules.stacking import alike

__all__: list[str] = []


@composed(np.broadcast_arrays)
def _broadcast_arrays(*args: Any) -> Any:
    parts = alike(args)
    shape = np.broadcast_shapes(*[x.shape for x in parts])
    return tuple([broadcast_to(x, to=shape) for x in parts])


def _across(parts: list[Any]) -> list[Any]:
    """Gives each its own axis."""
    count = len(parts)
    return [
        reshape(x, to=tuple([x.size if i == k else 1 for i in range(count)]))
        for k, x in enumerate(parts)
    ]


@composed(np.meshgrid)
def _meshgrid(*xi: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> Any:
    if indexing not in ("xy", "ij"):
        raise ValueError(f"indexing is 'xy' or 'ij', not {indexing!r}")
    parts = alike(xi)
    swapped = indexing == "xy" and len(parts) > 1
    if swapped:
        parts[:2] = parts[1::-1]
    grids = _across(parts)
    if not sparse:
        shape = tuple([x.size for x in parts])
        grids = [broadcast_to(x, to=shape) for x in grids]
    if swapped:
        grids[:2] = grids[1::-1]
    return tuple([np.copy(x) for x in grids] if copy else grids)


@composed(np.ix_)
def _ix(*args: Any) -> Any:
    parts = alike(args)
    if any(x.ndim != 1 for x in parts):
        raise ValueError("ix_ takes arrays of one axis")
    return tuple(_across([np.flatnonzero(x) if x.dtype == np.bool_ else x for x in parts]))
