"""What the thread that waits for the end of a pass does of it meanwhile.

It reads what comes from a worker that it waits for, where the transport lets it, and does itself what
it has read; without that it would sleep while another thread is woken for each message.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, final

from telegrad.dist_autograd.desk import Desk, Work
from telegrad.rpc import Agent, Driven, Future, Shield, new_future

if TYPE_CHECKING:
    from telegrad.dist_autograd.pass_runner import PassRunner

__all__ = ["LEAST_SECONDS", "OwnPart"]

LEAST_SECONDS = 1e-6  # so that the wait itself says that the time is over


@final
class OwnPart(Driven):
    """Of one thread, in one pass.

    Args:
        agent: This worker.
        runner: Its part of the pass.
        desk: Where what this thread reads comes from.
    """

    def __init__(self, agent: Agent, runner: PassRunner, desk: Desk) -> None:
        self._agent = agent
        self._runner = runner
        self._desk = desk
        self._taken: deque[Work] = deque()
        # Completed by the next message; made to be waited for.
        self._news: Future[Any] | None = None
        self.peer = agent.info  # it may be any; who waits for this alone asks `drive`

    def take(self, work: Work) -> None:
        """Leaves a message to this thread, which has just read it; in this thread."""
        self._taken.append(work)
        self._wake()

    def run(self, start: Callable[[], None], limit: float) -> None:
        """Starts the pass, and blocks until it has ended everywhere.

        Args:
            start: Starts it.
            limit: Seconds that this thread waits; how long it computes is not bounded.

        Raises:
            CallTimeoutError: It has not ended by then.
            CallCancelledError: The call was cancelled that this thread serves.
        """
        ended, ends = self._runner.ended, time.monotonic() + limit
        ended.call_when_done(self._wake)
        waiting, me = self._desk.waiting, get_ident()
        self._do(start)
        while not ended.done():
            news = self._news = new_future(self._agent.submit, "the end of a pass")
            news.stands_for(self, _nothing)
            if ended.done():  # before it could have told of it
                return
            waiting[me] = self
            try:
                news.wait(max(ends - time.monotonic(), LEAST_SECONDS))
            finally:
                del waiting[me]
                if self._taken:
                    self._do(partial(self._desk.work_through, self._taken, self._runner))

    reads = None  # who waits elsewhere leaves it to this thread

    def drive(self, gate: Any, seconds: float) -> None:
        """Reads what comes from a worker that this waits for, until a gate is open."""
        peer = self._runner.peer
        if peer is not None:
            self._agent.drive(peer, gate, seconds)

    def _do(self, work: Callable[[], None]) -> None:
        with Shield():  # Ctrl-C in between would leave a pass half told
            self._agent.new_context().run(work)

    def _wake(self) -> None:
        if self._news is not None:
            self._news.try_set_result(None)


def _nothing() -> None:
    pass
