"""Arrays of odd shapes and strides for kernels, and comparison with the twins of NumPy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from telegrad.kernels.cuda import kernel
from tests.gpu.comparison import host, of

__all__ = ["DTYPES", "EDGES", "agree", "compiles", "few", "laid", "layouts", "small_grid"]

DTYPES: list[Any] = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]
EDGES = [0, 1, 31, 32, 33, 1025]
# What twins may differ by, for results of about 1; integers are the same.
ROUNDING = {"float64": 1e-12, "float32": 3e-6, "float16": 2e-3, "bfloat16": 2e-2}

few = settings(
    max_examples=20,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
# The first run compiles a kernel for each choice of dtypes and forms: 2 s, and 6 s on a busy machine.
compiles = pytest.mark.timeout(300)
layouts = st.sampled_from(["plain", "transposed", "steps", "reversed", "offset"])


def laid(xp: Any, values: Any, layout: str) -> Any:
    """Returns an array of `xp` with these values that lies in memory in some way."""
    shape, dtype = values.shape, values.dtype
    if layout == "transposed":
        made = xp.empty(shape[::-1], dtype).T
    elif layout == "steps":
        made = xp.empty((*shape[:-1], 2 * shape[-1]), dtype)[..., ::2]
    elif layout == "reversed":
        made = xp.empty(shape, dtype)[..., ::-1]
    elif layout == "offset":  # without gaps, and not aligned to 16 bytes
        made = xp.empty(values.size + 1, dtype)[1:].reshape(shape)
    else:
        made = xp.empty(shape, dtype)
    made[...] = xp.asarray(values)
    return made


def agree(xp: Any, found: Any, expected: Any, *, times: float = 1.0, dtype: Any = None) -> None:
    """Checks that an array of `xp` is that of NumPy, but for rounding.

    Args:
        xp: CuPy, or what stands in for it.
        found: The array of `xp`.
        expected: The array of NumPy.
        times: The size of the numbers that were added up.
        dtype: The dtype in which a twin rounded, if it is not that of the result.
    """
    assert of(xp, found), type(found)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    rounding = times * ROUNDING.get(np.dtype(dtype or expected.dtype).name, 0.0)
    actual, wanted = (np.asarray(each).astype(np.float64) for each in (host(found), expected))
    np.testing.assert_allclose(actual, wanted, rtol=rounding, atol=rounding)


@pytest.fixture
def small_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a launch have two blocks at most, so that small arrays are more than a grid."""
    monkeypatch.setattr(kernel, "MOST_BLOCKS", 2)
