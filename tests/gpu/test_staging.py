"""Arrays to the GPU and back by way of pinned memory: pieces of CuPy's pool, or shared memory.

The stand-in refuses a transfer of memory that is not pinned, but by CuPy's own functions for users,
whose waits it counts by their names.
"""

from __future__ import annotations

import gc
import importlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from telegrad import arrays, dist_autograd, rpc, tensor
from telegrad import collectives as dist
from telegrad.arrays import staging
from telegrad.launch import LocalWorkers
from telegrad.testing import Cluster
from tests.gpu.comparison import host, on_gpu
from tests.gpu.sharing import OPTIONS, wait_until
from tests.gpu.stand_in.stand_in_memory import registered
from tests.gpu.stand_in.stand_in_streams import watched

PIECE = 64


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has every array of the test staged in several pieces."""
    monkeypatch.setattr(staging, "PIECE_BYTES", PIECE)


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


@pytest.mark.few(1)
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


@pytest.mark.parametrize("size", [1, 9, 512, 513, 70_000])
def test_small_arrays_go_by_pinned_memory_too(stand_in_alone: Any, size: int) -> None:
    source = octets(size)
    there = stand_in_alone.zeros(size, np.uint8)
    with watched() as seen:
        arrays.copy_into(there, source)
        back = arrays.to_host(there)
        again = arrays.to_host(arrays.to_device(source, "cuda"))
    np.testing.assert_array_equal(back, source)
    np.testing.assert_array_equal(again, source)
    assert set(seen.waits) == {"synchronize"}  # `get` would copy to memory that is not pinned


def test_empty_arrays_wait_for_nothing(stand_in_alone: Any) -> None:
    there = stand_in_alone.zeros((0, 3))
    with watched() as seen:
        assert arrays.to_host(there).shape == (0, 3)
    assert seen.waits == []


class Copies:
    """Counts the copies between host and GPU."""

    def __init__(self, xp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        copy = xp.cuda.runtime.memcpyAsync

        def counted(target: int, source: int, size: int, kind: int, stream: int) -> None:
            self.sizes.append(size)
            copy(target, source, size, kind, stream)

        monkeypatch.setattr(xp.cuda.runtime, "memcpyAsync", counted)


@pytest.mark.parametrize("refused", [False, True])
def test_shared_memory_is_registered_and_copied_at_once(
    stand_in_alone: Any, monkeypatch: pytest.MonkeyPatch, *, refused: bool
) -> None:
    monkeypatch.setenv("STAND_IN_PIN", "refused" if refused else "")
    copies = Copies(stand_in_alone, monkeypatch)
    size = 2 * staging.PIECE_BYTES + 5
    source = arrays.shared_empty(size, np.uint8)
    source[...] = octets(size)
    for _ in range(2):
        there = arrays.to_device(source, "cuda")
    back = arrays.shared_empty(size, np.uint8)
    arrays.octets_from_gpu(back, there)
    np.testing.assert_array_equal(back, source)
    assert len(copies.sizes) == (9 if refused else 3)
    assert registered() == (0 if refused else 2)
    del source, back
    gc.collect()
    assert registered() == 0


@pytest.mark.usefixtures("small_pieces")
def test_threads_that_register_shared_memory_at_once(
    stand_in_alone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = stand_in_alone.cuda.runtime
    register, begun = runtime.hostRegister, threading.Barrier(2, timeout=60)

    def together(*args: int) -> None:
        begun.wait()
        register(*args)  # CUDA tells one of both that it is done already

    monkeypatch.setattr(runtime, "hostRegister", together)
    source = arrays.shared_empty(2 * PIECE, np.uint8)
    source[...] = octets(2 * PIECE)
    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(arrays.to_device, source, "cuda") for _ in range(2)]
        assert all((host(each.result()) == source).all() for each in found)
    copies = Copies(stand_in_alone, monkeypatch)
    arrays.to_device(source, "cuda")  # registers nothing: nobody else would come
    assert copies.sizes == [source.nbytes]  # and it is known to be registered
    assert registered() == 1
    del source
    gc.collect()
    assert registered() == 0


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("way", ["to the GPU", "to the host"])
def test_an_interrupted_copy_has_ended_when_its_error_arrives(
    stand_in_alone: Any, monkeypatch: pytest.MonkeyPatch, way: str, *, shared: bool
) -> None:
    xp = stand_in_alone
    here = arrays.shared_empty(9, np.uint8) if shared else np.zeros(9, np.uint8)
    there = xp.zeros(9, np.uint8)
    copy = xp.cuda.runtime.memcpyAsync

    def interrupted(*args: int) -> None:
        copy(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(xp.cuda.runtime, "memcpyAsync", interrupted)
    with watched() as seen, pytest.raises(KeyboardInterrupt):
        if way == "to the GPU":
            arrays.copy_into(there, here)
        else:
            arrays.octets_from_gpu(here, there)
    assert seen.waits == ["synchronize"]  # else the memory may be unregistered during the copy


# -- every path of an array that travels ---------------------------------------------------------

SMALL, BIG = 100, 70_001  # of float64; the second is sent beside its message


def calls(xp: Any) -> None:
    for size in (SMALL, BIG):
        x = xp.arange(size, dtype=np.float64)
        assert on_gpu(rpc.rpc_sync("worker1", np.negative, (x,)))
        assert on_gpu(rpc.rpc_async("worker1", np.negative, ([x, {"x": x}][0],)).wait())
        there = rpc.remote("worker1", np.negative, (x,))
        assert on_gpu(there.to_here())
        assert on_gpu(rpc.RRef(x).to_here())
        assert all(map(on_gpu, rpc.gather([("worker1", np.negative, (x,))]).wait()))


def collectives(xp: Any) -> None:
    dist.init_process_group()
    r = dist.get_rank()
    for size in (SMALL, BIG):
        x = xp.full(2 * size, float(r))
        dist.all_reduce(x)
        dist.all_reduce(x, dist.ReduceOp.PREMUL_SUM(2.0))
        dist.all_reduce(x[::2])
        dist.reduce(x, 1)
        dist.broadcast(x, 0)
        assert all(map(on_gpu, dist.all_gather(x)))
        assert on_gpu(dist.all_gather_single(x))
        dist.gather(x, 0)
        dist.scatter(x, [x, x] if r == 0 else None, 0)
        assert all(map(on_gpu, dist.all_to_all([x[:size], x[size:]])))
        assert on_gpu(dist.reduce_scatter([x[:size], x[size:]]))
        if r == 0:
            dist.send(x, 1)
        else:
            dist.recv(x, 0)
        with dist.coalesced():
            dist.all_reduce(x)
            dist.broadcast(x, 1)
    dist.destroy_process_group()


def gradients(xp: Any) -> None:
    for size in (SMALL, BIG):
        x = tensor(xp.ones(size), requires_grad=True)
        with dist_autograd.context() as context:
            loss = rpc.rpc_sync("worker1", np.sin, (x,)).sum()
            dist_autograd.backward(context, [loss])
            assert on_gpu(dist_autograd.get_gradients(context)[x])


@pytest.mark.few(1)
@pytest.mark.parametrize("program", [calls, collectives, gradients])
def test_no_path_goes_by_memory_that_is_not_pinned(
    stand_in_alone: Any, program: Callable[[Any], None]
) -> None:
    with Cluster(2) as cluster, watched() as seen:
        if program is collectives:
            cluster.run(program, stand_in_alone)
        else:
            cluster.call(0, program, stand_in_alone)
    assert set(seen.waits) - {"synchronize", "event.synchronize"} == set()
    assert seen.waits


_SEEN: list[Any] = []  # of a worker


def watch_here() -> None:
    importlib.import_module("cupy")
    watching = watched()
    _SEEN.extend((watching, watching.__enter__()))


def seen_here() -> tuple[list[str], int]:
    return sorted(set(_SEEN[1].waits)), registered()


@pytest.mark.long
def test_between_processes_arrays_lie_in_registered_memory_alone(
    stand_in_alone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = Copies(stand_in_alone, monkeypatch)
    options = replace(OPTIONS, cuda_ipc=False)
    with rpc.init_rpc("me", options=options), LocalWorkers(1) as workers, watched() as seen:
        worker = workers.names[0]
        rpc.rpc_sync(worker, watch_here)
        x = stand_in_alone.arange(2 * staging.PIECE_BYTES // 8 + 1, dtype=np.float64)
        for _ in range(2):  # the first finds no stream yet
            copies.sizes.clear()
            assert on_gpu(rpc.rpc_sync(worker, np.negative, (x,)))
        assert copies.sizes == [x.nbytes, x.nbytes]  # out and back, each at once
        waits, there = rpc.rpc_sync(worker, seen_here)
        assert set(waits) | set(seen.waits) <= {"synchronize", "event.synchronize"}
        assert there == registered() > 0
    wait_until("no memory is registered", lambda: gc.collect() >= 0 and registered() == 0)
