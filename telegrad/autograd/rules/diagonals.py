"""Diagonals and triangles, with their rules."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from telegrad.arrays import namespace
from telegrad.autograd.creation import as_tensor
from telegrad.autograd.extend import Operation, composed, numpy_function, primitive
from telegrad.autograd.ops import ravel
from telegrad.types import Array, Shape

__all__ = ["diagonal", "on_diagonal"]


def _on_diagonal(a: Any, *, into: Shape, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
    """Returns zeros of shape `into` with `a` on the diagonals of which `diagonal` tells."""
    xp = namespace(a)
    whole: Array = xp.zeros(into, a.dtype)
    rows, columns = axis1 % len(into), axis2 % len(into)
    others = [k for k in range(len(into)) if k not in (rows, columns)]
    places = xp.arange(a.shape[-1])
    turned = whole.transpose((*others, rows, columns))
    turned[..., places + max(-offset, 0), places + max(offset, 0)] = a
    return whole


diagonal: Operation  # declared, as rules name what stands below
on_diagonal: Operation
tril: Operation
triu: Operation
_AXES: Final = {"offset": 0, "axis1": 0, "axis2": 1}

# fmt: off
diagonal    = numpy_function(np.diagonal, "a", view=True, options=_AXES, complex_rule="own",
                             a=lambda g, shape, offset, axis1, axis2: on_diagonal(g, into=shape, offset=offset, axis1=axis1, axis2=axis2))
on_diagonal = primitive("on_diagonal", _on_diagonal, "a", options={"into": (), **_AXES}, complex_rule="own",
                        a=lambda g, offset, axis1, axis2: diagonal(g, offset=offset, axis1=axis1, axis2=axis2))
tril        = numpy_function(np.tril, "m", options={"k": 0}, complex_rule="own", m=lambda g, k: tril(g, k=k))
triu        = numpy_function(np.triu, "m", options={"k": 0}, complex_rule="own", m=lambda g, k: triu(g, k=k))
# fmt: on


@composed(np.diag)
def _diag(v: Any, k: int = 0) -> Any:
    v = as_tensor(v)
    if v.ndim == 1:
        length = v.size + abs(k)
        return on_diagonal(v, into=(length, length), offset=k)
    if v.ndim == 2:
        return diagonal(v, offset=k)
    raise ValueError(f"diag takes one axis or two, not {v.ndim}")


@composed(np.diagflat)
def _diagflat(v: Any, k: int = 0) -> Any:
    return _diag(ravel(as_tensor(v)), k)
