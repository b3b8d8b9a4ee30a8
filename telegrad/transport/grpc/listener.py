"""The listening end of the gRPC transport: one server, one generic handler over raw bytes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import TypeAlias, final

import grpc
import grpc.aio

from telegrad.transport.addresses import split_advertised
from telegrad.transport.base import Carrier, Listener
from telegrad.transport.grpc.carrier import GrpcCarrier, keep_core, keep_polling
from telegrad.transport.grpc.errors import STREAM_ERRORS
from telegrad.transport.grpc.health import HealthHandler
from telegrad.transport.grpc.options import METHOD, SCHEME, TLS_SCHEME, is_loopback, join_address
from telegrad.transport.security.tls import Tls

Accept: TypeAlias = Callable[[Carrier], Awaitable[None]]
Options: TypeAlias = tuple[tuple[str, int], ...]
_Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"

# The longest time in which a closed stream, and the streams of a closed listener, may end.
CLOSE_SECONDS = 1.0


async def listen(
    host: str,
    port: int,
    advertise: str | None,
    accept: Accept,
    tls: Tls | None = None,
    *,
    options: Options,
) -> Listener:
    """Serves on an address.

    Args:
        host: The address, as a number.
        port: The port; 0 lets the kernel choose.
        advertise: The host that peers dial, or host and port, if it is another one.
        accept: Takes the carriers.
        tls: The certificates that it shows and demands; None: nothing is encrypted.
        options: The channel arguments of gRPC.

    Raises:
        OSError: The address cannot be had; the message has the remedy.
    """
    if port:
        _try_port(host, port)  # gRPC's own words name neither the cause nor a remedy
    keep_core()
    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers((_Handler(accept, tls),))
    if is_loopback(host) or (tls is not None and tls.mutual):
        server.add_generic_rpc_handlers((HealthHandler(),))
    try:
        bound = _add_port(server, join_address(host, port), tls)
    except RuntimeError as error:
        raise OSError(f"cannot listen on {host}:{port}: {error}") from error
    await server.start()
    scheme = SCHEME if tls is None else TLS_SCHEME
    outside, port_outside = split_advertised(advertise or host)
    return _GrpcListener(server, f"{scheme}://{join_address(outside, port_outside or bound)}")


def _add_port(server: grpc.aio.Server, address: str, tls: Tls | None) -> int:
    """Opens a server's port; under mutual TLS it ends connections of peers that prove no name.

    gRPC ends them by itself: nothing here hears of peers without a certificate of the job's
    authorities.
    """
    if tls is None:
        return server.add_insecure_port(address)
    credentials = grpc.ssl_server_credentials(
        [(tls.pair.key, tls.pair.certificate)], tls.authorities or None, tls.mutual
    )
    return server.add_secure_port(address, credentials)


def _try_port(host: str, port: int) -> None:
    """Binds a plain socket first and lets go of it: its errors tell the cause."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC does
        try:
            probe.bind((host, port))
        except OSError as error:
            raise OSError(
                error.errno,
                f"cannot listen on {host}:{port} ({error.strerror}); another process may use the "
                f"port: name a free one, or 0 to let the kernel choose",
            ) from error


@final
class _Handler(grpc.GenericRpcHandler):
    """Answers the only method; a stream lives as long as its carrier."""

    def __init__(self, accept: Accept, tls: Tls | None) -> None:
        self._accept = accept
        self._tls = tls
        self._method: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(
            self._open
        )

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        return self._method if handler_call_details.method == METHOD else None

    async def _open(self, _: object, context: _Context) -> None:
        carrier = _AcceptedCarrier(context, self._tls)
        try:
            await context.send_initial_metadata(())  # the dialler waits for this
            await self._accept(carrier)
            await carrier.wait_closed()
        except STREAM_ERRORS:
            pass
        finally:
            carrier.end()


@final
class _GrpcListener(Listener):
    def __init__(self, server: grpc.aio.Server, endpoint: str) -> None:
        self._server: grpc.aio.Server | None = server
        self.endpoint = endpoint

    async def close(self) -> None:
        """Ends the streams as well, after the grace: gRPC knows no half-closed server."""
        if self._server is None:
            return
        stopping = asyncio.ensure_future(self._server.stop(CLOSE_SECONDS))
        self._server = None
        stopped, _ = await asyncio.wait({stopping}, timeout=2 * CLOSE_SECONDS)
        if not stopped:
            keep_polling()


@final
class _AcceptedCarrier(GrpcCarrier):
    """A stream that a peer opened; ends when its handler returns or is cancelled by gRPC.

    A server can end no stream before its last write has left. A write that waits here is given up
    soon; gRPC's own part of it stays until the dialler reads on, its connection breaks, or the
    listener closes.
    """

    def __init__(self, context: _Context, tls: Tls | None) -> None:
        super().__init__(f"{SCHEME if tls is None else TLS_SCHEME} {context.peer()}", context)
        if tls is not None:
            self.binding = tls.binding
            self.peer_names = _names(context) if tls.mutual else None

    async def close(self) -> None:
        self.end()

    def end(self) -> None:
        """Lets the handler return, which ends the stream at both ends."""
        if self._end_messages():
            asyncio.get_running_loop().call_later(CLOSE_SECONDS, self._abandon)

    async def wait_closed(self) -> None:
        await self._closed.wait()


def _names(context: _Context) -> frozenset[str]:
    """Returns the DNS names in the dialler's certificate, which gRPC has verified."""
    found = context.auth_context().get("peer_dns", ())
    return frozenset(name.decode(errors="replace") for name in found)
