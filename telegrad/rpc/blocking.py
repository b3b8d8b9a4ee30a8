"""Tells the pool that one of its threads is about to block in a wait of telegrad's."""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator

__all__ = ["PoolThread", "blocking_in_pool"]


class PoolThread(threading.Thread, ABC):
    """A thread that wants to know when the user function in it waits."""

    @abstractmethod
    def enter_wait(self) -> None:
        """A wait begins: another thread may take its place."""

    @abstractmethod
    def leave_wait(self) -> None:
        """The wait is over; the thread goes on at once, whoever took its place."""


@contextlib.contextmanager
def blocking_in_pool() -> Iterator[None]:
    """Surrounds every blocking wait; costs next to nothing outside a pool thread."""
    thread = threading.current_thread()
    if not isinstance(thread, PoolThread):
        yield
        return
    thread.enter_wait()
    try:
        yield
    finally:
        thread.leave_wait()
