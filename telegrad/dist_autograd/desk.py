"""Dispatches the work of passes to threads: `Desk` messages, an `EventQueue` events.

One thread reads a whole batch of messages.

    received by a thread that waits in backward    that thread reads them (`OwnPart`)
    received by another thread, or by the loop     a thread of the pool reads them

Reading a message runs no rule: it only passes an event to the pass. Afterwards the thread works on
the graphs of these passes, and another thread reads messages that come meanwhile. So a slow rule
delays no message.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from threading import get_ident
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, final

from telegrad.rpc import Future
from telegrad.rpc.seams import AgentCore, Driven, Shield, new_future

__all__ = ["Desk", "Event", "EventQueue", "OwnPart", "Work", "seconds_until"]

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

    def append(self, event: Event[A]) -> None:
        """Queues an event; called while an event is handled, which the new one then follows."""
        self._events.append(event)

    def handle(self, event: Event[A]) -> bool:
        """Queues an event and handles the queue.

        Returns:
            False if another thread handles the queue; that thread then handles this event, too.
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


class Workable(Protocol):
    """The part of a pass that a desk uses; `PassRunner`, in a file above, has it.

    Attributes:
        ended: Completed when the pass has ended.
    """

    ended: Future[None]

    def work(self) -> None:
        """Works on the graph until it is dry."""


Work: TypeAlias = "Callable[[], Workable | None]"
"""A function that reads a message, tells its pass, and returns the pass if there is work on it."""


@final
class Desk:
    """The queue of messages that wait for a thread. Any thread may use it; it never blocks.

    Args:
        submit: Function that runs a function in the pool.

    Attributes:
        waiting: The threads that wait in backward, by thread identifier.
    """

    def __init__(self, submit: Callable[[Callable[[], None]], None]) -> None:
        self.waiting: dict[int, OwnPart] = {}
        self._submit = submit
        self._lock = threading.Lock()  # guards the next two
        self._left: deque[Work] = deque()
        self._called = False  # a thread is submitted and has not taken the messages yet

    def put(self, work: Work) -> None:
        """Leaves a message to this thread if it waits in backward, else to a thread of the pool."""
        own = self.waiting.get(get_ident())
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


# -- work of the thread that calls backward, while it waits --------------------------------------
#
# If the transport allows it, the waiting thread itself reads what comes, and handles the messages
# of its pass. Otherwise it would sleep, and each message would wake another thread: a step of two
# calls, backward and SGD took 1.1 times as long, which is more than the benchmark's gate leaves.

LEAST_SECONDS = 1e-6  # above 0, so that the wait itself raises the timeout


def seconds_until(ends: float) -> float:
    """Returns the timeout of a wait until `ends`, a time of `time.monotonic`, which may be over."""
    return max(ends - time.monotonic(), LEAST_SECONDS)


@final
class OwnPart(Driven):
    """The work of one thread that waits for the end of one pass.

    Args:
        agent: This worker's agent.
        runner: This worker's part of the pass.
        desk: The dispatcher that gives this thread the messages that it has received.
    """

    def __init__(self, agent: AgentCore, runner: Workable, desk: Desk) -> None:
        self._agent = agent
        self._runner = runner
        self._desk = desk
        self._taken: deque[Work] = deque()
        # The future that this thread waits for; the next message completes it.
        self._news: Future[Any] | None = None
        self.reads = agent.exchange.reader

    def take(self, work: Work) -> None:
        """Queues a message that this thread has just received; called in this thread."""
        self._taken.append(work)
        self._wake()

    def run(self, start: Callable[[], None], ends: float) -> None:
        """Starts the pass, and blocks until it has ended everywhere.

        Args:
            start: Function that starts the pass.
            ends: The time of `time.monotonic` at which this thread stops waiting; the time that it
                computes is not bounded.

        Raises:
            CallTimeoutError: The pass has not ended by then.
            CallCancelledError: The call that this thread serves was cancelled.
        """
        ended = self._runner.ended
        ended._call_when_done(self._wake)
        waiting, me = self._desk.waiting, get_ident()
        self._do(start)
        while not ended.done():
            news = self._news = new_future(self._agent.pool.submit, "the end of a pass")
            news._stands_for(self, _nothing)
            if ended.done():  # it ended before `_news` was set
                return
            waiting[me] = self
            try:
                news.wait(seconds_until(ends))
            finally:
                del waiting[me]
                if self._taken:
                    self._do(partial(self._desk.work_through, self._taken, self._runner))

    def _do(self, work: Callable[[], None]) -> None:
        with Shield():  # Ctrl-C in between would send only a part of the messages
            self._agent.pool.new_context().run(work)

    def _wake(self) -> None:
        if self._news is not None:
            self._news.try_set_result(None)


def _nothing() -> None:
    pass
