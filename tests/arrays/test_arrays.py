"""Arrays of either library behind one face; CuPy is stood in for by a module of that name."""

from __future__ import annotations

import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from telegrad import arrays
from tests.gpu.stand_in.stand_in import stand_in


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = stand_in(2)
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


def test_arrays_are_told_from_other_things() -> None:
    assert arrays.is_array(np.zeros(1))
    for other in ([0.0], 0.0, np.float32(0), None, memoryview(b"")):
        assert not arrays.is_array(other)


def test_cupy_arrays_are_recognised_once_cupy_is_loaded(cupy: Any) -> None:
    with cupy.cuda.Device(1):
        array = cupy.asarray([[1.0, 2.0]])
    assert arrays.is_array(array)
    assert arrays.is_cupy(array)
    assert arrays.namespace(array) is cupy
    assert arrays.namespace(np.zeros(1)) is np
    assert arrays.device_of(array) == "cuda:1"
    assert arrays.to_device(array, "cuda:1") is array
    host = arrays.to_host(array)
    assert type(host) is np.ndarray
    copied = arrays.host_copy(array)
    assert copied.shape == (1, 2)
    assert copied.flags.c_contiguous


def test_a_gpu_without_cupy_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(RuntimeError, match=r"pip install 'telegrad\[cuda13x\]'"):
        arrays.to_device(np.zeros(1), "cuda:0")


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "cuda:-1", ""])
def test_what_is_no_device(device: str) -> None:
    with pytest.raises(ValueError, match="no such device"):
        arrays.to_device(np.zeros(1), device)


@pytest.mark.parametrize(
    ("dtype", "floating"),
    [
        (np.float16, True),
        (np.float64, True),
        (ml_dtypes.bfloat16, True),
        (np.int32, False),
        (np.bool_, False),
        (np.complex64, False),
        ([("a", np.float32)], False),
    ],
)
def test_floating(dtype: Any, floating: bool) -> None:
    assert arrays.is_floating(dtype) is floating


def test_as_array_shares() -> None:
    source = np.zeros(3)
    assert arrays.as_array(source) is source
    assert arrays.as_array(source, dtype=np.float32).dtype == np.float32
    assert arrays.as_array(2.0).shape == ()
    with pytest.raises(TypeError, match="its dtype is object"):
        arrays.as_array([object()])


@pytest.mark.parametrize(
    "source", [np.arange(6.0).reshape(2, 3).T, np.broadcast_to(1.0, (2, 2)), np.array(5)]
)
def test_a_host_copy_is_fresh_contiguous_and_writable(source: Any) -> None:
    copied = arrays.host_copy(source)
    assert copied.flags.c_contiguous
    assert copied.flags.writeable
    assert not np.shares_memory(copied, source)
    np.testing.assert_array_equal(copied, source)
    assert copied.shape == source.shape
    assert arrays.to_host(source) is source
