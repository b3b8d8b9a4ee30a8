"""What only makes sense with GPUs: their memory, devices and streams, and workers that share them.

Elsewhere tests take the array library as an argument (tests/array_libraries.py says which there
are). All tests of this folder run under `make gpu`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from telegrad import rpc
from telegrad.launch import LocalWorkers
from telegrad.rpc import seams
from telegrad.testing import Cluster
from telegrad.transport.channels import device_memory as device_slabs
from telegrad.transport.channels.device_memory import DEVICE_BOUNDS
from telegrad.transport.channels.ledger import Bounds
from telegrad.transport.sockets import unix as local_transport
from tests.array_libraries import cupy, gpu
from tests.gpu.sharing import OPTIONS, import_cupy_there
from tests.gpu.stand_in.stand_in import stand_in
from tests.gpu.watch import Watch, watch_there

__all__ = ["cupy", "gpu"]

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of this folder that use no array library, before any are deselected."""
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("xp") is None:
            item.add_marker("xp")


@pytest.fixture
def xp(cupy: Any) -> Any:
    """CuPy, or what stands in for it."""
    return cupy


@pytest.fixture
def cluster(xp: Any, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Workers in this process that have CuPy; made after it, so that they find it."""
    with Cluster(getattr(request.module, "CLUSTER_SIZE", 3)) as cluster:
        yield cluster


@pytest.fixture
def three_gpus(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What stands in for CuPy on a machine of three GPUs; machines with one cannot run these."""
    module = stand_in(3)
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


@pytest.fixture
def workers_have_cupy(xp: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Has workers import what this process has for CuPy."""
    import_cupy_there(xp, monkeypatch, tmp_path)


@pytest.fixture
def stand_in_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """What stands in for CuPy, here and in workers, also where there is a GPU."""
    module = stand_in()
    monkeypatch.setitem(sys.modules, "cupy", module)
    import_cupy_there(module, monkeypatch, tmp_path)
    return module


@pytest.fixture
def said_here() -> Iterator[list[str]]:
    """What this process' log says of memory of GPUs."""
    said: list[str] = []

    class Listener(logging.Handler):  # pytest's own writes to a file, also on the loop
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    listener, loggers = (
        Listener(),
        [logging.getLogger(each.__name__) for each in (device_slabs, local_transport)],
    )
    for logger in loggers:
        logger.addHandler(listener)
        logger.setLevel(logging.INFO)
        logger.propagate = False
    yield said
    for logger in loggers:
        logger.removeHandler(listener)
        logger.setLevel(logging.NOTSET)
        logger.propagate = True


@pytest.fixture
def device_bounds() -> Bounds:
    """What the workers of this process keep to; a test may give others."""
    return DEVICE_BOUNDS


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch, device_bounds: Bounds) -> Watch:
    """Follows the memory of GPUs that this process shares."""
    return Watch(monkeypatch, device_bounds)


@pytest.fixture
def me(workers_have_cupy: None, watch: Watch) -> Iterator[seams.AgentCore]:
    with rpc.init_rpc("me", options=OPTIONS) as agent:
        yield seams.core_of(agent)


@pytest.fixture
def worker(me: seams.AgentCore) -> Iterator[str]:
    with LocalWorkers(1) as workers:
        rpc.rpc_sync(workers.names[0], watch_there)
        yield workers.names[0]
