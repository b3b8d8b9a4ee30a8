"""How an algorithm sees the other ranks: send to one, receive from one.

An algorithm is a coroutine over a Link. It is run without any event loop: it is resumed when what
it awaits has arrived, by the thread that called the operation or by a thread of the pool.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator
from typing import TypeAlias, TypeVar, final

from telegrad.rpc import Future
from telegrad.types import Shape
from telegrad.wire import Buffer

__all__ = ["Arrival", "Link", "Steps", "run_here", "run_in_pool"]

T = TypeVar("T")
Steps: TypeAlias = Coroutine[Future[None], None, T]


class Link(ABC):
    """One rank's end of one operation.

    What one rank sends to another arrives in the order in which it was sent; data and signals are
    two orders of their own.
    """

    @property
    @abstractmethod
    def rank(self) -> int:
        """This rank, from 0 to `size` - 1."""

    @property
    @abstractmethod
    def size(self) -> int:
        """How many ranks take part."""

    @abstractmethod
    def send(self, to: int, data: Buffer) -> None:
        """Sends bytes to a rank; never waits.

        The bytes are not copied and must never change again. The operation is not over before
        all were handed to the transport.
        """

    @abstractmethod
    async def receive(self, source: int) -> Buffer:
        """Waits for the next bytes of a rank; they belong to the receiver."""

    @abstractmethod
    def signal(self, to: int) -> None:
        """Tells a rank that this one is here."""

    @abstractmethod
    async def signalled(self, source: int) -> None:
        """Waits for the next signal of a rank."""

    @abstractmethod
    def shape(self, source: int) -> Shape:
        """Returns the shape of the array of a rank that something was received from."""


@final
class Arrival:
    """Awaited in an algorithm until a future is done; hands that to whoever runs the algorithm."""

    def __init__(self, future: Future[None]) -> None:
        self._future = future

    def __await__(self) -> Generator[Future[None], None, None]:
        if not self._future.done():
            yield self._future


def run_here(steps: Steps[T]) -> T:
    """Runs an algorithm in this thread, which blocks while it waits."""
    try:
        while True:
            awaited = steps.send(None)
            try:
                awaited.wait()
            except BaseException as interrupt:  # the algorithm hears of it and ends with it
                steps.throw(interrupt)
                raise
    except StopIteration as stop:
        value: T = stop.value
        return value


def run_in_pool(steps: Steps[None], submit: Callable[..., None]) -> None:
    """Runs an algorithm in threads of the pool; none is held while it waits.

    Args:
        steps: It must not raise.
        submit: Runs a function in the pool.
    """

    def resume() -> None:
        with contextlib.suppress(StopIteration):
            awaited = steps.send(None)
            awaited.call_when_done(lambda: submit(resume))

    submit(resume)
