"""Operations that move items without computing with them, each with its gradient rule."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from telegrad.arrays import CPU, as_array, namespace, to_device
from telegrad.autograd.extend import Operation, primitive
from telegrad.autograd.fitting import sum_over_broadcast
from telegrad.autograd.ops.indexing import getitem
from telegrad.types import Array, Shape

__all__ = [
    "along",
    "astype",
    "broadcast_to",
    "concatenate",
    "move",
    "reshape",
    "stack",
    "swapaxes",
    "transpose",
]


def _reshape(a: Any, *, to: Shape) -> Array:
    reshaped: Array = a.reshape(to)
    return reshaped


def _transpose(a: Any, *, axes: Sequence[int] | None = None) -> Array:
    transposed: Array = a.transpose(axes)
    return transposed


def _swapaxes(a: Any, *, axis1: int, axis2: int) -> Array:
    swapped: Array = a.swapaxes(axis1, axis2)
    return swapped


def _broadcast_to(a: Any, *, to: Shape) -> Array:
    broadcast: Array = namespace(a).broadcast_to(a, to)
    return broadcast


def _astype(a: Any, *, dtype: Any) -> Array:
    return as_array(a).astype(dtype)


def _concatenate(*parts: Any, axis: int = 0) -> Array:
    joined: Array = namespace(*parts).concatenate(parts, axis=axis)
    return joined


def _stack(*parts: Any, axis: int = 0) -> Array:
    stacked: Array = namespace(*parts).stack(parts, axis=axis)
    return stacked


def _move(a: Any, *, device: str, source: str) -> Array:
    del source  # where it comes from: its gradient goes back there
    return to_device(a, device)


def _inverse(axes: Sequence[int] | None) -> tuple[int, ...] | None:
    if axes is None:
        return None
    ordered = [axis % len(axes) for axis in axes]
    return tuple(sorted(range(len(ordered)), key=ordered.__getitem__))


def _part(g: Any, i: int, shapes: Sequence[Shape], axis: int) -> Any:
    ends = list(itertools.accumulate(shape[axis] for shape in shapes))
    start = ends[i] - shapes[i][axis]
    return getitem(g, index=along(axis % len(shapes[i]), slice(start, ends[i])))


def along(axis: int, index: Any) -> tuple[Any, ...]:
    """Returns the index that is `index` on one axis and all of those before and after."""
    return (*[slice(None)] * axis, index)


reshape: Operation  # declared, as their rules name them
transpose: Operation
swapaxes: Operation
move: Operation
broadcast_to: Operation

# fmt: off
sum_to       = primitive("sum_to",       sum_over_broadcast, "a", stands_for=(sum_over_broadcast,), options={"to": ()}, complex_rule="own",
                         a=lambda g, shape: broadcast_to(g, to=shape))
broadcast_to = primitive("broadcast_to", _broadcast_to, "a", view=True, options={"to": ()}, complex_rule="own", a=lambda g: g)
astype       = primitive("astype",       _astype,       "a", options={"dtype": None}, complex_rule="own", a=lambda g: g)
reshape     = primitive("reshape",     _reshape,     "a", view=True, complex_rule="own", options={"to": ()},
                        a=lambda g, shape: reshape(g, to=shape))
transpose   = primitive("transpose",   _transpose,   "a", view=True, complex_rule="own", options={"axes": None},
                        a=lambda g, axes: transpose(g, axes=_inverse(axes)))
swapaxes    = primitive("swapaxes",    _swapaxes,    "a", view=True, complex_rule="own", options={"axis1": 0, "axis2": 0},
                        a=lambda g, axis1, axis2: swapaxes(g, axis1=axis1, axis2=axis2))
concatenate = primitive("concatenate", _concatenate, "*parts", complex_rule="own", options={"axis": 0},
                        parts=_part)
stack       = primitive("stack",       _stack,       "*parts", complex_rule="own", options={"axis": 0},
                        parts=lambda g, i, axis: getitem(g, index=along(axis % g.ndim, i)))
move        = primitive("to",          _move,        "a", complex_rule="own", options={"device": CPU, "source": CPU},
                        a=lambda g, device, source: move(g, device=source, source=device))
# fmt: on
