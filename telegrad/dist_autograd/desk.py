"""`Desk`, the dispatcher of messages of passes to threads; one thread reads a whole batch.

    received by a thread that waits in backward    that thread reads them (`OwnPart`)
    received by another thread, or by the loop     a thread of the pool reads them

Reading a message runs no rule: it only passes an event to the pass. Afterwards the thread works on
the graphs of these passes, and another thread reads messages that come meanwhile. So a slow rule
delays no message.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias, final

__all__ = ["Desk", "Work"]


class Workable(Protocol):
    """The part of a pass that a desk uses; `PassRunner`, in a file above, has it."""

    def work(self) -> None:
        """Works on the graph until it is dry."""


Work: TypeAlias = "Callable[[], Workable | None]"
"""A function that reads a message, tells its pass, and returns the pass if there is work on it."""


class Taker(Protocol):
    """The part of a thread waiting in backward that a desk uses; `OwnPart` has it."""

    def take(self, work: Work) -> None:
        """Leaves a message to this thread, which has just read it; in this thread."""


@final
class Desk:
    """The queue of messages that wait for a thread. Any thread may use it; it never blocks.

    Args:
        submit: Function that runs a function in the pool.

    Attributes:
        waiting: The threads that wait in backward, by thread identifier.
    """

    def __init__(self, submit: Callable[[Callable[[], None]], None]) -> None:
        self.waiting: dict[int, Taker] = {}
        self._submit = submit
        self._lock = threading.Lock()  # guards the next two
        self._left: deque[Work] = deque()
        self._called = False  # a thread is submitted and has not taken the messages yet

    def put(self, work: Work) -> None:
        """Leaves a message to this thread if it waits in backward, else to a thread of the pool."""
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
        """Reads messages, then works on one of their passes; the pool works on the other passes.

        Args:
            messages: The messages; empty afterwards.
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
