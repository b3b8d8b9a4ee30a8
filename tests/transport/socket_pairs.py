"""Connected sockets, Unix, TCP or under TLS, without workers at their ends."""

from __future__ import annotations

import contextlib
import functools
import select
import socket
import ssl

from telegrad.transport import Tls, self_signed_tls
from telegrad.transport.base import HEADER_BYTES
from telegrad.transport.security.tls import trusting_context
from telegrad.transport.sockets.socket_carrier import SocketCarrier
from telegrad.transport.sockets.tls_socket import TlsSocket
from tests.loops import on_loop
from tests.transport.workers import SECONDS, meanwhile

__all__ = [
    "MemoryTls",
    "certificate",
    "header_of",
    "memory_pair",
    "shake_hands",
    "tcp_pair",
    "tls_pair",
    "unix_pair",
]

LOCALHOST = "127.0.0.1"


def header_of(message: bytes) -> bytes:
    """Returns the header of a message: its size in four bytes."""
    return len(message).to_bytes(HEADER_BYTES, "big")


@functools.cache
def certificate() -> Tls:
    """Returns what all listeners of these tests show."""
    return self_signed_tls()


def unix_pair() -> tuple[socket.socket, socket.socket]:
    """Returns both ends of a connection over a Unix socket; they do not block."""
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    for end in pair:
        end.setblocking(False)
    return pair


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Returns both ends of a connection over loopback: the dialler's, and the listener's.

    They block.
    """
    with socket.create_server((LOCALHOST, 0)) as listening:
        dialler = socket.create_connection(listening.getsockname(), SECONDS)
        accepted, _ = listening.accept()
    for end in (dialler, accepted):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return dialler, accepted


def tls_pair(*, room: int = 0) -> tuple[TlsSocket, TlsSocket]:
    """Returns both ends of a connection under TLS, whose handshake is done.

    Args:
        room: The bytes for which the kernel has room in each direction, about; 0 for its default.
    """
    plain = tcp_pair()
    for end in plain:
        if room:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, room)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    dialler = TlsSocket(plain[0], trusting_context())
    listener = TlsSocket(plain[1], certificate().listening, shown=certificate().binding)
    shake_hands(dialler, listener)
    return dialler, listener


def shake_hands(dialler: TlsSocket, listener: TlsSocket) -> None:
    """Does the handshake of TLS at both ends, in this thread."""
    undone = [dialler, listener]
    while undone:
        for end in list(undone):
            try:
                end.shake_hands()
                undone.remove(end)
            except ssl.SSLWantReadError:  # the other end's turn
                if (other := [each for each in undone if each is not end]) != []:
                    select.select(other, [], [], SECONDS)
                else:
                    select.select([end], [], [], SECONDS)


def memory_pair() -> tuple[TlsSocket, MemoryTls]:
    """Returns a listener's end of a connection under TLS, and what encrypts for it."""
    wire, accepted = tcp_pair()
    end = TlsSocket(accepted, certificate().listening, shown=certificate().binding)
    client = MemoryTls(wire)
    shaking = meanwhile(client.shake_hands)
    on_loop(SocketCarrier(end, "here").secure)
    shaking.result(SECONDS)
    return end, client


class MemoryTls:
    """A client of TLS that gives its encrypted bytes to the test, which sends them, or others.

    Args:
        wire: The connection to the listener; it blocks.
        context: The certificates that it shows and demands.
    """

    def __init__(self, wire: socket.socket, context: ssl.SSLContext | None = None) -> None:
        self.wire = wire
        self._came, self._to_go = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = trusting_context() if context is None else context
        self._tls = context.wrap_bio(self._came, self._to_go)

    def hello(self) -> bytes:
        """Returns the first bytes of a handshake: a ClientHello."""
        assert not self.step()
        return self._to_go.read()

    def step(self) -> bool:
        """Does what can be done of a handshake; returns True if it is done."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def shake_hands(self) -> None:
        """Does the whole handshake; the listener does its half somewhere else."""
        while not (done := self.step()):
            self.wire.sendall(self._to_go.read())
            came = self.wire.recv(2**16)
            if not came:
                raise ConnectionResetError("the listener hung up")
            self._came.write(came)
        assert done
        self.wire.sendall(self._to_go.read())

    def encrypted(self, data: bytes) -> bytes:
        """Returns the bytes that carry this data."""
        self._tls.write(data)
        return self._to_go.read()

    def end(self) -> bytes:
        """Returns the bytes that end TLS in good order."""
        with contextlib.suppress(ssl.SSLWantReadError):  # the other end answers nothing
            self._tls.unwrap()
        return self._to_go.read()
