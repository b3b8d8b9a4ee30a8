"""Wakers that may lose their purpose before the future that they wait for is completed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeAlias

__all__ = ["Listener", "Waker", "check_callback", "without_stale"]

Waker: TypeAlias = Callable[[], None]

MANY_WAKERS = 64  # from so many on, the stale ones are looked for; fewer are not worth a look


class Listener(ABC):
    """A waker of somebody who may go away without a word: the consumer of an iterator."""

    __slots__ = ()

    @abstractmethod
    def __call__(self) -> None:
        """Hears that the future is completed; must not block, raise or look at the value."""

    @property
    @abstractmethod
    def stale(self) -> bool:
        """Whether nobody is left who wants to know; runs under the future's lock."""


def without_stale(wakers: list[Waker]) -> list[Waker]:
    """Returns the wakers of a future, without stale ones whenever their number has doubled."""
    count = len(wakers)
    if count < MANY_WAKERS or count & (count - 1):
        return wakers
    return [each for each in wakers if not (isinstance(each, Listener) and each.stale)]


def check_callback(callback: object) -> None:
    """Checks what a user gives as a callback.

    Raises:
        TypeError: It is not callable.
    """
    if not callable(callback):
        raise TypeError(f"a callback must be callable, not {callback!r}")
