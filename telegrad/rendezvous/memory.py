"""A store in this process' memory, also behind a coordinator's store; and its waiting clients."""

from __future__ import annotations

import sys
import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias, final

from telegrad.errors import RendezvousError
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
from telegrad.types import WorkerInfo

__all__ = [
    "MOST_WAITED",
    "MemoryStore",
    "StoreWaits",
]


Watcher: TypeAlias = Callable[[list[bytes] | None], None]

ENTRY_BYTES = 100  # for a place in the dict, and in the list
COUNTER_BYTES = 24  # of a number that `add` counts up


@final
class MemoryStore(Store):
    """A thread-safe table; for a job that lives in one process, and behind every TCPStore.

    >>> store = MemoryStore()
    >>> store.set("address", b"10.0.0.1")
    >>> store.get("address", timeout=1.0)
    b'10.0.0.1'
    >>> store.add("incarnation", 1), store.add("incarnation", 1)
    (1, 2)

    Args:
        most_bytes: The most bytes of memory for its keys and values, roughly; None for no limit.
    """

    def __init__(self, most_bytes: int | None = None) -> None:
        self._lock = threading.Lock()  # guards the table and the watchers
        self._table: dict[str, bytes] = {}
        self._keys: list[str] = []  # sorted, so that those with a prefix are counted quickly
        self._bytes = 0
        self._most_bytes = most_bytes
        # Each watcher stands under one key that is not set, so a write looks only at its own key's.
        self._watchers: dict[str, dict[object, tuple[list[str], Watcher]]] = {}
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
            value = self._table.pop(key, None)
            if value is not None:
                self._bytes -= _cost(key, value)
                del self._keys[bisect_left(self._keys, key)]
            return value is not None

    def wait(self, keys: Sequence[str], timeout: float = STORE_TIMEOUT) -> None:
        """Waits for keys; see `Store.wait`."""
        self._await_values(check_keys(keys), timeout)

    def num_keys(self, prefix: str = "") -> int:
        """Counts the keys; see `Store.num_keys`."""
        size = len(check_prefix(prefix))
        with self._lock:
            self._check_open()
            first = bisect_left(self._keys, prefix)
            return bisect_right(self._keys, prefix, first, key=lambda key: key[:size]) - first

    def close(self) -> None:
        """Ends every wait with RendezvousError; idempotent."""
        with self._lock:
            self._closed = True
            orphans = [watcher for each in self._watchers.values() for _, watcher in each.values()]
            self._watchers.clear()
        for watcher in orphans:
            watcher(None)

    def watch(self, keys: Sequence[str], watcher: Watcher) -> Callable[[], None]:
        """Calls `watcher` once, with the values, as soon as all the keys are set at once.

        The thread that sets the last key calls it, or this thread at once; without holding the
        lock. It is called with None if the store is closed first.

        Returns:
            A function that removes the watcher; harmless after the watcher was called.
        """
        wanted, handle = check_keys(keys), object()
        with self._lock:
            closed, values = self._closed, self._values(wanted)
            if not closed and values is None:
                self._keep(handle, wanted, watcher)
        if closed or values is not None:
            watcher(None if closed else values)
        return lambda: self._unwatch(handle, wanted)

    def missing(self, keys: Sequence[str]) -> list[str]:
        """Returns the keys that are not set."""
        with self._lock:
            return [key for key in keys if key not in self._table]

    def _write(self, key: str, change: Callable[[bytes | None], bytes | None]) -> bytes:
        """Replaces a value under the lock; calls the watchers whose keys are then complete."""
        with self._lock:
            self._check_open()
            held = self._table.get(key)
            value = change(held)
            if value is None:
                return b""
            self._count(key, held, value)
            if held is None:
                insort(self._keys, key)
            self._table[key] = value
            ready = self._take_ready(key)
        for watcher, values in ready:
            watcher(values)
        return value

    def _take_ready(self, key: str) -> list[tuple[Watcher, list[bytes]]]:
        ready = []
        for handle, (keys, watcher) in self._watchers.pop(key, {}).items():
            values = self._values(keys)
            if values is None:
                self._keep(handle, keys, watcher)
            else:
                ready.append((watcher, values))
        return ready

    def _keep(self, handle: object, keys: list[str], watcher: Watcher) -> None:
        missing = next(key for key in keys if key not in self._table)
        self._watchers.setdefault(missing, {})[handle] = (keys, watcher)

    def _count(self, key: str, held: bytes | None, value: bytes) -> None:
        after = self._bytes + _cost(key, value) - (0 if held is None else _cost(key, held))
        # An existing counter may always be counted up: joins draw their incarnations from one.
        counts = held is not None and len(value) <= COUNTER_BYTES
        if (
            self._most_bytes is not None
            and after > max(self._most_bytes, self._bytes)
            and not counts
        ):
            raise RendezvousError(
                f"the store is full: with {key[:60]!r} it would hold {after} bytes of keys and "
                f"values, and takes {self._most_bytes}; delete keys, send what is large by calls, or "
                "raise Limits.document_bytes where it is hosted (telegrad run: --limit "
                "document_bytes=...)"
            )
        self._bytes = after

    def _values(self, keys: Sequence[str]) -> list[bytes] | None:
        if any(key not in self._table for key in keys):
            return None
        return [self._table[key] for key in keys]

    def _unwatch(self, handle: object, keys: Sequence[str]) -> None:
        with self._lock:
            for key in keys:
                under = self._watchers.get(key, {})
                if under.pop(handle, None) is not None and not under:
                    del self._watchers[key]

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


def _cost(key: str, value: bytes) -> int:
    return sys.getsizeof(key) + sys.getsizeof(value) + ENTRY_BYTES


# -- waits of clients for keys of a coordinator's store ------------------------------------------

Answer: TypeAlias = Callable[[WorkerInfo, int, object], None]

# A wait takes about a kilobyte. A client waits once in each of its threads, at most for one key of
# every worker, and there may be that many workers.
MOST_WAITED: Final = 10_000


@dataclass(slots=True)
class _Line:
    """The waits of one line.

    Attributes:
        waits: For each call: the number of its keys, and a function that cancels the wait.
        keys: The number of keys in all waits.
    """

    waits: dict[int, tuple[int, Callable[[], None]]] = field(default_factory=dict)
    keys: int = 0


@final
class StoreWaits:
    """The requests of lines that are answered once keys are set. Called on the loop.

    Args:
        store: The table; others may set its keys from any thread.
        answer: Answers a call of a line, with the first value or with None; from any thread.
    """

    def __init__(self, store: MemoryStore, answer: Answer) -> None:
        self._store = store
        self._answer = answer
        self._lock = threading.Lock()  # guards the table of lines
        self._lines: dict[WorkerInfo, _Line] = {}

    def __len__(self) -> int:
        with self._lock:
            return sum(len(line.waits) for line in self._lines.values())

    def wait(self, peer: WorkerInfo, call: int, keys: list[str], *, single: bool) -> None:
        """Answers a call once all the keys are set: at once, later, or never.

        Args:
            peer: The line.
            call: The number of the call; nobody waits for an answer to 0.
            keys: The keys that have to be set.
            single: True if the answer is the value of the first key.

        Raises:
            TypeError: A key is not a str.
            RendezvousError: The line already waits for too many keys.
        """
        wanted = check_keys(keys)
        if not call:
            return
        with self._lock:
            line = self._lines.setdefault(peer, _Line())
            if call in line.waits:
                raise RendezvousError(f"call {call} of {peer.name} waits already")
            if line.keys + len(wanted) > MOST_WAITED:
                raise RendezvousError(
                    f"{peer.name} waits for {line.keys} keys of the store, and may for no more than "
                    f"{MOST_WAITED} at once (it asks for {len(wanted)} more); wait for fewer of "
                    "them at a time, in fewer threads"
                )
            line.waits[call] = (len(wanted), lambda: None)
            line.keys += len(wanted)

        def ready(values: list[bytes] | None) -> None:
            self._take(peer, call)
            if values is not None:
                self._answer(peer, call, values[0] if single else None)

        cancel = self._store.watch(wanted, ready)
        with self._lock:
            if call in line.waits:
                line.waits[call] = (len(wanted), cancel)

    def forget(self, peer: WorkerInfo, call: int) -> None:
        """Cancels a line's wait for one answer, which may have gone out already."""
        cancel = self._take(peer, call)
        if cancel is not None:
            cancel()

    def lose(self, peer: WorkerInfo) -> None:
        """Cancels all waits of a line that has ended."""
        with self._lock:
            line = self._lines.pop(peer, _Line())
        for _, cancel in line.waits.values():
            cancel()

    def _take(self, peer: WorkerInfo, call: int) -> Callable[[], None] | None:
        with self._lock:
            line = self._lines.get(peer)
            if line is None or call not in line.waits:
                return None
            count, cancel = line.waits.pop(call)
            line.keys -= count
            if not line.waits:
                del self._lines[peer]
            return cancel
