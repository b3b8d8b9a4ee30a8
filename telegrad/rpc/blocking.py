"""Tells the pool that one of its threads is about to block in a wait of telegrad's.

So does the call that runs in it: whoever waits holds up nobody, neither for a thread nor for the
bytes that it was admitted with.
"""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator

from telegrad.rpc.served_call import current_served_call

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
    served = current_served_call()
    if served is not None:
        served.let_others_in()
    thread.enter_wait()
    try:
        yield
    finally:
        thread.leave_wait()
