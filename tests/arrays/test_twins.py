"""NumPy's functions made of CuPy's: they give what NumPy's own give, for any shape and option."""

from __future__ import annotations

import warnings
from typing import Any

import hypothesis.extra.numpy as npst
import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given

from telegrad.arrays import add_at, reduction_twin, windows_twin
from tests.gpu.comparison import host

SHAPES = npst.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=4)
NAMES = ["sum", "prod", "max", "min", "nanmax", "nanmin", "mean", "var", "std"]


@pytest.mark.few(1)
@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_reductions(name: str, data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    dtype = data.draw(st.sampled_from(["f8", "f4", "i4", "i8", "?"]))
    if name in ("var", "std") and dtype == "?":
        return  # NumPy subtracts no bools
    numbers = st.booleans() if dtype == "?" else st.integers(-3, 3)
    a = data.draw(npst.arrays(dtype, shape, elements=numbers))
    options: dict[str, Any] = {
        "axis": data.draw(st.sampled_from([None, *range(-len(shape), len(shape))])),
        "keepdims": data.draw(st.booleans()),
    }
    if data.draw(st.booleans()):
        options["where"] = data.draw(npst.arrays(bool, shape[-1:]))
    if name in ("var", "std"):
        options[data.draw(st.sampled_from(["ddof", "correction"]))] = data.draw(st.integers(0, 2))
    elif name != "mean" and ("where" in options or data.draw(st.booleans())):
        options["initial"] = True if dtype == "?" else data.draw(st.integers(-3, 3))
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of no items, and of no degrees of freedom
        expected = np.asarray(getattr(np, name)(a, **options))
        found = np.asarray(reduction_twin(name)(a, **options))
    assert found.dtype == expected.dtype
    close_to = 1e-5 if expected.dtype == np.float32 else 1e-12
    np.testing.assert_allclose(found, expected, rtol=close_to, atol=close_to)


@given(shape=SHAPES, data=st.data())
def test_windows(shape: tuple[int, ...], data: st.DataObject) -> None:
    a = np.arange(np.prod(shape)).reshape(shape)[::-1]
    axis = tuple(data.draw(st.lists(st.integers(-len(shape), len(shape) - 1), max_size=3)))
    lengths = tuple(data.draw(st.integers(1, 3)) for _ in axis)
    try:
        expected = np.lib.stride_tricks.sliding_window_view(a, lengths, axis)
    except ValueError as error:
        with pytest.raises(ValueError, match=str(error)):
            windows_twin(a, lengths, axis)
        return
    np.testing.assert_array_equal(windows_twin(a, lengths, axis), expected)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.complex64, ml_dtypes.bfloat16])
def test_places_that_repeat(cupy: Any, dtype: Any) -> None:
    try:
        cupy.zeros(3, dtype)
    except (TypeError, ValueError):
        pytest.skip("this CuPy has no arrays of bfloat16")
    values = (np.arange(4) + (1j if np.dtype(dtype).kind == "c" else 0)).astype(dtype)
    index = np.array([0, 2, 0, -1])
    here, there = np.zeros(3, dtype), cupy.zeros(3, dtype)
    np.add.at(here, index, values)
    add_at(there, cupy.asarray(index), cupy.asarray(values))
    np.testing.assert_array_equal(host(there), here)
    assert there.dtype == dtype
    rows = cupy.zeros((2, 3), dtype)
    add_at(rows, (slice(None), cupy.asarray(index)), cupy.asarray(np.stack([values, values])))
    np.testing.assert_array_equal(host(rows), np.stack([here, here]))


def test_short_integers_are_refused_by_cupy(cupy: Any) -> None:
    with pytest.raises(TypeError, match=r"cupy\.add\.at only supports"):
        add_at(cupy.zeros(2, np.int8), cupy.asarray(np.array([0])), cupy.ones(1, np.int8))
