"""The array libraries that tests run on: NumPy, and CuPy or, without a GPU, the stand-in for CuPy.

A test takes the library as its argument `xp`, or as `cupy` where NumPy's arrays would prove nothing.

make gpu                        on the GPU, through CuPy, alone; without one the run fails
make test, no GPU               on NumPy and the stand-in, which finds what CuPy would refuse
make test, on a GPU's machine   on all of them

The conftest of a folder imports the fixtures; `make gpu` selects tests by the marker `xp`.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import Any

import numpy as np
import pytest

from tests.gpu.stand_in.stand_in import stand_in
from tests.gpu.stand_in.stand_in_special import special_stand_in

__all__ = ["CUPY_PLACES", "NUMPY_PLACES", "REQUIRED", "cupy", "gpu", "xp"]

# Set by scripts/gpu.py.
REQUIRED = os.environ.get("TELEGRAD_GPU") == "required"


def _find_gpu() -> tuple[Any, str]:
    """Returns CuPy where it works and finds a GPU; else None, and why."""
    if importlib.util.find_spec("cupy") is None:
        return None, "CuPy is not installed"
    try:
        found = importlib.import_module("cupy")
        found.zeros(1).sum().item()  # compiles and runs a kernel
    except Exception as error:
        return None, f"CuPy does not work here: {type(error).__name__}: {error}"
    return found, ""


_GPU, _REASON = _find_gpu()

NUMPY_PLACES = [] if REQUIRED else ["numpy"]
CUPY_PLACES = [
    *(["gpu"] if _GPU is not None or REQUIRED else []),
    *([] if REQUIRED else ["stand-in"]),
]
_ON_CUPY: list[Any] = [pytest.param(place, marks=pytest.mark.xp) for place in CUPY_PLACES]


@pytest.fixture
def gpu() -> Any:
    """CuPy; skips where it finds no GPU, and fails under `make gpu`."""
    if _GPU is None:
        words = f"not run on a GPU ({_REASON}); on a machine that has one: make gpu"
        (pytest.fail if REQUIRED else pytest.skip)(words)
    return _GPU


@pytest.fixture(params=_ON_CUPY)
def cupy(request: pytest.FixtureRequest) -> Any:
    """CuPy, or what stands in for it."""
    return _library(request)


@pytest.fixture(params=[*NUMPY_PLACES, *_ON_CUPY])
def xp(request: pytest.FixtureRequest) -> Any:
    """NumPy, and CuPy or what stands in for it."""
    return _library(request)


def _library(request: pytest.FixtureRequest) -> Any:
    if request.param == "numpy":
        return np
    if request.param == "gpu":
        return request.getfixturevalue("gpu")
    module = stand_in()
    monkeypatch = request.getfixturevalue("monkeypatch")
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setitem(sys.modules, "cupyx.scipy.special", special_stand_in())
    return module
