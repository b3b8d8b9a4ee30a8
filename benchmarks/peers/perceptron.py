"""A step of a 784-1024-1024-10 network as one writes it by hand in NumPy: the price of the arrays."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["BATCH", "LEARNING_RATE", "MOMENTUM", "SIZES", "by_hand", "data", "parameters"]

SIZES = (784, 1024, 1024, 10)
BATCH = 128
LEARNING_RATE = 0.01
MOMENTUM = 0.9


def parameters() -> list[Any]:
    """Returns weights, to be multiplied from the right, and biases, in float32."""
    rng = np.random.default_rng(7)
    made = []
    for before, after in itertools.pairwise(SIZES):
        scale = np.sqrt(2.0 / before)
        made.append((scale * rng.standard_normal((before, after))).astype(np.float32))
        made.append(np.zeros(after, np.float32))
    return made


def data(seed: int = 8) -> tuple[Any, Any]:
    """Returns one batch: inputs in float32, and labels."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((BATCH, SIZES[0])).astype(np.float32)
    return x, rng.integers(0, SIZES[-1], BATCH)


def by_hand() -> Callable[[], list[Any]]:
    """Returns a step: forward, backward, SGD with momentum, in place."""
    w1, b1, w2, b2, w3, b3 = state = parameters()
    velocities = [np.zeros_like(each) for each in state]
    x, labels = data()
    rows = np.arange(BATCH)

    def step() -> list[Any]:
        h1 = np.maximum(x @ w1 + b1, 0)
        h2 = np.maximum(h1 @ w2 + b2, 0)
        z = h2 @ w3 + b3
        z -= z.max(axis=1, keepdims=True)
        p = np.exp(z)
        p /= p.sum(axis=1, keepdims=True)
        p[rows, labels] -= 1
        p /= BATCH
        g2 = (p @ w3.T) * (h2 > 0)
        g1 = (g2 @ w2.T) * (h1 > 0)
        gradients = [x.T @ g1, g1.sum(0), h1.T @ g2, g2.sum(0), h2.T @ p, p.sum(0)]
        for each, velocity, gradient in zip(state, velocities, gradients, strict=True):
            velocity *= MOMENTUM
            velocity += gradient
            each -= LEARNING_RATE * velocity
        return gradients

    return step
