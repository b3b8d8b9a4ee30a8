"""The launchers of one job on several hosts: their meeting, and the log by which they talk.

Node 0's launcher hosts the coordinator. Each launcher publishes in its store the number of workers
that it starts; ranks follow by node. After that the store holds a log: the number of the last
event, and each event under its number. Every launcher reads all of it before it exits.

    node 1                       the log                        node 0, node 2
    a worker fails           ──▶ 1: failed, rank 3, its end ──▶ 5 s, SIGTERM, 5 s, kill
    its workers have ended   ──▶ 2: done, node 1            ──▶ ...
                                 4: done, node 2            ──▶ all done: every launcher exits
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import operator
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, final

from telegrad.errors import (
    EvictedError,
    OwnerLostError,
    RendezvousError,
    RendezvousTimeoutError,
    TelegradError,
    WorkerLostError,
)
from telegrad.launch.policy import describe
from telegrad.rendezvous import PrefixStore, Store
from telegrad.transport import escaped

logger = logging.getLogger(__name__)

PREFIX = "telegrad/launch"
GATHER_SECONDS = 300.0  # a cluster scheduler may start the last node minutes later
SAY_SECONDS = 10.0
CLOSE_SECONDS = 2.0
# Of what stands in the job's store, which any member may have written.
MOST_HOST = 200  # characters
MOST_LINES = 1000
MOST_WORKERS = 100_000  # of one node
LOSSES = tuple(
    f"{error.__module__}.{error.__name__}"
    for error in (WorkerLostError, OwnerLostError, EvictedError)
)
FAILED, ENDED, SIGNAL, DONE, GONE = "failed", "ended", "signal", "done", "gone"


@dataclass(frozen=True, slots=True)
class Share:
    """The workers of the job that one node has.

    Attributes:
        first_rank: The rank of the node's first worker.
        world_size: The number of workers on all nodes.
    """

    first_rank: int
    world_size: int


@dataclass(frozen=True, slots=True)
class Event:
    """A message from one launcher to the others.

    Attributes:
        kind: `failed`, `ended` with exit code 0, `signal`, `done`, or `gone` for a launcher that
            is lost.
        node: The node that it is about.
        rank: The worker that failed or ended.
        code: The worker's exit code, or the number of the signal that the launcher got.
        text: The last lines that the worker wrote.
        age: Seconds since the worker began to fail, when this was sent. A worker that fails only
            because of another may exit before that other one.
    """

    kind: str
    node: int
    rank: int = -1
    code: int = 0
    text: tuple[str, ...] = ()
    age: float = 0.0

    @property
    def words(self) -> str:
        """A description of the event, for `failed` and `gone`.

        >>> Event(FAILED, 1, rank=3, code=-9).words
        'rank 3 on node 1 was killed by SIGKILL'
        """
        if self.kind == FAILED:
            return f"rank {self.rank} on node {self.node} {describe(self.code)}"
        return f"node {self.node} is lost ({'; '.join(self.text)})"

    @property
    def follows(self) -> bool:
        """True if the worker failed because another was lost, as far as its traceback tells.

        >>> Event(FAILED, 0, text=("telegrad.errors.WorkerLostError: worker 'w1' is lost",)).follows
        True
        """
        return any(line.startswith(LOSSES) for line in self.text)

    @classmethod
    def read(cls, data: bytes) -> Event:
        """Reads an event that `json.dumps(asdict(event))` wrote.

        Raises:
            ValueError: The data is not an event.
        """
        try:
            told: dict[str, Any] = json.loads(data)
            text = tuple(escaped(str(line)) for line in told.pop("text")[:MOST_LINES])
            kind, age = escaped(str(told.pop("kind"))), float(told.pop("age", 0.0))
            node = operator.index(told.pop("node"))
            rank, code = (operator.index(told.pop(*each)) for each in (("rank", -1), ("code", 0)))
            if told:
                raise ValueError(f"it has fields that are not known: {list(told)}")
            return cls(kind, node, rank, code, text, age)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise ValueError(f"not an event of a launcher: {data[:80]!r}") from error


def share_ranks(
    store: Store,
    node: int,
    nodes: int,
    workers: int,
    say: Callable[[str], None],
    *,
    timeout: float = GATHER_SECONDS,
) -> Share:
    """Publishes this node's number of workers; waits for all nodes; returns this node's share.

    Args:
        store: The job's store.
        node: This node's rank.
        nodes: The number of nodes.
        workers: The number of workers that this node starts.
        say: Gets a line for the user when something changed, or nothing has changed for a while.
        timeout: Seconds for all nodes to come.

    Raises:
        RendezvousError: Two nodes have the same rank, or disagree on the number of nodes.
        RendezvousTimeoutError: Not all came in time; the message names the missing nodes.
    """
    table = PrefixStore(PREFIX, store)
    own = {"nodes": nodes, "workers": workers, "host": socket.gethostname()}
    mine = json.dumps({**own, "launcher": secrets.token_hex(8)}).encode()
    if (held := table.compare_set(f"node/{node}", b"", mine)) != mine:
        raise RendezvousError(
            f"node rank {node} is taken by {_read_node(node, held)[2]!r}; give each host a "
            f"--node-rank of its own, from 0 to {nodes - 1}"
        )
    counts = []
    for each in range(nodes):
        try:
            written = _wait_for(table, each, say, timeout)
        except RendezvousTimeoutError as error:
            raise _late_error(table, nodes, timeout) from error
        its_nodes, its_workers, host = _read_node(each, written)
        if its_nodes != nodes:
            raise RendezvousError(
                f"node {each} ({host}) was started with --nnodes {its_nodes}, this "
                f"one with --nnodes {nodes}; give all of them the same"
            )
        counts.append(its_workers)
    return Share(sum(counts[:node]), sum(counts))


def _read_node(node: int, data: bytes) -> tuple[int, int, str]:
    """Returns a node's numbers of nodes and workers, and its host; any member may have written it.

    Raises:
        RendezvousError: It is something else.
    """
    try:
        told = json.loads(data)
        nodes, workers = operator.index(told["nodes"]), operator.index(told["workers"])
        if not 0 <= workers <= MOST_WORKERS:
            raise ValueError(f"{workers} workers")
        return nodes, workers, escaped(str(told["host"]), most=MOST_HOST)
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise RendezvousError(
            f"the job's store does not say what node {node} starts, but {data[:80]!r}; look which "
            "program writes to the store, and start all nodes again"
        ) from error


def _wait_for(table: Store, node: int, say: Callable[[str], None], timeout: float) -> bytes:
    waited = 0.0
    while True:
        pause = min(SAY_SECONDS, timeout - waited)
        try:
            return table.get(f"node/{node}", timeout=pause)
        except RendezvousTimeoutError:
            waited += pause
        if waited >= timeout:
            raise RendezvousTimeoutError(f"node {node} did not come")
        say(f"waiting for node {node}; {timeout - waited:.0f} s left")


def _late_error(table: Store, nodes: int, timeout: float) -> RendezvousTimeoutError:
    """Returns the error that names all missing nodes."""
    missing = [f"node {i}" for i in range(nodes) if not table.check([f"node/{i}"])]
    return RendezvousTimeoutError(
        f"{', '.join(missing) or 'a node'} did not come within {timeout:g} s; start "
        f"{'it' if len(missing) < 2 else 'them'}, with the same --master-addr and --master-port",
        missing=tuple(missing),
    )


@final
class Nodes:
    """This launcher's access to the log; two threads of its own use the store until it closes.

    Args:
        store: The job's store.
        node: This node's rank.
        nodes: The number of nodes.

    Attributes:
        wake: A socket that is readable when `take` has something.
    """

    def __init__(self, store: Store, node: int, nodes: int) -> None:
        self.node = node
        self._table = PrefixStore(PREFIX, store)
        self._undone = set(range(nodes))
        self._failures: list[tuple[bool, float, int, Event]] = []
        self._to_tell: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._heard: queue.SimpleQueue[tuple[float, Event]] = queue.SimpleQueue()
        self.wake, self._waker = socket.socketpair()
        self.wake.setblocking(False)
        self._waker.setblocking(False)
        self._threads = [
            threading.Thread(target=target, name=f"launch-{name}", daemon=True)
            for name, target in (("nodes-write", self._write), ("nodes-read", self._read))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def all_done(self) -> bool:
        """True if the workers of all nodes have ended, or no news of the others can come."""
        return not self._undone

    @property
    def first_failure(self) -> Event | None:
        """The event that ended the job, if anything failed.

        Of the failures that do not follow from the loss of another worker, it is the one that began
        first. The order in the log tells too little: a launcher may read a worker's output late.
        """
        return min(self._failures)[-1] if self._failures else None

    def tell(self, event: Event) -> None:
        """Sends an event to all launchers, this one included; does not block."""
        self._to_tell.put(event)

    def take(self) -> list[Event]:
        """Returns the events since the last call, in log order; for the thread that selects."""
        with contextlib.suppress(BlockingIOError):
            self.wake.recv(4096)
        events: list[Event] = []
        while not self._heard.empty():
            heard, event = self._heard.get()
            if event.kind == GONE and event.node not in self._undone:
                continue  # it had already reported `done`
            events.append(event)
            if event.kind in (FAILED, GONE):
                began = heard - event.age
                self._failures.append((event.follows, began, len(self._failures), event))
            if event.kind in (DONE, GONE):
                self._undone.discard(event.node)
            if event.kind == GONE and event.node == 0:  # the log is gone with node 0
                self._undone.clear()
        return events

    def close(self) -> None:
        """Sends the remaining events; reads the log to its end if that is known."""
        self._to_tell.put(None)
        for thread in self._threads:
            thread.join(CLOSE_SECONDS)
        if not any(thread.is_alive() for thread in self._threads):
            self.wake.close()
            self._waker.close()

    def _write(self) -> None:
        while (event := self._to_tell.get()) is not None:
            try:
                number = self._table.add("events", 1)
                self._table.set(f"event/{number}", json.dumps(asdict(event)).encode())
            except TelegradError as error:
                logger.debug("%r was not told: %s", event, error)

    def _read(self) -> None:
        """Reads events until all nodes are done; a lost log means that all others are gone."""
        undone = set(self._undone)
        number = 0
        while undone:
            number += 1
            try:
                event = Event.read(self._table.get(f"event/{number}", timeout=math.inf))
            except (TelegradError, ValueError) as error:
                event = Event(GONE, 0, text=(str(error),))
            if event.kind in (DONE, GONE):
                undone.discard(event.node)
            if event.kind == GONE and event.node == 0:
                undone.clear()
            self._heard.put((time.monotonic(), event))
            with contextlib.suppress(BlockingIOError):  # the buffer is full, so it will wake up
                self._waker.send(b"e")
