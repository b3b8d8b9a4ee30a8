"""The meetings of the ranks of one host in the memory that they share.

    first operation ──▶ boards go round by messages ──▶ each rank marks those that came
                    ──▶ each looks for marks on its own ──▶ all tell each other: good, or not

Bytes that were copied on their way carry no marks back. Unless every rank shares memory with every
other one, none of them uses it, and the group goes on by messages.

Operations use the boards one after the other, in the order of their numbers.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from typing import TypeVar, final

import numpy as np

from telegrad.arrays import shared_empty
from telegrad.collectives.link import Link, Steps
from telegrad.collectives.reduction import as_bytes
from telegrad.collectives.shared_memory.boards import BOARD_BYTES, Board, Boards, digest_of
from telegrad.collectives.shared_memory.residents import Place, Residents
from telegrad.rpc.seams import Spin
from telegrad.types import Array

__all__ = ["Meeting", "Room", "Sharing"]

R = TypeVar("R")


class Meeting(Link):
    """The link of an operation whose ranks may meet in memory, too."""

    @abstractmethod
    def until(self, find: Callable[[], R | None]) -> Steps[R]:
        """Waits until `find` returns a value other than None; messages make it look again."""

    @abstractmethod
    def tell_call(self) -> None:
        """Sends all other ranks the call of this one, so that both ends compare the two."""


@final
class Room:
    """The view that an algorithm over shared memory has of the other ranks.

    Args:
        meeting: The operation.
        boards: The boards of all ranks.
        residents: The arrays that all ranks have mapped.
        spin: The time of looking before a rank sleeps.

    Attributes:
        rank: This rank.
        size: The number of ranks.
        blocks: Returns the arrays of all ranks in the next blocks; see `Boards.blocks`.
    """

    def __init__(self, meeting: Meeting, boards: Boards, residents: Residents, spin: Spin) -> None:
        self.rank, self.size = meeting.rank, meeting.size
        self.blocks = boards.blocks
        self._meeting = meeting
        self._boards = boards
        self._residents = residents
        self._spin = spin
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
        if boards.all_here(step):
            for r in boards.sleepers(step):
                self._meeting.signal(r)
        elif not self._spin.poll(lambda _: [True] if boards.all_here(step) else [], 0):
            boards.sleep(step)
            await self._meeting.until(lambda: boards.all_here(step) or None)
            boards.sleep(0)
        if boards.others_calls(step) != {self._digest}:
            self._meeting.tell_call()
            await self._meeting.until(lambda: None)  # messages find the difference
        return boards.notes(step)

    async def residents(self, flat: Array) -> list[Array] | None:
        """Returns the arrays of all ranks, if each lies in memory that its rank made to be shared.

        Memory that is new to the group goes round by messages.

        Args:
            flat: The array of this rank.
        """
        residents, others = self._residents, [r for r in range(self.size) if r != self.rank]
        own = residents.place(flat)
        places = [Place.of(each) for each in await self.meet(own.note)]
        residents.drop_gone(places)
        if not all(place.slot for place in places):
            return None
        if any(place.new for place in places):
            for r in others if own.new else ():
                self._meeting.send(r, residents.memory_of(flat))
            for r in others:
                if places[r].new:
                    residents.take(r, places[r], await self._meeting.receive(r))
            if not all(await self.meet(residents.has_all(places))):
                return None
            residents.know(own, flat)
        return residents.arrays(places, flat)


@final
class Sharing:
    """The memory that one group shares.

    Args:
        possible: False if no two ranks can share memory, as all ranks know.
        spin: Seconds for which a rank looks before it sleeps.

    Attributes:
        possible: False once it is known that the ranks share no memory.
    """

    def __init__(self, possible: bool, spin: float) -> None:
        self.possible = possible
        self._spin = Spin(spin)
        self._shared: tuple[Boards, Residents] | None = None
        self._queue: deque[Meeting] = deque()

    # The group calls these two with its lock held, in the order of the operations.

    def queue(self, meeting: Meeting) -> None:
        """Adds an operation that can use the boards."""
        if self.possible:
            self._queue.append(meeting)

    def leave(self, meeting: Meeting) -> None:
        """Removes an operation that is over."""
        if meeting in self._queue:
            self._queue.remove(meeting)

    async def enter(self, meeting: Meeting) -> Room | None:
        """Waits for the turn of an operation; None if the group shares no memory."""
        await meeting.until(lambda: not self.possible or self._queue[0] is meeting or None)
        if self.possible and self._shared is None:
            boards = await _share(meeting)
            if boards is None:
                self.possible = False
            else:
                self._shared = boards, Residents(meeting.rank)
        return None if self._shared is None else Room(meeting, *self._shared, self._spin)


async def _share(link: Link) -> Boards | None:
    """Shares a board of each rank with all others.

    Steps: 3. Each rank sends its board, a signal and a byte to each other rank.

    Returns:
        The boards; None, on all ranks, if one of them does not share memory with all others.
    """
    others = [r for r in range(link.size) if r != link.rank]
    try:
        memory = shared_empty(BOARD_BYTES, np.uint8)
    except OSError:
        memory = np.zeros(BOARD_BYTES, np.uint8)
    own = Board(memory.data)
    for r in others:
        link.send(r, as_bytes(memory))
    boards = [own if r == link.rank else Board(await link.receive(r)) for r in range(link.size)]
    for r in others:
        boards[r].mark(link.rank)
        link.signal(r)
    for r in others:
        await link.signalled(r)
    good = all(own.marked(r) and boards[r].writable for r in others)
    for r in others:
        link.send(r, bytes([good]))
    told = [bytes(await link.receive(r)) for r in others]
    return Boards(link.rank, boards) if good and all(each == b"\1" for each in told) else None
