"""The operations that have gradient rules; each takes arrays and Tensors alike.

If all arguments are arrays, the result is an array. If one is a Tensor, the result is a Tensor and
the operation is recorded.

`import telegrad` loads the files `elementwise`, `reduction` and `shape`; the first use of a
function that is not there loads the others.
The names here are those that the packages above use; programs call NumPy's functions.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

from telegrad.autograd.ops.elementwise import absolute, exp, log, relu, sigmoid, square, tanh, where
from telegrad.autograd.ops.reduction import (
    cross_entropy,
    log_softmax,
    mean,
    mean_cross_entropy,
    softmax,
)
from telegrad.autograd.ops.shape import put, reshape, scatter, stack, swapaxes, transpose

if TYPE_CHECKING:
    from telegrad.autograd.ops import layers as layers
    from telegrad.autograd.ops import sequences as sequences

__all__ = [
    "absolute",
    "cross_entropy",
    "exp",
    "log",
    "log_softmax",
    "mean",
    "mean_cross_entropy",
    "put",
    "relu",
    "reshape",
    "scatter",
    "sigmoid",
    "softmax",
    "square",
    "stack",
    "swapaxes",
    "tanh",
    "transpose",
    "where",
]


def __getattr__(name: str) -> object:
    if name not in ("layers", "sequences"):
        raise AttributeError(f"module 'telegrad.autograd.ops' has no attribute {name!r}")
    return _import_module(f"telegrad.autograd.ops.{name}")
