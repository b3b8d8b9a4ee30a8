"""A store in this process' memory, also behind a coordinator's store; and its waiting clients."""

from __future__ import annotations

import contextlib
import sys
import threading
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, TypeAlias, final

from telegrad.errors import RendezvousError
from telegrad.rendezvous.store import (
    STORE_TIMEOUT,
    Store,
    addition,
    check_entries,
    check_key,
    check_keys,
    check_prefix,
    check_timeout,
    check_value,
    closed_error,
    empty_error,
    extension,
    replacement,
    unfilled_error,
    unset_error,
)
from telegrad.types import WorkerInfo

__all__ = [
    "MOST_WAITED",
    "MemoryStore",
    "StoreWaits",
    "WaitAnswer",
    "listed",
]


Watcher: TypeAlias = Callable[[list[bytes] | None], None]
Cancel: TypeAlias = Callable[[], bool]

ENTRY_BYTES = 100  # for a place in the dict, and in the list
COUNTER_BYTES = 24  # of a number that `add` counts up
QUEUE_BYTES = 900  # of an empty queue: a deque, which allocates 64 places, and its entry
QUEUED_BYTES = 16  # for a place in a queue


@final
@dataclass(eq=False, frozen=True, slots=True)
class _Watch:
    """One wait for keys, or for a value of a queue.

    Attributes:
        keys: The keys that have to be set; the key of a queue.
        watcher: Called with the values, or with None if the store is closed.
        owner: The store whose closing ends the wait.
    """

    keys: list[str]
    watcher: Watcher
    owner: MemoryStore

    def call(self, values: list[bytes] | None) -> None:
        """Ends the wait; the caller does not hold the table's lock."""
        self.watcher(values)


@final
class _Table:
    """The keys, values and queues that all clones of a MemoryStore share.

    All methods but those of watches are called with the lock held. A watch is called after it was
    taken out of the table, without the lock. So each watch is called once at most, and whoever
    takes it out under the lock decides who that is.

    Args:
        most_bytes: The most bytes of memory for keys and values, roughly; None for no limit.

    Attributes:
        lock: Guards everything here.
        values: The value of each key.
        keys: The keys, sorted, so that those with a prefix are found quickly.
        queues: The values of each queue that is not empty.
    """

    def __init__(self, most_bytes: int | None) -> None:
        self.lock = threading.Lock()
        self.values: dict[str, bytes] = {}
        self.keys: list[str] = []
        self.queues: dict[str, deque[bytes]] = {}
        self._bytes = 0
        self._most_bytes = most_bytes
        # Each watch stands under one key that is not set, so a write looks only at its own key's.
        self._watches: dict[str, dict[_Watch, None]] = {}
        # Those that wait for a value of a queue, which is empty then; the first comes first.
        self._takers: dict[str, dict[_Watch, None]] = {}

    def write(self, entries: Mapping[str, bytes]) -> list[tuple[_Watch, list[bytes]]]:
        """Writes values, all or none; returns the watches whose keys are then complete.

        Raises:
            RendezvousError: The store is full.
        """
        more = 0
        for key, value in entries.items():
            held = self.values.get(key)
            # An existing counter may always be counted up: joins draw incarnations from one.
            counts = held is not None and len(value) <= COUNTER_BYTES
            grown = _cost(key, value) - (0 if held is None else _cost(key, held))
            more += min(grown, 0) if counts else grown
        self._check_room(next(iter(entries), ""), more)
        for key, value in entries.items():
            held = self.values.get(key)
            if held is None:
                insort(self.keys, key)
            else:
                self._bytes -= _cost(key, held)
            self._bytes += _cost(key, value)
            self.values[key] = value
        return [pair for key in entries for pair in self._take_complete(key)]

    def delete(self, key: str) -> bool:
        """Removes a key; returns True if it was there."""
        value = self.values.pop(key, None)
        if value is None:
            return False
        self._bytes -= _cost(key, value)
        del self.keys[bisect_left(self.keys, key)]
        return True

    def span(self, prefix: str) -> slice:
        """Returns the places in `keys` of those that begin with a prefix."""
        size = len(prefix)
        first = bisect_left(self.keys, prefix)
        return slice(first, bisect_right(self.keys, prefix, first, key=lambda key: key[:size]))

    def found(self, keys: Sequence[str]) -> list[bytes] | None:
        """Returns the values of all the keys; None if some are not set."""
        if any(key not in self.values for key in keys):
            return None
        return [self.values[key] for key in keys]

    def push(self, key: str, value: bytes, *, first: bool = False) -> _Watch | None:
        """Puts a value into a queue; returns the watch that gets it instead, if one waits.

        Args:
            key: The queue's key.
            value: The value.
            first: True to put back a value that was taken in vain; there is always room for it.

        Raises:
            RendezvousError: The store is full.
        """
        takers = self._takers.get(key)
        if takers:
            taker = next(iter(takers))
            self._remove(self._takers, key, taker)
            return taker
        more = sys.getsizeof(value) + QUEUED_BYTES
        if key not in self.queues:
            more += sys.getsizeof(key) + QUEUE_BYTES
        if not first:
            self._check_room(key, more)
        self._bytes += more
        waiting = self.queues.setdefault(key, deque())
        (waiting.appendleft if first else waiting.append)(value)
        return None

    def pop(self, key: str) -> bytes | None:
        """Takes the first value of a queue; None if it is empty."""
        waiting = self.queues.get(key)
        if waiting is None:
            return None
        value = waiting.popleft()
        self._bytes -= sys.getsizeof(value) + QUEUED_BYTES
        if not waiting:
            self._bytes -= sys.getsizeof(key) + QUEUE_BYTES
            del self.queues[key]
        return value

    def add_watch(self, watch: _Watch) -> Cancel:
        """Adds a watch of keys that are not all set; see `MemoryStore.watch`."""
        missing = next(key for key in watch.keys if key not in self.values)
        self._watches.setdefault(missing, {})[watch] = None
        return lambda: self._cancel(self._watches, watch)

    def add_taker(self, watch: _Watch) -> Cancel:
        """Adds a watch of a queue that is empty; see `MemoryStore.take`."""
        self._takers.setdefault(watch.keys[0], {})[watch] = None
        return lambda: self._cancel(self._takers, watch)

    def take_watches(self, owner: MemoryStore) -> list[_Watch]:
        """Takes out all watches of a store."""
        tables = (self._watches, self._takers)
        found = [(t, key, w) for t in tables for key in t for w in t[key] if w.owner is owner]
        for table, key, watch in found:
            self._remove(table, key, watch)
        return [watch for *_, watch in found]

    def _take_complete(self, key: str) -> list[tuple[_Watch, list[bytes]]]:
        ready = []
        for watch in self._watches.pop(key, {}):
            values = self.found(watch.keys)
            if values is None:
                self.add_watch(watch)
            else:
                ready.append((watch, values))
        return ready

    def _cancel(self, table: dict[str, dict[_Watch, None]], watch: _Watch) -> bool:
        """Takes a watch out; the caller does not hold the lock."""
        with self.lock:
            return any(self._remove(table, key, watch) for key in watch.keys)

    def _remove(self, table: dict[str, dict[_Watch, None]], key: str, watch: _Watch) -> bool:
        under = table.get(key, {})
        if watch not in under:
            return False
        del under[watch]
        if not under:
            del table[key]
        return True

    def _check_room(self, key: str, more: int) -> None:
        after = self._bytes + more
        if self._most_bytes is not None and more > 0 and after > self._most_bytes:
            raise RendezvousError(
                f"the store is full: with {key[:60]!r} it would hold {after} bytes of keys and "
                f"values, and takes {self._most_bytes}; delete keys, send what is large by calls, "
                "or raise Limits.document_bytes where it is hosted (telegrad run: --limit "
                "document_bytes=...)"
            )


@final
class _Arrival:
    """What one thread hands to another one that waits."""

    def __init__(self) -> None:
        self._come = threading.Event()
        self._values: list[bytes] | None = None

    def take(self, values: list[bytes] | None) -> None:
        """Takes the values, or None if the store is closed; from any thread."""
        self._values = values
        self._come.set()

    def wait(self, timeout: float) -> None:
        """Returns after `timeout` seconds, or once the values are there."""
        self._come.wait(min(timeout, threading.TIMEOUT_MAX))

    def values(self) -> list[bytes]:
        """Returns the values, which must be there or on their way.

        Raises:
            RendezvousError: The store is closed.
        """
        self._come.wait()
        if self._values is None:
            raise closed_error("the store")
        return self._values


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
        most_bytes: The most bytes of memory for its keys, values and queues, roughly; None for no
            limit.
    """

    def __init__(self, most_bytes: int | None = None) -> None:
        self._table = _Table(most_bytes)
        self._closed = False

    def set(self, key: str, value: bytes) -> None:
        """Writes a value; see `Store.set`."""
        self._write({check_key(key): check_value(value)})

    def get(self, key: str, timeout: float = STORE_TIMEOUT) -> bytes:
        """Waits for a value; see `Store.get`."""
        return self._await_values([check_key(key)], timeout)[0]

    def add(self, key: str, amount: int) -> int:
        """Adds to a counter; see `Store.add`."""
        return int(self._change(check_key(key), addition(key, amount)))

    def append(self, key: str, value: bytes) -> None:
        """Writes behind a value; see `Store.append`."""
        self._change(check_key(key), extension(value))

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Writes if the value is the expected one; see `Store.compare_set`."""
        return self._change(check_key(key), replacement(expected, desired))

    def multi_set(self, keys: Sequence[str], values: Sequence[bytes]) -> None:
        """Writes several values at once; see `Store.multi_set`."""
        self._write(check_entries(keys, values))

    def multi_get(self, keys: Sequence[str], timeout: float = STORE_TIMEOUT) -> list[bytes]:
        """Waits for several values; see `Store.multi_get`."""
        return self._await_values(check_keys(keys), timeout)

    def check(self, keys: Sequence[str]) -> bool:
        """Tells if keys are set; see `Store.check`."""
        wanted = check_keys(keys)
        with self._open() as table:
            return all(key in table.values for key in wanted)

    def wait(self, keys: Sequence[str], timeout: float = STORE_TIMEOUT) -> None:
        """Waits for keys; see `Store.wait`."""
        self._await_values(check_keys(keys), timeout)

    def delete_key(self, key: str) -> bool:
        """Removes a key; see `Store.delete_key`."""
        check_key(key)
        with self._open() as table:
            return table.delete(key)

    def num_keys(self, prefix: str = "") -> int:
        """Counts the keys; see `Store.num_keys`."""
        check_prefix(prefix)
        with self._open() as table:
            span = table.span(prefix)
            return int(span.stop - span.start)

    def list_keys(self, prefix: str = "") -> list[str]:
        """Lists the keys; see `Store.list_keys`."""
        check_prefix(prefix)
        with self._open() as table:
            return table.keys[table.span(prefix)]

    def queue_push(self, key: str, value: bytes) -> None:
        """Puts a value at the end of a queue; see `Store.queue_push`."""
        name, content = check_key(key), check_value(value)
        with self._open() as table:
            taker = table.push(name, content)
        if taker is not None:
            taker.call([content])

    def queue_pop(self, key: str, block: bool = True, timeout: float = STORE_TIMEOUT) -> bytes:
        """Takes the first value of a queue; see `Store.queue_pop`."""
        check_key(key)
        if not block:
            with self._open() as table:
                value = table.pop(key)
            if value is None:
                raise empty_error(key)
            return value
        check_timeout(timeout)
        arrival = _Arrival()
        cancel = self.take(key, arrival.take)
        try:
            arrival.wait(timeout)
        except BaseException:  # Ctrl-C
            if not cancel():
                self.put_back(key, arrival.values()[0])
            raise
        if cancel():
            raise unfilled_error(key, timeout)
        # Where it is too late to cancel, another thread has handed the value over, or is about to.
        return arrival.values()[0]

    def queue_len(self, key: str) -> int:
        """Counts the values of a queue; see `Store.queue_len`."""
        check_key(key)
        with self._open() as table:
            return len(table.queues.get(key, ()))

    def clone(self) -> MemoryStore:
        """Returns another handle of the same table; see `Store.clone`."""
        other = MemoryStore()
        with self._open() as table:
            other._table = table
        return other

    def close(self) -> None:
        """Ends every wait of this handle with RendezvousError; idempotent."""
        with self._table.lock:
            self._closed = True
            orphans = self._table.take_watches(self)
        for watch in orphans:
            watch.call(None)

    def watch(self, keys: Sequence[str], watcher: Watcher) -> Cancel:
        """Calls `watcher` once, with the values, as soon as all the keys are set at once.

        The thread that sets the last key calls it, or this thread at once; without holding the
        lock. It is called with None if the store is closed first.

        Returns:
            A function that removes the watcher, and returns True if it will never be called.
        """
        watch = _Watch(check_keys(keys), watcher, self)
        with self._table.lock:
            values = None if self._closed else self._table.found(watch.keys)
            if not self._closed and values is None:
                return self._table.add_watch(watch)
        watch.call(values)
        return _too_late

    def take(self, key: str, watcher: Watcher) -> Cancel:
        """Calls `watcher` once, with the first value of a queue, as soon as there is one for it.

        The watcher owns that value then. Threads, closing and the returned function are as with
        `watch`.
        """
        watch = _Watch([check_key(key)], watcher, self)
        with self._table.lock:
            value = None if self._closed else self._table.pop(key)
            if not self._closed and value is None:
                return self._table.add_taker(watch)
        watch.call(None if value is None else [value])
        return _too_late

    def put_back(self, key: str, value: bytes) -> None:
        """Puts a value that was taken in vain at the front of its queue, also if this is closed."""
        with self._table.lock:
            taker = self._table.push(key, value, first=True)
        if taker is not None:
            taker.call([value])

    def _write(self, entries: Mapping[str, bytes]) -> None:
        with self._open() as table:
            ready = table.write(entries)
        for watch, values in ready:
            watch.call(values)

    def _change(self, key: str, change: Callable[[bytes | None], bytes | None]) -> bytes:
        """Replaces a value by another that is computed from it, under the lock."""
        with self._open() as table:
            value = change(table.values.get(key))
            ready = [] if value is None else table.write({key: value})
        for watch, values in ready:
            watch.call(values)
        return value or b""

    def _await_values(self, keys: Sequence[str], timeout: float) -> list[bytes]:
        check_timeout(timeout)
        arrival = _Arrival()
        cancel = self.watch(keys, arrival.take)
        try:
            arrival.wait(timeout)
        finally:
            cancelled = cancel()
        if cancelled:
            with self._table.lock:
                missing = [key for key in keys if key not in self._table.values]
            raise unset_error(missing or list(keys), timeout)
        return arrival.values()

    @contextlib.contextmanager
    def _open(self) -> Iterator[_Table]:
        """Holds the table's lock; raises RendezvousError if this handle is closed."""
        with self._table.lock:
            if self._closed:
                raise closed_error("the store")
            yield self._table


def _too_late() -> bool:
    return False


def _cost(key: str, value: bytes) -> int:
    return sys.getsizeof(key) + sys.getsizeof(value) + ENTRY_BYTES


# -- waits of clients for keys and queues of a coordinator's store -------------------------------

# Answers a call of a line, with a value or with the reason for which there is none.
Answer: TypeAlias = Callable[[WorkerInfo, int, object], None]
Refuse: TypeAlias = Callable[[WorkerInfo, int, Exception], None]

# A wait takes about a kilobyte. A client waits once in each of its threads, at most for one key of
# every worker, and there may be that many workers.
MOST_WAITED: Final = 10_000
VALUE_BYTES = 16  # of an answer, beside each value


class WaitAnswer(Enum):
    """The answer to a wait."""

    VALUE = auto()  # of the only key
    VALUES = auto()  # of all keys
    NOTHING = auto()  # only that the keys are set
    QUEUED = auto()  # the first value of a queue, which is taken out


@dataclass(slots=True)
class _Line:
    """The waits of one line.

    Attributes:
        waits: For each call: the number of its keys, and a function that cancels the wait.
        keys: The number of keys in all waits.
    """

    waits: dict[int, tuple[int, Cancel]] = field(default_factory=dict)
    keys: int = 0


@final
class StoreWaits:
    """The requests of lines that are answered once keys are set. Called on the loop.

    A value of a queue that was taken for a wait that has ended meanwhile is put back. So a client
    that cancels its wait knows that it gets no value, or that its value is on its way.

    Args:
        store: The table; others may set its keys from any thread.
        answer: Answers a call of a line; from any thread.
        refuse: Answers a call of a line with an error; from any thread.
        most_bytes: The most bytes of one answer; None for no limit.
    """

    def __init__(
        self, store: MemoryStore, answer: Answer, refuse: Refuse, most_bytes: int | None = None
    ) -> None:
        self._store = store
        self._answer = answer
        self._refuse = refuse
        self._most_bytes = most_bytes
        self._lock = threading.Lock()  # guards the table of lines
        self._lines: dict[WorkerInfo, _Line] = {}

    def __len__(self) -> int:
        with self._lock:
            return sum(len(line.waits) for line in self._lines.values())

    def wait(self, peer: WorkerInfo, call: int, keys: list[str], wanted: WaitAnswer) -> None:
        """Answers a call once all the keys are set: at once, later, or never.

        Args:
            peer: The line.
            call: The number of the call; nobody waits for an answer to 0.
            keys: The keys that have to be set; the key of a queue.
            wanted: The answer.

        Raises:
            TypeError: A key is not a str.
            RendezvousError: The line already waits for too many keys.
        """
        names = check_keys(keys)
        if not call:
            return
        with self._lock:
            line = self._lines.setdefault(peer, _Line())
            if call in line.waits:
                raise RendezvousError(f"call {call} of {peer.name} waits already")
            if line.keys + len(names) > MOST_WAITED:
                raise RendezvousError(
                    f"{peer.name} waits for {line.keys} keys of the store, and may for no more "
                    f"than {MOST_WAITED} at once (it asks for {len(names)} more); wait for fewer "
                    "of them at a time, in fewer threads"
                )
            line.waits[call] = (len(names), _too_late)
            line.keys += len(names)

        def ready(values: list[bytes] | None) -> None:
            waits = self._take(peer, call) is not None
            if values is None:
                return
            if waits:
                self._reply(peer, call, values, wanted)
            elif wanted is WaitAnswer.QUEUED:
                self._store.put_back(names[0], values[0])

        if wanted is WaitAnswer.QUEUED:
            cancel = self._store.take(names[0], ready)
        else:
            cancel = self._store.watch(names, ready)
        with self._lock:
            if call in line.waits:
                line.waits[call] = (len(names), cancel)

    def forget(self, peer: WorkerInfo, call: int) -> bool:
        """Cancels a line's wait for one answer; returns False if it has gone out already."""
        cancel = self._take(peer, call)
        if cancel is None:
            return False
        cancel()
        return True

    def lose(self, peer: WorkerInfo) -> None:
        """Cancels all waits of a line that has ended."""
        with self._lock:
            line = self._lines.pop(peer, _Line())
        for _, cancel in line.waits.values():
            cancel()

    def _reply(self, peer: WorkerInfo, call: int, values: list[bytes], wanted: WaitAnswer) -> None:
        match wanted:
            case WaitAnswer.NOTHING:
                self._answer(peer, call, None)
            case WaitAnswer.VALUES:
                size = sum(len(value) + VALUE_BYTES for value in values)
                if self._most_bytes is not None and size > self._most_bytes:
                    self._refuse(peer, call, too_large(size, self._most_bytes))
                else:
                    self._answer(peer, call, values)
            case _:
                self._answer(peer, call, values[0])

    def _take(self, peer: WorkerInfo, call: int) -> Cancel | None:
        with self._lock:
            line = self._lines.get(peer)
            if line is None or call not in line.waits:
                return None
            count, cancel = line.waits.pop(call)
            line.keys -= count
            if not line.waits:
                del self._lines[peer]
            return cancel


def listed(keys: list[str], most_bytes: int | None) -> list[str]:
    """Returns the keys of `Store.list_keys`; RendezvousError if one answer cannot hold them."""
    size = sum(len(key.encode()) + VALUE_BYTES for key in keys)
    if most_bytes is not None and size > most_bytes:
        raise too_large(size, most_bytes)
    return keys


def too_large(size: int, most_bytes: int) -> RendezvousError:
    """Returns the error of a request whose answer would be larger than one message may be."""
    return RendezvousError(
        f"the answer would have {size} bytes, and one message of the store has {most_bytes} at "
        "most; ask for fewer keys at a time, or list them by a longer prefix"
    )
