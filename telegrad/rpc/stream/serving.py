"""The producer's end of streams: runs a generator as far as its consumer has room.

    plain generator   a thread of the pool runs it while there is room; then the thread is free and
                      the generator rests until `more` comes
    async generator   one task of the user loop for all of it, which awaits room

Either way it runs inside one contextvars.Context from its first line to its last, so that a `with`
block around a `yield` leaves what it has entered. Cancelling the call closes it: its `finally`
blocks run.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, final

from telegrad.critical import critical
from telegrad.errors import DecodeError, EncodeError, UnknownWorkerError, WorkerLostError
from telegrad.rpc.base.failure import describe_failure
from telegrad.rpc.base.served_call import ServedCall, current_served_call
from telegrad.rpc.call.bare_calls import ARGUMENTS
from telegrad.rpc.call.user_call import (
    CallMode,
    Prepare,
    UserCall,
    admit_function,
    plain_function,
    read_arguments,
)
from telegrad.rpc.future.future import Future, new_future
from telegrad.rpc.future.waits import comes_from, pool_thread
from telegrad.rpc.stream.messages import (
    ITEM,
    ITEMS_PER_TURN,
    MORE,
    STREAM,
    read_more,
    read_number,
    size_of,
    write_item,
)
from telegrad.rpc.stream.protocol import Sender
from telegrad.transport import get_logger
from telegrad.types import WorkerInfo
from telegrad.wire import Envelope, read_head

if TYPE_CHECKING:
    from telegrad.rpc.agent.core import AgentCore

_logger = get_logger(__name__)


class _ConsumerGoneError(Exception):
    """The error that nobody reads any more; never leaves this module."""


@final
class Production:
    """One stream, as its producer sees it.

    Args:
        producers: The streams of this worker, which forget this one at its end.
        consumer: The worker that reads it.
        number: The number of the stream at both ends.
        name: The name of the function.
    """

    def __init__(
        self, producers: StreamProducers, consumer: WorkerInfo, number: int, name: str
    ) -> None:
        served = current_served_call()
        assert served is not None
        self.consumer = consumer
        self.number = number
        self.name = name
        self._served = served
        self._producers = producers
        self._agent = producers.agent
        self._context = contextvars.copy_context()
        self._end: Future[dict[str, object]] = new_future(
            self._agent.pool.submit, f"stream of {name}"
        )
        self._lock = threading.Lock()  # guards all below
        self._sender = Sender()
        self._wanted = True  # nobody has said that it is to stop
        self._resting: Callable[[], object] | None = None  # wakes the generator

    @property
    def rests(self) -> bool:
        """True if it waits until an item was read."""
        return self._resting is not None

    def begin(self, call: UserCall) -> Any:
        """Calls the function and begins to run its iterator; returns the future of the end.

        Raises:
            TypeError: The function returned no iterator.
        """
        self._served.record.served = plain_function(call.func)
        try:
            source = call()
            if isinstance(source, Iterator):
                self._served.on_cancel(self.stop)
                self._work(source)
                return self._end
            if isinstance(source, AsyncIterator):
                self._served.on_cancel(self.stop)  # it may swallow the cancellation of its task
                produce = partial(self._produce_async, source)
                task = UserCall(produce, mode=CallMode.COROUTINE, name=self.name)
                outcome = self._agent.serving.runner.run_to_future(task)
                outcome._call_when_done(self._forget)
                return outcome
            if inspect.iscoroutine(source):
                source.close()
            raise TypeError(
                f"{self.name} returned {type(source).__name__}, which is no stream; rpc.stream "
                "takes generator and async generator functions: write `yield`, or call it with "
                "rpc.rpc_sync"
            )
        except BaseException:
            self._forget()
            raise

    def more(self, taken: int) -> None:
        """Records how many items the consumer has taken.

        Raises:
            DecodeError: So many were never sent.
        """
        with critical.section, self._lock:
            self._sender.more(taken)
            wake = self._take_rest() if self._sender.has_room else None
        if wake is not None:
            wake()

    def stop(self) -> None:
        """Closes the generator, at once if it rests, else at its next `yield`."""
        with critical.section, self._lock:
            self._wanted = False
            wake = self._take_rest()
        if wake is not None:
            wake()

    # A plain generator.

    def _work(self, source: Iterator[Any]) -> None:
        """Runs a generator as far as there is room, in a thread of the pool, or to its end."""
        comes_from(self._end, pool_thread())
        error: BaseException | None = None
        try:
            # Outside of the Context, which the next thread enters.
            while not self._rests_for(partial(self._agent.pool.submit, self._work, source)):
                value = self._context.run(next, source, self)
                if value is self:
                    break
                self._context.run(self._send, value)
            else:
                return
        except BaseException as failure:  # around the user's function
            error = failure
        if isinstance(source, Generator):
            try:
                self._context.run(source.close)
            except BaseException as failure:  # around the user's function
                self._log_close(failure)
        end = self._context.run(self._describe, error)
        self._forget()
        self._end.try_set_result(end)

    def _rests_for(self, wake: Callable[[], object]) -> bool:
        """Returns True if it must rest until `wake` is called, False if there is room.

        Raises:
            _ConsumerGoneError: Nobody wants a further item.
        """
        with critical.section, self._lock:
            if not self._wanted:
                raise _ConsumerGoneError
            if self._sender.has_room:
                return False
            comes_from(self._end, None)  # a wait for it is a wait for its reader
            self._resting = wake
            return True

    # An async generator.

    async def _produce_async(self, source: AsyncIterator[Any]) -> dict[str, object]:
        """Sends items as there is room for them, and returns the end."""
        error: BaseException | None = None
        try:
            while True:
                await self._room()
                try:
                    value = await anext(source)
                except StopAsyncIteration:
                    break
                self._send(value)
        except BaseException as failure:  # around the user's function
            task = asyncio.current_task()
            if isinstance(failure, asyncio.CancelledError) and task and task.cancelling():
                raise
            error = failure
        finally:
            if isinstance(source, AsyncGenerator):
                await self._close_async(source)
        return self._describe(error)

    async def _room(self) -> None:
        """Waits until an item may be sent; lets the user loop's other tasks run now and then.

        Raises:
            _ConsumerGoneError: Nobody wants one, and the task has swallowed its cancellation.
        """
        if self._sender.sent % ITEMS_PER_TURN == ITEMS_PER_TURN - 1:
            await asyncio.sleep(0)
        try:
            while not (self._wanted and self._sender.has_room):
                room: Future[None] = new_future(None, f"room for the stream of {self.name}")
                if self._rests_for(partial(room.try_set_result, None)):
                    await room
        except _ConsumerGoneError:
            # The cancellation of the task may still be on its way: let it come before the generator
            # closes, whose `finally` blocks it would cut short.
            await asyncio.sleep(0)
            raise

    async def _close_async(self, source: AsyncGenerator[Any, Any]) -> None:
        try:
            await source.aclose()
        except asyncio.CancelledError:
            raise
        except BaseException as failure:  # around the user's function
            self._log_close(failure)

    # Either.

    def _send(self, value: object) -> None:
        codec, consumer = self._agent.codec, self.consumer
        record = self._served.record
        sealed = codec.seal(consumer, ITEM, record, value, reply=True, final=False)
        size = size_of(sealed.envelope)
        with critical.section, self._lock:
            number = self._sender.send(size)
            self._served.items = self._sender.sent
        write_item(sealed.envelope, self.number, number, size)
        try:
            self._agent.messages.post_envelope(consumer, sealed.envelope)
        except (WorkerLostError, UnknownWorkerError):
            sealed.take_back()
            raise _ConsumerGoneError from None
        except EncodeError:  # it refers to more than an envelope has room for
            sealed.take_back()
            with critical.section, self._lock:
                self._sender.unsend()
                self._served.items = self._sender.sent
            raise

    def _describe(self, error: BaseException | None) -> dict[str, object]:
        told = error is not None and not isinstance(error, _ConsumerGoneError)
        failure = describe_failure(error, self._agent.info.name) if error and told else None
        return {"items": self._sender.sent, "failure": failure}

    def _take_rest(self) -> Callable[[], object] | None:
        wake, self._resting = self._resting, None
        return wake

    def _forget(self) -> None:
        self._producers.forget(self)
        # The served call, which is in there, refers to this.
        self._context = contextvars.Context()

    def _log_close(self, error: BaseException) -> None:
        """Logs an error of a generator's end, which nobody waits for."""
        _logger.warning(
            "closing the generator of the stream of %s, read by %r, failed",
            self.name,
            self.consumer.name,
            exc_info=error,
        )


@final
class StreamProducers:
    """The streams that others read from this worker. From any thread; handlers run on the loop."""

    def __init__(self, agent: AgentCore) -> None:
        self.agent = agent
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._productions: dict[tuple[WorkerInfo, int], Production] = {}
        agent.serving.serve_named(STREAM, self._admit)
        agent.inbox.register(MORE, self._on_more)
        agent.life.before_leaving(self._wait_until_closed)
        agent.life.after_close(self.close)

    def __len__(self) -> int:
        """Returns the number of streams that have not ended: their generators may still run."""
        return len(self._productions)

    @property
    def resting(self) -> int:
        """The number of streams that wait until an item was read."""
        with critical.section, self._lock:
            return sum(production.rests for production in self._productions.values())

    def forget(self, production: Production) -> None:
        """Removes a stream that has ended."""
        with critical.section, self._changed:
            self._productions.pop((production.consumer, production.number), None)
            self._changed.notify_all()

    def close(self) -> None:
        """Closes the generators that rest, as the agent has ended."""
        with critical.section, self._lock:
            left = list(self._productions.values())
        for production in left:
            production.stop()

    def _wait_until_closed(self, seconds: float) -> None:
        """Waits for generators that still close: a cancelled call has its reply before that."""
        with critical.section, self._changed:
            self._changed.wait_for(lambda: not self._productions, seconds)

    def _admit(self, call: ServedCall, document: bytes) -> Prepare:
        name, func = admit_function(
            self.agent.permissions.resolve, call, read_head(document, ARGUMENTS)
        )

        def prepare(caller: WorkerInfo, payload: object) -> UserCall:
            args, kwargs = read_arguments(payload, name)
            number = read_number(payload)
            return self.produce(caller, number, UserCall(func, args, kwargs, name=name))

        return prepare

    def produce(self, caller: WorkerInfo, number: int, call: UserCall) -> UserCall:
        """Returns the UserCall that runs a generator, inside the call that is served now.

        Args:
            caller: The worker that reads the stream.
            number: The number of the stream at both ends.
            call: The call that returns the generator.

        Raises:
            DecodeError: The consumer has a stream of this number.
        """
        name = call.name
        production = Production(self, caller, number, name)
        with critical.section, self._lock:
            if self._productions.setdefault((caller, number), production) is not production:
                raise DecodeError(f"{caller.name!r} has a stream of number {number} already")
        return UserCall(partial(production.begin, call), mode=CallMode.FUTURE, name=name)

    def _on_more(self, peer: WorkerInfo, envelope: Envelope) -> None:
        number, taken = read_more(envelope)
        production = self._productions.get((peer, number))
        if production is not None:  # else it has ended meanwhile
            production.more(taken)
