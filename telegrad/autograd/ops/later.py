"""The files of operations that operators and methods do not need, loaded when first used.

A NumPy function without an entry loads them when it gets a Tensor, so `import telegrad` does not
pay for them. `special` waits for `scipy.special`.
"""

from telegrad.autograd.ops import (
    axes,
    fourier,
    joining,
    layers,
    linear_algebra,
    products,
    selection,
    sequences,
    sorting,
    statistics,
    ufuncs,
)

__all__ = [
    "axes",
    "fourier",
    "joining",
    "layers",
    "linear_algebra",
    "products",
    "selection",
    "sequences",
    "sorting",
    "statistics",
    "ufuncs",
]
