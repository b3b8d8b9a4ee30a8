"""The random numbers that modules and functions draw where they are given no generator.

There is one process default, and a ContextVar that may stand in for it. The default is the one
piece of state here: `manual_seed` must reach every thread, those of the agent's pool included,
which a ContextVar set in the main thread would not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from typing import Any, Final, final

import numpy as np

__all__ = ["SeededGenerator", "current_generator", "manual_seed", "repeatable"]


@final
class SeededGenerator:
    """A generator that can be seeded anew; drawing from it is safe from several threads."""

    def __init__(self, generator: np.random.Generator | None = None) -> None:
        self._generator = generator

    def seed(self, seed: int) -> None:
        """Starts again from `seed`."""
        self._generator = np.random.default_rng(seed)

    def get(self) -> np.random.Generator:
        """Returns the generator; one seeded by the operating system if `seed` was not called."""
        if self._generator is None:
            self._generator = np.random.default_rng()
        return self._generator


_CURRENT: Final[ContextVar[SeededGenerator]] = ContextVar(
    "telegrad_generator",
    default=SeededGenerator(),  # noqa: B039 - the documented process default
)


def manual_seed(seed: int) -> None:
    """Seeds the generator that modules draw from where they are given none (`rng=None`).

    For the whole process. Modules made one after the other in one thread then are the same in
    every run.

    Args:
        seed: A non-negative integer.

    Raises:
        ValueError: `seed` is negative.

    >>> from telegrad import nn
    >>> manual_seed(1)
    >>> first = nn.Linear(2, 2).weight.data
    >>> manual_seed(1)
    >>> bool((nn.Linear(2, 2).weight.data == first).all())
    True
    """
    _CURRENT.get().seed(seed)


def current_generator() -> np.random.Generator:
    """Returns the generator for `rng=None`."""
    return _CURRENT.get().get()


@contextmanager
def repeatable(state: Any = None) -> Iterator[Any]:
    """Draws from a generator of this block's own, so that the block can be run again the same.

    The first time it starts as the current generator stands, which then goes on from where the
    block has left off. While it runs, other threads do not see what the block draws.

    Args:
        state: What an earlier block was given; None for the first time.

    Yields:
        The state that the block began with.
    """
    current = current_generator()
    first = state is None
    own = deepcopy(current)
    if not first:
        own.bit_generator.state = state
    begin = own.bit_generator.state
    token = _CURRENT.set(SeededGenerator(own))
    try:
        yield begin
    finally:
        _CURRENT.reset(token)
        if first:
            current.bit_generator.state = own.bit_generator.state
