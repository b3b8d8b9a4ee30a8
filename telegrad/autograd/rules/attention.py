"""Attention as one node with a backward of its own, and as a composition.

attention           on the kernels, which keep no weights
attention_packed    the same of query, key and value in one array
attention_by_parts  of operations that have rules: with dropout, with the weights as a result,
                    and for gradients of gradients
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import numpy as np

from telegrad import kernels
from telegrad.arrays import namespace
from telegrad.autograd.function import Function, FunctionContext
from telegrad.autograd.ops import swapaxes
from telegrad.autograd.rules.by_composition import recorded_gradients
from telegrad.autograd.tensor import Tensor

__all__ = ["attention", "attention_by_parts", "attention_packed"]


def attention(q: Any, k: Any, v: Any, bias: Any, scale: float) -> Any:
    """Returns `softmax(scale * q @ k.T + bias) @ v`; a row that is masked as a whole reads zero.

    Args:
        q: Shape (..., queries, length).
        k: Shape (..., keys, length), with the same leading axes.
        v: Shape (..., keys, value length), with the same leading axes.
        bias: An array that broadcasts to (..., queries, keys), -inf where masked; None for none.
        scale: What the scores are multiplied with.

    Returns:
        Shape (..., queries, value length).
    """
    return _Attention.apply(q, k, v, bias, scale)


def attention_packed(packed: Any, bias: Any, scale: float) -> Any:
    """Returns `attention` of `packed[0]`, `packed[1]` and `packed[2]`."""
    return _Packed.apply(packed, bias, scale)


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
    @staticmethod
    def forward(ctx: FunctionContext, *args: Any) -> Any:
        q, k, v, bias, scale = args
        result, logarithms = kernels.attention_forward(q, k, v, bias, scale)
        ctx.scale = scale  # type: ignore[attr-defined]
        ctx.save_for_backward(result, logarithms, q, k, v, bias)
        return result

    @staticmethod
    def backward(ctx: FunctionContext, *gradients: Any) -> Any:
        (g,) = gradients
        result, logarithms, q, k, v, bias = ctx.saved_values
        scale = ctx.scale  # type: ignore[attr-defined]
        if isinstance(g, Tensor):

            def body(q: Any, k: Any, v: Any) -> Any:
                return attention_by_parts(q, k, v, bias, scale)[:1]

            found = recorded_gradients(body, (q, k, v), (g,), ctx.needs_input_grad[:3])
            return (*found, None, None)
        out = tuple(namespace(x).empty_like(x) for x in (q, k, v))
        kernels.attention_backward(
            g, result, logarithms, (q, k, v), bias, scale, (out[0], out[1], out[2])
        )
        return (*out, None, None)


@final
class _Packed(Function):
    @staticmethod
    def forward(ctx: FunctionContext, *args: Any) -> Any:
        packed, bias, scale = args
        result, logarithms = kernels.attention_forward(packed[0], packed[1], packed[2], bias, scale)
        ctx.scale = scale  # type: ignore[attr-defined]
        ctx.save_for_backward(result, logarithms, packed, bias)
        return result

    @staticmethod
    def backward(ctx: FunctionContext, *gradients: Any) -> Any:
        (g,) = gradients
        result, logarithms, packed, bias = ctx.saved_values
        scale = ctx.scale  # type: ignore[attr-defined]
        if isinstance(g, Tensor):

            def body(packed: Any) -> Any:
                return attention_by_parts(packed[0], packed[1], packed[2], bias, scale)[:1]

            return (*recorded_gradients(body, (packed,), (g,), (True,)), None, None)
        out = namespace(packed).empty_like(packed)
        inputs = (packed[0], packed[1], packed[2])
        kernels.attention_backward(
            g, result, logarithms, inputs, bias, scale, (out[0], out[1], out[2])
        )
        return out, None, None
