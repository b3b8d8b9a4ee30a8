"""A stream of messages over a Unix or TCP socket, which any thread may use without a loop.

Two roles, each held by one thread (or task) at a time: the writer's and the reader's. Nothing here
waits. What does not fit into the socket is kept, and `flush` sends it. To end the stream the socket
is shut down, at both ends and for whoever polls it; the descriptor is closed when both roles are
free: no thread ever uses one that stands for something else by now.

Over Unix sockets descriptors travel beside messages, and are there before the message beside which
they were sent.
"""

from __future__ import annotations

import array
import contextlib
import os
import socket
import threading
from collections import deque
from typing import final

from telegrad.errors import DecodeError
from telegrad.transport.base import CarrierClosedError
from telegrad.transport.message_buffer import MessageBuffer, header_of

__all__ = ["DirectSocket"]

# At once, of one peer, that no message has asked for yet. The kernel takes 253 in one go.
MOST_DESCRIPTORS = 128
ANCILLARY_BYTES = socket.CMSG_SPACE(MOST_DESCRIPTORS * array.array("i").itemsize)

TOGETHER = 16 * 2**10  # bytes of a message that is copied behind its header, as that costs less

# As plain numbers: as members of enumerations they take ten times as long in each read.
CLOSE_ON_EXEC, CUT_SHORT = int(socket.MSG_CMSG_CLOEXEC), int(socket.MSG_CTRUNC)


@final
class DirectSocket:
    """One connected socket.

    Args:
        connected: The socket; this object closes it.
    """

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._reader = threading.Lock()  # these two are the roles
        self._writer = threading.Lock()
        self._incoming = MessageBuffer()
        self._unsent: list[memoryview] = []
        self._attached: list[int] = []  # descriptors that leave next
        self._came: deque[int] = deque()
        self._ended = False

    def fileno(self) -> int:
        """Returns the descriptor, for whoever has a role."""
        return self._socket.fileno()

    @property
    def holds_more(self) -> bool:
        """Whether there may be a message that was read and not taken."""
        incoming = self._incoming
        return incoming.start != incoming.end

    def begin_reading(self) -> bool:
        """Takes the reader's role, if it is free and the stream has not ended here."""
        if not self._reader.acquire(blocking=False):
            return False
        return not self._ended or self._give_up(self._reader)

    def end_reading(self) -> None:
        """Gives the reader's role back."""
        self._reader.release()
        if self._ended:
            self._close_if_unused()

    def begin_writing(self, *, wait: bool = True) -> bool:
        """Takes the writer's role, unless the stream has ended here; see `Direct`."""
        if not self._writer.acquire(blocking=wait):
            return False
        return not self._ended or self._give_up(self._writer)

    def end_writing(self) -> None:
        """Gives the writer's role back."""
        self._writer.release()
        if self._ended:
            self._close_if_unused()

    def put(self, message: bytes) -> bool:
        """Sends a message, as far as there is room; returns whether all of it has left.

        Raises:
            CarrierClosedError: The stream ended.
        """
        whole = len(message) <= TOGETHER and not self._attached and not self._unsent
        if not whole:
            self._unsent += [memoryview(header_of(message)), memoryview(message)]
            return self.flush()
        data = header_of(message) + message
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise CarrierClosedError(f"the socket's stream ended: {error}") from error
        if sent == len(data):
            return True
        self._unsent.append(memoryview(data)[sent:])
        return False

    def attach(self, descriptor: int) -> None:
        """Sends a descriptor beside the next message, and closes it; by whoever writes."""
        self._attached.append(descriptor)

    def descriptor(self) -> int | None:
        """Returns the next descriptor that came, for whoever reads to close; None if there is none."""
        return self._came.popleft() if self._came else None

    def flush(self) -> bool:
        """Sends what did not fit before; returns whether all of it has left.

        Raises:
            CarrierClosedError: The stream ended.
        """
        while self._unsent:
            try:
                if self._attached:
                    sent = self._send_attached()
                else:
                    sent = self._socket.sendmsg(self._unsent)
            except BlockingIOError:
                return False
            except OSError as error:
                raise CarrierClosedError(f"the socket's stream ended: {error}") from error
            self._drop(sent)
        return True

    def take(self) -> bytes | None:
        """Returns the next message; None while none is there.

        Raises:
            CarrierClosedError: The stream ended, or brought what is no message.
            DecodeError: It brought too many descriptors.
        """
        while (message := self._incoming.take()) is None:
            try:
                size, beside, flags, _ = self._socket.recvmsg_into(
                    [self._incoming.space()], ANCILLARY_BYTES, CLOSE_ON_EXEC
                )
            except BlockingIOError:
                return None
            except OSError as error:
                raise CarrierClosedError(f"the socket's stream ended: {error}") from error
            if beside or flags & CUT_SHORT:
                self._keep(beside, cut=bool(flags & CUT_SHORT))
            if not size:
                raise CarrierClosedError("the other end closed the socket")
            self._incoming.filled(size)
        return message

    def end(self) -> None:
        """Ends the stream at both ends, and wakes who polls it; idempotent, never raises."""
        if not self._ended:
            self._ended = True
            with contextlib.suppress(OSError):  # the other end was first
                self._socket.shutdown(socket.SHUT_RDWR)
            self._close_if_unused()

    def _give_up(self, role: threading.Lock) -> bool:
        """Gives a role back that was taken after the stream had ended; returns False."""
        role.release()
        self._close_if_unused()
        return False

    def _close_if_unused(self) -> None:
        """Closes the descriptor, unless a role is taken: then whoever has it will."""
        if not self._reader.acquire(blocking=False):
            return
        if self._writer.acquire(blocking=False):
            self._socket.close()
            self._unsent.clear()
            for descriptor in (*self._attached, *self._came):
                os.close(descriptor)
            self._attached.clear()
            self._came.clear()
            self._writer.release()
        self._reader.release()

    def _send_attached(self) -> int:
        """Sends descriptors with what waits, and closes them; returns how many bytes left."""
        rights = array.array("i", self._attached[:MOST_DESCRIPTORS])
        sent = self._socket.sendmsg(self._unsent, [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        del self._attached[: len(rights)]
        for descriptor in rights:
            os.close(descriptor)
        return sent

    def _keep(self, beside: list[tuple[int, int, bytes]], *, cut: bool) -> None:
        """Keeps the descriptors that came beside bytes.

        Raises:
            DecodeError: They are more than anybody sends.
            CarrierClosedError: They did not all come: this process has too many.
        """
        for level, kind, data in beside:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                rights = array.array("i")
                rights.frombytes(data[: len(data) - len(data) % rights.itemsize])
                self._came.extend(rights)
        if len(self._came) > MOST_DESCRIPTORS:
            raise DecodeError(f"{len(self._came)} descriptors that no message has asked for")
        if cut:
            raise CarrierClosedError("descriptors were lost, as this process has too many open")

    def _drop(self, sent: int) -> None:
        """Forgets so many bytes of what was to be sent."""
        while self._unsent and sent >= len(self._unsent[0]):
            sent -= len(self._unsent.pop(0))
        if sent:
            self._unsent[0] = self._unsent[0][sent:]
