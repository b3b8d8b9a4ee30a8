"""The consumer's end of streams: items are kept as they came, and decoded where they are read.

loop       item ──▶ Receiver ──▶ who waits is woken
reader     take in order ──▶ decode ──▶ value; now and then `more` ──▶ producer
loop       the reply: the end, decoded by the reader once no item is left
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import itertools
import math
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, final

from telegrad.errors import (
    BlockingCallError,
    CallCancelledError,
    CallTimeoutError,
    DecodeError,
    NotInitializedError,
    UnknownWorkerError,
    WorkerLostError,
)
from telegrad.rpc.call.failure import fresh_copy, rebuild_failure, without_frames
from telegrad.rpc.call.interceptor import CallRecord
from telegrad.rpc.call.served_call import ServedCall, current_served_call, still_runs
from telegrad.rpc.future.future import Future, new_future
from telegrad.rpc.future.unread import Origin, Report, Reports, reports_of
from telegrad.rpc.future.waits import NextItem, comes_from
from telegrad.rpc.stream.messages import ITEM, ITEMS_PER_TURN, MORE, STREAM, End, read_item
from telegrad.rpc.stream.protocol import Receiver
from telegrad.transport import on_own_loop
from telegrad.types import WorkerInfo
from telegrad.wire import Envelope

if TYPE_CHECKING:
    from telegrad.rpc.agent.core import AgentCore

__all__ = [
    "OVER",
    "StreamReader",
    "StreamReaders",
]


class _Mark(enum.Enum):
    OVER = "no item is left"
    NOTHING = "the next item is not here yet"


OVER: Final = _Mark.OVER
_NOTHING: Final = _Mark.NOTHING


@final
class StreamReader:
    """One stream, as its consumer sees it. From any thread.

    Args:
        readers: All of this worker; forgets this one when nothing more will come.
        number: What both ends call it.
        peer: The producer.
        record: This end's record of the request.
        limit: Seconds that a reader waits for the next item.
        told: Says of an error of the request what is raised where the stream is read.
        parent: The served call that opened it; None where no call did.
    """

    def __init__(
        self,
        readers: StreamReaders,
        number: int,
        peer: WorkerInfo,
        record: CallRecord,
        limit: float,
        told: Callable[[BaseException], BaseException],
        parent: ServedCall | None,
    ) -> None:
        self.number = number
        self.peer = peer
        self.record = record
        self.parent = parent
        self._readers = readers
        self._agent = readers.agent
        self._limit = limit
        self._told = told
        self._lock = threading.Lock()  # guards all below but the reply
        self._receiver: Receiver[Envelope] = Receiver()
        self._waiters: list[Future[None]] = []
        self._failure: BaseException | None = None
        self._reply: Future[Any] | None = None
        self._ended = False  # the reply is here
        self._read_end = False
        self._stopped = False
        self._deaf = False  # items that come now are not wanted
        self._lost: WorkerLostError | None = None
        self._origin: Origin | None = None  # until whoever reads has heard of a failure
        self._reports: Reports | None = None

    @property
    def label(self) -> str:
        """What it is called in messages."""
        return f"the stream of {self.record.function} on {self.peer.name!r}"

    @property
    def state(self) -> str:
        """How far it is, in words."""
        taken = self._receiver.taken
        if self._stopped:
            return f"closed after {taken} items"
        if self._failure is not None:
            return f"failed after {taken} items"
        return f"{'ended' if self._receiver.is_over else 'open'}, {taken} items taken"

    def start(self, reply: Future[Any]) -> None:
        """Takes the future of the request's reply."""
        self._reply = reply
        reply._call_when_done(self._on_reply)
        if self._stopped:  # the agent has ended meanwhile
            self._give_up_reply()

    def call_when_ended(self, waker: Callable[[], None]) -> None:
        """Has `waker` called when the reply is here, or given up; see `Future._call_when_done`."""
        assert self._reply is not None
        self._reply._call_when_done(waker)

    # Failures that nobody reads.

    def watch(self, origin: Origin | None) -> None:
        """Has a failure told in the log if nobody reads so far; see `unread`."""
        self._origin, self._reports = origin, reports_of(self._agent, origin)

    def report_failure(self) -> None:
        """Reports a failure that is known and was not read; for a finaliser."""
        if self._failure is not None:
            self._report(self._failure)

    def report_end(self) -> None:
        """Reports what the end may say that is here, and that nobody will read."""
        if self._ended:
            self._report(self._raise_end)

    def _report(self, error: BaseException | Callable[[], object]) -> None:
        origin, self._origin = self._origin, None
        if origin is not None and self._reports is not None and not self._stopped:
            self._reports.put(Report(self.label, origin, error))

    def _raise_end(self) -> None:
        end = self._end()
        failure = end if isinstance(end, BaseException) else end.failure
        if isinstance(failure, BaseException):
            raise failure
        if failure is not None:
            raise rebuild_failure(failure)

    # What the reader calls.

    def wait_next(self) -> Any:
        """Blocks for the next item; OVER at the end.

        Raises:
            BlockingCallError: On an event loop that telegrad runs, while the item is not here.
            BaseException: What the stream has ended with.
        """
        value, forget = self._poll(), _nothing
        try:
            while value is _NOTHING:
                if on_own_loop():
                    raise BlockingCallError(
                        f"the next item of {self.label} is waited for on a loop of telegrad's, "
                        "which it would block; write `async for`"
                    )
                waiter = self._waiter()
                if waiter is not None:
                    if forget is _nothing:
                        forget = self._expire_later()
                    try:
                        waiter.wait()
                    except BaseException:  # an interrupt
                        self._forget_waiter(waiter)
                        raise
                value = self._poll()
        finally:
            forget()
        return value

    async def await_next(self) -> Any:
        """Waits for the next item on the running loop; OVER at the end.

        Raises:
            BaseException: What the stream has ended with.
        """
        if self._receiver.taken % ITEMS_PER_TURN == ITEMS_PER_TURN - 1:
            await asyncio.sleep(0)  # items that are here already must not hold the loop
        value, forget = self._poll(), _nothing
        try:
            while value is _NOTHING:
                waiter = self._waiter()
                if waiter is not None:
                    if forget is _nothing:
                        forget = self._expire_later()
                    try:
                        await waiter
                    except BaseException:  # the task was cancelled; the stream is not
                        self._forget_waiter(waiter)
                        raise
                value = self._poll()
        finally:
            forget()
        return value

    def close(self, failure: BaseException | None = None) -> bool:
        """Gives it up: the generator is closed, items that were not taken are dropped.

        Args:
            failure: What is raised where it is read; None to end there as if it were over.

        Returns:
            Whether it was open until now.
        """
        with self._lock:
            was_open = not (self._stopped or self._receiver.is_over)
            if self._stopped or (failure is not None and not was_open):
                return False
            self._stopped = self._deaf = True
            self._failure = failure
            left = self._receiver.close()
            waiters = self._take_waiters()
        self._readers.forget(self, left)
        self._give_up_reply()
        _wake(waiters)
        return was_open

    def fail(self, error: BaseException) -> None:
        """Ends it with an error, once what is here and in order was read."""
        self._break_off(error)

    def cancel(self) -> bool:
        """Gives it up: who reads it gets CallCancelledError. Tells whether it was open."""
        return self.close(CallCancelledError(f"{self.label} was cancelled"))

    # What the loop calls.

    def arrive(self, number: int, size: int, envelope: Envelope) -> bool:
        """An item came; tells whether anybody may still read it.

        Raises:
            DecodeError: None was to come; the stream has failed.
        """
        try:
            with self._lock:
                if self._deaf:
                    return False
                self._receiver.arrive(number, size, envelope)
                waiters = self._take_waiters() if self._receiver.has_next else []
        except DecodeError as error:
            self.fail(error)
            raise
        _wake(waiters)
        return True

    def _on_reply(self) -> None:
        """The end is here, or known; whoever reads on will decode it."""
        with self._lock:
            self._ended = True
            waiters = self._take_waiters()
        _wake(waiters)

    def lose(self, error: WorkerLostError) -> None:
        """The producer is lost; items that the reply has overtaken will not come."""
        with self._lock:
            self._lost = error
            if not self._ended or self._stopped:
                return  # then the reply says so
            left = self._miss_the_rest()
            waiters = self._take_waiters()
        if left is not None:
            self._readers.forget(self, left)
        _wake(waiters)

    def _expire(self, taken: int) -> bool:
        """Breaks it off, unless items came since `taken` of them were; tells whether it did."""
        function, peer = self.record.function, self.peer.name
        return self._break_off(
            CallTimeoutError(
                f"the next item of {self.label} did not come within {self._limit:.3g} s; the "
                "generator is closed; give a longer timeout=, or math.inf",
                worker=peer,
                function=function,
                phase="waiting for the next item",
                elapsed=self._limit,
            ),
            since=taken,
        )

    # Inside.

    def _poll(self) -> Any:
        """Returns the next value, OVER or _NOTHING; raises what the stream has ended with."""
        self._agent.life.check_process()
        while True:
            with self._lock:
                envelope = self._receiver.take()
                taken = self._receiver.ask_for_more()
                over = self._receiver.is_over
                ended = self._ended and not self._read_end
            if envelope is not None:
                return self._open(envelope, taken, last=over)
            if over:
                break
            if not ended:
                return _NOTHING
            self._read_reply()
        if self._failure is not None:
            self._origin = None
            raise fresh_copy(self._failure)
        return OVER

    def _open(self, envelope: Envelope, taken: int | None, *, last: bool) -> Any:
        if taken is not None:
            with contextlib.suppress(WorkerLostError, UnknownWorkerError):  # its loss is the end
                self._agent.messages.post(self.peer, MORE, [self.number, taken])
        if last:
            self._readers.forget(self)
        try:
            return self._agent.codec.open(self.peer, self.record, envelope)
        except BaseException as error:
            self._origin = None
            kept = without_frames(fresh_copy(error))
            if not self.close(kept):
                with self._lock:
                    self._failure = None if self._stopped else kept
            raise

    def _read_reply(self) -> None:
        """Decodes the end, in the thread that reads; any number of threads at once."""
        end = self._end()
        if isinstance(end, BaseException):
            self.fail(end)
            return
        failure = None if end.failure is None else without_frames(rebuild_failure(end.failure))
        with self._lock:
            if self._read_end or self._stopped:
                return
            self._read_end = True
            try:
                self._receiver.end(end.items)
                self._failure = failure
                left = self._miss_the_rest()
            except DecodeError as garbage:
                self._failure = without_frames(garbage)
                left = self._break_receiver()
            over = self._receiver.is_over
        if over or left is not None:
            self._readers.forget(self, left)

    def _end(self) -> End | BaseException:
        reply = self._reply
        assert reply is not None
        try:
            error = reply.exception()
            return End.read(reply.value()) if error is None else self._told(error)
        except DecodeError as garbage:
            return self._told(garbage)

    def _miss_the_rest(self) -> list[Envelope] | None:
        """Ends it early where items before its end will not come; holds the lock.

        Returns:
            The items that can no longer be taken; None where it does not end early.
        """
        if self._lost is None or not self._read_end or self._receiver.is_whole:
            return None
        self._failure = without_frames(fresh_copy(self._told(self._lost)))
        return self._break_receiver()

    def _break_receiver(self) -> list[Envelope]:
        self._deaf = True
        return self._receiver.break_off()

    def _break_off(self, error: BaseException, since: int | None = None) -> bool:
        """Nothing further will come; what is here and in order may still be read.

        Args:
            error: What it ends with.
            since: Spares it where the next item is here, or more than so many were taken.

        Returns:
            False where it was spared.
        """
        with self._lock:
            receiver = self._receiver
            if self._read_end or self._stopped:
                return True
            if since is not None and (receiver.taken > since or receiver.has_next):
                return False
            self._read_end = True
            self._failure = without_frames(fresh_copy(error))
            left = self._break_receiver()
            waiters = self._take_waiters()
        self._readers.forget(self, left)
        self._give_up_reply()
        _wake(waiters)
        return True

    def _give_up_reply(self) -> None:
        if self._reply is not None:
            self._reply.cancel()

    def _waiter(self) -> Future[None] | None:
        """Returns what is done once something has changed; None where it has already."""
        with self._lock:
            receiver = self._receiver
            if receiver.has_next or receiver.is_over or (self._ended and not self._read_end):
                return None
            waiter = new_future(self._agent.pool.submit, f"the next item of {self.label}")
            if self._reply is not None:
                comes_from(waiter, NextItem(self._reply, receiver.taken))
            self._waiters.append(waiter)
        return waiter

    def _forget_waiter(self, waiter: Future[None]) -> None:
        with self._lock, contextlib.suppress(ValueError):
            self._waiters.remove(waiter)

    def _take_waiters(self) -> list[Future[None]]:
        waiters, self._waiters = self._waiters, []
        return waiters

    def _expire_later(self) -> Callable[[], None]:
        """Returns what forgets it. Others may read, too: while they get items, none is late."""
        if self._limit == math.inf:
            return _nothing
        return _Patience(self._agent, self._limit, self._receiver, self._expire).start()


@final
class _Patience:
    """Breaks a stream off when no item has come for long; set anew while items are taken.

    Args:
        agent: Keeps the time.
        limit: Seconds.
        receiver: Counts items.
        expire: Breaks it off unless more were taken than it is told; tells whether it did.
    """

    __slots__ = ("_agent", "_expire", "_forgotten", "_limit", "_receiver", "_stop", "_taken")

    def __init__(
        self,
        agent: AgentCore,
        limit: float,
        receiver: Receiver[Envelope],
        expire: Callable[[int], bool],
    ) -> None:
        self._agent = agent
        self._limit = limit
        self._receiver = receiver
        self._expire = expire
        self._taken = 0
        self._stop: Callable[[], None] = _nothing
        self._forgotten = False

    def start(self) -> Callable[[], None]:
        """Sets the timer; returns what forgets it."""
        self._arm()
        return self._forget

    def _arm(self) -> None:
        self._taken = self._receiver.taken
        self._stop = self._agent.deadlines.after(self._limit, self._look).cancel
        if self._forgotten:  # meanwhile
            self._forget()

    def _look(self) -> None:
        """On the loop."""
        if not self._expire(self._taken):
            self._arm()

    def _forget(self) -> None:
        self._forgotten = True
        stop, self._stop = self._stop, _nothing  # it refers back to this
        stop()


def _nothing() -> None:
    pass


def _wake(waiters: list[Future[None]]) -> None:
    for waiter in waiters:
        waiter.try_set_result(None)


# -- all streams that one worker reads: what arrives for them, and how they end with it ----------

# A stream that was dropped before its end is closed within this time: as long as nobody reads, the
# producer rests, so there is no hurry.
HOUSEKEEPING_SECONDS = 1.0


def _as_it_is(error: BaseException) -> BaseException:
    return error


@final
class StreamReaders:
    """The streams that this worker reads. From any thread; handlers run on the loop.

    Args:
        agent: This worker.
    """

    def __init__(self, agent: AgentCore) -> None:
        self.agent = agent
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()  # guards the next two
        self._readers: dict[int, StreamReader] = {}
        self._ticking = False
        self._dropped: SimpleQueue[int] = SimpleQueue()
        agent.inbox.register(ITEM, self._on_item)
        agent.inbox.on_loss(self._on_lost)
        agent.life.on_ending(self.end)
        agent.life.after_close(self.close)

    def __len__(self) -> int:
        """How many are open."""
        return len(self._readers)

    def open(
        self,
        peer: WorkerInfo,
        name: str,
        payload: dict[str, Any],
        limit: float,
        *,
        kind: str = STREAM,
        told: Callable[[BaseException], BaseException] = _as_it_is,
    ) -> StreamReader:
        """Asks a worker for a stream.

        Args:
            peer: The producer.
            name: What is called.
            payload: What `call_payload` made, or the like.
            limit: Seconds to wait for each next item.
            kind: What the producer serves it by.
            told: Says of an error of the request what is raised where the stream is read.

        Raises:
            EncodeError: The payload cannot travel; nothing was sent.
            CallTimeoutError: The call that this code serves has no time left.
            NotInitializedError: The agent was shut down.
        """
        reader = self._new(peer, name, limit, told)
        number = reader.number
        with self._lock:
            self._readers[number] = reader
        try:
            reply = self.agent.calling.send(
                peer,
                kind,
                {**payload, "stream": number},
                function=name,
                timeout=math.inf,
                record=reader.record,
            )
        except BaseException:
            self.forget(reader)
            raise
        reader.start(reply)
        self._keep_house()
        return reader

    def failed(self, peer: WorkerInfo, name: str, error: BaseException) -> StreamReader:
        """Returns a stream that was not asked for, since it is known how it would end."""
        reader = self._new(peer, name, math.inf, _as_it_is)
        reader.fail(error)
        return reader

    def _new(
        self,
        peer: WorkerInfo,
        name: str,
        limit: float,
        told: Callable[[BaseException], BaseException],
    ) -> StreamReader:
        number, parent = next(self._numbers), current_served_call()
        return StreamReader(self, number, peer, CallRecord(name), limit, told, parent)

    def drop(self, reader: StreamReader) -> None:
        """Hears from a finaliser that nobody reads a stream any more."""
        self._dropped.put(reader.number)

    def forget(self, reader: StreamReader, left: list[Envelope] | None = None) -> None:
        """Hears that nothing more will come for a stream; gives back what nobody will read."""
        with self._lock:
            self._readers.pop(reader.number, None)
        for envelope in left or ():
            self.agent.codec.drop(reader.peer, reader.record, envelope)

    def end(self) -> None:
        """Ends the streams that no served call needs: a graceful shutdown begins, or goes on.

        It would wait for them, and nobody need read on. What this worker serves it still serves.
        """
        self._end(lambda reader: not still_runs(reader.parent))

    def close(self) -> None:
        """Ends all streams, since the agent has ended."""
        self._end(lambda reader: True)

    def _end(self, is_meant: Callable[[StreamReader], bool]) -> None:
        with self._lock:
            readers = [reader for reader in self._readers.values() if is_meant(reader)]
        for reader in readers:
            message = f"{reader.label} was not read to its end before rpc.shutdown()"
            reader.close(NotInitializedError(message))

    def _on_item(self, peer: WorkerInfo, envelope: Envelope) -> None:
        header = read_item(envelope)
        reader = self._readers.get(header.stream)
        if reader is None or reader.peer != peer:
            self.agent.codec.drop(peer, CallRecord(ITEM), envelope)
            return
        wanted = False
        try:
            wanted = reader.arrive(header.number, header.size, envelope)
        finally:
            if not wanted:
                self.agent.codec.drop(peer, reader.record, envelope)

    def _on_lost(self, peer: WorkerInfo, error: WorkerLostError) -> None:
        with self._lock:
            readers = [reader for reader in self._readers.values() if reader.peer == peer]
        for reader in readers:
            reader.lose(error)

    def _keep_house(self) -> None:
        with self._lock:
            first = not self._ticking and bool(self._readers)
            self._ticking = self._ticking or first
        if first:
            self.agent.deadlines.after(HOUSEKEEPING_SECONDS, self._tick)

    def _tick(self) -> None:
        """Now and then while a stream is open; on the loop."""
        self.close_dropped()
        with self._lock:
            self._ticking = False
        self._keep_house()

    def close_dropped(self) -> None:
        """Closes the streams whose last reference is gone."""
        with contextlib.suppress(Empty):
            while True:
                reader = self._readers.get(self._dropped.get_nowait())
                if reader is not None:
                    reader.report_end()
                    reader.close()
