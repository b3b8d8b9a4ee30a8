"""Messages out of a stream of bytes: each is its length in four bytes, and then itself. Pure."""

from __future__ import annotations

from typing import final

from telegrad.transport.base import HEADER_BYTES, CarrierClosedError
from telegrad.transport.limits import MAX_MESSAGE_BYTES

LARGEST = MAX_MESSAGE_BYTES  # the same limit as gRPC's
# Many small messages come in one read, or one with 64 KiB in-line. A bigger one is read into memory
# of its own.
ROOM = 68 * 2**10


@final
class MessageBuffer:
    """The bytes of a stream that were read and not taken yet; one thread at a time.

    Args:
        largest: The most bytes of a message for which memory is set aside.

    Attributes:
        largest: The most bytes of a message, as given; `accept_all` raises it after the proof.
        start: The offset of the first byte, except for a big message under way.
        end: The offset of their end; equal to `start` when nothing is left.
        space: The place for the next bytes of the stream; never empty once `take` returned None.

    >>> buffer = MessageBuffer()
    >>> buffer.space[:8] = bytes([0, 0, 0, 2]) + b"hi" + bytes(2)  # of the next half a header
    >>> buffer.take(8), buffer.take()
    (b'hi', None)
    """

    def __init__(self, largest: int = LARGEST) -> None:
        self.space = self._room = memoryview(bytearray(ROOM))
        self.largest = largest
        self.start = self.end = 0
        self._big: bytearray | None = None  # the message under way that does not fit there
        self._come = 0  # the number of its bytes that came

    def take(self, come: int = 0) -> bytes | None:
        """Returns the next whole message; None while there is none.

        Args:
            come: The number of bytes that were put into the space.

        Raises:
            CarrierClosedError: The bytes are no message: longer than any is.
        """
        if self._big is not None:
            self._come += come
            if self._come < len(self._big):
                self.space = self.space[come:]
                return None
            message, self._big, self.space = bytes(self._big), None, self._room
            return message
        self.end = end = self.end + come
        start, room = self.start + HEADER_BYTES, self._room
        if start > end:
            self._make_room(HEADER_BYTES)
            return None
        size = int.from_bytes(room[self.start : start], "big")
        behind = start + size
        if behind < end:
            self.start = behind
            return bytes(room[start:behind])
        if behind == end:
            self.start = self.end = 0
            self.space = room
            return bytes(room[start:behind])
        if size > self.largest:
            raise CarrierClosedError(f"a message of {size} bytes, at most {self.largest} may come")
        if HEADER_BYTES + size <= ROOM:
            self._make_room(HEADER_BYTES + size)
        else:
            self._begin_big(start, size)
        return None

    def give(self, place: memoryview) -> int:
        """Moves bytes that were read and are no message into a place; returns their number."""
        size = min(len(place), self.end - self.start)
        place[:size] = self._room[self.start : self.start + size]
        self.start += size
        if self.start == self.end:
            self.start = self.end = 0
        self.space = self._room[self.end :]
        return size

    def _make_room(self, size: int) -> None:
        """Moves the bytes that are left to the front, if so many have no room behind them."""
        if self.start + size > ROOM or self.start == self.end:
            left = bytes(self._room[self.start : self.end])
            self._room[: len(left)] = left
            self.start, self.end = 0, len(left)
        self.space = self._room[self.end :]

    def _begin_big(self, start: int, size: int) -> None:
        self._big = bytearray(size)
        self._come = self.end - start
        self._big[: self._come] = self._room[start : self.end]
        self.space = memoryview(self._big)[self._come :]
        self.start = self.end = 0
