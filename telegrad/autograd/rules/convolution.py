"""Convolution and correlation of sequences, with their gradient rules."""

from __future__ import annotations

from typing import Any

import numpy as np

from telegrad.autograd.extend import composed, numpy_function
from telegrad.autograd.ops import reshape, scatter

__all__: list[str] = []


def _middle(a: int, v: int, mode: str | int) -> slice:
    """Returns which items of the full convolution of lengths `a` and `v` a mode keeps.

    NumPy numbers the modes too: 0 valid, 1 same, 2 full.
    """
    longer, shorter = max(a, v), min(a, v)
    if mode in ("full", 2):
        return slice(0, a + v - 1)
    if mode in ("same", 1):
        return slice((shorter - 1) // 2, (shorter - 1) // 2 + longer)
    return slice(shorter - 1, longer)


def _of_convolution(g: Any, own: Any, other: Any, mode: str | int) -> Any:
    """Returns the gradient of one of the two, which is a convolution with the other one turned."""
    n, m = max(own.size, 1), max(np.size(other), 1)
    if mode not in ("full", 2):
        g = scatter(g, index=_middle(n, m, mode), into=(n + m - 1,))
    return reshape(np.convolve(g, np.ravel(other)[::-1], "valid"), to=own.shape)


# fmt: off
convolve = numpy_function(np.convolve, "a v", options={"mode": "full"}, complex_rule="holomorphic",
                          a=lambda g, a, v, mode: _of_convolution(g, a, v, mode),
                          v=lambda g, a, v, mode: _of_convolution(g, v, a, mode))
# fmt: on


@composed(np.correlate)
def _correlate(a: Any, v: Any, mode: Any = "valid") -> Any:
    a, v = (
        np.asarray(x) if isinstance(x, (int, float, complex, list, tuple)) else x for x in (a, v)
    )
    if mode in ("same", 1) and a.size < v.size:
        # As NumPy swaps both and turns the result, an even length is cut at the other end.
        return np.correlate(np.conjugate(v), np.conjugate(a), mode)[::-1]
    return np.convolve(a, reshape(np.conjugate(v), to=(-1,))[::-1], mode)
