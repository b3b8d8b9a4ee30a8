"""The dialling end of the gRPC transport: one channel and one stream per carrier."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, NamedTuple, TypeAlias, final

import grpc
import grpc.aio

from telegrad.transport.base import Carrier, CarrierClosedError
from telegrad.transport.grpc.carrier import GrpcCarrier, keep_core
from telegrad.transport.grpc.errors import STREAM_ERRORS, unreachable
from telegrad.transport.grpc.options import (
    CHANNEL_OPTIONS,
    METHOD,
    TLS_SCHEME,
    is_loopback,
    join_address,
    split_address,
)
from telegrad.transport.log import get_logger
from telegrad.transport.security.handshake import Reason, RefusedError
from telegrad.transport.security.tls import Tls
from telegrad.transport.security.tls_probe import NoTlsError, Shown, TlsProbe

logger = get_logger(__name__)

# A host that answers at all answers a connect within a few round trips. A host that is down does
# not, and the session has other endpoints and other times to try.
CONNECT_SECONDS = 5.0
# The longest wait, after this end ended its half, for the other end to end the stream, before it is
# torn.
CLOSE_SECONDS = 1.0
GIVE_UP_SECONDS = 0.25  # until gRPC has ended what was torn; that takes turns of its threads
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"  # and no settings

_Call: TypeAlias = "grpc.aio.StreamStreamCall[bytes, bytes]"


@final
class Dialler:
    """Opens streams; made off the loop, used on it.

    Plain streams go to this machine alone, except from a worker that is `insecure`. A worker that
    shows and demands certificates opens none: an attacker who changes an endpoint on its way here,
    from grpcs:// to grpc://, gains nothing by that.

    Args:
        tls: The certificates that this worker shows and demands.
        insecure: True if plain streams may go anywhere.
    """

    def __init__(self, tls: Tls | None, *, insecure: bool) -> None:
        self._mutual = tls if tls is not None and tls.mutual else None
        self._insecure = insecure
        self._probe = TlsProbe(tls)

    async def dial(self, endpoint: str) -> Carrier:
        """Opens a stream to a listener.

        A plain socket goes first, or a TLS handshake: gRPC says UNAVAILABLE both when nobody
        listens and when a host does not answer, and only the former means that the process is gone.

        Raises:
            ConnectionRefusedError: Nobody listens there.
            RefusedError: The listener's certificate, or this worker's, is not good; or the stream
                would have to be plain.
            ConnectionError: The listener cannot be reached now.
        """
        host, port = split_address(endpoint)
        if endpoint.startswith(TLS_SCHEME + "://"):
            found = await self._fetch(endpoint, host, port)
            return await self._dial(endpoint, found.address, port, found.shown)
        if self._mutual is not None:
            raise RefusedError(
                Reason.AUTHENTICATION,
                f"{endpoint} is without encryption, and this worker has certificates; start the "
                "one there with certificates, too (docs/certificates.md)",
            )
        address = await self._reach(endpoint, host, port, plain=True)
        try:
            return await self._dial(endpoint, address, port, None)
        except ConnectionError as error:
            broke = isinstance(error.__cause__, STREAM_ERRORS)
            upgraded = await self._upgrade(endpoint, address, port) if broke else None
            if upgraded is None:
                raise
            logger.debug("%s speaks TLS (%s)", endpoint, error)
        return await self._dial(endpoint, address, port, upgraded.shown)

    async def _dial(self, endpoint: str, address: str, port: int, shown: Shown | None) -> Carrier:
        """Opens a stream to the very address that answered: a name may lead elsewhere by now."""
        channel = self._channel(join_address(address, port), shown)
        stream: _Call = channel.stream_stream(METHOD)()
        try:
            async with _within_bounds(endpoint):
                await stream.wait_for_connection()
        except STREAM_ERRORS as error:
            cause = error.with_traceback(None)  # its frames keep the call
        except (ConnectionError, asyncio.CancelledError):
            await channel.close()
            raise
        else:
            return _DialledCarrier(endpoint, channel, stream, shown)
        await channel.close()
        del channel, stream  # so that the errors below, which have this frame, keep neither
        # The listener may have gone since it first answered.
        await self._reach(endpoint, address, port, plain=shown is None)
        raise unreachable(endpoint, cause) from cause

    def _channel(self, address: str, shown: Shown | None) -> grpc.aio.Channel:
        keep_core()
        if shown is None:
            return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        pair = None if self._mutual is None else self._mutual.pair
        credentials = grpc.ssl_channel_credentials(
            shown.certificate,
            None if pair is None else pair.key,
            None if pair is None else pair.certificate,
        )
        named = ("grpc.ssl_target_name_override", shown.target)
        return grpc.aio.secure_channel(address, credentials, options=(*CHANNEL_OPTIONS, named))

    async def _fetch(self, endpoint: str, host: str, port: int) -> _Found:
        """Returns the certificate that a listener shows, and the listener's address."""
        reached: list[str] = []

        async def connect() -> socket.socket:
            connected = await _connected(addresses)
            reached.append(connected.getpeername()[0])
            return connected

        async with _within_bounds(endpoint):
            addresses = await _addresses(host, port)
            shown = await self._probe.fetch(endpoint, connect)
        return _Found(shown, reached[-1])

    async def _reach(self, endpoint: str, host: str, port: int, *, plain: bool) -> str:
        """Connects, and hangs up; checks that nothing plain leaves this machine.

        A plain listener has to answer, too: the host of a stopped process takes connections, and
        gRPC would keep one for CONNECT_SECONDS, also when the dial is cancelled long before.

        Returns:
            The address that answered, as a number.
        """
        async with _within_bounds(endpoint):
            addresses = await _addresses(host, port)
            here = all(is_loopback(where[0]) for *_, where in addresses)
            if plain and not here and not self._insecure:
                raise RefusedError(
                    Reason.AUTHENTICATION,
                    f"{endpoint} is on another machine and without encryption, which no worker "
                    "does that is not insecure; start the one there without insecure=True, or this "
                    "one with it",
                )
            with await _connected(addresses) as connected:
                address = str(connected.getpeername()[0])
                if plain:
                    loop = asyncio.get_running_loop()
                    with contextlib.suppress(ConnectionResetError):  # a listener that encrypts
                        await loop.sock_sendall(connected, PREFACE)
                        await loop.sock_recv(connected, 1)
        return address

    async def _upgrade(self, endpoint: str, host: str, port: int) -> _Found | None:
        """Finds out if a listener refused a plain stream because it encrypts.

        A listener on all addresses encrypts, and the job may know it by its loopback address.

        Raises:
            RefusedError: The listener encrypts, and will not do so with this worker.
        """
        try:
            found = await self._fetch(endpoint, host, port)
        except NoTlsError:
            return None
        except RefusedError:
            raise
        except ConnectionError:
            return None
        if self._insecure:
            raise RefusedError(
                Reason.AUTHENTICATION,
                f"{endpoint} encrypts, and this worker is insecure; start this one without "
                "insecure=True, or the one there with it",
            )
        return found


async def connect(endpoint: str, host: str, port: int) -> socket.socket:
    """Returns a socket, connected and not blocking.

    Raises:
        ConnectionRefusedError: Nobody listens there.
        ConnectionError: The address cannot be reached now.
    """
    async with _within_bounds(endpoint):
        connected = await _connected(await _addresses(host, port))
    return connected  # noqa: RET504 -- mypy takes it that the block may swallow an error


@contextlib.asynccontextmanager
async def _within_bounds(endpoint: str) -> AsyncIterator[None]:
    """Gives the block the time that a host needs to answer at all, and translates its errors."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            yield
    except RefusedError:
        raise
    except TimeoutError as error:
        raise ConnectionError(f"{endpoint} does not answer ({CONNECT_SECONDS:g} s)") from error
    except OSError as error:
        raise unreachable(endpoint, error) from error


class _Found(NamedTuple):
    """A listener that answered under TLS.

    Attributes:
        shown: Its certificate.
        address: Its address, as a number.
    """

    shown: Shown
    address: str


async def _addresses(host: str, port: int) -> list[Any]:
    """Looks a name up; an address that is a number already needs none of the loop's threads.

    A name that means loopback, as `localhost` does of two families, is one address, and the same
    one as for a listener under that name: anybody may listen at the other.
    """
    with contextlib.suppress(socket.gaierror):
        numeric = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=numeric)
    look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    found = await asyncio.get_running_loop().run_in_executor(None, look_up)
    if all(is_loopback(str(where[0])) for *_, where in found):
        return [each for each in found if each[0] == socket.AF_INET][:1] or found[:1]
    return found


async def _connected(addresses: list[Any]) -> socket.socket:
    """Connects to the first address that takes the connection."""
    first: OSError | None = None
    for family, kind, protocol, _, address in addresses:
        connecting = socket.socket(family, kind, protocol)
        try:
            connecting.setblocking(False)
            await asyncio.get_running_loop().sock_connect(connecting, address)
        except OSError as error:
            connecting.close()
            first = first or error
        except BaseException:
            connecting.close()
            raise
        else:
            return connecting
    raise first or OSError("the name has no address")


@final
class _DialledCarrier(GrpcCarrier):
    def __init__(
        self,
        endpoint: str,
        channel: grpc.aio.Channel,
        stream: _Call,
        shown: Shown | None,
    ) -> None:
        super().__init__(endpoint, stream)
        self._open: tuple[grpc.aio.Channel, _Call] | None = channel, stream  # None once closed
        if shown is not None:
            self.binding, self.peer_names = shown.binding, shown.names

    async def close(self) -> None:
        """Ends this end's half; the listener then ends its own, and only a deaf one is cut off.

        This half cannot be ended while a write waits for the listener to read: so the time for the
        cut runs from the beginning.
        """
        if self._open is None:
            return
        (channel, stream), self._open = self._open, None
        self._end_messages()
        closing = asyncio.ensure_future(channel.close(CLOSE_SECONDS))
        # A call that was cut off ends soon, but for bytes that are stuck in the socket.
        later = partial(asyncio.get_running_loop().call_later, GIVE_UP_SECONDS, self._abandon)
        closing.add_done_callback(lambda _: later())
        with contextlib.suppress(CarrierClosedError):
            await self._run(stream.done_writing())
        with contextlib.suppress(CarrierClosedError):
            async with self._reading:
                await self._run(_drain(stream))
        await closing


async def _drain(stream: _Call) -> None:
    """Reads messages that nobody wants: until then gRPC does not see the end behind them."""
    while isinstance(await stream.read(), bytes):
        pass
