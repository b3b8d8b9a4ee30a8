"""An operation that was started and not waited for."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, TypeVar, final

from telegrad.rpc import Future

__all__ = ["Work"]

T = TypeVar("T")
U = TypeVar("U")


@final
class Work(Generic[T]):
    """What an operation returns that was called with `async_op=True`.

    Until it is done the operation's array belongs to the operation. May be used from any thread
    and awaited on any event loop.

    Args:
        future: What is completed with the operation's value.
        operation: What was called, in words.
        rank: Where, in words.
        blocking: Entered while a thread waits.
    """

    def __init__(
        self,
        future: Future[T],
        operation: str,
        rank: str,
        blocking: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._future = future
        self._operation = operation
        self._rank = rank
        self._blocking = blocking
        self._started = time.monotonic()

    def wait(self, timeout: float | None = None) -> T:
        """Blocks until the operation is done and returns its value.

        Args:
            timeout: Seconds above 0 for this wait alone; None and `math.inf` wait for the
                operation, which ends at its own deadline at the latest.

        Returns:
            The arrays of all ranks for `all_gather`, else None.

        Raises:
            CallTimeoutError: It was not done in the time given here, and goes on; or its own
                deadline has passed.
            CollectiveMismatchError: The ranks called different operations.
            WorkerLostError: A rank is lost.
            BlockingCallError: On an event loop that telegrad runs; write `await work`.
        """
        with self._blocking():
            return self._future.wait(timeout)

    def done(self) -> bool:
        """Tells whether the operation is over, well or not."""
        return self._future.done()

    def exception(self) -> BaseException | None:
        """Returns the error of an operation that is over, None when it went well.

        Raises:
            RuntimeError: It is not over.
        """
        return self._future.exception()

    def then(self, callback: Callable[[Future[T]], U]) -> Future[U]:
        """Returns a future of what `callback` makes of the operation's future; see `rpc.Future`."""
        return self._future.then(callback)

    def add_done_callback(self, callback: Callable[[Future[T]], object]) -> None:
        """Runs `callback` with the operation's future once it is over; see `rpc.Future`."""
        self._future.add_done_callback(callback)

    def __await__(self) -> Generator[Any, None, T]:
        """Waits on the running event loop."""
        return self._future.__await__()

    def __repr__(self) -> str:
        """Says what it stands for, where, how far it is, and since when."""
        state = "pending"
        if self.done():
            state = "done" if self.exception() is None else "failed"
        age = time.monotonic() - self._started
        return f"<Work {self._operation} of {self._rank}: {state}, started {age:.1f} s ago>"
