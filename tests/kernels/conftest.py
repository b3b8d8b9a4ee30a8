"""Tests of this folder run on NumPy and on CuPy: the argument `xp`."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.array_libraries import cupy, gpu, xp
from tests.gpu.stand_in.stand_in import stand_in

__all__ = ["cupy", "gpu", "xp"]


@pytest.fixture
def stand_in_cupy(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The stand-in for CuPy, also where there is a GPU: launches are counted on it."""
    module = stand_in()
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module
