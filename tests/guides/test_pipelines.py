"""Runs the second program that the guide to pipelines shows."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

GUIDE = Path(__file__).parents[2] / "docs" / "pipelines.md"


def test_the_model_with_a_skip_connection_runs() -> None:
    names: dict[str, object] = {}
    exec(re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)[1], names)
    model: object = names["model"]
    assert callable(model)
    assert model(np.ones((3, 8), np.float32)).shape == (3, 2)
