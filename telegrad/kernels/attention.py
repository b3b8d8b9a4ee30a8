"""Attention, forward and backward, without keeping the weights of all pairs for the gradient.

softmax(scale * q @ k.T + bias) @ v is computed in blocks of the leading axes, so that the weights of
one block stay in the processor's cache; kept is the logarithm of each row's sum alone, and the
backward computes the weights again: Rabe and Staats, "Self-attention does not need O(n^2) memory"
(2021). On a GPU there is one block.

A row of which all is masked has no weights: its result is zero.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from telegrad.arrays import is_cupy, namespace
from telegrad.types import Array

__all__ = ["attention_backward", "attention_forward"]

BLOCK: Final = 1 << 16
"""Weights in one block: with 2^16 of float32 the block and its gradient fit a cache of 1 MB; twice or
four times as many took up to 1.4 times as long (4 x 8 heads of 256 by 256, one core)."""

SMALL: Final = 40.0
"""Scores up to this: exp(40) is 2e17, and 1e20 of them have a sum in float32."""


def attention_forward(
    q: Array, k: Array, v: Array, bias: Any, scale: float, weights: Array | None = None
) -> tuple[Array, Array]:
    """Computes what each query reads.

    Args:
        q: Shape (..., queries, length).
        k: Shape (..., keys, length), with the same leading axes.
        v: Shape (..., keys, value length), with the same leading axes.
        bias: Added to the scores; broadcasts to (..., queries, keys). None for none.
        scale: What the scores are multiplied with.
        weights: Written into, if given: shape (..., queries, keys).

    Returns:
        Shape (..., queries, value length), and the logarithms, shape (..., queries, 1).
    """
    xp = namespace(q)
    result = xp.empty((*q.shape[:-1], v.shape[-1]), dtype=q.dtype)
    logarithms = xp.empty((*q.shape[:-1], 1), dtype=q.dtype)
    shifted = not _is_small(q, k, bias, scale)
    bias = _spread(bias, q, k)
    for part in _blocks(q, k):
        scores = _scores(q[part] * scale, k[part], bias, part)
        top: Any = 0
        if shifted:
            top = scores.max(axis=-1, keepdims=True)
            top = xp.where(xp.isfinite(top), top, 0)
            scores -= top
        xp.exp(scores, out=scores)
        total = scores @ xp.ones((scores.shape[-1], 1), dtype=q.dtype)  # a third of sum()'s time
        total += total == 0
        read = scores @ v[part]
        read /= total
        result[part] = read
        if weights is not None:
            xp.divide(scores, total, out=weights[part])
        logarithms[part] = top + xp.log(total)
    return result, logarithms


def attention_backward(
    g: Array,
    result: Array,
    logarithms: Array,
    inputs: tuple[Array, Array, Array],
    bias: Any,
    scale: float,
    out: tuple[Array, Array, Array],
    of_weights: Array | None = None,
) -> None:
    """Computes the gradients of `q`, `k` and `v`.

    Args:
        g: The gradient of the result.
        result: Of the forward.
        logarithms: Of the forward.
        inputs: `q`, `k` and `v`.
        bias: As there.
        scale: As there.
        out: Written into: one for each input.
        of_weights: The gradient of the weights, if they have one.
    """
    xp = namespace(g)
    q, k, v = inputs
    bias = _spread(bias, q, k)
    for part in _blocks(q, k):
        scaled = q[part] * scale
        weights = _scores(*_less(scaled, logarithms[part], k[part]), bias, part)
        xp.exp(weights, out=weights)
        out[2][part] = weights.swapaxes(-1, -2) @ g[part]
        own = (g[part] * result[part]).sum(axis=-1, keepdims=True)
        if of_weights is not None:
            own += (of_weights[part] * weights).sum(axis=-1, keepdims=True)
        of_scores = _scores(*_less(g[part], own, v[part]), of_weights, part)
        of_scores *= weights
        out[0][part] = (of_scores @ k[part]) * scale
        out[1][part] = of_scores.swapaxes(-1, -2) @ scaled


def _scores(q: Any, k: Any, bias: Any, part: Any) -> Any:
    scores = q @ k.swapaxes(-1, -2)
    if bias is not None:
        scores += bias[part]
    return scores


def _less(a: Any, rows: Any, b: Any) -> tuple[Any, Any]:
    """What gives `a @ b.T - rows` as one product: a pass over the pairs is spared."""
    xp = namespace(a)
    ones = xp.ones((*b.shape[:-1], 1), dtype=b.dtype)
    return xp.concatenate((a, -rows), axis=-1), xp.concatenate((b, ones), axis=-1)


def _is_small(q: Any, k: Any, bias: Any, scale: float) -> bool:
    """Tells whether no exp of a score can overflow or vanish, so that none need be shifted.

    By Cauchy and Schwarz; not asked of a GPU, which would have to be waited for.
    """
    if is_cupy(q) or q.dtype.itemsize < 4 or not q.size or not k.size:
        return False
    if bias is not None and not ((bias == 0) | (bias == -np.inf)).all():
        return False
    longest = [float(np.einsum("...i,...i->...", a, a).max()) for a in (q, k)]
    return math.sqrt(longest[0] * longest[1]) * abs(scale) < SMALL


def _spread(bias: Any, q: Any, k: Any) -> Any:
    """`bias` as if it had all axes of the scores."""
    if bias is None:
        return None
    return namespace(q).broadcast_to(bias, (*q.shape[:-1], k.shape[-2]))


def _blocks(q: Any, k: Any) -> list[Any]:
    """Indices of the leading axes: of as many together, from the last on, as fit a block."""
    if q.ndim == 2 or is_cupy(q):
        return [...]
    lead = q.shape[:-2]
    cut, each = len(lead) - 1, q.shape[-2] * k.shape[-2]  # the axis cut, and the weights of an item
    while cut and each * lead[cut] < BLOCK:
        each *= lead[cut]
        cut -= 1
    step = max(1, BLOCK // max(1, each))
    return [
        (*outer, slice(start, start + step))
        for outer in np.ndindex(lead[:cut])
        for start in range(0, lead[cut], step)
    ]
