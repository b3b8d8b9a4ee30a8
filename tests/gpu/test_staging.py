"""Big arrays to the GPU and back by way of pinned memory, two pieces under way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from telegrad import arrays
from telegrad.arrays import staging
from tests.gpu.comparison import host

PIECE = 64


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has every array of the test staged."""
    monkeypatch.setattr(staging, "PIECE_BYTES", PIECE)
    for module in (staging, arrays.device):
        monkeypatch.setattr(module, "STAGED_BYTES", PIECE + 1)


def octets(size: int) -> Any:
    return np.random.default_rng(size).integers(0, 256, size, np.uint8)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("size", [PIECE + 1, 2 * PIECE, 3 * PIECE - 1, 5 * PIECE + 3, 40 * PIECE])
def test_bytes_there_and_back(xp: Any, size: int) -> None:
    source = octets(size)
    there = arrays.to_device(source, "cuda")
    assert isinstance(there, xp.ndarray)
    np.testing.assert_array_equal(there.get(), source)
    back = arrays.to_host(there)
    np.testing.assert_array_equal(back, source)
    assert back.flags.writeable
    assert back.flags.owndata


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("dtype", [np.float64, np.complex64, np.int16, np.bool_])
def test_shapes_orders_and_dtypes(xp: Any, dtype: Any) -> None:
    source = octets(15 * 16 * 16).view(np.int16).reshape(15, 8, 16).astype(dtype)
    for part in (source, np.asfortranarray(source), source[:, ::2], source.T):
        there = arrays.to_device(part, "cuda")
        assert (there.shape, there.dtype) == (part.shape, part.dtype)
        np.testing.assert_array_equal(arrays.to_host(there), part)
    on_gpu = xp.asarray(source)
    for view in (on_gpu[:, ::2], on_gpu.T, on_gpu[3:]):
        np.testing.assert_array_equal(arrays.to_host(view), host(view))


@pytest.mark.usefixtures("small_pieces")
def test_what_is_copied_is_what_was_there(xp: Any) -> None:
    source = octets(9 * PIECE)
    there: Any = arrays.to_device(source, "cuda")
    before = source.copy()
    source[:] = 0
    np.testing.assert_array_equal(there.get(), before)
    back = arrays.to_host(there)
    there[...] = 1
    np.testing.assert_array_equal(back, before)


def test_a_small_array_is_not_staged(xp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def unexpected(*args: object) -> None:
        raise AssertionError("staged")

    for name in ("fill_gpu", "fill_from_gpu"):
        monkeypatch.setattr(arrays.device, name, unexpected)
    np.testing.assert_array_equal(arrays.to_host(arrays.to_device(np.ones(9), "cuda")), np.ones(9))


def test_an_array_of_several_pieces(xp: Any) -> None:
    source = octets(2 * staging.PIECE_BYTES + 5)
    back = arrays.to_host(arrays.to_device(source, "cuda"))
    assert back.tobytes() == source.tobytes()
