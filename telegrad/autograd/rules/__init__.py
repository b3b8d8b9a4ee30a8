"""Gradient rules of the NumPy functions that operators, methods and modules do not need.

They are loaded with `telegrad.numpy`, or when a NumPy function without an entry gets a Tensor, so
`import telegrad` does not pay for them. This file lists the modules of rules.
"""

from telegrad.autograd.rules import (
    elementwise,
    fourier,
    joining,
    layers,
    linear_algebra,
    products,
    reduction,
    selection,
    sequences,
    shape,
    sorting,
)

__all__ = [
    "elementwise",
    "fourier",
    "joining",
    "layers",
    "linear_algebra",
    "products",
    "reduction",
    "selection",
    "sequences",
    "shape",
    "sorting",
]
