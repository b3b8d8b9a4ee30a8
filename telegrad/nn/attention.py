"""Scaled dot-product attention and multi-head attention.

Vaswani et al., "Attention is all you need" (2017).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from telegrad.arrays import array_beside, is_floating, namespace
from telegrad.autograd import Tensor, as_tensor, current_generator, ops
from telegrad.autograd.seams import array_of
from telegrad.nn.layers import Linear, linear
from telegrad.nn.module import Module, Parameter, drawn
from telegrad.types import DTypeLike


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

    Without dropout, the weights of all pairs are not stored for the gradient.

    Args:
        query: The queries, shape (..., queries, length).
        key: The keys, shape (..., keys, length).
        value: The values, shape (..., keys, value length).
        attn_mask: An array that broadcasts to (..., queries, keys). A bool mask is True where a
            query may read a key; a floating-point mask is added to the scores.
        dropout_p: The probability with which a weight is dropped; in evaluation, too.
        is_causal: True to let each query read only keys up to its own number.
        scale: The factor of the scores; None for 1/sqrt(length).

    Returns:
        A Tensor of shape (..., queries, value length). The result of a query that may read no key
        is zero.

    Raises:
        TypeError: `attn_mask` is neither bool nor floating-point.
        ValueError: The shapes do not fit, or `dropout_p` is not a probability.

    >>> q = np.ones((2, 3, 4))
    >>> scaled_dot_product_attention(q, q, q, is_causal=True).shape
    (2, 3, 4)
    """
    _check(query, key, value, dropout_p)
    lead = np.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    query, key, value = (_with_lead(x, lead) for x in (query, key, value))
    bias = None if attn_mask is None else masked_bias("attn_mask", attn_mask, query, allowed=True)
    how: Any = {"dropout_p": dropout_p, "scale": scale, "causal": is_causal}
    return as_tensor(attend(query, key, value, bias, **how)[0])


def attend(
    query: Any,
    key: Any,
    value: Any,
    bias: Any,
    *,
    dropout_p: float = 0.0,
    scale: float | None = None,
    weights: bool = False,
    causal: bool = False,
) -> tuple[Any, Any]:
    """Returns the result of attention, and the weights if `weights` is True, else None.

    Args:
        query: The queries, shape (..., queries, length).
        key: The keys, shape (..., keys, length), with the same leading axes.
        value: The values, shape (..., keys, value length), with the same leading axes.
        bias: An array added to the scores, -inf where masked; None for none.
        dropout_p: The probability with which a weight is dropped.
        scale: The factor of the scores; None for 1/sqrt(length).
        weights: True to return the weights, too.
        causal: True to let each query read only keys up to its own number.
    """
    if scale is None:
        scale = 1 / math.sqrt(query.shape[-1])
    seed = int(current_generator().integers(2**63)) if dropout_p else 0
    how: Any = {"weights": weights, "causal": causal, "seed": seed, "p": dropout_p}
    return ops.sequences.attention(query, key, value, bias, scale, **how)


def masked_bias(name: str, mask: Any, like: Any, *, allowed: bool) -> Any:
    """Returns a mask as an array to add to scores: bool becomes 0 or -inf, floats stay.

    Args:
        name: The name of the argument, for errors.
        mask: An array, a Tensor or nested lists.
        like: An array or Tensor whose dtype and device the result has.
        allowed: True if True in `mask` lets a query read a key, False if it forbids this.

    Raises:
        TypeError: The mask is neither bool nor floating-point. Integers 0 and 1 are usually meant
            as bool; as numbers to add they would mask nothing.
    """
    given = array_beside(array_of(mask), array_of(like))
    if given.dtype != np.bool_ and not is_floating(given.dtype):
        meaning = "may" if allowed else "does not"
        raise TypeError(
            f"{name} has dtype {given.dtype}; pass np.asarray({name}, bool), True where a query "
            f"{meaning} read a key, or floating-point numbers to add to the scores"
        )
    if isinstance(mask, Tensor) and mask.requires_grad:
        return mask
    if given.dtype != np.bool_:
        return given.astype(like.dtype, copy=False)
    xp = namespace(given)
    kept, other = (0.0, -math.inf) if allowed else (-math.inf, 0.0)
    return xp.where(given, kept, other).astype(like.dtype)


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
        raise ValueError(f"{key.shape[-2]} keys have {value.shape[-2]} values; each key needs one")
    if not key.shape[-2]:
        raise ValueError(f"attention needs at least one key, and key has the shape {key.shape}")


# -- multi-head attention ------------------------------------------------------------------------


class MultiheadAttention(Module):
    """Attention in several parts (heads) of the features at once, each with its own projections.

    The projections are drawn uniformly after Glorot and Bengio (2010); biases start at zero.

    Args:
        embed_dim: The length of queries and of the output.
        num_heads: The number of heads; it divides `embed_dim`.
        dropout: The probability with which a weight is dropped in training.
        bias: True to give the projections a bias.
        kdim: The length of keys; None for `embed_dim`.
        vdim: The length of values; None for `embed_dim`.
        batch_first: True for inputs of shape (batch, steps, features), False for
            (steps, batch, features).
        dtype: The dtype of the parameters; floating-point.
        rng: The generator of their first values; None for the generator of `manual_seed`.

    Raises:
        ValueError: A number is out of its range, or `dtype` is not floating-point.

    Attributes:
        in_proj_weight: The projections of queries, keys and values, shape (3 * embed_dim,
            embed_dim). None if `kdim` or `vdim` differs from `embed_dim`; then there are
            `q_proj_weight`, `k_proj_weight` and `v_proj_weight`.
        in_proj_bias: The biases of these projections, shape (3 * embed_dim,), or None.
        out_proj: The projection of the result, a linear layer.

    >>> x = np.ones((7, 5, 8), np.float32)
    >>> y, weights = MultiheadAttention(8, 2)(x, x, x)
    >>> y.shape, weights.shape
    ((7, 5, 8), (5, 7, 7))
    """

    _shown = "{embed_dim}, {num_heads}"
    in_proj_weight: Parameter | None
    in_proj_bias: Parameter | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        dropout: float = 0.0,
        bias: bool = True,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        dtype: DTypeLike = np.float32,
        rng: np.random.Generator | None = None,
    ) -> None:
        super().__init__()
        if embed_dim <= 0 or num_heads <= 0 or embed_dim % num_heads or not 0 <= dropout <= 1:
            raise ValueError(
                "MultiheadAttention needs a positive embed_dim that num_heads divides and "
                f"0 <= dropout <= 1, not {embed_dim}, {num_heads} and {dropout}"
            )
        self.embed_dim, self.num_heads, self.dropout = embed_dim, num_heads, dropout
        self.kdim, self.vdim = kdim or embed_dim, vdim or embed_dim
        self.batch_first = batch_first

        def draw(rows: int, columns: int) -> Parameter:
            return drawn(rng, math.sqrt(6 / (rows + columns)), (rows, columns), dtype)

        self._one_weight = self.kdim == self.vdim == embed_dim
        if self._one_weight:
            self.in_proj_weight = draw(3 * embed_dim, embed_dim)
        else:
            self.in_proj_weight = None
            self.q_proj_weight = draw(embed_dim, embed_dim)
            self.k_proj_weight = draw(embed_dim, self.kdim)
            self.v_proj_weight = draw(embed_dim, self.vdim)
        self.in_proj_bias = Parameter(np.zeros(3 * embed_dim, dtype)) if bias else None
        self.out_proj = Linear(embed_dim, embed_dim, bias=bias, dtype=dtype, rng=rng)
        if self.out_proj.bias is not None:
            self.out_proj.bias.data = np.zeros(embed_dim, dtype)

    def forward(
        self,
        query: Any,
        key: Any,
        value: Any,
        *,
        key_padding_mask: Any = None,
        need_weights: bool = True,
        attn_mask: Any = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Returns the result of attention, and the weights or None.

        Args:
            query: The queries, shape (steps, batch, embed_dim), or (steps, embed_dim).
            key: The keys, shape (keys, batch, kdim), or (keys, kdim).
            value: The values, shape (keys, batch, vdim), or (keys, vdim).
            key_padding_mask: An array of shape (batch, keys), or (keys,). A bool mask is True for
                keys that no query reads; a floating-point mask is added to the scores.
            need_weights: True to return the weights, which costs time and memory.
            attn_mask: An array of shape (steps, keys) or (batch * heads, steps, keys). A bool
                mask is True where a query does not read a key; a floating-point mask is added to
                the scores.
            average_attn_weights: True to return the mean of the weights over the heads.
            is_causal: True to let each query read only keys up to its own number; needs no mask.

        Returns:
            The result in the layout of `query`; and the weights, shape (batch, steps, keys), or
            (batch, heads, steps, keys) if not averaged. If the inputs have no batch axis, the
            weights have none.

        Raises:
            TypeError: A mask is neither bool nor floating-point.
            ValueError: The shapes do not fit.
        """
        self._check(query, key, value)
        single = query.ndim == 2
        same = query is key and key is value
        if single:
            query, key, value = (x.reshape(x.shape[0], 1, x.shape[1]) for x in (query, key, value))
        by_batch = self.batch_first and not single  # False: the axis of steps comes first
        steps, batch = query.shape[1::-1] if by_batch else query.shape[:2]
        shape = (batch, self.num_heads, steps, key.shape[1 if by_batch else 0])
        bias = self._bias(shape, key_padding_mask, attn_mask)
        if same and self._one_weight:
            q, k, v = np.unstack(self._packed(query, by_batch=by_batch))
        else:
            inputs = enumerate((query, key, value))
            q, k, v = (self._projected(i, x, by_batch=by_batch) for i, x in inputs)
        dropout = self.dropout if self.training else 0.0
        how: Any = {"dropout_p": dropout, "weights": need_weights, "causal": is_causal}
        weights: Any
        read, weights = attend(q, k, v, bias, **how)
        read = read.transpose(0, 2, 1, 3) if by_batch else read.transpose(2, 0, 1, 3)
        y = self.out_proj(read.reshape(steps * batch, self.embed_dim)).reshape(query.shape)
        if not need_weights:
            weights = None
        elif average_attn_weights:
            weights = weights.mean(axis=1)
        if single:
            return y.reshape(steps, self.embed_dim), None if weights is None else weights[0]
        return y, weights

    def _packed(self, x: Any, *, by_batch: bool) -> Any:
        """Returns all projections by one product: shape (3, batch, heads, steps, length)."""
        y = linear(x, self.in_proj_weight, self.in_proj_bias)
        length = self.embed_dim // self.num_heads
        parts = y.reshape(*x.shape[:2], 3, self.num_heads, length)
        return parts.transpose(2, 0, 3, 1, 4) if by_batch else parts.transpose(2, 1, 3, 0, 4)

    def _projected(self, k: int, x: Any, *, by_batch: bool) -> Any:
        """Returns queries (k = 0), keys (1) or values (2): shape (batch, heads, steps, length)."""
        own = slice(k * self.embed_dim, (k + 1) * self.embed_dim)
        if self.in_proj_weight is not None:
            weight: Any = self.in_proj_weight[own]
        else:
            weight = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)[k]
        bias = None if self.in_proj_bias is None else self.in_proj_bias[own]
        length = self.embed_dim // self.num_heads
        parts = linear(x, weight, bias).reshape(*x.shape[:2], self.num_heads, length)
        return parts.transpose(0, 2, 1, 3) if by_batch else parts.transpose(1, 2, 0, 3)

    def _bias(self, shape: tuple[int, int, int, int], padding: Any, mask: Any) -> Any:
        """Returns the sum of all masks as one bias, over (batch, heads, steps, keys)."""
        batch, _, steps, keys = shape
        like = self.out_proj.weight
        found = []
        if padding is not None:
            given = masked_bias("key_padding_mask", padding, like, allowed=False)
            if given.size != batch * keys:
                raise ValueError(
                    f"key_padding_mask has shape {given.shape}, ({batch}, {keys}) needed"
                )
            found.append(given.reshape(batch, 1, 1, keys))
        if mask is not None:
            given = masked_bias("attn_mask", mask, like, allowed=False)
            if given.shape == (batch * self.num_heads, steps, keys):
                given = given.reshape(batch, self.num_heads, steps, keys)
            elif given.shape != (steps, keys):
                raise ValueError(
                    f"attn_mask has shape {given.shape}, ({steps}, {keys}) or "
                    f"({batch * self.num_heads}, {steps}, {keys}) needed"
                )
            found.append(given)
        return sum(found[1:], found[0]) if found else None

    def _check(self, query: Any, key: Any, value: Any) -> None:
        lengths = (self.embed_dim, self.kdim, self.vdim)
        shapes = query.shape, key.shape, value.shape
        fits = len({len(shape) for shape in shapes}) == 1 and len(shapes[0]) in (2, 3)
        if not fits or tuple(shape[-1] for shape in shapes) != lengths:
            raise ValueError(
                f"{self!r} needs inputs of 2 or 3 axes, the last of lengths {lengths}, not shapes "
                f"{shapes}"
            )
        if shapes[1][:-1] != shapes[2][:-1]:
            raise ValueError(f"keys of shape {shapes[1]} do not fit values of shape {shapes[2]}")
