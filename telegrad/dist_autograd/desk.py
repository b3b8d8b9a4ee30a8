"""Dispatches the work of passes to threads: `Desk` messages, an `EventQueue` events.

received by a thread that waits in backward    that thread reads it (`starting.OwnPart`)
received by another thread, or by the loop     a thread of the pool reads it
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Generic, TypeAlias, TypeVar, final

A = TypeVar("A")  # an action

Event: TypeAlias = "Callable[[], Sequence[A]]"
"""A function that handles an event, and returns the actions to carry out."""


@final
class EventQueue(Generic[A]):
    """Handles events one at a time, each in one of the threads that bring events.

    No thread waits for another one: a thread that finds the queue in use leaves its event there.

    Args:
        perform: Function that carries out the actions of an event.
        failed: Function that turns the error of an event, or of its actions, into other actions,
            so that no error leaves the queue.
    """

    def __init__(
        self,
        perform: Callable[[Sequence[A]], None],
        failed: Callable[[BaseException], Sequence[A]],
    ) -> None:
        self._perform = perform
        self._failed = failed
        self._events: deque[Event[A]] = deque()
        self._handling = threading.Lock()

    def handle(self, event: Event[A]) -> bool:
        """Queues an event and handles the queue.

        Returns:
            False if another thread handles the queue, or this one: an event that an action brings
            follows later, from there.
        """
        events, handling = self._events, self._handling
        events.append(event)
        while handling.acquire(blocking=False):
            try:
                while events:
                    react = events.popleft()
                    try:
                        if actions := react():
                            self._perform(actions)
                    except BaseException as error:
                        self._perform(self._failed(error))
            finally:
                handling.release()
            # A thread that found the lock taken has queued its event before: look again.
            if not events:
                return True
        return False


Work: TypeAlias = "Callable[[], Callable[[], None] | None]"
"""Reads a message and tells its pass; returns the work on the graph of that pass, if there is any.

Reading runs no rule. So a slow rule of one pass delays no message.
"""


@final
class Desk:
    """Dispatches messages to threads. Any thread may use it; it never blocks.

    Attributes:
        waiting: For each thread that waits in backward, by its identifier, the function that takes
            the messages that this thread receives.
    """

    def __init__(self, submit: Callable[[Callable[[Work], None], Work], None]) -> None:
        self.waiting: dict[int, Callable[[Work], None]] = {}
        self._submit = submit

    def put(self, work: Work) -> None:
        """Leaves a message to this thread if it waits in backward, else to a thread of the pool."""
        if (take := self.waiting.get(get_ident())) is not None:
            take(work)
        else:
            self._submit(_do_all, work)


def _do_all(work: Work) -> None:
    if (rest := work()) is not None:
        rest()
