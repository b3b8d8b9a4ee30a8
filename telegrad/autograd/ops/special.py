"""SciPy's special functions with their gradient rules; loaded when `scipy.special` is.

The formulas are those of the NIST Digital Library of Mathematical Functions (dlmf.nist.gov):
chapters 5 (gamma), 7 (error functions) and 10 (Bessel functions).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

import numpy as np
from scipy import special

from telegrad.arrays import namespace, special_twin
from telegrad.autograd.extend import Operation, primitive
from telegrad.autograd.graph.dispatch import TABLE
from telegrad.autograd.graph.unrecorded import has_tensor
from telegrad.autograd.ops.elementwise import exp, log, sign
from telegrad.autograd.ops.reduction import log_softmax as log_softmax_of_last
from telegrad.autograd.ops.reduction import softmax as softmax_of_last
from telegrad.autograd.ops.shape import kept
from telegrad.autograd.tensor.tensor import array_of

_ROOT_PI: Final = math.sqrt(math.pi)
_ROOT_2PI: Final = math.sqrt(2 * math.pi)
_ROOT_2_PI: Final = math.sqrt(2 / math.pi)
_ROOT_2: Final = math.sqrt(2)
_LN2: Final = math.log(2.0)
_LN10: Final = math.log(10.0)
_H: Final = "holomorphic"


def _ufunc(name: str, arguments: str, **others: Any) -> Operation:
    function = getattr(special, name)
    return _primitive(
        name, function, arguments, stands_for=(function,), options={"dtype": None}, **others
    )


def _primitive(name: str, forward: Callable[..., Any], arguments: str, **others: Any) -> Operation:
    others.setdefault("kernels", {"cupy": special_twin(name)})
    made = primitive(name, forward, arguments, **others)
    made.__module__ = "telegrad.scipy.special"
    return made


def _polygamma_there(n: Any, x: Any) -> Any:
    xp = namespace(n, x)
    return special_twin("polygamma")(xp.asarray(n), xp.asarray(x))  # CuPy takes no numbers


def _on_arrays(name: str, *args: Any, **options: Any) -> Any:
    """Calls SciPy, or CuPy on a GPU, for functions that no NumPy protocol dispatches."""
    arrays = [*args, *options.values()]
    kernel = special_twin(name) if namespace(*arrays) is not np else getattr(special, name)
    return kernel(*args, **options)


# i1(x) / x is the sum of (x^2 / 4)^k / (2 k! (k + 1)!), and j1(x) / x that of (-x^2 / 4)^k / ...
_TERMS: Final = [0.5 / (math.factorial(k) * math.factorial(k + 1)) for k in range(10)]


def _over_x(y: Any, x: Any, of_square: float = 0.25, factor: Any = 1.0) -> Any:
    """Returns `y / x` for y = i1(x), or j1(x) with `of_square` -0.25, times a `factor` in y.

    Between -1 and 1 it is the series, which is exact there: derivatives of the quotient cancel.
    """
    near = abs(x) < 1
    square = np.where(near, x, 0.0) ** 2 * of_square
    total: Any = 0.0
    for term in reversed(_TERMS):
        total = total * square + term
    return np.where(near, total * factor, y / np.where(near, 1.0, x))


def _unless(case: Any, x: Any, other: float) -> Any:
    """Returns `x`, but `other` where `case` is true, because a product with 0 is 0 there."""
    return np.where(case, other, x)


def _share(x1: Any, x2: Any) -> Any:
    """Returns `x1 / x2`, but 0 where x1 is 0, whatever x2 is."""
    return x1 / np.where(x1 == 0, 1.0, x2)


# 1, 1 * 3, 1 * 3 * 5, ...
_ODD: Final = [math.prod(range(1, 2 * k, 2)) for k in range(1, 13)]


def _beyond_one(x: Any, y: Any, factor: float, far: Any, sign: float) -> Any:
    """Returns `factor * x * y - 1`, where `y` is nearly 1 / (factor * x) if x is large.

    If `far` is true, the difference cancels, and this is the sum of 1 * 3 * ... (2k - 1) *
    (sign / (2 x^2))^k. At x = 10 the first term that is left out is 1e-15 of it.
    """
    if x.dtype.kind == "c":
        return factor * x * y - 1
    inverse = 1.0 / np.where(far, x, 10.0)
    part = 0.5 * sign * inverse * inverse
    total: Any = 0.0
    for number in reversed(_ODD):
        total = (total + number) * part
    return np.where(far, total, factor * np.where(far, 0.0, x) * y - 1)


def _log_ndtr_slope(x: Any, y: Any) -> Any:
    # exp(-x^2 / 2 - y) / sqrt(2 pi). Far to the left, -x^2 / 2 and y are large and almost equal, so
    # the left half uses erfcx(-x / sqrt(2)), which is the ratio of the two exponentials.
    left = x < 0
    below, above = np.where(left, x, 0.0), np.where(left, 0.0, x)
    right = exp(-above * above / 2 - np.where(left, 0.0, y)) / _ROOT_2PI
    return np.where(left, _ROOT_2_PI / erfcx(-below / _ROOT_2), right)


# fmt: off
erf       = _ufunc("erf", "x", complex_rule=_H,
                   x=lambda g, x: g * (2 / _ROOT_PI * exp(-x * x)))
erfc      = _ufunc("erfc", "x", complex_rule=_H,
                   x=lambda g, x: g * (-2 / _ROOT_PI * exp(-x * x)))
erfcx     = _ufunc("erfcx", "x", complex_rule=_H,
                   x=lambda g, x, y:
                       g * (2 / _ROOT_PI * _beyond_one(x, y, _ROOT_PI, x > 10, -1.0)))
erfinv    = _ufunc("erfinv",    "x", x=lambda g, y: g * (_ROOT_PI / 2 * exp(y * y)))
erfcinv   = _ufunc("erfcinv",   "x", x=lambda g, y: g * (-_ROOT_PI / 2 * exp(y * y)))
dawsn     = _ufunc("dawsn", "x", complex_rule=_H,
                   x=lambda g, x, y: -g * _beyond_one(x, y, 2.0, abs(x) > 10, 1.0))
ndtr      = _ufunc("ndtr", "x", complex_rule=_H,
                   x=lambda g, x: g * exp(-x * x / 2) / _ROOT_2PI)
log_ndtr  = _ufunc("log_ndtr",  "x", complex_rule=_H, x=lambda g, x, y: g * _log_ndtr_slope(x, y))
ndtri     = _ufunc("ndtri",     "x", x=lambda g, y: g * (_ROOT_2PI * exp(y * y / 2)))

expit: Operation = _ufunc("expit",     "x", x=lambda g, x, y: g * (y * expit(-x)))
logit     = _ufunc("logit",     "x", x=lambda g, x: g / (x * (1 - x)))
log_expit = _ufunc("log_expit", "x", x=lambda g, x: g * expit(-x))
log1p     = _ufunc("log1p",     "x", complex_rule=_H, x=lambda g, x: g / (1 + x))
expm1     = _ufunc("expm1",     "x", complex_rule=_H, x=lambda g, x: g * exp(x))
exp2      = _ufunc("exp2",      "x", x=lambda g, y: g * (_LN2 * y))
exp10     = _ufunc("exp10",     "x", x=lambda g, y: g * (_LN10 * y))
cbrt      = _ufunc("cbrt",      "x", x=lambda g, y: g / (3 * y * y))
expi      = _ufunc("expi",      "x", complex_rule=_H, x=lambda g, x: g * exp(x) / x)
exp1      = _ufunc("exp1",      "x", complex_rule=_H, x=lambda g, x: -g * exp(-x) / x)

gammaln   = _ufunc("gammaln",   "x", x=lambda g, x: g * digamma(x))
loggamma  = _ufunc("loggamma",  "x", complex_rule=_H, x=lambda g, x: g * digamma(x))
gamma     = _ufunc("gamma",     "x", complex_rule=_H, x=lambda g, x, y: g * (y * digamma(x)))
digamma: Operation = _ufunc("digamma",   "x", x=lambda g, x: g * polygamma(1, x))
polygamma: Operation = _primitive(
    "polygamma", special.polygamma, "n x", stands_for=(special.polygamma,),
    kernels={"cupy": _polygamma_there}, x=lambda g, n, x: g * polygamma(n + 1, x))
beta      = _ufunc("beta", "x1 x2",
                   x1=lambda g, y, x1, x2: g * y * (digamma(x1) - digamma(x1 + x2)),
                   x2=lambda g, y, x1, x2: g * y * (digamma(x2) - digamma(x1 + x2)))
betaln    = _ufunc("betaln", "x1 x2",
                   x1=lambda g, x1, x2: g * (digamma(x1) - digamma(x1 + x2)),
                   x2=lambda g, x1, x2: g * (digamma(x2) - digamma(x1 + x2)))
# There is no rule for the order, because that derivative has no closed form.
gammainc  = _ufunc("gammainc", "x1 x2",
                   x2=lambda g, x1, x2: g * exp(xlogy(x1 - 1, x2) - x2 - gammaln(x1)))
gammaincc = _ufunc("gammaincc", "x1 x2",
                   x2=lambda g, x1, x2: -g * exp(xlogy(x1 - 1, x2) - x2 - gammaln(x1)))

xlogy: Operation = _ufunc("xlogy", "x1 x2", complex_rule=_H,
                          x1=lambda g, x1, x2: xlogy(g, _unless((x1 == 0) & (x2 == 0), x2, 1.0)),
                          x2=lambda g, x1, x2: g * (x1 / _unless((x1 == 0) & (x2 == 0), x2, 1.0)))
xlog1py: Operation = _ufunc(
    "xlog1py", "x1 x2", complex_rule=_H,
    x1=lambda g, x1, x2: xlog1py(g, _unless((x1 == 0) & (x2 == -1), x2, 0.0)),
    x2=lambda g, x1, x2: g * (x1 / (1 + _unless((x1 == 0) & (x2 == -1), x2, 0.0))))
entr      = _ufunc("entr",      "x",     x=lambda g, x: -g * (log(x) + 1))
rel_entr  = _ufunc("rel_entr", "x1 x2",
                   x1=lambda g, x1, x2: g * (log(x1 / x2) + 1),
                   x2=lambda g, x1, x2: -g * _share(x1, x2))
kl_div    = _ufunc("kl_div", "x1 x2",
                   x1=lambda g, x1, x2: g * log(x1 / x2),
                   x2=lambda g, x1, x2: g * (1 - _share(x1, x2)))

i0        = _ufunc("i0",  "x", x=lambda g, x: g * i1(x))
i1: Operation = _ufunc("i1",  "x", x=lambda g, x, y: g * (i0(x) - _over_x(y, x)))
i0e       = _ufunc("i0e", "x", x=lambda g, x, y: g * (i1e(x) - sign(x) * y))
i1e: Operation = _ufunc(
    "i1e", "x",
    x=lambda g, x, y: g * (i0e(x) - _over_x(y, x, factor=exp(-abs(x))) - sign(x) * y))
k0        = _ufunc("k0",  "x", x=lambda g, x: -g * k1(x))
k1: Operation = _ufunc("k1",  "x", x=lambda g, x, y: -g * (k0(x) + y / x))
k0e       = _ufunc("k0e", "x", x=lambda g, x, y: g * (y - k1e(x)))
k1e: Operation = _ufunc("k1e", "x", x=lambda g, x, y: g * (y - k0e(x) - y / x))
j0        = _ufunc("j0",  "x", x=lambda g, x: -g * j1(x))
j1: Operation = _ufunc("j1",  "x", x=lambda g, x, y: g * (j0(x) - _over_x(y, x, -0.25)))
y0        = _ufunc("y0",  "x", x=lambda g, x: -g * y1(x))
y1: Operation = _ufunc("y1",  "x", x=lambda g, x, y: g * (y0(x) - y / x))
# fmt: on


def _by_shares(g: Any, y: Any, a: Any, axis: Any) -> Any:
    return kept(g, a.shape, axis) * _share_of_sum(y, a, None, axis)


def _of_b(g: Any, y: Any, s: Any, a: Any, b: Any, axis: Any) -> Any:
    if g[0] is None:
        return None
    return kept(g[0] * s, a.shape, axis) * _share_of_sum(y, a, b, axis)


def _of_a(g: Any, y: Any, s: Any, a: Any, b: Any, axis: Any) -> Any:
    if g[0] is None:
        return None
    counted = a if b is None else np.where(b == 0, -np.inf, a)
    shares = kept(g[0] * s, counted.shape, axis) * _share_of_sum(y, counted, b, axis)
    return shares if b is None else shares * b


def _share_of_sum(y: Any, a: Any, b: Any, axis: Any) -> Any:
    """Returns exp(a) / sum(b exp(a)), without its sign, from `y`, the logarithm of the sum.

    Of a sum that is infinite, only its infinite items have a share, each by its `b`.
    """
    whole, found = kept(y, a.shape, axis), array_of(y)
    if namespace(found) is np and np.isfinite(found).all():  # a GPU would have to be waited for
        return exp(a - whole)
    lost, infinite = abs(whole) == np.inf, whole == np.inf
    shares = exp(np.where(lost & (a == np.inf), 0.0, a) - np.where(lost, 0.0, whole))
    winners = infinite & (a == np.inf)
    weights = np.where(winners, 1.0 if b is None else b, 0.0)
    total = abs(np.sum(weights, axis=axis, keepdims=True))
    return np.where(infinite, winners / np.where(total == 0, 1.0, total), shares)


def _of_finite(a: Any, *, axis: Any = None, keepdims: bool = False) -> Any:
    """Computes SciPy's logsumexp; five times as fast for small arrays with finite sums."""
    top = np.maximum.reduce(a, axis=axis, keepdims=True) if a.ndim and a.size else np.nan
    if a.dtype.kind != "f" or not np.isfinite(top).all():
        return special.logsumexp(a, axis=axis, keepdims=keepdims)
    # The largest items are counted, not added: a sum that holds them would lose terms that
    # are small beside 1.
    largest = a == top
    number = np.add.reduce(largest, axis=axis, keepdims=True, dtype=a.dtype)
    others = np.exp(a - top)
    others[largest] = 0.0
    rest = np.add.reduce(others, axis=axis, keepdims=True) / number
    y = np.log1p(rest) + np.log(number) + top
    return y if keepdims else y.squeeze(axis)


def _signed(a: Any, **options: Any) -> Any:
    return _on_arrays("logsumexp", a, return_sign=True, **options)


# fmt: off
signed_logsumexp = primitive(
    "logsumexp", _signed, "a", arrays="b", options={"axis": None, "keepdims": False}, outputs="y s",
    a=_of_a,
    b=_of_b)
logsumexp = primitive("logsumexp", _of_finite, "a", options={"axis": None, "keepdims": False},
                      kernels={"cupy": special_twin("logsumexp")}, a=_by_shares)
# fmt: on


def _logsumexp(
    a: Any, axis: Any = None, b: Any = None, keepdims: bool = False, return_sign: bool = False
) -> Any:
    if not has_tensor((a, b)):
        return _on_arrays(
            "logsumexp", a, axis=axis, b=b, keepdims=keepdims, return_sign=return_sign
        )
    if b is None and not return_sign:
        return logsumexp(a, axis=axis, keepdims=keepdims)
    y, s = signed_logsumexp(a, axis=axis, b=b, keepdims=keepdims)
    if return_sign:
        return y, s.detach()
    return np.where(s.data < 0, np.nan, y)


def _last(function: Any, x: Any, axis: Any) -> Any:
    """Applies a function of the last axis along `axis`, or over all items if that is None."""
    if axis is None:
        return function(x.reshape(-1)).reshape(x.shape)
    return np.swapaxes(function(np.swapaxes(x, axis, -1)), axis, -1)


def _along_axes(name: str, of_last: Any, of_difference: Any) -> Callable[..., Any]:
    """Returns `softmax` or its logarithm: `of_difference` of x and the logarithm of the sum."""

    def body(x: Any, axis: Any = None) -> Any:
        if not has_tensor(x):
            return _on_arrays(name, x, axis=axis)
        if isinstance(axis, tuple):
            return of_difference(x - _logsumexp(x, axis, keepdims=True))
        return _last(of_last, x, axis)

    return body


def _enter(function: Callable[..., Any], body: Callable[..., Any]) -> None:
    """Enters `body` for a function of SciPy, under its name, signature and docstring."""
    entry = wraps(function)(body)
    entry.__module__ = "telegrad.scipy.special"
    TABLE.register(function)(entry)


_enter(special.logsumexp, _logsumexp)
_enter(special.softmax, _along_axes("softmax", softmax_of_last, exp))
_enter(special.log_softmax, _along_axes("log_softmax", log_softmax_of_last, lambda x: x))
