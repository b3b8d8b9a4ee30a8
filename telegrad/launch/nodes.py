"""The launchers of one job on several hosts: how they find each other, and what they tell.

Node 0's launcher hosts the coordinator. Each publishes in its store how many workers it starts;
ranks follow by node. After that the store holds a log: the number of the last event, and each event
under its number. Every launcher reads all of it before it exits.

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

__all__ = ["DONE", "ENDED", "FAILED", "GONE", "SIGNAL", "Event", "Nodes", "Share", "share_ranks"]

logger = logging.getLogger(__name__)

PREFIX = "telegrad/launch"
GATHER_SECONDS = 300.0  # a cluster scheduler starts the last node minutes later
SAY_SECONDS = 10.0
LOOK_SECONDS = 0.2  # for a key that is there, or is not
CLOSE_SECONDS = 2.0
LOSSES = tuple(
    f"{error.__module__}.{error.__name__}"
    for error in (WorkerLostError, OwnerLostError, EvictedError)
)
FAILED, ENDED, SIGNAL, DONE, GONE = "failed", "ended", "signal", "done", "gone"


@dataclass(frozen=True, slots=True)
class Share:
    """Which workers of the job a node has.

    Attributes:
        first_rank: The rank of its first.
        world_size: How many workers all nodes have.
    """

    first_rank: int
    world_size: int


@dataclass(frozen=True, slots=True)
class Event:
    """What one launcher tells the others.

    Attributes:
        kind: `failed`, `ended` with exit code 0, `signal`, `done`, or `gone` for a launcher that
            is lost.
        node: Whom it is about.
        rank: The worker that failed or ended.
        code: Its exit code, or the number of the signal that the launcher got.
        text: What the worker wrote last.
        age: Seconds since the worker began to fail, when this was told. Whom a failure takes along
            may exit before the one that failed.
    """

    kind: str
    node: int
    rank: int = -1
    code: int = 0
    text: tuple[str, ...] = ()
    age: float = 0.0

    @property
    def words(self) -> str:
        """What happened, for `failed` and `gone`.

        >>> Event(FAILED, 1, rank=3, code=-9).words
        'rank 3 on node 1 was killed by SIGKILL'
        """
        if self.kind == FAILED:
            return f"rank {self.rank} on node {self.node} {describe(self.code)}"
        return f"node {self.node} is lost ({'; '.join(self.text)})"

    @property
    def follows(self) -> bool:
        """Whether the worker failed since another one was lost, as far as its traceback says.

        >>> Event(FAILED, 0, text=("telegrad.errors.WorkerLostError: worker 'w1' is lost",)).follows
        True
        """
        return any(line.startswith(LOSSES) for line in self.text)

    @classmethod
    def read(cls, data: bytes) -> Event:
        """Reads what `json.dumps(asdict(event))` wrote.

        Raises:
            ValueError: It is no event.
        """
        try:
            fields: dict[str, Any] = json.loads(data)
            text = tuple(str(line) for line in fields.pop("text"))
            return cls(**fields, text=text)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"no event of a launcher: {data[:80]!r}") from error


def share_ranks(
    store: Store,
    node: int,
    nodes: int,
    workers: int,
    say: Callable[[str], None],
    *,
    timeout: float = GATHER_SECONDS,
) -> Share:
    """Publishes how many workers this node starts; waits for all nodes; returns this one's share.

    Args:
        store: The job's.
        node: This node's rank.
        nodes: How many nodes there are.
        workers: How many workers this one starts.
        say: Is given a line when something changed, or nothing has for a while.
        timeout: Seconds for all nodes to come.

    Raises:
        RendezvousError: Two nodes have one rank, or disagree on how many there are.
        RendezvousTimeoutError: Not all came in time; the message names them.
    """
    table = PrefixStore(PREFIX, store)
    own = {"nodes": nodes, "workers": workers, "host": socket.gethostname()}
    mine = json.dumps({**own, "launcher": secrets.token_hex(8)}).encode()
    if (held := table.compare_set(f"node/{node}", b"", mine)) != mine:
        raise RendezvousError(
            f"node rank {node} is taken by {json.loads(held)['host']!r}; give each host a "
            f"--node-rank of its own, from 0 to {nodes - 1}"
        )
    counts = []
    for each in range(nodes):
        try:
            found = json.loads(_wait_for(table, each, say, timeout))
        except RendezvousTimeoutError as error:
            raise _missing(table, nodes, timeout) from error
        if found["nodes"] != nodes:
            raise RendezvousError(
                f"node {each} ({found['host']}) was started with --nnodes {found['nodes']}, this "
                f"one with --nnodes {nodes}; give all of them the same"
            )
        counts.append(int(found["workers"]))
    return Share(sum(counts[:node]), sum(counts))


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


def _missing(table: Store, nodes: int, timeout: float) -> RendezvousTimeoutError:
    """Returns the error that names all who did not come."""
    missing = []
    for each in range(nodes):
        try:
            table.get(f"node/{each}", timeout=LOOK_SECONDS)
        except RendezvousTimeoutError:
            missing.append(f"node {each}")
    return RendezvousTimeoutError(
        f"{', '.join(missing) or 'a node'} did not come within {timeout:g} s; start "
        f"{'it' if len(missing) < 2 else 'them'}, with the same --master-addr and --master-port",
        missing=tuple(missing),
    )


@final
class Nodes:
    """This launcher's part in the log; two threads of its own talk to the store until it closes.

    Args:
        store: The job's.
        node: This node's rank.
        nodes: How many there are.

    Attributes:
        wake: Readable when `take` has something.
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
        """Whether the workers of all nodes have ended, or those of some cannot be heard of."""
        return not self._undone

    @property
    def first_failure(self) -> Event | None:
        """What ended the job, if anything failed.

        That is what began first of what does not follow from the loss of another worker. Clocks
        tell too little here: a launcher may read late what its worker wrote early.
        """
        return min(self._failures)[-1] if self._failures else None

    def tell(self, event: Event) -> None:
        """Tells all launchers, this one too; does not block."""
        self._to_tell.put(event)

    def take(self) -> list[Event]:
        """Returns what was told since, in the order of the log; for the thread that selects."""
        with contextlib.suppress(BlockingIOError):
            self.wake.recv(4096)
        events: list[Event] = []
        while not self._heard.empty():
            heard, event = self._heard.get()
            if event.kind == GONE and event.node not in self._undone:
                continue  # it has done its part
            events.append(event)
            if event.kind in (FAILED, GONE):
                began = heard - event.age
                self._failures.append((event.follows, began, len(self._failures), event))
            if event.kind in (DONE, GONE):
                self._undone.discard(event.node)
            if event.kind == GONE and event.node == 0:  # and with it the log
                self._undone.clear()
        return events

    def close(self) -> None:
        """Tells what is to be told still; the log is read to its end where that is known."""
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
        """Reads events until all nodes are done; without a log node 0 is gone, and all with it."""
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
            with contextlib.suppress(BlockingIOError):  # it is awake
                self._waker.send(b"e")
