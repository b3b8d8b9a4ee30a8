"""The gRPC transport: every carrier is one duplex stream of bytes on a channel of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import final

from telegrad.transport.base import Carrier, Listener, Transport
from telegrad.transport.grpc_dialer import dial
from telegrad.transport.grpc_listener import is_loopback, listen
from telegrad.transport.grpc_options import SCHEME

__all__ = ["GrpcTransport"]

EVERYWHERE = ("", "0.0.0.0", "::")  # refused, unless one is advertised


@final
class GrpcTransport(Transport):
    """Reaches workers in other processes and on other hosts.

    Args:
        bind: The address to listen on.
        port: The port to listen on; 0 lets the kernel choose.
        advertise: The host that peers dial, when it is not `bind`.
        insecure: Allows an address that other machines can reach, without encryption.
    """

    def __init__(
        self,
        bind: str = "127.0.0.1",
        port: int = 0,
        advertise: str | None = None,
        *,
        insecure: bool = False,
    ) -> None:
        self._bind = bind
        self._port = port
        self._advertise = advertise
        self._insecure = insecure

    @property
    def scheme(self) -> str:
        """Endpoints are `grpc://host:port`."""
        return SCHEME

    async def listen(self, accept: Callable[[Carrier], Awaitable[None]]) -> Listener:
        """Opens the port.

        Raises:
            OSError: The port is taken or the address is not of this machine.
            PermissionError: Other machines could reach the address, and nothing would be
                encrypted.
            ValueError: It stands for every address, and none is advertised.
        """
        if not self._insecure and not is_loopback(self._bind):
            raise PermissionError(
                f"refuses to listen on {self._bind!r}, which other machines may reach, since this "
                f"version does not encrypt; bind 127.0.0.1, or say insecure=True if everyone on "
                f"this network may read and alter what the workers send"
            )
        if self._advertise is None and self._bind in EVERYWHERE:
            raise ValueError(
                f"peers cannot dial bind={self._bind!r}; add advertise= with the address by which "
                "they reach this host"
            )
        return await listen(self._bind, self._port, self._advertise, accept)

    async def dial(self, endpoint: str) -> Carrier:
        """Opens a stream; see `Transport.dial`."""
        return await dial(endpoint)
