"""Arrays of CuPy are recognised, moved, and never copied to the host behind the user's back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from telegrad import arrays
from tests.gpu.comparison import DTYPES, SHAPES, host


@pytest.mark.parametrize("shape", SHAPES)
def test_there_and_back(cupy: Any, shape: tuple[int, ...], subtests: pytest.Subtests) -> None:
    for dtype in DTYPES:
        source: Any = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
        with subtests.test(dtype=dtype.__name__):
            there = arrays.to_device(source, "cuda")
            assert arrays.is_cupy(there)
            assert (there.shape, there.dtype) == (shape, source.dtype)
            check_hosts(there, source)


def check_hosts(there: Any, source: Any) -> None:
    for back in (arrays.to_host(there), arrays.host_copy(there), arrays.to_device(there, "cpu")):
        assert type(back) is np.ndarray
        assert back.flags.c_contiguous
        assert back.flags.writeable
        assert (back.shape, back.dtype) == (source.shape, source.dtype)
        np.testing.assert_array_equal(back, source)


def test_what_is_there_already_is_not_copied(cupy: Any) -> None:
    array = cupy.zeros(3)
    for device in ("cuda", "cuda:0"):
        assert arrays.to_device(array, device) is array
        assert arrays.device_name(device) == "cuda:0"
    assert arrays.as_array(array) is array


def test_the_copy_is_ones_own(cupy: Any) -> None:
    source = np.zeros(3)
    there = arrays.to_device(source, "cuda")
    source[...] = 1.0
    copied = arrays.host_copy(there)
    there[...] = 2.0
    assert copied.tolist() == [0.0, 0.0, 0.0]
    assert host(there).tolist() == [2.0, 2.0, 2.0]


def test_parts_that_are_not_contiguous(cupy: Any) -> None:
    source = np.arange(24.0).reshape(2, 3, 4)
    there = cupy.asarray(source)
    for part in (np.s_[:, ::2], np.s_[..., ::-1], np.s_[1, 2, 3]):
        np.testing.assert_array_equal(arrays.host_copy(there[part]), source[part])
    np.testing.assert_array_equal(arrays.host_copy(there.T), source.T)
    np.testing.assert_array_equal(
        arrays.host_copy(cupy.broadcast_to(there[0, 0], (2, 4))).shape, (2, 4)
    )


def test_a_list_becomes_an_array_beside_its_neighbour(cupy: Any) -> None:
    assert arrays.is_cupy(arrays.array_beside([1, 2], cupy.zeros(1)))
    assert type(arrays.array_beside([1, 2], np.zeros(1))) is np.ndarray
    array = np.zeros(1)
    assert arrays.array_beside(array, cupy.zeros(1)) is array


def test_devices_are_named_where_they_differ(cupy: Any) -> None:
    arrays.check_devices("a sum", cupy.zeros(1), 1.0, cupy.ones(2), None)
    with pytest.raises(ValueError, match=r"a sum of arrays on different devices \(cpu, cuda:0\)"):
        arrays.check_devices("a sum", np.zeros(1), cupy.zeros(1))


def test_nothing_becomes_an_array_of_the_host_by_itself(cupy: Any) -> None:
    """What the whole suite relies on: such a copy in telegrad would raise here."""
    for make in (np.asarray, np.array):
        with pytest.raises(TypeError, match=r"Implicit conversion|\.get\(\)"):
            make(cupy.zeros(3))
    with pytest.raises(TypeError):
        cupy.zeros(3) + np.zeros(3)
