"""The rules that operators, methods and modules do not need: all others of NumPy's functions.

They are loaded when a NumPy function meets a Tensor and has no entry yet, and with
`telegrad.numpy`: `import telegrad` pays for none of them. A module of rules is named here.
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
