"""The interface of a store, a small table of bytes shared by a job's workers; and prefixes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Self, final

from telegrad.errors import QueueEmptyError, RendezvousError, RendezvousTimeoutError

__all__ = [
    "MOST_KEY",
    "STORE_TIMEOUT",
    "PrefixStore",
    "Store",
]


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

    @abstractmethod
    def set(self, key: str, value: bytes) -> None:
        """Writes a value; waits for the key end.

        Raises:
            RendezvousError: The store is closed, it is full, or its host is lost.
        """

    @abstractmethod
    def get(self, key: str, timeout: float = STORE_TIMEOUT) -> bytes:
        """Returns the value of a key, waiting until it is set.

        Args:
            key: The key.
            timeout: Seconds to wait at most, above 0; `math.inf` waits without a limit.

        Raises:
            RendezvousTimeoutError: The key was not set in time.
            RendezvousError: The store is closed or its host is lost.
        """

    @abstractmethod
    def add(self, key: str, amount: int) -> int:
        """Adds to a counter, which begins at 0, and returns its new value.

        The value is kept as decimal digits, so `get` reads it too.

        Raises:
            ValueError: The key holds something other than a number.
            RendezvousError: The store is closed, it is full, or its host is lost.
        """

    @abstractmethod
    def append(self, key: str, value: bytes) -> None:
        """Writes a value behind the one that the key holds; an absent key holds `b""`.

        Raises:
            RendezvousError: The store is closed, it is full, or its host is lost.
        """

    @abstractmethod
    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Writes `desired` if the key holds `expected`; returns the value that it holds afterwards.

        An absent key counts as holding `b""`.

        Raises:
            RendezvousError: The store is closed, it is full, or its host is lost.
        """

    @abstractmethod
    def multi_set(self, keys: Sequence[str], values: Sequence[bytes]) -> None:
        """Writes a value for each key, all at once: no reader sees only some of them.

        Raises:
            ValueError: There are more keys than values, or fewer.
            RendezvousError: The store is closed, it is full, or its host is lost. Nothing is
                written.
        """

    @abstractmethod
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

    @abstractmethod
    def check(self, keys: Sequence[str]) -> bool:
        """Returns True if all the keys are set now, and for no keys; never waits.

        Raises:
            RendezvousError: The store is closed or its host is lost.
        """

    @abstractmethod
    def wait(self, keys: Sequence[str], timeout: float = STORE_TIMEOUT) -> None:
        """Waits until all the keys are set at once.

        Raises:
            RendezvousTimeoutError: Some were not set in time.
            RendezvousError: The store is closed or its host is lost.
        """

    @abstractmethod
    def delete_key(self, key: str) -> bool:
        """Removes a key and its value; returns True if it was there.

        Raises:
            RendezvousError: The store is closed or its host is lost.
        """

    @abstractmethod
    def num_keys(self, prefix: str = "") -> int:
        """Returns the number of keys that begin with `prefix`.

        Raises:
            RendezvousError: The store is closed or its host is lost.
        """

    @abstractmethod
    def list_keys(self, prefix: str = "") -> list[str]:
        """Returns the keys that begin with `prefix`, sorted.

        Raises:
            RendezvousError: The store is closed or its host is lost; or the keys are too many for
                one message.
        """

    @abstractmethod
    def queue_push(self, key: str, value: bytes) -> None:
        """Puts a value at the end of a queue; never waits.

        Raises:
            RendezvousError: The store is closed, it is full, or its host is lost.
        """

    @abstractmethod
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

    @abstractmethod
    def queue_len(self, key: str) -> int:
        """Returns the number of values in a queue.

        Raises:
            RendezvousError: The store is closed or its host is lost.
        """

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
    if isinstance(keys, str):
        raise TypeError(f"keys must be a list of str (got {keys!r}); write [{keys!r}]")
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


def check_entries(keys: Sequence[str], values: Sequence[bytes]) -> dict[str, bytes]:
    """Returns what `Store.multi_set` writes; of a key that is named twice, the last value."""
    names = check_keys(keys)
    if isinstance(values, bytes | bytearray | memoryview | str):
        raise TypeError(f"values must be a list of bytes (got {type(values).__name__})")
    contents = [check_value(value) for value in values]
    if len(names) != len(contents):
        raise ValueError(
            f"multi_set takes one value for each key (keys: {len(names)}, values: {len(contents)})"
        )
    return dict(zip(names, contents, strict=True))


def check_amount(amount: object) -> int:
    """Returns the amount to add; raises TypeError with the reason if it is no int."""
    if not isinstance(amount, int) or isinstance(amount, bool):
        raise TypeError(f"add takes an int (got {type(amount).__name__})")
    return amount


def addition(key: str, amount: int) -> Callable[[bytes | None], bytes]:
    """Returns a function that computes `Store.add` of a held value; ValueError for no number."""
    check_amount(amount)

    def added(held: bytes | None) -> bytes:
        try:
            return b"%d" % (int(held or b"0") + amount)
        except ValueError:
            raise not_a_number(key, held) from None

    return added


def replacement(expected: bytes, desired: bytes) -> Callable[[bytes | None], bytes | None]:
    """Returns a function that computes `Store.compare_set` of a held value."""
    before, after = check_value(expected), check_value(desired)

    def chosen(held: bytes | None) -> bytes | None:
        return after if (held or b"") == before else held

    return chosen


def extension(value: bytes) -> Callable[[bytes | None], bytes]:
    """Returns a function that computes `Store.append` of a held value."""
    tail = check_value(value)
    return lambda held: (held or b"") + tail


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


def unset_error(keys: Sequence[str], timeout: float) -> RendezvousTimeoutError:
    """Returns the error of a wait that reached its deadline."""
    named = ", ".join(repr(key) for key in keys[:8])
    if len(keys) > 8:
        named += f" and {len(keys) - 8} more"
    return RendezvousTimeoutError(
        f"the store key {named} was not set within {timeout:g} s; check that the worker that "
        "sets it runs, or wait longer with timeout="
        if len(keys) == 1
        else f"the store keys {named} were not all set within {timeout:g} s; check that the "
        "workers that set them run, or wait longer with timeout=",
        missing=keys,
    )


def empty_error(key: str) -> QueueEmptyError:
    """Returns the error of `Store.queue_pop` for a queue without values."""
    return QueueEmptyError(
        f"the queue {key!r} is empty; push a value, or wait for one with block=True"
    )


def unfilled_error(key: str, timeout: float) -> RendezvousTimeoutError:
    """Returns the error of a `Store.queue_pop` that reached its deadline."""
    return RendezvousTimeoutError(
        f"no value came into the queue {key!r} within {timeout:g} s; check that the worker that "
        "pushes them runs, or wait longer with timeout=",
        missing=[key],
    )


def not_a_number(key: str, held: bytes | None) -> ValueError:
    """Returns the error of `add` for a key that holds something other than a number."""
    return ValueError(
        f"the store key {key!r} holds no number (it holds {held!r:.60}); count under another key"
    )


def closed_error(where: str) -> RendezvousError:
    """Returns the error of every operation on a closed store."""
    return RendezvousError(f"{where} is closed; nothing can be read or written any more")


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

    def set(self, key: str, value: bytes) -> None:
        """Writes a value; see `Store.set`."""
        self._store.set(self._full(key), value)

    def get(self, key: str, timeout: float = STORE_TIMEOUT) -> bytes:
        """Waits for a value; see `Store.get`."""
        return self._store.get(self._full(key), timeout)

    def add(self, key: str, amount: int) -> int:
        """Adds to a counter; see `Store.add`."""
        return self._store.add(self._full(key), amount)

    def append(self, key: str, value: bytes) -> None:
        """Writes behind a value; see `Store.append`."""
        self._store.append(self._full(key), value)

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Writes if the value is the expected one; see `Store.compare_set`."""
        return self._store.compare_set(self._full(key), expected, desired)

    def multi_set(self, keys: Sequence[str], values: Sequence[bytes]) -> None:
        """Writes several values at once; see `Store.multi_set`."""
        self._store.multi_set(self._all_full(keys), values)

    def multi_get(self, keys: Sequence[str], timeout: float = STORE_TIMEOUT) -> list[bytes]:
        """Waits for several values; see `Store.multi_get`."""
        return self._store.multi_get(self._all_full(keys), timeout)

    def check(self, keys: Sequence[str]) -> bool:
        """Tells if keys are set; see `Store.check`."""
        return self._store.check(self._all_full(keys))

    def wait(self, keys: Sequence[str], timeout: float = STORE_TIMEOUT) -> None:
        """Waits for keys; see `Store.wait`."""
        self._store.wait(self._all_full(keys), timeout)

    def delete_key(self, key: str) -> bool:
        """Removes a key; see `Store.delete_key`."""
        return self._store.delete_key(self._full(key))

    def num_keys(self, prefix: str = "") -> int:
        """Counts only the keys of this prefix; see `Store.num_keys`."""
        return self._store.num_keys(self._prefix + check_prefix(prefix))

    def list_keys(self, prefix: str = "") -> list[str]:
        """Lists only the keys of this prefix, without it; see `Store.list_keys`."""
        found = self._store.list_keys(self._prefix + check_prefix(prefix))
        return [key.removeprefix(self._prefix) for key in found]

    def queue_push(self, key: str, value: bytes) -> None:
        """Puts a value at the end of a queue; see `Store.queue_push`."""
        self._store.queue_push(self._full(key), value)

    def queue_pop(self, key: str, block: bool = True, timeout: float = STORE_TIMEOUT) -> bytes:
        """Takes the first value of a queue; see `Store.queue_pop`."""
        return self._store.queue_pop(self._full(key), block, timeout)

    def queue_len(self, key: str) -> int:
        """Counts the values of a queue; see `Store.queue_len`."""
        return self._store.queue_len(self._full(key))

    def clone(self) -> PrefixStore:
        """Returns the same prefix of a clone of the store underneath; see `Store.clone`."""
        return PrefixStore(self._prefix[:-1], self._store.clone())

    def close(self) -> None:
        """Closes the store underneath; idempotent."""
        self._store.close()

    def _full(self, key: str) -> str:
        return self._prefix + check_key(key)

    def _all_full(self, keys: Sequence[str]) -> list[str]:
        return [self._prefix + key for key in check_keys(keys)]
