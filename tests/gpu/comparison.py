"""Arrays of a library, most often of CuPy, against their twins of NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from telegrad import arrays
from telegrad.autograd import Tensor, tensor

__all__ = ["DTYPES", "SHAPES", "close", "close_on", "host", "moved", "normal", "of", "on_gpu"]

# What is moved, and sent to other workers.
DTYPES = [np.bool_, np.int8, np.int64, np.float16, np.float32, np.float64, np.complex64]
SHAPES = [(), (0, 3), (5,), (2, 3, 4)]


def normal(seed: int, *shape: int, dtype: Any = np.float64) -> Any:
    """Random numbers in host memory."""
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def moved(xp: Any, value: Any) -> Any:
    """Returns a Tensor or array of NumPy as a leaf or array of a library; all else as it is."""
    if isinstance(value, Tensor):
        return tensor(xp.asarray(value.data), requires_grad=value.requires_grad)
    return xp.asarray(value) if isinstance(value, np.ndarray) else value


def host(value: Any) -> Any:
    """Returns an array or Tensor as an array of NumPy."""
    return arrays.to_host(value.data if isinstance(value, Tensor) else value)


def on_gpu(value: Any) -> bool:
    """Tells whether an array, or the array of a Tensor, is on the GPU."""
    return arrays.is_cupy(value.data if isinstance(value, Tensor) else value)


def of(xp: Any, value: Any) -> bool:
    """Tells whether an array, or the array of a Tensor, is of a library."""
    return arrays.namespace(value.data if isinstance(value, Tensor) else value) is xp


def close(actual: Any, expected: Any) -> None:
    """Checks that what is on the GPU has the dtype and, within rounding, the values of NumPy's."""
    assert on_gpu(actual), type(actual)
    _close(actual, expected)


def close_on(xp: Any, actual: Any, expected: Any) -> None:
    """Checks the same of an array, or a Tensor, of a library."""
    assert of(xp, actual), type(actual)
    _close(actual, expected)


def _close(actual: Any, expected: Any) -> None:
    wanted = host(expected)
    assert actual.dtype == wanted.dtype
    assert actual.shape == wanted.shape
    rounding = {"float16": 1e-2, "float32": 1e-5}.get(str(wanted.dtype), 1e-11)
    np.testing.assert_allclose(host(actual), wanted, rtol=rounding, atol=rounding)
