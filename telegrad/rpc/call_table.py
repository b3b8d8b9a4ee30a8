"""The calls of one worker that wait for their replies."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, final

from telegrad.rpc.deadlines import Deadline
from telegrad.rpc.future import Future
from telegrad.rpc.gate import Drive
from telegrad.rpc.interceptor import CallRecord
from telegrad.rpc.served_call import ServedCall
from telegrad.types import WorkerInfo

__all__ = ["CallTable", "PendingCall"]


@dataclass(slots=True, eq=False)
class PendingCall:
    """The caller's end of one call.

    Attributes:
        peer: The callee.
        record: What interceptors keep between the request and its reply.
        future: What the verb returned.
        values: Whether the reply carries user values, through the interceptors.
        limit: Its seconds, for the error.
        root: Whether it has a place in the window of its peer; see `admission`.
        parent: The served call that made it, and whose end by cancellation is its own.
        number: Its id, drawn by the table.
        started: When, on the clock of `time.monotonic`.
        deadline: Its entry in the heap.
        given_up: Whether it expired or was cancelled; the reply is still expected, and dropped.
        drive: Has a thread that waits for the reply read what comes from the peer.
    """

    peer: WorkerInfo
    record: CallRecord
    future: Future[Any]
    values: bool
    limit: float
    root: bool = False
    parent: ServedCall | None = None
    number: int = 0
    started: float = field(default_factory=time.monotonic)
    deadline: Deadline | None = None
    given_up: bool = False
    drive: Drive | None = None

    @property
    def elapsed(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self.started


@final
class CallTable:
    """Every request gets exactly one reply, or its callee is lost; so no entry stays behind.

    One lock; from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._numbers = itertools.count(1)
        self._calls: dict[int, PendingCall] = {}
        self._waited_for = 0  # calls with user values that are not given up
        self._sent = 0

    @property
    def sent(self) -> int:
        """How many calls with user values were ever made."""
        return self._sent

    @property
    def pending(self) -> int:
        """How many calls with user values wait for their reply."""
        return self._waited_for

    def labels(self) -> list[str]:
        """Returns the calls with user values that wait for their reply, in words, oldest first."""
        with self._lock:
            calls = list(self._calls.values())
        return [
            f"{call.record.function} on {call.peer.name!r}"
            for call in calls
            if call.values and not call.given_up
        ]

    def draw(self) -> int:
        """Returns a number that no other call has."""
        return next(self._numbers)

    def add(self, call: PendingCall) -> None:
        """Enters a call by its number."""
        with self._lock:
            self._calls[call.number] = call
            if call.parent is not None:
                call.parent.nested.add(call.future)
            if call.values:
                self._waited_for += 1
                self._sent += 1

    def take(self, peer: WorkerInfo, number: int) -> PendingCall | None:
        """Takes out the call that a reply from `peer` belongs to; None where there is none."""
        with self._lock:
            call = self._calls.get(number)
            if call is None or (call.peer is not peer and call.peer != peer):
                return None
            del self._calls[number]
            self._settle(call)
        return call

    def find(self, number: int) -> PendingCall | None:
        """Returns a call that waits for its reply, given up or not."""
        return self._calls.get(number)

    def give_up(self, call: PendingCall) -> bool:
        """Marks a call whose value nobody wants any more; False where its reply came first."""
        with self._lock:
            if call.given_up or call.number not in self._calls:
                return False
            self._settle(call)
            call.given_up = True
        return True

    def lose(self, gone: Callable[[WorkerInfo], bool]) -> list[PendingCall]:
        """Takes out the calls to peers that are gone."""
        with self._lock:
            lost = [call for call in self._calls.values() if gone(call.peer)]
            for call in lost:
                del self._calls[call.number]
                self._settle(call)
        return [call for call in lost if not call.given_up]

    def wait_until_empty(self, deadline: float) -> bool:
        """Blocks until no call with user values waits, or until the deadline; tells which."""
        with self._changed:
            while self._waited_for:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(min(left, threading.TIMEOUT_MAX))
        return True

    def _settle(self, call: PendingCall) -> None:
        if call.parent is not None:
            call.parent.nested.discard(call.future)
        if call.values and not call.given_up:
            self._waited_for -= 1
            if not self._waited_for:
                self._changed.notify_all()
