"""Two-dimensional cross-correlation: windows laid out as columns, then one matrix product.

The method is that of K. Chellapilla, S. Puri and P. Simard, "High performance convolutional neural
networks for document processing" (2006). Here `*` means: multiply, and sum over the axes that the
result lacks. p counts windows; ckk counts channels and places in a window.

    conv2d           output[n, o, p]  =  weight[o, ckk] * columns[n, ckk, p]
    conv2d_weight    weight[o, ckk]   =  gradient[n, o, p] * columns[n, ckk, p]
    conv2d_input     columns[n, ckk, p] = weight[o, ckk] * gradient[n, o, p], added into the input

The columns are made for as many images at a time as fit into 2 MB, so the memory beside input and
output is small. For CuPy arrays, one launch makes the columns, and one adds them into the input.
The three functions are the derivatives of one trilinear form: each is linear in both of its
arguments.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from telegrad.arrays import batched_product, computing_dtype, is_cupy, namespace
from telegrad.kernels.cuda import check_operands
from telegrad.kernels.windows import Windows, launch_windows, on_kernels
from telegrad.types import Array, Shape

# Bytes of columns at a time: the memory beside input and output. From 256 kB to 64 MB the time
# differed by less than a fifth; with less, a small network makes more calls. A GPU needs few
# launches.
_HOST_BYTES: Final = 2 << 20
_GPU_BYTES: Final = 256 << 20


def conv2d(
    x: Array, weight: Array, bias: Array | None = None, *, windows: Windows, groups: int = 1
) -> Array:
    """Returns the cross-correlation of images and filters.

    Args:
        x: Images, of shape (n, channels, rows, columns).
        weight: Filters, of shape (filters, channels / groups, *windows.size).
        bias: One number per filter, of shape (filters,), or None.
        windows: The positions of the filters.
        groups: The number of groups into which channels and filters are divided.

    Returns:
        An array of shape (n, filters, *windows.counts(x.shape)).

    Raises:
        ValueError: No window fits; the arrays are on different devices, or one is misaligned.
    """
    check_operands("conv2d", x=x, weight=weight, bias=bias)
    xp = namespace(x, weight)
    n, filters = len(x), len(weight)
    down, across = windows.counts(x.shape)
    dtype = xp.result_type(x, weight)
    made: Array = xp.empty((n, groups, filters // groups, down * across), dtype)
    matrix = weight.reshape(groups, filters // groups, -1)
    shift = None if bias is None else bias.reshape(groups, filters // groups, 1)
    for some, columns in _columns(x, windows, groups):
        part = made[some]
        _product(matrix, columns, part)
        if shift is not None:
            xp.add(part, shift, out=part)
    return made.reshape(n, filters, down, across)


def conv2d_weight(
    gradient: Array, x: Array, *, windows: Windows, groups: int = 1, into: Shape = ()
) -> Array:
    """Returns the gradient of the weight of `conv2d`.

    Args:
        gradient: The gradient of the result of `conv2d`.
        x: The images given to `conv2d`.
        windows: The windows given to `conv2d`.
        groups: The number of groups given to `conv2d`.
        into: The shape of the weight.

    Raises:
        ValueError: As for `conv2d`.
    """
    check_operands("conv2d_weight", gradient=gradient, x=x)
    xp = namespace(gradient, x)
    matrices = gradient.reshape(len(x), groups, into[0] // groups, math.prod(gradient.shape[2:]))
    total: Any = None
    for some, columns in _columns(x, windows, groups, math.prod(into)):
        product = _product(matrices[some], columns.swapaxes(-1, -2))
        part = product.sum(0, dtype=computing_dtype(product.dtype))
        total = part if total is None else total + part
    if total is None:
        return xp.zeros(into, gradient.dtype)  # type: ignore[no-any-return]
    result: Array = total.reshape(into).astype(gradient.dtype, copy=False)
    return result


def conv2d_input(
    gradient: Array, weight: Array, *, windows: Windows, groups: int = 1, into: Shape = ()
) -> Array:
    """Returns the gradient of the input of `conv2d`.

    Args:
        gradient: The gradient of the result of `conv2d`.
        weight: The filters given to `conv2d`.
        windows: The windows given to `conv2d`.
        groups: The number of groups given to `conv2d`.
        into: The shape of the input.

    Raises:
        ValueError: As for `conv2d`.
    """
    check_operands("conv2d_input", gradient=gradient, weight=weight)
    xp = namespace(gradient, weight)
    n, channels = into[:2]
    down, across = gradient.shape[2:]
    filters = len(weight) // groups
    matrix = weight.reshape(groups, filters, -1).swapaxes(-1, -2)
    matrices = gradient.reshape(n, groups, filters, down * across)
    dtype = xp.result_type(gradient, weight)
    launched = on_kernels(gradient, weight)
    made = xp.empty if launched else xp.zeros
    result: Any = made(into, dtype if launched else computing_dtype(dtype))
    if not result.size:
        return result.astype(dtype, copy=False)  # type: ignore[no-any-return]
    parts = () if launched else [*windows.parts(into)]
    columns_of_one = channels * math.prod(windows.size) * down * across
    for some in _batches(n, columns_of_one * result.itemsize, on_gpu=is_cupy(result)):
        columns = _product(matrix, matrices[some])
        if launched:
            target = result[some]
            launch_windows("scatter_windows", windows, into, columns, target, over=target)
            continue
        spread = columns.reshape(-1, channels, math.prod(windows.size), down, across)
        target = result[some]
        for part in parts:
            target[part.inside] += spread[:, :, part.place][part.windows]
    return result.astype(dtype, copy=False)  # type: ignore[no-any-return]


def _columns(
    x: Any, windows: Windows, groups: int, other: int = 0
) -> Iterator[tuple[slice, Array]]:
    """Yields, for some images at a time, their slice and columns of shape (some, groups, ckk, p).

    The columns are valid until the next ones are requested, because all use one buffer. `other` is
    the number of further items that the caller allocates for one image.
    """
    n, channels = x.shape[:2]
    down, across = windows.counts(x.shape)
    ckk = channels // groups * math.prod(windows.size)
    launched = on_kernels(x) and windows.size != (1, 1)
    padded: Any = x if launched else windows.pad(x)
    if windows.size == windows.stride == (1, 1):
        yield slice(n), padded.reshape(n, groups, ckk, down * across)
        return
    xp = namespace(x)
    inner = windows._replace(padding=((0, 0), (0, 0)))
    parts = () if launched else [*inner.parts(padded.shape)]
    buffer: Any = None
    size = groups * ckk * down * across + other
    for some in _batches(n, size * x.itemsize, on_gpu=is_cupy(x)):
        count = some.stop - some.start
        if buffer is None:
            places = math.prod(windows.size)
            buffer = xp.empty((count, channels, places, down, across), x.dtype)
        columns = buffer[:count]
        if launched:
            launch_windows("gather_windows", windows, x.shape, x[some], columns, over=columns)
        for part in parts:
            columns[:, :, part.place] = padded[some][part.inside]
        yield some, columns.reshape(count, groups, ckk, down * across)


def _product(a: Any, b: Any, out: Any = None) -> Any:
    """Returns `a @ b`, or writes it to `out`; of CuPy arrays in one launch, without copies."""
    xp = namespace(a, b)
    if xp is np:
        return np.matmul(a, b, out=out)
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    if math.prod(lead[1:]) > 1 and a.ndim != b.ndim:  # groups: the filters would be copied
        return xp.matmul(a, b, out=out)
    a, b = (xp.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (a, b))
    return batched_product(a, b, out)


def _batches(n: int, size: int, *, on_gpu: bool) -> Iterator[slice]:
    """Yields slices of n images, each of which takes `size` bytes."""
    step = max(1, (_GPU_BYTES if on_gpu else _HOST_BYTES) // max(size, 1))
    for start in range(0, n, step):
        yield slice(start, min(n, start + step))
