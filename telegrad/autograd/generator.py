"""The random numbers that modules and functions draw when no generator is given.

There is one default for the process, and a ContextVar that can replace it for a block. The default
is the only global state in this file: `manual_seed` must reach every thread, those of the agent's
pool included. A ContextVar that is set in the main thread would not reach them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from typing import Any, Final, final

import numpy as np


@final
class SeededGenerator:
    """A generator that can be seeded again; several threads may draw from it."""

    def __init__(self, generator: np.random.Generator | None = None) -> None:
        self._generator = generator

    def seed(self, seed: int) -> None:
        """Restarts the generator from `seed`."""
        self._generator = np.random.default_rng(seed)

    def get(self) -> np.random.Generator:
        """Returns the generator; the operating system seeds it if `seed` was not called."""
        if self._generator is None:
            self._generator = np.random.default_rng()
        return self._generator


_CURRENT: Final[ContextVar[SeededGenerator]] = ContextVar(
    "telegrad_generator",
    default=SeededGenerator(),  # noqa: B039 - the documented process default
)


def manual_seed(seed: int) -> None:
    """Seeds the default generator, which modules use when they are given none (`rng=None`).

    It is valid for the whole process. Modules that one thread makes in the same order then are the
    same in every run.

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
    """Returns the generator that `rng=None` stands for.

    >>> from telegrad.nn import manual_seed
    >>> manual_seed(7)
    >>> first = current_generator().normal()
    >>> manual_seed(7)
    >>> first == current_generator().normal()
    True
    """
    return _CURRENT.get().get()


@contextmanager
def repeatable(state: Any = None) -> Iterator[Any]:
    """Gives this block a generator of its own, so that it can run again with the same draws.

    In the first run, the block starts at the state of the current generator. After the block, the
    current generator continues from the state that the block has reached. Other threads do not see
    the block's draws.

    Args:
        state: The state that the first run yielded; None for the first run.

    Yields:
        The state in which the block starts.
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
