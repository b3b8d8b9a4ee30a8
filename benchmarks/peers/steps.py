"""Networks whose steps benchmarks/autograd.py measures, and their data, for telegrad and torch alike.

Both have `nn.Module` and its parts under the same names, so each network is written once; the first
argument is the library's `nn`. All start from the same numbers, in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

__all__ = ["LEARNING_RATE", "MOMENTUM", "NETWORKS", "data", "state"]

LEARNING_RATE, MOMENTUM = 0.01, 0.9


def lstm(nn: Any) -> Any:
    """32 sequences of 20 items of 64 numbers, 128 hidden units, 10 classes."""

    class Reader(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(64, 128)
            self.head = nn.Linear(128, 10)

        def forward(self, x: Any) -> Any:
            hidden, _ = self.lstm(x)
            return self.head(hidden[-1])

    return Reader()


def small_cnn(nn: Any) -> Any:
    """32 images of 28 by 28 through two convolutions, each halved, 10 classes."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 7 * 7, 10),
    )


def transformer_block(nn: Any) -> Any:
    """Attention of 4 heads and two layers, with norms before and sums around: 8 times 64 times 64."""

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm1 = nn.LayerNorm(64)
            self.attention = nn.MultiheadAttention(64, 4, batch_first=True)
            self.norm2 = nn.LayerNorm(64)
            self.layers = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))

        def forward(self, x: Any) -> Any:
            y = self.norm1(x)
            x = x + self.attention(y, y, y, need_weights=False)[0]
            return x + self.layers(self.norm2(x))

    return Block()


def attention_step(nn: Any) -> Any:
    """8 heads over 4 sequences of 256 items of 256 numbers; the weights are asked for."""
    return attending(nn, need_weights=True)


def attention_step_without_weights(nn: Any) -> Any:
    """The same; where they are not, torch has a kernel that never holds them all at once."""
    return attending(nn, need_weights=False)


def attending(nn: Any, *, need_weights: bool) -> Any:
    """Attention of a sequence to itself."""

    class Attention(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(256, 8, batch_first=True)

        def forward(self, x: Any) -> Any:
            return self.attention(x, x, x, need_weights=need_weights)[0]

    return Attention()


NETWORKS: dict[str, Callable[[Any], Any]] = {
    each.__name__: each
    for each in (
        lstm,
        small_cnn,
        transformer_block,
        attention_step,
        attention_step_without_weights,
    )
}
SHAPES = {
    "lstm": (20, 32, 64),
    "small_cnn": (32, 1, 28, 28),
    "transformer_block": (8, 64, 64),
    "attention_step": (4, 256, 256),
    "attention_step_without_weights": (4, 256, 256),
}


def data(name: str) -> tuple[Any, Any]:
    """Returns a batch in float32, and labels; None where the loss is the mean of squares."""
    rng = np.random.default_rng(9)
    x = rng.standard_normal(SHAPES[name]).astype(np.float32)
    return x, rng.integers(0, 10, 32) if name in ("lstm", "small_cnn") else None


def state(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Returns the numbers that a network starts from, in the shapes of its `state_dict`."""
    rng = np.random.default_rng(10)
    return {
        name: (rng.uniform(-1, 1, shape) / np.sqrt(shape[-1])).astype(np.float32)
        for name, shape in shapes.items()
    }
