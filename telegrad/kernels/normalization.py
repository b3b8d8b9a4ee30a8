"""Normalisation of arrays to mean 0 and variance 1 with scale and shift, forward and backward.

All computations use a view of three axes, (a, b, c), with one mean and one variance for each b:

    the last axes together (`over` of them)      a = 1, b counts the rows, c the items of a row
    all axes but the second (`over` None)        a counts examples, b channels, c the rest

On the CPU the kernels go through the array in groups of b, to save memory. Variances are means of
squared distances from the mean, never differences of squares.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from telegrad.arrays import computing_dtype, is_cupy, namespace
from telegrad.types import Array, Shape

__all__ = ["Normalized", "normalize", "normalize_input", "normalize_weight"]

_GROUP_BYTES: Final = 4 << 20
"""Bytes of one array that are processed at a time on the CPU. From 64 kB to all at once, the time
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
    mean: Any = xp.zeros((1, b, 1), wide)
    variance: Any = xp.empty((1, b, 1), wide)
    scale: Any = xp.empty((1, b, 1), wide)
    factor, shift = (_per_item(part, over) for part in (weight, bias))
    for group in _groups(view):
        items, centre = view[:, group], standard[:, group]
        if centred:
            mean[0, group, 0] = _total(xp, items, wide) / (a * c)
            xp.subtract(items, mean[:, group], out=centre)
        else:
            centre[...] = items
        squares = xp.einsum("abc,abc->b", centre, centre)
        variance[0, group, 0] = squares / (a * c)
        scale[:, group] = 1.0 / xp.sqrt(variance[:, group] + eps)
        centre *= scale[:, group]
        _affine(xp, y[:, group], centre, _part(factor, group, over), _part(shift, group, over))
    kept = _kept(x.shape, over)
    return Normalized(
        y.reshape(x.shape),
        standard.reshape(x.shape),
        scale.reshape(kept),
        mean.reshape(kept),
        variance.reshape(kept),
    )


def _total(xp: Any, items: Any, dtype: Any) -> Any:
    """Returns the sums over a and c, as a product with ones: BLAS is three times as fast as sum."""
    a, _, c = items.shape
    items = items.astype(dtype, copy=False)
    if c == 1:
        return xp.ones(a, dtype) @ items[:, :, 0]
    rows = items @ xp.ones(c, dtype)
    return rows[0] if a == 1 else rows.sum(0)


def _affine(xp: Any, target: Any, x: Any, factor: Any, shift: Any) -> None:
    if factor is None and shift is None:
        target[...] = x
    elif factor is None:
        xp.add(x, shift, out=target, casting="same_kind")
    else:
        xp.multiply(x, factor, out=target, casting="same_kind")
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
    xp = namespace(gradient)
    g, x = _view(gradient, over), _view(standard, over)
    a, b, c = x.shape
    scales: Any = scale.reshape(1, b, 1)
    factor = _per_item(weight, over)
    result: Any = xp.empty(x.shape, x.dtype)
    for group in _groups(x):
        items, made = x[:, group], result[:, group]
        _affine(xp, made, g[:, group], _part(factor, group, over), None)
        along = xp.einsum("abc,abc->b", made, items)[None, :, None] / (a * c)
        if centred:
            made -= (_total(xp, made, made.dtype) / (a * c))[None, :, None]
        made -= items * along
        made *= scales[:, group]
    final: Array = result.reshape(gradient.shape)
    return final


def normalize_weight(gradient: Array, standard: Array, *, over: int | None = 1) -> Array:
    """Returns the gradient of the weight of `normalize`, in its shape."""
    xp = namespace(gradient)
    g, x = _view(gradient, over).astype(standard.dtype, copy=False), _view(standard, over)
    if over is None:
        total: Array = xp.einsum("abc,abc->b", g, x)
        return total
    total = xp.einsum("abc,abc->c", g, x)
    return total.reshape(gradient.shape[gradient.ndim - over :])


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
    step = b if is_cupy(view) else _GROUP_BYTES // max(a * c * view.itemsize, 1)
    for start in range(0, b, max(step, 1)):
        yield slice(start, min(b, start + max(step, 1)))
