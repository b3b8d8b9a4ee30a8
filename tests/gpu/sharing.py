"""What tests of shared memory of GPUs have in common: looking into agents, and what workers run."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from telegrad import arrays, rpc
from telegrad.rpc import seams
from telegrad.rpc.agent.ambient import find_agent
from telegrad.transport.shm import device as device_slabs
from telegrad.wire import external as gpu_arrays
from tests.gpu.comparison import host, on_gpu

__all__ = [
    "OPTIONS",
    "SIZE",
    "checksum",
    "held",
    "held_there",
    "import_cupy_there",
    "make",
    "my_pid",
    "negative",
    "none_out",
    "not_by_the_host",
    "slabs_of",
    "source",
    "stream_to",
    "this_agent",
    "tried",
    "wait_until",
    "works",
    "works_there",
]

OPTIONS = rpc.RpcOptions(token="a token that only the tests use", timeout=40.0, cuda_ipc=True)
SIZE = 100_003  # of float64: 800 KB and no round number
SECONDS = 20.0


# What a worker imports in place of CuPy.
CUPY = """
import os, sys
from tests.gpu.stand_in import stand_in
sys.modules[__name__] = stand_in(int(os.environ["STAND_IN_GPUS"]))
"""


def import_cupy_there(xp: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if "stand_in" in str(xp.__file__):
        (tmp_path / "cupy.py").write_text(CUPY)
        monkeypatch.syspath_prepend(str(tmp_path))  # workers search where this process does
        monkeypatch.setenv("STAND_IN_GPUS", str(xp.cuda.runtime.getDeviceCount()))


def wait_until(what: str, found: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not found():
        assert time.monotonic() < deadline, what
        threading.Event().wait(0.005)


def slabs_of(agent: seams.AgentCore) -> device_slabs.DeviceSlabs:
    pool: Any = agent._exchange._terms.slabs
    found: device_slabs.DeviceSlabs = pool.devices
    return found


def stream_to(agent: seams.AgentCore, name: str) -> Any:
    exchange: Any = agent._exchange
    return exchange._connection(agent.worker(name), False).stream


def held(agent: seams.AgentCore) -> tuple[int, int, int]:
    """Bytes of GPUs that are out, slabs, and mappings of others' slabs."""
    devices = slabs_of(agent)
    with devices._lock:
        devices._drain()
    out = sum(
        account.out
        for info in agent.workers()
        if info != agent.info and (stream := stream_to(agent, info.name)) is not None
        for account in stream.slabs._gpus._accounts.values()
    )
    return out, sum(each.slabs for each in devices._ledgers.values()), devices.mappings.count


def this_agent() -> seams.AgentCore:
    agent = find_agent()
    assert agent is not None
    return agent


def held_there() -> tuple[int, int, int]:
    return held(this_agent())


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


def tried(worker: str) -> None:
    """Sends one array both ways, on trial; afterwards others go by the GPU."""
    there = arrays.to_device(source(), "cuda")
    rpc.rpc_sync(worker, my_pid)  # what finds no stream yet goes by the host
    np.testing.assert_array_equal(host(rpc.rpc_sync(worker, negative, (there,))), -source())
    agent = this_agent()
    wait_until("an answer to my trial", lambda: works(agent, worker))
    wait_until("one to theirs", lambda: rpc.rpc_sync(worker, works_there))


def works(agent: seams.AgentCore, name: str) -> bool:
    rpc.rpc_sync(name, my_pid)  # a frame back, and a frame there
    found: dict[int, bool] = stream_to(agent, name).slabs._gpus._works
    return found.get(0, False)


def works_there() -> bool:
    found: dict[int, bool] = stream_to(this_agent(), "me").slabs._gpus._works
    return found.get(0, False)


def not_by_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def unexpected(*args: object) -> None:
        raise AssertionError("an array went by host memory")

    for module, name in ((gpu_arrays, "to_host"), (gpu_arrays, "octets_from_gpu")):
        monkeypatch.setattr(module, name, unexpected)
    monkeypatch.setattr(device_slabs, "octets_from_gpu", unexpected)


def none_out(agent: seams.AgentCore, worker: str) -> None:
    gc.collect()

    def done() -> bool:
        mine, (theirs, _, _) = held(agent), rpc.rpc_sync(worker, held_there)
        return mine[0] == 0 and theirs == 0

    wait_until("all loans are back", done)
