"""A job of links without a network: every order of arrival, every message counted."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from telegrad.collectives.backends import MessageBackend
from telegrad.collectives.link import Backend, Link, Steps
from telegrad.collectives.messages import Signature
from telegrad.errors import CollectiveMismatchError
from telegrad.types import Array
from telegrad.wire import Buffer

# The kind of a message, its sender and its receiver.
Way: TypeAlias = tuple[str, int, int]
# The length of the longest chain of messages that ends with this one, and its data.
Sent: TypeAlias = tuple[int, Buffer]


class Paused:
    """Awaited where a rank has nothing to go on with."""

    def __await__(self) -> Generator[None, None, None]:
        yield


class FakeLink(Link):
    """One rank's end.

    Attributes:
        clock: The length of the longest chain of messages that ends at this rank.
        messages: How many it has sent with data.
        nbytes: How many bytes were in them.
        signals: How many it has sent without.
    """

    def __init__(self, job: FakeJob, rank: int, call: Signature) -> None:
        self._job = job
        self._rank = rank
        self.own_call = call
        self.clock = 0
        self.messages = 0
        self.nbytes = 0
        self.signals = 0

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return len(self._job.links)

    def send(self, to: int, data: Buffer, *, copy: bool = False) -> None:
        assert to != self._rank
        self.messages += 1
        self.nbytes += memoryview(data).nbytes
        data = bytes(data) if copy else data
        self._job.deliver(("data", self._rank, to), (self.clock + 1, data))

    async def receive(self, source: int) -> Buffer:
        return await self._take(("data", source, self._rank))

    async def sender(self) -> int:
        raise NotImplementedError  # there are no messages between two ranks

    def signal(self, to: int) -> None:
        assert to != self._rank
        self.signals += 1
        self._job.deliver(("signal", self._rank, to), (self.clock + 1, b""))

    async def signalled(self, source: int) -> None:
        await self._take(("signal", source, self._rank))

    async def backend(self) -> Backend:
        return MessageBackend(self)

    def call_of(self, source: int) -> Signature:
        return self._job.links[source].own_call

    def mismatch(self, ranks: Sequence[int]) -> CollectiveMismatchError:
        return CollectiveMismatchError(f"the calls of ranks {list(ranks)} do not fit")

    async def _take(self, way: Way) -> Buffer:
        step, data = await self._job.take(way)
        self.clock = max(self.clock, step)
        return bytearray(data)  # what arrives is the receiver's own


class FakeJob:
    """n ranks that run one algorithm; which goes on next is drawn.

    Args:
        arrays: Of each rank.
        seed: Of the drawing.
        calls: Of each rank; by default of an operation with its array alone.

    Attributes:
        most_waiting: The most messages of one rank to another that were sent and not received.
    """

    def __init__(
        self, arrays: list[Array], seed: int = 0, calls: Sequence[Signature] | None = None
    ) -> None:
        if calls is None:
            calls = [Signature(operation="fake", shape=array.shape) for array in arrays]
        self.links = [FakeLink(self, r, call) for r, call in enumerate(calls)]
        self.most_waiting = 0
        self._arrays = arrays
        self._random = random.Random(seed)
        self._queues: dict[Way, deque[Sent]] = defaultdict(deque)
        self._waiting: set[Way] = set()
        self._ready: list[int] = []

    def deliver(self, way: Way, sent: Sent) -> None:
        """Takes a message, for which its receiver may wait."""
        self._queues[way].append(sent)
        self.most_waiting = max(self.most_waiting, len(self._queues[way]))
        if way in self._waiting:
            self._waiting.remove(way)
            self._ready.append(way[2])

    def goes_on(self, rank: int) -> None:
        """Lets a rank go on later, although no message has come."""
        self._ready.append(rank)

    async def take(self, way: Way) -> Sent:
        """Waits for the next message of one rank to another."""
        while way not in self._queues:
            self._waiting.add(way)
            await Paused()
        queue = self._queues[way]
        sent = queue.popleft()
        if not queue:
            del self._queues[way]
        return sent

    def run(self, algorithm: Callable[[Link, Array], Steps[Any]]) -> list[Any]:
        """Runs it on every rank to the end and returns the values by rank."""
        values = self._drive(algorithm, range(len(self.links)))
        waiting = [r for r in range(len(self.links)) if r not in values]
        assert not waiting, f"ranks {waiting} wait for each other"
        assert not self._queues, f"never received: {list(self._queues)}"
        return [values[r] for r in range(len(self.links))]

    def run_without(self, absent: int, algorithm: Callable[[Link, Array], Steps[Any]]) -> set[int]:
        """Runs it on all ranks but one as far as they get and returns those that came to the end."""
        return set(self._drive(algorithm, (r for r in range(len(self.links)) if r != absent)))

    def _drive(
        self, algorithm: Callable[[Link, Array], Steps[Any]], ranks: Iterable[int]
    ) -> dict[int, Any]:
        running: dict[int, Coroutine[Any, None, Any]] = {
            r: algorithm(self.links[r], self._arrays[r]) for r in ranks
        }
        values: dict[int, Any] = {}
        self._ready = list(running)
        while self._ready:
            place = self._random.randrange(len(self._ready))
            self._ready[place], self._ready[-1] = self._ready[-1], self._ready[place]
            r = self._ready.pop()
            try:
                running[r].send(None)
            except StopIteration as stop:
                values[r] = stop.value
                del running[r]
        for steps in running.values():
            steps.close()
        return values

    @property
    def steps(self) -> int:
        """The longest chain of messages."""
        return max(link.clock for link in self.links)


def rounds_of(n: int) -> int:
    """Returns ceil(log2 n)."""
    return (n - 1).bit_length()


def arrays_for(n: int, size: int, dtype: str, seed: int = 0) -> list[Array]:
    """Returns an array for each rank, of small numbers that show where they come from."""
    rng = np.random.default_rng(seed)
    made: list[Array] = []
    for _ in range(n):
        values: Any = rng.integers(0 if dtype in ("bool", "uint8") else -3, 4, size)
        if np.dtype(dtype).kind in "fc":
            values = values + rng.random(size)
        if np.dtype(dtype).kind == "c":
            values = values + 1j * rng.random(size)
        made.append(values.astype(dtype))
    return made
