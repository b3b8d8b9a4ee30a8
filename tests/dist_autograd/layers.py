"""Layers that live on one worker."""

from __future__ import annotations

from typing import Any

import numpy as np

from telegrad import dist_autograd, rpc
from telegrad.autograd import Tensor, tensor
from telegrad.types import Array

__all__ = ["Layer", "Linear", "X"]

X = np.random.default_rng(99).normal(size=(5, 4))


class Layer:
    """Has a weight that is the same wherever it is made."""

    def __init__(self, seed: int) -> None:
        values = np.random.default_rng(seed).normal(size=(4, 4))
        self.weight = tensor(values, requires_grad=True)

    def forward(self, x: Any) -> Any:
        x = x.to_here() if isinstance(x, rpc.RRef) else x
        return np.tanh(x @ self.weight)

    def loss(self, x: Tensor, tail: rpc.RRef[Layer]) -> Tensor:
        """Goes on to another worker, and comes back."""
        y: Tensor = tail.rpc_sync().forward(self.forward(x))
        return (y * y).sum()

    def gradient(self, context_id: int) -> Array | None:
        assert self.weight.grad is None
        found = dist_autograd.get_gradients(context_id).get(self.weight)
        return None if found is None else found.data


class Linear:
    """A matrix product alone, for tests that count."""

    def __init__(self) -> None:
        self.weight = tensor(np.ones((3, 3)), requires_grad=True)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight

    def parameter(self) -> rpc.RRef[Tensor]:
        return rpc.RRef(self.weight)
