"""What workers run in tests of arrays in memory that both ends map."""

from __future__ import annotations

import gc
import os
from typing import Any

import numpy as np

from telegrad import rpc
from telegrad.arrays import shared_empty
from telegrad.rpc.agent.core import current_agent
from telegrad.testing import leaks
from telegrad.transport.channels.answers import Answering

KEPT: list[Any] = []  # of one worker, for as long as a test says


def echo(value: Any) -> Any:
    return value


def keep(array: np.ndarray[Any, Any]) -> int:
    KEPT.append(array)
    return int(array[0])


def have_no_memory() -> None:
    """Has this worker have none for copies of what it answers."""

    def settle(self: Answering, envelope: object) -> None:
        raise MemoryError("none left")

    Answering.settle = settle  # type: ignore[method-assign]


def check_kept(forget: bool) -> list[int]:
    firsts = [int(array[0]) for array in KEPT if (array == array[0]).all()]
    if forget:
        KEPT.clear()
        gc.collect()
    return firsts


def total(array: np.ndarray[Any, Any]) -> float:
    array += 1
    return float(array.sum())


def mapped() -> int:
    """Returns how many mappings of shared memory this process has."""
    with open("/proc/self/maps") as lines:
        return sum("memfd:telegrad" in line for line in lines)


def resources() -> tuple[int, int]:
    gc.collect()
    return len(os.listdir("/proc/self/fd")), mapped()


def moved() -> tuple[int, int, int]:
    """Returns the bytes that this worker has lent, was lent, and its chunks."""
    now = current_agent().exchange.statistics()
    return now.slab_bytes_sent, now.slab_bytes_received, now.chunks_sent + now.chunks_received


def round_trips() -> None:
    """Sends arrays of many kinds there and back."""
    rpc.rpc_sync("worker1", echo, (0,))
    generator = np.random.default_rng(0)
    for dtype in ("f8", ">i4", "?", "c16", "f2", "S3", [("x", "i1"), ("y", "f8")]):
        for size in (0, 1, 10_000, 2**17 + 1, *([3 * 2**20] if dtype == "f8" else [])):
            octets = generator.integers(0, 2, size * np.dtype(dtype).itemsize, np.uint8)
            flat = octets.view(dtype)
            for array in (flat, flat[::-2], flat.reshape(-1, 1)[:, :1].T):
                back = rpc.rpc_sync("worker1", echo, (array,))
                assert back.dtype == array.dtype
                assert back.flags.writeable
                assert not np.shares_memory(back, array)
                assert back.shape == array.shape
                assert back.tobytes() == array.tobytes()
    grid = np.asfortranarray(generator.random((400, 500)))
    back, again, big = rpc.rpc_sync("worker1", echo, ((grid, grid[5:], b"x" * 2**21),))
    assert back.flags.f_contiguous
    np.testing.assert_array_equal(back, grid)
    np.testing.assert_array_equal(again, grid[5:])
    assert big == b"x" * 2**21


def call_often(times: int) -> None:
    array = np.zeros(40_000)
    for k in range(times):
        array[:] = k
        assert rpc.rpc_sync("worker1", total, (array,)) == (k + 1) * array.size
        assert array[0] == k  # the callee's own has changed


def copies_of(size: int) -> tuple[list[int], tuple[int, int, int]]:
    """Counts the copies of big arrays in this process while one goes there and back."""
    array, counted, real = np.zeros(size, np.uint8), [], np.copyto
    rpc.rpc_sync("worker1", echo, (array,))
    before = moved()

    def copyto(to: Any, source: Any, *args: Any, **kwargs: Any) -> None:
        counted.append(memoryview(to).nbytes)
        real(to, source, *args, **kwargs)

    np.copyto = copyto  # type: ignore[assignment]
    try:
        back = rpc.rpc_sync("worker1", echo, (array,))
    finally:
        np.copyto = real
    assert back.size == size
    now = moved()
    return counted, (now[0] - before[0], now[1] - before[1], now[2] - before[2])


def share(size: int) -> tuple[int, tuple[int, int, int]]:
    """Sends a shared array twice, once in another order, and looks at what the callee has written."""
    rpc.rpc_sync("worker1", echo, (0,))
    array = shared_empty((size // 8, 1)).T
    before, counted, real = moved(), 0, np.copyto

    def copyto(to: Any, source: Any) -> None:
        nonlocal counted
        counted += 1
        real(to, source)

    np.copyto = copyto  # type: ignore[assignment]
    try:
        for k in (1, 2):
            assert rpc.rpc_sync("worker1", total, (array,)) == k * array.size
            assert (array == k).all()
    finally:
        np.copyto = real
    now = moved()
    assert rpc.rpc_sync("worker1", total, (array[:, ::2],)) == 3 * array[:, ::2].size
    assert (array == 2).all()
    assert rpc.rpc_sync("worker0", total, (array,)) == 3 * array.size  # to oneself: a copy
    assert (array == 2).all()
    return counted, (now[0] - before[0], now[1] - before[1], now[2] - before[2])


def keep_there(count: int) -> None:
    for k in range(count):
        assert rpc.rpc_sync("worker1", keep, (np.full(100_000, k % 250, np.uint8),)) == k % 250


def hold_while_lost() -> float:
    """Keeps an array of a worker that is killed meanwhile."""
    KEPT.append(rpc.rpc_sync("worker1", echo, (np.arange(2**17, dtype=float),)))
    return float(KEPT[0][-1])


def let_go() -> None:
    np.testing.assert_array_equal(KEPT.pop(), np.arange(2**17, dtype=float))
    gc.collect()
    leaks.wait_until_gone("shared memory", lambda: ["a mapping"] * mapped(), 20.0)
