"""A Work: the handle for an operation that was called with `async_op=True`."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, TypeVar, final

from telegrad.rpc import Future

T = TypeVar("T")
U = TypeVar("U")


@final
class Work(Generic[T]):
    """A handle for an operation that was called with `async_op=True`.

    Until the operation is done, its array belongs to it. Any thread may use the handle, and any
    event loop may await it.

    If NCCL runs the operation, it is done when the GPU has run it. `wait` does not wait for that:
    it returns when the GPU is sure to run it, and makes the current stream of its thread wait.

    Args:
        future: The future of the operation's value.
        operation: The operation, in words.
        rank: The group and the rank, in words.
        blocking: Returns the context manager that `wait` enters while it blocks.
        check: Raises if nobody may wait for it yet.
        arrival: The future of a function that returns the value for the current stream; None if the
            value is for all streams.

    Example:
        >>> import numpy as np
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     group = collectives.init_process_group()
        ...     x = np.array([1.0])
        ...     work = collectives.all_reduce(x, async_op=True)
        ...     work.wait()  # until then, x belongs to the operation
        ...     return x.item()
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [2.0, 2.0]
    """

    def __init__(
        self,
        future: Future[T],
        operation: str,
        rank: str,
        blocking: Callable[[], AbstractContextManager[None]] = nullcontext,
        check: Callable[[], None] = lambda: None,
        arrival: Future[Callable[[], T]] | None = None,
    ) -> None:
        self._future = future
        self._arrival = arrival
        self._operation = operation
        self._rank = rank
        self._blocking = blocking
        self._check = check
        self._started = time.monotonic()

    def wait(self, timeout: float | None = None) -> T:
        """Blocks until the operation is done and returns its value.

        Args:
            timeout: Seconds above 0 for this wait alone. None and `math.inf` wait until the
                operation ends, at its own deadline at the latest.

        Returns:
            The value that the verb returns without `async_op`.

        Raises:
            CallTimeoutError: The operation was not done within `timeout`, and goes on; or its own
                deadline has passed.
            CollectiveMismatchError: The ranks called different operations.
            WorkerLostError: A rank is lost.
            BlockingCallError: The caller runs on an event loop of telegrad; write `await work`.
        """
        self._check()
        # A wait with an end of its own is no block: this thread may enter other operations then.
        endless = timeout is None or timeout == math.inf
        with self._blocking() if endless else nullcontext():
            if self._arrival is not None:
                return self._arrival.wait(timeout)()
            return self._future.wait(timeout)

    def done(self) -> bool:
        """Returns True if the operation is over, with success or an error."""
        return self._future.done()

    def exception(self) -> BaseException | None:
        """Returns the error of an operation that is over, or None if it succeeded.

        Raises:
            RuntimeError: The operation is not over.
        """
        return self._future.exception()

    def then(self, callback: Callable[[Future[T]], U]) -> Future[U]:
        """Returns a future of `callback(future)`, for the operation's future; see `rpc.Future`."""
        return self._future.then(callback)

    def add_done_callback(self, callback: Callable[[Future[T]], object]) -> None:
        """Runs `callback` with the operation's future once it is over; see `rpc.Future`."""
        self._future.add_done_callback(callback)

    def __await__(self) -> Generator[Any, None, T]:
        """Waits on the running event loop; the operation outlives a cancelled task that waits."""
        self._check()
        return asyncio.shield(self._future).__await__()

    def __repr__(self) -> str:
        """Returns the operation, its group and rank, its state and its age."""
        state = "pending"
        if self.done():
            state = "done" if self.exception() is None else "failed"
        age = time.monotonic() - self._started
        return f"<Work {self._operation} of {self._rank}: {state}, started {age:.1f} s ago>"
