"""Convolution (the cross-correlation of networks), as functions and as modules."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from telegrad.arrays import is_floating
from telegrad.autograd import Tensor, as_tensor, ops, rules
from telegrad.nn.generator import current_generator
from telegrad.nn.module import Module
from telegrad.nn.parameter import Parameter
from telegrad.nn.windows import Pair, of_convolution, pair
from telegrad.types import Array, DTypeLike

__all__ = ["Conv1d", "Conv2d", "conv1d", "conv2d"]


def conv2d(
    x: Tensor | Array,
    weight: Tensor | Array,
    bias: Tensor | Array | None = None,
    stride: Pair = 1,
    padding: Pair | str = 0,
    dilation: Pair = 1,
    groups: int = 1,
) -> Tensor:
    """Returns the cross-correlation of images with filters.

    Args:
        x: Of shape (n, channels, rows, columns), or without n.
        weight: Of shape (filters, channels / groups, rows, columns).
        bias: Of shape (filters,).
        stride: From one place to the next.
        padding: Zeros on each side; "valid" for none, "same" for an output as large as the input.
        dilation: From one row or column of a filter to the next.
        groups: Into how many parts channels and filters are divided, each with its own.

    Returns:
        Of shape (n, filters, rows, columns).

    Raises:
        ValueError: The shapes do not fit each other or `groups`, a number is out of its bounds, or
            no filter fits into the image.
    """
    if x.ndim == 3:
        whole = ops.reshape(x, to=(1, *x.shape))
        y = conv2d(whole, weight, bias, stride, padding, dilation, groups)
        return as_tensor(ops.reshape(y, to=y.shape[1:]))
    _check_shapes(x, weight, bias, groups)
    size = (weight.shape[2], weight.shape[3])
    windows = of_convolution(size, stride, padding, dilation)
    return as_tensor(rules.layers.conv2d(x, weight, bias=bias, windows=windows, groups=groups))


def _check_shapes(x: Any, weight: Any, bias: Any, groups: int) -> None:
    if x.ndim != 4 or weight.ndim != 4:
        raise ValueError(
            f"a convolution is of (n, channels, rows, columns) with (filters, channels / groups, "
            f"rows, columns), not of {x.shape} with {weight.shape}"
        )
    if groups < 1 or len(weight) % groups or weight.shape[1] * groups != x.shape[1]:
        raise ValueError(
            f"an image of {x.shape[1]} channels and {len(weight)} filters of {weight.shape[1]} "
            f"channels do not fit {groups} groups"
        )
    if bias is not None and bias.shape != (len(weight),):
        raise ValueError(f"bias has shape {bias.shape}, ({len(weight)},) needed")


def conv1d(
    x: Tensor | Array,
    weight: Tensor | Array,
    bias: Tensor | Array | None = None,
    stride: int = 1,
    padding: int | str = 0,
    dilation: int = 1,
    groups: int = 1,
) -> Tensor:
    """Returns the cross-correlation of sequences with filters: `conv2d` of one row.

    Args:
        x: Of shape (n, channels, length), or without n.
        weight: Of shape (filters, channels / groups, length).
        bias: Of shape (filters,).
        stride: See `conv2d`.
        padding: See `conv2d`.
        dilation: See `conv2d`.
        groups: See `conv2d`.

    Returns:
        Of shape (n, filters, length).

    Raises:
        ValueError: See `conv2d`.
    """
    if x.ndim not in (2, 3) or weight.ndim != 3:
        raise ValueError(
            f"a convolution is of (n, channels, length) with (filters, channels / groups, length), "
            f"not of {x.shape} with {weight.shape}"
        )
    row = ops.reshape(x, to=(*x.shape[:-1], 1, x.shape[-1]))
    filters = ops.reshape(weight, to=(*weight.shape[:2], 1, weight.shape[2]))
    sides = padding if isinstance(padding, str) else (0, padding)
    y = conv2d(row, filters, bias, (1, stride), sides, (1, dilation), groups)
    return as_tensor(ops.reshape(y, to=(*y.shape[:-2], y.shape[-1])))


class _Convolution(Module):
    """What both convolutions have: parameters drawn uniformly from ±1/sqrt(fan in)."""

    bias: Parameter | None
    kernel_size: Any
    stride: Any
    padding: Any
    dilation: Any

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        size: tuple[int, ...],
        *,
        groups: int,
        bias: bool,
        dtype: DTypeLike,
        rng: np.random.Generator | None,
    ) -> None:
        super().__init__()
        if (
            min(in_channels, out_channels, groups) < 1
            or in_channels % groups
            or out_channels % groups
        ):
            raise ValueError(
                f"{in_channels} channels and {out_channels} filters do not divide into {groups} groups"
            )
        if not is_floating(dtype):
            raise ValueError(f"parameters are floating-point, not {np.dtype(dtype)}")
        generator = current_generator() if rng is None else rng
        shape = (out_channels, in_channels // groups, *size)
        bound = 1 / math.sqrt(math.prod(shape[1:]))
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.groups = groups
        self.weight = Parameter(generator.uniform(-bound, bound, shape).astype(dtype))
        if bias:
            self.bias = Parameter(generator.uniform(-bound, bound, out_channels).astype(dtype))
        else:
            self.bias = None

    def __repr__(self) -> str:
        options = {
            "stride": (self.stride, 1),
            "padding": (self.padding, 0),
            "dilation": (self.dilation, 1),
            "groups": (self.groups, 1),
            "bias": (self.bias is not None, True),
        }
        others = "".join(f", {k}={x!r}" for k, (x, usual) in options.items() if x != usual)
        name = type(self).__name__
        return f"{name}({self.in_channels}, {self.out_channels}, {self.kernel_size}{others})"


class Conv2d(_Convolution):
    """See `functional.conv2d`; what is drawn is drawn as `Linear` does it.

    Args:
        in_channels: Channels of the input.
        out_channels: How many filters.
        kernel_size: Rows and columns of a filter.
        stride: See `functional.conv2d`.
        padding: See `functional.conv2d`.
        dilation: See `functional.conv2d`.
        groups: See `functional.conv2d`.
        bias: Whether there is one.
        dtype: Of the parameters; floating-point.
        rng: Where they are drawn from; None for the generator of `manual_seed`.

    Raises:
        ValueError: A number is out of its bounds, the channels do not divide into the groups, or
            `dtype` is not floating-point.

    Attributes:
        weight: Of shape (out_channels, in_channels / groups, *kernel_size).
        bias: Of shape (out_channels,), or None.

    >>> layer = Conv2d(1, 4, 3, padding="same", rng=np.random.default_rng(0))
    >>> layer(np.ones((2, 1, 8, 8), np.float32)).shape
    (2, 4, 8, 8)
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Pair,
        stride: Pair = 1,
        padding: Pair | str = 0,
        *,
        dilation: Pair = 1,
        groups: int = 1,
        bias: bool = True,
        dtype: DTypeLike = np.float32,
        rng: np.random.Generator | None = None,
    ) -> None:
        size = pair("kernel_size", kernel_size, 1)
        of_convolution(size, stride, padding, dilation)
        super().__init__(
            in_channels, out_channels, size, groups=groups, bias=bias, dtype=dtype, rng=rng
        )
        self.kernel_size = size
        self.stride = stride
        self.padding = padding
        self.dilation = dilation

    def forward(self, x: Any) -> Tensor:
        """Returns the convolution of `x`, of shape (n, in_channels, rows, columns)."""
        return conv2d(
            x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups
        )


class Conv1d(_Convolution):
    """See `functional.conv1d` and `Conv2d`.

    Attributes:
        weight: Of shape (out_channels, in_channels / groups, kernel_size).
        bias: Of shape (out_channels,), or None.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int | str = 0,
        *,
        dilation: int = 1,
        groups: int = 1,
        bias: bool = True,
        dtype: DTypeLike = np.float32,
        rng: np.random.Generator | None = None,
    ) -> None:
        sides = padding if isinstance(padding, str) else (0, padding)
        size = pair("kernel_size", (1, kernel_size), 1)
        of_convolution(size, (1, stride), sides, (1, dilation))
        super().__init__(
            in_channels, out_channels, size[1:], groups=groups, bias=bias, dtype=dtype, rng=rng
        )
        self.kernel_size = kernel_size
        self.stride = stride
        self.padding = padding
        self.dilation = dilation

    def forward(self, x: Any) -> Tensor:
        """Returns the convolution of `x`, of shape (n, in_channels, length)."""
        return conv1d(
            x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups
        )
