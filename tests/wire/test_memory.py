"""Blocks: memory that is used again once nothing refers to it, and never before."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telegrad.wire import KEPT_BYTES, LEAST_BLOCK_BYTES, Blocks, Buffer

SIZES = st.sampled_from(
    [LEAST_BLOCK_BYTES, LEAST_BLOCK_BYTES + 1, 3 * LEAST_BLOCK_BYTES, KEPT_BYTES // 2]
)


def octets(block: Buffer) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.frombuffer(block, np.uint8)


def owner(block: memoryview | None) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Returns the array whose memory a block is."""
    assert block is not None
    assert isinstance(block.obj, np.ndarray)
    return block.obj


@settings(max_examples=50)
@given(st.lists(st.one_of(SIZES, st.integers(0, 5)), max_size=30))
def test_no_block_is_given_twice(steps: list[int]) -> None:
    """A step takes a block of a size, or drops one of those that were taken."""
    blocks, held = Blocks(), dict[int, Buffer]()
    for number, step in enumerate(steps):
        if step <= 5:
            held.pop(sorted(held)[step % len(held)] if held else -1, None)
            continue
        block = blocks.take(step)
        if block is None:
            continue
        assert block.nbytes == step
        octets(block)[[0, -1]] = number
        held[number] = block
        assert sum(memoryview(each).nbytes for each in held.values()) <= KEPT_BYTES
        assert all(set(octets(each)[[0, -1]]) == {key} for key, each in held.items())


def test_a_block_is_used_again_once_no_view_of_it_is_left() -> None:
    blocks = Blocks()
    block = blocks.take(LEAST_BLOCK_BYTES)
    assert block is not None
    place = octets(block).ctypes.data
    view = np.ndarray((4,), np.float32, block)[1:]
    del block
    other = blocks.take(LEAST_BLOCK_BYTES)
    assert other is not None
    assert octets(other).ctypes.data != place
    del view
    again = blocks.take(LEAST_BLOCK_BYTES)
    assert again is not None
    assert octets(again).ctypes.data == place


def test_blocks_that_are_used_no_more_make_way() -> None:
    """Else a program whose sizes change would get fresh memory for each message from then on."""
    blocks = Blocks()
    old = [blocks.take(KEPT_BYTES // 8) for _ in range(8)]
    assert None not in old
    del old
    sizes = [KEPT_BYTES // 8 - 1, KEPT_BYTES // 8 - 2]
    first = [weakref.ref(owner(blocks.take(size))) for size in sizes]
    for each, size in zip(first, sizes, strict=True):
        assert owner(blocks.take(size)) is each()


def test_a_block_that_cannot_be_had_costs_no_other() -> None:
    blocks = Blocks()
    held, free = blocks.take(KEPT_BYTES // 2), blocks.take(KEPT_BYTES // 4)
    kept = weakref.ref(owner(free))
    del free
    assert blocks.take(KEPT_BYTES // 2 + 1) is None
    assert kept() is not None
    assert held is not None


@pytest.mark.parametrize("size", [0, 1, LEAST_BLOCK_BYTES - 1, KEPT_BYTES + 1])
def test_there_is_none_for_little_and_for_too_much(size: int) -> None:
    assert Blocks().take(size) is None


@pytest.mark.parametrize("size", [0, 5, LEAST_BLOCK_BYTES, KEPT_BYTES + 1])
def test_a_copy_is_its_own(size: int) -> None:
    data = bytearray(b"\1" * size)
    copy = Blocks().copy_of(data)
    data[:] = bytes(size)
    assert not memoryview(copy).readonly
    assert bytes(copy) == b"\1" * size
