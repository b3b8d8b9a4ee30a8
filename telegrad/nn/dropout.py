"""Dropout: sets random items to zero in training."""

from __future__ import annotations

from typing import Any

import numpy as np

from telegrad.autograd import Tensor, as_tensor, current_generator, once, ops
from telegrad.nn.module import Module
from telegrad.types import Array


def dropout(
    x: Tensor | Array,
    p: float = 0.5,
    training: bool = True,
    *,
    rng: np.random.Generator | None = None,
) -> Tensor:
    """Returns `x` with each item set to zero with probability `p`, or else divided by `1 - p`.

    N. Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting"
    (2014), in the inverted form: the expected value of an item stays the same.

    Args:
        x: Floating-point numbers.
        p: The probability, from 0 to 1.
        training: True to drop items; if False, `x` is returned as it is.
        rng: The generator that draws the key of the mask; None for the generator of `manual_seed`.
            Arrays on a GPU get the mask that arrays on the host get.

    Raises:
        ValueError: `p` is not a probability.

    >>> dropout(np.ones(4), training=False)
    tensor([1., 1., 1., 1.])
    >>> dropout(np.ones(8), 0.5, rng=np.random.default_rng(0))
    tensor([2., 0., 2., 0., 0., 2., 2., 2.])
    """
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"a probability is from 0 to 1, not {p}")
    if not training or p == 0.0:
        return as_tensor(x)
    key = _key(current_generator()) if rng is None else once(lambda: _key(rng))
    return as_tensor(ops.layers.dropout(x, key=key, p=p))


def _key(generator: np.random.Generator) -> int:
    return int(generator.integers(2**63))


class Dropout(Module):
    """The module form of `functional.dropout`; in `eval()` it returns its input.

    Args:
        p: The probability with which an item is set to zero.
        rng: The generator to draw from; None for the generator of `manual_seed`. `recompute` has
            the same mask when it computes again, with either.

    Raises:
        ValueError: `p` is not a probability.

    >>> layer = Dropout(0.5, rng=np.random.default_rng(0))
    >>> layer(np.ones(8))
    tensor([2., 0., 2., 0., 0., 2., 2., 2.])
    >>> layer.eval()(np.ones(8))
    tensor([1., 1., 1., 1., 1., 1., 1., 1.])
    """

    _shown = "{p}"

    def __init__(self, p: float = 0.5, *, rng: np.random.Generator | None = None) -> None:
        super().__init__()
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"a probability is from 0 to 1, not {p}")
        self.p = p
        self.rng = rng

    def forward(self, x: Any) -> Tensor:
        """Returns `dropout(x, p)` in training, else `x`."""
        return dropout(x, self.p, self.training, rng=self.rng)
