"""Layers written as loops over windows, rows and labels: what the fast ones are compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["convolved", "normalized", "pooled"]


def convolved(
    x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> Any:
    """Returns the cross-correlation; padding as ((top, bottom), (left, right))."""
    padded = np.pad(x, ((0, 0), (0, 0), *padding))
    n, _, rows, columns = padded.shape
    filters, depth, height, width = weight.shape
    down = (rows - dilation[0] * (height - 1) - 1) // stride[0] + 1
    across = (columns - dilation[1] * (width - 1) - 1) // stride[1] + 1
    y = np.zeros((n, filters, down, across))
    for index in np.ndindex(*y.shape):
        i, o, r, c = index
        first = o // (filters // groups) * depth
        for d, a, b in np.ndindex(depth, height, width):
            row, column = r * stride[0] + a * dilation[0], c * stride[1] + b * dilation[1]
            y[index] += padded[i, first + d, row, column] * weight[o, d, a, b]
        y[index] += 0.0 if bias is None else bias[o]
    return y


def pooled(
    x: Any, take: Callable[[Any], float], size: Any, stride: Any, padding: Any = (0, 0)
) -> Any:
    """Returns `take` of the items of each window, NaN standing for padding."""
    sides = [(0, 0)] * (x.ndim - 2) + [(p, p) for p in padding]
    padded = np.pad(x, sides, constant_values=np.nan)
    down, across = (
        (n - k) // s + 1 for n, k, s in zip(padded.shape[-2:], size, stride, strict=True)
    )
    y = np.zeros((*x.shape[:-2], down, across))
    for index in np.ndindex(*y.shape):
        r, c = index[-2] * stride[0], index[-1] * stride[1]
        y[index] = take(padded[index[:-2]][r : r + size[0], c : c + size[1]])
    return y


def normalized(rows: Any, eps: float) -> Any:
    """Returns rows with mean 0 and variance 1, one after the other."""
    return np.array([(row - row.mean()) / np.sqrt(row.var() + eps) for row in rows])
