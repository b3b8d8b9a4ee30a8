"""The members of the job, as one worker knows them."""

from __future__ import annotations

import numbers
import threading
from collections.abc import Iterable
from typing import final

from telegrad.critical import critical
from telegrad.errors import EvictedError, UnknownWorkerError, WorkerLostError
from telegrad.rpc.base.failure import fresh_copy
from telegrad.types import WorkerInfo

# The reason of a loss is kept for so many workers that others have replaced, at 2 KB each.
MOST_REPLACED = 256


@final
class Members:
    """The directory behind every `to` argument.

    Args:
        own: This worker, which is a member from the start.
        world_size: The number of workers that made the job complete.
    """

    def __init__(self, own: WorkerInfo, world_size: int) -> None:
        self._lock = threading.Lock()
        self._own = own
        self._world_size = world_size
        self._by_name = {own.name: own}
        self._by_rank = {own.rank: own}
        self._lost: dict[WorkerInfo, WorkerLostError] = {}
        self._forget_at = 2 * MOST_REPLACED
        self._forgotten: dict[str, int] = {}  # by name: the latest incarnation
        self._evicted: EvictedError | None = None

    @property
    def world_size(self) -> int:
        """The number of ranks: to the highest of a living member, with lost ones below it."""
        return max(self._world_size, self.living()[-1].rank + 1)

    def add(self, members: Iterable[WorkerInfo]) -> None:
        """Adds members; one with a known name or rank replaces its predecessor, never a successor.

        Incarnations grow, so late news does not undo newer knowledge.
        """
        with critical.section, self._lock:
            for member in members:
                if self._replaces(member, self._by_name.get(member.name)):
                    self._by_name[member.name] = member
                if self._replaces(member, self._by_rank.get(member.rank)):
                    self._by_rank[member.rank] = member

    def lose(self, member: WorkerInfo, error: WorkerLostError) -> None:
        """Records that a member is lost for good."""
        with critical.section, self._lock:
            self._lost[member] = error
            if len(self._lost) > self._forget_at:
                self._forget_replaced()

    def evict(self, error: EvictedError) -> None:
        """Records that the job goes on without this worker, also if it had lost others before."""
        self._evicted = error

    def eviction(self) -> EvictedError | None:
        """Returns a fresh error where the job goes on without this worker."""
        return None if self._evicted is None else fresh_copy(self._evicted)

    def means_me(self, cause: BaseException) -> bool:
        """Returns True if an error that a peer told says that this worker is lost."""
        if not isinstance(cause, WorkerLostError):
            return False
        return (cause.worker, cause.incarnation) == (self._own.name, self._own.incarnation)

    def losses(self) -> list[tuple[WorkerInfo, WorkerLostError]]:
        """Returns the members that are known to be lost, and the reasons."""
        with critical.section, self._lock:
            return list(self._lost.items())

    def living(self) -> list[WorkerInfo]:
        """Returns the members that are not known to be lost, by rank."""
        known = list(self._by_name.values())  # at once: error messages ask, from anywhere
        return sorted([i for i in known if i not in self._lost], key=lambda info: info.rank)

    def find(self, to: object) -> WorkerInfo:
        """Returns the member that a `to` argument means; a lost one too.

        Raises:
            TypeError: The argument is no name, rank or WorkerInfo.
            UnknownWorkerError: There is no such member.
        """
        if type(to) is str or isinstance(to, str):  # it nearly always is one
            found = self._by_name.get(to)
        elif isinstance(to, WorkerInfo):
            found = self._by_name.get(to.name)
            if found != to:
                replaced = _is_older(to, found)
                found = to if replaced or to in self._lost else None
        elif type(to) is int:
            found = self._by_rank.get(to)
        elif not isinstance(to, bool) and isinstance(to, numbers.Integral):
            found = self._by_rank.get(int(to))
        else:
            raise TypeError(
                f"to must be a worker's name, rank or WorkerInfo, not {to!r} ({type(to).__name__})"
            )
        if found is None:
            if not isinstance(to, str | WorkerInfo) and 0 <= int(to) < self._world_size:
                raise UnknownWorkerError(
                    f"rank {to} has not joined yet (world size {self._world_size}, members: "
                    f"{self._names()}); see rpc.on_join"
                )
            raise UnknownWorkerError(
                f"no worker {to!r} in this job (members: {self._names()}){self._advice()}"
            )
        return found

    def successor(self, member: WorkerInfo) -> WorkerInfo | None:
        """Returns the living worker that has taken a member's place; None where there is none."""
        found = self._by_name.get(member.name)
        if found is None or found.incarnation == member.incarnation:
            return None
        return found if self.lost(found) is None else None

    def lost(self, member: WorkerInfo) -> WorkerLostError | None:
        """Returns a fresh error where the member is lost; the eviction where this worker is."""
        error = self._lost.get(member) if self._lost else None
        if error is None:
            successor = self._by_name.get(member.name)
            return None if successor is member else self._replaced(member, successor)
        if self._evicted is not None:
            return self.eviction()
        return fresh_copy(error)

    def _forget_replaced(self) -> None:
        """Forgets the reasons of the first losses among replaced members. Holds the lock.

        They stay lost, by name, and with them any that were drawn before: that name has been taken
        again since, many times.
        """
        replaced = [
            each
            for each in self._lost
            if _is_older(each, self._by_name.get(each.name))
            and each != self._by_rank.get(each.rank)
        ]
        for each in replaced[:-MOST_REPLACED]:
            del self._lost[each]
            known = self._forgotten.get(each.name, each.incarnation)
            self._forgotten[each.name] = max(known, each.incarnation)
        self._forget_at = len(self._lost) + MOST_REPLACED

    def _replaces(self, member: WorkerInfo, known: WorkerInfo | None) -> bool:
        """Returns True if a member replaces a known one. Holds the lock.

        Incarnations are drawn before joining, so a later one may join first.
        """
        if not _is_older(member, known):
            return True
        forgotten = member.incarnation <= self._forgotten.get(member.name, -1)
        return known in self._lost and member not in self._lost and not forgotten

    def _replaced(self, member: WorkerInfo, successor: WorkerInfo | None) -> WorkerLostError | None:
        """Returns the loss of a member that was not heard of, but whose successor is here."""
        if successor is None or not _is_older(member, successor):
            return None
        reason = f"incarnation {successor.incarnation} has taken its place"
        return WorkerLostError(
            f"worker {member.name!r} (incarnation {member.incarnation}) is lost: {reason}",
            worker=member.name,
            incarnation=member.incarnation,
            reason=reason,
        )

    def _advice(self) -> str:
        if len(self._by_name) > 1:
            return ""
        return (
            "; this is a job of one, start more workers with: telegrad run --nproc-per-node N, or "
            "from this program with launch.LocalWorkers(n)"
        )

    def _names(self) -> str:
        with critical.section, self._lock:
            ordered = sorted(self._by_name.values(), key=lambda info: info.rank)
        return ", ".join(f"{info.name!r} (rank {info.rank})" for info in ordered)


def _is_older(member: WorkerInfo, known: WorkerInfo | None) -> bool:
    return known is not None and member.incarnation < known.incarnation
