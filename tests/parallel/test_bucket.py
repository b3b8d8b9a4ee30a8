"""Every parameter is in one bucket, in an order that backward follows."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telegrad.arrays import shared_empty
from telegrad.parallel.bucket import Buffers, Slot, assign_buckets, completed_order
from telegrad.types import Array
from tests.parts import needs_memory

DTYPES = [np.dtype(np.float64), np.dtype(np.float32), np.dtype(np.int8)]
SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)
SLOTS = st.lists(st.builds(Slot, SHAPES, st.sampled_from(DTYPES)), max_size=20)
SOME_SPARSE = st.lists(st.builds(Slot, SHAPES, st.sampled_from(DTYPES), st.booleans()), max_size=20)


@given(SLOTS, st.integers(1, 200))
def test_a_bucket_is_closed_only_by_what_does_not_fit(slots: list[Slot], limit: int) -> None:
    by_dtype = defaultdict(list)
    for bucket in assign_buckets(slots, limit):
        by_dtype[bucket.dtype].append(bucket.members)
    for filled in by_dtype.values():
        for members, following in itertools.pairwise(filled):
            size = sum(slots[i].nbytes for i in members)
            assert size + slots[following[0]].nbytes > limit


@pytest.mark.long
@given(SOME_SPARSE, st.integers(1, 200), st.data())
def test_buckets_hold_every_parameter_once_in_the_order_in_which_gradients_come(
    slots: list[Slot], limit: int, data: st.DataObject
) -> None:
    everything = range(len(slots))
    order = data.draw(st.none() | st.permutations(everything))
    buckets = assign_buckets(slots, limit, order)
    assert buckets == assign_buckets(slots, limit, order)
    assert sorted(i for bucket in buckets for i in bucket.members) == [*everything]
    alone = [bucket.members for bucket in buckets if bucket.sparse]
    assert sorted(alone) == [(i,) for i, slot in enumerate(slots) if slot.sparse]
    reached = [*everything][::-1] if order is None else order
    last = []
    for bucket in buckets:
        assert {slots[i].dtype for i in bucket.members} == {bucket.dtype}
        places = [reached.index(i) for i in bucket.members]
        assert places == sorted(places)
        assert len(places) == 1 or sum(slots[i].nbytes for i in bucket.members) <= limit
        last.append(places[-1])
    assert last == sorted(last)


@given(st.integers(0, 20), st.data())
def test_an_order_is_completed_by_what_was_not_seen(n: int, data: st.DataObject) -> None:
    everything = data.draw(st.permutations(range(n)))
    seen = everything[: data.draw(st.integers(0, n))]
    order = completed_order(seen, n)
    assert order[: len(seen)] == seen
    assert sorted(order) == list(range(n))
    assert order[len(seen) :] == sorted(order[len(seen) :], reverse=True)


@pytest.mark.parametrize(
    ("sizes", "limit", "buckets"),
    [
        ((4, 4, 2, 6, 3, 3), 8, [(5, 4), (3, 2), (1, 0)]),  # the drawing
        ((1, 9, 1), 4, [(2,), (1,), (0,)]),  # one that is larger than a bucket is alone
    ],
)
def test_buckets_of_sizes(sizes: list[int], limit: int, buckets: list[tuple[int, ...]]) -> None:
    slots = [Slot((n,), np.dtype(np.int8)) for n in sizes]
    assert [bucket.members for bucket in assign_buckets(slots, limit)] == buckets


def test_dtypes_are_filled_side_by_side() -> None:
    a, b = np.dtype(np.float32), np.dtype(np.float64)
    slots = [Slot((1,), dtype) for dtype in (a, b, a, b)]
    found = [(bucket.dtype, bucket.members) for bucket in assign_buckets(slots, 100)]
    assert found == [(b, (3, 1)), (a, (2, 0))]


@pytest.mark.long
@pytest.mark.parametrize("make", [np.empty, pytest.param(shared_empty, marks=needs_memory)])
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3)), max_size=20))
def test_memory_is_used_again_once_no_array_lies_in_it(
    make: Any, steps: list[tuple[int, int]]
) -> None:
    """Each step takes a buffer, keeps some views of it, and lets the oldest views go."""
    buffers = Buffers(lambda nbytes: make(nbytes, np.uint8))
    held: list[tuple[Array, float]] = []
    for number, (size, keep) in enumerate(steps):
        buffer = buffers.take(size, 4 * size, np.dtype(np.float32))
        assert buffer.shape == (4 * size,)
        buffer[...] = number
        held = [*held, (buffer.reshape(2, -1)[1:], float(number))][-keep:] if keep else []
        del buffer
        for view, value in held:
            assert (view == value).all()


def counted() -> tuple[Buffers, list[int]]:
    """Returns buffers, and the sizes of the memory that they make."""
    made: list[int] = []

    def make(nbytes: int) -> Array:
        made.append(nbytes)
        return np.empty(nbytes, np.uint8)

    return Buffers(make), made


def test_no_more_than_two_of_a_bucket_are_kept() -> None:
    (buffers, made), dtype = counted(), np.dtype(np.float64)
    for _ in range(3):
        buffers.take(0, 4, dtype)
    assert made == [32]
    held = [buffers.take(0, 4, dtype) for _ in range(4)]
    assert made == [32] * 4
    held.clear()
    held = [buffers.take(0, 4, dtype) for _ in range(3)]
    assert made == [32] * 5


def test_none_is_used_again_after_clear() -> None:
    buffers, made = counted()
    buffers.take(0, 4, np.dtype(np.float64))
    buffers.clear()
    buffers.take(0, 2, np.dtype(np.float64))
    assert made == [32, 16]
