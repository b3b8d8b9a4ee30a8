"""The random numbers that modules draw their first parameters from.

There is one process default, and a ContextVar that may stand in for it. The default is the one
piece of state in this package: `manual_seed` must reach every thread, those of the agent's pool
included, which a ContextVar set in the main thread would not.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final, final

import numpy as np

__all__ = ["SeededGenerator", "current_generator", "manual_seed"]


@final
class SeededGenerator:
    """A generator that can be seeded anew; drawing from it is safe from several threads."""

    def __init__(self) -> None:
        self._generator: np.random.Generator | None = None

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
