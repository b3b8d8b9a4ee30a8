"""Models to split, small enough to be computed here as well."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from telegrad import nn
from telegrad.autograd import Tensor
from telegrad.parallel import Pipeline
from telegrad.types import Array

__all__ = ["BLOCKS", "WIDTH", "batch", "close", "losses", "make_model", "reference"]

WIDTH = 6
BLOCKS = 10


class Block(nn.Module):
    """A linear layer with a nonlinearity; every one has parameters, so every cut is allowed."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, dtype=np.float64, rng=np.random.default_rng(seed))

    def forward(self, x: Tensor) -> Tensor:
        return cast("Tensor", np.tanh(self.linear(x)) + 0.5 * x)


def make_model(blocks: int = BLOCKS) -> nn.Sequential:
    return nn.Sequential(*(Block(i) for i in range(blocks)))


def batch(rows: int, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, WIDTH)), rng.integers(0, WIDTH, rows)


def reference(model: nn.Module, inputs: Array, labels: Array) -> tuple[float, dict[str, Array]]:
    """The loss and the gradients of the unsplit model on the whole batch."""
    model.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    gradients: dict[str, Any] = {name: p.grad for name, p in model.named_parameters()}
    return loss.item(), {name: each.data for name, each in gradients.items()}


def close(found: dict[str, Array], expected: dict[str, Array]) -> None:
    assert list(found) == list(expected)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-10, atol=1e-13, err_msg=name)


def losses(pipe: Pipeline, optimizer: Any, steps: int, rows: int) -> list[float]:
    """The losses of some steps on one batch."""
    inputs, labels = batch(rows)
    found = []
    for _ in range(steps):
        found.append(pipe.step(inputs, labels))
        optimizer.step()
    return found
