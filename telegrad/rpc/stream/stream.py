"""Streams: what a generator on another worker yields, read here item by item."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Protocol,
    TypeAlias,
    TypeVar,
    TypeVarTuple,
    final,
    overload,
)

from telegrad.rpc.agent.core import AgentCore, current_agent
from telegrad.rpc.base.frames import cut_own_frames
from telegrad.rpc.base.limits import seconds
from telegrad.rpc.call.user_call import call_payload
from telegrad.rpc.future.future import Future
from telegrad.rpc.future.unread import origin_here
from telegrad.rpc.stream.messages import STREAM
from telegrad.rpc.stream.reading import OVER, StreamReader, StreamReaders
from telegrad.rpc.stream.serving import StreamProducers
from telegrad.types import WorkerInfo
from telegrad.wire import register_refusal

T = TypeVar("T")
A = TypeVarTuple("A")
To = str | int | WorkerInfo


@final
class Stream(Generic[T]):
    """The items of a generator on another worker, in order, of `rpc.stream` or `rref.rpc_stream()`.

    An iterator, plain (`for`) and async (`async for`); a context manager, sync and async, that
    closes it. From any thread; where several read, each item goes to one of them. One that is
    garbage before its end is closed too, within a second or so.

    What goes wrong (what the generator raised, a lost worker, a deadline) is raised once the items
    before it were taken, and again by every later attempt.

    Example:
        >>> import itertools
        >>> from telegrad import rpc
        >>> def count() -> Iterator[int]:
        ...     yield from itertools.count()
        >>> with rpc.init_rpc("server"):
        ...     numbers = rpc.stream("server", count)
        ...     next(numbers), next(numbers)
        ...     numbers.close()  # the generator ends on its worker
        (0, 1)
    """

    __slots__ = ("__weakref__", "_reader")

    def __init__(self, reader: StreamReader) -> None:
        self._reader = reader
        reader.watch(origin_here())

    def close(self) -> None:
        """Stops reading: the generator is closed where it stands, and iteration ends.

        Idempotent; never blocks, and so does not wait until the generator is closed.
        """
        self._reader.close()

    async def aclose(self) -> None:
        """Does what `close` does."""
        self._reader.close()

    def cancel(self) -> bool:
        """Stops reading, as an error: its readers get CallCancelledError. Never blocks.

        Returns:
            True if it was open until now.
        """
        return self._reader.cancel()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        """Returns the next item; blocks until it is here.

        Raises:
            StopIteration: The generator has ended, or this was closed.
            CallTimeoutError: The item was not here in time; the generator is closed.
            CallCancelledError: `cancel` was called.
            WorkerLostError: The producer is gone.
            BlockingCallError: On an event loop that telegrad runs; write `async for`.
            Exception: The error of the generator.
        """
        try:
            value = self._reader.wait_next()
        except BaseException as error:
            cut_own_frames(error)
            raise
        if value is OVER:
            raise StopIteration
        item: T = value
        return item

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        """Returns the next item, on whichever asyncio loop runs; raises as `__next__` does.

        Cancelling the task that waits here cancels neither the stream nor loses an item.
        """
        try:
            value = await self._reader.await_next()
        except BaseException as error:
            cut_own_frames(error)
            raise
        if value is OVER:
            raise StopAsyncIteration
        item: T = value
        return item

    def __enter__(self) -> Stream[T]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Stream[T]:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        """Says whose it is and how far."""
        reader = self._reader
        return f"<Stream of {reader.record.function} on {reader.peer.name!r}: {reader.state}>"

    def __del__(self) -> None:
        if hasattr(self, "_reader"):  # else a signal handler raised in __init__
            self._reader.drop()


if TYPE_CHECKING:
    Items: TypeAlias = Iterator[T] | AsyncIterator[T]
    Given: TypeAlias = tuple[*A] | list[Any] | None
    Args: TypeAlias = tuple[Any, ...] | list[Any] | None
    Named: TypeAlias = Mapping[str, Any]

    # fmt: off
    class RpcStream(Protocol):
        """The type of `stream`: `args` fit the parameters of `func` if `kwargs` is not given."""

        @overload
        def __call__(self, to: To, func: Callable[[*A], Items[T]], args: Given[*A],
                     kwargs: None = None, timeout: float | None = None) -> Stream[T]: ...
        @overload
        def __call__(self, to: To, func: Callable[[], Items[T]], args: tuple[()] = (),
                     kwargs: None = None, timeout: float | None = None) -> Stream[T]: ...
        @overload
        def __call__(self, to: To, func: Callable[..., Items[T]], args: Args,
                     kwargs: Named, timeout: float | None = None) -> Stream[T]: ...
        @overload
        def __call__(self, to: To, func: Callable[..., Items[T]], args: Args = (),
                     *, kwargs: Named, timeout: float | None = None) -> Stream[T]: ...
    # fmt: on


def stream_verb(verb: Callable[..., Any]) -> RpcStream:
    """Gives a function or method the type of `stream`."""
    return verb


@stream_verb
def stream(
    to: To,
    func: Callable[..., Any],
    args: Args = (),
    kwargs: Mapping[str, Any] | None = None,
    timeout: float | None = None,
) -> Stream[Any]:
    """Runs a generator on a worker and returns its items as they are yielded.

    The generator runs a little ahead of whoever reads, a few items and megabytes at most; then it
    rests until some were taken. Items are copies, as the values of calls are, and in the
    autograd context in which this is called. The arguments are encoded before this returns; it
    never blocks. Errors of the call's form are raised here, all others while reading.

    A stream that is not read to its end is to be closed, by `with` best of all.

    Args:
        to: Name, rank or WorkerInfo.
        func: A generator function or an async generator function that the callee finds by its
            name; any other that returns an iterator will do.
        args: A tuple or list; None as `()`.
        kwargs: By name.
        timeout: Seconds above 0 that each next item may be waited for; None for
            `RpcOptions.timeout`; `math.inf` ends with an item or the callee's loss alone. What
            the served call that this is called in has left bounds the whole stream.

    Returns:
        The Stream.

    Raises:
        UnknownWorkerError: There is no such worker.
        EncodeError: The function or an argument cannot travel; nothing was sent.
        CallTimeoutError: The call that this code serves has no time left.
        NotInitializedError: No agent runs here.
        TypeError: An argument has the wrong form.

    Example:
        >>> from telegrad import rpc
        >>> def squares(n: int) -> Iterator[int]:
        ...     yield from (i * i for i in range(n))
        >>> with rpc.init_rpc("server"), rpc.stream("server", squares, (4,)) as items:
        ...     list(items)
        [0, 1, 4, 9]
    """
    return open_stream(current_agent(), to, func, args, kwargs, timeout)


def open_stream(
    agent: AgentCore,
    to: To,
    func: Callable[..., Any],
    args: Sequence[Any] | None = (),
    kwargs: Mapping[str, Any] | None = None,
    timeout: float | None = None,
) -> Stream[Any]:
    """Does what `stream` does, with an agent that is given."""
    peer = agent.members.find(to)
    limit = seconds(timeout, agent.options.timeout)
    name, payload = call_payload(func, args, kwargs)
    readers = agent.attachments[StreamReaders]

    def send(reader: StreamReader) -> Future[Any]:
        asked = {**payload, "stream": reader.number}
        return agent.calling.send(
            peer, STREAM, asked, function=name, timeout=math.inf, record=reader.record
        )

    return Stream(readers.open(peer, name, limit, send))


def attach_to(agent: AgentCore) -> None:
    """Gives an agent its streams."""
    agent.attachments.attach(StreamReaders(agent))
    agent.attachments.attach(StreamProducers(agent))


register_refusal(
    Stream,
    "a Stream does not travel, it is read where rpc.stream was called; send its items, or call "
    "rpc.stream on the other worker",
)
