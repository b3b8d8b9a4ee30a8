"""Where the tests of this folder run: on a GPU through CuPy, or on the stand-in for CuPy.

make gpu                        on the GPU; without one the run fails
make test, no GPU               on the stand-in, which finds what CuPy would refuse; one test
                                is skipped, and its reason says that no GPU was there
make test, on a GPU's machine   on both
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import Any

import pytest

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
