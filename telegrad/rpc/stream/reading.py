"""The consumer's end of streams: items are kept as they came, and decoded where they are read.

loop       item ──▶ Receiver ──▶ waiting readers are woken
reader     take in order ──▶ decode ──▶ value; now and then `more` ──▶ producer
pool       the reply is decoded: the end
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import itertools
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, final

from telegrad.critical import critical, in_section
from telegrad.errors import (
    CallCancelledError,
    CallTimeoutError,
    DecodeError,
    NotInitializedError,
    PoolExhaustedError,
    UnknownWorkerError,
    WorkerLostError,
)
from telegrad.rpc.base.call_record import CallRecord
from telegrad.rpc.base.failure import fresh_copy, rebuild_failure, without_frames
from telegrad.rpc.base.served_call import ServedCall, current_served_call, still_runs
from telegrad.rpc.future.future import Future, new_future
from telegrad.rpc.future.unread import Origin, Report, Reports, reports_of
from telegrad.rpc.future.waits import NextItem, comes_from
from telegrad.rpc.stream.messages import ITEM, ITEMS_PER_TURN, MORE, read_end, read_item
from telegrad.rpc.stream.protocol import StreamReceiver
from telegrad.transport import barred, put_off, refuse_in_section, refuse_to_block
from telegrad.types import WorkerInfo
from telegrad.wire import Envelope

if TYPE_CHECKING:
    from telegrad.rpc.agent.core import AgentCore


class _Mark(enum.Enum):
    OVER = "no item is left"
    NOTHING = "the next item is not here yet"


OVER: Final = _Mark.OVER
_NOTHING: Final = _Mark.NOTHING


@final
class StreamReader:
    """One stream, as its consumer sees it. All methods may be called from any thread.

    Args:
        readers: All streams of this worker; forgets this one when nothing more will come.
        number: The number by which both ends name it.
        peer: The producer.
        record: This end's record of the request.
        limit: Seconds that a reader waits for the next item.
        parent: The served call that opened it; None where no call did.
    """

    def __init__(
        self,
        readers: StreamReaders,
        number: int,
        peer: WorkerInfo,
        record: CallRecord,
        limit: float,
        parent: ServedCall | None,
    ) -> None:
        self.number = number
        self.peer = peer
        self.record = record
        self.parent = parent
        self._readers = readers
        self._limit = limit
        self._lock = threading.Lock()  # guards all below but the reply
        self._receiver: StreamReceiver[Envelope] = StreamReceiver()
        self._waiters: list[Future[None]] = []  # the oldest first
        self._reply: Future[Any] | None = None
        # The place where it was opened, until the reader has heard of a failure.
        self._unread: Origin | None = None
        self._reports: Reports | None = None

    @property
    def label(self) -> str:
        """Its name in messages."""
        return f"the stream of {self.record.function} on {self.peer.name!r}"

    @property
    def state(self) -> str:
        """The present state, in words."""
        receiver = self._receiver
        if receiver.is_closed:
            return f"closed after {receiver.taken} items"
        if receiver.failure is not None:
            return f"failed after {receiver.taken} items"
        return f"{'ended' if receiver.is_over else 'open'}, {receiver.taken} items taken"

    def start(self, reply: Future[Any]) -> None:
        """Takes the future of the request's reply."""
        self._reply = reply
        reply._call_when_done(self._hear_reply)
        if self._receiver.is_whole:  # the agent has ended meanwhile, or an item was garbage
            reply.cancel()

    def _hear_reply(self) -> None:
        pool = self._readers.agent.pool
        if not pool.submit_call(pool.new_context(), self._read_reply, nested=True):
            why = pool.shortage or f"all {pool.threads} threads of the pool are busy"
            self.fail(PoolExhaustedError(f"nobody can read the end of {self.label}: {why}"))

    # Its end as garbage.

    def watch(self, origin: Origin | None) -> None:
        """Logs a failure that nobody reads; see `unread`."""
        self._unread, self._reports = origin, reports_of(self._readers.agent)

    def drop(self) -> None:
        """Ends a stream that nobody reads any more; called by a finaliser."""
        heard = self._receiver.failure is None or self._unread is None
        if self._reports is not None and not (self._receiver.is_over and heard):
            self._reports.put(self._end_as_garbage)

    def _end_as_garbage(self) -> None:
        error, origin, self._unread = self._receiver.failure, self._unread, None
        if error is not None and origin is not None and not self._receiver.is_closed:
            Report(self.label, origin, error)()
        self.close()

    # For the reader.

    def wait_next(self) -> Any:
        """Blocks for the next item; returns OVER at the end.

        Raises:
            BlockingCallError: On an event loop that telegrad runs, while the item is not here.
            BaseException: The error with which the stream has ended.
        """
        while (value := self._poll()) is _NOTHING:
            if barred():
                refuse_to_block(f"to wait for the next item of {self.label}", "write `async for`")
            with self._waiting() as waiter:
                if waiter is not None:
                    waiter.wait()
        return value

    async def await_next(self) -> Any:
        """Waits for the next item on the running loop; returns OVER at the end.

        Raises:
            BaseException: The error with which the stream has ended.
        """
        if self._receiver.taken % ITEMS_PER_TURN == ITEMS_PER_TURN - 1:
            await asyncio.sleep(0)  # items that are here already must not hold the loop
        while (value := self._poll()) is _NOTHING:
            with self._waiting() as waiter:  # if the task is cancelled, the stream is not
                if waiter is not None:
                    await waiter
        return value

    def close(self, failure: BaseException | None = None) -> bool:
        """Gives it up: the generator is closed, items that were not taken are dropped.

        Args:
            failure: The error that is raised at the reader; None to end there as if it were over.

        Returns:
            True if it was open until now.
        """
        if in_section():
            put_off(partial(self.close, failure))
            return not self._receiver.is_over
        with critical.section, self._lock:
            was_open = not self._receiver.is_over
            if self._receiver.is_closed or (failure is not None and not was_open):
                return False
            left = self._receiver.close(failure)
        self._finish(left)
        self._wake()
        return was_open

    def fail(self, error: BaseException) -> None:
        """Ends it with an error, once the items that are here and in order were read."""
        with critical.section, self._lock:
            if self._receiver.is_whole:
                return
            left = self._receiver.break_off(without_frames(fresh_copy(error)))
        self._finish(left)
        self._wake()

    def cancel(self) -> bool:
        """Gives it up: its reader gets CallCancelledError. Returns True if it was open."""
        return self.close(CallCancelledError(f"{self.label} was cancelled"))

    # For the loop.

    def arrive(self, number: int, size: int, envelope: Envelope) -> bool:
        """Takes an item; returns True if it may still be read.

        Raises:
            DecodeError: None was to come; the stream has failed.
        """
        try:
            with critical.section, self._lock:
                if self._receiver.is_whole:
                    return False
                self._receiver.arrive(number, size, envelope)
                is_next = self._receiver.has_next
        except DecodeError as error:
            self.fail(error)
            raise
        if is_next:
            self._wake()
        return True

    def lose(self, error: WorkerLostError) -> None:
        """Records that the producer is lost; items that the reply has overtaken will not come."""
        if self._reply is not None and self._reply.done():
            self._read_reply()
        explain = self.record.explain
        self.fail(error if explain is None else explain(error))

    def _expire(self, waiter: Future[None]) -> None:
        """Breaks it off if a reader still waits as it did `limit` seconds ago; on the loop."""
        with critical.section, self._lock:
            if waiter not in self._waiters:
                return
        self.fail(
            CallTimeoutError(
                f"the next item of {self.label} did not come within {self._limit:.3g} s; the "
                "generator is closed; give a longer timeout=, or math.inf",
                worker=self.peer.name,
                function=self.record.function,
                phase="waiting for the next item",
                elapsed=self._limit,
            )
        )

    # Inside.

    def _poll(self) -> Any:
        """Returns the next value, OVER or _NOTHING; raises the error that it has ended with."""
        receiver = self._receiver
        self._readers.agent.life.check_process()
        refuse_in_section(f"the next item of {self.label}")
        with critical.section, self._lock:
            envelope = receiver.take()
            taken = receiver.ask_for_more()
            over = receiver.is_over
        if envelope is not None:
            return self._open(envelope, taken, last=over)
        if not over:
            return _NOTHING
        if receiver.failure is not None:
            self._unread = None
            raise fresh_copy(receiver.failure)
        return OVER

    def _open(self, envelope: Envelope, taken: int | None, *, last: bool) -> Any:
        agent = self._readers.agent
        if taken is not None:
            with contextlib.suppress(WorkerLostError, UnknownWorkerError):  # its loss is the end
                agent.messages.post(self.peer, MORE, [self.number, taken])
        if last:
            self._finish()
        try:
            return agent.codec.open(self.peer, self.record, envelope)
        except BaseException as error:
            self._unread = None
            kept = without_frames(fresh_copy(error))
            if not self.close(kept) and not self._receiver.is_closed:
                self._receiver.failure = kept
            raise

    def _read_reply(self) -> None:
        """Decodes the end, in the pool, or says why none came."""
        reply, receiver = self._reply, self._receiver
        assert reply is not None
        try:
            items, failed = read_end(reply.value())
            failure = None if failed is None else without_frames(rebuild_failure(failed))
            with critical.section, self._lock:
                if receiver.is_whole:
                    return
                receiver.end(items, failure)
                over = receiver.is_over
        except BaseException as error:  # whatever the reply has brought
            self.fail(error)
            return
        if over:
            self._finish()
        self._wake()

    def _finish(self, left: list[Envelope] | None = None) -> None:
        """Takes leave of the producer; `left` are the items that nobody will read."""
        self._readers.forget(self, left)
        if self._reply is not None:
            self._reply.cancel()

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[Future[None] | None]:
        """Yields a future that is completed at the next change; None if that has come already."""
        agent, receiver = self._readers.agent, self._receiver
        with critical.section, self._lock:
            if receiver.has_next or receiver.is_over:
                waiter = None
            else:
                waiter = new_future(agent.pool.submit, f"the next item of {self.label}")
                if self._reply is not None:
                    comes_from(waiter, NextItem(self._reply, receiver.taken))
                self._waiters.append(waiter)
        if waiter is None:
            yield None
            return
        timer = agent.deadlines.after(self._limit, partial(self._expire, waiter))
        try:
            yield waiter
        finally:
            timer.cancel()
            with critical.section, self._lock, contextlib.suppress(ValueError):
                self._waiters.remove(waiter)

    def _wake(self) -> None:
        """Lets all readers look again."""
        with critical.section, self._lock:
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.try_set_result(None)


# -- all streams that one worker reads: what arrives for them, and how they end with it ----------


@final
class StreamReaders:
    """The streams that this worker reads. From any thread; handlers run on the loop."""

    def __init__(self, agent: AgentCore) -> None:
        self.agent = agent
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()  # guards the next one
        self._readers: dict[int, StreamReader] = {}
        agent.inbox.register(ITEM, self._on_item, takes_failed=True)
        agent.inbox.on_loss(self._on_lost)
        agent.life.on_ending(self.end)
        agent.life.after_close(partial(self.end, all_of_them=True))

    def __len__(self) -> int:
        """Returns the number of open streams."""
        return len(self._readers)

    def open(
        self,
        peer: WorkerInfo,
        name: str,
        limit: float,
        send: Callable[[StreamReader], Future[Any]],
    ) -> StreamReader:
        """Asks a worker for a stream.

        Args:
            peer: The producer.
            name: The name of what is called.
            limit: Seconds to wait for each next item.
            send: `send(reader)` sends the request, without a time limit and with the number of the
                reader as `stream`; returns the future of its reply.

        Raises:
            EncodeError: The payload cannot travel; nothing was sent.
            CallTimeoutError: The call that this code serves has no time left.
            NotInitializedError: The agent was shut down.
        """
        refuse_in_section(f"a stream of {name}")
        number = next(self._numbers)
        reader = StreamReader(self, number, peer, CallRecord(name), limit, current_served_call())
        with critical.section, self._lock:
            self._readers[number] = reader
        try:
            reply = send(reader)
        except BaseException:
            self.forget(reader)
            raise
        reader.start(reply)
        return reader

    def forget(self, reader: StreamReader, left: list[Envelope] | None = None) -> None:
        """Forgets a stream for which nothing more will come; gives back items that nobody reads."""
        with critical.section, self._lock:
            self._readers.pop(reader.number, None)
        for envelope in left or ():
            self.agent.codec.drop(reader.peer, reader.record, envelope)

    def end(self, *, all_of_them: bool = False) -> None:
        """Ends the streams that no served call needs: a graceful shutdown begins, or goes on.

        It would wait for them, and nobody need read on. The calls that this worker serves go on.

        Args:
            all_of_them: True once the agent has ended.
        """
        with critical.section, self._lock:
            readers = list(self._readers.values())
        for reader in readers:
            if all_of_them or not still_runs(reader.parent):
                message = f"{reader.label} was not read to its end before rpc.shutdown()"
                reader.close(NotInitializedError(message))

    def _on_item(self, peer: WorkerInfo, envelope: Envelope) -> None:
        stream, number, size = read_item(envelope)
        reader = self._readers.get(stream)
        if reader is None or reader.peer != peer:
            self.agent.codec.drop(peer, CallRecord(ITEM), envelope)
            return
        wanted = False
        try:
            wanted = reader.arrive(number, size, envelope)
        finally:
            if not wanted:
                self.agent.codec.drop(peer, reader.record, envelope)

    def _on_lost(self, peer: WorkerInfo, error: WorkerLostError) -> None:
        with critical.section, self._lock:
            readers = [reader for reader in self._readers.values() if reader.peer == peer]
        for reader in readers:
            reader.lose(error)
