"""Convolution over the last two axes: three functions, each in both arguments linear.

The gradients of each are the other two, so derivatives of any order come of these rules.
"""

from __future__ import annotations

from typing import Any, Final

from telegrad import kernels
from telegrad.autograd.extend import Operation, primitive
from telegrad.autograd.ops import reduce_sum

__all__ = ["conv2d", "conv2d_input", "conv2d_weight"]

_LAID: Final = {"windows": None, "groups": 1}
_SHAPED: Final = {**_LAID, "shape_of": ()}


def _input(gradient: Any, weight: Any, *, shape_of: Any, **laid: Any) -> Any:
    return kernels.conv2d_input(gradient, weight, shape=shape_of, **laid)


def _weight(gradient: Any, x: Any, *, shape_of: Any, **laid: Any) -> Any:
    return kernels.conv2d_weight(gradient, x, shape=shape_of, **laid)


conv2d_input: Operation  # declared, as the rules name each other
conv2d_weight: Operation

# fmt: off
conv2d        = primitive("conv2d",        kernels.conv2d, "x weight", arrays="bias", options=_LAID,
                          x=lambda g, weight, windows, groups, shape: conv2d_input(g, weight, windows=windows, groups=groups, shape_of=shape),
                          weight=lambda g, x, windows, groups, shape: conv2d_weight(g, x, windows=windows, groups=groups, shape_of=shape),
                          bias=lambda g: reduce_sum(g, axis=(0, 2, 3)))
conv2d_input  = primitive("conv2d_input",  _input,         "b weight", options=_SHAPED,
                          b=lambda g, weight, windows, groups: conv2d(g, weight, windows=windows, groups=groups),
                          weight=lambda g, b, windows, groups, shape: conv2d_weight(b, g, windows=windows, groups=groups, shape_of=shape))
conv2d_weight = primitive("conv2d_weight", _weight,        "b x",      options=_SHAPED,
                          b=lambda g, x, windows, groups: conv2d(x, g, windows=windows, groups=groups),
                          x=lambda g, b, windows, groups, shape: conv2d_input(b, g, windows=windows, groups=groups, shape_of=shape))
# fmt: on
