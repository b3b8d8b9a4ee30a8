"""Functions that split an array into parts, which are views of it, with their rules."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from telegrad.arrays import namespace
from telegrad.autograd.creation import as_tensor
from telegrad.autograd.extend import composed, numpy_function
from telegrad.autograd.ops import concatenate, scatter, stack
from telegrad.autograd.ops.shape import along
from telegrad.autograd.rules.selection import zeros_beside
from telegrad.types import Array, Shape

__all__: list[str] = []


def _bounds(sections: Any, length: int) -> list[tuple[int, int]]:
    """Returns where each part starts and ends."""
    if isinstance(sections, (int, np.integer)):
        each, longer = divmod(length, int(sections))
        ends = np.cumsum([each + 1] * longer + [each] * (int(sections) - longer)).tolist()
        return list(zip([0, *ends], ends, strict=False))
    places = [None, *(int(k) for k in sections), None]
    found = [slice(*pair).indices(length)[:2] for pair in pairwise(places)]
    return [(start, max(start, end)) for start, end in found]


def _joined(g: Sequence[Any], shape: Shape, sections: Any, axis: int) -> Any:
    """Returns the gradient of all from those of the parts, zeros where none came."""
    axis %= len(shape)
    beside = next(part for part in g if part is not None)
    bounds = _bounds(sections, shape[axis])
    ends = [0, *(end for _, end in bounds)]
    if all(start == end for (start, _), end in zip(bounds, ends, strict=False)):
        lengths = [end - start for start, end in bounds]
        parts = [
            zeros_beside(beside, (*shape[:axis], n, *shape[axis + 1 :])) if part is None else part
            for part, n in zip(g, lengths, strict=True)
        ]
        return concatenate(*parts, axis=axis)
    whole: Any = 0.0  # parts that overlap, or leave something out
    for part, (start, end) in zip(g, bounds, strict=True):
        if part is not None:
            whole = whole + scatter(part, index=along(axis, slice(start, end)), into=shape)
    return whole


def _stacked(g: Sequence[Any], axis: int) -> Any:
    beside = next(part for part in g if part is not None)
    return stack(*[zeros_beside(beside, beside.shape) if x is None else x for x in g], axis=axis)


def _rows(x: Any, axis: int = 0) -> tuple[Array, ...]:
    """Unstacks where the library has no function for it."""
    return tuple(namespace(x).moveaxis(x, axis, 0))


_INTO: Final = {"indices_or_sections": None, "axis": 0}

# fmt: off
array_split = numpy_function(np.array_split, "ary", outputs="*", view=True, options=_INTO, complex_rule="own",
                             ary=lambda g, shape, indices_or_sections, axis: _joined(g, shape, indices_or_sections, axis))
split       = numpy_function(np.split,       "ary", outputs="*", view=True, options=_INTO, complex_rule="own",
                             ary=lambda g, shape, indices_or_sections, axis: _joined(g, shape, indices_or_sections, axis))
unstack     = numpy_function(np.unstack,     "x",   outputs="*", view=True, options={"axis": 0}, complex_rule="own", kernels={"cupy": _rows},
                             x=_stacked)
# fmt: on


@composed(np.vsplit)
def _vsplit(ary: Any, indices_or_sections: Any) -> Any:
    return split(_with_axes(ary, 2, "vsplit"), indices_or_sections, 0)


@composed(np.hsplit)
def _hsplit(ary: Any, indices_or_sections: Any) -> Any:
    ary = _with_axes(ary, 1, "hsplit")
    return split(ary, indices_or_sections, 1 if ary.ndim > 1 else 0)


@composed(np.dsplit)
def _dsplit(ary: Any, indices_or_sections: Any) -> Any:
    return split(_with_axes(ary, 3, "dsplit"), indices_or_sections, 2)


def _with_axes(a: Any, least: int, name: str) -> Any:
    a = as_tensor(a)
    if a.ndim < least:
        raise ValueError(f"{name} works on arrays of {least} or more axes, not {a.ndim}")
    return a
