"""A stream of messages over a Unix, TCP or TLS socket, which any thread may use without a loop.

There are two roles, each held by one thread (or task) at a time: the writer's and the reader's.
Nothing here waits. Bytes that do not fit into the socket are kept, and `flush` sends them. To end
the stream the socket is shut down, at both ends and for threads that poll it. The descriptor is
closed when both roles are free: no thread ever uses a number that stands for another file by now.

Over Unix sockets descriptors travel beside messages, and are there before the message beside which
they were sent.

A lane uses the same socket in another way: `send_all` and `fill` move bytes without messages, and
block. One thread sends and one receives.
"""

from __future__ import annotations

import array
import contextlib
import os
import select
import socket
import threading
from collections import deque
from typing import TypeAlias, final

from telegrad.errors import DecodeError
from telegrad.transport.base import HEADER_BYTES, CarrierClosedError
from telegrad.transport.sockets.message_buffer import LARGEST, MessageBuffer
from telegrad.transport.sockets.tls_socket import TlsSocket
from telegrad.wire import Buffer

# The most descriptors of one peer at once that no message has asked for yet. The kernel takes 253
# in one go.
MOST_DESCRIPTORS = 128
ANCILLARY_BYTES = socket.CMSG_SPACE(MOST_DESCRIPTORS * array.array("i").itemsize)

TOGETHER = 16 * 2**10  # bytes of a message that is copied behind its header, as that costs less

# As plain numbers: as members of enumerations they take ten times as long in each read.
CLOSE_ON_EXEC, CUT_SHORT = int(socket.MSG_CMSG_CLOEXEC), int(socket.MSG_CTRUNC)


# A connected socket that does not block.
ByteSocket: TypeAlias = socket.socket | TlsSocket


@final
class DirectSocket:
    """One connected socket.

    Args:
        connected: The socket, which does not block; this object closes it.
        largest: The most bytes of a message, until `accept_all`.

    Attributes:
        holds_more: True if there may be a message that was read and not taken.
    """

    def __init__(self, connected: ByteSocket, *, largest: int = LARGEST) -> None:
        self._socket = connected
        self._tls = connected if isinstance(connected, TlsSocket) else None
        self._reader = threading.Lock()  # these two locks are the roles
        self._writer = threading.Lock()
        self._incoming = MessageBuffer(largest)
        self.holds_more = False
        self._unsent: list[memoryview] = []
        self._attached: list[int] = []  # descriptors that leave next
        self._came: deque[int] = deque()
        self._ended = False

    def fileno(self) -> int:
        """Returns the descriptor, for a thread that has a role."""
        return self._socket.fileno()

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
        """Sends a message, as far as there is room; returns True if all of it has left.

        Raises:
            CarrierClosedError: The stream ended.
        """
        size = len(message)
        header, sent = size.to_bytes(HEADER_BYTES, "big"), 0
        if not self._attached and not self._unsent:
            try:
                if size <= TOGETHER:
                    sent = self._socket.send(header + message)
                else:
                    sent = self._socket.sendmsg((header, message))
            except BlockingIOError:
                sent = 0
            except OSError as error:
                raise CarrierClosedError(f"the socket's stream ended: {error}") from error
            if sent == HEADER_BYTES + size:
                return True
        self._unsent += [memoryview(header), memoryview(message)]
        self._drop(sent)
        return self.flush()

    def attach(self, descriptor: int) -> None:
        """Sends a descriptor beside the next message, and closes it; for the writer."""
        self._attached.append(descriptor)

    def descriptor(self) -> int | None:
        """Returns the next descriptor that came, which the reader has to close; None for none."""
        return self._came.popleft() if self._came else None

    def flush(self) -> bool:
        """Sends bytes that did not fit before; returns True if all of them have left.

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
            CarrierClosedError: The stream ended, or brought bytes that are no message.
            DecodeError: The stream brought too many descriptors.
        """
        incoming = self._incoming
        message = incoming.take() if incoming.start != incoming.end else None
        while message is None:
            try:
                size, beside, flags, _ = self._socket.recvmsg_into(
                    [incoming.space], ANCILLARY_BYTES, CLOSE_ON_EXEC
                )
            except BlockingIOError:
                return None
            except OSError as error:
                raise CarrierClosedError(f"the socket's stream ended: {error}") from error
            if beside or flags & CUT_SHORT:
                self._keep(beside, cut=bool(flags & CUT_SHORT))
            if not size:
                raise CarrierClosedError("the other end closed the socket")
            message = incoming.take(size)
        self.holds_more = incoming.start != incoming.end
        if self._tls is not None and not self.holds_more:
            self.holds_more = self._tls.held() > 0
        return message

    def accept_all(self) -> None:
        """Takes messages of any size that is allowed: the peer has proved itself."""
        self._incoming.largest = LARGEST

    def send_all(self, *parts: Buffer) -> None:
        """Sends bytes; blocks until the system has taken all of them.

        Raises:
            CarrierClosedError: The stream ended.
        """
        if not self.begin_writing():
            raise CarrierClosedError("the socket is closed")
        try:
            self._unsent += [memoryview(part).cast("B") for part in parts]
            while not self.flush():
                self._wait_for(select.POLLOUT)
        finally:
            self.end_writing()

    def fill(self, place: memoryview) -> None:
        """Fills a place with the next bytes; blocks until they are all there.

        Raises:
            CarrierClosedError: The stream ended before that.
        """
        if not self.begin_reading():
            raise CarrierClosedError("the socket is closed")
        try:
            place = place[self._incoming.give(place) :]
            while place:
                try:
                    came = self._socket.recv_into(place)
                except BlockingIOError:
                    self._wait_for(select.POLLIN)
                    continue
                except OSError as error:
                    raise CarrierClosedError(f"the socket's stream ended: {error}") from error
                if not came:
                    raise CarrierClosedError("the other end closed the socket")
                place = place[came:]
        finally:
            self.end_reading()

    def _wait_for(self, event: int) -> None:
        """Waits until the socket is ready, or has ended; in the thread that has the role."""
        poll = select.poll()
        poll.register(self._socket.fileno(), event)
        poll.poll()

    def end(self) -> None:
        """Ends the stream at both ends, and wakes polling threads; idempotent, never raises."""
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
        """Closes the descriptor, unless a role is taken: then the thread that has it will."""
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
        """Sends descriptors with waiting bytes, and closes them; returns how many bytes left."""
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
        """Forgets so many of the bytes that were to be sent."""
        while self._unsent and sent >= len(self._unsent[0]):
            sent -= len(self._unsent.pop(0))
        if sent:
            self._unsent[0] = self._unsent[0][sent:]
