"""Scaled dot-product attention: Vaswani et al., "Attention is all you need" (2017)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from telegrad.arrays import array_beside, namespace
from telegrad.autograd import Tensor, rules
from telegrad.nn.dropout import dropout
from telegrad.types import Array

__all__ = ["attend", "causal_bias", "masked_bias", "scaled_dot_product_attention"]


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    *,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Returns `softmax(query @ key.T * scale + mask) @ value`, over the last two axes.

    The weights of all pairs are not kept for the gradient, unless some are dropped.

    Args:
        query: Shape (..., queries, length).
        key: Shape (..., keys, length).
        value: Shape (..., keys, value length).
        attn_mask: Broadcasts to (..., queries, keys): of bool, True where a query may read; or
            numbers that are added to the scores.
        dropout_p: The probability with which a weight is dropped; always, not in training alone.
        is_causal: Whether a query reads only keys up to its own number.
        scale: None for 1/sqrt(length).

    Returns:
        Shape (..., queries, value length). A query that may read nothing reads zeros.

    Raises:
        ValueError: The shapes do not fit, or `dropout_p` is no probability.

    >>> q = np.ones((2, 3, 4))
    >>> scaled_dot_product_attention(q, q, q, is_causal=True).shape
    (2, 3, 4)
    """
    _check(query, key, value, dropout_p)
    lead = np.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    query, key, value = (_with_lead(x, lead) for x in (query, key, value))
    bias = None if attn_mask is None else masked_bias(attn_mask, query, allowed=True)
    if is_causal:
        bias = _sum(bias, causal_bias(query, query.shape[-2], key.shape[-2]))
    result: Tensor
    result, _ = attend(query, key, value, bias, dropout_p=dropout_p, scale=scale)
    return result


def attend(
    query: Any,
    key: Any,
    value: Any,
    bias: Any,
    *,
    dropout_p: float = 0.0,
    scale: float | None = None,
    weights: bool = False,
) -> tuple[Any, Any]:
    """Returns what is read and, if asked for, the weights; else None.

    Args:
        query: Shape (..., queries, length).
        key: Shape (..., keys, length), with the same leading axes.
        value: Shape (..., keys, value length), with the same leading axes.
        bias: Added to the scores, -inf where masked; None for none.
        dropout_p: See `scaled_dot_product_attention`.
        scale: See `scaled_dot_product_attention`.
        weights: Whether they are asked for.
    """
    if scale is None:
        scale = 1 / math.sqrt(query.shape[-1])
    if not dropout_p and not isinstance(bias, Tensor):
        return rules.sequences.attention(query, key, value, bias, scale, weights=weights)
    drop = (lambda w: dropout(w, dropout_p)) if dropout_p else None
    return rules.sequences.attention_by_parts(query, key, value, bias, scale, drop)


def masked_bias(mask: Any, like: Any, *, allowed: bool) -> Any:
    """Returns what a mask adds to scores: of bool 0 or -inf, numbers as they are.

    Args:
        mask: An array or Tensor.
        like: Whose dtype and device the result has.
        allowed: Whether True in `mask` lets a query read, and does not keep it from reading.
    """
    if isinstance(mask, Tensor) and mask.requires_grad:
        return mask
    given = array_beside(mask.data if isinstance(mask, Tensor) else mask, _data(like))
    if given.dtype != np.bool_:
        return given.astype(like.dtype, copy=False)
    xp = namespace(given)
    kept, other = (0.0, -math.inf) if allowed else (-math.inf, 0.0)
    return xp.where(given, kept, other).astype(like.dtype)


def causal_bias(like: Any, queries: int, keys: int) -> Array:
    """Returns what keeps each query from keys after its own number, shape (queries, keys)."""
    xp = namespace(_data(like))
    later: Any = xp.arange(keys)[None, :] > xp.arange(queries)[:, None]
    bias: Array = xp.where(later, -math.inf, 0.0).astype(like.dtype)
    return bias


def _data(x: Any) -> Any:
    return x.data if isinstance(x, Tensor) else x


def _sum(one: Any, other: Any) -> Any:
    return other if one is None else one + other


def _with_lead(x: Any, lead: tuple[int, ...]) -> Any:
    return x if x.shape[:-2] == lead else np.broadcast_to(x, (*lead, *x.shape[-2:]))


def _check(query: Any, key: Any, value: Any, dropout_p: float) -> None:
    if not 0 <= dropout_p <= 1:
        raise ValueError(f"dropout_p is a probability, not {dropout_p}")
    shapes = query.shape, key.shape, value.shape
    if min(map(len, shapes)) < 2 or query.shape[-1] != key.shape[-1]:
        raise ValueError(
            "attention needs queries (..., n, length), keys (..., m, length) and values "
            f"(..., m, any), not shapes {shapes}"
        )
    if key.shape[-2] != value.shape[-2]:
        raise ValueError(f"{key.shape[-2]} keys have {value.shape[-2]} values; one each is needed")
