"""Operations of neural networks: activations, losses, normalisation, convolution, pooling.

At a kink, the slope is that of the side on which it is zero, or else of the left side; this is
PyTorch's choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from telegrad import kernels
from telegrad.arrays import array_beside, computing_dtype, is_floating, namespace
from telegrad.autograd.differentiate import grad
from telegrad.autograd.extend import Operation, primitive
from telegrad.autograd.graph.grad_mode import enable_grad
from telegrad.autograd.ops.elementwise import (
    absolute,
    clip,
    exp,
    log,
    maximum,
    sigmoid,
    sqrt,
    tanh,
    where,
)
from telegrad.autograd.ops.reduction import reduce_sum
from telegrad.autograd.ops.shape import reshape, scatter
from telegrad.autograd.tensor.row_sparse import RowSparse
from telegrad.autograd.tensor.tensor import Tensor, array_of, steady
from telegrad.types import Array, Shape

_PEAK: Final = 1 / math.sqrt(2 * math.pi)
_SCALE: Final = math.sqrt(2 / math.pi)
_CUBE: Final = 0.044715
_FAR: Final = 1000.0  # tails are 0 there, and infinities would make NaN of them


def _elu(a: Any, *, alpha: float = 1.0, scale: float = 1.0) -> Any:
    xp = namespace(a)
    made = xp.expm1(xp.minimum(a, 0)) * alpha + xp.maximum(a, 0)
    return made if scale == 1.0 else made * scale


def _softplus(a: Any) -> Any:
    xp = namespace(a)
    return xp.log1p(xp.exp(-xp.abs(a))) + xp.maximum(a, 0)  # never overflows


def _silu(a: Any) -> Array:
    # a / (1 + exp(-a)), with exponentials of negative numbers only, never overflows.
    xp = namespace(a)
    made: Any = xp.asarray(xp.exp(-xp.abs(a)))
    made += 1
    xp.divide(xp.maximum(a, -_FAR), made, out=made)
    made *= xp.exp(xp.minimum(a, 0))
    return made  # type: ignore[no-any-return]


def _silu_slope(a: Any) -> Any:
    near = clip(a, low=-_FAR, high=_FAR)
    share = sigmoid(near)
    return share * (1 + near * (1 - share))


def _softsign(a: Any) -> Any:
    xp = namespace(a)
    if is_floating(a.dtype):  # an infinity becomes the largest number
        kind = a.dtype.type
        most = np.nextafter(kind(np.inf), kind(0))
        a = xp.minimum(xp.maximum(a, -most), most)
    return a / (xp.abs(a) + 1)


def _softsign_slope(g: Any, a: Any) -> Any:
    size = absolute(a) + 1
    return g / size / size  # a square could overflow


def _mish(a: Any) -> Any:
    xp = namespace(a)
    made: Any = xp.tanh(_softplus(a))
    made *= xp.maximum(a, -_FAR)
    return made


def _mish_slope(a: Any) -> Any:
    near = clip(a, low=-_FAR, high=_FAR)
    gate = tanh(softplus(near))
    return gate + near * (1 - gate * gate) * sigmoid(near)


def _bend(x: Any, approximate: str) -> Any:
    """Returns the second derivative of GELU."""
    x = clip(x, low=-20.0, high=20.0)  # beyond it is 0, and float16 has no larger cubes
    square = x * x
    if approximate != "tanh":
        return exp(square * -0.5) * (2 - square) * _PEAK
    t = tanh(x * (1 + square * _CUBE) * _SCALE)
    slope = (1 + square * (3 * _CUBE)) * _SCALE
    curve = x * (6 * _CUBE * _SCALE)
    return (1 - t * t) * (slope + 0.5 * x * (curve - 2 * t * slope * slope))


def _of_gated(g: Any, x: Any, dim: int, gate: str) -> Any:
    if not any(isinstance(each, Tensor) for each in (g, x)):
        return kernels.gated_gradient(g, x, dim=dim, gate=gate)

    def by_parts(x: Any) -> Any:
        first, second = np.split(x, 2, axis=dim)
        return (first * _GATES[gate](second),)

    return recorded_gradients(by_parts, [x], [g], [True])[0]


_FORM: Final = {"approximate": "none"}

# fmt: off
leaky_relu   = primitive(
    "leaky_relu", lambda a, *, slope=0.01: namespace(a).where(a > 0, a, a * slope), "a",
    options={"slope": 0.01}, a=lambda g, a, slope: where(a > 0, g, g * slope))
elu          = primitive(
    "elu", _elu, "a", options={"alpha": 1.0, "scale": 1.0},
    a=lambda g, a, alpha, scale:
        g * where(a > 0, scale, alpha * scale * exp(where(a > 0, 0.0, a))))
hardtanh     = primitive(
    "hardtanh", lambda a, *, low=-1.0, high=1.0: namespace(a).clip(a, low, high), "a",
    options={"low": -1.0, "high": 1.0}, a=lambda g, a, low, high: g * ((a > low) & (a < high)))
softplus     = primitive("softplus",     _softplus,     "a", a=lambda g, a: g * sigmoid(a))
silu         = primitive("silu", _silu, "a",
                         a=lambda g, a: g * _silu_slope(a))
mish         = primitive("mish", _mish, "a", a=lambda g, a: g * _mish_slope(a))
softsign     = primitive("softsign", _softsign, "a", a=_softsign_slope)
gelu         = primitive("gelu", kernels.gelu, "x", options=_FORM,
                         x=lambda g, x, approximate: gelu_slope(g, x, approximate=approximate))
gelu_slope: Operation = primitive(
    "gelu_slope", lambda b, x, **form: kernels.gelu_slope(x, b, **form), "b x", options=_FORM,
    b=lambda g, x, approximate: gelu_slope(g, x, approximate=approximate),
    x=lambda g, b, x, approximate: g * b * _bend(x, approximate))
# The first half along an axis times a function of the second half.
gated        = primitive("glu", kernels.gated, "x", options={"dim": -1, "gate": "sigmoid"},
                         x=lambda g, x, dim, gate: _of_gated(g, x, dim, gate))
_GATES: Final[Mapping[str, Callable[[Any], Any]]] = {
    "gelu": gelu, "gelu_tanh": partial(gelu, approximate="tanh"), "silu": silu, "sigmoid": sigmoid}
dropout: Operation = primitive(
    "dropout", kernels.dropout, "x", options={"key": 0, "p": 0.5},
    x=lambda g, key, p: dropout(g, key=key, p=p))
# fmt: on


# -- the linear layer: one operation that merges all leading axes into one matrix product ---------
#
# Written as `x @ weight.T + bias`, its backward would multiply the matrices of a batch one by one
# and add up the products. The gradient of the weight would also come transposed, so that optimizers
# read it against the order of memory.


def _linear(x: Any, weight: Any, bias: Any) -> Any:
    y = (x if x.ndim == 2 else _rows(x)) @ weight.T
    if bias is not None and bias.dtype == y.dtype:
        y += bias
    elif bias is not None:
        y = y + bias
    if x.dtype.kind == "V" and x.dtype == weight.dtype == (x if bias is None else bias).dtype:
        y = y.astype(x.dtype)  # NumPy multiplies matrices of bfloat16 in float32
    return y if x.ndim == 2 else y.reshape(*x.shape[:-1], len(weight))


def _rows(a: Any) -> Any:
    """Returns `a` as a matrix that keeps the last axis."""
    return a if a.ndim == 2 else reshape(a, to=(math.prod(a.shape[:-1]), a.shape[-1]))


def _of_x(g: Any, weight: Any) -> Any:
    if g.ndim == 2:
        return g @ weight
    return reshape(_rows(g) @ weight, to=(*g.shape[:-1], weight.shape[1]))


def _of_weight(g: Any, x: Any) -> Any:
    return g.T @ x if g.ndim == 2 else _rows(g).T @ _rows(x)


def _of_bias(g: Any) -> Any:
    rows = g if g.ndim == 2 else _rows(g)
    return rows.sum(0) if g.itemsize >= 4 else rows.sum(0, dtype=computing_dtype(g.dtype))


# fmt: off
# x: (..., m), weight: (n, m), bias: (n,) or None. The result `x @ weight.T + bias` is (..., n).
linear = primitive("linear", _linear, "x weight bias", complex_rule="holomorphic",
                   x=_of_x,
                   weight=_of_weight,
                   bias=_of_bias)
# fmt: on


# -- losses --------------------------------------------------------------------------------------

# PyTorch's limits: the least logarithm of a probability (that of 0), and the least p * (1 - p).
_LEAST_LOG: Final = -100.0
_LEAST_PROBABILITY: Final = float(np.exp(_LEAST_LOG))
_LEAST_VARIANCE: Final = 1e-12


def _least(number: float, p: Any) -> float:
    """Returns `number`, or the least positive number of the dtype of `p` if that is larger."""
    exact = p.dtype.type
    return float(max(exact(number), np.nextafter(exact(0), exact(1))))


def _binary_cross_entropy(p: Any, t: Any) -> Array:
    xp = namespace(p, t)
    with np.errstate(divide="ignore"):
        yes, no = xp.log(p), xp.log1p(-p)
    losses: Array = -(t * xp.maximum(yes, _LEAST_LOG) + (1 - t) * xp.maximum(no, _LEAST_LOG))
    return losses


def _log_odds(p: Any) -> Any:
    least = _least(_LEAST_PROBABILITY, p)
    return log(maximum(p, least)) - log(maximum(1 - p, least))


def _of_logits(x: Any, t: Any, w: Any) -> Array:
    # t w softplus(-x) + (1 - t) softplus(x), where softplus(x) is log(1 + exp(-|x|)) + max(x, 0).
    # It never overflows, small losses do not cancel, and an infinite x times 0 is 0.
    xp = namespace(x, t)
    yes, no = (t if w is None else t * w), 1 - t
    size, wrong = xp.abs(x), xp.where(x < 0, yes, no)
    rest = xp.log1p(xp.exp(-size))
    losses: Array = xp.where(wrong == 0, 0, size) * wrong
    losses += rest if w is None else rest * (yes + no)
    return losses


def _of_logit(g: Any, x: Any, t: Any, w: Any) -> Any:
    # Not sigmoid(x) - t, whose small values cancel.
    yes = t if w is None else t * w
    return g * ((1 - t) * sigmoid(x) - yes * sigmoid(-x))


def _of_target(g: Any, x: Any, w: Any) -> Any:
    return -g * x if w is None else g * (w * softplus(-x) - softplus(x))


def _of_positive(g: Any, x: Any, t: Any) -> Any:
    return g * (t * where(t == 0, 0.0, softplus(-x)))


def _huber(z: Any, *, delta: float = 1.0) -> Array:
    xp = namespace(z)
    size = xp.abs(z)
    near = xp.minimum(size, delta)
    losses: Any = near * -0.5
    losses += size
    losses *= near
    return losses  # type: ignore[no-any-return]


def _picked(a: Any, labels: Any) -> Array:
    chosen: Any = namespace(a).take_along_axis(a, labels[..., None], axis=-1)
    return chosen[..., 0]  # type: ignore[no-any-return]


def _returned(g: Any, labels: Any, classes: int) -> Any:
    return g[..., None] * kernels.one_hot(array_of(labels), classes=classes, dtype=g.dtype)


# fmt: off
binary_cross_entropy = primitive(
    "binary_cross_entropy", _binary_cross_entropy, "p t",
    p=lambda g, p, t: g * (p - t) / maximum(p * (1 - p), _least(_LEAST_VARIANCE, p)),
    t=lambda g, p: -g * _log_odds(p))
cross_entropy_of_logits = primitive("binary_cross_entropy_with_logits", _of_logits, "x t w",
                                    x=_of_logit, t=_of_target, w=_of_positive)
huber                = primitive("huber", _huber, "z", options={"delta": 1.0},
                                 z=lambda g, z, delta: g * clip(z, low=-delta, high=delta))
# The values `a[..., label]` along the last axis.
picked               = primitive("picked", _picked, "a labels",
                                 a=lambda g, labels, shape: _returned(g, labels, shape[-1]))
# fmt: on


# -- normalisation to mean 0 and variance 1, one function for all layers --------------------------
#
# The formulas are those of J. L. Ba, J. R. Kiros and G. E. Hinton, "Layer normalization" (2016). On
# arrays each gradient is a kernel. A gradient that is recorded uses functions that have rules.

_OPTIONS: Final = {"over": 1, "eps": 1e-5, "centred": True}


def _axes(ndim: int, over: kernels.Over) -> tuple[int, ...]:
    if over is None:
        return (0, *range(2, ndim))
    return tuple(range(2 if over == "groups" else ndim - over, ndim))


def _beside(part: Any, ndim: int, over: kernels.Over) -> Any:
    """Returns a weight in the shape that broadcasts against its factor."""
    if over == "groups":
        return reshape(part, to=(*part.shape, *[1] * (ndim - 3)))
    return reshape(part, to=(-1, *[1] * (ndim - 2))) if over is None else part


def _by_parts(over: kernels.Over, eps: float, centred: bool, x: Any, weight: Any = None) -> Any:
    axes, wide = _axes(x.ndim, over), x.astype(computing_dtype(x.dtype))
    centre = wide - wide.mean(axes, keepdims=True) if centred else wide
    y = centre / sqrt((centre * centre).mean(axes, keepdims=True) + eps)
    return (y if weight is None else y * _beside(weight, x.ndim, over),)


def _of_input(
    g: Any, x: Any, scale: Any, mean: Any, weight: Any, over: Any, eps: float, centred: Any
) -> Any:
    """Returns the gradients of `x` and, if there is one, of the weight."""
    if g[0] is None:
        return None
    how = {"over": over, "centred": centred}
    inputs = [x] if weight is None else [x, weight]
    if not any(isinstance(each, Tensor) for each in (g[0], *inputs)):
        parameters = weight is not None
        return kernels.normalize_gradients(
            g[0], x, mean, scale, weight, **how, parameters=parameters
        )
    needs = [isinstance(each, Tensor) and each.requires_grad for each in inputs]
    return recorded_gradients(partial(_by_parts, over, eps, centred), inputs, g[:1], needs)


def _bias(g: Any, over: Any) -> Any:
    if g is None:
        return None
    if over == "groups":
        axes = (0, *range(3, g.ndim))
    else:
        axes = _axes(g.ndim, over) if over is None else tuple(range(g.ndim - over))
    return reduce_sum(g, axis=axes, dtype=computing_dtype(g.dtype))


def _affine(x: Any, weight: Any, bias: Any) -> Any:
    y: Any = x * weight.reshape(-1, *[1] * (x.ndim - 2))
    y += bias.reshape(-1, *[1] * (x.ndim - 2))
    return y


# fmt: off
normalize = primitive(
    "normalize", kernels.normalize, "x", arrays="weight bias", outputs="y scale mean variance",
    options=_OPTIONS,
    x=_of_input, weight=lambda g, x, scale, mean, weight, over, eps, centred:
        (_of_input(g, x, scale, mean, weight, over, eps, centred) or [])[1:],
    bias=lambda g, over: _bias(g[0], over))
# `x * weight + bias` with one number per channel, the second axis.
affine    = primitive("affine", _affine, "x weight bias",
                      x=lambda g, x, weight: g * _beside(weight, x.ndim, None),
                      weight=lambda g, x: _bias(g * x, None),
                      bias=lambda g: _bias(g, None))
# fmt: on


# -- rows of a table, chosen by integers; the gradient is dense, or `RowSparse` on request --------


def _rows_of(weight: Any, *, indices: Any, padding_idx: Any, sparse: bool) -> Array:
    rows: Array = weight[indices]
    return rows


def _kept(g: Any, indices: Array, padding_idx: int | None) -> Any:
    """Returns `g` with zeros where `indices` name `padding_idx`, the row without a gradient."""
    if padding_idx is None:
        return g
    present = (indices != padding_idx).reshape(*indices.shape, *(1,) * (g.ndim - indices.ndim))
    return where(present, g, 0.0)


def _of_rows(g: Any, indices: Array, shape: Shape, padding_idx: int | None, sparse: bool) -> Any:
    if isinstance(g, Tensor):
        return scatter(_kept(g, indices, padding_idx), index=indices, into=shape)
    if not sparse:
        return kernels.add_rows(g, indices, shape, ignored=padding_idx)
    rows = indices.ravel()
    values = g.reshape(rows.size, *shape[1:])
    if padding_idx is not None:
        kept = rows != padding_idx
        rows, values = rows[kept], values[kept]
    return RowSparse(rows, values, shape)


# fmt: off
_choose: Operation = primitive(
    "embedding", _rows_of, "weight", complex_rule="own",
    options={"indices": (), "padding_idx": None, "sparse": False},
    weight=lambda g, shape, indices, padding_idx, sparse:
        _of_rows(g, indices, shape, padding_idx, sparse))
# fmt: on


def embedding(
    weight: Any, indices: Any, *, padding_idx: int | None = None, sparse: bool = False
) -> Any:
    """Returns the rows of `weight` that `indices` name.

    Args:
        weight: The table: an array or Tensor with at least one axis.
        indices: Integers from 0, of any shape: an array, a Tensor, a list.
        padding_idx: A row that gets no gradient; None for none.
        sparse: True to make the gradient of a leaf a `RowSparse`, unless that gradient is recorded
            (`create_graph`). A gradient that goes on to another operation is an array.

    Returns:
        An array or Tensor of shape `(*indices.shape, *weight.shape[1:])`, in the dtype of `weight`.

    Raises:
        TypeError: `indices` are not integers.
        IndexError: An index names no row. On a GPU this is not checked.

    >>> from telegrad.autograd import tensor
    >>> table = tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    >>> embedding(table, [1, 1, 0], sparse=True).sum().backward()
    >>> table.grad
    RowSparse(rows=[1 1 0], shape=(2, 2), dtype=float64)
    """
    chosen = _checked(indices, array_of(weight))
    if padding_idx is not None and padding_idx < 0:
        padding_idx += len(weight)
    if not isinstance(weight, Tensor):
        return _rows_of(weight, indices=chosen, padding_idx=padding_idx, sparse=sparse)
    with steady(weight):
        return _choose(weight, indices=chosen, padding_idx=padding_idx, sparse=sparse)


def _checked(indices: Any, table: Array) -> Array:
    """Returns a copy of `indices`, because the gradient needs them as they are now."""
    given = array_beside(array_of(indices), table)
    if given.dtype.kind not in "iu" and given.size:
        raise TypeError(f"rows are named by integers, not by {given.dtype}")
    chosen: Array = namespace(given).array(given, dtype=np.int64)
    if namespace(chosen) is np and chosen.size:
        low, high = int(chosen.min()), int(chosen.max())
        if low < 0 or high >= len(table):
            raise IndexError(
                f"rows from {low} to {high} of a table with rows from 0 to {len(table) - 1}"
            )
    return chosen


# -- pooling over windows of the last two axes ---------------------------------------------------
#
# The place of the largest item in a window is constant between jumps. Given the places, everything
# is linear, and the gradient of each function is its transpose.

_LAID: Final = {"windows": None}
_COUNTED: Final = {**_LAID, "count_padding": True}

# fmt: off
max_pool2d = primitive(
    "max_pool2d", kernels.max_pool2d, "x", outputs="largest places", options=_LAID,
    x=lambda g, places, windows, shape: spread_places(g[0], places, windows=windows, into=shape))
spread_places: Operation = primitive(
    "spread_places", kernels.spread_places, "b places", options={**_LAID, "into": ()},
    b=lambda g, places, windows: pick_places(g, places, windows=windows))
pick_places: Operation = primitive(
    "pick_places", kernels.pick_places, "x places", options=_LAID,
    x=lambda g, places, windows, shape: spread_places(g, places, windows=windows, into=shape))
mean_pool2d = primitive(
    "mean_pool2d", kernels.mean_pool2d, "x", options=_COUNTED,
    x=lambda g, windows, count_padding, shape:
        spread_means(g, windows=windows, count_padding=count_padding, into=shape))
spread_means: Operation = primitive(
    "spread_means", kernels.spread_means, "b", options={**_COUNTED, "into": ()},
    b=lambda g, windows, count_padding:
        mean_pool2d(g, windows=windows, count_padding=count_padding))
# fmt: on


# -- convolution over the last two axes: three functions, each linear in both arguments ----------
#
# The gradients of each function are the other two, so these rules give derivatives of any order.

_CONV_LAID: Final = {"windows": None, "groups": 1}
_CONV_SHAPED: Final = {**_CONV_LAID, "into": ()}

# fmt: off
conv2d = primitive(
    "conv2d", kernels.conv2d, "x weight", arrays="bias", options=_CONV_LAID,
    x=lambda g, weight, windows, groups, shape:
        conv2d_input(g, weight, windows=windows, groups=groups, into=shape),
    weight=lambda g, x, windows, groups, shape:
        conv2d_weight(g, x, windows=windows, groups=groups, into=shape),
    bias=lambda g: _bias(g, None))
conv2d_input: Operation = primitive(
    "conv2d_input", kernels.conv2d_input, "b weight", options=_CONV_SHAPED,
    b=lambda g, weight, windows, groups: conv2d(g, weight, windows=windows, groups=groups),
    weight=lambda g, b, windows, groups, shape:
        conv2d_weight(b, g, windows=windows, groups=groups, into=shape))
conv2d_weight: Operation = primitive(
    "conv2d_weight", kernels.conv2d_weight, "b x", options=_CONV_SHAPED,
    b=lambda g, x, windows, groups: conv2d(x, g, windows=windows, groups=groups),
    x=lambda g, b, windows, groups, shape:
        conv2d_input(b, g, windows=windows, groups=groups, into=shape))
# fmt: on


# -- recorded gradients of functions whose own backward cannot be differentiated ------------------


def recorded_gradients(
    body: Callable[..., Any],
    inputs: Sequence[Any],
    gradients: Sequence[Any],
    needs: Sequence[bool],
) -> list[Any]:
    """Computes `body` once more and returns the recorded gradients of `inputs`.

    Args:
        body: A function that repeats the computation with operations that have rules; it returns a
            tuple.
        inputs: The arguments of `body`.
        gradients: One gradient per output; None for an output without one.
        needs: One bool per input: True if it needs a gradient.

    Returns:
        One gradient per input; None for an input that needs none or that no output depends on.
    """
    with enable_grad():
        # Views, so that an input that was computed from another input counts as an input of its
        # own.
        own = [x.reshape(x.shape) if isinstance(x, Tensor) else x for x in inputs]
        outputs = body(*own)
        pairs = [(y, g) for y, g in zip(outputs, gradients, strict=True) if g is not None]
        wanted = [i for i, needed in enumerate(needs) if needed]
        found = grad(
            [y for y, _ in pairs],
            [own[i] for i in wanted],
            [g for _, g in pairs],
            create_graph=True,
            allow_unused=True,
        )
    results: list[Any] = [None] * len(inputs)
    for i, g in zip(wanted, found, strict=True):
        results[i] = g
    return results
