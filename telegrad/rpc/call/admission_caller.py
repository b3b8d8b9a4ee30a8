"""The caller's end of admission: keeps root calls back until they may be posted."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeAlias, final

from telegrad.critical import critical
from telegrad.errors import UnknownWorkerError, WorkerLostError
from telegrad.rpc.base.limits import Limits
from telegrad.rpc.call.admission import Move, NextStep, Window
from telegrad.rpc.call.codec import Sealed
from telegrad.rpc.call.table import PendingCall
from telegrad.types import WorkerInfo
from telegrad.wire import Envelope, read_body, write_body

ASK = "rpc.ask"  # [call, bytes]: may it come?
WITHDRAW = "rpc.withdraw"  # call: one that has asked will not come
ADMIT = "rpc.admit"  # call: it may

# Of `pending_bytes`: 4 MiB by default. A permit costs a round trip: 200 calls of 16 KiB at once
# took 36 ms within an allowance of 4 MiB, 61 ms within 1 MiB, over loopback on two cores; one call
# of 2 MiB took 2.7 ms, or 3.4 ms if it needed a permit. Ten peers that need none hold 40 MiB, and
# 256 hold as much as the calls with a permit.
UNASKED_PART = 256

Held: TypeAlias = tuple[PendingCall, Sealed]


@final
class CallerAdmission:
    """One Window for each peer, and the calls that wait in it.

    The thread that takes a call out (`leave`, `lose`, a permit) has it alone: the call is posted or
    taken back, and never both. All methods may be called from any thread.

    Args:
        limits: The limits of this worker.
        post: Posts an envelope; raises WorkerLostError.
        start: Posts a call that waited; returns False if that failed, and the call has ended.
    """

    def __init__(
        self,
        limits: Limits,
        post: Callable[[WorkerInfo, Envelope], None],
        start: Callable[[PendingCall, Sealed], bool],
    ) -> None:
        self._window = limits.pending_calls_per_peer, limits.pending_bytes // UNASKED_PART
        self._post = post
        self._start = start
        self._lock = threading.Lock()
        self._windows: dict[int, tuple[WorkerInfo, Window]] = {}  # by the peer's incarnation
        self._held: dict[int, Held] = {}

    @property
    def waiting(self) -> int:
        """The number of calls that wait."""
        return len(self._held)

    def enter(self, call: PendingCall, sealed: Sealed) -> bool:
        """Takes a root call of the call table; returns True if it is posted now.

        If not, it is kept and `start` is called with it later, unless it leaves before.

        Raises:
            WorkerLostError: The callee is lost; the call still has to `leave`.
        """
        envelope, peer = sealed.envelope, call.peer
        size = len(envelope.document)  # headers are small by nature
        if envelope.externals:
            size += len(envelope.externals)
        if envelope.buffers:
            size += sum([memoryview(buffer).nbytes for buffer in envelope.buffers])
        with critical.section, self._lock:
            if peer.incarnation not in self._windows:
                self._windows[peer.incarnation] = peer, Window(*self._window)
            call.window = window = self._windows[peer.incarnation][1]
            step = window.enter(call.number, size)
            if step is NextStep.START:
                return True
            self._held[call.number] = (call, sealed)
        if step is NextStep.ASK:
            self._post(peer, write_body(ASK, [call.number, size]))
        return False

    def holds(self, call: PendingCall) -> bool:
        """Returns True if a call waits here."""
        return call.number in self._held

    def leave(self, call: PendingCall, *, unsent_only: bool = False) -> Sealed | None:
        """Takes out a call that ended, and starts the calls that get its place; idempotent.

        Args:
            call: The call.
            unsent_only: True to do nothing to a call that was posted.

        Returns:
            The call's message, which the caller of this takes back; None if it was posted.
        """
        if (window := call.window) is None:  # it never entered one
            return None
        with critical.section, self._lock:
            held = self._held.pop(call.number, None) if self._held else None
            if held is None and unsent_only:
                return None
            moves = window.leave(call.number)
        if moves:
            self._carry_out(call.peer, moves)
        return held[1] if held is not None else None

    def lose(self, gone: Callable[[WorkerInfo], bool]) -> list[Held]:
        """Forgets the windows of peers that are gone; returns the calls that waited in them."""
        with critical.section, self._lock:
            lost = [held for held in self._held.values() if gone(held[0].peer)]
            for call, _ in lost:
                del self._held[call.number]
            for peer, window in list(self._windows.values()):
                if gone(peer):
                    window.lose()
                    del self._windows[peer.incarnation]
        return lost

    def on_admit(self, peer: WorkerInfo, envelope: Envelope) -> None:
        """Starts a call for which its callee sent a permit; on the loop."""
        number = read_body(envelope)
        with critical.section, self._lock:
            _, window = self._windows.get(peer.incarnation, (peer, None))
            if window is None or not isinstance(number, int) or not window.admit(number):
                return  # it was withdrawn in the meantime, which the callee hears too
            call, sealed = self._held.pop(number)
        if not self._start(call, sealed):
            with critical.section, self._lock:
                moves = window.leave(number)
            self._carry_out(peer, [Move(number, NextStep.WITHDRAW, 0), *moves])

    def _carry_out(self, peer: WorkerInfo, moves: Iterable[Move]) -> None:
        left = deque(moves)
        while left:
            number, step, size = left.popleft()
            if step is NextStep.START:
                with critical.section, self._lock:
                    held = self._held.pop(number, None)
                if held is not None and not self._start(*held) and (window := held[0].window):
                    with critical.section, self._lock:
                        left.extend(window.leave(number))
                continue
            kind, body = (ASK, [number, size]) if step is NextStep.ASK else (WITHDRAW, number)
            with contextlib.suppress(WorkerLostError, UnknownWorkerError):  # `lose` follows
                self._post(peer, write_body(kind, body))
