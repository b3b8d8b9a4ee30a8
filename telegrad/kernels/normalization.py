"""Normalisation of arrays to mean 0 and variance 1 with scale and shift, forward and backward.

All computations use a view of three axes, (a, b, c), with one mean and one variance for each b:

    the last axes together (`over` of them)      a = 1, b counts the rows, c the items of a row
    all axes but the second (`over` None)        a counts examples, b channels, c the rest
    all but the first two (`over` "groups")      a counts channels of a group, b the groups of all
                                                 examples, c the rest

Variances are means of squared distances from the mean, never differences of squares. CuPy arrays
are computed by `cuda/normalize.cu`, with a block of threads for each b.
"""

from __future__ import annotations

import math
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from telegrad.arrays import computing_dtype, is_cupy, namespace
from telegrad.kernels.cuda import Kernel, blocks_for, contiguous
from telegrad.types import Array, DTypeLike, Shape

Over = int | Literal["groups"] | None
"""Axes that are normalised together; `normalize` says which."""


class Normalized(NamedTuple):
    """The result of `normalize`, with the arrays that the backward needs.

    Attributes:
        y: The result.
        scale: The factor of `x - mean`, of at least float32, with length 1 along the axes that are
            normalised together.
        mean: The means, in the shape of `scale`.
        variance: The variances, in the shape of `scale`; divided by the count, not by count - 1.
    """

    y: Array
    scale: Array
    mean: Array
    variance: Array


def normalize(
    x: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    over: Over = 1,
    eps: float = 1e-5,
    centred: bool = True,
) -> Normalized:
    """Returns `(x - mean) / sqrt(variance + eps) * weight + bias`.

    Args:
        x: Floating-point numbers; float16 and bfloat16 are computed in float32.
        weight: The factor, in the shape of the axes that are normalised together; one number per
            channel if `over` is None or "groups". None for ones.
        bias: The shift, in the shape of `weight`; None for zeros.
        over: The number of last axes that are normalised together; None for all but the second
            axis; "groups" for all but the first two, of an `x` of shape (n, groups, channels of a
            group, ...) with a weight of shape (groups, channels of a group).
        eps: The number added to the variance.
        centred: True to subtract the mean. If False, `variance` is the mean square.
    """
    xp = namespace(x)
    wide: Any = computing_dtype(x.dtype)
    given = [part.dtype for part in (x, weight, bias) if part is not None]
    sizes = a, b, c = _sizes(x.shape, over)
    y: Any = xp.empty(x.shape, np.result_type(*given))
    scale, mean, variance = (xp.empty((1, b, 1), wide) for _ in range(3))
    if is_cupy(x):
        made = (y, scale, mean, variance)
        _launch_forward(x, sizes, weight, bias, made, over, eps, centred=centred)
    else:
        view, target = _view(x, over), _view(y, over)
        factor, shift = (_per_item(part, sizes, over) for part in (weight, bias))
        mean[0, :, 0] = _total(view, wide) / (a * c) if centred else 0.0
        centre = view - mean
        variance[0, :, 0] = np.einsum("abc,abc->b", centre, centre) / (a * c)
        scale[...] = 1.0 / np.sqrt(variance + eps)
        centre *= scale
        _affine(target, centre, factor, shift)
    kept = _kept(x.shape, over)
    return Normalized(
        y,
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


def normalize_gradients(
    gradient: Array,
    x: Array,
    mean: Array,
    scale: Array,
    weight: Array | None = None,
    *,
    over: Over = 1,
    centred: bool = True,
    parameters: bool = True,
) -> list[Any]:
    """Returns the gradients of the arguments of `normalize`; mean and variance depend on `x`.

    Args:
        gradient: The gradient of `y`.
        x: The input of `normalize`.
        mean: `mean` from the result of `normalize`.
        scale: `scale` from the result of `normalize`.
        weight: The weight given to `normalize`.
        over: The value given to `normalize`.
        centred: The value given to `normalize`.
        parameters: False to leave out those of weight and bias.

    Returns:
        The gradient of `x` in its shape and dtype, and those of weight and bias in their shape and
        the dtype of `scale`; None for these two without `parameters`.
    """
    result: Any = namespace(x).empty(x.shape, x.dtype)
    given = gradient, x, mean.reshape(1, -1, 1), scale.reshape(1, -1, 1)
    compute = _launch_backward if is_cupy(x) else _backward
    sums = compute(given, weight, result, over, centred=centred, parameters=parameters)
    if sums is None:
        return [result, None, None]
    return [result, *(each.reshape(_own_shape(x.shape, over)) for each in sums)]


def _backward(
    given: Any, weight: Any, result: Any, over: Over, *, centred: bool, parameters: bool
) -> Any:
    mean, scale = given[2:]
    g, x, target = (_view(each, over) for each in (*given[:2], result))
    a, _, c = x.shape
    wide = scale.dtype
    factor = _per_item(weight, x.shape, over)
    items: Any = x - mean
    items *= scale
    upstream: Any = g.astype(wide, copy=False)
    sums = None
    if parameters and over == "groups":
        found = np.einsum("abc,abc->ba", upstream, items), upstream.sum(-1).T
        sums = np.stack(found).reshape(2, *result.shape[:2], a).sum(1)
    elif parameters and over is None:
        sums = np.einsum("abc,abc->b", upstream, items), _total(upstream, wide)
    elif parameters:
        sums = np.einsum("abc,abc->c", upstream, items), upstream[0].sum(0)
    if factor is not None:
        upstream = upstream * factor
    along = np.einsum("abc,abc->b", upstream, items)[None, :, None] / (a * c)
    items *= along
    made = np.subtract(upstream, items, out=items)
    if centred:
        made -= (_total(upstream, wide) / (a * c))[None, :, None]
    np.multiply(made, scale, out=target, casting="same_kind")
    return sums


# -- on CuPy arrays ------------------------------------------------------------------------------

_FORWARD: Final = Kernel("normalize", "normalize_forward")
_BACKWARD: Final = Kernel("normalize", "normalize_backward")
_COLUMNS: Final = Kernel("normalize", "normalize_columns")
_COLUMN_BLOCKS: Final = 512
"""Blocks that add up columns at most: each writes sums of all columns, which are read again."""
_FULL_BLOCKS: Final = 512
"""Blocks that fill a GPU: with fewer channels, several blocks share the items of one."""
_LONG_BYTES: Final = 64 << 10
"""Bytes of one channel that are worth a second launch."""
_SHARED_BYTES: Final = 48 << 10
_PACK_BYTES: Final = 16


def _launch_forward(
    x: Any,
    sizes: Shape,
    weight: Any,
    bias: Any,
    made: Any,
    over: Over,
    eps: float,
    *,
    centred: bool,
) -> None:
    parts = [part.dtype for part in (weight, bias) if part is not None]
    dtype = np.result_type(*parts) if parts else x.dtype
    own = _own_shape(x.shape, over)
    weight, bias = (
        _beside(name, part, own, dtype) for name, part in (("weight", weight), ("bias", bias))
    )
    options = _options(x, sizes, dtype, made[0].dtype, made[1].dtype, over)
    blocks = _blocks_each(x, sizes, over) if centred else 1
    moments = namespace(x).empty((blocks, sizes[1], 2), made[1].dtype) if blocks > 1 else None
    arrays = (contiguous(x), weight, bias, *made, moments)
    options["blocks"] = (options["blocks"], blocks)
    numbers = (*sizes, own[0], int(centred))
    for stage in (1, 2) if blocks > 1 else (0,):
        _FORWARD.launch(*arrays, *numbers, stage, float(eps), **options)


def _launch_backward(
    given: Any, weight: Any, result: Any, over: Over, *, centred: bool, parameters: bool
) -> Any:
    g, x, mean, scale = given
    sizes = _, b, c = _sizes(x.shape, over)
    wide, xp = scale.dtype, namespace(x)
    dtype = wide if weight is None else weight.dtype
    own = _own_shape(x.shape, over)
    weight = _beside("weight", weight, own, dtype)
    options = _options(x, sizes, dtype, g.dtype, wide, over)
    arrays = (contiguous(g), contiguous(x), contiguous(mean), contiguous(scale), weight, result)
    numbers = (*sizes, own[0], int(centred))
    if not parameters or not _is_rows(over):
        examples = x.shape[0] if over == "groups" else 1
        sums = xp.empty((examples, 2, math.prod(own)), wide) if parameters else None
        blocks = _blocks_each(x, sizes, over)
        parts = xp.empty((blocks, b, 2), wide) if blocks > 1 else None
        options["blocks"] = (options["blocks"], blocks)
        for stage in (1, 2) if blocks > 1 else (0,):
            _BACKWARD.launch(*arrays, sums, parts, *numbers, 0, stage, **options)
        return _added(sums, options) if parameters else None
    shared = 2 * c * wide.itemsize
    blocks = options["blocks"] = min(options["blocks"], _COLUMN_BLOCKS)
    is_wide = int(shared > _SHARED_BYTES)
    options["shared"] = 0 if is_wide else shared
    parts = xp.empty((blocks, 2, c), wide)
    _BACKWARD.launch(*arrays, parts, None, *numbers, is_wide, 0, **options)
    return _added(parts, options)


def _added(parts: Any, options: dict[str, Any]) -> Any:
    """Returns the sum over the first axis of parts of shape (n, 2, columns)."""
    blocks, _, columns = parts.shape
    if blocks == 1:
        return parts[0]
    if blocks == 0:
        return namespace(parts).zeros((2, columns), parts.dtype)
    sums = namespace(parts).empty((2, columns), parts.dtype)
    options |= {"blocks": blocks_for(2 * columns, 32), "threads": 1024, "shared": 0}
    _COLUMNS.launch(parts, sums, blocks, 2 * columns, **options)
    return sums


def _blocks_each(x: Any, sizes: Shape, over: Over) -> int:
    """Returns the number of blocks that share the items of one channel or group; 1 for rows."""
    a, b, c = sizes
    if _is_rows(over) or not b or a * c * x.itemsize < _LONG_BYTES:
        return 1
    most: int = min(a, _FULL_BLOCKS // b, 64)
    return max(1, most)


def _options(
    x: Any, sizes: Shape, weight: DTypeLike, out: DTypeLike, real: DTypeLike, over: Over
) -> dict[str, Any]:
    a, b, c = sizes
    warps = -(-a * c * x.itemsize // (_PACK_BYTES * 32))  # with one pack for each thread
    return {
        "blocks": blocks_for(b, 1),
        "threads": 32 * max(1, min(16, warps)),
        "ITEM": x.dtype,
        "WEIGHT": weight,
        "OUT": out,
        "REAL": real,
        "FORM": 0 if _is_rows(over) else 1 if over is None else 2,
    }


def _beside(name: str, part: Any, shape: Shape, dtype: DTypeLike) -> Any:
    if part is None:
        return None
    size = math.prod(shape)
    if part.size != size:
        raise ValueError(f"{name} has {part.size} items, {size} needed")
    return contiguous(part.astype(dtype, copy=False))


# -- the three axes ------------------------------------------------------------------------------


def _is_rows(over: Over) -> bool:
    return isinstance(over, int)


def _sizes(shape: Shape, over: Over) -> tuple[int, int, int]:
    """Returns the lengths of the three axes."""
    if over is None:
        return shape[0], shape[1], math.prod(shape[2:])
    if over == "groups":
        return shape[2], shape[0] * shape[1], math.prod(shape[3:])
    first = len(shape) - over
    return 1, math.prod(shape[:first]), math.prod(shape[first:])


def _view(x: Any, over: Over) -> Any:
    """Returns the three axes; a copy if `x` does not lie in C order."""
    a, b, c = _sizes(x.shape, over)
    return x.reshape(b, a, c).swapaxes(0, 1) if over == "groups" else x.reshape(a, b, c)


def _own_shape(shape: Shape, over: Over) -> Shape:
    """Returns the shape of weight and bias."""
    if over is None:
        return shape[1:2]
    return shape[1:3] if over == "groups" else shape[len(shape) - over :]


def _kept(shape: Shape, over: Over) -> Shape:
    if over is None:
        return (1, shape[1], *[1] * (len(shape) - 2))
    first = 2 if over == "groups" else len(shape) - over
    return (*shape[:first], *[1] * (len(shape) - first))


def _per_item(part: Any, sizes: Shape, over: Over) -> Any:
    """Returns a weight in a shape that broadcasts against the three axes."""
    if part is None:
        return None
    if over == "groups":
        return np.tile(part.T, sizes[1] // len(part))[:, :, None]
    return part.reshape((1, -1, 1) if over is None else (1, 1, -1))
