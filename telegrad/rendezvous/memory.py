"""A store in this process' memory, which also serves the clients of a coordinator."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import Counter, deque
from collections.abc import Hashable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, final

from telegrad.critical import critical
from telegrad.errors import RendezvousError
from telegrad.rendezvous.store import (
    Store,
    StoreTable,
    closed_error,
    late_error,
    missing_in,
    serve_request,
)
from telegrad.types import WorkerInfo

# The key that a wait needs next, and True if that is the key of a queue.
_Place: TypeAlias = tuple[str, bool]
# A client of a coordinator, or a store of this process in one of whose threads a call waits.
_Owner: TypeAlias = "MemoryStore | WorkerInfo"

ENTRY_BYTES = 100  # for a place in the dict
COUNTER_BYTES = 24  # of a number that `add` counts up
QUEUE_BYTES = 900  # of an empty queue: a deque, which allocates 64 places, and its entry
QUEUED_BYTES = 16  # for a place in a queue
# A wait takes about a kilobyte. A client waits once in each of its threads, at most for one key of
# every worker, and there may be that many workers.
MOST_WAITED: Final = 10_000


@final
@dataclass(eq=False, slots=True)
class _StoreWait:
    """A request that waits for keys, or for a value of a queue.

    Attributes:
        owner: Whoever waits.
        call: The number of its call there.
        verb: The verb of the request.
        request: Its arguments.
        reply: The future that gets the answer.
        place: The place at which it stands in the table.
    """

    owner: _Owner
    call: Hashable
    verb: str
    request: Mapping[str, Any]
    reply: Future[object]
    place: _Place = ("", False)

    @property
    def size(self) -> int:
        """The number of keys that it waits for."""
        return len(self.request["keys"]) if "keys" in self.request else 1


@final
class _Table(StoreTable):
    """The keys, values, queues and waits that all clones of a MemoryStore share.

    All methods are called with the lock held. A wait is completed after it was taken out of the
    table, without the lock. So each is completed once at most, and whoever takes it out decides
    who that is.

    Args:
        most_bytes: The most bytes of memory for keys and values, roughly; None for no limit.

    Attributes:
        lock: Guards everything here.
        ready: The waits that were taken out with their answers, to be completed.
    """

    def __init__(self, most_bytes: int | None) -> None:
        self.lock = threading.Lock()
        self.values: dict[str, bytes] = {}
        self.queues: dict[str, deque[bytes]] = {}
        self.ready: list[tuple[_StoreWait, object]] = []
        self._bytes = 0
        self._most_bytes = most_bytes
        # Each wait stands in one place, so a write looks only at those that wait for its own key.
        # The first comes first.
        self._places: dict[_Place, dict[_StoreWait, None]] = {}
        self._owned: dict[_Owner, dict[Hashable, _StoreWait]] = {}
        self._waited = Counter[_Owner]()  # the number of keys that an owner waits for

    def write(self, entries: Mapping[str, bytes]) -> None:
        """Writes values, all or none.

        Raises:
            RendezvousError: The table is full.
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
            if key in self.values:
                self.delete(key)
            self._bytes += _cost(key, value)
            self.values[key] = value
        for key in entries:
            self._settle((key, False))

    def extend(self, key: str, tail: bytes) -> None:
        """Writes a value behind the one that a key holds."""
        self.write({key: self.values.get(key, b"") + tail})

    def delete(self, key: str) -> None:
        """Removes a key."""
        self._bytes -= _cost(key, self.values.pop(key))

    def push(self, key: str, value: bytes) -> None:
        """Puts a value at the end of a queue.

        Raises:
            RendezvousError: The table is full.
        """
        more = sys.getsizeof(value) + QUEUED_BYTES
        if key not in self.queues:
            more += sys.getsizeof(key) + QUEUE_BYTES
        self._check_room(key, more)
        self._bytes += more
        self.queues.setdefault(key, deque()).append(value)
        self._settle((key, True))

    def pop(self, key: str) -> bytes:
        """Takes the first value of a queue."""
        waiting = self.queues[key]
        value = waiting.popleft()
        self._bytes -= sys.getsizeof(value) + QUEUED_BYTES
        if not waiting:
            self._bytes -= sys.getsizeof(key) + QUEUE_BYTES
            del self.queues[key]
        return value

    def add_wait(self, wait: _StoreWait) -> None:
        """Adds a wait for keys that are not all set, or for a value of an empty queue.

        Raises:
            RendezvousError: Its owner waits in this call already, or for too many keys.
        """
        owner, count = wait.owner, self._waited[wait.owner]
        if wait.call in self._owned.get(owner, {}):
            raise RendezvousError(f"call {wait.call} of this worker waits already")
        if isinstance(owner, WorkerInfo) and count + wait.size > MOST_WAITED:
            raise RendezvousError(
                f"{owner.name} waits for {count} keys of the store, and may for no more than "
                f"{MOST_WAITED} at once (it asks for {wait.size} more); wait for fewer of them at "
                "a time, in fewer threads"
            )
        self._owned.setdefault(owner, {})[wait.call] = wait
        self._waited[owner] += wait.size
        self._places.setdefault(wait.place, {})[wait] = None

    def take_wait(self, owner: _Owner, call: Hashable) -> bool:
        """Takes out the wait of a call; returns False if there is none, or none any more."""
        wait = self._owned.get(owner, {}).pop(call, None)
        if wait is None:
            return False
        self._leave_place(wait)
        self._waited[owner] -= wait.size
        if not self._owned[owner]:
            del self._owned[owner], self._waited[owner]
        return True

    def take_waits(self, owner: _Owner) -> list[_StoreWait]:
        """Takes out all waits of an owner."""
        waits = list(self._owned.get(owner, {}).values())
        for wait in waits:
            self.take_wait(owner, wait.call)
        return waits

    def place_of(self, verb: str, request: Mapping[str, Any]) -> _Place | None:
        """Returns the place at which a request waits; None if it can be answered now."""
        missing = missing_in(self, verb, request)
        return (missing[0], verb == "queue_pop") if missing else None

    @property
    def waiting(self) -> int:
        """The number of waits."""
        return sum(map(len, self._owned.values()))

    def _settle(self, place: _Place) -> None:
        """Makes those ready that waited at a place where something has come."""
        while waits := self._places.get(place):
            wait = next(iter(waits))
            found = self.place_of(wait.verb, wait.request)
            if found == place:  # of a queue, whose value has gone to the one before
                return
            if found is None:
                self.take_wait(wait.owner, wait.call)
                self.ready.append((wait, serve_request(self, wait.verb, wait.request)))
            else:
                self._leave_place(wait)
                wait.place = found
                self._places.setdefault(found, {})[wait] = None

    def _leave_place(self, wait: _StoreWait) -> None:
        del self._places[wait.place][wait]
        if not self._places[wait.place]:
            del self._places[wait.place]

    def _check_room(self, key: str, more: int) -> None:
        after = self._bytes + more
        if self._most_bytes is not None and more > 0 and after > self._most_bytes:
            raise RendezvousError(
                f"the store is full: with {key[:60]!r} it would hold {after} bytes of keys and "
                f"values, and takes {self._most_bytes}; delete keys, send what is large by calls, "
                "or raise Limits.document_bytes where it is hosted (telegrad run: --limit "
                "document_bytes=...)"
            )


def _cost(key: str, value: bytes) -> int:
    return sys.getsizeof(key) + sys.getsizeof(value) + ENTRY_BYTES


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

    def clone(self) -> MemoryStore:
        """Returns another handle of the same table; see `Store.clone`."""
        other = MemoryStore()
        with self._open() as table:
            other._table = table
        return other

    def close(self) -> None:
        """Ends every wait of this handle with RendezvousError; idempotent."""
        with critical.section, self._table.lock:
            self._closed = True
            waits = self._table.take_waits(self)
        for wait in waits:
            wait.reply.set_exception(closed_error("the store"))

    @property
    def waiting(self) -> int:
        """For the library: the number of calls that wait, of all handles and clients."""
        with critical.section, self._table.lock:
            return self._table.waiting

    def post(
        self,
        verb: str,
        request: Mapping[str, Any],
        *,
        owner: WorkerInfo | None = None,
        call: Hashable = None,
        waits: bool = False,
    ) -> Future[object]:
        """For the library: serves a request; never blocks.

        Args:
            verb: The verb.
            request: Its arguments, checked.
            owner: The client that has sent it; None for a thread of this process.
            call: The number of the call; None for the future that is returned.
            waits: True if it waits until it can be answered.

        Returns:
            The answer. It is completed by this thread, or by the one that sets the last key or
            pushes the value.

        Raises:
            RendezvousError: The store is closed or full, or the client waits for too much.
            QueueEmptyError, ValueError: See `Store`.
        """
        reply = Future[object]()
        with self._open() as table:
            place = table.place_of(verb, request) if waits else None
            if place is None:
                reply.set_result(serve_request(table, verb, request))
            else:
                number = reply if call is None else call
                table.add_wait(_StoreWait(owner or self, number, verb, request, reply, place))
        return reply

    def forget(self, owner: WorkerInfo, call: int) -> bool:
        """For the library: ends a client's wait; returns False if it has its answer already."""
        with critical.section, self._table.lock:
            return self._table.take_wait(owner, call)

    def lose(self, owner: WorkerInfo) -> None:
        """For the library: ends all waits of a client that has gone."""
        with critical.section, self._table.lock:
            self._table.take_waits(owner)

    def _serve(self, verb: str, request: Mapping[str, Any], timeout: float | None) -> object:
        if timeout is None:
            return self.post(verb, request).result()
        reply = self.post(verb, request, waits=True)
        missing: list[str] = []
        try:
            return reply.result(min(timeout, threading.TIMEOUT_MAX))
        except TimeoutError:
            pass
        finally:  # also after Ctrl-C
            with critical.section, self._table.lock:
                if self._table.take_wait(self, reply):
                    missing = missing_in(self._table, verb, request)
        if missing:
            raise late_error(verb, missing, timeout)
        return reply.result()  # another thread has answered, or is about to

    @contextlib.contextmanager
    def _open(self) -> Iterator[_Table]:
        """Holds the table's lock; then completes what became ready.

        Raises:
            RendezvousError: This handle is closed.
        """
        with critical.section, self._table.lock:
            if self._closed:
                raise closed_error("the store")
            yield self._table
            ready, self._table.ready = self._table.ready, []
        for wait, answer in ready:
            wait.reply.set_result(answer)
