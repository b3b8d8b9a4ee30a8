"""A Link: an algorithm's view of the other ranks, which can send to one and receive from one.

An algorithm is a coroutine over a Link and needs no event loop. When the message that it waits for
has arrived, the thread that called the operation resumes it, or a thread of the pool does.
"""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from typing import Any, TypeAlias, TypeVar, final

from telegrad.collectives.messages import Signature
from telegrad.collectives.reduction import ReduceOp
from telegrad.errors import CollectiveMismatchError
from telegrad.rpc.seams import Drive, Gate
from telegrad.types import Array, Shape
from telegrad.wire import Buffer

# A message of at most this size is sent without a request, which would take about as long.
EAGER_BYTES = 512 * 2**10

T = TypeVar("T")


@final
class Wake:
    """An awaitable for algorithms: the wait of one runner until any thread ends it.

    Args:
        patience: Seconds after which a wait counts as long.
        long: Hears that the wait is long; in the thread that waits.
        drive: The work of the thread that waits meanwhile.

    Attributes:
        found: The value that the runner waits for; set before the end by who found it.
    """

    __slots__ = ("_done", "_drive", "_long", "_patience", "_waiting", "found")

    def __init__(self, patience: float, long: Callable[[], None], drive: Drive) -> None:
        self.found: Any = None
        self._patience = patience
        self._long = long
        self._drive = drive
        self._done = False
        self._waiting: list[Callable[[], None]] = []

    def __await__(self) -> Generator[Wake, None, None]:
        if not self._done:
            yield self

    def end(self) -> None:
        """Ends the wait; from any thread, idempotent."""
        self._done = True
        while self._waiting:
            try:
                waiting = self._waiting.pop()
            except IndexError:  # another thread took it
                return
            waiting()

    def wait(self) -> None:
        """Blocks until the wait is ended."""
        gate = Gate()
        self._waiting.append(gate.open)
        if self._done or gate.wait(self._patience, drive=self._drive):
            return
        self._long()
        gate.wait(math.inf, drive=self._drive)

    def call_at_end(self, callback: Callable[[], None]) -> None:
        """Calls a function once the wait is ended; a wait that holds no thread may be long."""
        self._long()
        self._waiting.append(callback)
        if self._done:
            self.end()


Steps: TypeAlias = Coroutine[Wake, None, T]


class Link(ABC):
    """One rank's end of one operation, for a backend or an algorithm (`docs/extend.md`).

    Data that one rank sends to another arrives in the order in which it was sent. So do signals,
    but data and signals have no order among each other.

    Example:
        >>> import numpy as np
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> class Shifted(collectives.MessageBackend):  # each rank gets the array of the one before
        ...     def __init__(self, link):
        ...         super().__init__(link)
        ...         self.link = link
        ...     async def all_reduce(self, flat, op):
        ...         link = self.link
        ...         link.send((link.rank + 1) % link.size, flat.tobytes())
        ...         flat[...] = np.frombuffer(await link.receive((link.rank - 1) % link.size))
        >>> async def open_shifted(link):
        ...     return Shifted(link)
        >>> def step():  # runs on every worker
        ...     group = collectives.init_process_group(backend=lambda: open_shifted)
        ...     x = np.array([float(group.rank)])
        ...     collectives.all_reduce(x)
        ...     return x.item()
        >>> with Cluster(3) as cluster:
        ...     cluster.run(step)
        [2.0, 0.0, 1.0]
    """

    @property
    @abstractmethod
    def rank(self) -> int:
        """This rank, from 0 to `size` - 1."""

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of ranks that take part."""

    @abstractmethod
    def send(self, to: int, data: Buffer, *, copy: bool = False) -> None:
        """Sends bytes to a rank; never waits.

        The operation does not end before all of them were handed to the transport.

        Args:
            to: The rank.
            data: The bytes. Unless they are copied, they must never change again.
            copy: True to send a copy.
        """

    @abstractmethod
    async def receive(self, source: int) -> Buffer:
        """Waits for the next bytes from a rank; they belong to the receiver."""

    @abstractmethod
    async def sender(self) -> int:
        """Waits until it is known which rank sends, for a receive from any rank."""

    @abstractmethod
    def signal(self, to: int) -> None:
        """Sends a rank a signal, which tells it that this rank is here."""

    @abstractmethod
    async def signalled(self, source: int) -> None:
        """Waits for the next signal from a rank."""

    @abstractmethod
    async def backend(self) -> Backend:
        """Waits for the turn of this operation and returns the backend of its group."""

    @abstractmethod
    def call_of(self, source: int) -> Signature:
        """Returns the call of this rank, or of a rank from which something was received."""

    @abstractmethod
    def mismatch(self, ranks: Sequence[int]) -> CollectiveMismatchError:
        """Returns the error that the calls of some ranks, each heard, do not fit."""


class Backend(ABC):
    """A way to run the operations that do not have to go by messages (`docs/extend.md`).

    All ranks of a group use the same one. Arrays are contiguous and lie on the host; those that are
    called `flat` have one axis. They are not written before every other rank has been heard, and
    no method returns before all ranks have called it. A backend of a user's derives from
    `MessageBackend` and replaces what it does better.

    Example:
        >>> import numpy as np
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> class Negative(collectives.MessageBackend):
        ...     async def all_reduce(self, flat, op):
        ...         await super().all_reduce(flat, op)
        ...         flat[...] = -flat
        >>> def make_negative():
        ...     async def open_negative(link):
        ...         return Negative(link)
        ...     return open_negative
        >>> def step():  # runs on every worker
        ...     collectives.init_process_group(backend=make_negative)
        ...     x = np.array([1.0])
        ...     collectives.all_reduce(x)
        ...     return x.item()
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [-2.0, -2.0]
    """

    @abstractmethod
    async def barrier(self) -> None:
        """Returns when every rank has called it."""

    @abstractmethod
    async def broadcast(self, flat: Array, root: int) -> None:
        """Replaces `flat` by that of rank `root`."""

    @abstractmethod
    async def all_reduce(self, flat: Array, op: ReduceOp) -> None:
        """Replaces `flat` by the reduction over all ranks, bitwise equal on all."""

    @abstractmethod
    async def reduce(self, flat: Array, op: ReduceOp, root: int) -> None:
        """Replaces `flat` at rank `root` by the reduction over all ranks."""

    @abstractmethod
    async def all_gather(
        self,
        array: Array,
        shape_of: Callable[[int], Shape] | None = None,
        *,
        heard: bool = False,
    ) -> list[Array]:
        """Returns new arrays: a copy of each rank's array, by rank.

        Args:
            array: An array of any axes; shapes may differ between ranks.
            shape_of: Returns the shape of a rank's array, once that is heard; None for the shape in
                its call.
            heard: True if afterwards the calls of all ranks must be known.
        """

    @abstractmethod
    async def gather(self, array: Array, root: int) -> list[Array] | None:
        """Returns what `all_gather` does at rank `root`, None elsewhere."""

    @abstractmethod
    async def scatter(self, flat: Array, parts: Sequence[Array], root: int) -> None:
        """Replaces `flat` by the part that rank `root` has for this one; it alone has parts.

        Raises:
            CollectiveMismatchError: The part of a rank has another shape than its call states.
        """

    @abstractmethod
    async def all_to_all(self, parts: Sequence[Array], whole: Array | None = None) -> list[Array]:
        """Returns new arrays: the parts that all ranks have for this one, by rank.

        Args:
            parts: The part for each rank, of any axes.
            whole: The array of which they are cut, one after the other, if all ranks have one.

        Raises:
            CollectiveMismatchError: A rank has another shape than its receiver states.
        """

    @abstractmethod
    async def reduce_scatter(
        self, parts: Sequence[Array], op: ReduceOp, whole: Array | None = None
    ) -> Array:
        """Returns a new array: the reduction of the parts that all ranks have for this one.

        It combines in rank order. For the arguments see `all_to_all`.
        """


# Called for each operation in its turn, returns the backend that runs it.
OpenBackend: TypeAlias = Callable[[Link], Awaitable[Backend]]
# Called once for each group and rank, before its first operation that needs a backend.
MakeBackend: TypeAlias = Callable[[], OpenBackend]


def run_here(steps: Steps[T]) -> T:
    """Runs an algorithm in this thread, which blocks while it waits."""
    try:
        while True:
            awaited = steps.send(None)
            try:
                awaited.wait()
            except BaseException as interrupt:  # raised in the algorithm too, which ends with it
                steps.throw(interrupt)
                raise
    except StopIteration as stop:
        value: T = stop.value
        return value


def run_in_pool(steps: Steps[None], submit: Callable[..., None]) -> None:
    """Runs an algorithm in threads of the pool; holds no thread while the algorithm waits.

    Args:
        steps: The algorithm; must not raise.
        submit: Runs a function in the pool.
    """

    def resume() -> None:
        with contextlib.suppress(StopIteration):
            awaited = steps.send(None)
            awaited.call_at_end(lambda: submit(resume))

    submit(resume)
