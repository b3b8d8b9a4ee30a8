"""The transport over TCP sockets that threads use without gRPC, under TLS where gRPC has it.

Nothing is dialled there first. The gRPC stream comes up, and its listener gives the port in its
hello (`direct-port=41233` among the capabilities), which the proof covers. The worker that dialled
dials that port at the same host, and the stream moves there (`session/dial`); its lanes follow. A
carrier from there that is neither a stream in the place of another one, nor a lane, is refused.

    grpcs://10.0.0.5:29500   encrypted   tcps://10.0.0.5:41233
    grpc://127.0.0.1:29500   plain       tcp://127.0.0.1:41233   on this machine, or `insecure`
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias, final

from telegrad.transport.addresses import HIGHEST_PORT
from telegrad.transport.base import Carrier, Listener, Transport
from telegrad.transport.grpc.dialer import connect
from telegrad.transport.grpc.options import (
    SCHEME,
    TLS_SCHEME,
    is_loopback,
    join_address,
    split_address,
)
from telegrad.transport.log import get_logger
from telegrad.transport.security.handshake import Reason, RefusedError
from telegrad.transport.security.tls import Tls, trusting_context
from telegrad.transport.sockets.message_socket import ByteSocket
from telegrad.transport.sockets.socket_carrier import SocketCarrier
from telegrad.transport.sockets.socket_listener import BACKLOG, SocketListener
from telegrad.transport.sockets.tls_socket import TlsSocket

logger = get_logger(__name__)

Accept: TypeAlias = Callable[[Carrier], Awaitable[None]]

TCP_SCHEME: Final = "tcp"
TCP_TLS_SCHEME: Final = "tcps"
PORT_TOLD: Final = "direct-port="
# Of Linux since 6.15; `socket` has no name for it. A cut that heals is noticed in this time, not
# after 12 s: the time to the next try doubles while a link is down.
TCP_RTO_MAX_MS: Final = 44
LONGEST_RETRY_MS: Final = 1000


def direct_endpoint(endpoint: str, capabilities: Iterable[str], *, encrypted: bool) -> str:
    """Returns the endpoint to which a stream over gRPC may move; empty where it may not.

    >>> direct_endpoint("grpcs://[fd00::2]:29500", ["direct-port=41233"], encrypted=True)
    'tcps://[fd00::2]:41233'
    >>> direct_endpoint("grpc://10.0.0.5:29500", [], encrypted=False)
    ''

    Args:
        endpoint: The endpoint at which the listener was dialled.
        capabilities: The capabilities in its hello.
        encrypted: True if the stream there is encrypted.
    """
    if endpoint.partition("://")[0] not in (SCHEME, TLS_SCHEME):
        return ""
    host, _ = split_address(endpoint)
    scheme = TCP_TLS_SCHEME if encrypted else TCP_SCHEME
    for told in capabilities:
        port = told.removeprefix(PORT_TOLD)
        if told.startswith(PORT_TOLD) and port.isdecimal() and 0 < int(port) <= HIGHEST_PORT:
            return f"{scheme}://{join_address(host, int(port))}"
    return ""


@final
class TcpTransport(Transport):
    """Opens and dials TCP sockets for one exchange; made off the loop.

    Endpoints are `tcps://host:port`, or `tcp://host:port` without encryption.

    Args:
        ports: The ports to try, in order; 0 for one that the kernel chooses.
        at: Returns the address to listen on, as a number, and the certificate to show, None for
            none; None for nowhere. Asked once, when the exchange begins to listen.
        tls: The certificates that this worker shows and demands when it dials; None for none.
        insecure: True if plain connections may go to other machines.

    Attributes:
        told: The port, once there is one.
    """

    scheme = TCP_TLS_SCHEME
    schemes = frozenset({TCP_SCHEME, TCP_TLS_SCHEME})

    def __init__(
        self,
        ports: Sequence[int],
        at: Callable[[], tuple[str, Tls | None] | None],
        *,
        tls: Tls | None = None,
        insecure: bool = False,
    ) -> None:
        self._ports = ports
        self._at = at
        self._mutual = tls is not None and tls.mutual
        self._context = trusting_context() if tls is None else tls.dialling
        self._insecure = insecure

    async def listen(self, accept: Accept) -> Listener:
        """Opens the first free port; none where all are taken, with a line in the log.

        Streams stay on gRPC then.
        """
        where = self._at()
        if where is None:
            return _Nowhere()
        bind, tls = where
        failure: OSError | None = None
        for port in self._ports:
            try:
                opened = _open(bind, port)
            except OSError as error:
                failure = error
                continue
            self.told = (f"{PORT_TOLD}{opened.getsockname()[1]}",)
            return SocketListener(opened, "", accept, functools.partial(_accepted, tls))
        tried = (
            f"{self._ports[0]}"
            if len(self._ports) == 1
            else f"{self._ports[0]} to {self._ports[-1]}"
        )
        words = (
            "no direct port: cannot listen on port %s of %s (%s); calls to this worker go over gRPC"
        )
        said = None if failure is None or failure.errno is None else os.strerror(failure.errno)
        asyncio.get_running_loop().run_in_executor(None, logger.warning, words, tried, bind, said)
        return _Nowhere()

    async def dial(self, endpoint: str) -> Carrier:
        """Connects; see `Transport.dial`."""
        scheme, _, address = endpoint.partition("://")
        host, port = split_address(f"{SCHEME}://{address}")
        connected = await connect(endpoint, host, port)
        try:
            below = self._prepared(endpoint, connected, encrypts=scheme == TCP_TLS_SCHEME)
            return SocketCarrier(below, endpoint, takes_over=True)
        except RefusedError:
            connected.close()
            raise
        except OSError as error:  # the listener has gone again
            connected.close()
            raise ConnectionError(f"{endpoint} hangs up at once: {error}") from error

    def _prepared(self, endpoint: str, connected: socket.socket, *, encrypts: bool) -> ByteSocket:
        _tune(connected)
        if encrypts:
            return TlsSocket(connected, self._context)
        here = is_loopback(str(connected.getpeername()[0]))
        if self._mutual or not (here or self._insecure):
            words = f"{endpoint} is without encryption, which no worker does that is not insecure"
            raise RefusedError(Reason.AUTHENTICATION, words)
        return connected


def _accepted(tls: Tls | None, connected: socket.socket, address: Any) -> Carrier:
    """Returns the carrier of a connection that was accepted."""
    _tune(connected)
    where = join_address(*address[:2])
    if tls is None:
        return SocketCarrier(connected, f"{TCP_SCHEME} {where}", takes_over=True)
    secured = TlsSocket(connected, tls.listening, shown=tls.binding)
    return SocketCarrier(secured, f"{TCP_TLS_SCHEME} {where}", takes_over=True)


def _tune(connected: socket.socket) -> None:
    """Makes a socket send at once, and try again soon while a link is down."""
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with contextlib.suppress(OSError):  # an older system
        connected.setsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS, LONGEST_RETRY_MS)


def _open(bind: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    both = bind == "::" and socket.has_dualstack_ipv6()  # else create_server raises a ValueError
    return socket.create_server((bind, port), family=family, backlog=BACKLOG, dualstack_ipv6=both)


@final
class _Nowhere(Listener):
    """The listener of a worker that opens no direct port."""

    endpoint = ""

    async def close(self) -> None:
        pass
