"""The operations that have gradient rules; each takes arrays and Tensors alike.

If all arguments are arrays, the result is an array. If one is a Tensor, the result is a Tensor and
the operation is recorded.

`import telegrad` loads the files `elementwise`, `reduction` and `shape`; `later` lists all others.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

from telegrad.autograd.ops.elementwise import (
    absolute,
    add,
    clip,
    copy,
    cos,
    divide,
    exp,
    expm1,
    log,
    log1p,
    maximum,
    minimum,
    multiply,
    negative,
    positive,
    power,
    relu,
    sigmoid,
    sign,
    sin,
    sqrt,
    square,
    subtract,
    tanh,
    where,
)
from telegrad.autograd.ops.reduction import (
    cross_entropy,
    cross_entropy_gradient,
    log_softmax,
    matmul,
    mean,
    mean_cross_entropy,
    reduce_max,
    reduce_min,
    reduce_sum,
    softmax,
)
from telegrad.autograd.ops.shape import (
    astype,
    broadcast_to,
    concatenate,
    expand_dims,
    getitem,
    move,
    put,
    ravel,
    reshape,
    scatter,
    squeeze,
    stack,
    swapaxes,
    transpose,
)

if TYPE_CHECKING:
    from telegrad.autograd.ops import layers as layers
    from telegrad.autograd.ops import sequences as sequences

__all__ = [
    "absolute",
    "add",
    "astype",
    "broadcast_to",
    "clip",
    "concatenate",
    "copy",
    "cos",
    "cross_entropy",
    "cross_entropy_gradient",
    "divide",
    "exp",
    "expand_dims",
    "expm1",
    "getitem",
    "log",
    "log1p",
    "log_softmax",
    "matmul",
    "maximum",
    "mean",
    "mean_cross_entropy",
    "minimum",
    "move",
    "multiply",
    "negative",
    "positive",
    "power",
    "put",
    "ravel",
    "reduce_max",
    "reduce_min",
    "reduce_sum",
    "relu",
    "reshape",
    "scatter",
    "sigmoid",
    "sign",
    "sin",
    "softmax",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "subtract",
    "swapaxes",
    "tanh",
    "transpose",
    "where",
]


def __getattr__(name: str) -> object:
    if name not in ("layers", "sequences"):
        raise AttributeError(f"module 'telegrad.autograd.ops' has no attribute {name!r}")
    return _import_module(f"telegrad.autograd.ops.{name}")
