"""Shared memory of GPUs where it cannot be had, and when processes and streams end."""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from telegrad import arrays, rpc
from telegrad.errors import DecodeError, WorkerLostError
from telegrad.launch import LocalWorkers
from telegrad.rpc import seams
from telegrad.transport.channels import shared_memory as slabs
from telegrad.transport.channels.device_memory import DEVICE_BOUNDS
from tests.gpu.comparison import host
from tests.gpu.sharing import (
    OPTIONS,
    SIZE,
    checksum,
    make,
    my_pid,
    negative,
    none_out,
    source,
    tried,
    wait_until,
)
from tests.gpu.stand_in.stand_in_memory import allocated
from tests.gpu.watch import Watch, watch_there

# -- where it cannot be had ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ("no-import", "cudaErrorInvalidResourceHandle"),
        ("garbage", "other bytes are found there than came"),
    ],
)
@pytest.mark.long
def test_what_cannot_be_opened_goes_by_the_host(
    there: str,
    said: str,
    stand_in_alone: Any,
    watch: Watch,
    monkeypatch: pytest.MonkeyPatch,
    said_here: list[str],
    capfd: Any,
) -> None:
    with rpc.init_rpc("me", options=OPTIONS):
        monkeypatch.setenv("STAND_IN_IPC", there)
        with LocalWorkers(1) as workers:
            worker = workers.names[0]
            rpc.rpc_sync(worker, say_all)
            monkeypatch.delenv("STAND_IN_IPC")
            rpc.rpc_sync(worker, watch_there)
            for i in range(5):
                values = source(i)
                arrived = rpc.rpc_sync(worker, negative, (arrays.to_device(values, "cuda"),))
                np.testing.assert_array_equal(host(arrived), -values)
            assert watch.works == {0: False}
            none_out(watch, worker)
    assert len([words for words in said_here if "cannot open memory of GPU" in words]) == 1
    told = capfd.readouterr()
    lines = [line for line in (told.out + told.err).splitlines() if "cannot be opened by" in line]
    assert len(lines) == 1
    assert said in lines[0]


def say_all() -> None:
    logging.basicConfig(level=logging.INFO)
    logging.getLogger().setLevel(logging.INFO)


@pytest.mark.long
def test_what_cannot_be_shared_goes_by_the_host(
    stand_in_alone: Any, watch: Watch, monkeypatch: pytest.MonkeyPatch, said_here: list[str]
) -> None:
    with rpc.init_rpc("me", options=OPTIONS):
        with LocalWorkers(1) as workers:
            worker = workers.names[0]
            rpc.rpc_sync(worker, watch_there)
            monkeypatch.setenv("STAND_IN_IPC", "no-export")
            for i in range(5):
                values = source(i)
                arrived = rpc.rpc_sync(worker, negative, (arrays.to_device(values, "cuda"),))
                np.testing.assert_array_equal(host(arrived), -values)
            gc.collect()
            assert allocated()[0] == 0
            none_out(watch, worker)
    words = [each for each in said_here if "cannot share memory" in each]
    assert len(words) == 1
    assert "cudaErrorNotSupported" in words[0]


@pytest.mark.long
def test_where_there_is_no_gpu(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, said_here: list[str]
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)  # an import of it fails
    with rpc.init_rpc("me", options=OPTIONS):
        with LocalWorkers(1) as workers:
            assert rpc.rpc_sync(workers.names[0], np.negative, (source(),))[0] == -source()[0]
            assert watch.streams == []
    assert "no memory of GPUs is shared: " in said_here[0]


@pytest.mark.long
@pytest.mark.parametrize("device_bounds", [replace(DEVICE_BOUNDS, lent=8 * SIZE)])
def test_more_than_may_be_out_goes_by_the_host(watch: Watch, worker: str, xp: Any) -> None:
    tried(watch, worker)
    taken = watch.taken
    values = [source(i) for i in range(4)]
    there = [xp.asarray(each) for each in values]
    arrived = rpc.rpc_sync(worker, negatives, (there,))
    for got, each in zip(arrived, values, strict=True):
        np.testing.assert_array_equal(host(got), -each)
    assert watch.taken == taken + 1  # of four
    none_out(watch, worker)


def negatives(parts: list[Any]) -> list[Any]:
    return [negative(x) for x in parts]


@pytest.mark.long
def test_more_arrays_than_one_frame_lends(
    watch: Watch, worker: str, xp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried(watch, worker)
    monkeypatch.setattr(slabs, "MOST_LENT", 3)
    read, brought = arrays.DeviceMemory.read, []

    def counted(memory: Any, offset: int, octets: Any) -> None:
        brought.append(offset)
        read(memory, offset, octets)

    monkeypatch.setattr(arrays.DeviceMemory, "read", counted)
    values = [source(i, 9000) for i in range(7)]
    arrived = rpc.rpc_sync(worker, negatives, ([xp.asarray(each) for each in values],))
    for got, each in zip(arrived, values, strict=True):
        np.testing.assert_array_equal(host(got), -each)
    assert len(brought) == 4  # of seven
    none_out(watch, worker)


# -- when a process or a stream ends ---------------------------------------------------------------


def stop(process: int) -> None:
    """Stops a process; all its threads stand still when this returns."""
    os.kill(process, signal.SIGSTOP)
    threads = Path(f"/proc/{process}/task")
    wait_until("it stands still", lambda: all(map(stands_still, threads.glob("*/stat"))))


def stands_still(stat: Path) -> bool:
    return stat.read_text().rpartition(")")[2].split()[0] == "T"


def test_a_receiver_is_killed(
    me: seams.AgentCore, workers_have_cupy: None, watch: Watch, xp: Any
) -> None:
    with LocalWorkers(1) as workers:
        worker = workers.names[0]
        tried(watch, worker)
        process = rpc.rpc_sync(worker, my_pid)
        wait_until("all came back", lambda: not watch.out)
        stop(process)  # so that it has them, and has not looked
        futures = [rpc.rpc_async(worker, checksum, (xp.asarray(source(i)),)) for i in range(3)]
        assert len(watch.out) == 3
        os.kill(process, signal.SIGKILL)
        for future in futures:
            with pytest.raises(WorkerLostError):
                future.wait()
        wait_until("the stream ends", lambda: ended(watch))
    wait_until("what was lent is never used again", lambda: (len(watch.out), watch.slabs) == (0, 0))
    assert watch.retired == 1
    after_a_while(watch)
    wait_until("it is freed", lambda: watch.retired == 0 and nothing_is_shared(xp, watch))


def ended(watch: Watch) -> bool:
    return watch.streams[-1] in watch.ended


def after_a_while(watch: Watch) -> None:
    """Has as much time pass as memory is kept for."""
    watch.passed += 2 * DEVICE_BOUNDS.idle_seconds


def nothing_is_shared(xp: Any, watch: Watch) -> bool:
    on_stand_in = "stand_in" in str(xp.__file__)
    gc.collect()
    return watch.mappings == 0 and (not on_stand_in or allocated() == (0, 0))


@pytest.mark.long
def test_a_sender_is_killed(
    me: seams.AgentCore, workers_have_cupy: None, watch: Watch, xp: Any
) -> None:
    with LocalWorkers(1) as workers:
        worker = workers.names[0]
        tried(watch, worker)
        arrived = [rpc.rpc_sync(worker, make, (i, SIZE)) for i in range(3)]
        late = [rpc.rpc_async(worker, make, (i, SIZE)) for i in range(3, 9)]
        os.kill(rpc.rpc_sync(worker, my_pid), signal.SIGKILL)
        for i, future in enumerate(late, start=3):
            with suppress(WorkerLostError):  # it was killed before or after
                np.testing.assert_array_equal(host(future.wait()), source(i))
    for i, array in enumerate(arrived):
        np.testing.assert_array_equal(host(array), source(i))
    assert watch.mappings == 1
    after_a_while(watch)
    wait_until("its memory is closed", lambda: nothing_is_shared(xp, watch))


def break_it(watch: Watch) -> None:
    """Shuts the connections of this process by sockets of this host, which have a name at one end."""
    for each in Path("/proc/self/fd").iterdir():
        if each.is_socket():
            with socket.socket(fileno=os.dup(int(each.name))) as copied, suppress(OSError):
                named = copied.family == socket.AF_UNIX and copied.getpeername()
                if named or (copied.family == socket.AF_UNIX and copied.getsockname()):
                    copied.shutdown(socket.SHUT_RDWR)
    wait_until("it has ended", lambda: ended(watch))


@pytest.mark.long
def test_a_stream_that_breaks_while_both_live(watch: Watch, worker: str, xp: Any) -> None:
    """What was posted comes all the same, from host memory, and later ones by the GPU again."""
    tried(watch, worker)
    process = rpc.rpc_sync(worker, my_pid)
    wait_until("all came back", lambda: not watch.out)
    stop(process)
    try:
        futures = [rpc.rpc_async(worker, negative, (xp.asarray(source(i)),)) for i in range(4)]
        assert len(watch.out) == 4
        break_it(watch)
        after_a_while(watch)  # the worker has read no frame, and finds the memory freed
        wait_until("it is freed", lambda: watch.retired == 0)
    finally:
        os.kill(process, signal.SIGCONT)
    for i, future in enumerate(futures):
        np.testing.assert_array_equal(host(future.wait()), -source(i))
    tried(watch, worker)
    none_out(watch, worker)


@pytest.mark.long
def test_a_gpu_that_fails_as_the_stream_breaks(
    watch: Watch, worker: str, xp: Any, monkeypatch: pytest.MonkeyPatch, said_here: list[str]
) -> None:
    tried(watch, worker)
    process = rpc.rpc_sync(worker, my_pid)

    def broken(*args: object) -> None:
        raise RuntimeError("cudaErrorECCUncorrectable")

    monkeypatch.setattr(arrays.DeviceMemory, "read", broken)
    stop(process)
    try:
        future = rpc.rpc_async(worker, negative, (xp.asarray(source()),))
        break_it(watch)
    finally:
        os.kill(process, signal.SIGCONT)
    with pytest.raises(DecodeError, match="shares on a GPU, which failed"):
        future.wait()
    wait_until("it is said", lambda: bool(said_here))  # at a tick: no lock is held then
    assert said_here == ["an array on GPU 0 is lost on its way: cudaErrorECCUncorrectable"]
