"""The Gaussian error linear unit, `x * Phi(x)`, and gated units.

The first is that of D. Hendrycks and K. Gimpel, "Gaussian error linear units" (2016). Phi is the
distribution function of the standard normal distribution. NumPy has neither Phi nor an error
function, so this file follows J. L. Schonfelder, "Chebyshev expansions for the error and
related functions" (1978). For z >= 0, exp(z**2) * erfc(z) is a polynomial in t = (z - 2) / (z + 2).
The coefficients below are its Chebyshev interpolation, computed with 50 digits and written in
powers of t. With them Phi is right to 1e-15, and to 2e-7 in float32. The relative error is of that
size also far left of 0.

The functions go through the array in pieces that stay in the cache. Some thirty passes over a piece
then cost as much as three passes over the memory. CuPy arrays are computed by `cuda/gelu.cu`.

A gated unit multiplies one half of an array by a function of the other half: N. Shazeer, "GLU
variants improve transformer" (2020).
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from telegrad.arrays import computing_dtype, is_cupy, namespace
from telegrad.kernels.cuda import Kernel, blocks_for, contiguous
from telegrad.types import Array

GATES: Final = ("gelu", "gelu_tanh", "silu", "sigmoid")
"""The functions of gates; `cuda/gelu.cu` has them in this order."""

# Coefficients of the powers of t, from power 0 on, for float64 and for float32.
_LONG: Final = (
    0.25539567631050575, -0.42718584741396554, 0.2416581942424779, -0.07897858101509438,
    0.0037328924033315286, 0.006997461722095332, -0.0008471432257716448, -0.000981976811947063,
    4.355532442408294e-05, 0.00017435965859836114, 2.7526910941237942e-05, -2.7573321979579146e-05,
    -1.3969655186330035e-05, 1.3723661481746074e-06, 3.770274432334154e-06, 1.2364505535784676e-06,
    -4.4578524117161953e-07, -5.627476561885509e-07, -1.0683096715673216e-07, 1.232653531785206e-07,
    5.899308150331797e-08, -1.2152105886828374e-08, -8.962028547423651e-09,
)  # fmt: skip
_SHORT: Final = (
    0.2553956863585343, -0.4271858893481242, 0.24165767892054682, -0.07897647889560623,
    0.0037375624932988387, 0.006980417994352735, -0.0008638089067574653, -0.0009328722788896394,
    7.28801112059417e-05, 0.0001148589713881192,
)  # fmt: skip
_FAR: Final = 1000.0
"""A distance at which all tails are 0. Beyond it an infinity times a tail of 0 would be NaN."""
_PIECE: Final = 16384
"""Items in one piece on the CPU: the four arrays of a piece take 256 kB in float32."""

_ROOT: Final = math.sqrt(0.5)
_PEAK: Final = 1 / math.sqrt(2 * math.pi)
_SCALE: Final = math.sqrt(2 / math.pi)
_CUBE: Final = 0.044715


_FORWARD: Final = Kernel("gelu", "gelu_forward")
_BACKWARD: Final = Kernel("gelu", "gelu_backward")
_GATED: Final = Kernel("gelu", "gated_forward")
_GATED_BACK: Final = Kernel("gelu", "gated_backward")


def gelu(x: Array, *, approximate: str = "none") -> Array:
    """Returns `x * Phi(x)`.

    Args:
        x: Floating-point numbers; float16 and bfloat16 are computed in float32.
        approximate: "none", or "tanh" for `0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x**3)))`.
    """
    if is_cupy(x):
        return _launched(_FORWARD, approximate, x)
    return _in_pieces(_tanh_value if approximate == "tanh" else _value, x)


def gelu_slope(x: Array, gradient: Array, *, approximate: str = "none") -> Array:
    """Returns the derivative of `gelu` at `x`, times `gradient`.

    Args:
        x: The argument of `gelu`.
        gradient: The gradient of the result of `gelu`, of the shape of `x`.
        approximate: The value given to `gelu`.
    """
    if is_cupy(x):
        return _launched(_BACKWARD, approximate, x, gradient)
    made = _in_pieces(_tanh_slope if approximate == "tanh" else _slope, x)
    made *= gradient
    return made


def _launched(kernel: Kernel, approximate: str, x: Any, *others: Any) -> Array:
    result: Array = namespace(x).empty(x.shape, x.dtype)
    inputs = [contiguous(x)]
    for other in others:
        if other.shape != x.shape:
            raise ValueError(f"the gradient has shape {other.shape}, {x.shape} needed")
        inputs.append(contiguous(other).astype(x.dtype, copy=False))
    blocks = blocks_for(x.size, 16 * 256 // x.itemsize)
    form = int(approximate == "tanh")
    kernel.launch(*inputs, result, x.size, blocks=blocks, ITEM=x.dtype, FORM=form)
    return result


def gated(x: Array, *, dim: int = -1, gate: str = "sigmoid") -> Array:
    """Returns the first half of `x` along an axis, times a function of the second half.

    Args:
        x: Floating-point numbers; float16 and bfloat16 are computed in float32.
        dim: The axis; its length is even.
        gate: One of GATES: "sigmoid", "silu" for `b * sigmoid(b)`, "gelu", or "gelu_tanh".

    >>> gated(np.array([1.0, 2.0, 0.0, 0.0]))
    array([0.5, 1. ])
    """
    first, second = _halves(x, dim)
    if is_cupy(x):
        result: Array = namespace(x).empty(first.shape, x.dtype)
        _launch_gates(_GATED, x, dim, gate, (), result)
        return result
    value, _ = _gate(second, gate)
    made: Array = (value * first).astype(x.dtype, copy=False)
    return made


def gated_gradient(gradient: Array, x: Array, *, dim: int = -1, gate: str = "sigmoid") -> Array:
    """Returns the gradient of the argument of `gated`.

    Args:
        gradient: The gradient of the result.
        x: The argument of `gated`.
        dim: The value given to `gated`.
        gate: The value given to `gated`.
    """
    first, second = _halves(x, dim)
    if gradient.shape != first.shape:
        raise ValueError(f"the gradient has shape {gradient.shape}, {first.shape} needed")
    result: Any = namespace(x).empty(x.shape, x.dtype)
    if is_cupy(x):
        upstream = contiguous(gradient.astype(x.dtype, copy=False))
        _launch_gates(_GATED_BACK, x, dim, gate, (upstream,), result)
        return result  # type: ignore[no-any-return]
    value, slope = _gate(second, gate)
    of_first, of_second = _halves(result, dim)
    np.multiply(value, gradient, out=of_first, casting="same_kind")
    slope *= gradient
    np.multiply(slope, first, out=of_second, casting="same_kind")
    return result  # type: ignore[no-any-return]


def _halves(x: Any, dim: int) -> tuple[Any, Any]:
    axis, half = dim % x.ndim, x.shape[dim] // 2
    before = (slice(None),) * axis
    return x[(*before, slice(None, half))], x[(*before, slice(half, None))]


def _gate(x: Any, gate: str) -> tuple[Any, Any]:
    """Returns the function of a gate and its slope, of at least float32."""
    wide = x.astype(computing_dtype(x.dtype), copy=False)
    if gate in ("gelu", "gelu_tanh"):
        form = "tanh" if gate == "gelu_tanh" else "none"
        slope = _in_pieces(_tanh_slope if form == "tanh" else _slope, wide)
        return gelu(wide, approximate=form), slope
    small = np.exp(-np.abs(wide))  # never overflows
    share = np.where(wide < 0, small, 1.0) / (1 + small)
    rise = small / (1 + small) ** 2
    if gate != "silu":
        return share, rise
    above = np.maximum(wide, -_FAR)
    return share * above, share + np.minimum(above, _FAR) * rise


def _launch_gates(
    kernel: Kernel, x: Any, dim: int, gate: str, others: tuple[Any, ...], result: Any
) -> None:
    inner = math.prod(x.shape[dim % x.ndim :]) // 2
    blocks = blocks_for(x.size // 2, 16 * 256 // x.itemsize)
    how: dict[str, Any] = {"blocks": blocks, "ITEM": x.dtype, "FORM": GATES.index(gate)}
    kernel.launch(*others, contiguous(x), result, x.size // 2, inner, **how)


def _in_pieces(function: Any, x: Any) -> Array:
    flat = x.astype(computing_dtype(x.dtype), copy=False).reshape(-1)
    made = np.empty(flat.shape, flat.dtype)
    for start in range(0, flat.size, _PIECE):
        piece = slice(start, start + _PIECE)
        made[piece] = function(flat[piece])
    return made.reshape(x.shape).astype(x.dtype, copy=False)


def _tail(x: Any) -> tuple[Any, Any, Any]:
    """Returns |x|, at most _FAR, as `size`; Phi(-size); and exp(-size**2 / 2)."""
    powers = _SHORT if x.dtype == np.float32 else _LONG
    size = np.abs(x)
    np.minimum(size, _FAR, out=size)
    bell = size * size
    bell *= -0.5
    np.exp(bell, out=bell)
    t = size * _ROOT
    t += 2.0
    np.divide(-4.0, t, out=t)
    t += 1.0
    tail = t * powers[-1]
    tail += powers[-2]
    for power in powers[-3::-1]:
        tail *= t
        tail += power
    tail *= bell
    tail *= 0.5
    return size, tail, bell


def _value(x: Any) -> Any:
    # max(x, 0) - |x| Phi(-|x|) is exact in the tail. It needs no np.where, which takes ten times as
    # long as a product.
    size, tail, _ = _tail(x)
    tail *= size
    value = np.maximum(x, 0.0)
    value -= tail
    return value


def _slope(x: Any) -> Any:
    # Left of 0 it is Phi(-|x|) - |x| phi(x), which does not cancel. Right of 0 it is 1 minus that.
    size, tail, bell = _tail(x)
    bell *= _PEAK
    bell *= size
    bell -= tail
    side = np.copysign(1.0, x, dtype=x.dtype)
    bell *= side
    np.maximum(side, 0.0, out=side)
    bell += side
    return bell


def _sigmoid(x: Any) -> tuple[Any, Any, Any]:
    """Returns (1 + tanh(u)) / 2 of the approximation, exp(-2 u), and x, limited to _FAR.

    The first is the sigmoid of 2 u, which does not cancel on either side.
    """
    near = np.clip(x, -_FAR, _FAR)
    small = near * near
    small *= _CUBE
    small += 1.0
    small *= near
    small *= -2 * _SCALE
    np.minimum(small, 80.0 if x.dtype == np.float32 else 700.0, out=small)
    np.exp(small, out=small)
    share = small + 1.0
    np.divide(1.0, share, out=share)
    return share, small, near


def _tanh_value(x: Any) -> Any:
    share, _, _ = _sigmoid(x)
    share *= np.maximum(x, -_FAR)
    return share


def _tanh_slope(x: Any) -> Any:
    share, small, near = _sigmoid(x)
    rise = near * near
    rise *= 3 * _CUBE
    rise += 1.0
    rise *= near
    rise *= 2 * _SCALE
    small *= share
    rise *= small
    rise *= share
    share += rise
    return share
