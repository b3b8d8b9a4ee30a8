"""Arrays of CuPy are recognised, moved, and never copied to the host behind the user's back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from telegrad import arrays
from tests.gpu.comparison import host

DTYPES = [np.bool_, np.int8, np.int64, np.float16, np.float32, np.float64, np.complex64]
SHAPES = [(), (0, 3), (5,), (2, 3, 4)]


def test_an_array_of_cupy_is_an_array(xp: Any) -> None:
    array = xp.zeros(3)
    assert arrays.is_array(array)
    assert arrays.is_cupy(array)
    assert not arrays.is_cupy(np.zeros(3))
    assert arrays.namespace(array) is xp
    assert arrays.namespace(1.0, np.zeros(3), array) is xp
    assert arrays.namespace(np.zeros(3)) is np
    assert arrays.device_of(array) == "cuda:0"
    assert arrays.is_floating(array.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_there_and_back(xp: Any, shape: tuple[int, ...], dtype: Any) -> None:
    source = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    there = arrays.to_device(source, "cuda")
    assert arrays.is_cupy(there)
    assert (there.shape, there.dtype) == (shape, dtype)
    for back in (arrays.to_host(there), arrays.host_copy(there), arrays.to_device(there, "cpu")):
        assert type(back) is np.ndarray
        assert back.flags.c_contiguous
        assert back.flags.writeable
        assert (back.shape, back.dtype) == (shape, dtype)
        np.testing.assert_array_equal(back, source)


def test_what_is_there_already_is_not_copied(xp: Any) -> None:
    array = xp.zeros(3)
    for device in ("cuda", "cuda:0"):
        assert arrays.to_device(array, device) is array
        assert arrays.device_name(device) == "cuda:0"
    assert arrays.as_array(array) is array


def test_the_copy_is_ones_own(xp: Any) -> None:
    source = np.zeros(3)
    there = arrays.to_device(source, "cuda")
    source[...] = 1.0
    copied = arrays.host_copy(there)
    there[...] = 2.0
    assert copied.tolist() == [0.0, 0.0, 0.0]
    assert host(there).tolist() == [2.0, 2.0, 2.0]


def test_parts_that_are_not_contiguous(xp: Any) -> None:
    source = np.arange(24.0).reshape(2, 3, 4)
    there = xp.asarray(source)
    for part in (np.s_[:, ::2], np.s_[..., ::-1], np.s_[1, 2, 3]):
        np.testing.assert_array_equal(arrays.host_copy(there[part]), source[part])
    np.testing.assert_array_equal(arrays.host_copy(there.T), source.T)
    np.testing.assert_array_equal(
        arrays.host_copy(xp.broadcast_to(there[0, 0], (2, 4))).shape, (2, 4)
    )


def test_a_list_becomes_an_array_beside_its_neighbour(xp: Any) -> None:
    assert arrays.is_cupy(arrays.array_beside([1, 2], xp.zeros(1)))
    assert type(arrays.array_beside([1, 2], np.zeros(1))) is np.ndarray
    array = np.zeros(1)
    assert arrays.array_beside(array, xp.zeros(1)) is array


def test_devices_are_named_where_they_differ(xp: Any) -> None:
    arrays.check_devices("a sum", xp.zeros(1), 1.0, xp.ones(2), None)
    with pytest.raises(ValueError, match=r"a sum of arrays on different devices \(cpu, cuda:0\)"):
        arrays.check_devices("a sum", np.zeros(1), xp.zeros(1))


def test_nothing_becomes_an_array_of_the_host_by_itself(xp: Any) -> None:
    """What the whole suite relies on: such a copy in telegrad would raise here."""
    for make in (np.asarray, np.array):
        with pytest.raises(TypeError, match=r"Implicit conversion|\.get\(\)"):
            make(xp.zeros(3))
    with pytest.raises(TypeError):
        xp.zeros(3) + np.zeros(3)
