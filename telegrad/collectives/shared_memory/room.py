"""The meetings of the ranks of one host in the memory that they share.

    first operation ──▶ boards go round by messages ──▶ each rank marks those that came
                    ──▶ each looks for marks on its own ──▶ all tell each other: good, or not

Bytes that were copied on their way carry no marks back. Unless all ranks of each host share memory,
none of the group uses it.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar, final

import numpy as np

from telegrad.arrays import memory_below, shared_empty
from telegrad.collectives.link import Backend, Link, Steps
from telegrad.collectives.messages import Signature, pack_call, unpack_call
from telegrad.collectives.reduction import as_bytes
from telegrad.collectives.shared_memory.boards import (
    BOARD_BYTES,
    LISTENS,
    Board,
    Boards,
    digest_of,
    has_order,
)
from telegrad.collectives.shared_memory.queues import QUEUE_BYTES
from telegrad.collectives.shared_memory.residents import ResidentPlace, Residents
from telegrad.errors import CollectiveMismatchError, WorkerLostError
from telegrad.rpc.seams import Spin
from telegrad.types import Array
from telegrad.wire import Buffer

R = TypeVar("R")


class Meeting(Link):
    """The link of an operation whose ranks may meet in memory, too."""

    @abstractmethod
    def until(
        self, find: Callable[[], R | None], behind: Callable[[], list[int]] | None = None
    ) -> Steps[R]:
        """Waits until `find` returns a value other than None; messages make it look again.

        Args:
            find: The function.
            behind: Returns the ranks for which it waits, if that is known.
        """

    @abstractmethod
    def wake(self, to: int) -> None:
        """Makes a rank that waits in `until` look again."""

    @abstractmethod
    def hear(self, calls: Mapping[int, Signature | None]) -> None:
        """Records that ranks have entered, as memory shows, and their calls as far as known."""

    @abstractmethod
    def tell_call(self) -> None:
        """Sends all other ranks the call of this one, so that both ends compare the two."""


@final
class Room:
    """The view that an algorithm over shared memory has of the other ranks.

    Args:
        residents: The arrays that all ranks have mapped.
        spin: The time of looking before a rank sleeps.

    Attributes:
        call: The call of this rank, as bytes.
        blocks: Returns the arrays of all ranks in the next blocks; see `Boards.blocks`.
    """

    def __init__(self, meeting: Meeting, boards: Boards, residents: Residents, spin: Spin) -> None:
        self.rank, self.size = meeting.rank, meeting.size
        self.meeting = meeting
        self.call = pack_call(meeting.call_of(meeting.rank))
        self.blocks = boards.blocks
        self._boards = boards
        self._residents = residents
        self._spin = spin
        self._met = False
        self._digest = digest_of(meeting.call_of(meeting.rank))

    async def meet(self, note: int = 0) -> list[int]:
        """Returns once every rank has come here; then all see what each has written before.

        Args:
            note: A number for the others.

        Returns:
            The notes of all ranks, by rank.
        """
        boards = self._boards
        step = boards.come(self._digest, note)
        try:
            if boards.all_here(step):
                for r in boards.sleepers(step):
                    self.meeting.wake(r)
            else:
                await self._wait(step)
            if not boards.others_calls(step) <= {self._digest}:
                self.meeting.tell_call()
                await self.meeting.until(lambda: None)  # messages find the difference
        except BaseException:
            boards.spoil()  # who comes now must not take this rank's memory for good
            raise
        if not self._met:
            self._met = True
            self.meeting.hear(dict.fromkeys(range(self.size)))
        return boards.notes(step)

    async def _wait(self, step: int) -> None:
        boards, spin, began = self._boards, self._spin, time.monotonic()
        if spin.window and spin.poll(lambda _: [True] if boards.all_here(step) else [], 0):
            return
        boards.sleep(step)
        try:
            await self.meeting.until(
                lambda: boards.all_here(step) or None, lambda: boards.behind(step)
            )
        except WorkerLostError:
            if not boards.all_here(step):  # else the lost rank has done its part before it ended
                raise
        boards.sleep(0)
        spin.learn(time.monotonic() - began)

    def learn_calls(self, packed: Sequence[bytes]) -> None:
        """Records the calls of all ranks, which they have shown as bytes."""
        self.meeting.hear({r: unpack_call(each) for r, each in enumerate(packed)})

    async def residents(self, flat: Array) -> list[Array] | None:
        """Returns the memory of all ranks' arrays, if each was made to be shared.

        The memory of another rank begins with its array and may go on after that. Memory that is
        new to the group goes round by messages.

        Args:
            flat: The array of this rank.
        """
        residents, others = self._residents, [r for r in range(self.size) if r != self.rank]
        own = residents.place(flat)
        places = [ResidentPlace.of(each) for each in await self.meet(own.note)]
        residents.drop_gone(places)
        if not all(place.slot for place in places):
            return None
        if any(place.new for place in places):
            for r in others if own.new else ():
                self.meeting.send(r, residents.memory_of(flat))
            for r in others:
                if places[r].new:
                    residents.take(r, places[r], await self.meeting.receive(r))
            if not all(await self.meet(residents.has_all(places))):
                residents.refuse(flat)
                return None
            residents.know(own, flat)
        return residents.memories(places, flat)


@final
class PartMeeting(Meeting):
    """The view of an operation that some of its ranks have of each other.

    Args:
        whole: The operation.
        ranks: The ranks, of which this is one; the n-th is rank n here.
    """

    def __init__(self, whole: Meeting, ranks: Sequence[int]) -> None:
        self._whole = whole
        self._ranks = ranks

    @property
    def rank(self) -> int:
        """This rank's place among them."""
        return self._ranks.index(self._whole.rank)

    @property
    def size(self) -> int:
        """The number of the ranks."""
        return len(self._ranks)

    def send(self, to: int, data: Buffer, *, copy: bool = False) -> None:
        """See `Link`."""
        self._whole.send(self._ranks[to], data, copy=copy)

    def receive(self, source: int) -> Steps[Buffer]:
        """See `Link`."""
        return self._whole.receive(self._ranks[source])

    async def sender(self) -> int:
        """See `Link`."""
        return self._ranks.index(await self._whole.sender())

    def signal(self, to: int) -> None:
        """See `Link`."""
        self._whole.signal(self._ranks[to])

    def signalled(self, source: int) -> Steps[None]:
        """See `Link`."""
        return self._whole.signalled(self._ranks[source])

    def backend(self) -> Steps[Backend]:
        """See `Link`."""
        return self._whole.backend()

    def call_of(self, source: int) -> Signature:
        """See `Link`."""
        return self._whole.call_of(self._ranks[source])

    def mismatch(self, ranks: Sequence[int]) -> CollectiveMismatchError:
        """See `Link`."""
        return self._whole.mismatch([self._ranks[r] for r in ranks])

    def until(
        self, find: Callable[[], R | None], behind: Callable[[], list[int]] | None = None
    ) -> Steps[R]:
        """See `Meeting`."""
        if behind is None:
            return self._whole.until(find)
        return self._whole.until(find, lambda: [self._ranks[r] for r in behind()])

    def hear(self, calls: Mapping[int, Signature | None]) -> None:
        """See `Meeting`."""
        self._whole.hear({self._ranks[r]: call for r, call in calls.items()})

    def wake(self, to: int) -> None:
        """See `Meeting`."""
        self._whole.wake(self._ranks[to])

    def tell_call(self) -> None:
        """See `Meeting`."""
        self._whole.tell_call()


async def share_boards(link: Meeting, everyone: Link) -> list[Board] | None:
    """Shares a board of each rank of a host with the others there.

    Steps: 3. Each rank sends its board and a signal to the others of its host, a byte to everyone.

    Args:
        link: The ranks of this host.
        everyone: All ranks of the group.

    Returns:
        The boards, by rank; None, on all ranks, if two ranks of any host do not share memory.
    """
    others = [r for r in range(link.size) if r != link.rank]
    size = BOARD_BYTES + link.size * QUEUE_BYTES
    try:
        memory = shared_empty(size, np.uint8)
    except OSError:
        memory = np.zeros(size, np.uint8)
    own = Board(memory.data)
    own.words[LISTENS] = 1  # until the queues are open here, messages go the ordinary way
    below = memory_below(memory)
    for r in others:
        link.send(r, as_bytes(memory))
    boards = [own if r == link.rank else Board(await link.receive(r)) for r in range(link.size)]
    for r in others:
        boards[r].mark(link.rank)
        link.signal(r)
    for r in others:
        await link.signalled(r)
    if below is not None:
        below.close_descriptor()  # all have it
    good = has_order() and all(own.marked(r) and boards[r].writable for r in others)
    elsewhere = [r for r in range(everyone.size) if r != everyone.rank]
    for r in elsewhere:
        everyone.send(r, bytes([good]))
    told = [bytes(await everyone.receive(r)) for r in elsewhere]
    return boards if good and all(each == b"\1" for each in told) else None
