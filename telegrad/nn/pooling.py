"""Pooling over windows of the last two axes, and `Flatten`."""

from __future__ import annotations

from typing import Any

import numpy as np

from telegrad.arrays import namespace
from telegrad.autograd import Tensor, as_tensor, ops, rules
from telegrad.nn.module import Module
from telegrad.nn.windows import Pair, of_pooling
from telegrad.types import Array

__all__ = [
    "AdaptiveAvgPool2d",
    "AvgPool2d",
    "Flatten",
    "MaxPool2d",
    "adaptive_avg_pool2d",
    "avg_pool2d",
    "max_pool2d",
]


def max_pool2d(
    x: Tensor | Array,
    kernel_size: Pair,
    stride: Pair | None = None,
    padding: Pair = 0,
    *,
    dilation: Pair = 1,
) -> Tensor:
    """Returns the largest item of each window; the first takes the gradient where several are.

    Args:
        x: Floating-point, of shape (..., rows, columns).
        kernel_size: Rows and columns of a window.
        stride: From one window to the next; None for their size.
        padding: On each side; at most half a window. It never wins.
        dilation: From one item of a window to the next.

    Raises:
        ValueError: A number is out of its bounds, or no window fits.

    >>> import numpy as np
    >>> max_pool2d(np.arange(16.0).reshape(4, 4), 2).data.tolist()
    [[5.0, 7.0], [13.0, 15.0]]
    """
    windows = of_pooling(kernel_size, stride, padding, dilation)
    _check_axes(x)
    return as_tensor(rules.layers.max_pool2d(x, windows=windows)[0])


def avg_pool2d(
    x: Tensor | Array,
    kernel_size: Pair,
    stride: Pair | None = None,
    padding: Pair = 0,
    *,
    count_include_pad: bool = True,
) -> Tensor:
    """Returns the mean of each window.

    Args:
        x: Floating-point, of shape (..., rows, columns).
        kernel_size: Rows and columns of a window.
        stride: From one window to the next; None for their size.
        padding: Zeros on each side; at most half a window.
        count_include_pad: Whether they count.

    Raises:
        ValueError: A number is out of its bounds, or no window fits.
    """
    windows = of_pooling(kernel_size, stride, padding)
    _check_axes(x)
    counted = count_include_pad
    return as_tensor(rules.layers.mean_pool2d(x, windows=windows, count_padding=counted))


def adaptive_avg_pool2d(x: Tensor | Array, output_size: Any) -> Tensor:
    """Returns the means of parts of even size, so many that there are `output_size` of them.

    Part i of n covers the rows from floor(i * rows / n) to ceil((i + 1) * rows / n).

    Args:
        x: Floating-point, of shape (..., rows, columns).
        output_size: A number or two; None for as many as there are.

    Raises:
        ValueError: A number is not positive, or there are no rows or columns.
    """
    _check_axes(x)
    if 0 in x.shape[-2:]:
        raise ValueError(f"there is no mean of no items: the shape is {x.shape}")
    given = output_size if isinstance(output_size, (tuple, list)) else (output_size, output_size)
    parts = [n if part is None else part for part, n in zip(given, x.shape[-2:], strict=True)]
    if min(parts) < 1:
        raise ValueError(f"output_size is positive, not {output_size}")
    if not any(n % part for part, n in zip(parts, x.shape[-2:], strict=True)):
        size = tuple(n // part for part, n in zip(parts, x.shape[-2:], strict=True))
        if parts == [1, 1]:
            return as_tensor(ops.mean(x, axis=(-2, -1), keepdims=True))
        return avg_pool2d(x, size)
    down, across = (_means(x, n, part) for n, part in zip(x.shape[-2:], parts, strict=True))
    return as_tensor(down @ (x @ across.T))


def _means(x: Any, n: int, parts: int) -> Any:
    """The matrix, of shape (parts, n), that takes means."""
    array = x.data if isinstance(x, Tensor) else x
    matrix = np.zeros((parts, n), array.dtype)
    for i in range(parts):
        start, end = i * n // parts, -(-(i + 1) * n // parts)
        matrix[i, start:end] = 1 / (end - start)
    return namespace(array).asarray(matrix)


def _check_axes(x: Any) -> None:
    if x.ndim < 2:
        raise ValueError(f"pooling is over the last two axes; the shape is {x.shape}")


class MaxPool2d(Module):
    """See `functional.max_pool2d`."""

    def __init__(
        self,
        kernel_size: Pair,
        stride: Pair | None = None,
        padding: Pair = 0,
        *,
        dilation: Pair = 1,
    ) -> None:
        super().__init__()
        of_pooling(kernel_size, stride, padding, dilation)
        self.kernel_size = kernel_size
        self.stride = stride
        self.padding = padding
        self.dilation = dilation

    def forward(self, x: Any) -> Tensor:
        """Returns the largest item of each window."""
        return max_pool2d(x, self.kernel_size, self.stride, self.padding, dilation=self.dilation)

    def __repr__(self) -> str:
        return f"MaxPool2d({self.kernel_size}, stride={self.stride}, padding={self.padding})"


class AvgPool2d(Module):
    """See `functional.avg_pool2d`."""

    def __init__(
        self,
        kernel_size: Pair,
        stride: Pair | None = None,
        padding: Pair = 0,
        *,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__()
        of_pooling(kernel_size, stride, padding)
        self.kernel_size = kernel_size
        self.stride = stride
        self.padding = padding
        self.count_include_pad = count_include_pad

    def forward(self, x: Any) -> Tensor:
        """Returns the mean of each window."""
        counted = self.count_include_pad
        return avg_pool2d(x, self.kernel_size, self.stride, self.padding, count_include_pad=counted)

    def __repr__(self) -> str:
        return f"AvgPool2d({self.kernel_size}, stride={self.stride}, padding={self.padding})"


class AdaptiveAvgPool2d(Module):
    """See `functional.adaptive_avg_pool2d`."""

    def __init__(self, output_size: Any) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, x: Any) -> Tensor:
        """Returns the means of `output_size` parts."""
        return adaptive_avg_pool2d(x, self.output_size)

    def __repr__(self) -> str:
        return f"AdaptiveAvgPool2d({self.output_size})"


class Flatten(Module):
    """Makes one axis of those from `start_dim` to `end_dim`; all but the first if not said."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim = start_dim
        self.end_dim = end_dim

    def forward(self, x: Any) -> Tensor:
        """Returns the items of `x` in fewer axes.

        Raises:
            ValueError: There are no such axes, or the first comes after the last.
        """
        ndim = x.ndim
        bounds = (self.start_dim, self.end_dim)
        if not all(-ndim <= dim < ndim for dim in bounds) or bounds[0] % ndim > bounds[1] % ndim:
            raise ValueError(f"{self!r} does not fit the shape {x.shape}")
        start, end = (dim % ndim for dim in bounds)
        count = int(np.prod(x.shape[start : end + 1]))
        return as_tensor(ops.reshape(x, to=(*x.shape[:start], count, *x.shape[end + 1 :])))

    def __repr__(self) -> str:
        return f"Flatten({self.start_dim}, {self.end_dim})"
