"""NumPy's functions whose derivative is zero wherever it exists: computed, never recorded."""

from __future__ import annotations

import numpy as np

from telegrad.autograd.extend import constants

__all__: list[str] = []

constants(
    np.logical_and, np.logical_or, np.logical_xor, np.logical_not,
    np.bitwise_count,
    np.left_shift, np.right_shift, np.gcd, np.lcm,
    np.isinf, np.isfinite, np.isnat, np.isposinf, np.isneginf, np.signbit,
    np.iscomplex, np.isreal, np.iscomplexobj, np.isrealobj,
    np.ceil, np.rint, np.trunc, np.fix, np.round, np.around, np.floor_divide,
    np.spacing,
    np.isclose, np.allclose, np.array_equal, np.array_equiv,
    np.nanargmax, np.nanargmin, np.argsort, np.argpartition, np.argwhere,
    np.lexsort, np.searchsorted, np.digitize, np.isin,
    np.count_nonzero, np.nonzero, np.flatnonzero,
    np.shape, np.ndim, np.size,
    np.zeros_like, np.ones_like, np.empty_like,
    np.array2string, np.array_repr, np.array_str,
    np.result_type, np.can_cast, np.min_scalar_type, np.common_type,
    np.may_share_memory, np.shares_memory,
)  # fmt: skip
