"""Signal handlers and finalisers that read a model while it is stepped, as one that saves it does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import telegrad as tg
from telegrad import nn, optim

OURS = str(Path(tg.__file__).parent)


def at_each_line(interrupt: Callable[[], object], run: Callable[[], None]) -> int:
    """Calls a function at each line of telegrad's that `run` comes to; returns the number."""
    lines = set[tuple[str, int]]()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        del argument
        code = frame.f_code
        if not code.co_filename.startswith(OURS):
            return None
        if event == "line" and (place := (code.co_filename, frame.f_lineno)) not in lines:
            lines.add(place)
            interrupt()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return len(lines)


@pytest.mark.parametrize("make", [optim.SGD, optim.Adam], ids=lambda make: make.__name__)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_a_handler_may_read_a_model_in_the_midst_of_a_step(
    make: Callable[..., optim.Optimizer], sparse: bool
) -> None:
    """The lock of a parameter was held there, and `state_dict` waited for it for ever."""
    model = nn.Sequential(nn.Embedding(5, 3, sparse=sparse), nn.Linear(3, 1))
    optimizer = make(model.parameters(), lr=0.1)
    saved: list[dict[str, Any]] = []

    def read() -> None:
        saved.append(model.state_dict())
        with tg.no_grad():
            assert np.isfinite(model(np.array([1, 2])).data).all()

    def step() -> None:
        model(np.array([0, 3])).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    assert at_each_line(read, step) > 100
    assert not np.array_equal(saved[0]["1.weight"], saved[-1]["1.weight"])
