"""Activations, as functions and as modules.

The result of each is a Tensor in the shape of the argument. At a kink the slope is PyTorch's.
"""

from __future__ import annotations

from typing import Any

from telegrad.autograd import Tensor, as_tensor, ops
from telegrad.kernels import GATES
from telegrad.nn.module import OfFunction
from telegrad.types import Array

# The fixed point of G. Klambauer et al.: numbers with mean 0 and variance 1 keep them.
_SELU_ALPHA = 1.6732632423543772848170429916717
_SELU_SCALE = 1.0507009873554804934193349852946


def relu(x: Tensor | Array) -> Tensor:
    """Returns `x` with 0 in place of negative numbers.

    >>> import numpy as np
    >>> relu(np.array([-2.0, 0.0, 2.0]))
    tensor([0., 0., 2.])
    """
    return as_tensor(ops.relu(x))


def relu6(x: Tensor | Array) -> Tensor:
    """Returns `x` limited to the range from 0 to 6.

    >>> import numpy as np
    >>> relu6(np.array([-2.0, 0.0, 2.0]))
    tensor([0., 0., 2.])
    """
    return hardtanh(x, 0.0, 6.0)


def leaky_relu(x: Tensor | Array, negative_slope: float = 0.01) -> Tensor:
    """Returns `x`, with negative numbers multiplied by `negative_slope`.

    >>> import numpy as np
    >>> leaky_relu(np.array([-2.0, 0.0, 2.0]))
    tensor([-0.02,  0.  ,  2.  ])
    """
    return as_tensor(ops.layers.leaky_relu(x, slope=negative_slope))


def elu(x: Tensor | Array, alpha: float = 1.0) -> Tensor:
    """Returns `x` where it is positive, else `alpha * (exp(x) - 1)`.

    D.-A. Clevert, T. Unterthiner and S. Hochreiter, "Fast and accurate deep network learning by
    exponential linear units" (2016).

    >>> import numpy as np
    >>> elu(np.array([-2.0, 0.0, 2.0]))
    tensor([-0.86466472,  0.        ,  2.        ])
    """
    return as_tensor(ops.layers.elu(x, alpha=float(alpha)))


def selu(x: Tensor | Array) -> Tensor:
    """Returns the self-normalising form of `elu`, which keeps mean 0 and variance 1.

    G. Klambauer et al., "Self-normalizing neural networks" (2017).

    >>> import numpy as np
    >>> selu(np.array([-2.0, 0.0, 2.0]))
    tensor([-1.52016647,  0.        ,  2.10140197])
    """
    return as_tensor(ops.layers.elu(x, alpha=_SELU_ALPHA, scale=_SELU_SCALE))


def gelu(x: Tensor | Array, approximate: str = "none") -> Tensor:
    """Returns `x` times the probability that a standard normal number is less than `x`.

    D. Hendrycks and K. Gimpel, "Gaussian error linear units" (2016).

    Args:
        x: Floating-point numbers.
        approximate: "none": exact to the last digits of the dtype. "tanh": the authors' formula
            with tanh, which is off by up to 5e-4 and takes about a third of the time.

    Raises:
        ValueError: `approximate` is neither "none" nor "tanh".

    >>> import numpy as np
    >>> gelu(np.array([-1.0, 0.0, 1.0])).data.round(4)
    array([-0.1587,  0.    ,  0.8413])
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f"approximate is 'none' or 'tanh', not {approximate!r}")
    return as_tensor(ops.layers.gelu(x, approximate=approximate))


def glu(x: Tensor | Array, dim: int = -1, gate: str = "sigmoid") -> Tensor:
    """Returns `a * gate(b)`, where `a` and `b` are the first and the second half of `x`.

    Y. Dauphin et al., "Language modeling with gated convolutional networks" (2017); N. Shazeer,
    "GLU variants improve transformer" (2020).

    Args:
        x: Floating-point numbers.
        dim: The axis that is halved; its length is even.
        gate: "sigmoid"; "gelu" or "gelu_tanh" for GEGLU; "silu" for SwiGLU.

    Raises:
        ValueError: `x` has no such axis, its length is odd, or `gate` is another word.

    >>> import numpy as np
    >>> glu(np.array([1.0, 2.0, 0.0, 0.0]))
    tensor([0.5, 1. ])
    """
    if gate not in GATES:
        raise ValueError(f"gate is one of {', '.join(GATES)}; not {gate!r}")
    if not -x.ndim <= dim < x.ndim or x.shape[dim] % 2:
        raise ValueError(f"an axis of even length is needed, not axis {dim} of shape {x.shape}")
    return as_tensor(ops.layers.gated(x, dim=dim, gate=gate))


def silu(x: Tensor | Array) -> Tensor:
    """Returns `x * sigmoid(x)`, also called swish.

    >>> import numpy as np
    >>> silu(np.array([-2.0, 0.0, 2.0]))
    tensor([-0.23840584,  0.        ,  1.76159416])
    """
    return as_tensor(ops.layers.silu(x))


def mish(x: Tensor | Array) -> Tensor:
    """Returns `x * tanh(softplus(x))`. D. Misra, "Mish" (2020).

    >>> import numpy as np
    >>> mish(np.array([-2.0, 0.0, 2.0]))
    tensor([-0.25250148,  0.        ,  1.94395896])
    """
    return as_tensor(ops.layers.mish(x))


def sigmoid(x: Tensor | Array) -> Tensor:
    """Returns `1 / (1 + exp(-x))`; never overflows.

    >>> import numpy as np
    >>> sigmoid(np.array([-2.0, 0.0, 2.0]))
    tensor([0.11920292, 0.5       , 0.88079708])
    """
    return as_tensor(ops.sigmoid(x))


def logsigmoid(x: Tensor | Array) -> Tensor:
    """Returns the logarithm of `sigmoid(x)`, exact even where `sigmoid(x)` is tiny.

    >>> import numpy as np
    >>> logsigmoid(np.array([-2.0, 0.0, 2.0]))
    tensor([-2.12692801, -0.69314718, -0.12692801])
    """
    return as_tensor(-ops.layers.softplus(-x))


def tanh(x: Tensor | Array) -> Tensor:
    """Returns the hyperbolic tangent.

    >>> import numpy as np
    >>> tanh(np.array([-2.0, 0.0, 2.0]))
    tensor([-0.96402758,  0.        ,  0.96402758])
    """
    return as_tensor(ops.tanh(x))


def softplus(x: Tensor | Array, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """Returns `log(1 + exp(beta * x)) / beta`, but `x` where `beta * x` is above `threshold`.

    It never overflows. An infinite `threshold` disables the limit; the results differ from those
    with 20 by up to 2e-9.

    >>> import numpy as np
    >>> softplus(np.array([-2.0, 0.0, 2.0]))
    tensor([0.12692801, 0.69314718, 2.12692801])
    """
    scaled = x if beta == 1.0 else x * beta
    smooth = ops.layers.softplus(scaled)
    smooth = smooth if beta == 1.0 else smooth / beta
    return as_tensor(ops.where(scaled > threshold, x, smooth))


def softsign(x: Tensor | Array) -> Tensor:
    """Returns `x / (1 + |x|)`.

    >>> import numpy as np
    >>> softsign(np.array([-2.0, 0.0, 2.0]))
    tensor([-0.66666667,  0.        ,  0.66666667])
    """
    return as_tensor(ops.layers.softsign(x))


def hardtanh(x: Tensor | Array, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """Returns `x` limited to the range from `min_val` to `max_val`; at both ends the slope is 0.

    Raises:
        ValueError: `min_val` is not less than `max_val`.

    >>> import numpy as np
    >>> hardtanh(np.array([-2.0, 0.0, 2.0]))
    tensor([-1.,  0.,  1.])
    """
    if not min_val < max_val:
        raise ValueError(f"min_val must be less than max_val; got {min_val} and {max_val}")
    return as_tensor(ops.layers.hardtanh(x, low=min_val, high=max_val))


def softmax(x: Tensor | Array, dim: int = -1) -> Tensor:
    """Returns positive numbers that sum to 1 along the axis `dim`.

    >>> import numpy as np
    >>> softmax(np.array([[0.0, 0.0], [0.0, np.log(3.0)]]))
    tensor([[0.5 , 0.5 ],
            [0.25, 0.75]])
    """
    return as_tensor(_along(ops.softmax, x, dim))


def log_softmax(x: Tensor | Array, dim: int = -1) -> Tensor:
    """Returns the logarithm of `softmax(x, dim)`, exact even where the softmax is tiny.

    >>> import numpy as np
    >>> log_softmax(np.array([[0.0, 0.0], [0.0, np.log(3.0)]]))
    tensor([[-0.69314718, -0.69314718],
            [-1.38629436, -0.28768207]])
    """
    return as_tensor(_along(ops.log_softmax, x, dim))


def _along(function: Any, x: Any, dim: int) -> Any:
    if dim in (-1, x.ndim - 1):
        return function(x)
    return ops.swapaxes(function(ops.swapaxes(x, axis1=dim, axis2=-1)), axis1=dim, axis2=-1)


class ReLU(OfFunction):
    """Replaces negative numbers by 0.

    >>> import numpy as np
    >>> ReLU()(np.array([-2.0, 0.0, 2.0]))
    tensor([0., 0., 2.])
    """

    _function = staticmethod(relu)


class ReLU6(OfFunction):
    """Limits numbers to the range from 0 to 6.

    >>> import numpy as np
    >>> ReLU6()(np.array([-2.0, 0.0, 2.0]))
    tensor([0., 0., 2.])
    """

    _function = staticmethod(relu6)


class SELU(OfFunction):
    """The module form of `functional.selu`.

    >>> import numpy as np
    >>> SELU()(np.array([-2.0, 0.0, 2.0]))
    tensor([-1.52016647,  0.        ,  2.10140197])
    """

    _function = staticmethod(selu)


class SiLU(OfFunction):
    """The module form of `functional.silu`.

    >>> import numpy as np
    >>> SiLU()(np.array([-2.0, 0.0, 2.0]))
    tensor([-0.23840584,  0.        ,  1.76159416])
    """

    _function = staticmethod(silu)


class Mish(OfFunction):
    """The module form of `functional.mish`.

    >>> import numpy as np
    >>> Mish()(np.array([-2.0, 0.0, 2.0]))
    tensor([-0.25250148,  0.        ,  1.94395896])
    """

    _function = staticmethod(mish)


class Sigmoid(OfFunction):
    """The module form of `functional.sigmoid`.

    >>> import numpy as np
    >>> Sigmoid()(np.array([-2.0, 0.0, 2.0]))
    tensor([0.11920292, 0.5       , 0.88079708])
    """

    _function = staticmethod(sigmoid)


class LogSigmoid(OfFunction):
    """The module form of `functional.logsigmoid`.

    >>> import numpy as np
    >>> LogSigmoid()(np.array([-2.0, 0.0, 2.0]))
    tensor([-2.12692801, -0.69314718, -0.12692801])
    """

    _function = staticmethod(logsigmoid)


class Tanh(OfFunction):
    """The hyperbolic tangent.

    >>> import numpy as np
    >>> Tanh()(np.array([-2.0, 0.0, 2.0]))
    tensor([-0.96402758,  0.        ,  0.96402758])
    """

    _function = staticmethod(tanh)


class Softsign(OfFunction):
    """The module form of `functional.softsign`.

    >>> import numpy as np
    >>> Softsign()(np.array([-2.0, 0.0, 2.0]))
    tensor([-0.66666667,  0.        ,  0.66666667])
    """

    _function = staticmethod(softsign)


class LeakyReLU(OfFunction):
    """The module form of `functional.leaky_relu`.

    >>> import numpy as np
    >>> LeakyReLU()(np.array([-2.0, 0.0, 2.0]))
    tensor([-0.02,  0.  ,  2.  ])
    """

    _function = staticmethod(leaky_relu)
    _shown = "{negative_slope}"

    def __init__(self, negative_slope: float = 0.01) -> None:
        super().__init__()
        self._keep(negative_slope=negative_slope)


class ELU(OfFunction):
    """The module form of `functional.elu`.

    >>> import numpy as np
    >>> ELU()(np.array([-2.0, 0.0, 2.0]))
    tensor([-0.86466472,  0.        ,  2.        ])
    """

    _function = staticmethod(elu)
    _shown = "{alpha}"

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        self._keep(alpha=alpha)


class GELU(OfFunction):
    """The module form of `functional.gelu`.

    >>> import numpy as np
    >>> GELU()(np.array([-2.0, 0.0, 2.0]))
    tensor([-0.04550026,  0.        ,  1.95449974])
    """

    _function = staticmethod(gelu)
    _shown = "{approximate!r}"

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self._keep(approximate=approximate)


class GLU(OfFunction):
    """The module form of `functional.glu`.

    >>> import numpy as np
    >>> GLU()(np.array([1.0, 2.0, 0.0, 0.0]))
    tensor([0.5, 1. ])
    """

    _function = staticmethod(glu)
    _shown = "{dim}, {gate!r}"

    def __init__(self, dim: int = -1, gate: str = "sigmoid") -> None:
        super().__init__()
        self._keep(dim=dim, gate=gate)


class Softplus(OfFunction):
    """The module form of `functional.softplus`.

    >>> import numpy as np
    >>> Softplus()(np.array([-2.0, 0.0, 2.0]))
    tensor([0.12692801, 0.69314718, 2.12692801])
    """

    _function = staticmethod(softplus)
    _shown = "{beta}"

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        self._keep(beta=beta, threshold=threshold)


class Hardtanh(OfFunction):
    """The module form of `functional.hardtanh`.

    >>> import numpy as np
    >>> Hardtanh()(np.array([-2.0, 0.0, 2.0]))
    tensor([-1.,  0.,  1.])
    """

    _function = staticmethod(hardtanh)
    _shown = "{min_val}, {max_val}"

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0) -> None:
        super().__init__()
        self._keep(min_val=min_val, max_val=max_val)


class Softmax(OfFunction):
    """The module form of `functional.softmax`.

    >>> import numpy as np
    >>> Softmax(dim=-1)(np.array([[0.0, 0.0], [0.0, np.log(3.0)]]))
    tensor([[0.5 , 0.5 ],
            [0.25, 0.75]])
    """

    _function = staticmethod(softmax)
    _shown = "dim={dim}"

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self._keep(dim=dim)


class LogSoftmax(OfFunction):
    """The module form of `functional.log_softmax`.

    >>> import numpy as np
    >>> LogSoftmax(dim=-1)(np.array([[0.0, 0.0], [0.0, np.log(3.0)]]))
    tensor([[-0.69314718, -0.69314718],
            [-1.38629436, -0.28768207]])
    """

    _function = staticmethod(log_softmax)
    _shown = "dim={dim}"

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self._keep(dim=dim)
