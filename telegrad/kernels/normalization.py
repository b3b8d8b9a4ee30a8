"""Normalisation of arrays to mean 0 and variance 1 with scale and shift, forward and backward.

All computations use a view of three axes, (a, b, c), with one mean and one variance for each b:

    the last axes together (`over` of them)      a = 1, b counts the rows, c the items of a row
    all axes but the second (`over` None)        a counts examples, b channels, c the rest

The kernels go through the array in groups of b, to save memory. Variances are means of squared
distances from the mean, never differences of squares. CuPy arrays are computed by
`cuda/normalize.cu`, with a block of threads for each b.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from telegrad.arrays import computing_dtype, is_cupy, namespace
from telegrad.kernels.cuda import Kernel, blocks_for, contiguous
from telegrad.types import Array, DTypeLike, Shape

__all__ = ["Normalized", "normalize", "normalize_input", "normalize_parameters"]

_GROUP_BYTES: Final = 4 << 20
"""Bytes of one array that are processed at a time. From 64 kB to all at once, the time
differed by less than the noise. The limit bounds the memory beside the results to one group."""


class Normalized(NamedTuple):
    """The result of `normalize`, with the arrays that the backward needs.

    Attributes:
        y: The result.
        standard: `x` with mean 0 and variance 1, of at least float32.
        scale: The factor of `x - mean`, with length 1 along the axes that are normalised together.
        mean: The means, in the shape of `scale`.
        variance: The variances, in the shape of `scale`; divided by the count, not by count - 1.
    """

    y: Array
    standard: Array
    scale: Array
    mean: Array
    variance: Array


def normalize(
    x: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    over: int | None = 1,
    eps: float = 1e-5,
    centred: bool = True,
) -> Normalized:
    """Returns `(x - mean) / sqrt(variance + eps) * weight + bias`.

    Args:
        x: Floating-point numbers; float16 and bfloat16 are computed in float32.
        weight: The factor, in the shape of the axes that are normalised together; one number per
            channel if `over` is None. None for ones.
        bias: The shift, in the shape of `weight`; None for zeros.
        over: The number of last axes that are normalised together; None for all but the second
            axis.
        eps: The number added to the variance.
        centred: True to subtract the mean. If False, `variance` is the mean square.
    """
    xp = namespace(x)
    wide: Any = computing_dtype(x.dtype)
    given = [part.dtype for part in (x, weight, bias) if part is not None]
    view: Any = _view(x, over)
    a, b, c = view.shape
    y: Any = xp.empty(view.shape, np.result_type(*given))
    standard: Any = xp.empty(view.shape, wide)
    scale, mean, variance = (xp.empty((1, b, 1), wide) for _ in range(3))
    made = (y, standard, scale, mean, variance)
    if is_cupy(x):
        _launch_forward(contiguous(view), weight, bias, made, over, eps, centred=centred)
    else:
        factor, shift = (_per_item(part, over) for part in (weight, bias))
        for group in _groups(view):
            items, centre = view[:, group], standard[:, group]
            mean[0, group, 0] = _total(items, wide) / (a * c) if centred else 0.0
            np.subtract(items, mean[:, group], out=centre)
            squares = np.einsum("abc,abc->b", centre, centre)
            variance[0, group, 0] = squares / (a * c)
            scale[:, group] = 1.0 / np.sqrt(variance[:, group] + eps)
            centre *= scale[:, group]
            _affine(y[:, group], centre, _part(factor, group, over), _part(shift, group, over))
    kept = _kept(x.shape, over)
    return Normalized(
        y.reshape(x.shape),
        standard.reshape(x.shape),
        scale.reshape(kept),
        mean.reshape(kept),
        variance.reshape(kept),
    )


def _total(items: Any, dtype: Any) -> Any:
    """Returns the sums over a and c, as a product with ones: BLAS is three times as fast as sum."""
    a, _, c = items.shape
    items = items.astype(dtype, copy=False)
    if c == 1:
        return np.ones(a, dtype) @ items[:, :, 0]
    rows = items @ np.ones(c, dtype)
    return rows[0] if a == 1 else rows.sum(0)


def _affine(target: Any, x: Any, factor: Any, shift: Any) -> None:
    if factor is None and shift is None:
        target[...] = x
    elif factor is None:
        np.add(x, shift, out=target, casting="same_kind")
    else:
        np.multiply(x, factor, out=target, casting="same_kind")
        if shift is not None:
            target += shift


def normalize_input(
    gradient: Array,
    standard: Array,
    scale: Array,
    weight: Array | None = None,
    *,
    over: int | None = 1,
    centred: bool = True,
) -> Array:
    """Returns the gradient of the input of `normalize`; mean and variance depend on that input.

    Args:
        gradient: The gradient of `y`.
        standard: `standard` from the result of `normalize`.
        scale: `scale` from the result of `normalize`.
        weight: The weight given to `normalize`.
        over: The value given to `normalize`.
        centred: The value given to `normalize`.
    """
    g, x = _view(gradient, over), _view(standard, over)
    a, b, c = x.shape
    result: Any = namespace(gradient).empty(x.shape, x.dtype)
    if is_cupy(gradient):
        _launch_input(g, x, scale, weight, result, over, centred=centred)
    else:
        scales: Any = scale.reshape(1, b, 1)
        factor = _per_item(weight, over)
        for group in _groups(x):
            items, made = x[:, group], result[:, group]
            _affine(made, g[:, group], _part(factor, group, over), None)
            along = np.einsum("abc,abc->b", made, items)[None, :, None] / (a * c)
            if centred:
                made -= (_total(made, made.dtype) / (a * c))[None, :, None]
            made -= items * along
            made *= scales[:, group]
    final: Array = result.reshape(gradient.shape)
    return final


def normalize_parameters(
    gradient: Array, standard: Array, *, over: int | None = 1
) -> tuple[Array, Array]:
    """Returns the gradients of the weight and of the bias of `normalize`, in their shape.

    Args:
        gradient: The gradient of `y`.
        standard: `standard` from the result of `normalize`.
        over: The value given to `normalize`.
    """
    g, x = _view(gradient, over), _view(standard, over)
    if is_cupy(gradient):
        of_weight, of_bias = _launch_parameters(g, x, over)
    else:
        g = g.astype(standard.dtype, copy=False)
        axes, kept = ((0, 2), "b") if over is None else ((0, 1), "c")
        of_weight = np.einsum(f"abc,abc->{kept}", g, x)
        of_bias = g.sum(axes)
    shape = of_bias.shape if over is None else gradient.shape[gradient.ndim - over :]
    return of_weight.reshape(shape), of_bias.reshape(shape)


# -- on CuPy arrays ------------------------------------------------------------------------------

_FORWARD: Final = Kernel("normalize", "normalize_forward")
_INPUT: Final = Kernel("normalize", "normalize_input")
_CHANNELS: Final = Kernel("normalize", "normalize_channels")
_COLUMNS: Final = Kernel("normalize", "normalize_columns")
_COLUMNS_PER_BLOCK: Final = 16  # COLUMNS in normalize.cu, where a block has 32 threads for each
_PACK_BYTES: Final = 16


def _launch_forward(
    x: Any, weight: Any, bias: Any, made: Any, over: int | None, eps: float, *, centred: bool
) -> None:
    a, b, c = x.shape
    parts = [part.dtype for part in (weight, bias) if part is not None]
    dtype = np.result_type(*parts) if parts else x.dtype
    weight, bias = (
        _beside(name, part, b if over is None else c, dtype)
        for name, part in (("weight", weight), ("bias", bias))
    )
    options = _options(x, dtype, made[0].dtype, made[1].dtype, over)
    _FORWARD.launch(x, weight, bias, *made, a, b, c, int(centred), float(eps), **options)


def _launch_input(
    g: Any, x: Any, scale: Any, weight: Any, result: Any, over: int | None, *, centred: bool
) -> None:
    a, b, c = x.shape
    dtype = x.dtype if weight is None else weight.dtype
    weight = _beside("weight", weight, b if over is None else c, dtype)
    options = _options(g, dtype, x.dtype, x.dtype, over)
    arrays = (contiguous(g), contiguous(x), contiguous(scale), weight, result)
    _INPUT.launch(*arrays, a, b, c, int(centred), **options)


def _launch_parameters(g: Any, x: Any, over: int | None) -> tuple[Any, Any]:
    a, b, c = x.shape
    xp = namespace(g)
    of_weight, of_bias = (xp.empty(b if over is None else c, x.dtype) for _ in range(2))
    arrays = (contiguous(g), contiguous(x), of_weight, of_bias)
    options = _options(g, x.dtype, x.dtype, x.dtype, over)
    if over is None:
        _CHANNELS.launch(*arrays, a, b, c, **options)
    else:
        options |= {"blocks": blocks_for(c, _COLUMNS_PER_BLOCK), "threads": _COLUMNS_PER_BLOCK * 32}
        _COLUMNS.launch(*arrays, b, c, **options)
    return of_weight, of_bias


def _options(
    x: Any, weight: DTypeLike, out: DTypeLike, real: DTypeLike, over: int | None
) -> dict[str, Any]:
    a, b, c = x.shape
    warps = -(-a * c * x.itemsize // (_PACK_BYTES * 32))  # with one pack for each thread
    return {
        "blocks": blocks_for(b, 1),
        "threads": 32 * max(1, min(16, warps)),
        "ITEM": x.dtype,
        "WEIGHT": weight,
        "OUT": out,
        "REAL": real,
        "CHANNELS": int(over is None),
    }


def _beside(name: str, part: Any, size: int, dtype: DTypeLike) -> Any:
    if part is None:
        return None
    if part.size != size:
        raise ValueError(f"{name} has {part.size} items, {size} needed")
    return contiguous(part.astype(dtype, copy=False))


# -- the three axes ------------------------------------------------------------------------------


def _view(x: Any, over: int | None) -> Any:
    shape = x.shape
    if over is None:
        return x.reshape(shape[0], shape[1], math.prod(shape[2:]))
    return x.reshape(
        1, math.prod(shape[: len(shape) - over]), math.prod(shape[len(shape) - over :])
    )


def _kept(shape: Shape, over: int | None) -> Shape:
    if over is None:
        return (1, shape[1], *[1] * (len(shape) - 2))
    return (*shape[: len(shape) - over], *[1] * over)


def _per_item(part: Any, over: int | None) -> Any:
    if part is None:
        return None
    return part.reshape((1, -1, 1) if over is None else (1, 1, -1))


def _part(part: Any, group: slice, over: int | None) -> Any:
    return part[:, group] if part is not None and over is None else part


def _groups(view: Any) -> Iterator[slice]:
    a, b, c = view.shape
    step = _GROUP_BYTES // max(a * c * view.itemsize, 1)
    for start in range(0, b, max(step, 1)):
        yield slice(start, min(b, start + max(step, 1)))
