"""The interface of a store, a small table of bytes shared by a job's workers; and prefixes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Self, TypeVar, final

from telegrad.errors import DecodeError, QueueEmptyError, RendezvousError, RendezvousTimeoutError

T = TypeVar("T")


STORE_TIMEOUT = 300.0  # as long as a job may take to assemble (RpcOptions.init_timeout)
MOST_KEY = 1000  # characters; for waiting clients, keys that nobody has set are kept as well


class Store(ABC):
    """Keys and values, and queues, for a few small things: addresses, counters, names, tasks.

    All methods may be called from any thread and block until the answer is there. Each is atomic.
    A wait ends at its deadline at the latest; `queue_pop` may take one more round trip. The store
    of a job raises EvictedError at a worker that the coordinator has given up.

    Values and queues are apart: a value and a queue may have the same key, and only the methods
    that begin with `queue` see a queue. A queue whose last value was taken is gone.

    Every method raises RendezvousError if the store is closed or its host is lost, and those that
    write also if the store is full.

    Example:
        >>> from telegrad.rendezvous import MemoryStore
        >>> store: Store = MemoryStore()
        >>> store.set("address", b"10.0.0.1")
        >>> store.get("address", timeout=1.0), store.add("workers", 1)
        (b'10.0.0.1', 1)
        >>> store.queue_push("tasks", b"first")
        >>> store.queue_pop("tasks")
        b'first'
    """

    def set(self, key: str, value: bytes) -> None:
        """Writes a value; waits for the key end.

        Raises:
            RendezvousError: The store is closed, it is full, or its host is lost.
        """
        self._ask(object, "set", key=key, value=value)

    def get(self, key: str, timeout: float = STORE_TIMEOUT) -> bytes:
        """Returns the value of a key, waiting until it is set.

        Args:
            key: The key.
            timeout: Seconds to wait at most, above 0; `math.inf` waits without a limit.

        Raises:
            RendezvousTimeoutError: The key was not set in time.
            RendezvousError: The store is closed or its host is lost.
        """
        return self._ask(bytes, "get", timeout, key=key)

    def add(self, key: str, amount: int) -> int:
        """Adds to a counter, which begins at 0, and returns its new value.

        The value is kept as decimal digits, so `get` reads it too.

        Raises:
            ValueError: The key holds something other than a number.
            RendezvousError: The store is closed, it is full, or its host is lost.
        """
        return self._ask(int, "add", key=key, amount=amount)

    def append(self, key: str, value: bytes) -> None:
        """Writes a value behind the one that the key holds; an absent key holds `b""`.

        Raises:
            RendezvousError: The store is closed, it is full, or its host is lost.
        """
        self._ask(object, "append", key=key, value=value)

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Writes `desired` if the key holds `expected`; returns the value that it holds afterwards.

        An absent key counts as holding `b""`.

        Raises:
            RendezvousError: The store is closed, it is full, or its host is lost.
        """
        return self._ask(bytes, "compare_set", key=key, expected=expected, desired=desired)

    def multi_set(self, keys: Sequence[str], values: Sequence[bytes]) -> None:
        """Writes a value for each key, all at once: no reader sees only some of them.

        Raises:
            ValueError: There are more keys than values, or fewer.
            RendezvousError: The store is closed, it is full, or its host is lost. Nothing is
                written.
        """
        self._ask(object, "multi_set", keys=keys, values=values)

    def multi_get(self, keys: Sequence[str], timeout: float = STORE_TIMEOUT) -> list[bytes]:
        """Returns the values of all the keys at one moment, waiting until all are set at once.

        Args:
            keys: The keys; a key may be named twice.
            timeout: Seconds to wait at most, above 0; `math.inf` waits without a limit.

        Raises:
            RendezvousTimeoutError: Some were not set in time.
            RendezvousError: The store is closed or its host is lost; or the values are too large
                for one message.
        """
        answer = self._ask(list, "multi_get", timeout, keys=keys)
        return [_read(bytes, each) for each in answer]

    def check(self, keys: Sequence[str]) -> bool:
        """Returns True if all the keys are set now, and for no keys; never waits.

        Raises:
            RendezvousError: The store is closed or its host is lost.
        """
        return self._ask(bool, "check", keys=keys)

    def wait(self, keys: Sequence[str], timeout: float = STORE_TIMEOUT) -> None:
        """Waits until all the keys are set at once.

        Raises:
            RendezvousTimeoutError: Some were not set in time.
            RendezvousError: The store is closed or its host is lost.
        """
        self._ask(object, "wait", timeout, keys=keys)

    def delete_key(self, key: str) -> bool:
        """Removes a key and its value; returns True if it was there.

        Raises:
            RendezvousError: The store is closed or its host is lost.
        """
        return self._ask(bool, "delete", key=key)

    def num_keys(self, prefix: str = "") -> int:
        """Returns the number of keys that begin with `prefix`.

        Raises:
            RendezvousError: The store is closed or its host is lost.
        """
        return self._ask(int, "num_keys", prefix=prefix)

    def list_keys(self, prefix: str = "") -> list[str]:
        """Returns the keys that begin with `prefix`, sorted.

        Raises:
            RendezvousError: The store is closed or its host is lost; or the keys are too many for
                one message.
        """
        return [_read(str, each) for each in self._ask(list, "list_keys", prefix=prefix)]

    def queue_push(self, key: str, value: bytes) -> None:
        """Puts a value at the end of a queue; never waits.

        Raises:
            RendezvousError: The store is closed, it is full, or its host is lost.
        """
        self._ask(object, "queue_push", key=key, value=value)

    def queue_pop(self, key: str, block: bool = True, timeout: float = STORE_TIMEOUT) -> bytes:
        """Takes the first value of a queue, waiting for one if it is empty.

        Each value goes to one caller. It is lost only with that caller: a wait that ends at its
        deadline takes nothing.

        Args:
            key: The queue's key.
            block: False to raise at once if the queue is empty.
            timeout: Seconds to wait at most, above 0; `math.inf` waits without a limit.

        Raises:
            QueueEmptyError: The queue is empty, and `block` is False.
            RendezvousTimeoutError: No value came in time.
            RendezvousError: The store is closed or its host is lost.
        """
        limit = timeout if block else None
        return self._ask(bytes, "queue_pop", limit, key=key, block=bool(block))

    def queue_len(self, key: str) -> int:
        """Returns the number of values in a queue.

        Raises:
            RendezvousError: The store is closed or its host is lost.
        """
        return self._ask(int, "queue_len", key=key)

    @abstractmethod
    def clone(self) -> Store:
        """Returns another handle of the same keys and queues; closing one leaves the other open.

        Raises:
            RendezvousError: The store is closed or its host is lost.
        """

    @abstractmethod
    def close(self) -> None:
        """Ends every wait in it with RendezvousError; idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, kind: type[T], verb: str, timeout: float | None = None, **fields: object) -> T:
        """Checks the arguments of a verb, and returns the answer, which must be of this kind."""
        if timeout is not None:
            check_timeout(timeout)
        request = {name: _CHECKS[name](value) for name, value in fields.items()}
        return _read(kind, self._serve(verb, request, timeout))

    @abstractmethod
    def _serve(self, verb: str, request: Mapping[str, Any], timeout: float | None) -> object:
        """Returns the answer to a request; with a timeout, it waits until there is one."""


def check_key(key: object) -> str:
    """Returns a key; raises TypeError or ValueError with the reason if it is invalid."""
    if not isinstance(key, str):
        raise TypeError(f"a store key must be a str (got {type(key).__name__})")
    if not key:
        raise ValueError("a store key must not be empty")
    if len(key) > MOST_KEY:
        raise ValueError(
            f"a store key may have {MOST_KEY} characters (got {len(key)}: {key[:20]!r}...); put "
            "what is long into the value"
        )
    return key


def check_keys(keys: Sequence[str]) -> list[str]:
    """Returns keys as a list; a single str is refused, since it is a sequence too."""
    if isinstance(keys, str) or not isinstance(keys, Iterable):
        raise TypeError(f"keys must be a list of str (got {keys!r:.60}); write [{keys!r:.60}]")
    return [check_key(key) for key in keys]


def check_prefix(prefix: object) -> str:
    """Returns a prefix of keys, "" for any; raises TypeError with the reason if it is no str."""
    if not isinstance(prefix, str):
        raise TypeError(f"a store prefix must be a str (got {type(prefix).__name__})")
    return prefix


def check_value(value: object) -> bytes:
    """Returns a value as bytes; raises TypeError with the reason if it has another type."""
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(
            f"a store value must be bytes (got {type(value).__name__}); encode it first"
        )
    return bytes(value)


def check_values(values: Sequence[bytes]) -> list[bytes]:
    """Returns values as a list of bytes."""
    if isinstance(values, bytes | bytearray | memoryview | str):
        raise TypeError(f"values must be a list of bytes (got {type(values).__name__})")
    return [check_value(value) for value in values]


def check_amount(amount: object) -> int:
    """Returns the amount to add; raises TypeError with the reason if it is no int."""
    if not isinstance(amount, int) or isinstance(amount, bool):
        raise TypeError(f"add takes an int (got {type(amount).__name__})")
    return amount


def check_timeout(timeout: float) -> float:
    """Returns a timeout in seconds; raises TypeError for no number, ValueError for 0 and less."""
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(
            f"timeout must be seconds, not {timeout!r}; of a timedelta write .total_seconds()"
        )
    if math.isnan(timeout) or timeout <= 0:
        raise ValueError(
            f"timeout must be above 0 seconds (got {timeout}); write math.inf to wait without a "
            "limit"
        )
    return timeout


def closed_error(where: str) -> RendezvousError:
    """Returns the error of every operation on a closed store."""
    return RendezvousError(f"{where} is closed; nothing can be read or written any more")


def _read(kind: type[T], answer: object) -> T:
    if not isinstance(answer, kind):
        raise DecodeError(f"the store answered {type(answer).__name__} instead of {kind.__name__}")
    return answer


# -- requests: a verb of a store and its arguments, as a store in another process gets them ------

# The arguments of each verb.
FIELDS: Final[Mapping[str, Sequence[str]]] = {
    "set": ["key", "value"],
    "get": ["key"],
    "add": ["key", "amount"],
    "append": ["key", "value"],
    "compare_set": ["key", "expected", "desired"],
    "multi_set": ["keys", "values"],
    "multi_get": ["keys"],
    "check": ["keys"],
    "wait": ["keys"],
    "delete": ["key"],
    "num_keys": ["prefix"],
    "list_keys": ["prefix"],
    "queue_push": ["key", "value"],
    "queue_pop": ["key", "block"],
    "queue_len": ["key"],
}
WAITS: Final = frozenset({"get", "multi_get", "wait", "queue_pop"})
_CHECKS: Final[Mapping[str, Callable[[Any], object]]] = {
    "key": check_key,
    "keys": check_keys,
    "prefix": check_prefix,
    "value": check_value,
    "values": check_values,
    "expected": check_value,
    "desired": check_value,
    "amount": check_amount,
    "block": lambda block: block is not False,
}


def read_request(verb: str, sent: Mapping[str, object]) -> dict[str, Any]:
    """Returns the arguments that another process sent; TypeError or ValueError for invalid ones."""
    found = {"prefix": "", **sent}
    return {name: _CHECKS[name](found.get(name)) for name in FIELDS[verb]}


class StoreTable(ABC):
    """The values and queues that a store holds; changed by one thread at a time.

    Attributes:
        values: The value of each key.
        queues: The values of each queue that is not empty.
    """

    values: dict[str, bytes]
    queues: dict[str, deque[bytes]]

    @abstractmethod
    def write(self, entries: Mapping[str, bytes]) -> None:
        """Writes values, all or none."""

    @abstractmethod
    def extend(self, key: str, tail: bytes) -> None:
        """Writes a value behind the one that a key holds."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Removes a key, which is there."""

    @abstractmethod
    def push(self, key: str, value: bytes) -> None:
        """Puts a value at the end of a queue."""

    @abstractmethod
    def pop(self, key: str) -> bytes:
        """Takes the first value of a queue, which is not empty."""


def missing_in(table: StoreTable, verb: str, request: Mapping[str, Any]) -> list[str]:
    """Returns the keys for which a request that waits still has to wait."""
    if verb == "queue_pop":
        return [] if request["key"] in table.queues else [request["key"]]
    keys = request["keys"] if "keys" in request else [request["key"]]
    return [key for key in keys if key not in table.values]


def serve_request(table: StoreTable, verb: str, request: Mapping[str, Any]) -> object:
    """Does what a request asks for; one that waits finds its keys set, but for `queue_pop`.

    Raises:
        QueueEmptyError: The queue is empty.
        ValueError: The values are not as many as the keys, or a counter is no number.
        RendezvousError: The table is full.
    """
    values, key = table.values, request.get("key", "")
    match verb:
        case "set":
            table.write({key: request["value"]})
        case "multi_set":
            table.write(_entries(request["keys"], request["values"]))
        case "get":
            return values[key]
        case "multi_get":
            return [values[each] for each in request["keys"]]
        case "add":
            count = _number(key, values.get(key)) + request["amount"]
            table.write({key: b"%d" % count})
            return count
        case "append":
            table.extend(key, request["value"])
        case "compare_set":
            if values.get(key, b"") == request["expected"]:
                table.write({key: request["desired"]})
            return values.get(key, b"")
        case "check":
            return not missing_in(table, verb, request)
        case "delete":
            there = key in values
            if there:
                table.delete(key)
            return there
        case "num_keys":
            prefix = request["prefix"]  # each worker that joins asks without one
            return sum(each.startswith(prefix) for each in values) if prefix else len(values)
        case "list_keys":
            return sorted(each for each in values if each.startswith(request["prefix"]))
        case "queue_push":
            table.push(key, request["value"])
        case "queue_pop":
            if key not in table.queues:
                raise QueueEmptyError(
                    f"the queue {key!r} is empty; push a value, or wait for one with block=True"
                )
            return table.pop(key)
        case "queue_len":
            return len(table.queues.get(key, ()))
    return None


def _entries(keys: Sequence[str], values: Sequence[bytes]) -> dict[str, bytes]:
    """Returns what `Store.multi_set` writes; of a key that is named twice, the last value."""
    if len(keys) != len(values):
        raise ValueError(
            f"multi_set takes one value for each key (keys: {len(keys)}, values: {len(values)})"
        )
    return dict(zip(keys, values, strict=True))


def _number(key: str, held: bytes | None) -> int:
    try:
        return int(held or b"0")
    except ValueError:
        raise ValueError(
            f"the store key {key!r} holds no number (it holds {held!r:.60}); count under another "
            "key"
        ) from None


def late_error(verb: str, missing: Sequence[str], timeout: float) -> RendezvousTimeoutError:
    """Returns the error of a wait that reached its deadline."""
    named = ", ".join(repr(key) for key in missing[:8])
    if len(missing) > 8:
        named += f" and {len(missing) - 8} more"
    words = (
        f"the store keys {named} were not all set within {timeout:g} s; check that the workers "
        "that set them run, or wait longer with timeout="
    )
    if verb == "queue_pop":
        words = (
            f"no value came into the queue {named} within {timeout:g} s; check that the worker "
            "that pushes them runs, or wait longer with timeout="
        )
    elif len(missing) == 1:
        words = (
            f"the store key {named} was not set within {timeout:g} s; check that the worker that "
            "sets it runs, or wait longer with timeout="
        )
    return RendezvousTimeoutError(words, missing=missing)


# -- a store in a store: keys with a prefix, so that several users do not collide ----------------


@final
class PrefixStore(Store):
    """A view of the keys of another store that begin with `prefix/`, without that prefix.

    Errors name the full keys. Closing this store closes the other one.

    Args:
        prefix: The text before each key.
        store: The store that holds the values.

    Raises:
        ValueError: The prefix is empty.

    Example:
        >>> from telegrad.rendezvous import MemoryStore
        >>> store = MemoryStore()
        >>> PrefixStore("group1", store).set("address", b"10.0.0.1")
        >>> store.get("group1/address", timeout=1.0)
        b'10.0.0.1'
    """

    def __init__(self, prefix: str, store: Store) -> None:
        if not check_prefix(prefix):
            raise ValueError("a store prefix must not be empty; use the store itself")
        if not isinstance(store, Store):
            raise TypeError(f"store must be a Store (got {type(store).__name__})")
        self._prefix = f"{prefix}/"
        self._store = store

    def clone(self) -> PrefixStore:
        """Returns the same prefix of a clone of the store underneath; see `Store.clone`."""
        return PrefixStore(self._prefix[:-1], self._store.clone())

    def close(self) -> None:
        """Closes the store underneath; idempotent."""
        self._store.close()

    def _serve(self, verb: str, request: Mapping[str, Any], timeout: float | None) -> object:
        full = dict(request)
        for name in {"key", "prefix"} & full.keys():
            full[name] = self._prefix + full[name]
        if "keys" in full:
            full["keys"] = [self._prefix + key for key in full["keys"]]
        answer = self._store._ask(object, verb, timeout, **full)
        if verb == "list_keys" and isinstance(answer, list):
            return [key.removeprefix(self._prefix) for key in answer]
        return answer
