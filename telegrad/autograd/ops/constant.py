"""Functions whose derivative is zero wherever it exists and that operators and methods are.

All others are in `telegrad.autograd.rules.constant`.
"""

from __future__ import annotations

import numpy as np

from telegrad.autograd.extend import constants

__all__: list[str] = []

constants(
    np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal,
    np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.invert,
    np.isnan, np.floor, np.argmax, np.argmin, np.any, np.all,
)  # fmt: skip
