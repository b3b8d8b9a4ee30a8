"""Messages of passes on their way to the thread that reads them; those that came together have one.

    taken off the wire by a thread that waits in backward    that thread reads them (`own_part`)
    by any other, or by the loop                             a thread of the pool does

To read them runs no rule: it only tells the passes. Then the graphs of these passes are worked on,
and what comes meanwhile is another thread's: a rule that takes its time holds up no message.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias, final

__all__ = ["Desk", "Work"]


class Workable(Protocol):
    """A pass, as a desk sees it: `PassRunner` stands above."""

    def work(self) -> None:
        """Works on the graph until it is dry."""


Work: TypeAlias = "Callable[[], Workable | None]"
"""Reads a message and tells the pass that it is about; returns that, if it is to be worked on."""


class Taker(Protocol):
    """A thread that waits in backward, as a desk sees it: `OwnPart` stands above."""

    def take(self, work: Work) -> None:
        """Leaves a message to this thread, which has just read it; in this thread."""


@final
class Desk:
    """What has come and waits for a thread. From any thread; blocks nowhere.

    Args:
        submit: Runs a function in the pool.

    Attributes:
        waiting: The threads that wait in backward, by number.
    """

    def __init__(self, submit: Callable[[Callable[[], None]], None]) -> None:
        self.waiting: dict[int, Taker] = {}
        self._submit = submit
        self._lock = threading.Lock()  # guards the next two
        self._left: deque[Work] = deque()
        self._called = False  # a thread is on its way, and has taken nothing yet

    def put(self, work: Work) -> None:
        """Leaves a message to this thread, if it waits in backward, or to one of the pool."""
        own = self.waiting.get(threading.get_ident())
        if own is not None:
            own.take(work)
            return
        with self._lock:
            self._left.append(work)
            call, self._called = not self._called, True
        if call:
            self._submit(self._run)

    def work_through(self, messages: deque[Work], own: Workable | None = None) -> None:
        """Reads messages, then works on one of the passes that they were about; others do the rest.

        Args:
            messages: Is empty afterwards.
            own: The pass to work on; None for any.
        """
        runners: dict[Workable, None] = {}
        while messages:
            runner = messages.popleft()()
            if runner is not None:
                runners[runner] = None
        here = own if own is not None else next(iter(runners), None)
        for runner in runners:
            if runner is not here:
                self._submit(runner.work)
        if here in runners and here is not None:
            here.work()

    def _run(self) -> None:
        with self._lock:
            self._called = False
            taken, self._left = self._left, deque()
        self.work_through(taken)
