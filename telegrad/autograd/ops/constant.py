"""NumPy's functions whose derivative is zero wherever it exists: computed, never recorded."""

from __future__ import annotations

from typing import Final

import numpy as np

from telegrad.autograd.dispatch import TABLE
from telegrad.autograd.plain import constant

__all__ = ["CONSTANT_FUNCTIONS"]

CONSTANT_FUNCTIONS: Final = (
    np.equal,
    np.not_equal,
    np.less,
    np.less_equal,
    np.greater,
    np.greater_equal,
    np.logical_and,
    np.logical_or,
    np.logical_xor,
    np.logical_not,
    np.bitwise_and,
    np.bitwise_or,
    np.bitwise_xor,
    np.invert,
    np.isnan,
    np.isinf,
    np.isfinite,
    np.floor,
    np.ceil,
    np.rint,
    np.trunc,
    np.isclose,
    np.allclose,
    np.array_equal,
    np.argmax,
    np.argmin,
    np.argsort,
    np.any,
    np.all,
    np.count_nonzero,
    np.nonzero,
    np.shape,
    np.ndim,
    np.size,
    np.zeros_like,
    np.ones_like,
    np.empty_like,
    np.array2string,
    np.array_repr,
    np.array_str,
    np.result_type,
)

for _function in CONSTANT_FUNCTIONS:
    TABLE.register(_function)(constant(_function))
