"""Attention, forward and backward, without storing the weights of all pairs for the gradient.

The kernel computes softmax(scale * q @ k.T + bias) @ v in blocks of the leading axes. The weights
of one block fit into the processor's cache. It keeps only the logarithm of each row's sum; the
backward computes the weights again: Rabe and Staats, "Self-attention does not need O(n^2) memory"
(2021).

On CuPy arrays the products are those of cuBLAS, and `cuda/attention.cu` does in one launch all that
is between them, forward and backward. The weights of one part of the leading axes are in memory at
a time. Where they would be too many, `cuda/attention.cu` does all of it in tiles and stores no
weights: T. Dao et al., "FlashAttention: fast and memory-efficient exact attention with
IO-awareness" (2022).

A row whose keys are all masked has no weights: its result is zero.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from telegrad.arrays import batched_product, computing_dtype, is_cupy, namespace
from telegrad.kernels.cross_entropy import row_teams
from telegrad.kernels.cuda import Kernel, blocks_for, check_operands, contiguous
from telegrad.kernels.philox import mask_of
from telegrad.types import Array, Shape

BLOCK: Final = 1 << 16
"""Number of weights in one block. With 2^16 weights of float32, the block and its gradient fit a
cache of 1 MB; two or four times as many took up to 1.4 times as long (4 x 8 heads of 256 by 256,
one core)."""

MOST: Final = 1 << 27
"""Number of weights in memory at once on a GPU: two arrays of 512 MiB in float32. Of more, float32
and float64 are computed in tiles, and shorter floats if one matrix of weights has more: products of
short floats by tensor cores, one part after the other, are many times as fast as those of tiles."""


def attention_forward(
    q: Array,
    k: Array,
    v: Array,
    bias: Any,
    scale: float,
    weights: Array | None = None,
    *,
    causal: bool = False,
    seed: int = 0,
    p: float = 0.0,
) -> tuple[Array, Array]:
    """Computes attention: for each query the weighted mean of the values.

    Args:
        q: Queries, shape (..., queries, length).
        k: Keys, shape (..., keys, length), with the same leading axes.
        v: Values, shape (..., keys, value length), with the same leading axes.
        bias: An array added to the scores; broadcasts to (..., queries, keys). None adds nothing.
        scale: The factor of the scores.
        weights: An array that receives the weights, shape (..., queries, keys); None for none.
        causal: True to let each query read only keys up to its own number.
        seed: The key of the mask that `kernels.dropout` has for an array of all weights.
        p: The probability with which a weight is dropped; on NumPy arrays 0.

    Returns:
        The result, shape (..., queries, value length), and the logarithms of the rows' sums, of at
        least float32, shape (..., queries, 1).

    Raises:
        ValueError: The arrays are on different devices, or one is misaligned.
    """
    check_operands("attention", q=q, k=k, v=v, bias=bias)
    if is_cupy(q):
        given = causal, seed, p
        if weights is None and _is_tiled(q, k, v):
            return _launch_tiles(q, k, v, bias, scale, given)
        return _launch_forward(q, k, v, bias, weights, scale, given)
    bias = _with_causal(bias, q, k, causal=causal)
    result = np.empty((*q.shape[:-1], v.shape[-1]), dtype=q.dtype)
    logarithms = np.empty((*q.shape[:-1], 1), dtype=computing_dtype(q.dtype))
    bias = _spread(bias, q, k)
    for part in _blocks(q, k):
        scores = _scores(q[part] * scale, k[part], bias, part)
        top = scores.max(axis=-1, keepdims=True)
        top = np.where(np.isfinite(top), top, 0)
        scores -= top
        np.exp(scores, out=scores)
        total = scores @ np.ones((scores.shape[-1], 1), dtype=q.dtype)  # a third of sum()'s time
        total += total == 0
        read = scores @ v[part]
        read /= total
        result[part] = read
        if weights is not None:
            np.divide(scores, total, out=weights[part])
        logarithms[part] = top + np.log(total)
    return result, logarithms


def attention_backward(
    g: Array,
    result: Array,
    logarithms: Array,
    inputs: tuple[Array, Array, Array],
    bias: Any,
    scale: float,
    of_weights: Array | None = None,
    *,
    causal: bool = False,
    seed: int = 0,
    p: float = 0.0,
) -> tuple[Array, ...]:
    """Returns the gradients of `q`, `k` and `v`.

    Args:
        g: The gradient of the result.
        result: The result that `attention_forward` returned.
        logarithms: The logarithms that `attention_forward` returned.
        inputs: `q`, `k` and `v`.
        bias: The bias given to `attention_forward`.
        scale: The scale given to `attention_forward`.
        of_weights: The gradient of the weights, or None if they have no gradient.
        causal: The value given to `attention_forward`.
        seed: The value given to `attention_forward`.
        p: The value given to `attention_forward`.

    Raises:
        ValueError: As for `attention_forward`.
    """
    q, k, v = inputs
    check_operands("attention_backward", g=g, q=q, k=k, v=v, bias=bias)
    if is_cupy(g):
        given = causal, seed, p
        if of_weights is None and _is_tiled(*inputs):
            return _launch_tile_gradients(g, result, logarithms, inputs, bias, scale, given)
        return _launch_backward(g, logarithms, inputs, bias, of_weights, scale, given)
    bias = _with_causal(bias, q, k, causal=causal)
    bias = _spread(bias, q, k)
    of_q, of_k, of_v = map(np.empty_like, inputs)
    for part in _blocks(q, k):
        scaled = q[part] * scale
        weights = _scores(*_less(scaled, logarithms[part], k[part]), bias, part)
        np.exp(weights, out=weights)
        of_v[part] = weights.swapaxes(-1, -2) @ g[part]
        own = (g[part] * result[part]).sum(axis=-1, keepdims=True)
        if of_weights is not None:
            own += (of_weights[part] * weights).sum(axis=-1, keepdims=True)
        of_scores = _scores(*_less(g[part], own, v[part]), of_weights, part)
        of_scores *= weights
        of_q[part] = (of_scores @ k[part]) * scale
        of_k[part] = of_scores.swapaxes(-1, -2) @ scaled
    return of_q, of_k, of_v


def causal_bias(like: Any, queries: int, keys: int) -> Any:
    """Returns a bias that hides keys after a query's own number, shape (queries, keys)."""
    xp = namespace(like)
    later: Any = xp.arange(keys)[None, :] > xp.arange(queries)[:, None]
    return xp.where(later, -math.inf, 0.0).astype(like.dtype)


def _with_causal(bias: Any, q: Any, k: Any, *, causal: bool) -> Any:
    if not causal:
        return bias
    later = causal_bias(q, q.shape[-2], k.shape[-2])
    return later if bias is None else bias + later


# -- on CuPy arrays ------------------------------------------------------------------------------

_WEIGHTS: Final = Kernel("attention", "attention_weights")
_SLOPES: Final = Kernel("attention", "attention_slopes")
_TILES: Final = Kernel("attention", "attention_tiles")
_ALONG: Final = Kernel("attention", "attention_along")
_TILE_GRADIENTS: Final = Kernel("attention", "attention_tile_gradients")
_TILE_BYTES: Final = 256
"""Bytes of one row of a tile, of float32 or float64."""


def _launch_forward(
    q: Any, k: Any, v: Any, bias: Any, weights: Any, scale: float, given: tuple[Any, ...]
) -> tuple[Array, Array]:
    xp = namespace(q)
    scores = (*q.shape[:-1], k.shape[-2])
    result = xp.empty((*q.shape[:-1], v.shape[-1]), q.dtype)
    logarithms = xp.empty((*q.shape[:-1], 1), computing_dtype(q.dtype))
    added, sizes = _added(bias, scores, q.dtype, *given)
    q, k, v, of_result, of_logarithms = map(_flat, (q, k, v, result, logarithms))
    for part, first in _parts(scores):
        products = batched_product(q[part], k[part].swapaxes(-1, -2), factor=scale)
        rows, (warps, how) = _rows(products), row_teams(products)
        _WEIGHTS.launch(products, added, of_logarithms[part], first, rows, *sizes, warps, **how)
        if weights is not None:
            _flat(weights)[part] = products
        batched_product(products, v[part], of_result[part])
    return result, logarithms


def _launch_backward(
    g: Any,
    logarithms: Any,
    inputs: Any,
    bias: Any,
    of_weights: Any,
    scale: float,
    given: tuple[Any, ...],
) -> tuple[Array, ...]:
    dtype = inputs[0].dtype
    scores = (*inputs[0].shape[:-1], inputs[1].shape[-2])
    made = _empty(inputs)
    added, sizes = _added(bias, scores, dtype, *given)
    g, q, k, v = (_flat(contiguous(each.astype(dtype, copy=False))) for each in (g, *inputs))
    of_q, of_k, of_v, sums = map(_flat, (*made, contiguous(logarithms)))
    if of_weights is not None:
        of_weights = _flat(contiguous(of_weights.astype(dtype, copy=False)))
    for part, first in _parts(scores):
        products = batched_product(q[part], k[part].swapaxes(-1, -2), factor=scale)
        slopes = batched_product(g[part], v[part].swapaxes(-1, -2))
        rows, (warps, how) = _rows(products), row_teams(products)
        more = None if of_weights is None else of_weights[part]
        arrays = (products, slopes, added, sums[part], more)
        _SLOPES.launch(*arrays, first, rows, *sizes, warps, **how)
        batched_product(slopes, k[part], of_q[part], factor=scale)
        batched_product(slopes.swapaxes(-1, -2), q[part], of_k[part], factor=scale)
        batched_product(products.swapaxes(-1, -2), g[part], of_v[part])
    return made


def _is_tiled(q: Any, k: Any, v: Any) -> bool:
    """Returns True if the weights are too many to store them."""
    *lead, queries, length = q.shape
    weights: int = queries * k.shape[-2]
    if q.dtype.itemsize >= 4:
        weights *= math.prod(lead)
    return weights > MOST and min(length, v.shape[-1]) > 0


def _launch_tiles(
    q: Any, k: Any, v: Any, bias: Any, scale: float, given: tuple[Any, ...]
) -> tuple[Array, Array]:
    xp = namespace(q)
    result = xp.empty((*q.shape[:-1], v.shape[-1]), q.dtype)
    logarithms = xp.empty((*q.shape[:-1], 1), computing_dtype(q.dtype))
    sizes, how = _tiles(q, v, q.shape[-2], v.shape[-1])
    added, others = _added(bias, (*q.shape[:-1], k.shape[-2]), q.dtype, *given)
    arrays = (*map(contiguous, (q, k, v)), added, result, logarithms)
    _TILES.launch(*arrays, *sizes, float(scale), *others, **how)
    return result, logarithms


def _launch_tile_gradients(
    g: Any,
    result: Any,
    logarithms: Any,
    inputs: Any,
    bias: Any,
    scale: float,
    given: tuple[Any, ...],
) -> tuple[Array, ...]:
    q, k, v = (contiguous(each) for each in inputs)
    g, result = (contiguous(each.astype(q.dtype, copy=False)) for each in (g, result))
    made = _empty(inputs)
    along = namespace(g).empty(logarithms.shape, logarithms.dtype)
    rows = int(along.size)
    _ALONG.launch(g, result, along, rows, v.shape[-1], blocks=blocks_for(rows, 8), ITEM=q.dtype)
    longest, widest = max(q.shape[-2], k.shape[-2]), max(q.shape[-1], v.shape[-1])
    sizes, how = _tiles(q, v, longest, widest)
    added, others = _added(bias, (*q.shape[:-1], k.shape[-2]), q.dtype, *given)
    arrays = (g, q, k, v, added, contiguous(logarithms), along, *made)
    how["blocks"] += (len(made),)
    _TILE_GRADIENTS.launch(*arrays, *sizes, float(scale), *others, **how)
    return made


def _tiles(q: Any, v: Any, rows: int, columns: int) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Returns sizes of the arrays, and the launch for results of so many rows and columns."""
    tile = _TILE_BYTES // computing_dtype(q.dtype).itemsize
    leads = math.prod(q.shape[:-2])
    down, across = -(-rows // tile), -(-columns // tile)
    blocks: Any = (blocks_for(leads * down, 1), across)
    return (leads, q.shape[-1], v.shape[-1]), {"blocks": blocks, "ITEM": q.dtype}


def _empty(inputs: tuple[Any, ...]) -> tuple[Array, ...]:
    return tuple([namespace(x).empty(x.shape, x.dtype) for x in inputs])  # in C order


def _flat(x: Any) -> Any:
    """Returns matrices with one leading axis."""
    return x.reshape(math.prod(x.shape[:-2]), *x.shape[-2:])


def _rows(products: Any) -> int:
    return int(products.shape[0] * products.shape[1])


def _parts(scores: Shape) -> list[tuple[slice, int]]:
    """Returns parts of the leading axes of all scores with at most MOST, and their first rows."""
    *lead, queries, keys = scores
    step = max(1, MOST // max(1, queries * keys))
    return [(slice(i, i + step), i * queries) for i in range(0, math.prod(lead), step)]


def _added(
    bias: Any, scores: Shape, dtype: Any, causal: Any, seed: int, p: float
) -> tuple[Any, tuple[Any, ...]]:
    """Returns the bias as the kernels take it, and the numbers of a launch."""
    *lead, queries, keys = scores
    strides = [0, 0, 0, 0]
    heads = math.prod(lead[1:])
    if bias is not None:
        bias = bias.astype(dtype, copy=False)
        if bias.ndim > 4 or len(lead) > 2:
            bias = namespace(bias).broadcast_to(bias, scores)
            bias = bias.reshape(lead[0], heads, queries, keys)
        elif len(lead) == 1 and bias.ndim == 3:
            bias = bias[:, None]
        bias = contiguous(bias)
        steps = [math.prod(bias.shape[axis + 1 :]) for axis in range(bias.ndim)]
        own = [0 if n == 1 else step for n, step in zip(bias.shape, steps, strict=True)]
        strides[4 - bias.ndim :] = own
    sizes = heads, queries, keys, *strides, int(causal), seed, *mask_of(p)
    return bias, sizes


# -- on NumPy arrays -----------------------------------------------------------------------------


def _scores(q: Any, k: Any, bias: Any, part: Any) -> Any:
    scores = q @ k.swapaxes(-1, -2)
    if bias is not None:
        scores += bias[part]
    return scores


def _less(a: Any, rows: Any, b: Any) -> tuple[Any, Any]:
    """Returns two matrices whose product is `a @ b.T - rows`; this saves a pass over the pairs."""
    ones = np.ones((*b.shape[:-1], 1), dtype=b.dtype)
    return np.concatenate((a, -rows), axis=-1), np.concatenate((b, ones), axis=-1)


def _spread(bias: Any, q: Any, k: Any) -> Any:
    """Returns `bias` broadcast to all axes of the scores."""
    if bias is None:
        return None
    return np.broadcast_to(bias, (*q.shape[:-1], k.shape[-2]))


def _blocks(q: Any, k: Any) -> list[Any]:
    """Returns one index of the leading axes for each block.

    A block takes as many of the last leading axes as fit into it.
    """
    if q.ndim == 2:
        return [...]
    lead = q.shape[:-2]
    cut, each = len(lead) - 1, q.shape[-2] * k.shape[-2]  # the split axis, weights per item
    while cut and each * lead[cut] < BLOCK:
        each *= lead[cut]
        cut -= 1
    step = max(1, BLOCK // max(1, each))
    return [
        (*outer, slice(start, start + step))
        for outer in np.ndindex(lead[:cut])
        for start in range(0, lead[cut], step)
    ]
