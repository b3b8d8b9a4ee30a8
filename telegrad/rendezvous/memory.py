"""A store in this process' memory; also the table that a coordinator serves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeAlias, final

from telegrad.rendezvous.store import (
    STORE_TIMEOUT,
    Store,
    addition,
    check_key,
    check_keys,
    check_prefix,
    check_timeout,
    check_value,
    closed_error,
    replacement,
    unset_error,
)

__all__ = ["MemoryStore"]

Watcher: TypeAlias = Callable[[list[bytes] | None], None]


@final
class MemoryStore(Store):
    """A thread-safe table; for a job that lives in one process, and behind every TCPStore.

    >>> store = MemoryStore()
    >>> store.set("address", b"10.0.0.1")
    >>> store.get("address", timeout=1.0)
    b'10.0.0.1'
    >>> store.add("incarnation", 1), store.add("incarnation", 1)
    (1, 2)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._table: dict[str, bytes] = {}
        self._watchers: dict[object, tuple[list[str], Watcher]] = {}
        self._closed = False

    def set(self, key: str, value: bytes) -> None:
        """Writes a value; see `Store.set`."""
        self._write(check_key(key), lambda _: check_value(value))

    def get(self, key: str, timeout: float = STORE_TIMEOUT) -> bytes:
        """Waits for a value; see `Store.get`."""
        return self._await_values([check_key(key)], timeout)[0]

    def add(self, key: str, amount: int) -> int:
        """Adds to a counter; see `Store.add`."""
        return int(self._write(check_key(key), addition(key, amount)))

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Writes if the value is the expected one; see `Store.compare_set`."""
        return self._write(check_key(key), replacement(expected, desired))

    def delete(self, key: str) -> bool:
        """Removes a key; see `Store.delete`."""
        check_key(key)
        with self._lock:
            self._check_open()
            return self._table.pop(key, None) is not None

    def wait(self, keys: Sequence[str], timeout: float = STORE_TIMEOUT) -> None:
        """Waits for keys; see `Store.wait`."""
        self._await_values(check_keys(keys), timeout)

    def num_keys(self, prefix: str = "") -> int:
        """Counts the keys; see `Store.num_keys`."""
        check_prefix(prefix)
        with self._lock:
            self._check_open()
            return sum(key.startswith(prefix) for key in self._table)

    def close(self) -> None:
        """Ends every wait with RendezvousError; idempotent."""
        with self._lock:
            self._closed = True
            orphans = [watcher for _, watcher in self._watchers.values()]
            self._watchers.clear()
        for watcher in orphans:
            watcher(None)

    def watch(self, keys: Sequence[str], watcher: Watcher) -> Callable[[], None]:
        """Calls `watcher` once, with the values, as soon as all the keys are set at once.

        It is called by the thread that sets the last of them, or at once by this one; outside of
        the lock; with None when the store is closed first.

        Returns:
            A function that takes the watcher back; harmless after it was called.
        """
        wanted, handle = check_keys(keys), object()
        with self._lock:
            closed, values = self._closed, self._values(wanted)
            if not closed and values is None:
                self._watchers[handle] = (wanted, watcher)
        if closed or values is not None:
            watcher(None if closed else values)
        return lambda: self._unwatch(handle)

    def missing(self, keys: Sequence[str]) -> list[str]:
        """Returns those of the keys that are not set."""
        with self._lock:
            return [key for key in keys if key not in self._table]

    def _write(self, key: str, change: Callable[[bytes | None], bytes | None]) -> bytes:
        """Replaces a value under the lock; tells the watchers whose keys are complete by it."""
        with self._lock:
            self._check_open()
            value = change(self._table.get(key))
            if value is None:
                return b""
            self._table[key] = value
            ready = self._take_ready(key)
        for watcher, values in ready:
            watcher(values)
        return value

    def _take_ready(self, key: str) -> list[tuple[Watcher, list[bytes]]]:
        ready = []
        for handle, (keys, watcher) in list(self._watchers.items()):
            if key in keys and (values := self._values(keys)) is not None:
                del self._watchers[handle]
                ready.append((watcher, values))
        return ready

    def _values(self, keys: Sequence[str]) -> list[bytes] | None:
        if any(key not in self._table for key in keys):
            return None
        return [self._table[key] for key in keys]

    def _unwatch(self, handle: object) -> None:
        with self._lock:
            self._watchers.pop(handle, None)

    def _await_values(self, keys: Sequence[str], timeout: float) -> list[bytes]:
        check_timeout(timeout)
        arrived = threading.Event()
        box: list[list[bytes] | None] = []

        def take(values: list[bytes] | None) -> None:
            box.append(values)
            arrived.set()

        unwatch = self.watch(keys, take)
        try:
            in_time = arrived.wait(min(timeout, threading.TIMEOUT_MAX))
        finally:
            unwatch()
        if not in_time and not box:
            raise unset_error(self.missing(keys) or list(keys), timeout)
        values = box[0]
        if values is None:
            raise closed_error("the store")
        return values

    def _check_open(self) -> None:
        if self._closed:
            raise closed_error("the store")
