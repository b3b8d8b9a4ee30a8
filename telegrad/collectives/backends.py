"""The backends of a group: messages, shared memory, or both; and the turns of its operations.

    ranks on one host that share memory      MemoryBackend
    ranks on several hosts, some with more   HostsBackend: broadcasts and long all_reduces use both
    all others                               MessageBackend

Operations use the backend one after the other, in the order of their numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import final

from telegrad.collectives.algorithms import (
    direct,
    dissemination,
    hosts,
    shared_exchange,
    shared_memory,
    star,
)
from telegrad.collectives.link import Backend, Link
from telegrad.collectives.reduction import ReduceOp
from telegrad.collectives.select import (
    DIRECT_UP_TO_BYTES,
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

__all__ = ["HostsBackend", "MemoryBackend", "MessageBackend", "Sharing"]


class MessageBackend(Backend):
    """The backend that sends messages; `select` chooses the algorithm.

    Args:
        link: The operation.
    """

    def __init__(self, link: Link) -> None:
        self._link = link

    async def barrier(self) -> None:
        """Returns when every rank has called it."""
        await dissemination.barrier(self._link)

    async def broadcast(self, flat: Array, root: int) -> None:
        """Replaces `flat` by that of rank `root`."""
        await select_broadcast(flat.nbytes, self._link.size).run(self._link, flat, root)

    async def all_reduce(self, flat: Array, op: ReduceOp) -> None:
        """Replaces `flat` by the reduction over all ranks."""
        await select_all_reduce(flat.nbytes, self._link.size).run(self._link, flat, op)

    async def reduce(self, flat: Array, op: ReduceOp, root: int) -> None:
        """Replaces `flat` at rank `root` by the reduction over all ranks."""
        await select_reduce(flat.nbytes, self._link.size).run(self._link, flat, op, root)

    async def all_gather(
        self, array: Array, shape_of: Callable[[int], Shape] | None = None, *, heard: bool = False
    ) -> list[Array]:
        """Returns a copy of each rank's array; not every algorithm hears from all ranks."""
        choice = select_all_gather(array.nbytes, self._link.size)
        if heard or choice.run is direct.all_gather:
            return await direct.all_gather(self._link, array, shape_of)
        return await choice.run(self._link, array)  # the shapes travel along

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
class MemoryBackend(Backend):
    """The backend of ranks that share memory.

    Args:
        room: The place where they meet.
    """

    def __init__(self, room: Room) -> None:
        self._room = room

    async def barrier(self) -> None:
        """Returns when every rank has called it."""
        await self._room.meet()

    async def broadcast(self, flat: Array, root: int) -> None:
        """Replaces `flat` by that of rank `root`."""
        await shared_memory.broadcast(self._room, flat, root)

    async def all_reduce(self, flat: Array, op: ReduceOp) -> None:
        """Replaces `flat` by the reduction over all ranks."""
        await shared_memory.all_reduce(self._room, flat, op)

    async def reduce(self, flat: Array, op: ReduceOp, root: int) -> None:
        """Replaces `flat` at rank `root` by the reduction over all ranks."""
        await shared_memory.reduce(self._room, flat, op, root)

    async def all_gather(
        self, array: Array, shape_of: Callable[[int], Shape] | None = None, *, heard: bool = False
    ) -> list[Array]:
        """Returns a copy of each rank's array; hears from all ranks."""
        return await shared_exchange.all_gather(self._room, array, shape_of)

    async def gather(self, array: Array, root: int) -> list[Array] | None:
        """Returns a copy of each rank's array at rank `root`, None elsewhere."""
        return await shared_exchange.gather(self._room, array, root)

    async def scatter(self, flat: Array, parts: Sequence[Array], root: int) -> None:
        """Replaces `flat` by the part that rank `root` has for this one."""
        await shared_exchange.scatter(self._room, flat, parts, root)

    async def all_to_all(self, parts: Sequence[Array], whole: Array | None = None) -> list[Array]:
        """Returns the parts that all ranks have for this one."""
        return await shared_exchange.all_to_all(self._room, parts, whole)

    async def reduce_scatter(
        self, parts: Sequence[Array], op: ReduceOp, whole: Array | None = None
    ) -> Array:
        """Returns the reduction of the parts that all ranks have for this one."""
        return await shared_exchange.reduce_scatter(self._room, parts, op, whole)


@final
class HostsBackend(MessageBackend):
    """The backend of ranks on several hosts, of which some have several.

    Args:
        link: The operation.
        room: The place where the ranks of this host meet.
        leaders: The backend of the first ranks of all hosts; None unless this is one.
        hosts: The ranks of each host.
    """

    def __init__(
        self,
        link: Link,
        room: Room,
        leaders: Backend | None,
        hosts: Sequence[Sequence[int]],
    ) -> None:
        super().__init__(link)
        self._hosts = hosts
        self._room = room
        self._leaders = leaders

    async def broadcast(self, flat: Array, root: int) -> None:
        """Replaces `flat` by that of rank `root`."""
        source, ranks = next((i, ranks) for i, ranks in enumerate(self._hosts) if root in ranks)
        place = ranks.index(root) if self._link.rank in ranks else None
        await hosts.broadcast(self._room, self._leaders, flat, source, place)

    async def all_reduce(self, flat: Array, op: ReduceOp) -> None:
        """Replaces `flat` by the reduction over all ranks."""
        if flat.nbytes <= DIRECT_UP_TO_BYTES:  # the order of the ranks is promised
            await super().all_reduce(flat, op)
        else:
            await hosts.all_reduce(self._room, self._leaders, flat, op, self._link.size)


@final
class Sharing:
    """The memory of one group, and the turns of the operations that use its backend.

    Args:
        hosts: The ranks of each host, by rank; empty if no two ranks can share memory.
        spin: Seconds for which a rank looks before it sleeps.

    Attributes:
        possible: False once it is known that the ranks share no memory.
        queues: The short messages of two ranks, once the ranks share memory.
    """

    def __init__(self, hosts: Sequence[Sequence[int]], spin: float) -> None:
        self.possible = bool(hosts)
        self._hosts = hosts
        self._alone = len(hosts) == 1
        self._spin = Spin(spin)
        self.queues = Queues(spin)
        self._shared: tuple[Boards, Residents] | None = None
        self._queue: deque[Meeting] = deque()

    @property
    def in_place(self) -> bool:
        """True if long arrays that were made in shared memory are reduced without copies."""
        return self.possible and self._alone

    # The group calls these two with its lock held, in the order of the operations.

    def queue(self, meeting: Meeting) -> None:
        """Adds an operation that uses the backend."""
        if self.possible:
            self._queue.append(meeting)

    def ahead_of(self, meeting: Meeting) -> Meeting | None:
        """Returns the operation whose turn it is, if another one waits for that."""
        first = next(iter(self._queue), None)
        return first if first is not meeting and meeting in self._queue else None

    def leave(self, meeting: Meeting) -> list[Meeting]:
        """Removes an operation that is over; returns those whose turn it is now."""
        if meeting in self._queue:
            self._queue.remove(meeting)
        return [*self._queue][: 1 if self.possible else None]

    async def enter(self, meeting: Meeting) -> Backend:
        """Waits for the turn of an operation and returns its backend."""
        if self.possible:
            await meeting.until(lambda: not self.possible or self._queue[0] is meeting or None)
        if not self.possible:
            return MessageBackend(meeting)
        near = next(ranks for ranks in self._hosts if meeting.rank in ranks)
        here = meeting if self._alone else PartMeeting(meeting, near)
        if self._shared is None:
            boards = await share_boards(here, meeting)
            if boards is None:
                self.possible = False
                return MessageBackend(meeting)
            self._shared = Boards(here.rank, boards), Residents(here.rank)
            self.queues.open(here.rank, near, boards)
        room = Room(here, *self._shared, self._spin)
        if self._alone:
            return MemoryBackend(room)
        first = [ranks[0] for ranks in self._hosts]
        leaders = MessageBackend(PartMeeting(meeting, first)) if here.rank == 0 else None
        return HostsBackend(meeting, room, leaders, self._hosts)
