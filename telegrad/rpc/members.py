"""Who is in the job, as one worker knows it."""

from __future__ import annotations

import numbers
import threading
from collections.abc import Iterable
from typing import final

from telegrad.errors import UnknownWorkerError, WorkerLostError
from telegrad.rpc.fresh import fresh_copy
from telegrad.types import WorkerInfo

__all__ = ["Members"]


@final
class Members:
    """The directory behind every `to` argument.

    Args:
        own: This worker, which is a member from the start.
        world_size: How many workers made the job complete.
    """

    def __init__(self, own: WorkerInfo, world_size: int) -> None:
        self._lock = threading.Lock()
        self._world_size = world_size
        self._by_name = {own.name: own}
        self._by_rank = {own.rank: own}
        self._lost: dict[WorkerInfo, WorkerLostError] = {}

    @property
    def world_size(self) -> int:
        """How many ranks there are: to the highest of a living member, lost ones below it too."""
        return max(self._world_size, self.living()[-1].rank + 1)

    def add(self, members: Iterable[WorkerInfo]) -> None:
        """Adds members; one with a known name or rank replaces its predecessor."""
        with self._lock:
            for member in members:
                self._by_name[member.name] = member
                self._by_rank[member.rank] = member

    def lose(self, member: WorkerInfo, error: WorkerLostError) -> None:
        """Notes that a member is lost for good."""
        with self._lock:
            self._lost[member] = error

    def living(self) -> list[WorkerInfo]:
        """Returns the members that are not known to be lost, by rank."""
        with self._lock:
            found = [info for info in self._by_name.values() if info not in self._lost]
        return sorted(found, key=lambda info: info.rank)

    def find(self, to: object) -> WorkerInfo:
        """Returns the member that a `to` argument means; a lost one too.

        Raises:
            TypeError: It is no name, rank or WorkerInfo.
            UnknownWorkerError: There is no such member.
        """
        if isinstance(to, str):
            found = self._by_name.get(to)
        elif isinstance(to, WorkerInfo):
            found = self._by_name.get(to.name)
            if found != to:
                found = to if to in self._lost else None
        elif not isinstance(to, bool) and isinstance(to, numbers.Integral):
            found = self._by_rank.get(int(to))
        else:
            raise TypeError(
                f"to must be a worker's name, rank or WorkerInfo, not {to!r} ({type(to).__name__})"
            )
        if found is None:
            raise UnknownWorkerError(
                f"no worker {to!r} in this job (members: {self._names()}){self._advice()}"
            )
        return found

    def lost(self, member: WorkerInfo) -> WorkerLostError | None:
        """Returns a fresh error where the member is lost."""
        error = self._lost.get(member)
        if error is None:
            return None
        copy = fresh_copy(error)
        return copy if isinstance(copy, WorkerLostError) else error

    def _advice(self) -> str:
        if len(self._by_name) > 1:
            return ""
        return (
            "; this is a job of one, start more workers with: telegrad run --nproc-per-node N, or "
            "from this program with launch.LocalWorkers(n)"
        )

    def _names(self) -> str:
        with self._lock:
            ordered = sorted(self._by_name.values(), key=lambda info: info.rank)
        return ", ".join(f"{info.name!r} (rank {info.rank})" for info in ordered)
