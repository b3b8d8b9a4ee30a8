"""A store behind a TCP port: its clients, and a server that a program starts by itself."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import final

from telegrad.errors import DecodeError, RendezvousError, RendezvousTimeoutError
from telegrad.rendezvous import control as messages
from telegrad.rendezvous.control import ANSWER_TIMEOUT, CLOSE_TIMEOUT, ControlLine
from telegrad.rendezvous.coordinator import Coordinator
from telegrad.rendezvous.listening import choose_place
from telegrad.rendezvous.store import (
    STORE_TIMEOUT,
    Store,
    check_amount,
    check_entries,
    check_key,
    check_keys,
    check_prefix,
    check_timeout,
    check_value,
    unfilled_error,
    unset_error,
)
from telegrad.transport import (
    GrpcTransport,
    InprocNetwork,
    InprocTransport,
    LoopThread,
    Transport,
    address_of,
    find_token,
    is_loopback_address,
    split_advertised,
)

__all__ = ["TCPStore"]

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
        loop: LoopThread | None = None,
    ) -> TCPStore:
        """Starts a server in this process, which lives until the returned store is closed.

        Args:
            host: The address to listen on; `0.0.0.0` for all.
            port: The port to listen on; 0 for one that the kernel chooses.
            token: The token of all clients, 16 characters at least; None for the one that
                `rpc.init_rpc` would take (`TELEGRAD_TOKEN`, or the user's own).
            job: A name; clients that name another one are refused.
            advertise: The host that others dial, or `host:port`, if it is not `host`.
            loop: The loop thread; the process' shared one by default.

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
        server = Coordinator(transports, job=job, token=secret, loop=loop)
        try:
            endpoint, own = server.start()
            client = cls.connect(own, token=secret, job=job, transports=[inside], loop=loop)
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
        loop: LoopThread | None = None,
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
            loop: The loop thread; the process' shared one by default.

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
            loop=loop,
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

    def set(self, key: str, value: bytes) -> None:
        """Writes a value; see `Store.set`."""
        self._ask(messages.STORE_SET, {"key": check_key(key), "value": check_value(value)})

    def get(self, key: str, timeout: float = STORE_TIMEOUT) -> bytes:
        """Waits for a value; see `Store.get`."""
        wanted = check_key(key)
        return _as_bytes(self._await(messages.STORE_GET, {"key": wanted}, [wanted], timeout))

    def add(self, key: str, amount: int) -> int:
        """Adds to a counter; see `Store.add`."""
        return _as_int(
            self._ask(messages.STORE_ADD, {"key": check_key(key), "amount": check_amount(amount)})
        )

    def append(self, key: str, value: bytes) -> None:
        """Writes behind a value; see `Store.append`."""
        self._ask(messages.STORE_APPEND, {"key": check_key(key), "value": check_value(value)})

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Writes if the value is the expected one; see `Store.compare_set`."""
        body = {
            "key": check_key(key),
            "expected": check_value(expected),
            "desired": check_value(desired),
        }
        return _as_bytes(self._ask(messages.STORE_COMPARE_SET, body))

    def multi_set(self, keys: Sequence[str], values: Sequence[bytes]) -> None:
        """Writes several values at once; see `Store.multi_set`."""
        entries = check_entries(keys, values)
        self._ask(
            messages.STORE_MULTI_SET, {"keys": list(entries), "values": list(entries.values())}
        )

    def multi_get(self, keys: Sequence[str], timeout: float = STORE_TIMEOUT) -> list[bytes]:
        """Waits for several values; see `Store.multi_get`."""
        wanted = check_keys(keys)
        answer = self._await(messages.STORE_MULTI_GET, {"keys": wanted}, wanted, timeout)
        return [_as_bytes(value) for value in _as_list(answer)]

    def check(self, keys: Sequence[str]) -> bool:
        """Tells if keys are set; see `Store.check`."""
        return bool(self._ask(messages.STORE_CHECK, {"keys": check_keys(keys)}))

    def wait(self, keys: Sequence[str], timeout: float = STORE_TIMEOUT) -> None:
        """Waits for keys; see `Store.wait`."""
        wanted = check_keys(keys)
        self._await(messages.STORE_WAIT, {"keys": wanted}, wanted, timeout)

    def delete_key(self, key: str) -> bool:
        """Removes a key; see `Store.delete_key`."""
        return bool(self._ask(messages.STORE_DELETE, {"key": check_key(key)}))

    def num_keys(self, prefix: str = "") -> int:
        """Counts the keys; see `Store.num_keys`."""
        return _as_int(self._ask(messages.STORE_NUM_KEYS, {"prefix": check_prefix(prefix)}))

    def list_keys(self, prefix: str = "") -> list[str]:
        """Lists the keys; see `Store.list_keys`."""
        answer = self._ask(messages.STORE_LIST_KEYS, {"prefix": check_prefix(prefix)})
        return [str(key) for key in _as_list(answer)]

    def queue_push(self, key: str, value: bytes) -> None:
        """Puts a value at the end of a queue; see `Store.queue_push`."""
        self._ask(messages.STORE_QUEUE_PUSH, {"key": check_key(key), "value": check_value(value)})

    def queue_pop(self, key: str, block: bool = True, timeout: float = STORE_TIMEOUT) -> bytes:
        """Takes the first value of a queue; see `Store.queue_pop`."""
        body = {"key": check_key(key), "block": block}
        if not block:
            return _as_bytes(self._ask(messages.STORE_QUEUE_POP, body))
        try:
            return _as_bytes(
                self._line.take(
                    messages.STORE_QUEUE_POP, body, timeout=timeout, forget=messages.STORE_FORGET
                )
            )
        except RendezvousError:
            raise
        except TimeoutError:
            raise unfilled_error(key, timeout) from None

    def queue_len(self, key: str) -> int:
        """Counts the values of a queue; see `Store.queue_len`."""
        return _as_int(self._ask(messages.STORE_QUEUE_LEN, {"key": check_key(key)}))

    def clone(self) -> TCPStore:
        """Opens a connection of its own to the same store; see `Store.clone`."""
        self._ask(messages.STORE_CHECK, {"keys": []})  # raises if this store is closed
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

    def _await(self, kind: str, body: object, keys: Sequence[str], timeout: float) -> object:
        """Posts a request that is answered once keys are set."""
        check_timeout(timeout)
        try:
            return self._line.ask(kind, body, timeout=timeout, forget=messages.STORE_FORGET)
        except RendezvousError:
            raise
        except TimeoutError:
            raise unset_error(self._unset(keys), timeout) from None

    def _unset(self, keys: Sequence[str]) -> Sequence[str]:
        """Returns those of several keys that are not set; all if they have just been set."""
        if len(keys) < 2:
            return keys
        prefix = os.path.commonprefix(list(keys))  # noqa: RUF071 - of characters
        there = set(self.list_keys(prefix))
        return [key for key in keys if key not in there] or keys

    def _ask(self, kind: str, body: object = None) -> object:
        try:
            return self._line.ask(kind, body, timeout=ANSWER_TIMEOUT)
        except RendezvousError:
            raise
        except TimeoutError:
            raise RendezvousTimeoutError(
                f"the coordinator did not answer {kind} within {ANSWER_TIMEOUT:g} s; "
                "check the network between this worker and the coordinator"
            ) from None


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


def _as_bytes(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise DecodeError(f"the coordinator answered {type(value).__name__} instead of bytes")
    return value


def _as_int(value: object) -> int:
    if not isinstance(value, int):
        raise DecodeError(f"the coordinator answered {type(value).__name__} instead of an int")
    return value


def _as_list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise DecodeError(f"the coordinator answered {type(value).__name__} instead of a list")
    return value
