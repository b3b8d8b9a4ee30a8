"""Results that nobody else has are sent from where they lie; all others as copies."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telegrad.transport.channels.answers import OWN_MEMORY
from telegrad.wire import Envelope, describe

Array = np.ndarray[Any, Any]
ITEMS = 20_000  # of 8 bytes: more than travels in-line


def address(buffer: Any) -> int:
    """Returns where the bytes lie."""
    return int(np.frombuffer(buffer, np.uint8).ctypes.data)


def sent(make: Callable[[], Array], keep: Callable[[Array], object] = lambda _: None) -> bool:
    """Returns whether a result is sent from where it lies; checks that its bytes are right.

    Args:
        make: Makes the result.
        keep: Keeps something of it beyond the reply.
    """
    value = make()
    expected, where = value.tobytes("A"), value.ctypes.data
    kept = keep(value)
    memory = OWN_MEMORY.answering()
    _, buffers = describe([value], memory=memory)
    envelope = memory.stage(Envelope("rpc.reply", buffers=buffers))
    del value, buffers
    memory.settle(envelope)
    del kept
    assert bytes(envelope.buffers[0]) == expected
    return address(envelope.buffers[0]) == where


MAKES: dict[str, Callable[[], Array]] = {
    "new": lambda: np.arange(float(ITEMS)),
    "columns first": lambda: np.asfortranarray(np.arange(float(ITEMS)).reshape(100, -1)),
    "a transposed view": lambda: np.arange(float(ITEMS)).reshape(100, -1).T,
    "reshaped": lambda: np.arange(float(ITEMS)).reshape(4, 5, -1),
    "received": lambda: np.ndarray((ITEMS,), np.float64, np.zeros(8 * ITEMS, np.uint8)),
    "dates": lambda: np.arange(ITEMS).astype("datetime64[s]"),
    "records": lambda: np.zeros(ITEMS, [("a", "i1"), ("b", "f8")]),
    "read-only": lambda: _frozen(np.arange(float(ITEMS))),
}


def _frozen(array: Array) -> Array:
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
def test_what_nobody_has_is_not_copied(make: Callable[[], Array]) -> None:
    assert sent(make)


KEEPS: dict[str, Callable[[Array], object]] = {
    "itself": lambda array: array,
    "a view": lambda array: array[1:],
    "its memory": lambda array: memoryview(array.data),
    "what owns it": lambda array: array if array.base is None else array.base,
    "in a closure": lambda array: lambda: array,
    "a weak reference": weakref.ref,
    "a buffer of bytes": lambda array: np.frombuffer(array.data.cast("B"), np.uint8),
}


@pytest.mark.parametrize("keep", KEEPS.values(), ids=KEEPS)
def test_what_somebody_has_is_copied(keep: Callable[[Array], object]) -> None:
    assert not sent(MAKES["new"], keep)
    if keep is not weakref.ref:  # a received array is a view, and goes with its value
        assert not sent(MAKES["received"], keep)


NOT_WHOLE: dict[str, Callable[[], Array]] = {
    "a part": lambda: np.arange(float(2 * ITEMS))[ITEMS:],
    "of a mapped file's kind": lambda: np.frombuffer(bytearray(8 * ITEMS)),
    "in an order of its own": lambda: np.empty((20, 40, 30)).transpose(1, 0, 2).copy("K"),
}


@pytest.mark.parametrize("make", NOT_WHOLE.values(), ids=NOT_WHOLE)
def test_what_is_not_all_of_an_array_is_copied(make: Callable[[], Array]) -> None:
    def filled() -> Array:
        array = make()
        array[...] = np.arange(array.size).reshape(array.shape)
        return array

    value = filled()
    memory = OWN_MEMORY.answering()
    (_, buffers), where = describe([value], memory=memory), value.ctypes.data
    envelope = memory.stage(Envelope("rpc.reply", buffers=buffers))
    del value, buffers
    memory.settle(envelope)
    assert address(envelope.buffers[0]) != where
    assert bytes(envelope.buffers[0]) == filled().tobytes()


def test_one_that_is_there_twice_is_sent_whole_twice() -> None:
    value = np.arange(float(ITEMS))
    expected = value.tobytes()
    memory = OWN_MEMORY.answering()
    _, buffers = describe([value, value], memory=memory)
    envelope = memory.stage(Envelope("rpc.reply", buffers=buffers))
    del value, buffers
    memory.settle(envelope)
    assert [bytes(each) for each in envelope.buffers] == [expected, expected]
    assert address(envelope.buffers[0]) != address(envelope.buffers[1])


@given(st.permutations(range(3)), st.sampled_from("CF"))
def test_any_order_of_axes_arrives_as_it_was(axes: list[int], order: str) -> None:
    def make() -> Array:
        value = np.arange(24_000.0).reshape(20, 40, 30)
        ordered = np.asfortranarray if order == "F" else np.ascontiguousarray
        return ordered(value.transpose(axes)).copy("K")

    assert sent(make)


def test_a_thread_that_keeps_it_may_write() -> None:
    """The value stays what it was when the function returned."""
    kept: list[Array] = []
    written = threading.Event()

    def write() -> None:
        kept[0][...] = -1.0
        written.set()

    value = np.arange(float(ITEMS))
    kept.append(value)
    memory = OWN_MEMORY.answering()
    _, buffers = describe([value], memory=memory)
    envelope = memory.stage(Envelope("rpc.reply", buffers=buffers))
    del value, buffers
    memory.settle(envelope)
    threading.Thread(target=write).start()
    assert written.wait(20.0)
    assert np.array_equal(np.frombuffer(envelope.buffers[0]), np.arange(float(ITEMS)))
