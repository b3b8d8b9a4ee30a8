"""The callee's end of admission: what it takes in at once of calls that must ask."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import final

from telegrad.errors import DecodeError, UnknownWorkerError, WorkerLostError
from telegrad.rpc.call.admission import Budget, Grant, Leaves
from telegrad.rpc.call.admission_caller import ADMIT
from telegrad.rpc.limits import MOST, Limits
from telegrad.rpc.pool.deadlines import Deadlines
from telegrad.types import WorkerInfo
from telegrad.wire import SMALL_LIMITS, Envelope, read_body, write_body

__all__ = ["CalleeAdmission"]


@final
class CalleeAdmission:
    """The Budget of one worker. From any thread; handlers run on the loop.

    Attributes:
        expects: Whether a call may come that has asked; true before its leave is posted.

    Args:
        limits: Of this worker.
        deadlines: Where it looks whether those that wait have waited too long.
        post: Posts an envelope; raises WorkerLostError.
        awaited: Says of the calls that come from a peer now how many pieces each still awaits, by
            number.
    """

    def __init__(
        self,
        limits: Limits,
        deadlines: Deadlines,
        post: Callable[[WorkerInfo, Envelope], None],
        awaited: Callable[[WorkerInfo], Mapping[int, int]],
    ) -> None:
        self._stalled_after = limits.stalled_after
        self._most_asked = limits.served_calls_per_peer
        self._deadlines = deadlines
        self._post = post
        self._awaited = awaited
        self._lock = threading.Lock()
        self._budget = Budget(limits.pending_bytes, limits.pending_bytes_per_peer)
        self._leaves = Leaves()  # this one on the loop alone
        self._watching = False
        self.expects = False

    @property
    def in_use(self) -> int:
        """Bytes of admitted calls that are here, or on their way."""
        return self._budget.in_use

    def on_ask(self, peer: WorkerInfo, envelope: Envelope) -> None:
        """A peer wants to send a call."""
        body = read_body(envelope, limits=SMALL_LIMITS)
        if not isinstance(body, list) or len(body) != 2:
            raise DecodeError("the body of rpc.ask is not [call, bytes]")
        call, size = _natural(body[0]), _natural(body[1])
        if self._budget.asked_by(peer) >= self._most_asked:
            raise DecodeError(
                f"{peer.name!r} has {self._most_asked} calls that wait to be taken in"
            )
        self._event(lambda: self._budget.ask(peer, call, size))

    def on_withdraw(self, peer: WorkerInfo, envelope: Envelope) -> None:
        """A call that had asked will not come."""
        call = _natural(read_body(envelope, limits=SMALL_LIMITS))
        self._event(lambda: self._budget.withdraw(peer, call))

    def arrive(self, caller: WorkerInfo, number: int) -> Callable[[], None] | None:
        """A call came; returns what gives its bytes back, None where it holds none.

        To be asked while it `expects` any.
        """
        with self._lock:
            if not self._budget.arrive(caller, number):
                return None
        return partial(self.release, caller, number)

    def release(self, caller: WorkerInfo, number: int) -> None:
        """A call ended, or begins to wait; idempotent."""
        self._event(lambda: self._budget.release(caller, number))

    def lose(self, peer: WorkerInfo) -> None:
        """Forgets what a lost worker wanted to send."""
        self._event(lambda: self._budget.lose(peer))

    def _event(self, event: Callable[[], list[Grant]]) -> None:
        with self._lock:
            grants = deque(event())
            self.expects = self._budget.expects
            watch = self._needs_watch()
            seen = self._budget.changes
        if watch:
            self._deadlines.after(self._stalled_after, lambda: self._look(seen))
        while grants:
            grant = grants.popleft()
            try:
                self._post(grant.peer, write_body(ADMIT, grant.call))
            except (WorkerLostError, UnknownWorkerError):
                with self._lock:
                    grants.extend(self._budget.release(grant.peer, grant.call))
                    self.expects = self._budget.expects

    def _needs_watch(self) -> bool:
        if self._watching or not self._budget.is_full:
            return False
        self._watching = True
        return True

    def _look(self, seen: int) -> None:
        """A while later, on the loop: whoever is in may wait for one that is not, or not come."""
        with self._lock:
            coming = self._budget.coming
        awaited = {peer: self._awaited(peer) for peer in {grant.peer for grant in coming}}
        lapsed = self._leaves.look({each: awaited[each.peer].get(each.call) for each in coming})

        def event() -> list[Grant]:
            self._watching = False
            if lapsed:
                return self._budget.lapse(lapsed)
            return self._budget.overdraw(seen)

        self._event(event)


def _natural(value: object) -> int:
    if type(value) is not int or not 0 <= value <= MOST:
        raise DecodeError("rpc.ask and rpc.withdraw carry numbers from 0")
    return value
