"""The callee's end of admission: the permits of large calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import final

from telegrad.critical import critical
from telegrad.errors import DecodeError, UnknownWorkerError, WorkerLostError
from telegrad.rpc.base.limits import MOST, Limits
from telegrad.rpc.call.admission import ADMIT, LOOKS, Budget, Grant
from telegrad.rpc.pool.deadlines import Deadlines
from telegrad.types import WorkerInfo
from telegrad.wire import SMALL_LIMITS, Envelope, read_body, write_body

# Seconds between two looks. By default it is 1 s: longer than most functions work on big arguments,
# shorter than anyone takes for a hang. A worker may be silent for longer, even for ever, but calls
# that wait where nobody sees it still need the next one.
LONGEST_PAUSE = 10.0


@final
class CalleeAdmission:
    """The Budget of one worker. Methods may be called from any thread; handlers run on the loop.

    Args:
        limits: The limits of this worker.
        lost_after: Seconds without an answer after which a worker is lost.
        deadlines: The moments at which it looks for calls that wait too long.
        post: Posts an envelope; raises WorkerLostError.
        awaited: Returns the numbers of the calls that come from a peer now, and for each the number
            of its pieces that have not come.

    Attributes:
        expects: True if a call may come that has asked; set before its permit is posted.
    """

    def __init__(
        self,
        limits: Limits,
        lost_after: float,
        deadlines: Deadlines,
        post: Callable[[WorkerInfo, Envelope], None],
        awaited: Callable[[WorkerInfo], Mapping[int, int]],
    ) -> None:
        self._pause = min(lost_after / LOOKS, LONGEST_PAUSE)
        self._most_asked = limits.served_calls_per_peer
        self._deadlines = deadlines
        self._post = post
        self._awaited = awaited
        self._lock = threading.Lock()
        self._budget = Budget(limits.pending_bytes)
        self._watching = False
        self.expects = False

    @property
    def in_use(self) -> int:
        """The bytes of admitted calls that are here, or on their way."""
        return self._budget.in_use

    def on_ask(self, peer: WorkerInfo, envelope: Envelope) -> None:
        """Takes the request of a peer that wants to send a call."""
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
        """Forgets a call that had asked and will not come."""
        call = _natural(read_body(envelope, limits=SMALL_LIMITS))
        self._event(lambda: self._budget.withdraw(peer, call))

    def arrive(self, caller: WorkerInfo, number: int) -> Callable[[], None] | None:
        """Counts a call that came, for a caller that sees that this `expects` one.

        Returns:
            The function that gives the call's bytes back; None if it holds none.
        """
        with critical.section, self._lock:
            if not self._budget.arrive(caller, number):
                return None
        return partial(self.release, caller, number)

    def release(self, caller: WorkerInfo, number: int) -> None:
        """Gives back the bytes of a call that ended, or begins to wait; idempotent."""
        self._event(lambda: self._budget.release(caller, number))

    def lose(self, peer: WorkerInfo) -> None:
        """Forgets the calls that a lost worker wanted to send."""
        self._event(lambda: self._budget.lose(peer))

    def _event(self, event: Callable[[], list[Grant]]) -> None:
        with critical.section, self._lock:
            grants = event()
            # Set before a permit is posted: the call may be here as soon as its caller has the
            # permit, and `accept` looks at this without the lock.
            self.expects = self._budget.expects
            watch = self._budget.is_full and not self._watching
            self._watching |= watch
            seen = self._budget.changes
        if watch:
            self._deadlines.after(self._pause, lambda: self._look(seen))
        for grant in grants:
            try:
                self._post(grant.peer, write_body(ADMIT, grant.call))
            except (WorkerLostError, UnknownWorkerError):
                self.lose(grant.peer)

    def _look(self, seen: int) -> None:
        """Looks for a stall, a while after calls began to wait; on the loop."""
        with critical.section, self._lock:
            self._watching = False
            coming = self._budget.coming
        awaited = {peer: self._awaited(peer) for peer in {grant.peer for grant in coming}}
        missing = {each: awaited[each.peer].get(each.call) for each in coming}
        self._event(lambda: self._budget.look(missing, seen))


def _natural(value: object) -> int:
    if type(value) is not int or not 0 <= value <= MOST:
        raise DecodeError("rpc.ask and rpc.withdraw carry numbers from 0")
    return value
