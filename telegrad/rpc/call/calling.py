"""The caller's end of calls: a reply, a deadline, a loss or a cancellation ends each of them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias, final

from telegrad.critical import critical
from telegrad.errors import (
    CallCancelledError,
    CallTimeoutError,
    DecodeError,
    EncodeError,
    NotInitializedError,
    UnknownWorkerError,
    WorkerLostError,
)
from telegrad.rpc.base.failure import fresh_copy, rebuild_failure
from telegrad.rpc.base.interceptor import CallRecord
from telegrad.rpc.base.life import Life
from telegrad.rpc.base.limits import Limits, seconds
from telegrad.rpc.base.served_call import ServedCall, innermost_served_call
from telegrad.rpc.call.admission_caller import ADMIT, CallerAdmission
from telegrad.rpc.call.away import AwayCalls, is_loss
from telegrad.rpc.call.codec import MessageCodec, Sealed, kept
from telegrad.rpc.call.serving import CANCEL, ERROR, EXPIRE, REPLY
from telegrad.rpc.call.table import Again, CallTable, PendingCall
from telegrad.rpc.call.whereabouts import ASK_SECONDS, ASK_SHARE, WHERE, words
from telegrad.rpc.future.future import Future, later, new_future
from telegrad.rpc.future.waits import Dispatch
from telegrad.rpc.pool.deadlines import Deadlines
from telegrad.rpc.pool.inbox import Inbox
from telegrad.transport import Exchange
from telegrad.types import WorkerInfo
from telegrad.wire import Envelope, read_body, write_body

# Replies that nobody read hold RRef forks; they are given back to the interceptors this often.
HOUSEKEEPING_SECONDS = 1.0
# A call that is due later enters the heap of deadlines shortly before, by the housekeeping: nearly
# all are answered earlier, and cost the heap nothing. Twice the time between two looks, since one
# may be late.
SOON_SECONDS = 2 * HOUSEKEEPING_SECONDS

# The result, for its caller, of a call that is never retried and whose callee is lost.
UNANSWERED = (
    "got no answer; it may have run there, in part or not at all, and it is not sent again: "
    "call a living worker where that is right"
)

UNSENT = "was not sent"
UNTOLD = "its callee did not say where it is"


_Unread: TypeAlias = tuple[WorkerInfo, CallRecord, Envelope]


@final
@dataclass(slots=True, eq=False)
class _Reply:
    """A reply as it arrived; called once, by the first thread that needs the value."""

    # Not the call, which refers to the future, and that to this: once the last reference is gone
    # nobody can read it.
    _codec: MessageCodec
    _peer: WorkerInfo
    _record: CallRecord
    _values: bool
    _envelope: Envelope | None
    _unread: SimpleQueue[_Unread]

    def __call__(self) -> object:
        envelope, self._envelope = self._envelope, None
        assert envelope is not None
        if self._values:
            body = self._codec.open(self._peer, self._record, envelope)
        else:
            body = read_body(envelope)
        if envelope.kind == ERROR:
            error = rebuild_failure(body)
            raise error if self._record.explain is None else self._record.explain(error)
        return body

    def __del__(self) -> None:
        if self._envelope is not None and self._values:
            self._unread.put((self._peer, self._record, self._envelope))


@final
class Calling:
    """The calls that this worker has made and waits for.

    Args:
        life: Knows if this process still is the agent's; has this worker's name.
        codec: Seals requests and opens replies.
        deadlines: The deadlines of calls.
        submit: Runs callbacks of futures in the pool.
        exchange: Posts requests; a thread that waits for a reply reads its sockets.
        inbox: Hands over replies and losses.
        limits: The limits for which root calls wait.
        timeout: The timeout of calls that give none, in seconds.

    Attributes:
        away: The calls that wait for the return of their callee.
    """

    def __init__(
        self,
        life: Life,
        codec: MessageCodec,
        deadlines: Deadlines,
        submit: Dispatch,
        exchange: Exchange,
        inbox: Inbox,
        limits: Limits,
        timeout: float,
    ) -> None:
        self._life = life
        self._codec = codec
        self._deadlines = deadlines
        self._submit = submit
        self._post = exchange.post
        self._timeout = timeout
        self._reads = exchange.reader
        self._unconnected = exchange.unconnected
        self._table = CallTable()
        self._admission = CallerAdmission(limits, exchange.post, self._post_late)
        self._unread: SimpleQueue[_Unread] = SimpleQueue()
        self.away = AwayCalls(life, deadlines, codec, self._start, self._end_pending)
        self._closed = False
        self._evicted: WorkerLostError | None = None
        self._on_given_up: list[Callable[[BaseException], None]] = []
        inbox.take_reply = self.on_reply
        inbox.on_loss_at_once(self.lose)
        inbox.register(ADMIT, self._admission.on_admit)

    @property
    def sent(self) -> int:
        """The number of calls that were made."""
        return self._table.sent

    @property
    def pending(self) -> int:
        """The number of calls that wait for their reply."""
        return self._table.pending

    @property
    def waiting(self) -> int:
        """The number of those calls that wait for admission."""
        return self._admission.waiting

    def on_given_up(self, callback: Callable[[BaseException], None]) -> None:
        """Calls `callback(error)` when this worker leaves or is evicted: it must not block."""
        self._on_given_up.append(callback)

    def send(
        self,
        to: WorkerInfo,
        kind: str,
        payload: object,
        *,
        function: str,
        timeout: float | None = None,
        at_once: bool = False,
        record: CallRecord | None = None,
        again: Again | None = None,
    ) -> Future[Any]:
        """Sends a request of any kind that carries user values; `Serving.serve` is the other end.

        Args:
            to: The callee.
            kind: The kind that the callee has registered with `serve`.
            payload: The value, which goes through the codec and the interceptors as it is now.
            function: The name of the function, for errors and logs.
            timeout: Seconds; None for the default. The time left to the served call bounds it.
            at_once: True if it goes without admission (`Limits`) even by code that serves nobody.
            record: This end's record of the call, for a caller that opens more replies than the
                last one.
            again: The means to send it again when its callee was lost; with a `loss` it waits for
                the callee's return at once.

        Returns:
            The future of the reply's value.

        Raises:
            EncodeError: The payload cannot travel; nothing was sent.
            CallTimeoutError: The call that this code serves has no time left.
            NotInitializedError: The agent was shut down.
            AgentForkedError: This process was forked from that of the agent.
        """
        if self._life.forked:  # a child has none of the threads that answer
            self._life.check_process()
        if critical.section._is_owned():
            late = partial(
                self.send,
                to,
                kind,
                kept(payload),
                function=function,
                timeout=timeout,
                at_once=at_once,
                record=record,
                again=again,
            )
            return later(self._submit, f"the call of {function} on {to.name!r}", late)
        limit = self._timeout if timeout is None else seconds(timeout, self._timeout)
        depth, parent = 0, innermost_served_call()
        if parent is not None and not parent.active:
            parent = None
        if parent is not None:
            left, depth = parent.deadline - time.monotonic(), parent.depth + 1
            limit = min(limit, left)
            _check_parent(parent, left, function, to)
        if self._closed:
            raise self._closed_error()
        if record is None:
            record = CallRecord(function)
        sealed = None
        if again is None or again.loss is None:
            sealed = self._codec.seal(to, kind, record, payload, reply=False)
            sealed.envelope.depth = depth
        future = new_future(self._submit, "the call of %s on %r", function, to.name)
        here = to.name == self._life.name
        root = depth == 0 and not at_once and not here
        call = PendingCall(
            to,
            record,
            future,
            None if here else self._reads,  # the thread that serves it may want to read
            future._made,
            limit,
            values=True,
            parent=parent,
            again=again,
        )
        try:
            self._start(call, sealed, root=root)
        except BaseException:  # of a signal handler too: nobody has the future to cancel
            future.cancel()
            raise
        if parent is not None and parent.cancelled:  # perhaps before it heard of this one
            future.cancel()
            self._cancel(call.number)
        return future

    def request(
        self, to: WorkerInfo, kind: str, body: object, limit: float, most: int = 0
    ) -> Future[Any]:
        """Sends a protocol request, for at most `limit` seconds; see `Messages.request`."""
        memory = partial(self._codec.memory, to)
        sealed = Sealed(write_body(kind, body, memory=memory))
        future = new_future(self._submit, f"{kind} to {to.name!r}")
        record = CallRecord(kind, most=most)
        call = PendingCall(to, record, future, self._reads, future._made, limit, values=False)
        self._start(call, sealed)
        return future

    def labels(self) -> list[str]:
        """Returns the calls that wait for their reply, in words, the oldest first."""
        return self._table.labels()

    def is_pending(self, call: PendingCall) -> bool:
        """Returns True if a call is this worker's, and waits for its reply."""
        return self._table.find(call.number) is call

    def on_reply(self, peer: WorkerInfo, envelope: Envelope) -> None:
        """Takes a reply; on the loop, or in a thread that waits for it; decodes nothing."""
        call = self._table.take(peer, envelope.call)
        if call is None:
            return
        if call.window is not None:
            self._admission.leave(call)
        if call.deadline is not None:
            call.deadline.cancel()
        # The deadline decides: a late loop calls `_expire` after a thread has read this.
        late = not call.given_up and time.monotonic() - call.started > call.limit
        if late:
            call.future.try_set_exception(_timed_out(call, "its reply came too late"))
        if late or call.given_up:
            if call.values:
                call.record.answered = envelope.kind == REPLY
                self._codec.drop(peer, call.record, envelope)
            return
        if call.record.most and len(envelope.document) > call.record.most:
            call.future.try_set_exception(
                DecodeError(
                    f"the answer of {peer.name!r} to {call.record.function} is too large (bytes: "
                    f"{len(envelope.document)}, at most {call.record.most} are read)"
                )
            )
            return
        if envelope.kind == REPLY and self._codec.says_nothing(envelope):  # as for many calls
            call.future.try_set_result(None)
            return
        reply = _Reply(self._codec, peer, call.record, call.values, envelope, self._unread)
        call.future._try_set_thunk(reply, fails=envelope.kind == ERROR)

    def lose(self, peer: WorkerInfo, error: WorkerLostError) -> None:
        """Fails the calls that wait for a lost worker."""
        self._fail(lambda other: other == peer, error)

    def close(self, error: WorkerLostError | None = None) -> None:
        """Fails all calls that wait, and all that are sent from now on.

        Args:
            error: The reason; None for a shutdown.
        """
        if error is not None:
            self._evicted = error
        self._closed = True
        self.away.close(evicted=error is not None)
        for call in self._fail(lambda _: True, self._closed_error()):
            if error is not None:  # this worker still serves calls to itself, maybe without an end
                self._tell(call, CANCEL)
        for callback in self._on_given_up:
            callback(self._closed_error())
        self.drop_unread()

    def keep_house(self) -> None:
        """Gives back the replies that nobody read, and checks deadlines, at times; on the loop."""
        if not self._closed:
            self._deadlines.after(HOUSEKEEPING_SECONDS, self.keep_house)
            for call in self._table.due_before(time.monotonic() + SOON_SECONDS):
                self._watch(call)
        self.drop_unread()

    def drop_unread(self) -> None:
        """Gives back the replies whose futures are gone."""
        with contextlib.suppress(Empty):
            while True:
                self._codec.drop(*self._unread.get_nowait())

    def _start(self, call: PendingCall, sealed: Sealed | None, *, root: bool = False) -> None:
        """Enters a call and posts it; if it cannot be posted, its future gets the reason.

        A call that was entered before is sent again. Without a message it waits for the return of
        its callee.

        Raises:
            EncodeError: The call is too big for an envelope; nothing was sent and nothing waits.
        """
        peer = call.peer
        if call.number:
            left = max(call.limit - call.elapsed, 0.0)
            self._watch(call)
        else:
            left = call.limit
            call.number = self._table.draw()
            call.withdraw = self._cancel
            call.future._stands_for(call, call)  # a circle, until the future is completed
            self._table.add(call)
            if left <= SOON_SECONDS:
                self._watch(call)
        if call.again is not None:
            if sealed is None:
                if not self.away.take(call, peer, call.again.loss):
                    self._end_pending(call, self._closed_error())
                return
            call.again.sent += 1
        assert sealed is not None
        envelope = sealed.envelope
        envelope.call = call.number
        envelope.time_left = left
        error: BaseException | None = None
        theirs = root  # the message's owner: the admission, or once posted the callee
        try:
            theirs = root and not self._admission.enter(call, sealed)
            if not theirs:
                self._post(peer, envelope)
                theirs = True
        except (WorkerLostError, UnknownWorkerError, EncodeError) as failure:
            error = failure
        if self._closed:
            error = self._closed_error()
        if error is None:
            return
        mine = self._admission.leave(call) is not None
        if mine or not theirs:
            sealed.take_back()
        if self.away.take(call, peer, error):
            return
        taken = self._table.take(call.peer, call.number) is not None
        if taken and call.deadline is not None:
            call.deadline.cancel()
        if taken and theirs and not mine:  # posted while this worker was closed or evicted
            self._tell(call, CANCEL)
        try:
            if isinstance(error, EncodeError):
                raise error
            if taken:
                _end(call, error, UNSENT)
        finally:
            del error  # its traceback holds this frame, and through it the caller's values

    def _watch(self, call: PendingCall) -> None:
        """Lets a call expire that is due soon; its callee is asked about it before."""
        due = call.started + call.limit
        if call.values:
            ask = due - min(ASK_SECONDS, ASK_SHARE * call.limit)
            call.deadline = self._deadlines.at(ask, partial(self._ask, call))
        else:
            call.deadline = self._deadlines.at(due, partial(self._expire, call))

    def _ask(self, call: PendingCall) -> None:
        """Asks the callee where a call is whose time is nearly over; on the loop."""
        call.deadline = self._deadlines.at(call.started + call.limit, partial(self._expire, call))
        if self._table.find(call.number) is not call:  # it was answered at this moment
            call.deadline.cancel()
        elif not self._admission.holds(call):
            left = max(call.limit - call.elapsed, 0.0)
            answer = self.request(call.peer, WHERE, call.number, left)
            answer._call_when_done(partial(_hear, call, answer))

    def _post_late(self, call: PendingCall, sealed: Sealed) -> bool:
        """Posts a call that waited for admission; on the loop, or where another call ended."""
        sealed.envelope.time_left = max(call.limit - call.elapsed, 0.0)
        try:
            self._post(call.peer, sealed.envelope)
        except (WorkerLostError, UnknownWorkerError, EncodeError) as error:
            self._end_unsent(call, sealed, error)
            return False
        return True

    def _end_unsent(self, call: PendingCall, sealed: Sealed, error: BaseException) -> None:
        """Ends a call that was removed from the admission and will not be posted."""
        sealed.take_back()
        if not self.away.take(call, call.peer, error):
            self._end_pending(call, error, UNSENT)

    def _end_pending(self, call: PendingCall, error: BaseException, what: str = "") -> None:
        """Ends a call that gets no reply."""
        if self._table.take(call.peer, call.number) is not None:
            if call.deadline is not None:
                call.deadline.cancel()
            _end(call, error, what)

    def _expire(self, call: PendingCall) -> None:
        """Ends a call at its deadline, on the loop; tells the callee, and drops its reply later."""
        sealed = self._admission.leave(call, unsent_only=True)
        if sealed is not None:
            self._end_unsent(call, sealed, _not_admitted(call))
            return
        if not self._table.give_up(call):
            return
        said, at = call.told or (None, 0.0)
        where = words(said, time.monotonic() - at) or self._unconnected(call.peer) or UNTOLD
        became = f"{where}; it may still run there"
        if call.values:
            became = (
                f"{where}; {call.peer.name!r} is told to cancel it, which ends a coroutine; a "
                "function in a thread runs on until it checks rpc.current_call()"
            )
        call.future.try_set_exception(_timed_out(call, became))
        self._tell(call, EXPIRE)

    def _cancel(self, number: int) -> None:
        """Cancels a call whose future was cancelled; from any thread, idempotent."""
        call = self._table.find(number)
        if call is None:
            return
        sealed = self._admission.leave(call, unsent_only=True)
        if sealed is not None:
            self._end_unsent(call, sealed, CallCancelledError("it was cancelled"))
        elif self.away.remove(call):
            self._end_pending(call, CallCancelledError("it was cancelled"))
        elif self._table.give_up(call):
            if call.deadline is not None:
                call.deadline.cancel()
            self._tell(call, CANCEL)

    def _tell(self, call: PendingCall, kind: str) -> None:
        """Tells the callee that nobody wants the value any more."""
        if call.values:
            with contextlib.suppress(WorkerLostError, UnknownWorkerError):
                self._post(call.peer, write_body(kind, call.number))

    def _fail(self, gone: Callable[[WorkerInfo], bool], error: BaseException) -> list[PendingCall]:
        """Ends the calls to workers that are gone; returns those that were posted."""
        for call, sealed in self._admission.lose(gone):
            self._end_unsent(call, sealed, error)
        posted = self._table.lose(gone)
        for call in posted:
            peer = call.peer
            if not gone(peer) or self.away.take(call, peer, error):
                continue
            if call.deadline is not None:
                call.deadline.cancel()
            if call.again is not None:
                self._table.take(call.peer, call.number)
            _end(call, error, UNANSWERED)
        return posted

    def _closed_error(self) -> BaseException:
        if self._evicted is not None:
            return fresh_copy(self._evicted)
        return NotInitializedError(
            f"the agent {self._life.name!r} was shut down; call rpc.init_rpc() again"
        )


def _check_parent(parent: ServedCall, left: float, function: str, to: WorkerInfo) -> None:
    """Checks that the served call, which makes this one, may still make calls."""
    if parent.cancelled:
        raise CallCancelledError(
            f"{function} on {to.name!r} was not sent: the call that makes it, "
            f"{parent.record.function}, was cancelled by {parent.caller.name!r}"
        )
    if left <= 0:
        message = f"{function} on {to.name!r} was not sent: the call that makes it has no time left"
        raise CallTimeoutError(message, worker=to.name, function=function, phase="sending")


def _timed_out(call: PendingCall, became: str) -> CallTimeoutError:
    function, worker, elapsed = call.record.function, call.peer.name, call.elapsed
    return CallTimeoutError(
        f"{function} on {worker!r} took longer than {call.limit:.3g} s (elapsed: {elapsed:.3g} s, "
        f"waiting for the reply); {became}; give a longer timeout=, or math.inf",
        worker=worker,
        function=function,
        phase="waiting",
        elapsed=elapsed,
    )


def _not_admitted(call: PendingCall) -> CallTimeoutError:
    function, worker = call.record.function, call.peer.name
    return CallTimeoutError(
        f"{function} on {worker!r} was not sent within {call.limit:.3g} s "
        f"(elapsed: {call.elapsed:.3g} s, waiting for admission): the calls before it are not "
        "answered yet, or fill what the callee takes in at once; call less at a time, give a "
        "longer timeout=, or raise Limits.pending_calls_per_peer here or Limits.pending_bytes at "
        f"{worker!r}",
        worker=worker,
        function=function,
        phase="waiting for admission",
        elapsed=call.elapsed,
    )


def _hear(call: PendingCall, answer: Future[Any]) -> None:
    """Keeps a callee's answer about a call; it has a few bytes, which any thread may decode."""
    if answer.exception() is None:
        call.told = answer.value(), time.monotonic()


def _end(call: PendingCall, error: BaseException, what: str) -> None:
    """Fails a call with a fresh exception; it names the call, if it is a call of a user."""
    fresh, explain = fresh_copy(error), call.record.explain
    if what and call.values and fresh is not error:
        fresh.add_note(f"the call of {call.record.function} on {call.peer.name!r} {what}")
    if call.again is not None and call.again.sent > 1 and is_loss(fresh):
        fresh.add_note(f"it was sent {call.again.sent} times, each time to a worker that was lost")
    if explain is None:
        call.future.try_set_exception(fresh)
        return

    def explained() -> None:
        raise explain(fresh)

    call.future._try_set_thunk(explained, fails=True)
