"""Convolution and correlation of sequences, with their gradient rules."""

from __future__ import annotations

from typing import Any

import numpy as np

from telegrad.autograd.extend import composed, numpy_function
from telegrad.autograd.ops import reshape, scatter

__all__: list[str] = []


def _middle(a: int, v: int, mode: str) -> slice:
    """Returns which items of the full convolution of lengths `a` and `v` a mode keeps."""
    longer, shorter = max(a, v), min(a, v)
    if mode == "full":
        return slice(0, a + v - 1)
    if mode == "same":
        return slice((shorter - 1) // 2, (shorter - 1) // 2 + longer)
    return slice(shorter - 1, longer)


def _of_convolution(g: Any, own: Any, other: Any, mode: str) -> Any:
    """Returns the gradient of one of the two, which is a convolution with the other one turned."""
    n, m = max(own.size, 1), max(other.size, 1)
    if mode != "full":
        g = scatter(g, index=_middle(n, m, mode), into=(n + m - 1,))
    return reshape(np.convolve(g, reshape(other, to=(m,))[::-1], "valid"), to=own.shape)


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
    if mode == "same" and a.size < v.size:
        # As NumPy swaps both and turns the result, an even length is cut at the other end.
        return np.correlate(np.conjugate(v), np.conjugate(a), mode)[::-1]
    return np.convolve(a, reshape(np.conjugate(v), to=(-1,))[::-1], mode)
