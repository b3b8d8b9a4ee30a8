"""Two ranks that wait for each other in different operations.

Ranks that call different operations as the n-th of one group see that in the first message.
Ranks that call operations of two groups, or a receive against a reduction, exchange no messages
that can be compared: each would wait until its deadline. So a rank that has waited for a while
tells the others which operation it waits in. It also tells them if it is blocked: its main thread
waits there, and no other thread calls operations. Two blocked ranks, each in one that the
other has not entered, can never go on. Nor can one that forms a group with another that is
blocked.

    rank 0: all_reduce on a ── blocked ──▶ rank 1, which has not entered it
    rank 1: all_reduce on b ── blocked ──▶ rank 0, which has not entered it

If other threads call operations too, one of them may still enter: then the deadline decides.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import final

from telegrad.collectives.messages import (
    ABORT,
    BLOCKED,
    AbortMessage,
    GroupKey,
    OperationId,
    OperationMessage,
    Signature,
)
from telegrad.collectives.operation import Group, Operation
from telegrad.critical import critical
from telegrad.errors import CollectiveMismatchError, UnknownWorkerError, WorkerLostError
from telegrad.rpc.seams import AgentCore, Reads
from telegrad.types import WorkerInfo

_NOT_MAIN: AbstractContextManager[None] = nullcontext()


@final
class _Blocking(AbstractContextManager[None]):
    """A block in which the main thread waits; no generator, as each operation enters one."""

    def __init__(self, waits: CrossWaits, awaited: object) -> None:
        self._waits = waits
        self._awaited = awaited

    def __enter__(self) -> None:
        self._awaited = self._waits.block(self._awaited)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        left = self._waits.block(self._awaited)
        if kind is not None and isinstance(left, Operation):  # of a Work, it may go on
            left.timer.unblock(left)


@final
class CrossWaits:
    """The operations in which this worker and others wait, as they have told each other.

    Args:
        find_group: Function that returns the group of a key; None if this worker has not made it.
        is_gone: Function that returns True if this worker has left the group of a key.

    Attributes:
        reads: Lets a waiting thread read the sockets that messages of the members come by.
    """

    def __init__(
        self,
        agent: AgentCore,
        find_group: Callable[[GroupKey], Group | None],
        is_gone: Callable[[GroupKey], bool],
    ) -> None:
        self.reads: Reads = agent.exchange.reader
        self._agent = agent
        self._find_group = find_group
        self._is_gone = is_gone
        self._main = threading.main_thread().ident
        self._waits_lock = threading.Lock()  # guards all attributes below
        self._blocked: object = None
        self._other_callers: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        self._told: dict[WorkerInfo, OperationMessage] = {}

    def note_caller(self) -> None:
        """Records that this thread calls operations."""
        if threading.get_ident() != self._main:
            with critical.section, self._waits_lock:
                self._other_callers.add(threading.current_thread())

    def blocking(self, awaited: object) -> AbstractContextManager[None]:
        """Records, while its block runs, that this thread waits.

        Args:
            awaited: An operation, the forming of a group, or a group for any of its operations.
        """
        return _Blocking(self, awaited) if threading.get_ident() == self._main else _NOT_MAIN

    def block(self, awaited: object) -> object:
        """Records the wait of the main thread; returns its wait before, as a handler may wait."""
        with critical.section, self._waits_lock:
            outer, self._blocked = self._blocked, awaited
        return outer

    def blocked_in(self) -> object:
        """Returns the wait in which this worker is blocked; None if it may enter an operation."""
        with critical.section, self._waits_lock:
            if any(thread.is_alive() for thread in self._other_callers):
                return None
            return self._blocked

    def on_told(self, peer: WorkerInfo, message: OperationMessage) -> None:
        """Records the operation that a worker waits in, and checks for a mutual wait.

        One in which a worker is blocked stays, whatever other operations that worker tells of, for
        its program started those before.
        """
        known = self._last_told(peer)
        with critical.section, self._waits_lock:
            if (
                message.number == BLOCKED
                or known is None
                or known.number != BLOCKED
                or (known.group, known.id) == (message.group, message.id)
            ):
                self._told[peer] = message
        if self._is_gone(message.group):  # after the record: this worker may leave meanwhile
            self.forget([message.group])
        self.check(peer)

    def forget(self, groups: Collection[GroupKey]) -> None:
        """Forgets the waits in groups of which this worker will enter no operation.

        A group that is made here answers for its operations itself, by `may_enter`. Of any other
        group, the wait of a rank would seem to last for ever.
        """
        with critical.section, self._waits_lock:
            self._told = {p: told for p, told in self._told.items() if told.group not in groups}

    def are_blocked(self, names: Collection[str]) -> bool:
        """Returns True if each of some workers is blocked in what this one has not entered."""
        with critical.section, self._waits_lock:
            told = [peer for peer in self._told if peer.name in names]
        last = {peer.name: self._last_told(peer) for peer in told}
        return all((message := last.get(n)) and message.number == BLOCKED for n in names)

    def told(self, peer: WorkerInfo) -> str:
        """Returns in words the operation that a worker waits in, empty if entered here."""
        message = self._last_told(peer)
        return "" if message is None else f"which waits in {self._describe(message)}"

    def check(self, peer: WorkerInfo) -> None:
        """Ends both operations if this worker and another wait for each other."""
        mine = self.blocked_in()
        if isinstance(mine, Operation) and mine.timer.lacks(mine, peer):
            words = _call_words(mine.call.signature, mine.slot.id, mine.group)
            self.end_wait_for(peer, words, partial(mine.group.fail, since=mine.slot.id.since))

    def end_wait_for(
        self, peer: WorkerInfo, mine: str, fail: Callable[[BaseException], None]
    ) -> None:
        """Ends a wait for a worker, and the wait of that worker, if it is blocked without this one.

        Args:
            peer: The worker.
            mine: The wait of this worker, in words.
            fail: Ends that wait with an error.
        """
        theirs = self._last_told(peer)
        if theirs is None or theirs.number != BLOCKED:
            return
        cause = self._cause(mine, peer, theirs)
        other = self._find_group(theirs.group)
        if other is not None:
            other.fail(cause, since=theirs.id.since)
        else:
            body = AbortMessage(theirs.group, theirs.id.since, cause).to_wire()
            with suppress(WorkerLostError, UnknownWorkerError):
                self._agent.messages.post(peer, ABORT, body)
        fail(cause)  # last: a program that ends with the error has told the other worker by then

    def _last_told(self, peer: WorkerInfo) -> OperationMessage | None:
        with critical.section, self._waits_lock:
            message = self._told.get(peer)
        if message is None:
            return None
        group = self._find_group(message.group)
        return message if group is None or group.may_enter(message.id) else None

    def _describe(self, message: OperationMessage) -> str:
        return _call_words(message.signature, message.id, self._find_group(message.group))

    def _cause(
        self, mine: str, peer: WorkerInfo, theirs: OperationMessage
    ) -> CollectiveMismatchError:
        here = self._agent.info
        waits = sorted(
            [
                (here.rank, here.name, mine),
                (peer.rank, peer.name, self._describe(theirs)),
            ]
        )
        said = ", but ".join(f"rank {r} ({name!r}) waits in {what}" for r, name, what in waits)
        return CollectiveMismatchError(
            f"{said}: each waits for the other; all ranks must call the same operations of the "
            "same groups in the same order"
        )


def _call_words(signature: Signature, operation_id: OperationId, group: Group | None) -> str:
    """Returns an operation in words that do not name a rank."""
    of = f"group {group.name!r}" if group is not None else "a group that is not known here"
    return f"{signature}, number {operation_id.sequence} of {of}"
