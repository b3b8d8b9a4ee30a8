"""Pooling over windows of the last two axes.

The largest item of a window is one of its places, which is constant in between: from there on all
is linear, and each function's gradient is its transpose.
"""

from __future__ import annotations

from typing import Any, Final

from telegrad import kernels
from telegrad.autograd.extend import Operation, primitive

__all__ = ["max_pool2d", "mean_pool2d"]

_LAID: Final = {"windows": None}
_SHAPED: Final = {**_LAID, "shape_of": ()}
_COUNTED: Final = {**_LAID, "count_padding": True}
_BOTH: Final = {**_COUNTED, "shape_of": ()}


def _spread_places(gradient: Any, places: Any, *, windows: Any, shape_of: Any) -> Any:
    return kernels.spread_places(gradient, places, windows=windows, shape=shape_of)


def _spread_means(gradient: Any, *, shape_of: Any, **others: Any) -> Any:
    return kernels.spread_means(gradient, shape=shape_of, **others)


pick_places: Operation  # declared, as rules name what stands below
spread_places: Operation
spread_means: Operation

# fmt: off
max_pool2d    = primitive("max_pool2d",    kernels.max_pool2d,  "x", outputs="largest places", options=_LAID,
                          x=lambda g, places, windows, shape: spread_places(g[0], places, windows=windows, shape_of=shape))
spread_places = primitive("spread_places", _spread_places,      "b places", options=_SHAPED,
                          b=lambda g, places, windows: pick_places(g, places, windows=windows))
pick_places   = primitive("pick_places",   kernels.pick_places, "x places", options=_LAID,
                          x=lambda g, places, windows, shape: spread_places(g, places, windows=windows, shape_of=shape))
mean_pool2d   = primitive("mean_pool2d",   kernels.mean_pool2d, "x", options=_COUNTED,
                          x=lambda g, windows, count_padding, shape: spread_means(g, windows=windows, count_padding=count_padding, shape_of=shape))
spread_means  = primitive("spread_means",  _spread_means,       "b", options=_BOTH,
                          b=lambda g, windows, count_padding: mean_pool2d(g, windows=windows, count_padding=count_padding))
# fmt: on
