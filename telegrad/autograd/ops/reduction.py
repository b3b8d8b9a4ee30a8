"""Sums, means and extrema over axes, each with its gradient rule.

Extrema: items that are equal share the gradient equally.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from telegrad.autograd.extend import numpy_function
from telegrad.autograd.ops.axes import count, kept, masked, shared, spread, to_winners
from telegrad.types import Shape

__all__ = ["mean", "reduce_max", "reduce_min", "reduce_sum"]


def _average(g: Any, shape: Shape, axis: Any, where: Any) -> Any:
    return masked(
        spread(shared(_with_axes(g, shape, axis, where), count(shape, axis, where)), shape, axis),
        where,
    )


def _with_axes(g: Any, shape: Shape, axis: Any, where: Any) -> Any:
    # A count of its own for each result has the reduced axes, so the gradient must have them.
    return g if where is None or where is True else kept(g, shape, axis)


_OVER: Final = {"axis": None, "keepdims": False}
_TYPED: Final = {**_OVER, "dtype": None}
_BOUNDED: Final = {**_OVER, "initial": None}
_H: Final = "holomorphic"

# fmt: off
reduce_sum = numpy_function(np.sum,  "a", arrays="where", options={**_TYPED, "initial": 0}, complex_rule=_H,
                            a=lambda g, shape, axis, where: masked(spread(g, shape, axis), where))
mean       = numpy_function(np.mean, "a", arrays="where", options=_TYPED, complex_rule=_H,
                            a=_average)
reduce_max = numpy_function(np.max,  "a", arrays="where", options=_BOUNDED, a=to_winners)
reduce_min = numpy_function(np.min,  "a", arrays="where", options=_BOUNDED, a=to_winners)
# fmt: on
