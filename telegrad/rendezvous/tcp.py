"""A client of the store that the coordinator hosts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from telegrad.errors import DecodeError, RendezvousError, RendezvousTimeoutError
from telegrad.rendezvous.control import (
    CLOSE_TIMEOUT,
    STORE_ADD,
    STORE_COMPARE_SET,
    STORE_DELETE,
    STORE_FORGET,
    STORE_GET,
    STORE_NUM_KEYS,
    STORE_SET,
    STORE_WAIT,
    ControlLine,
)
from telegrad.rendezvous.store import (
    STORE_TIMEOUT,
    Store,
    check_amount,
    check_key,
    check_keys,
    check_prefix,
    check_timeout,
    check_value,
    unset_error,
)
from telegrad.transport import LoopThread, Transport

__all__ = ["TCPStore"]

# Seconds for an operation that waits for no key: a round trip, or the loss of the coordinator.
ANSWER_TIMEOUT = 60.0


@final
class TCPStore(Store):
    """A client of the store that a Coordinator serves.

    Args:
        line: A connected line to the coordinator; `TCPStore.connect` makes one.

    Example:
        >>> from contextlib import closing
        >>> from telegrad.rendezvous import Coordinator
        >>> from telegrad.transport import GrpcTransport
        >>> token, transports = b"the token of this job", [GrpcTransport()]
        >>> with closing(Coordinator(transports, job="job", token=token)) as coordinator:
        ...     (endpoint,) = coordinator.start()
        ...     store = TCPStore.connect(endpoint, job="job", token=token, transports=transports)
        ...     with closing(store):
        ...         store.set("address", b"10.0.0.1")
        ...         store.get("address", timeout=10.0)
        b'10.0.0.1'
    """

    def __init__(self, line: ControlLine) -> None:
        self._line = line

    @classmethod
    def connect(
        cls,
        endpoint: str,
        *,
        job: str,
        token: bytes | None,
        transports: Sequence[Transport],
        rank: int = 0,
        name: str = "",
        timeout: float = STORE_TIMEOUT,
        loop: LoopThread | None = None,
    ) -> TCPStore:
        """Opens a line of its own to a coordinator that listens already.

        Args:
            endpoint: The coordinator's endpoint.
            job: The job's name.
            token: The job's token; None only when insecure.
            transports: The transports that reach it.
            rank: The client's rank, for the coordinator's log.
            name: The worker's name that the transports' certificate proves, if they have one.
            timeout: Seconds for everything.
            loop: The loop thread; the process' shared one by default.

        Raises:
            ConnectionError: Nobody answers at the endpoint.
            AuthenticationError: One side does not hold the other's token.
            RendezvousError: The peer belongs to another job.
        """
        line = ControlLine(
            job=job, rank=rank, token=token, transports=transports, owner=name, loop=loop
        )
        try:
            line.connect(endpoint, timeout)
        except BaseException:
            line.close(CLOSE_TIMEOUT)
            raise
        return cls(line)

    def set(self, key: str, value: bytes) -> None:
        """Writes a value; see `Store.set`."""
        self._ask(STORE_SET, {"key": check_key(key), "value": check_value(value)})

    def get(self, key: str, timeout: float = STORE_TIMEOUT) -> bytes:
        """Waits for a value; see `Store.get`."""
        try:
            value = self._line.ask(
                STORE_GET,
                {"key": check_key(key)},
                timeout=check_timeout(timeout),
                forget=STORE_FORGET,
            )
        except TimeoutError:
            raise unset_error([key], timeout) from None
        return _as_bytes(value)

    def add(self, key: str, amount: int) -> int:
        """Adds to a counter; see `Store.add`."""
        return _as_int(
            self._ask(STORE_ADD, {"key": check_key(key), "amount": check_amount(amount)})
        )

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Writes if the value is the expected one; see `Store.compare_set`."""
        body = {
            "key": check_key(key),
            "expected": check_value(expected),
            "desired": check_value(desired),
        }
        return _as_bytes(self._ask(STORE_COMPARE_SET, body))

    def delete(self, key: str) -> bool:
        """Removes a key; see `Store.delete`."""
        return bool(self._ask(STORE_DELETE, {"key": check_key(key)}))

    def wait(self, keys: Sequence[str], timeout: float = STORE_TIMEOUT) -> None:
        """Waits for keys; see `Store.wait`."""
        wanted = check_keys(keys)
        try:
            self._line.ask(
                STORE_WAIT, {"keys": wanted}, timeout=check_timeout(timeout), forget=STORE_FORGET
            )
        except TimeoutError:
            raise unset_error(wanted, timeout) from None

    def num_keys(self, prefix: str = "") -> int:
        """Counts the keys; see `Store.num_keys`."""
        return _as_int(self._ask(STORE_NUM_KEYS, {"prefix": check_prefix(prefix)}))

    def close(self) -> None:
        """Ends every wait with RendezvousError and says goodbye; idempotent."""
        self._line.close(CLOSE_TIMEOUT)

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


def _as_bytes(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise DecodeError(f"the coordinator answered {type(value).__name__} instead of bytes")
    return value


def _as_int(value: object) -> int:
    if not isinstance(value, int):
        raise DecodeError(f"the coordinator answered {type(value).__name__} instead of an int")
    return value
