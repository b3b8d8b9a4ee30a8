"""Two ranks that wait for each other in different operations.

Ranks that call different things as the n-th operation of one group see that in the first message.
Ranks that call the same thing on two groups, or where one receives and the other reduces, exchange
nothing that can be compared: each waits until its deadline. So whoever has waited for a while says
what it waits in, and whether nothing but that can happen there: its main thread is blocked, and no
other thread calls operations. Two ranks that are blocked so, each in what the other has not
entered, will never go on.

    rank 0: all_reduce on a ── blocked ──▶ rank 1, which has not entered it
    rank 1: all_reduce on b ── blocked ──▶ rank 0, which has not entered it

Where other threads call operations, too, one of them may still come: then the deadline decides.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, final

from telegrad.collectives.messages import (
    ABORT,
    BLOCKED,
    AbortMessage,
    GroupKey,
    OperationMessage,
)
from telegrad.errors import CollectiveMismatchError, UnknownWorkerError, WorkerLostError
from telegrad.rpc import Agent
from telegrad.types import WorkerInfo

if TYPE_CHECKING:
    from telegrad.collectives.operation import Operation
    from telegrad.collectives.process_group import ProcessGroup

__all__ = ["CrossWaits"]


@final
class CrossWaits:
    """What this worker waits in, and what others say that they wait in.

    Args:
        agent: This worker's.
        find_group: Returns the group of a name; None if this worker has not made it.
    """

    def __init__(self, agent: Agent, find_group: Callable[[GroupKey], ProcessGroup | None]) -> None:
        self._agent = agent
        self._find_group = find_group
        self._waits_lock = threading.Lock()  # guards all below
        self._blocked: Operation[Any] | None = None
        self._other_callers: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        self._told: dict[WorkerInfo, OperationMessage] = {}

    def note_caller(self) -> None:
        """Notes that this thread calls operations."""
        if threading.get_ident() != threading.main_thread().ident:
            with self._waits_lock:
                self._other_callers.add(threading.current_thread())

    @contextmanager
    def blocking(self, operation: Operation[Any]) -> Iterator[None]:
        """Notes that this thread waits for an operation, as long as the context lasts."""
        if threading.get_ident() != threading.main_thread().ident:
            yield
            return
        with self._waits_lock:
            outer, self._blocked = self._blocked, operation  # a signal's handler may wait, too
        try:
            yield
        finally:
            with self._waits_lock:
                self._blocked = outer

    def blocked_in(self) -> Operation[Any] | None:
        """Returns the operation without which this worker enters no other; None if it may."""
        with self._waits_lock:
            if any(thread.is_alive() for thread in self._other_callers):
                return None
            return self._blocked

    def on_told(self, peer: WorkerInfo, message: OperationMessage) -> None:
        """Hears what a worker waits in."""
        with self._waits_lock:
            self._told[peer] = message
        self.check(peer)

    def told(self, peer: WorkerInfo) -> str:
        """Returns in words what a worker waits in that this one has not entered; else nothing."""
        message = self._last_told(peer)
        return "" if message is None else f"which waits in {self._describe(message)}"

    def check(self, peer: WorkerInfo) -> None:
        """Ends both operations if this worker and another wait for each other."""
        mine, theirs = self.blocked_in(), self._last_told(peer)
        if mine is None or theirs is None or theirs.number != BLOCKED or not mine.lacks(peer):
            return
        cause = self._cause(mine, peer, theirs)
        mine.group.fail(cause, since=mine.slot.id.since)
        other = self._find_group(theirs.group)
        if other is not None:
            other.fail(cause, since=theirs.id.since)
        else:
            body = AbortMessage(theirs.group, theirs.id.since, cause).to_wire()
            with suppress(WorkerLostError, UnknownWorkerError):
                self._agent.post(peer, ABORT, body)

    def _last_told(self, peer: WorkerInfo) -> OperationMessage | None:
        with self._waits_lock:
            message = self._told.get(peer)
        if message is None:
            return None
        group = self._find_group(message.group)
        return message if group is None or group.may_enter(message.id) else None

    def _describe(self, message: OperationMessage) -> str:
        group = self._find_group(message.group)
        of = f"group {group.name!r}" if group is not None else "a group that is not known here"
        return f"{message.signature}, number {message.id.sequence} of {of}"

    def _cause(
        self, mine: Operation[Any], peer: WorkerInfo, theirs: OperationMessage
    ) -> CollectiveMismatchError:
        here = self._agent.info
        waits = sorted(
            [
                (here.rank, here.name, mine.described),
                (peer.rank, peer.name, self._describe(theirs)),
            ]
        )
        said = ", but ".join(f"rank {r} ({name!r}) waits in {what}" for r, name, what in waits)
        return CollectiveMismatchError(
            f"{said}: each waits for the other; all ranks must call the same operations of the "
            "same groups in the same order"
        )
