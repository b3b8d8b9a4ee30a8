"""First values of parameters: each function replaces the array of a Tensor and returns the Tensor.

The numbers come from `rng`, or from the generator of `manual_seed`. They are drawn in float64 and
then rounded, so that one seed gives the same numbers in every dtype. Graphs that were recorded
before keep the old values.

    fan in    number of items of the input on which one item of the output depends
    fan out   number of items of the output that depend on one item of the input

For a weight of shape (outputs, inputs, *window), they are inputs and outputs times the window's
size.
"""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np

from telegrad.arrays import device_of, to_device
from telegrad.autograd import Tensor, current_generator
from telegrad.types import Array, Shape

__all__ = [
    "calculate_gain",
    "constant_",
    "kaiming_normal_",
    "kaiming_uniform_",
    "normal_",
    "ones_",
    "orthogonal_",
    "trunc_normal_",
    "uniform_",
    "xavier_normal_",
    "xavier_uniform_",
    "zeros_",
]

T = TypeVar("T", bound=Tensor)
_Rng = np.random.Generator | None


def uniform_(tensor: T, a: float = 0.0, b: float = 1.0, *, rng: _Rng = None) -> T:
    """Fills the tensor with numbers drawn uniformly from `a` to `b`.

    >>> x = uniform_(Tensor(np.zeros(1000)), -1.0, 1.0, rng=np.random.default_rng(0))
    >>> x.shape, bool(abs(x.data).max() < 1.0)
    ((1000,), True)
    """
    return _filled(tensor, _generator(rng).uniform(a, b, tensor.shape))


def normal_(tensor: T, mean: float = 0.0, std: float = 1.0, *, rng: _Rng = None) -> T:
    """Fills the tensor with numbers drawn from a normal distribution.

    >>> x = normal_(Tensor(np.zeros(10_000)), std=2.0, rng=np.random.default_rng(0))
    >>> round(float(x.data.std()), 1)
    2.0
    """
    return _filled(tensor, _generator(rng).normal(mean, std, tensor.shape))


def trunc_normal_(
    tensor: T,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    *,
    rng: _Rng = None,
) -> T:
    """Fills the tensor from a normal distribution and redraws numbers outside of `a` to `b`.

    Raises:
        ValueError: `a` is not less than `b`, or the two are so far from the mean that almost no
            number would be kept.

    >>> x = trunc_normal_(Tensor(np.zeros(1000)), rng=np.random.default_rng(0))
    >>> bool(abs(x.data).max() <= 2.0)
    True
    """
    if not a < b:
        raise ValueError(f"a must be less than b; got {a} and {b}")
    ends = [math.erf((end - mean) / std / math.sqrt(2)) / 2 for end in (a, b)]
    if ends[1] - ends[0] < 1e-3:
        raise ValueError(f"from {a} to {b} there is next to nothing of mean {mean} and std {std}")
    generator = _generator(rng)
    drawn = generator.normal(mean, std, tensor.shape)
    outside = (drawn < a) | (drawn > b)
    while outside.any():
        drawn[outside] = generator.normal(mean, std, int(outside.sum()))
        outside = (drawn < a) | (drawn > b)
    return _filled(tensor, drawn)


def constant_(tensor: T, val: float) -> T:
    """Sets all items to `val`.

    >>> constant_(Tensor(np.zeros(2)), 0.5)
    tensor([0.5, 0.5])
    """
    return _filled(tensor, np.full(tensor.shape, val))


def zeros_(tensor: T) -> T:
    """Sets all items to 0.

    >>> zeros_(Tensor(np.ones(2)))
    tensor([0., 0.])
    """
    return constant_(tensor, 0.0)


def ones_(tensor: T) -> T:
    """Sets all items to 1.

    >>> ones_(Tensor(np.zeros(2)))
    tensor([1., 1.])
    """
    return constant_(tensor, 1.0)


def xavier_uniform_(tensor: T, gain: float = 1.0, *, rng: _Rng = None) -> T:
    """Fills uniformly, with the standard deviation gain * sqrt(2 / (fan in + fan out)).

    X. Glorot and Y. Bengio, "Understanding the difficulty of training deep feedforward neural
    networks" (2010).

    Raises:
        ValueError: The tensor has fewer than two axes.

    >>> x = xavier_uniform_(Tensor(np.zeros((100, 100))), rng=np.random.default_rng(0))
    >>> round(float(x.data.std()), 2)  # sqrt(2 / 200)
    0.1
    """
    bound = math.sqrt(3) * _xavier(tensor.shape, gain)
    return uniform_(tensor, -bound, bound, rng=rng)


def xavier_normal_(tensor: T, gain: float = 1.0, *, rng: _Rng = None) -> T:
    """Fills from a normal distribution of standard deviation gain * sqrt(2 / (fan in + fan out)).

    The paper is that of `xavier_uniform_`.

    Raises:
        ValueError: The tensor has fewer than two axes.

    >>> x = xavier_normal_(Tensor(np.zeros((100, 100))), rng=np.random.default_rng(0))
    >>> round(float(x.data.std()), 2)  # sqrt(2 / 200)
    0.1
    """
    return normal_(tensor, 0.0, _xavier(tensor.shape, gain), rng=rng)


def kaiming_uniform_(
    tensor: T,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    *,
    rng: _Rng = None,
) -> T:
    """Fills uniformly, with the standard deviation gain / sqrt(fan).

    K. He et al., "Delving deep into rectifiers" (2015).

    Args:
        tensor: A tensor of at least two axes.
        a: The slope of `leaky_relu` left of 0.
        mode: "fan_in" keeps the variance in the forward, "fan_out" in the backward.
        nonlinearity: The function that follows, one of `calculate_gain`.
        rng: The generator to draw from; None for the generator of `manual_seed`.

    Raises:
        ValueError: The tensor has fewer than two axes, or a name is unknown.

    >>> x = Tensor(np.zeros((100, 100)))
    >>> x = kaiming_uniform_(x, nonlinearity="relu", rng=np.random.default_rng(0))
    >>> round(float(x.data.std()), 2)  # sqrt(2 / 100)
    0.14
    """
    bound = math.sqrt(3) * _kaiming(tensor.shape, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, rng=rng)


def kaiming_normal_(
    tensor: T,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    *,
    rng: _Rng = None,
) -> T:
    """Fills from a normal distribution of standard deviation gain / sqrt(fan).

    Arguments and errors are those of `kaiming_uniform_`.

    >>> x = Tensor(np.zeros((100, 100)))
    >>> x = kaiming_normal_(x, nonlinearity="relu", rng=np.random.default_rng(0))
    >>> round(float(x.data.std()), 2)  # sqrt(2 / 100)
    0.14
    """
    return normal_(tensor, 0.0, _kaiming(tensor.shape, a, mode, nonlinearity), rng=rng)


def orthogonal_(tensor: T, gain: float = 1.0, *, rng: _Rng = None) -> T:
    """Fills with a matrix of orthonormal rows (or columns, if there are fewer) times `gain`.

    All axes but the first count as one. A. M. Saxe, J. L. McClelland and S. Ganguli, "Exact
    solutions to the nonlinear dynamics of learning in deep linear neural networks" (2013).

    Raises:
        ValueError: The tensor has fewer than two axes.

    >>> w = orthogonal_(Tensor(np.zeros((2, 3))), rng=np.random.default_rng(0))
    >>> bool(np.allclose(w.data @ w.data.T, np.eye(2)))
    True
    """
    if tensor.ndim < 2:
        raise ValueError(f"at least two axes are needed; the shape is {tensor.shape}")
    rows, columns = tensor.shape[0], math.prod(tensor.shape[1:])
    drawn = _generator(rng).normal(size=(max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(drawn)
    q *= np.sign(np.diagonal(r))  # else the distribution would not be uniform (F. Mezzadri, 2007)
    turned = q.T if rows < columns else q
    return _filled(tensor, gain * turned.reshape(tensor.shape))


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """Returns the factor of the weights before a nonlinearity that keeps the variance.

    Args:
        nonlinearity: The name: linear, conv1d, conv2d, sigmoid, tanh, relu, leaky_relu or selu.
        param: The slope of leaky_relu left of 0; None for 0.01.

    Raises:
        ValueError: The name is unknown.

    >>> calculate_gain("relu") ** 2
    2.0000000000000004
    """
    if nonlinearity == "leaky_relu":
        return math.sqrt(2 / (1 + (0.01 if param is None else param) ** 2))
    gains = {"tanh": 5 / 3, "relu": math.sqrt(2), "selu": 3 / 4}
    gains |= dict.fromkeys(("linear", "conv1d", "conv2d", "sigmoid"), 1.0)
    if nonlinearity not in gains:
        known = ", ".join(sorted([*gains, "leaky_relu"]))
        raise ValueError(f"no gain is known for {nonlinearity!r}; one of {known}")
    return gains[nonlinearity]


def _fans(shape: Shape) -> tuple[int, int]:
    if len(shape) < 2:
        raise ValueError(f"at least two axes are needed to compute the fan; the shape is {shape}")
    window = math.prod(shape[2:])
    return shape[1] * window, shape[0] * window


def _xavier(shape: Shape, gain: float) -> float:
    return gain * math.sqrt(2 / max(sum(_fans(shape)), 1))


def _kaiming(shape: Shape, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"mode is 'fan_in' or 'fan_out', not {mode!r}")
    fan = _fans(shape)[mode == "fan_out"]
    return calculate_gain(nonlinearity, a) / math.sqrt(max(fan, 1))


def _generator(rng: _Rng) -> np.random.Generator:
    return current_generator() if rng is None else rng


def _filled(tensor: T, values: Array) -> T:
    tensor.data = to_device(values.astype(tensor.dtype), device_of(tensor.data))
    return tensor
