"""The operations that have gradient rules; each takes arrays and Tensors alike.

Arrays alone give an array; with a Tensor among them the result is a Tensor, and recorded.
"""

from telegrad.autograd.ops import constant
from telegrad.autograd.ops.arithmetic import (
    add,
    clip,
    divide,
    maximum,
    minimum,
    multiply,
    power,
    subtract,
    where,
)
from telegrad.autograd.ops.elementwise import (
    absolute,
    copy,
    cos,
    exp,
    expm1,
    log,
    log1p,
    negative,
    positive,
    relu,
    sigmoid,
    sign,
    sin,
    sqrt,
    square,
    tanh,
)
from telegrad.autograd.ops.indexing import getitem, put, scatter
from telegrad.autograd.ops.layout import expand_dims, ravel, squeeze
from telegrad.autograd.ops.linear_algebra import matmul
from telegrad.autograd.ops.loss import (
    cross_entropy,
    cross_entropy_gradient,
    log_softmax,
    softmax,
)
from telegrad.autograd.ops.reduction import mean, reduce_max, reduce_min, reduce_sum
from telegrad.autograd.ops.shape import (
    astype,
    broadcast_to,
    concatenate,
    move,
    reshape,
    stack,
    swapaxes,
    transpose,
)

__all__ = [
    "absolute",
    "add",
    "astype",
    "broadcast_to",
    "clip",
    "concatenate",
    "constant",
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
