"""Wakes the tasks of a user's event loop: all that are due by one call into it.

A call into a loop from another thread takes a system call and wakes that thread, which many replies
that arrive together need once.
"""

from __future__ import annotations

import asyncio
from asyncio import _get_running_loop
from collections import deque
from contextvars import ContextVar
from functools import partial
from typing import final
from weakref import WeakKeyDictionary

from telegrad.rpc.listener import Waker

__all__ = ["waker_of"]


@final
class _LoopWaker:
    """What wakes the tasks of one loop, which it does not keep alive."""

    __slots__ = ("_coming", "_due")

    def __init__(self) -> None:
        self._due: deque[asyncio.Future[None]] = deque()
        self._coming = False  # whether the loop will call `_wake_all`, which looks at `_due` later

    def wake(self, arrived: asyncio.Future[None]) -> None:
        """Has a task go on, unless it has given up waiting; from any thread, never blocks."""
        loop = arrived.get_loop()
        if _get_running_loop() is loop:  # it has read the reply itself, say
            if not arrived.done():
                arrived.set_result(None)
            return
        self._due.append(arrived)
        if self._coming:
            return
        try:
            self._coming = True
            loop.call_soon_threadsafe(self._wake_all)
        except BaseException as error:
            self._coming = False
            if not isinstance(error, RuntimeError):
                raise  # Ctrl-C; the others of this loop are to be woken all the same
            self._due.clear()  # it was closed meanwhile

    def _wake_all(self) -> None:
        self._coming = False  # first: whatever is added from now on may come too late
        due = self._due
        try:
            while due:
                if not due[0].done():
                    due[0].set_result(None)
                due.popleft()
        finally:
            if due:  # interrupted
                due[0].get_loop().call_soon(self._wake_all)


_Wakers = WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopWaker]
_wakers: ContextVar[_Wakers] = ContextVar("telegrad_loop_wakers", default=_Wakers())  # noqa: B039


def waker_of(loop: asyncio.AbstractEventLoop, arrived: asyncio.Future[None]) -> Waker:
    """Returns what wakes the task that awaits `arrived` on this loop; called on it.

    The waker may be called in any thread, also when the task has given up, or the loop was closed.
    """
    wakers = _wakers.get()
    waker = wakers.get(loop)
    if waker is None:
        waker = wakers[loop] = _LoopWaker()
    return partial(waker.wake, arrived)
