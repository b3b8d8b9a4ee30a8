"""Where the tests of this folder run: on a GPU through CuPy, or on the stand-in for CuPy.

make gpu                        on the GPU; without one the run fails
make test, no GPU               on the stand-in, which finds what CuPy would refuse; one test
                                is skipped, and its reason says that no GPU was there
make test, on a GPU's machine   on both
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from telegrad import rpc
from telegrad.launch import LocalWorkers
from telegrad.rpc import seams
from telegrad.transport.shm import device as device_slabs
from telegrad.transport.sockets import unix as local_transport
from tests.gpu.sharing import OPTIONS, import_cupy_there
from tests.gpu.stand_in import stand_in

# Set by scripts/gpu.py.
REQUIRED = os.environ.get("TELEGRAD_GPU") == "required"


def _find_gpu() -> tuple[Any, str]:
    """Returns CuPy where it works and finds a GPU; else None, and why."""
    if importlib.util.find_spec("cupy") is None:
        return None, "CuPy is not installed"
    try:
        cupy = importlib.import_module("cupy")
        cupy.zeros(1).sum().item()  # compiles and runs a kernel
    except Exception as error:
        return None, f"CuPy does not work here: {type(error).__name__}: {error}"
    return cupy, ""


GPU, REASON = _find_gpu()
PLACES = (["gpu"] if GPU is not None or REQUIRED else []) + ([] if REQUIRED else ["stand-in"])


@pytest.fixture
def gpu() -> Any:
    """CuPy; skips where it finds no GPU, and fails under `make gpu`."""
    if GPU is None:
        words = f"not run on a GPU ({REASON}); on a machine that has one: make gpu"
        (pytest.fail if REQUIRED else pytest.skip)(words)
    return GPU


@pytest.fixture(params=PLACES)
def xp(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """CuPy, or what stands in for it."""
    if request.param == "gpu":
        return request.getfixturevalue("gpu")
    module = stand_in()
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


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
def me(workers_have_cupy: None) -> Iterator[seams.AgentCore]:
    with rpc.init_rpc("me", options=OPTIONS) as agent:
        yield seams.core_of(agent)


@pytest.fixture
def worker(me: seams.AgentCore) -> Iterator[str]:
    with LocalWorkers(1) as workers:
        yield workers.names[0]
