"""Attention and recurrent layers, each as one node with its own backward and as a composition.

attention           uses the kernels, which keep no weights for the gradient
attention_by_parts  uses operations that have rules: for dropout, for a mask that is trained, and
                    for gradients of gradients
recurrence          uses the kernels; its backward computes with arrays
recurrence_by_steps uses operations that have rules: for gradients of gradients
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from telegrad import kernels
from telegrad.arrays import is_cupy, namespace
from telegrad.autograd.graph.autocast import cast_as
from telegrad.autograd.graph.function import Function, FunctionContext
from telegrad.autograd.ops.elementwise import relu, sigmoid
from telegrad.autograd.ops.layers import dropout, recorded_gradients
from telegrad.autograd.ops.shape import stack, swapaxes
from telegrad.autograd.tensor.tensor import Tensor, array_of


def attention(
    q: Any,
    k: Any,
    v: Any,
    bias: Any,
    scale: float,
    *,
    weights: bool = False,
    causal: bool = False,
    seed: int = 0,
    p: float = 0.0,
) -> tuple[Any, Any]:
    """Returns `softmax(scale * q @ k.T + bias) @ v`, and the softmax if `weights` is True.

    The result of a row whose keys are all masked is zero.

    Args:
        q: Queries, shape (..., queries, length).
        k: Keys, shape (..., keys, length), with the same leading axes.
        v: Values, shape (..., keys, value length), with the same leading axes.
        bias: An array or Tensor that broadcasts to (..., queries, keys), -inf where masked; None
            for none. A Tensor may need a gradient.
        scale: The factor of the scores.
        weights: True to return the softmax, too.
        causal: True to let each query read only keys up to its own number.
        seed: The key of the mask of dropout.
        p: The probability with which a weight is dropped.

    Returns:
        The result, shape (..., queries, value length); and the softmax, shape (..., queries, keys),
        or None.
    """
    q, k, v, bias = cast_as("attention", q, k, v, bias)
    how: Any = {"causal": causal, "seed": seed, "p": p}
    if isinstance(bias, Tensor) or (p and not is_cupy(array_of(q))):
        return attention_by_parts(q, k, v, bias, scale, **how)
    found = _Attention.apply(bias, (scale, weights, how), q, k, v)
    return found if weights else (found, None)


def attention_by_parts(
    q: Any, k: Any, v: Any, bias: Any, scale: float, *, causal: bool, seed: int, p: float
) -> tuple[Any, Any]:
    """Returns the result of `attention`, and the weights, shape (..., queries, keys).

    The arguments are those of `attention`.
    """
    if causal:
        later = kernels.causal_bias(array_of(q), q.shape[-2], k.shape[-2])
        bias = later if bias is None else bias + later
    scores = (q * scale) @ swapaxes(k, axis1=-1, axis2=-2)
    if bias is not None:
        scores = scores + bias
    plain = array_of(scores)
    xp = namespace(plain)
    top = plain.max(axis=-1, keepdims=True)
    weights = np.exp(scores - xp.where(xp.isfinite(top), top, 0))
    total = weights.sum(axis=-1, keepdims=True)
    weights = weights / (total + (total == 0))
    if p:
        weights = dropout(weights, key=seed, p=p)
    return weights @ v, weights


@final
class _Attention(Function):
    """Attention as one node; its inputs are q, k and v, or one array that holds all three."""

    @staticmethod
    def forward(ctx: FunctionContext, *args: Any) -> Any:
        bias, (scale, wanted, how), q, k, v = args
        weights = None
        if wanted:
            weights = namespace(q).empty((*q.shape[:-1], k.shape[-2]), dtype=q.dtype)
        result, logarithms = kernels.attention_forward(q, k, v, bias, scale, weights, **how)
        ctx.scale, ctx.how = scale, how  # type: ignore[attr-defined]
        ctx.save_for_backward(result, logarithms, bias, q, k, v)
        return (result, weights) if wanted else result

    @staticmethod
    def backward(ctx: FunctionContext, *gradients: Any) -> Any:
        result, logarithms, bias, *inputs = ctx.saved_values
        scale, how = ctx.scale, ctx.how  # type: ignore[attr-defined]
        if any(isinstance(g, Tensor) for g in gradients):

            def body(q: Any, k: Any, v: Any) -> Any:
                return attention_by_parts(q, k, v, bias, scale, **how)[: len(gradients)]

            found = recorded_gradients(body, inputs, gradients, ctx.needs_input_grad[2:])
            return (None, None, *found)
        xp = namespace(result)
        g = xp.zeros_like(result) if gradients[0] is None else gradients[0]
        given = (g, result, logarithms, tuple(inputs), bias, scale, *gradients[1:])
        return (None, None, *kernels.attention_backward(*given, **how))


# -- recurrent layers over a sequence ------------------------------------------------------------


def recurrence(
    kind: str,
    x: Any,
    states: tuple[Any, ...],
    w_ih: Any,
    w_hh: Any,
    b_ih: Any = None,
    b_hh: Any = None,
    *,
    reverse: bool = False,
) -> tuple[Any, ...]:
    """Returns the output of one recurrent layer for a sequence.

    Args:
        kind: `rnn_tanh`, `rnn_relu`, `gru` or `lstm`.
        x: The inputs, shape (steps, batch, inputs), with at least one step.
        states: The first h, and the first c of an LSTM; shape (batch, hidden).
        w_ih: The weights of the inputs, shape (gates * hidden, inputs).
        w_hh: The weights of h, shape (gates * hidden, hidden).
        b_ih: The bias of the inputs' products, shape (gates * hidden,), or None.
        b_hh: The bias of the products with h, shape (gates * hidden,), or None.
        reverse: True to run from the last step to the first.

    Returns:
        h of all steps, shape (steps, batch, hidden), and the last states.
    """
    c = states[1] if len(states) > 1 else None
    arrays = cast_as("recurrence", x, states[0], c, w_ih, w_hh, b_ih, b_hh)
    outputs: tuple[Any, ...] = _Recurrence.apply(kind, reverse, *arrays)
    return outputs


def recurrence_by_steps(
    kind: str, x: Any, states: tuple[Any, ...], weights: Sequence[Any], *, reverse: bool
) -> tuple[Any, ...]:
    """Returns the result of `recurrence`, computed with one operation for each sum and product.

    The `weights` are `w_ih, w_hh, b_ih, b_hh`; the other arguments are those of `recurrence`.
    """
    w_ih, w_hh, b_ih, b_hh = weights
    steps = []
    for t in range(len(x)):
        inputs = x[len(x) - 1 - t if reverse else t] @ w_ih.T
        products = states[0] @ w_hh.T
        if b_ih is not None:
            inputs, products = inputs + b_ih, products + b_hh
        states = _STEPS[kind](inputs, products, states)
        steps.append(states[0])
    return (stack(*(steps[::-1] if reverse else steps), axis=0), *states)


def _lstm_step(inputs: Any, products: Any, states: tuple[Any, ...]) -> tuple[Any, ...]:
    i, f, g, o = _parts(inputs + products, 4)
    c = sigmoid(f) * states[1] + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def _gru_step(inputs: Any, products: Any, states: tuple[Any, ...]) -> tuple[Any, ...]:
    (r, z, n), (with_r, with_z, with_n) = _parts(inputs, 3), _parts(products, 3)
    r, z = sigmoid(r + with_r), sigmoid(z + with_z)
    n = np.tanh(n + r * with_n)
    return (n + z * (states[0] - n),)


def _parts(a: Any, count: int) -> list[Any]:
    hidden = a.shape[-1] // count
    return [a[..., k * hidden : (k + 1) * hidden] for k in range(count)]


# fmt: off
_STEPS = {
    "rnn_tanh": lambda inputs, products, states: (np.tanh(inputs + products),),
    "rnn_relu": lambda inputs, products, states: (relu(inputs + products),),
    "gru":      _gru_step,
    "lstm":     _lstm_step,
}
# fmt: on


@final
class _Recurrence(Function):
    """`recurrence` as one node, with all arrays as positional arguments."""

    @staticmethod
    def forward(ctx: FunctionContext, *args: Any) -> Any:
        kind, reverse, x, h, c, *weights = args
        states = (h,) if c is None else (h, c)
        y, last, kept = kernels.recurrence_forward(
            kind, x[::-1] if reverse else x, states, *weights
        )
        y = y[::-1] if reverse else y
        ctx.kind, ctx.reverse = kind, reverse  # type: ignore[attr-defined]
        ctx.save_for_backward(y, x, h, c, *weights, *kept)
        return (y, *last)

    @staticmethod
    def backward(ctx: FunctionContext, *gradients: Any) -> Any:
        kind, reverse = ctx.kind, ctx.reverse  # type: ignore[attr-defined]
        y, x, h, c, w_ih, w_hh, b_ih, b_hh, *kept = ctx.saved_values
        if any(isinstance(g, Tensor) for g in gradients):

            def body(x: Any, h: Any, c: Any, *weights: Any) -> Any:
                states = (h,) if c is None else (h, c)
                return recurrence_by_steps(kind, x, states, weights, reverse=reverse)

            inputs = (x, h, c, w_ih, w_hh, b_ih, b_hh)
            needs = ctx.needs_input_grad[2:]
            return (None, None, *recorded_gradients(body, inputs, gradients, needs))
        states = (h,) if c is None else (h, c)
        g_y, *others = gradients
        if reverse:
            y, x, g_y = y[::-1], x[::-1], None if g_y is None else g_y[::-1]
        of_x, of_first, of_weights = kernels.recurrence_backward(
            kind,
            tuple(kept),
            y,
            x,
            states,
            (w_ih, w_hh),
            (g_y, *others),
            needs_x=ctx.needs_input_grad[2],
        )
        if reverse and of_x is not None:
            of_x = of_x[::-1]
        of_c = of_first[1] if c is not None else None
        return (None, None, of_x, of_first[0], of_c, *of_weights)
