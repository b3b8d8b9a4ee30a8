"""What tests of shared memory of GPUs have in common: waiting, and what workers run."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from telegrad import arrays, rpc
from telegrad import collectives as dist
from telegrad.testing.fork_server import ForkedProcess
from telegrad.transport.channels import device_memory as device_slabs
from telegrad.wire import external as gpu_arrays
from tests.gpu.comparison import host, on_gpu
from tests.gpu.watch import Watch, out_there, watch_there, works_there

__all__ = [
    "OPTIONS",
    "SIZE",
    "checksum",
    "import_cupy_there",
    "kill_this_process",
    "make",
    "my_pid",
    "negative",
    "none_out",
    "not_by_the_host",
    "source",
    "tried",
    "wait_until",
    "works",
]

OPTIONS = rpc.RpcOptions(token="a token that only the tests use", timeout=40.0, cuda_ipc=True)
SIZE = 100_003  # of float64: 800 KB and no round number
SECONDS = 20.0


# What a worker imports in place of CuPy.
CUPY = """
import os, sys
from tests.gpu.stand_in.stand_in import stand_in
from tests.gpu.stand_in.stand_in_nccl import nccl
from tests.gpu.stand_in.stand_in_nccl_far import reach_other_processes
reach_other_processes()
sys.modules[__name__] = stand_in(int(os.environ["STAND_IN_GPUS"]))
sys.modules[__name__].__spec__ = __spec__
sys.modules[__name__ + ".cuda.nccl"] = nccl
"""


def import_cupy_there(xp: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if "stand_in" in str(xp.__file__):
        (tmp_path / "cupy.py").write_text(CUPY)
        monkeypatch.syspath_prepend(str(tmp_path))  # workers search where this process does
        monkeypatch.setenv("STAND_IN_GPUS", str(xp.cuda.runtime.getDeviceCount()))
        monkeypatch.setattr(subprocess, "Popen", ForkedProcess)  # not with a GPU: CUDA forbids it


def wait_until(what: str, found: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not found():
        assert time.monotonic() < deadline, what
        threading.Event().wait(0.005)


def kill_this_process(*_: object) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def shrinks(xp: Any, group: dist.ProcessGroup, size: int) -> None:
    """Reduces among ranks 0 and 2 of three, after rank 1 has died."""
    array = xp.full(size, group.rank + 1.0, np.float32)
    dist.all_reduce(array, group=dist.shrink_group(group))
    assert float(array.sum()) == 4.0 * size


def my_pid() -> int:
    return os.getpid()


def negative(x: Any) -> Any:
    assert on_gpu(x)
    x *= -1.0  # an array of its own, writable
    return x


def checksum(x: Any) -> tuple[str, float]:
    return arrays.device_of(x), float(host(x).sum())


def make(seed: int, size: int) -> Any:
    return arrays.to_device(np.random.default_rng(seed).normal(size=size), "cuda")


def source(seed: int = 0, size: int = SIZE) -> Any:
    return np.random.default_rng(seed).normal(size=size)


def tried(watch: Watch, worker: str) -> None:
    """Sends one array both ways, on trial; afterwards others go by the GPU."""
    there = arrays.to_device(source(), "cuda")
    rpc.rpc_sync(worker, watch_there)  # what finds no stream yet goes by the host
    np.testing.assert_array_equal(host(rpc.rpc_sync(worker, negative, (there,))), -source())
    wait_until("an answer to my trial", lambda: works(watch, worker))
    wait_until("one to theirs", lambda: rpc.rpc_sync(worker, works_there))


def works(watch: Watch, worker: str) -> bool:
    rpc.rpc_sync(worker, my_pid)  # a frame back, and a frame there
    return watch.works.get(0, False)


def not_by_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def unexpected(*args: object) -> None:
        raise AssertionError("an array went by host memory")

    for module, name in ((gpu_arrays, "to_host"), (gpu_arrays, "octets_from_gpu")):
        monkeypatch.setattr(module, name, unexpected)
    monkeypatch.setattr(device_slabs, "octets_from_gpu", unexpected)


def none_out(watch: Watch, worker: str) -> None:
    gc.collect()
    wait_until("all loans are back", lambda: not watch.out and rpc.rpc_sync(worker, out_there) == 0)
