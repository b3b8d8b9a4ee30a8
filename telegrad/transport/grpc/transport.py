"""The gRPC transport: every carrier is one duplex stream of bytes on a channel of its own."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from typing import final

from telegrad.errors import AuthenticationError
from telegrad.transport.addresses import address_of, is_number, split_host
from telegrad.transport.base import Carrier, Listener, Transport
from telegrad.transport.grpc.dialer import Dialler
from telegrad.transport.grpc.listener import listen
from telegrad.transport.grpc.options import SCHEME, TLS_SCHEME, is_loopback, server_options
from telegrad.transport.limits import CONNECTIONS, HANDSHAKE_SECONDS
from telegrad.transport.security.tls import Tls, self_signed_tls

EVERYWHERE = ("", "0.0.0.0", "::")  # refused, unless one is advertised


@final
class GrpcTransport(Transport):
    """Reaches workers in other processes and on other hosts; made off the loop.

    Endpoints are `grpc://host:port`, or `grpcs://host:port` with encryption; it dials both. If
    other machines may connect, it encrypts, with a certificate that it makes for itself if it is
    given none.

    Args:
        bind: The address to listen on. Of a name's addresses one is taken, and published.
        port: The port to listen on; 0 lets the kernel choose.
        advertise: The host that peers dial, when it is not `bind`; or `host:port`, when the port is
            another one, too.
        tls: The certificates that it shows and demands wherever it listens or dials.
        insecure: True to allow an address that other machines can reach, without encryption.
        connections: The number of workers that it may listen to at once.
        handshake_seconds: Seconds for a connection to come up, and as long again to open a stream.

    Attributes:
        tls: The certificate that it shows; None where it does not encrypt.

    Raises:
        PermissionError: Other machines could reach the address, and nothing would be encrypted,
            since the package cryptography is not installed; the message has the remedy.
    """

    schemes = frozenset({SCHEME, TLS_SCHEME})

    def __init__(
        self,
        bind: str = "127.0.0.1",
        port: int = 0,
        advertise: str | None = None,
        *,
        tls: Tls | None = None,
        insecure: bool = False,
        connections: int = CONNECTIONS,
        handshake_seconds: float = HANDSHAKE_SECONDS,
    ) -> None:
        if tls is None and not insecure and not is_loopback(bind):
            tls = _own_tls(bind)
        self._bind = bind
        self._port = port
        self._advertise = advertise
        self.tls = tls
        self.scheme = SCHEME if tls is None else TLS_SCHEME
        self._options = server_options(connections, handshake_seconds)
        self._dialler = Dialler(tls, insecure=insecure)

    def on_port(self, port: int) -> GrpcTransport:
        """Returns the same transport on another port."""
        other = copy.copy(self)
        other._port = port
        return other

    async def listen(self, accept: Callable[[Carrier], Awaitable[None]]) -> Listener:
        """Opens the port.

        Raises:
            OSError: The port is taken or the address is not of this machine.
            ValueError: The address stands for every address, and none is advertised.
        """
        if self._advertise is None and self._bind in EVERYWHERE:
            raise ValueError(
                f"peers cannot dial bind={self._bind!r}; add advertise= with the address by which "
                "they reach this host"
            )
        bind = split_host(self._bind) or "::"
        if not is_number(bind):  # this needs none of the loop's threads
            bind = await asyncio.get_running_loop().run_in_executor(None, address_of, bind)
        return await listen(
            bind, self._port, self._advertise, accept, self.tls, options=self._options
        )

    async def dial(self, endpoint: str) -> Carrier:
        """Opens a stream; see `Transport.dial`."""
        return await self._dialler.dial(endpoint)


def _own_tls(bind: str) -> Tls:
    try:
        return self_signed_tls()
    except AuthenticationError as error:
        raise AuthenticationError(
            f"refuses to listen on {bind!r}, which other machines may reach, without encryption: "
            f"{error}; or bind 127.0.0.1, or say insecure=True if everyone on this network may "
            "read and alter what the workers send, and call functions in them"
        ) from error
