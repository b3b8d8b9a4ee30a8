"""Memory of a GPU that processes of one host share: real processes, on a GPU or on the stand-in."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from telegrad import arrays, rpc
from telegrad.launch import LocalWorkers
from tests.gpu.comparison import host, on_gpu
from tests.gpu.sharing import (
    OPTIONS,
    SIZE,
    checksum,
    import_cupy_there,
    make,
    negative,
    none_out,
    not_by_the_host,
    source,
    tried,
)
from tests.gpu.watch import Watch, taken_there, watch_there


def test_arrays_go_by_the_gpu(
    watch: Watch, worker: str, monkeypatch: pytest.MonkeyPatch, xp: Any
) -> None:
    tried(watch, worker)
    not_by_the_host(monkeypatch)
    for dtype in (np.float32, np.float64, np.complex64, np.int16, np.bool_):
        values = (1000 * source(1)).astype(dtype)
        there = xp.asarray(values)
        arrived = rpc.rpc_sync(worker, np.copy, (there,))
        assert on_gpu(arrived)
        assert arrived.dtype == values.dtype
        np.testing.assert_array_equal(host(arrived), values)
    grid = xp.asarray(source(2, 300 * 401).reshape(300, 401))
    for part in (grid.T, grid[::-2], grid[:, 3:390], grid[100:250]):
        arrived = rpc.rpc_sync(worker, negative, (part,))
        np.testing.assert_array_equal(host(arrived), -host(part))
    assert watch.slabs == watch.mappings == 4  # one for each size of a block
    none_out(watch, worker)


@pytest.mark.long
def test_an_array_that_arrived_is_the_receivers_own(watch: Watch, worker: str) -> None:
    tried(watch, worker)
    arrived = [rpc.rpc_sync(worker, make, (i, SIZE)) for i in range(5)]
    none_out(watch, worker)
    arrived[0][...] = 7.0
    for i in range(1, 5):
        np.testing.assert_array_equal(host(arrived[i]), source(i))


@pytest.mark.long
def test_what_is_sent_is_the_value_at_the_time_of_the_call(
    watch: Watch, worker: str, xp: Any
) -> None:
    tried(watch, worker)
    x = xp.zeros(SIZE)
    futures = []
    for i in range(10):
        x[...] = i
        futures.append(rpc.rpc_async(worker, checksum, (x,)))
    assert [total for _, total in rpc.wait_all(futures)] == [float(i * SIZE) for i in range(10)]
    none_out(watch, worker)


@pytest.mark.long
def test_many_threads(watch: Watch, worker: str, xp: Any) -> None:
    failures: list[BaseException] = []

    def run(seed: int) -> None:
        try:
            for i in range(6):
                values = source(100 * seed + i, SIZE + 1000 * seed)
                arrived = rpc.rpc_sync(worker, negative, (xp.asarray(values),))
                np.testing.assert_array_equal(host(arrived), -values)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    none_out(watch, worker)


@pytest.mark.long
def test_three_gpus(
    three_gpus: Any, watch: Watch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import_cupy_there(three_gpus, monkeypatch, tmp_path)
    options = replace(OPTIONS, device_maps={"worker1": {0: 1, 1: 2, 2: 0}})
    with rpc.init_rpc("me", options=options), LocalWorkers(1) as workers:
        worker = workers.names[0]
        rpc.rpc_sync(worker, watch_there)
        for i in range(6):
            values = source(i)
            for number in range(3):
                there = arrays.to_device(values, f"cuda:{number}")
                found = rpc.rpc_sync(worker, checksum, (there,))
                assert found == (f"cuda:{(number + 1) % 3}", float(values.sum()))
        assert watch.works == {0: True, 1: True, 2: True}
        none_out(watch, worker)


@pytest.mark.long
def test_nothing_is_shared_unless_both_say_so(
    workers_have_cupy: None, watch: Watch, xp: Any
) -> None:
    with (
        rpc.init_rpc("me", options=replace(OPTIONS, cuda_ipc=False)),
        LocalWorkers(1) as workers,
    ):
        worker = workers.names[0]
        rpc.rpc_sync(worker, watch_there)
        for i in range(3):
            values = source(i)
            arrived = rpc.rpc_sync(worker, np.negative, (xp.asarray(values),))
            np.testing.assert_array_equal(host(arrived), -values)
        assert watch.streams == []
        assert watch.taken == rpc.rpc_sync(worker, taken_there) == 0
