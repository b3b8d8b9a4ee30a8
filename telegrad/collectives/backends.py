"""The backends of a group: messages, shared memory, or both; and the turns of its operations.

    ranks on one host that share memory      MemoryBackend
    ranks on several hosts, some with more   HostsBackend: broadcasts and long all_reduces use both
    all others                               MessageBackend
    ranks that were given one of the user's  that one
    arrays on a GPU for each rank, in a group of backend "nccl"     nccl.backend.NcclBackend

Operations use the backend one after the other, in the order of their numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, final

from telegrad.collectives.algorithms import direct, dissemination, star
from telegrad.collectives.algorithms.shared_memory import MemoryBackend
from telegrad.collectives.link import (
    Backend,
    Link,
    MakeBackend,
    OpenBackend,
)
from telegrad.collectives.reduction import ReduceOp, finish
from telegrad.collectives.select import (
    DEFAULT,
    Thresholds,
    select_all_gather,
    select_all_reduce,
    select_broadcast,
    select_reduce,
)
from telegrad.collectives.shared_memory.boards import Boards
from telegrad.collectives.shared_memory.queues import Queues
from telegrad.collectives.shared_memory.residents import Residents
from telegrad.collectives.shared_memory.room import Meeting, PartMeeting, Room, share_boards
from telegrad.rpc.seams import Spin
from telegrad.types import Array, Shape

NCCL: Final = "nccl"  # the name of the backend that leaves arrays on the GPUs


class MessageBackend(Backend):
    """The backend that sends messages; `select` chooses the algorithm.

    Backends of users are made of it: they run what they can do better, and leave it the rest.

    Args:
        link: The operation.
        thresholds: Those of its group.

    Example:
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> async def open_messages(link):
        ...     return collectives.MessageBackend(link)
        >>> def step():  # runs on every worker; even ranks of one host send messages
        ...     group = collectives.init_process_group(backend=lambda: open_messages)
        ...     collectives.barrier()
        ...     return group.statistics().messages_sent
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [1, 1]
    """

    def __init__(self, link: Link, thresholds: Thresholds = DEFAULT) -> None:
        self._link = link
        self._thresholds = thresholds

    async def barrier(self) -> None:
        """Returns when every rank has called it."""
        await dissemination.barrier(self._link)

    async def broadcast(self, flat: Array, root: int) -> None:
        """Replaces `flat` by that of rank `root`."""
        broadcast = select_broadcast(flat.nbytes, self._link.size, self._thresholds)
        await broadcast(self._link, flat, root)

    async def all_reduce(self, flat: Array, op: ReduceOp) -> None:
        """Replaces `flat` by the reduction over all ranks."""
        all_reduce = select_all_reduce(flat.nbytes, self._link.size, self._thresholds)
        await all_reduce(self._link, flat, op)

    async def reduce(self, flat: Array, op: ReduceOp, root: int) -> None:
        """Replaces `flat` at rank `root` by the reduction over all ranks."""
        reduce = select_reduce(flat.nbytes, self._link.size, self._thresholds)
        await reduce(self._link, flat, op, root)

    async def all_gather(
        self,
        array: Array,
        shape_of: Callable[[int], Shape] | None = None,
        *,
        heard: bool = False,
    ) -> list[Array]:
        """Returns a copy of each rank's array; not every algorithm hears from all ranks."""
        all_gather = select_all_gather(self._link.size, self._thresholds)
        if heard or all_gather is direct.all_gather:
            return await direct.all_gather(self._link, array, shape_of)
        return await all_gather(self._link, array)  # the shapes travel along

    async def gather(self, array: Array, root: int) -> list[Array] | None:
        """Returns a copy of each rank's array at rank `root`, None elsewhere."""
        return await star.gather(self._link, array, root)

    async def scatter(self, flat: Array, parts: Sequence[Array], root: int) -> None:
        """Replaces `flat` by the part that rank `root` has for this one."""
        await star.scatter(self._link, flat, parts, root)

    async def all_to_all(self, parts: Sequence[Array], whole: Array | None = None) -> list[Array]:
        """Returns the parts that all ranks have for this one."""
        return await direct.all_to_all(self._link, parts)

    async def reduce_scatter(
        self, parts: Sequence[Array], op: ReduceOp, whole: Array | None = None
    ) -> Array:
        """Returns the reduction of the parts that all ranks have for this one."""
        return await direct.reduce_scatter(self._link, parts, op)


@final
class HostsBackend(MessageBackend):
    """The backend of ranks on several hosts, of which some have several.

         host A   0 ─┐                                ┌─▶ 0
                  1 ─┴─▶ 0 ═══╗              ╔═══▶ 0 ─┴─▶ 1
         host B   2 ─┐        ╠═ all_reduce ═╣        ┌─▶ 2
                  3 ─┴─▶ 2 ═══╝              ╚═══▶ 2 ─┴─▶ 3

         host A   1 ───▶ 0 ═══╗                       0        a broadcast by rank 1; all ranks wait
                              ╠═ broadcast ═╗         1        until the other hosts have the array
         host B   2, 3 meet   ╚═════════════╩══▶ 2 ───▶ 3

    Between two hosts go the bytes of two ranks, however many ranks each has.

    Args:
        link: The operation.
        near: The backend of the ranks of this host.
        leaders: The backend of the first ranks of all hosts; None unless this is one.
        hosts: The ranks of each host.
        thresholds: Those of the group.
    """

    def __init__(
        self,
        link: Link,
        near: Backend,
        leaders: Backend | None,
        hosts: Sequence[Sequence[int]],
        thresholds: Thresholds = DEFAULT,
    ) -> None:
        super().__init__(link, thresholds)
        self._hosts = hosts
        self._near = near
        self._leaders = leaders

    async def broadcast(self, flat: Array, root: int) -> None:
        """Replaces `flat` by that of rank `root`.

        The first rank of each host sends and receives what a `broadcast` of the hosts takes. No
        rank returns before the ranks of all hosts have come.
        """
        source, ranks = next((i, ranks) for i, ranks in enumerate(self._hosts) if root in ranks)
        here = self._link.rank in ranks
        await (self._near.broadcast(flat, ranks.index(root)) if here else self._near.barrier())
        if self._leaders is not None:
            await self._leaders.broadcast(flat, source)
        await (self._near.barrier() if here else self._near.broadcast(flat, 0))

    async def all_reduce(self, flat: Array, op: ReduceOp) -> None:
        """Replaces `flat` by the reduction over all ranks, bitwise equal on all.

        The ranks of a host are combined first, in their order, then the first ranks of all hosts.
        """
        if flat.nbytes <= self._thresholds.direct_up_to_bytes:  # the order of the ranks is promised
            await super().all_reduce(flat, op)
            return
        inner = ReduceOp.SUM if op is ReduceOp.AVG else op
        await self._near.reduce(flat, inner, 0)
        if self._leaders is not None:
            await self._leaders.all_reduce(flat, inner)
            finish(op, flat, self._link.size)
        await self._near.broadcast(flat, 0)


@final
@dataclass(frozen=True)
class GroupTerms:
    """The terms on which the members of a group must agree.

    Attributes:
        thresholds: The thresholds by which it chooses algorithms; None for the default ones, and
            in a call of `new_group` for those of the first member.
        backend: The name of a backend of the user's, or "nccl"; empty for messages and memory.
        maker: The function that makes a backend of the user's.
    """

    thresholds: Thresholds | None = None
    backend: str = ""
    maker: MakeBackend | None = None

    @cached_property
    def words(self) -> str:
        """The terms that are not as by default, in words; empty if all are."""
        backend = f"backend {self.backend!r}" if self.backend else ""
        digest = "" if self.thresholds is None else self.thresholds.digest
        return " and ".join(filter(None, (backend, digest and f"thresholds {digest}")))

    def to_wire(self) -> tuple[str, tuple[int, ...] | None]:
        """Returns the terms as plain values."""
        return self.backend, None if self.thresholds is None else self.thresholds.to_wire()

    def with_thresholds(self, values: Sequence[int] | None) -> GroupTerms:
        """Returns the terms with thresholds from plain values; raises DecodeError."""
        return self if values is None else replace(self, thresholds=Thresholds.from_wire(values))


@final
class Sharing:
    """The memory of one group, and the turns of the operations that use its backend.

    Args:
        hosts: The ranks of each host, by rank; empty if no two ranks can share memory.
        spin: Seconds for which a rank looks before it sleeps.
        terms: The terms of the group, perhaps with a backend of the user's.

    Attributes:
        possible: False once it is known that the ranks share no memory.
        on_one_host: True if all ranks are on one host where they may share memory.
        queues: The short messages of two ranks, once the ranks share memory.
    """

    def __init__(
        self, hosts: Sequence[Sequence[int]], spin: float, terms: GroupTerms | None = None
    ) -> None:
        terms = GroupTerms() if terms is None else terms
        self._make = terms.maker
        self._open: OpenBackend | None = None
        self._thresholds = terms.thresholds or DEFAULT
        self.possible = bool(hosts) and self._make is None
        self._ordered = self._make is not None or terms.backend == NCCL
        self._takes_turns = self.possible or self._ordered
        self._hosts = hosts
        self.on_one_host = len(hosts) == 1
        self._spin = Spin(spin)
        self.queues = Queues(spin)
        self._shared: tuple[Boards, Residents] | None = None
        self._queue: deque[Meeting] = deque()

    @property
    def in_place(self) -> bool:
        """True if long arrays that were made in shared memory are reduced without copies."""
        return self.possible and self.on_one_host

    # The group's lock is held in these three.

    def queue(self, meeting: Meeting) -> None:
        """Adds an operation that uses the backend; called in the order of the operations."""
        if self._takes_turns:
            self._queue.append(meeting)

    def ahead_of(self, meeting: Meeting) -> Meeting | None:
        """Returns the operation whose turn it is, if another one waits for that."""
        first = next(iter(self._queue), None)
        return first if first is not meeting and meeting in self._queue else None

    def leave(self, meeting: Meeting) -> list[Meeting]:
        """Removes an operation that is over; returns those whose turn it is now."""
        if not self._queue:
            return []
        if meeting in self._queue:
            self._queue.remove(meeting)
        return [*self._queue][: 1 if self._takes_turns else None]

    async def turn(self, meeting: Meeting) -> None:
        """Waits for the turn of an operation."""
        await meeting.until(lambda: not self._takes_turns or self._queue[0] is meeting or None)

    async def enter(self, meeting: Meeting) -> Backend:
        """Waits for the turn of an operation and returns its backend."""
        if self._takes_turns:
            await self.turn(meeting)
        if self._make is not None:
            if self._open is None:
                self._open = self._make()
            return await self._open(meeting)
        if not self.possible:
            return MessageBackend(meeting, self._thresholds)
        near = next(ranks for ranks in self._hosts if meeting.rank in ranks)
        here = meeting if self.on_one_host else PartMeeting(meeting, near)
        if self._shared is None:
            boards = await share_boards(here, meeting)
            if boards is None:
                self.possible, self._takes_turns = False, self._ordered
                return MessageBackend(meeting, self._thresholds)
            self._shared = Boards(here.rank, boards), Residents(here.rank)
            self.queues.open(here.rank, near, boards)
        memory = MemoryBackend(Room(here, *self._shared, self._spin))
        if self.on_one_host:
            return memory
        first = [ranks[0] for ranks in self._hosts]
        limits = self._thresholds
        leaders = MessageBackend(PartMeeting(meeting, first), limits) if here.rank == 0 else None
        return HostsBackend(meeting, memory, leaders, self._hosts, limits)
