"""Arrays and Tensors of the GPU on the wire, by way of host memory."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from telegrad import dist_autograd
from telegrad.autograd import Tensor, tensor
from telegrad.wire import decode, describe, encode, rebuild
from tests.gpu.comparison import DTYPES, SHAPES, close, host, on_gpu


def sent(value: Any) -> tuple[bytes, bytes, list[bytearray]]:
    """What a worker gets to see of a value."""
    encoded = encode(value)
    metadata, buffers = describe(encoded.externals)
    return encoded.document, metadata, [bytearray(each) for each in buffers]


def round_trip(value: Any) -> Any:
    document, metadata, buffers = sent(value)
    return decode(document, rebuild(metadata, buffers))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_an_array_arrives_on_the_gpu(xp: Any, shape: tuple[int, ...], dtype: Any) -> None:
    source = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    arrived = round_trip({"there": xp.asarray(source), "here": source})
    close(arrived["there"], source)
    assert type(arrived["here"]) is np.ndarray


def test_parts_that_are_not_contiguous(xp: Any) -> None:
    source = np.arange(24.0).reshape(2, 3, 4)
    there = xp.asarray(source)
    for part in (there.T, there[:, ::-2], there[1, 2, 3], xp.broadcast_to(there[0, 0], (2, 4))):
        close(round_trip(part), host(part))


def test_what_is_sent_is_the_value_at_the_time_of_the_call(xp: Any) -> None:
    array = xp.zeros(3)
    document, metadata, buffers = sent(array)
    array[...] = 1.0
    close(decode(document, rebuild(metadata, buffers)), np.zeros(3))


def test_one_array_twice_arrives_as_one(xp: Any) -> None:
    array = xp.zeros(3)
    first, second = round_trip([array, array])
    assert first is second
    assert first is not array


def test_a_tensor(xp: Any) -> None:
    assert "context" in dist_autograd.__all__  # imported: Tensors travel by its codec
    arrived = round_trip(tensor(xp.ones(3), requires_grad=True))
    assert isinstance(arrived, Tensor)
    close(arrived, np.ones(3))


def test_a_worker_without_cupy_gets_an_array_of_numpy(
    xp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    document, metadata, buffers = sent(xp.ones(3))
    monkeypatch.delitem(sys.modules, "cupy")
    arrived = decode(document, rebuild(metadata, buffers))
    assert type(arrived) is np.ndarray
    assert arrived.tolist() == [1.0, 1.0, 1.0]
    assert not on_gpu(arrived)
