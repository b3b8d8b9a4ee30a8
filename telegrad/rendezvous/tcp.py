"""A store behind a TCP port: its clients, and a server that a program starts by itself."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, final

from telegrad.errors import RendezvousError, RendezvousTimeoutError
from telegrad.rendezvous.control import ANSWER_TIMEOUT, CLOSE_TIMEOUT, ControlLine
from telegrad.rendezvous.coordinator import Coordinator
from telegrad.rendezvous.listening import choose_place
from telegrad.rendezvous.store import STORE_TIMEOUT, Store, late_error
from telegrad.transport import (
    GrpcTransport,
    InprocNetwork,
    InprocTransport,
    Transport,
    address_of,
    find_token,
    is_loopback_address,
    split_advertised,
)

DEFAULT_JOB = "store"  # no job of workers has this name unless it is given one


@final
class TCPStore(Store):
    """A client of a store in another process; `serve` starts one, and `connect` finds it.

    It needs no agent, and has nothing to do with the job of one that runs here. Server and clients
    prove to each other that they hold the same token. Beyond loopback the traffic is encrypted.

    The server holds 256 MiB of keys, values and queues at most (`Limits.document_bytes`). If it is
    lost, all waits and later calls raise RendezvousError.

    Args:
        line: A connected line to the server; `TCPStore.connect` makes one.
        server: The server, if it runs here; it is closed with this store.
        endpoint: The endpoint of the server, if it is not the one that the line has dialled.

    Example:
        >>> from telegrad.rendezvous import TCPStore
        >>> token = "a token that all have"
        >>> with (
        ...     TCPStore.serve(token=token) as store,
        ...     TCPStore.connect(store.endpoint, token=token) as client,
        ... ):
        ...     client.set("address", b"10.0.0.1")
        ...     store.get("address", timeout=10.0)
        b'10.0.0.1'
    """

    def __init__(
        self, line: ControlLine, server: Coordinator | None = None, endpoint: str = ""
    ) -> None:
        self._line = line
        self._server = server
        self._endpoint = endpoint

    @classmethod
    def serve(
        cls,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        token: str | bytes | None = None,
        job: str = DEFAULT_JOB,
        advertise: str | None = None,
    ) -> TCPStore:
        """Starts a server in this process, which lives until the returned store is closed.

        Args:
            host: The address to listen on; `0.0.0.0` for all.
            port: The port to listen on; 0 for one that the kernel chooses.
            token: The token of all clients, 16 characters at least; None for the one that
                `rpc.init_rpc` would take (`TELEGRAD_TOKEN`, or the user's own).
            job: A name; clients that name another one are refused.
            advertise: The host that others dial, or `host:port`, if it is not `host`.

        Raises:
            OSError: The port is in use.
            RendezvousError: `host` is no address of this machine, or it is not clear which address
                others dial.
            AuthenticationError: There is no token, or it is too short.

        Example:
            >>> from telegrad.rendezvous import TCPStore
            >>> with TCPStore.serve(token="a token that all have") as store:
            ...     store.queue_push("tasks", b"first")
            ...     store.endpoint.startswith("grpc://127.0.0.1:"), store.queue_len("tasks")
            (True, 1)
        """
        secret = find_token(token, os.environ)
        place = choose_place(host, advertise, None)
        # The server's own process needs no port to reach it, nor the address that others dial.
        inside = InprocTransport(InprocNetwork())
        transports = [GrpcTransport(place.bind, port, place.advertise), inside]
        server = Coordinator(transports, job=job, token=secret)
        try:
            endpoint, own = server.start()
            client = cls.connect(own, token=secret, job=job, transports=[inside])
        except BaseException:
            server.close()
            raise
        return cls(client._line, server, endpoint)

    @classmethod
    def connect(
        cls,
        endpoint: str,
        *,
        token: str | bytes | None = None,
        job: str = DEFAULT_JOB,
        transports: Sequence[Transport] | None = None,
        rank: int = 0,
        name: str = "",
        timeout: float = STORE_TIMEOUT,
    ) -> TCPStore:
        """Connects to a server that listens already.

        Args:
            endpoint: Its `endpoint`, or `host:port`.
            token: Its token; None for the one that `rpc.init_rpc` would take.
            job: Its name.
            transports: The transports that reach it; gRPC by default.
            rank: The client's rank, for the server's log.
            name: The worker's name that the transports' certificate proves, if they have one.
            timeout: Seconds for everything.

        Raises:
            ConnectionError: Nobody answers at the endpoint.
            AuthenticationError: One side does not hold the other's token.
            RendezvousError: The server has another name.
            ValueError: The endpoint names no port.

        Example:
            >>> from telegrad.rendezvous import TCPStore
            >>> with TCPStore.serve(token="a token that all have") as store:
            ...     place = store.endpoint.removeprefix("grpc://")  # such as "127.0.0.1:29600"
            ...     with TCPStore.connect(place, token="a token that all have") as client:
            ...         client.add("workers", 1)
            1
        """
        place = find_endpoint(endpoint)
        line = ControlLine(
            job=job,
            rank=rank,
            token=find_token(token, os.environ),
            transports=[GrpcTransport()] if transports is None else transports,
            owner=name,
        )
        try:
            line.connect(place, timeout)
        except BaseException:
            line.close(CLOSE_TIMEOUT)
            raise
        return cls(line)

    @property
    def endpoint(self) -> str:
        """The endpoint of the server, for `connect`."""
        return self._endpoint or self._line.endpoint

    def clone(self) -> TCPStore:
        """Opens a connection of its own to the same store; see `Store.clone`."""
        self.check([])  # raises if this store is closed
        line = self._line.another()
        try:
            line.connect(self._line.endpoint, ANSWER_TIMEOUT)
        except BaseException:
            line.close(CLOSE_TIMEOUT)
            raise
        return TCPStore(line, endpoint=self._endpoint)

    def close(self) -> None:
        """Ends every wait with RendezvousError and says goodbye; idempotent.

        A store that `serve` returned ends for all its clients.
        """
        self._line.close(CLOSE_TIMEOUT)
        if self._server is not None:
            self._server.close()

    def _serve(self, verb: str, request: Mapping[str, Any], timeout: float | None) -> object:
        limit = ANSWER_TIMEOUT if timeout is None else timeout
        try:
            return self._line.ask(
                f"store.{verb}",
                request,
                timeout=limit,
                forget=timeout is not None,
                takes=timeout is not None and verb == "queue_pop",
            )
        except RendezvousError:
            raise
        except TimeoutError:
            if timeout is None:
                raise RendezvousTimeoutError(
                    f"the coordinator did not answer store.{verb} within {ANSWER_TIMEOUT:g} s; "
                    "check the network between this worker and the coordinator"
                ) from None
            keys = request["keys"] if "keys" in request else [request["key"]]
            raise late_error(verb, self._unset(keys), timeout) from None

    def _unset(self, keys: Sequence[str]) -> Sequence[str]:
        """Returns those of several keys that are not set; all if they have just been set."""
        if len(keys) < 2:
            return keys
        prefix = os.path.commonprefix(list(keys))  # noqa: RUF071 - of characters
        there = set(self.list_keys(prefix))
        return [key for key in keys if key not in there] or keys


def find_endpoint(place: str) -> str:
    """Returns the endpoint of a store that is named by host and port, or by its endpoint.

    A host that other machines reach is dialled with encryption.

    >>> find_endpoint("127.0.0.1:29600"), find_endpoint("10.0.0.1:29600")
    ('grpc://127.0.0.1:29600', 'grpcs://10.0.0.1:29600')
    >>> find_endpoint("grpcs://10.0.0.1:29600")
    'grpcs://10.0.0.1:29600'

    Raises:
        ValueError: The text names no port.
        OSError: The host name is not known.
    """
    if "://" in place:
        return place
    host, port = split_advertised(place)
    if not port:
        raise ValueError(f"{place!r} names no port; write 'host:port', as in '10.0.0.1:29600'")
    scheme = "grpc" if is_loopback_address(address_of(host)) else "grpcs"
    return f"{scheme}://{place}"
