"""The caller's end of admission: keeps root calls back until they may be posted."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeAlias, final

from telegrad.errors import UnknownWorkerError, WorkerLostError
from telegrad.rpc.call.admission import Move, Places, Step, Window
from telegrad.rpc.call.codec import Sealed
from telegrad.rpc.call.table import PendingCall
from telegrad.rpc.limits import Limits
from telegrad.types import WorkerInfo
from telegrad.wire import Envelope, read_body, write_body

__all__ = ["ADMIT", "ASK", "WITHDRAW", "CallerAdmission"]

ASK = "rpc.ask"  # [call, bytes]: may it come?
WITHDRAW = "rpc.withdraw"  # call: one that has asked will not come
ADMIT = "rpc.admit"  # call: it may

Held: TypeAlias = tuple[PendingCall, Sealed]
Addressed: TypeAlias = tuple[WorkerInfo, Move]


@final
class CallerAdmission:
    """One Window for each peer, and the calls that wait in it.

    Whoever takes a call out (`leave`, `lose`, an admission) has it alone: it is posted or taken
    back, and never both. From any thread.

    Args:
        limits: Of this worker.
        post: Posts an envelope; raises WorkerLostError.
        start: Posts a call that waited; False where that cannot be, and the call has ended.
    """

    def __init__(
        self,
        limits: Limits,
        post: Callable[[WorkerInfo, Envelope], None],
        start: Callable[[PendingCall, Sealed], bool],
    ) -> None:
        self._limits = limits
        self._post = post
        self._start = start
        self._lock = threading.Lock()
        self._places = Places(limits.pending_calls)
        self._windows: dict[WorkerInfo, Window] = {}
        self._latest: tuple[WorkerInfo | None, Window] = None, Window(limits, self._places)
        self._held: dict[int, Held] = {}

    @property
    def waiting(self) -> int:
        """How many calls wait."""
        return len(self._held)

    def enter(self, call: PendingCall, sealed: Sealed) -> bool:
        """Takes a root call that was entered in the call table; tells whether it is posted now.

        If not, it is kept and `start` is called with it later, unless it leaves before.

        Raises:
            WorkerLostError: The callee is lost; the call still has to `leave`.
        """
        envelope = sealed.envelope
        size = len(envelope.document) + len(envelope.externals)  # headers are small by nature
        if envelope.buffers:
            size += sum([memoryview(buffer).nbytes for buffer in envelope.buffers])
        with self._lock:
            peer, window = self._latest
            if peer is not call.peer:
                window = self._window_to(call.peer)
            call.window = window
            step = window.enter(call.number, size)
            if step is Step.START:
                return True
            self._held[call.number] = (call, sealed)
        if step is Step.ASK:
            self._post(call.peer, write_body(ASK, [call.number, size]))
        return False

    def holds(self, call: PendingCall) -> bool:
        """Tells whether a call waits here."""
        return call.number in self._held

    def leave(self, call: PendingCall) -> Sealed | None:
        """Takes out a call that ended, and starts what waited for its place; idempotent.

        Returns:
            The call's message where it was not posted: it is the caller's to take back.
        """
        if (window := call.window) is None:  # it never entered one
            return None
        with self._lock:
            held = self._held.pop(call.number, None) if self._held else None
            moves = window.leave(call.number)
            addressed = self._addressed(moves, call.peer) if moves else None
        if addressed:
            self._carry_out(addressed)
        return held[1] if held is not None else None

    def withdraw(self, call: PendingCall) -> Sealed | None:
        """Takes out a call that still waits; does nothing to one that was posted.

        Returns:
            Its message, to be taken back; None where it was posted.
        """
        with self._lock:
            held = self._held.pop(call.number, None)
            if held is None:
                return None
            moves = self._take_out(call)
        self._carry_out(moves)
        return held[1]

    def lose(self, gone: Callable[[WorkerInfo], bool]) -> list[Held]:
        """Forgets the windows of peers that are gone; returns what waited in them."""
        with self._lock:
            lost = [held for held in self._held.values() if gone(held[0].peer)]
            for call, _ in lost:
                del self._held[call.number]
            windows = [self._windows.pop(peer) for peer in list(self._windows) if gone(peer)]
            self._latest = None, self._latest[1]
            moves = self._addressed([move for window in windows for move in window.lose()])
        self._carry_out(moves)
        return lost

    def on_admit(self, peer: WorkerInfo, envelope: Envelope) -> None:
        """A callee takes a call that asked; on the loop."""
        number = read_body(envelope)
        with self._lock:
            window = self._windows.get(peer)
            if window is None or not isinstance(number, int) or not window.admit(number):
                return  # it was withdrawn in the meantime, which the callee hears too
            held = self._held.pop(number)
        left = self._try(held)
        if left is not None:
            self._carry_out([(peer, Move(number, Step.WITHDRAW, 0)), *left])

    def _window_to(self, peer: WorkerInfo) -> Window:
        """Returns the window of a peer, which is likely to be asked for next, too. Holds the lock."""
        window = self._windows.get(peer)
        if window is None:
            window = self._windows[peer] = Window(self._limits, self._places)
        self._latest = peer, window
        return window

    def _take_out(self, call: PendingCall) -> list[Addressed]:
        """Takes a call out of its window; holds the lock."""
        moves = [] if call.window is None else call.window.leave(call.number)
        return self._addressed(moves, call.peer) if moves else []

    def _addressed(self, moves: Iterable[Move], own: WorkerInfo | None = None) -> list[Addressed]:
        """Says to whom each call goes, one that is held no more to `own`; holds the lock."""
        found = []
        for move in moves:
            held = self._held.get(move.call)
            peer = held[0].peer if held is not None else own
            if peer is not None:
                found.append((peer, move))
        return found

    def _carry_out(self, moves: Iterable[Addressed]) -> None:
        left = deque(moves)
        while left:
            peer, (call, step, size) = left.popleft()
            if step is Step.START:
                with self._lock:
                    held = self._held.pop(call, None)
                if held is not None:
                    left.extend(self._try(held) or [])
                continue
            kind, body = (ASK, [call, size]) if step is Step.ASK else (WITHDRAW, call)
            with contextlib.suppress(WorkerLostError, UnknownWorkerError):  # `lose` follows
                self._post(peer, write_body(kind, body))

    def _try(self, held: Held) -> list[Addressed] | None:
        """Starts a call; where it could not be posted, returns what has its place."""
        call, sealed = held
        if self._start(call, sealed):
            return None
        with self._lock:
            return self._take_out(call)
