"""Wakes the tasks of users' event loops: all of one loop that are due by one call into it.

A call into a loop from another thread takes a system call and wakes that thread, which many replies
that arrive together need once. An agent has one `LoopWakers`, for whatever is awaited while it is
the ambient one.
"""

from __future__ import annotations

import asyncio
from asyncio import _get_running_loop
from collections import deque
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, final
from weakref import WeakKeyDictionary

from telegrad.rpc.ambient import find_agent
from telegrad.rpc.blocking import Wait

if TYPE_CHECKING:
    from telegrad.rpc.future import Future

__all__ = ["Arrival", "LoopWakers"]


@final
class LoopWakers:
    """What wakes the tasks of each loop, none of which it keeps alive."""

    def __init__(self) -> None:
        self._wakers: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopWaker] = WeakKeyDictionary()

    def wake(self, arrived: asyncio.Future[None]) -> None:
        """Has the task go on that awaits this, in its own loop; from any thread, never blocks."""
        loop = arrived.get_loop()
        waker = self._wakers.get(loop)
        if waker is None:  # two threads may make one each: then the loop is called twice
            waker = self._wakers[loop] = _LoopWaker()
        waker.wake(arrived)


class Arrival(asyncio.Future[None]):
    """What a task awaits in the place of futures of telegrad's; made on its loop.

    Args:
        loop: The one that runs here.
        futures: Those.
    """

    __slots__ = ("_futures", "_wait", "_wakers")

    def __init__(self, loop: asyncio.AbstractEventLoop, futures: Collection[Future[Any]]) -> None:
        super().__init__(loop=loop)
        agent = find_agent()
        self._wakers = LoopWakers() if agent is None else agent.loop_wakers
        self._futures = futures
        self._wait: Wait | None = None

    @property
    def wait(self) -> Wait:
        """The wait for those; the same each time."""
        if self._wait is None:  # few ask, and one thread at a time
            self._wait = Wait(self._futures)
        return self._wait

    def arrive(self) -> None:
        """Has the task go on, unless it has given up waiting; from any thread, never blocks.

        The loop may be closed.
        """
        if _get_running_loop() is not self.get_loop():
            self._wakers.wake(self)
        elif not self.done():  # this loop has read the reply itself, say
            self.set_result(None)


@final
class _LoopWaker:
    """What wakes the tasks of one loop."""

    __slots__ = ("_coming", "_due")

    def __init__(self) -> None:
        self._due: deque[asyncio.Future[None]] = deque()
        self._coming = False  # whether the loop will call `_wake_all`, which looks at `_due` later

    def wake(self, arrived: asyncio.Future[None]) -> None:
        """Has a task go on, unless it has given up waiting; from any thread, never blocks."""
        self._due.append(arrived)
        if self._coming:
            return
        try:
            self._coming = True
            arrived.get_loop().call_soon_threadsafe(self._wake_all)
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
