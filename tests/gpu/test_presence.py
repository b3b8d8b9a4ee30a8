"""Whether the tests beside this one run on a GPU at all."""

from __future__ import annotations

from typing import Any


def test_there_is_a_gpu(gpu: Any) -> None:
    assert gpu.arange(4).sum().item() == 6
