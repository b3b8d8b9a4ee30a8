"""Memory that big messages lay in is used again, by nobody too early, and not kept for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from telegrad.transport.shm.spare_memory import IDLE_BYTES, IDLE_SECONDS, SMALLEST, SpareMemory
from telegrad.types import Array
from telegrad.wire import Envelope
from tests.transport.test_bulk_lanes import pattern
from tests.transport.workers import ManualClock, floor_of

MIB = 2**20


def made(spare: SpareMemory, size: int = MIB) -> Array:
    """An array as a received one is, over all of some memory."""
    room = spare.take(size)
    assert room is not None
    return np.ndarray((size // 4,), np.float32, room)


def place(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


@pytest.mark.parametrize(
    "view",
    [
        lambda array: array,
        lambda array: array[5:],
        lambda array: array.reshape(2, -1).T,
        lambda array: memoryview(array),
        lambda array: np.frombuffer(array, np.uint8),
        lambda array: array.view(np.complex64)[1:].real,
    ],
    ids=["itself", "slice", "transposed", "memoryview", "frombuffer", "view"],
)
def test_it_is_spare_when_the_last_view_is_gone(view: Callable[[Array], object]) -> None:
    spare = SpareMemory(ManualClock())
    array = made(spare)
    where, held = place(array), view(array)
    del array
    assert spare.idle_bytes == 0
    assert place(made(spare)) != where
    del held
    assert spare.idle_bytes == 2 * MIB
    kept = [made(spare), made(spare)]
    assert where in map(place, kept)
    assert spare.idle_bytes == 0


def test_what_is_small_is_left_to_malloc() -> None:
    assert SpareMemory(ManualClock()).take(SMALLEST - 1) is None


def test_what_is_much_bigger_than_needed_stays_spare() -> None:
    spare = SpareMemory(ManualClock())
    made(spare, 8 * MIB)
    where = place(made(spare, 8 * MIB))
    small, big = made(spare, 4 * MIB), made(spare, 7 * MIB)
    assert place(small) != where == place(big)


def test_what_was_used_last_is_taken_first() -> None:
    spare = SpareMemory(ManualClock())
    first, second = made(spare), made(spare)
    where = place(first)
    del second
    del first
    assert place(made(spare)) == where


def test_what_is_idle_for_long_is_let_go() -> None:
    clock = ManualClock()
    spare = SpareMemory(clock)
    made(spare)
    assert spare.idle_bytes == MIB
    clock.now += IDLE_SECONDS - 1.0
    spare.tick()
    assert spare.idle_bytes == MIB
    clock.now += 2.0
    spare.tick()
    assert spare.idle_bytes == 0


def test_no_more_is_kept_than_the_bound() -> None:
    spare = SpareMemory(ManualClock())
    arrays = [made(spare, IDLE_BYTES // 4) for _ in range(6)]
    arrays.clear()
    assert spare.idle_bytes == IDLE_BYTES


def test_threads_that_take_and_let_go_never_share() -> None:
    spare = SpareMemory(ManualClock())
    wrong: list[int] = []

    def use(mark: int) -> None:
        for k in range(300):
            array = made(spare)
            array[:] = mark + k
            if (array != mark + k).any():
                wrong.append(mark)

    threads = [threading.Thread(target=use, args=(1000 * k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert spare.idle_bytes <= 8 * MIB  # each has the next one before it lets go of the last


# -- replies ---------------------------------------------------------------------------------------


def test_a_reply_that_is_what_came_is_not_copied() -> None:
    spare = SpareMemory(ManualClock())
    answering = spare.answering()
    array = made(spare)
    array[:] = 7.0
    where = place(array)
    kept = answering.keep(array)
    assert kept is not None
    envelope = Envelope("test.reply", buffers=[kept])
    del kept, array
    answering.settle(envelope)
    (buffer,) = envelope.buffers
    sent = np.frombuffer(buffer, np.float32)
    assert place(sent) == where
    assert (sent == 7.0).all()
    assert spare.idle_bytes == 0
    del sent, buffer, envelope
    assert spare.idle_bytes == MIB


def test_a_reply_to_which_something_else_refers_is_copied() -> None:
    spare = SpareMemory(ManualClock())
    answering = spare.answering()
    array = made(spare)
    array[:] = 7.0
    kept = answering.keep(array)
    assert kept is not None
    envelope = Envelope("test.reply", buffers=[kept])
    del kept
    answering.settle(envelope)
    array[:] = 8.0
    assert (np.frombuffer(envelope.buffers[0], np.float32) == 7.0).all()
    where = place(array)
    del array
    assert place(made(spare)) == where


def test_a_part_of_what_came_is_copied() -> None:
    answering = SpareMemory(ManualClock()).answering()
    array = np.ndarray((MIB,), np.uint8, answering.take(MIB))
    assert answering.keep(array[1:]) is None
    assert answering.keep(np.zeros(MIB, np.uint8)) is None


# -- in use ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["grpc", "sockets"])
def test_arrays_that_come_lie_where_the_last_ones_lay(kind: str) -> None:
    with floor_of(kind) as floor:
        alice, bob = floor.pair()
        places = set()
        for call in range(4):
            alice.post(bob, call, buffers=[pattern(2 * MIB, call)])
            got = bob.recorder.wait_envelopes(1).pop()
            array = np.frombuffer(got.buffers[0], np.uint8)
            assert array.tobytes() == pattern(2 * MIB, call)
            places.add(place(array))
            bob.recorder.envelopes.clear()
            del got, array
        assert len(places) <= 2  # a thread may still hold the last one as the next comes
