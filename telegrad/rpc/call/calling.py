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
from telegrad.errors import DecodeError, EncodeError, WorkerLostError
from telegrad.rpc.base.call_record import CallFacts, CallObserver, CallRecord
from telegrad.rpc.base.failure import fresh_copy, rebuild_failure
from telegrad.rpc.base.life import Life
from telegrad.rpc.base.limits import Limits, seconds
from telegrad.rpc.base.served_call import innermost_served_call
from telegrad.rpc.call import delivery
from telegrad.rpc.call.admission import ADMIT
from telegrad.rpc.call.call_errors import check_parent, timed_out
from telegrad.rpc.call.codec import MessageCodec, Sealed, kept
from telegrad.rpc.call.delivery import Delivery
from telegrad.rpc.call.pending_call import Again, PendingCall, State
from telegrad.rpc.call.serving import ERROR, REPLY
from telegrad.rpc.future.future import Future, later, new_future
from telegrad.rpc.future.waits import Dispatch
from telegrad.rpc.pool.deadlines import Deadlines
from telegrad.rpc.pool.inbox import Inbox
from telegrad.transport import Exchange
from telegrad.types import WorkerInfo
from telegrad.wire import Envelope, read_body, write_body

# Replies that nobody read hold RRef forks; they are given back to the interceptors this often.
HOUSEKEEPING_SECONDS = 1.0


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
        # A finaliser may run inside any lock of this thread: it only appends, and `drop_unread`
        # tells the interceptors.
        if self._envelope is not None and self._values:
            self._unread.put((self._peer, self._record, self._envelope))


@final
class Calling:
    """The calls that this worker has made and waits for.

    Args:
        life: Knows if this process still is the agent's; has this worker's name.
        exchange: Posts requests; a thread that waits for a reply reads its sockets.
        timeout: The timeout of calls that give none, in seconds.

    Attributes:
        observers: The observers of the calls that this worker makes and serves.
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
        self._name = life.name
        self._agent_life = life
        self._codec = codec
        self._deadlines = deadlines
        self._submit = submit
        self._timeout = timeout
        self.observers: list[CallObserver] = []
        self._reads = exchange.reader
        self._delivery = Delivery(life, codec, deadlines, exchange, limits, self.request)
        self._life, self._lock = self._delivery.life, self._delivery.lock
        self._unread: SimpleQueue[_Unread] = SimpleQueue()
        self._on_given_up: list[Callable[[BaseException], None]] = []
        inbox.take_reply = self.on_reply
        inbox.on_loss_at_once(self.lose)
        inbox.register(ADMIT, self._delivery.on_admit)

    @property
    def sent(self) -> int:
        """The number of calls that were made."""
        return self._life.sent

    @property
    def pending(self) -> int:
        """The number of calls that wait for their reply."""
        return len(self._life.awaited)

    @property
    def waiting(self) -> int:
        """The number of those calls that wait for admission."""
        return self._life.waiting

    @property
    def away(self) -> int:
        """The number of calls that wait for the return of their callee."""
        return self._life.away

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
        if self._agent_life.forked:  # a child has none of the threads that answer
            self._agent_life.check_process()
        # A finaliser or a signal handler may have interrupted this thread inside one of telegrad's
        # locks, for which it would wait for ever. Another thread makes its call, with the arguments
        # as they are now.
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
            check_parent(parent, left, function, to)
        if self._life.closed:
            raise self._delivery.closed_error()
        if record is None:
            record = CallRecord(function)
        loss = None if again is None else again.loss
        if loss is None:
            sealed = self._codec.seal(to, kind, record, payload, reply=False)
            sealed.envelope.depth = depth
        here = to.name == self._name
        root = depth == 0 and not at_once and not here
        # No message brings the reply of a call to this worker itself. A thread that waits for one
        # would take the reader's role from the thread that serves it, and wake that for each
        # message: 900 us of processor time for a call of 300 us, in place of 200 to 370.
        call = PendingCall(
            to,
            record,
            None if here else self._reads,  # the thread that serves it may want to read
            time.monotonic(),
            limit,
            values=True,
            parent=parent,
            again=again,
        )
        call.future = future = new_future(
            self._submit, "the call of %s on %r", function, to.name, call=call
        )
        if self.observers:
            record.facts = CallFacts(kind, to, False, call.started, call, self.observers)
            future._wakers.append(call.ended)
        try:
            if loss is None:
                self._delivery.start(call, sealed, root=root)
            else:
                self._delivery.start_away(call, loss)
        except BaseException as error:  # of a signal handler too: nobody has the future to cancel
            if isinstance(error, EncodeError):
                future.try_set_exception(fresh_copy(error))
            future.cancel()
            raise
        # A served call cancels the calls that it has made once. It marks itself before, so that a
        # call which it did not find yet sees the mark here.
        if parent is not None and parent.cancelled:  # perhaps before it heard of this one
            future.cancel()
            self._delivery.cancel(call.number)
        return future

    def request(
        self, to: WorkerInfo, kind: str, body: object, limit: float, most: int = 0
    ) -> Future[Any]:
        """Sends a protocol request, for at most `limit` seconds; see `Messages.request`."""
        memory = partial(self._codec.memory, to)
        sealed = Sealed(write_body(kind, body, memory=memory))
        record = CallRecord(kind, most=most)
        call = PendingCall(to, record, self._reads, time.monotonic(), limit, values=False)
        call.future = new_future(self._submit, f"{kind} to {to.name!r}", call=call)
        self._delivery.start(call, sealed)
        return call.future

    def labels(self) -> list[str]:
        """Returns the calls that wait for their reply, in words, the oldest first."""
        return [f"{each.record.function} on {each.peer.name!r}" for each in self._life.awaited]

    def is_pending(self, call: PendingCall) -> bool:
        """Returns True if a call is this worker's, and waits for its reply."""
        return self._life.requests.find(call.number) is call

    def on_reply(self, peer: WorkerInfo, envelope: Envelope) -> None:
        """Takes a reply; on the loop, or in a thread that waits for it; decodes nothing."""
        with critical.section, self._lock:
            call, actions = self._life.reply(peer, envelope.call)
        if call is None:
            return
        if actions:
            self._delivery.carry_out(actions, None)
        if call.deadline is not None:
            call.deadline.cancel()
        # The deadline decides: a late loop calls `_expire` after a thread has read this.
        given_up = call.state is State.GIVEN_UP
        late = not given_up and time.monotonic() - call.started > call.limit
        if late:
            call.future.try_set_exception(timed_out(call, "its reply came too late"))
        if late or given_up:
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
        if (facts := call.record.facts) is not None and facts.ended is None:
            beside = envelope.beside() if envelope.externals else 0
            facts.reply_bytes = len(envelope.document) + beside
        if envelope.kind == REPLY and self._codec.says_nothing(envelope):  # as for many calls
            call.future.try_set_result(None)
            return
        reply = _Reply(self._codec, peer, call.record, call.values, envelope, self._unread)
        call.future._try_set_thunk(reply, fails=envelope.kind == ERROR)

    def lose(self, peer: WorkerInfo, error: WorkerLostError) -> None:
        """Fails the calls that wait for a lost worker."""
        self._delivery.lose(peer, error)

    def close(self, error: WorkerLostError | None = None) -> None:
        """Fails all calls that wait, and all that are sent from now on.

        Args:
            error: The reason; None for a shutdown.
        """
        self._delivery.close(error)
        for callback in self._on_given_up:
            callback(self._delivery.closed_error())
        self.drop_unread()

    def look(self) -> None:
        """Sends the calls again whose callee is back; called when workers have joined."""
        self._delivery.look()

    def keep_house(self) -> None:
        """Gives back the replies that nobody read, and checks deadlines, at times; on the loop."""
        if not self._life.closed:
            # First: an error below must not end the housekeeping.
            self._deadlines.after(HOUSEKEEPING_SECONDS, self.keep_house)
            for call in self._life.due_before(time.monotonic() + delivery.SOON_SECONDS):
                self._delivery.watch(call)
        self.drop_unread()

    def drop_unread(self) -> None:
        """Gives back the replies whose futures are gone."""
        with contextlib.suppress(Empty):
            while True:
                self._codec.drop(*self._unread.get_nowait())
