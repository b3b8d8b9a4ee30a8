"""What `make test` runs once and `make test-long` again: hostile cases, and other transports."""

from __future__ import annotations

import pytest

__all__ = ["RUNS", "TRANSPORTS", "repeated"]

RUNS = 5

# A verb is tested over one transport; what a transport promises, the conformance suite tests.
TRANSPORTS = ["inproc", pytest.param("grpc", marks=pytest.mark.long)]

# A test with this mark takes an argument `run`, which it need not look at.
repeated = pytest.mark.parametrize(
    "run",
    [
        pytest.param(0, id="once"),
        *(pytest.param(run, id=f"run {run}", marks=pytest.mark.long) for run in range(1, RUNS + 1)),
    ],
)
