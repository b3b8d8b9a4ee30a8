"""Hostile cases: once in `make test`, and five times more in `make test-long`."""

from __future__ import annotations

import pytest

__all__ = ["RUNS", "repeated"]

RUNS = 5

# A test with this mark takes an argument `run`, which it need not look at.
repeated = pytest.mark.parametrize(
    "run",
    [
        pytest.param(0, id="once"),
        *(pytest.param(run, id=f"run {run}", marks=pytest.mark.long) for run in range(1, RUNS + 1)),
    ],
)
