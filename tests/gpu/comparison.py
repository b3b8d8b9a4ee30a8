"""Arrays of the GPU against their twins of NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from telegrad import arrays
from telegrad.autograd import Tensor, tensor

__all__ = ["close", "host", "moved", "normal", "on_gpu"]


def normal(seed: int, *shape: int, dtype: Any = np.float64) -> Any:
    """Random numbers in host memory."""
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def moved(xp: Any, value: Any) -> Any:
    """Returns a Tensor or array of the host as a leaf or array of the GPU; all else as it is."""
    if isinstance(value, Tensor):
        return tensor(xp.asarray(value.data), requires_grad=value.requires_grad)
    return xp.asarray(value) if isinstance(value, np.ndarray) else value


def host(value: Any) -> Any:
    """Returns an array or Tensor as an array of NumPy."""
    return arrays.to_host(value.data if isinstance(value, Tensor) else value)


def on_gpu(value: Any) -> bool:
    """Tells whether an array, or the array of a Tensor, is on the GPU."""
    return arrays.is_cupy(value.data if isinstance(value, Tensor) else value)


def close(actual: Any, expected: Any) -> None:
    """Checks that what is on the GPU has the dtype and, within rounding, the values of NumPy's."""
    assert on_gpu(actual), type(actual)
    wanted = host(expected)
    assert actual.dtype == wanted.dtype
    assert actual.shape == wanted.shape
    rounding = {"float16": 1e-2, "float32": 1e-5}.get(str(wanted.dtype), 1e-11)
    np.testing.assert_allclose(host(actual), wanted, rtol=rounding, atol=rounding)
