"""Attention as one node with a backward of its own, and as a composition.

attention           on the kernels, which keep no weights for the gradient
attention_packed    the same of query, key and value in one array
attention_by_parts  of operations that have rules: with dropout, with a mask that is learned, and
                    for gradients of gradients
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from telegrad import kernels
from telegrad.arrays import namespace
from telegrad.autograd.function import Function, FunctionContext
from telegrad.autograd.ops import swapaxes
from telegrad.autograd.rules.by_composition import recorded_gradients
from telegrad.autograd.tensor import Tensor

__all__ = ["attention", "attention_by_parts", "attention_packed"]


def attention(
    q: Any, k: Any, v: Any, bias: Any, scale: float, *, weights: bool = False
) -> tuple[Any, Any]:
    """Returns `softmax(scale * q @ k.T + bias) @ v`, and the softmax if it is asked for.

    A row that is masked as a whole reads zero.

    Args:
        q: Shape (..., queries, length).
        k: Shape (..., keys, length), with the same leading axes.
        v: Shape (..., keys, value length), with the same leading axes.
        bias: An array that broadcasts to (..., queries, keys), -inf where masked; None for none.
        scale: What the scores are multiplied with.
        weights: Whether the softmax is asked for.

    Returns:
        Shape (..., queries, value length); and shape (..., queries, keys), or None.
    """
    found = _Attention.apply(bias, scale, weights, q, k, v)
    return found if weights else (found, None)


def attention_packed(
    packed: Any, bias: Any, scale: float, *, weights: bool = False
) -> tuple[Any, Any]:
    """Returns `attention` of `packed[0]`, `packed[1]` and `packed[2]`."""
    found = _Attention.apply(bias, scale, weights, packed)
    return found if weights else (found, None)


def attention_by_parts(
    q: Any,
    k: Any,
    v: Any,
    bias: Any,
    scale: float,
    drop: Callable[[Any], Any] | None = None,
) -> tuple[Any, Any]:
    """Returns the same as `attention`, and the weights, shape (..., queries, keys).

    Args:
        q: See `attention`.
        k: See `attention`.
        v: See `attention`.
        bias: See `attention`; may need a gradient.
        scale: See `attention`.
        drop: Applied to the weights.
    """
    scores = (q * scale) @ swapaxes(k, axis1=-1, axis2=-2)
    if bias is not None:
        scores = scores + bias
    plain = scores.data if isinstance(scores, Tensor) else scores
    xp = namespace(plain)
    top = plain.max(axis=-1, keepdims=True)
    weights = np.exp(scores - xp.where(xp.isfinite(top), top, 0))
    total = weights.sum(axis=-1, keepdims=True)
    weights = weights / (total + (total == 0))
    if drop is not None:
        weights = drop(weights)
    return weights @ v, weights


@final
class _Attention(Function):
    """Of three inputs, or of one that holds all three."""

    @staticmethod
    def forward(ctx: FunctionContext, *args: Any) -> Any:
        bias, scale, wanted, *inputs = args
        q, k, v = _three(inputs)
        weights = None
        if wanted:
            weights = namespace(q).empty((*q.shape[:-1], k.shape[-2]), dtype=q.dtype)
        result, logarithms = kernels.attention_forward(q, k, v, bias, scale, weights)
        ctx.scale = scale  # type: ignore[attr-defined]
        ctx.save_for_backward(result, logarithms, bias, *inputs)
        return (result, weights) if wanted else result

    @staticmethod
    def backward(ctx: FunctionContext, *gradients: Any) -> Any:
        result, logarithms, bias, *inputs = ctx.saved_values
        scale = ctx.scale  # type: ignore[attr-defined]
        if any(isinstance(g, Tensor) for g in gradients):

            def body(*inputs: Any) -> Any:
                return attention_by_parts(*_three(inputs), bias, scale)[: len(gradients)]

            found = recorded_gradients(body, inputs, gradients, ctx.needs_input_grad[3:])
            return (None, None, None, *found)
        xp = namespace(result)
        g = xp.zeros_like(result) if gradients[0] is None else gradients[0]
        out = [xp.empty_like(x) for x in inputs]
        kernels.attention_backward(
            g, result, logarithms, _three(inputs), bias, scale, _three(out), *gradients[1:]
        )
        return (None, None, None, *out)


def _three(inputs: Sequence[Any]) -> tuple[Any, Any, Any]:
    q, k, v = inputs[0] if len(inputs) == 1 else inputs
    return q, k, v
