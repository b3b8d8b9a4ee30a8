"""Messages out of a stream of bytes: each is its length in four bytes, and then itself. Pure."""

from __future__ import annotations

from typing import final

from telegrad.transport.base import CarrierClosedError
from telegrad.transport.session import MAX_MESSAGE_BYTES

__all__ = ["LARGEST", "MessageBuffer", "header_of"]

HEADER_BYTES = 4
LARGEST = MAX_MESSAGE_BYTES  # as gRPC takes
# Small messages come many in one read. What is bigger is read into memory of its own.
ROOM = 64 * 2**10


def header_of(message: bytes) -> bytes:
    """Returns what goes before a message.

    >>> list(header_of(b"abc"))
    [0, 0, 0, 3]
    """
    return len(message).to_bytes(HEADER_BYTES, "big")


@final
class MessageBuffer:
    """What was read of a stream and not taken yet; one thread at a time.

    Attributes:
        start: Where that begins, but for a big message under way.
        end: Where it ends; equal to `start` when nothing is left.

    >>> buffer = MessageBuffer()
    >>> with buffer.space() as space:
    ...     space[:8] = header_of(b"hi") + b"hi" + bytes(2)  # of the next message half a header
    >>> buffer.filled(8)
    >>> buffer.take(), buffer.take()
    (b'hi', None)
    """

    def __init__(self) -> None:
        self._room = bytearray(ROOM)
        self.start = self.end = 0
        self._big: bytearray | None = None  # the message under way that does not fit there
        self._come = 0  # bytes of it

    def space(self) -> memoryview:
        """Returns where the next bytes of the stream go; never empty."""
        if self._big is not None:
            return memoryview(self._big)[self._come :]
        return memoryview(self._room)[self.end :]

    def filled(self, size: int) -> None:
        """Hears how many bytes were put there."""
        if self._big is not None:
            self._come += size
        else:
            self.end += size

    def take(self) -> bytes | None:
        """Returns the next whole message; None while there is none.

        Raises:
            CarrierClosedError: What came is no message: longer than any is.
        """
        if self._big is not None:
            if self._come < len(self._big):
                return None
            message, self._big = bytes(self._big), None
            return message
        start = self.start + HEADER_BYTES
        if start > self.end:
            self._make_room(HEADER_BYTES)
            return None
        size = int.from_bytes(self._room[self.start : start], "big")
        if size > LARGEST:
            raise CarrierClosedError(f"a message of {size} bytes, at most {LARGEST} may come")
        if start + size <= self.end:
            self.start = start + size
            return bytes(memoryview(self._room)[start : self.start])
        if HEADER_BYTES + size <= ROOM:
            self._make_room(HEADER_BYTES + size)
        else:
            self._begin_big(start, size)
        return None

    def _make_room(self, size: int) -> None:
        """Moves what is left to the front, if nothing of so many bytes has room behind it."""
        if self.start + size > ROOM or self.start == self.end:
            left = self._room[self.start : self.end]
            self._room[: len(left)] = left
            self.start, self.end = 0, len(left)

    def _begin_big(self, start: int, size: int) -> None:
        self._big = bytearray(size)
        self._come = self.end - start
        self._big[: self._come] = memoryview(self._room)[start : self.end]
        self.start = self.end = 0
