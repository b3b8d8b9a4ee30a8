"""Recurrent layers over whole sequences, forward and backward, on NumPy and CuPy arrays.

One step has little to compute, so everything that can be done for all steps at once is done outside
of the loop. Before the loop: the products of the inputs with their weights. After it: the products
for the gradients of weights and inputs. The loops, forward and backward, compute only
what depends on the previous step:

    forward     gates = x @ w_ih.T + bias           one product for each gate
                for each step: gates += h @ w_hh.T, then the cell
    backward    slopes of all gates                 elementwise, all steps at once
                for each step: slopes times the gradient of h, then that of the h before
                w_ih: gates.T @ x, w_hh: gates.T @ h, x: gates @ w_ih  one product for each gate

A logistic function is computed as `tanh(a / 2) / 2 + 1 / 2`, so one tanh serves all gates. The
weights contain the factor 1/2 of its argument, which is exact.

Gates are laid out one after the other, (gates, steps, batch, hidden), so that the computation of
one gate and step reads memory in order.

On CuPy arrays LSTM and GRU take two launches for each step and direction: one product with the
weights of all gates, and a kernel of `cuda/recurrent.cu`. There the layout is (steps, batch,
gates * hidden). The GPU computes a step faster than CuPy makes a view of it. So arguments are
checked once for all steps, and a step is launched with addresses.

Long short-term memory: Hochreiter and Schmidhuber (1997), with the forget gate of Gers et al.
(2000). Gated recurrent unit: Cho et al. (2014), with the reset gate after the product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from telegrad.arrays import Product, array_beside, computing_dtype, is_cupy, namespace
from telegrad.kernels.cuda import Kernel, blocks_for, check_operands, contiguous
from telegrad.types import Array


@dataclass(frozen=True, slots=True)
class Recurrence:
    """One kind of cell. Arrays of gates have the shape (gates, steps, batch, hidden).

    Attributes:
        logistic: One bool per gate: True for a logistic function, False for a tanh.
        bias_inside: True if the bias of the last gate's hidden product stays with that product.
        forward: A function of (gates, first states, w_hh, bias). Returns (h of all steps, last
            states, arrays kept for the backward). Overwrites the gates.
        backward: A function of (kept arrays, h of all steps, first states, w_hh, gradient of h of
            all steps, gradients of the last states). Returns the gradients of (the inputs'
            products, the states' products, the first states).
    """

    logistic: tuple[bool, ...]
    bias_inside: bool
    forward: Callable[..., Any]
    backward: Callable[..., Any]


def recurrence_forward(
    kind: str, x: Array, states: tuple[Array, ...], w_ih: Array, w_hh: Array, b_ih: Any, b_hh: Any
) -> tuple[Array, tuple[Array, ...], tuple[Array, ...]]:
    """Computes a layer over a sequence.

    Args:
        kind: A key of `RECURRENCES`.
        x: The inputs, shape (steps, batch, inputs).
        states: The first h, and the first c if the cell has one; shape (batch, hidden).
        w_ih: The weights of the inputs, shape (gates * hidden, inputs).
        w_hh: The weights of h, shape (gates * hidden, hidden).
        b_ih: The bias of the inputs' products, shape (gates * hidden,), or None.
        b_hh: The bias of the products with h, shape (gates * hidden,), or None.

    Returns:
        h of all steps, shape (steps, batch, hidden); the last states; and the arrays that the
        backward needs.

    Raises:
        ValueError: The arrays are on different devices, or one is misaligned.
    """
    h, *rest = states
    c = rest[0] if rest else None
    check_operands(kind, x=x, h=h, c=c, w_ih=w_ih, w_hh=w_hh, b_ih=b_ih, b_hh=b_hh)
    if is_cupy(x) and kind in _FORWARD:
        return _launch_forward(kind, x, states, w_ih, w_hh, b_ih, b_hh)
    cell = RECURRENCES[kind]
    hidden = w_hh.shape[1]
    inside: Any = None
    bias = b_ih
    if b_ih is not None and cell.bias_inside:
        inside = b_hh[-hidden:]
        bias = b_ih.copy()
        bias[:-hidden] += b_hh[:-hidden]
    elif b_ih is not None:
        bias = b_ih + b_hh
    halves = _per_gate(cell, 0.5, 1.0, w_hh)
    inner, outer = _by_gate(w_ih, hidden) * halves, _by_gate(w_hh, hidden) * halves
    gates: Any = _rows(x) @ inner.swapaxes(1, 2)
    if bias is not None:
        gates += bias.reshape(-1, 1, hidden) * halves
    gates = gates.reshape(len(gates), *x.shape[:2], hidden)
    # Copied into C order: with few rows, a product with a transposed matrix takes half as long
    # again.
    weights = outer.swapaxes(1, 2).copy()
    return cell.forward(gates, states, weights, inside)  # type: ignore[no-any-return]


def recurrence_backward(
    kind: str,
    kept: tuple[Array, ...],
    y: Array,
    x: Array,
    states: tuple[Array, ...],
    weights: tuple[Array, Array],
    gradients: tuple[Any, ...],
    *,
    needs_x: bool,
) -> tuple[Any, tuple[Any, ...], tuple[Array, Array, Array, Array]]:
    """Computes the gradients of `recurrence_forward`.

    Args:
        kind: The kind given to `recurrence_forward`.
        kept: The arrays that `recurrence_forward` returned for the backward.
        y: The h of all steps that `recurrence_forward` returned.
        x: The inputs given to `recurrence_forward`.
        states: The first states given to `recurrence_forward`.
        weights: `w_ih` and `w_hh`.
        gradients: The gradients of h of all steps and of each last state; None where there is none.
        needs_x: True if the inputs need a gradient.

    Returns:
        The gradients of `x` (None if it needs none), of the first states, and of the four weights.
    """
    if is_cupy(x) and kind in _BACKWARD:
        return _launch_backward(kind, kept, x, states, weights, gradients, needs_x=needs_x)
    cell = RECURRENCES[kind]
    hidden = y.shape[-1]
    inner, outer = (_by_gate(w, hidden) for w in weights)
    of_input, of_state, of_first = cell.backward(kept, y, states, outer, *gradients)
    flat = of_input.reshape(len(inner), -1, hidden)
    hidden_weights: Any = of_state[:, 0].swapaxes(1, 2) @ states[0]
    if len(y) > 1:
        later = of_state[:, 1:].reshape(len(inner), -1, hidden)
        hidden_weights += later.swapaxes(1, 2) @ _rows(y[:-1])
    of_x = None
    if needs_x:
        of_x = flat[0] @ inner[0]
        for k in range(1, len(inner)):
            of_x += flat[k] @ inner[k]
        of_x = of_x.reshape(x.shape)
    b_ih = _bias(flat, (1,))
    b_hh = b_ih if of_state is of_input else _bias(of_state, (1, 2))
    of_weights: Any = flat.swapaxes(1, 2) @ _rows(x)
    matrices = (of_weights.reshape(weights[0].shape), hidden_weights.reshape(weights[1].shape))
    return of_x, of_first, (*matrices, b_ih, b_hh)


def _bias(a: Any, axes: tuple[int, ...]) -> Any:
    total: Any = a.sum(axis=axes, dtype=computing_dtype(a.dtype))
    return total.ravel().astype(a.dtype, copy=False)


def _rows(a: Array) -> Any:
    return a.reshape(a.shape[0] * a.shape[1], a.shape[2])


def _by_gate(w: Array, hidden: int) -> Any:
    """Returns a view of shape (gates, hidden, n) of an array of shape (gates * hidden, n)."""
    return w.reshape(w.shape[0] // hidden, hidden, w.shape[1])


def _per_gate(cell: Recurrence, logistic: float, other: float, like: Any) -> Any:
    """Returns one number for each gate, shape (gates, 1, 1)."""
    numbers = [[[logistic if is_logistic else other]] for is_logistic in cell.logistic]
    return array_beside(numbers, like).astype(like.dtype)


def _before(of_state: Any, w_hh: Any) -> Any:
    """Returns the gradient of the previous h, given the gradient of the gates of a step."""
    return (of_state @ w_hh).sum(axis=0)


def _start(gradient: Any, like: Array) -> Any:
    """Returns a copy of the gradient to write into; zeros if there is no gradient."""
    return namespace(like).zeros_like(like) if gradient is None else gradient.copy()


# -- tanh and rectifier: h = f(gates) --------------------------------------------------------------


def _simple_forward(
    function: Callable[..., Any], gates: Any, states: Any, w_hh: Any, _: Any
) -> Any:
    (h,) = states
    for a in gates[0]:
        a += h @ w_hh[0]
        function(a)
        h = a
    return gates[0], (h.copy(),), ()


def _simple_backward(
    slope: Callable[..., Any], kept: Any, y: Any, states: Any, w_hh: Any, *g: Any
) -> Any:
    g_y, g_h = g
    products = slope(y)
    dh = _start(g_h, states[0])
    for t in range(len(y) - 1, -1, -1):
        if g_y is not None:
            dh += g_y[t]
        products[t] *= dh
        dh = products[t] @ w_hh[0]
    return products[None], products[None], (dh,)


def _tanh(a: Any) -> None:
    namespace(a).tanh(a, out=a)


def _rectify(a: Any) -> None:
    namespace(a).maximum(a, 0, out=a)


def _tanh_slope(y: Any) -> Any:
    slope = y * y
    return namespace(y).subtract(1, slope, out=slope)


def _rectifier_slope(y: Any) -> Any:
    return (y > 0).astype(y.dtype)


# -- long short-term memory: i, f, g, o; c = f * c + i * g; h = o * tanh(c) ------------------------


def _lstm_forward(gates: Any, states: Any, w_hh: Any, _: Any) -> Any:
    h, c = states
    scale, shift = (_per_gate(RECURRENCES["lstm"], 0.5, x, gates) for x in (1.0, 0.0))
    y = np.empty_like(gates[0])
    cells, bent = np.empty_like(y), np.empty_like(y)
    for t in range(len(y)):
        a = gates[:, t]
        a += h @ w_hh
        np.tanh(a, out=a)
        a *= scale
        a += shift
        i, f, g, o = a[0], a[1], a[2], a[3]
        new = cells[t]
        np.multiply(f, c, out=new)
        new += i * g
        np.tanh(new, out=bent[t])
        np.multiply(o, bent[t], out=y[t])
        h, c = y[t], new
    return y, (h.copy(), c.copy()), (gates, cells, bent)


def _lstm_backward(kept: Any, y: Any, states: Any, w_hh: Any, *g: Any) -> Any:
    gates, cells, bent = kept
    g_y, g_h, g_c = g
    slopes = gates * gates
    np.subtract(gates, slopes, out=slopes)  # a - a**2; the tanh gate needs 1 - a**2:
    slopes[2] -= gates[2] - 1
    slopes[0] *= gates[2]
    slopes[1, 1:] *= cells[:-1]
    slopes[1, 0] *= states[1]
    slopes[2] *= gates[0]
    slopes[3] *= bent
    to_cell = bent * bent
    np.subtract(1, to_cell, out=to_cell)
    to_cell *= gates[3]
    dh, dc = _start(g_h, states[0]), _start(g_c, states[1])
    for t in range(len(y) - 1, -1, -1):
        if g_y is not None:
            dh += g_y[t]
        d = slopes[:, t]
        d[3] *= dh
        dh *= to_cell[t]
        dc += dh
        d[:3] *= dc
        dc *= gates[1, t]
        dh = _before(d, w_hh)
    return slopes, slopes, (dh, dc)


# -- gated recurrent unit: r, z, n; n = tanh(gates + r * (h @ w)); h = n + z * (h - n) -------------


def _gru_forward(gates: Any, states: Any, w_hh: Any, bias: Any) -> Any:
    (h,) = states
    y = np.empty_like(gates[0])
    inner = np.empty_like(y)
    for t in range(len(y)):
        product = h @ w_hh
        two, r, z, n = gates[:2, t], gates[0, t], gates[1, t], gates[2, t]
        two += product[:2]
        np.tanh(two, out=two)
        two *= 0.5
        two += 0.5
        inner[t] = product[2]
        if bias is not None:
            inner[t] += bias
        n += r * inner[t]
        np.tanh(n, out=n)
        new = y[t]
        np.subtract(h, n, out=new)
        new *= z
        new += n
        h = new
    return y, (h.copy(),), (gates, inner)


def _gru_backward(kept: Any, y: Any, states: Any, w_hh: Any, *g: Any) -> Any:
    gates, inner = kept
    g_y, g_h = g
    r, z, n = gates[0], gates[1], gates[2]
    slopes = gates * gates
    np.subtract(gates, slopes, out=slopes)
    slopes[2] -= n - 1
    slopes[2] *= 1 - z
    slopes[0] *= inner
    slopes[1, 1:] *= y[:-1] - n[1:]
    slopes[1, 0] *= states[0] - n[0]
    of_state = np.empty_like(slopes)
    dh = _start(g_h, states[0])
    for t in range(len(y) - 1, -1, -1):
        if g_y is not None:
            dh += g_y[t]
        d, s = slopes[:, t], of_state[:, t]
        d[1:] *= dh
        d[0] *= d[2]
        s[:2] = d[:2]
        s[2] = d[2] * r[t]
        dh *= z[t]
        dh += _before(s, w_hh)
    return slopes, of_state, (dh,)


# fmt: off
RECURRENCES: Final[dict[str, Recurrence]] = {
    "rnn_tanh": Recurrence((False,), False, partial(_simple_forward, _tanh),
                           partial(_simple_backward, _tanh_slope)),
    "rnn_relu": Recurrence((False,), False, partial(_simple_forward, _rectify),
                           partial(_simple_backward, _rectifier_slope)),
    "gru":      Recurrence((True, True, False),       True,  _gru_forward,  _gru_backward),
    "lstm":     Recurrence((True, True, False, True), False, _lstm_forward, _lstm_backward),
}
# fmt: on


# -- LSTM and GRU on CuPy arrays: a product and a kernel for each step -----------------------------

_FORWARD: Final = {kind: Kernel("recurrent", f"{kind}_forward") for kind in ("lstm", "gru")}
_BACKWARD: Final = {kind: Kernel("recurrent", f"{kind}_backward") for kind in ("lstm", "gru")}


def _given(array: Any, dtype: Any) -> Any:
    return None if array is None else contiguous(array.astype(dtype, copy=False))


def _how(h: Any) -> dict[str, Any]:
    batch, hidden = h.shape
    return {"blocks": (blocks_for(hidden, 128), min(batch, 65535)), "threads": 128, "ITEM": h.dtype}


def _address(array: Any) -> int:
    return 0 if array is None else int(array.data.ptr)


def _product(a: Any, b: Any, dtype: Any) -> Callable[[int, int], None]:
    """Returns a function that launches products of arrays like `a` with `b`, by their addresses."""
    if not a.size:
        return lambda *_: None
    return Product(a, b.astype(dtype, copy=False)).launch


def _launch_forward(
    kind: str, x: Any, states: Any, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any
) -> tuple[Any, Any, Any]:
    xp, steps, (batch, hidden) = namespace(x), len(x), states[0].shape
    gates = (_rows(x) @ w_ih.T).reshape(steps, batch, len(w_ih))
    dtype = gates.dtype  # of a product; all else is cast to it
    every = xp.empty((steps + 1, batch, hidden), dtype)  # h before and after each step
    other = xp.empty((steps, batch, hidden), dtype)  # the cells, or the inner products
    products = xp.empty((batch, len(w_ih)), dtype)
    last = tuple(xp.empty((batch, hidden), dtype) for _ in states)
    biases = [_given(each, dtype) for each in (b_ih, b_hh)]
    first = [_given(each, dtype) for each in states]
    arrays = gates, products, *biases, *first, every, other, every, *last
    run, _ = _FORWARD[kind].prepare(*arrays, batch, hidden, **_how(first[0]))
    multiply = _product(first[0], w_hh.T, dtype)
    at_gates, at_products, *at_biases = map(_address, (gates, products, *biases))
    at_every, at_other, *at_last = map(_address, (every, other, *last))
    h, *rest = map(_address, first)
    wide, step = gates.strides[0], every.strides[0]
    for t in range(steps):
        after, own = at_every + (t + 1) * step, at_other + t * step
        ends = (0 if t else at_every, *(at_last if t == steps - 1 else [0] * len(last)))
        multiply(h, at_products)
        place = at_gates + t * wide
        run((place, at_products, *at_biases, h, *rest, after, own, *ends, batch, hidden))
        h, rest = after, [own] if rest else []
    return every[1:], last, (gates, other, every)


def _launch_backward(
    kind: str, kept: Any, x: Any, states: Any, weights: Any, gradients: Any, *, needs_x: bool
) -> tuple[Any, Any, Any]:
    gates, other, every = kept
    w_ih, w_hh = weights
    xp, steps = namespace(x), len(x)
    batch, hidden = every.shape[1:]
    g_y, *g_last = [_given(g, gates.dtype) for g in gradients]
    # Of the states: what comes by the product and what comes by the cell, or by z.
    given_h, given_c = g_last if len(g_last) > 1 else (g_last[0], None)
    of_input = xp.empty_like(gates)
    of_state = of_input if kind == "lstm" else xp.empty_like(gates)
    of_h, before = xp.empty_like(every[0]), xp.empty_like(every[0])
    first_c = _given(states[1], gates.dtype) if kind == "lstm" else None
    own = (other, other) if kind == "lstm" else (other, every)
    made = (of_input,) if kind == "lstm" else (of_input, of_state)
    arrays = gates, *own, g_y, given_h, given_c, *made, before
    run, _ = _BACKWARD[kind].prepare(*arrays, batch, hidden, **_how(before))
    multiply = _product(of_state[0], w_hh, gates.dtype)
    wide, step = of_state.strides[0], every.strides[0]
    parts = gates, other, every, g_y, of_input, of_state
    at_gates, at_other, at_every, at_y, at_input, at_state = map(_address, parts)
    through, carried, at_first, at_h, at_before = map(
        _address, (given_h, given_c, first_c, of_h, before)
    )
    for t in range(steps - 1, -1, -1):
        here = at_other + t * step
        upstream = (at_y and at_y + t * step, through, carried)
        places: tuple[int, ...] = (at_input + t * wide,)
        if kind == "lstm":
            pair = (here - step if t else at_first, here)
        else:
            pair = (here, at_every + t * step)
            places = (*places, at_state + t * wide)
        run((at_gates + t * wide, *pair, *upstream, *places, at_before, batch, hidden))
        multiply(at_state + t * wide, at_h)
        through, carried = at_h, at_before
    flat, flat_state = _rows(of_input), _rows(of_state)
    of_w = flat.T @ _rows(x), flat_state.T @ _rows(every[:-1])
    b_ih = flat.sum(axis=0)
    b_hh = b_ih if kind == "lstm" else flat_state.sum(axis=0)
    of_first = (of_h, before) if kind == "lstm" else (of_h + before,)
    of_x = (flat @ w_ih).reshape(x.shape) if needs_x else None
    return of_x, of_first, (*of_w, b_ih, b_hh)
