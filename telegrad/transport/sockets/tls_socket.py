"""A connected TCP socket whose bytes the standard library encrypts, with TLS 1.3.

An SSL object is used by one thread at a time, so a lock stands around each call of it. No call
waits: the socket does not block. Bytes that OpenSSL has decrypted are invisible to a poll; `held`
tells of them.

OpenSSL reads one record of 16 KiB at a time, and its header before it. Nothing of the next record
is taken from the kernel, so that a poll tells of that one.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, final

from telegrad.critical import critical
from telegrad.transport.security.tls import fingerprint
from telegrad.wire import Buffer

# One level less than `recv_into`, for each 16 KiB of a lane; typeshed knows no buffer there.
_Read: TypeAlias = Callable[[int, memoryview], int]


@final
class TlsSocket:
    """One connected socket under TLS.

    Args:
        connected: The socket; this object closes it.
        context: The certificates that it shows and demands.
        shown: The fingerprint of the certificate that this end shows as a listener; empty for a
            dialler.

    Attributes:
        binding: The fingerprint of the listener's certificate, once the handshake is done.
        peer_names: The names in the other end's certificate; None where none was asked for.
    """

    def __init__(
        self, connected: socket.socket, context: ssl.SSLContext, *, shown: bytes = b""
    ) -> None:
        connected.setblocking(False)
        self._verifies = context.verify_mode is ssl.CERT_REQUIRED
        self._tls_lock = threading.Lock()  # guards OpenSSL's object
        self._socket = context.wrap_socket(
            connected,
            server_side=bool(shown),
            do_handshake_on_connect=False,
            suppress_ragged_eofs=False,
        )
        self.binding = shown
        self.peer_names: frozenset[str] | None = None

    def shake_hands(self) -> None:
        """Goes on with the handshake of TLS; returns when it is done. Before any other use.

        Raises:
            ssl.SSLWantReadError: It goes on when there is something to read.
            ssl.SSLWantWriteError: It goes on when there is room to write.
            OSError: One end refuses the other, or the connection ended.
        """
        self._socket.do_handshake()
        if not self.binding:
            self.binding = fingerprint(self._socket.getpeercert(binary_form=True) or b"")
        if self._verifies:
            names = (self._socket.getpeercert() or {}).get("subjectAltName", ())
            self.peer_names = frozenset(str(entry[1]) for entry in names if entry[0] == "DNS")

    def fileno(self) -> int:
        """Returns the descriptor."""
        return self._socket.fileno()

    def held(self) -> int:
        """Returns the number of bytes that are decrypted, and that no poll tells of."""
        with critical.section, self._tls_lock:
            return self._socket.pending()

    def send(self, data: Buffer, /) -> int:
        """Sends all bytes; if there is no room for them the same bytes have to be given again.

        Raises:
            BlockingIOError: There is no room for all of them now.
            OSError: The connection ended.
        """
        try:
            with critical.section, self._tls_lock:
                return self._socket.send(data)
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            raise BlockingIOError from None

    def sendmsg(self, parts: Sequence[Buffer], beside: Sequence[Any] = (), /) -> int:
        """Sends the first part; see `send`. Nothing may be sent beside it."""
        return self.send(parts[0]) if len(parts[0]) else 0

    def recv_into(self, place: memoryview, /) -> int:
        """Receives the bytes of all records that are there; returns how many, 0 at the end.

        Raises:
            BlockingIOError: There is no whole record now.
            OSError: The connection ended, or brought bytes that the peer has not sent.
        """
        come = 0
        with critical.section, self._tls_lock:
            read: _Read = self._socket.read  # type: ignore[assignment]
            try:
                while come < len(place):
                    size = read(len(place) - come, place[come:])
                    if not size:
                        break
                    come += size
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                if not come:
                    raise BlockingIOError from None
            except OSError:
                if not come:  # else the next call raises it again
                    raise
        return come

    def recvmsg_into(
        self, places: Sequence[memoryview], beside: int = 0, flags: int = 0, /
    ) -> tuple[int, list[tuple[int, int, bytes]], int, None]:
        """Receives the bytes of all records that are there into the first place."""
        return self.recv_into(places[0]), [], 0, None

    def shutdown(self, how: int, /) -> None:
        """Ends the connection at both ends; another thread may use it meanwhile."""
        socket.socket.shutdown(self._socket, how)  # SSLSocket's own would go on without TLS

    def close(self) -> None:
        """Closes the descriptor."""
        self._socket.close()
