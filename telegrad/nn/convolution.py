"""Convolution (cross-correlation, as in all networks) and pooling, as functions and as modules."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

import numpy as np

from telegrad.arrays import namespace
from telegrad.autograd import Tensor, as_tensor, ops
from telegrad.kernels import Windows
from telegrad.nn.module import Module, OfFunction, Parameter, drawn
from telegrad.types import Array, DTypeLike

# -- arguments that describe windows (numbers, pairs, "same"), as `kernels.Windows` --------------

Pair: TypeAlias = int | Sequence[int]
"""One number for both rows and columns, or one for each."""

SizeT = TypeVar("SizeT")


def pair(name: str, value: Pair, least: int) -> tuple[int, int]:
    """Returns `value` as two integers.

    Raises:
        ValueError: `value` is not one or two integers of at least `least`.
    """
    given: tuple[Any, ...] = (value, value) if isinstance(value, int) else tuple(value)
    if len(given) != 2 or not all(isinstance(x, int) and x >= least for x in given):
        raise ValueError(f"{name} is one integer or two, at least {least}; got {value!r}")
    return given


def of_convolution(
    size: tuple[int, int], stride: Pair, padding: Pair | str, dilation: Pair
) -> Windows:
    """Returns the windows of a convolution.

    Args:
        size: The rows and columns of the filters.
        stride: The distance from one window to the next; at least 1.
        padding: The padding on both sides; "valid" for none; "same" for an output as large as the
            input, with the odd row or column at the end.
        dilation: The distance from one item of a window to the next; at least 1.

    Raises:
        ValueError: An argument is invalid, or `padding` is "same" and `stride` is not 1.
    """
    steps, gaps = pair("stride", stride, 1), pair("dilation", dilation, 1)
    if padding == "same":
        if steps != (1, 1):
            raise ValueError(f"padding 'same' needs a stride of 1, not {stride}")
        reach = [gap * (length - 1) for gap, length in zip(gaps, size, strict=True)]
        rows, columns = [(x // 2, x - x // 2) for x in reach]
        return Windows(size, steps, (rows, columns), gaps)
    if isinstance(padding, str) and padding != "valid":
        raise ValueError(f"padding is a number, two, 'same' or 'valid', not {padding!r}")
    top, left = (0, 0) if isinstance(padding, str) else pair("padding", padding, 0)
    return Windows(size, steps, ((top, top), (left, left)), gaps)


def of_pooling(size: Pair, stride: Pair | None, padding: Pair, dilation: Pair = 1) -> Windows:
    """Returns the windows of a pooling; `stride` None means their size.

    Raises:
        ValueError: An argument is invalid, or the padding is more than half a window.
    """
    both = pair("kernel_size", size, 1)
    steps = both if stride is None else pair("stride", stride, 1)
    top, left = pair("padding", padding, 0)
    if top > both[0] // 2 or left > both[1] // 2:
        raise ValueError(
            f"padding is at most half a window; got {padding} with a window of {both[0]} by "
            f"{both[1]}"
        )
    return Windows(both, steps, ((top, top), (left, left)), pair("dilation", dilation, 1))


# -- convolution ---------------------------------------------------------------------------------


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
        x: The images, of shape (n, channels, rows, columns), or without n.
        weight: The filters, of shape (filters, channels / groups, rows, columns).
        bias: One number per filter, of shape (filters,), or None.
        stride: The distance from one window to the next.
        padding: The number of zeros on each side; "valid" for none, "same" for an output as large
            as the input.
        dilation: The distance from one row or column of a filter to the next.
        groups: The number of parts into which channels and filters are divided; each part of the
            filters sees one part of the channels.

    Returns:
        A Tensor of shape (n, filters, rows, columns).

    Raises:
        ValueError: The shapes do not fit each other or `groups`, a number is out of its range, or
            no filter fits into the image.

    >>> conv2d(np.ones((1, 1, 3, 3)), np.ones((1, 1, 2, 2)))
    tensor([[[[4., 4.],
              [4., 4.]]]])
    """
    if x.ndim == 3:
        whole = ops.reshape(x, to=(1, *x.shape))
        y = conv2d(whole, weight, bias, stride, padding, dilation, groups)
        return as_tensor(ops.reshape(y, to=y.shape[1:]))
    _check_shapes(x, weight, bias, groups)
    size = (weight.shape[2], weight.shape[3])
    windows = of_convolution(size, stride, padding, dilation)
    return as_tensor(ops.layers.conv2d(x, weight, bias=bias, windows=windows, groups=groups))


def _check_shapes(x: Any, weight: Any, bias: Any, groups: int) -> None:
    if x.ndim != 4 or weight.ndim != 4:
        raise ValueError(
            f"a convolution takes (n, channels, rows, columns) and (filters, channels / groups, "
            f"rows, columns), not {x.shape} and {weight.shape}"
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
    """Returns the cross-correlation of sequences with filters: `conv2d` with one row.

    Args:
        x: The sequences, of shape (n, channels, length), or without n.
        weight: The filters, of shape (filters, channels / groups, length).
        bias: One number per filter, of shape (filters,), or None.
        stride: The distance from one window to the next.
        padding: The number of zeros on each side, "valid" or "same", as for `conv2d`.
        dilation: The distance from one item of a filter to the next.
        groups: The number of parts into which channels and filters are divided.

    Returns:
        A Tensor of shape (n, filters, length).

    Raises:
        ValueError: The arguments do not fit, as for `conv2d`.

    >>> conv1d(np.array([[[1.0, 2.0, 3.0]]]), np.array([[[1.0, -1.0]]]))
    tensor([[[-1., -1.]]])
    """
    if x.ndim not in (2, 3) or weight.ndim != 3:
        raise ValueError(
            f"a convolution takes (n, channels, length) and (filters, channels / groups, length), "
            f"not {x.shape} and {weight.shape}"
        )
    row = ops.reshape(x, to=(*x.shape[:-1], 1, x.shape[-1]))
    filters = ops.reshape(weight, to=(*weight.shape[:2], 1, weight.shape[2]))
    sides = padding if isinstance(padding, str) else (0, padding)
    y = conv2d(row, filters, bias, (1, stride), sides, (1, dilation), groups)
    return as_tensor(ops.reshape(y, to=(*y.shape[:-2], y.shape[-1])))


class _Convolution(Module, Generic[SizeT]):
    """The base of both convolutions: parameters drawn uniformly from ±1/sqrt(fan in)."""

    _function: ClassVar[Callable[..., Tensor]]
    _axes: ClassVar[int]
    _shown = "{in_channels}, {out_channels}, {kernel_size}"
    _usual: ClassVar = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1, "bias": True}
    bias: Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: SizeT,
        stride: SizeT = 1,  # type: ignore[assignment]  # an int is a size of both
        padding: SizeT | str = 0,  # type: ignore[assignment]
        *,
        dilation: SizeT = 1,  # type: ignore[assignment]
        groups: int = 1,
        bias: bool = True,
        dtype: DTypeLike = np.float32,
        rng: np.random.Generator | None = None,
    ) -> None:
        super().__init__()
        size = pair("kernel_size", self._of_image(kernel_size, 1), 1)
        steps, gaps = self._of_image(stride, 1), self._of_image(dilation, 1)
        of_convolution(size, steps, self._of_image(padding, 0), gaps)
        if (
            min(in_channels, out_channels, groups) < 1
            or in_channels % groups
            or out_channels % groups
        ):
            raise ValueError(
                f"{in_channels} channels and {out_channels} filters do not divide into {groups} "
                "groups"
            )
        shape = (out_channels, in_channels // groups, *size[2 - self._axes :])
        bound = 1 / math.sqrt(math.prod(shape[1:]))
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = size if self._axes == 2 else kernel_size
        self.stride = stride
        self.padding = padding
        self.dilation = dilation
        self.groups = groups
        self.weight = drawn(rng, bound, shape, dtype)
        self.bias = drawn(rng, bound, (out_channels,), dtype) if bias else None

    def _of_image(self, value: Any, before: int) -> Any:
        return value if self._axes == 2 or isinstance(value, str) else (before, value)

    def forward(self, x: Any) -> Tensor:
        """Returns the convolution of `x`, of shape (n, in_channels, *lengths)."""
        return self._function(
            x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups
        )


class Conv2d(_Convolution[Pair]):
    """The module form of `functional.conv2d`; its parameters are drawn as `Linear` draws its own.

    Args:
        in_channels: The number of channels of the input.
        out_channels: The number of filters.
        kernel_size: The rows and columns of a filter.
        stride: The distance from one window to the next.
        padding: The number of zeros on each side, "valid" or "same".
        dilation: The distance from one row or column of a filter to the next.
        groups: The number of parts into which channels and filters are divided.
        bias: True to add one number per filter.
        dtype: The dtype of the parameters; floating-point.
        rng: The generator of their first values; None for the generator of `manual_seed`.

    Raises:
        ValueError: A number is out of its range, `groups` does not divide the channels and filters,
            or `dtype` is not floating-point.

    Attributes:
        weight: The filters, of shape (out_channels, in_channels / groups, *kernel_size).
        bias: One number per filter, of shape (out_channels,), or None.

    >>> layer = Conv2d(1, 4, 3, padding="same", rng=np.random.default_rng(0))
    >>> layer(np.ones((2, 1, 8, 8), np.float32)).shape
    (2, 4, 8, 8)
    """

    _function = staticmethod(conv2d)
    _axes = 2


class Conv1d(_Convolution[int]):
    """The module form of `functional.conv1d`, with the arguments of `Conv2d`.

    Attributes:
        weight: The filters, of shape (out_channels, in_channels / groups, kernel_size).
        bias: One number per filter, of shape (out_channels,), or None.

    >>> Conv1d(3, 8, 5, padding=2)(np.ones((4, 3, 16), np.float32)).shape
    (4, 8, 16)
    """

    _function = staticmethod(conv1d)
    _axes = 1


# -- pooling over windows of the last two axes, and `Flatten` ------------------------------------


def max_pool2d(
    x: Tensor | Array,
    kernel_size: Pair,
    stride: Pair | None = None,
    padding: Pair = 0,
    *,
    dilation: Pair = 1,
) -> Tensor:
    """Returns the largest item of each window; of several, the first gets the gradient.

    Args:
        x: Floating-point numbers, of shape (..., rows, columns).
        kernel_size: The rows and columns of a window.
        stride: The distance from one window to the next; None for the size of a window.
        padding: The padding on each side, at most half a window; it is never the largest item.
        dilation: The distance from one item of a window to the next.

    Raises:
        ValueError: A number is out of its range, or no window fits.

    >>> import numpy as np
    >>> max_pool2d(np.arange(16.0).reshape(4, 4), 2).data.tolist()
    [[5.0, 7.0], [13.0, 15.0]]
    """
    windows = of_pooling(kernel_size, stride, padding, dilation)
    _check_axes(x)
    return as_tensor(ops.layers.max_pool2d(x, windows=windows)[0])


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
        x: Floating-point numbers, of shape (..., rows, columns).
        kernel_size: The rows and columns of a window.
        stride: The distance from one window to the next; None for the size of a window.
        padding: The number of zeros on each side; at most half a window.
        count_include_pad: True to count these zeros in the mean.

    Raises:
        ValueError: A number is out of its range, or no window fits.

    >>> avg_pool2d(np.arange(16.0).reshape(1, 4, 4), 2)
    tensor([[[ 2.5,  4.5],
             [10.5, 12.5]]])
    """
    windows = of_pooling(kernel_size, stride, padding)
    _check_axes(x)
    counted = count_include_pad
    return as_tensor(ops.layers.mean_pool2d(x, windows=windows, count_padding=counted))


def adaptive_avg_pool2d(x: Tensor | Array, output_size: Any) -> Tensor:
    """Returns the means of `output_size` parts of the image, of nearly equal size.

    Part i of n covers the rows from floor(i * rows / n) to ceil((i + 1) * rows / n). Columns
    are divided in the same way.

    Args:
        x: Floating-point numbers, of shape (..., rows, columns).
        output_size: The number of parts, or one number each for rows and columns; None for one part
            per row or column.

    Raises:
        ValueError: A number is not positive, or there are no rows or columns.

    >>> adaptive_avg_pool2d(np.arange(16.0).reshape(1, 4, 4), (1, 2))
    tensor([[[6.5, 8.5]]])
    """
    _check_axes(x)
    if 0 in x.shape[-2:]:
        raise ValueError(f"the mean of no items is not defined; the shape is {x.shape}")
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
    """Returns the matrix, of shape (parts, n), that computes means."""
    array = x.data if isinstance(x, Tensor) else x
    matrix = np.zeros((parts, n), array.dtype)
    for i in range(parts):
        start, end = i * n // parts, -(-(i + 1) * n // parts)
        matrix[i, start:end] = 1 / (end - start)
    return namespace(array).asarray(matrix)


def _check_axes(x: Any) -> None:
    if x.ndim < 2:
        raise ValueError(f"pooling is over the last two axes; the shape is {x.shape}")


class MaxPool2d(OfFunction):
    """The module form of `functional.max_pool2d`.

    >>> MaxPool2d(2)(np.arange(16.0).reshape(1, 4, 4))
    tensor([[[ 5.,  7.],
             [13., 15.]]])
    """

    _function = staticmethod(max_pool2d)
    _shown = "{kernel_size}, stride={stride}, padding={padding}"

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
        self._keep(kernel_size=kernel_size, stride=stride, padding=padding, dilation=dilation)


class AvgPool2d(OfFunction):
    """The module form of `functional.avg_pool2d`.

    >>> AvgPool2d(2)(np.arange(16.0).reshape(1, 4, 4))
    tensor([[[ 2.5,  4.5],
             [10.5, 12.5]]])
    """

    _function = staticmethod(avg_pool2d)
    _shown = MaxPool2d._shown

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
        self._keep(
            kernel_size=kernel_size,
            stride=stride,
            padding=padding,
            count_include_pad=count_include_pad,
        )


class AdaptiveAvgPool2d(OfFunction):
    """The module form of `functional.adaptive_avg_pool2d`.

    >>> AdaptiveAvgPool2d((1, 2))(np.arange(16.0).reshape(1, 4, 4))
    tensor([[[6.5, 8.5]]])
    """

    _function = staticmethod(adaptive_avg_pool2d)
    _shown = "{output_size}"

    def __init__(self, output_size: Any) -> None:
        super().__init__()
        self._keep(output_size=output_size)


class Flatten(Module):
    """Merges the axes from `start_dim` to `end_dim` into one; by default all but the first.

    >>> Flatten()(np.ones((5, 3, 4, 4))).shape
    (5, 48)
    """

    _shown = "{start_dim}, {end_dim}"

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim = start_dim
        self.end_dim = end_dim

    def forward(self, x: Any) -> Tensor:
        """Returns the items of `x` with the axes merged.

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
