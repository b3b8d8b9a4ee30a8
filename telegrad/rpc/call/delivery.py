"""Does what the lives of calls want: posts, asks, tells, seeks, and ends futures."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, TypeAlias, final

from telegrad.critical import critical
from telegrad.errors import (
    CallCancelledError,
    EncodeError,
    NotInitializedError,
    UnknownWorkerError,
    WorkerLostError,
)
from telegrad.rpc.base.call_record import CallRecord
from telegrad.rpc.base.failure import fresh_copy, without_frames
from telegrad.rpc.base.life import Life
from telegrad.rpc.base.limits import Limits
from telegrad.rpc.base.served_call import still_runs
from telegrad.rpc.call.admission import ASK, UNASKED_PART, WITHDRAW
from telegrad.rpc.call.call_errors import is_loss, left_error, not_admitted, overdue, timed_out
from telegrad.rpc.call.call_life import Action, CallLife, Do
from telegrad.rpc.call.codec import MessageCodec, Sealed
from telegrad.rpc.call.pending_call import WHERE, Again, PendingCall, State, outcome_of, words
from telegrad.rpc.call.serving import CALL, CANCEL, EXPIRE
from telegrad.rpc.future.future import Future
from telegrad.rpc.pool.deadlines import Deadlines
from telegrad.transport import Exchange
from telegrad.types import WorkerInfo
from telegrad.wire import Envelope, read_body, write_body

# A call that is due later enters the heap of deadlines shortly before, by the housekeeping: nearly
# all are answered earlier, and cost the heap nothing.
SOON_SECONDS = 2.0
# The time of the question where a call is, before its end: an answer takes a millisecond if the
# callee has time.
ASK_SECONDS = 0.25
ASK_SHARE = 0.25  # of a shorter time

# The result, for its caller, of a call that is never retried and whose callee is lost.
UNANSWERED = (
    "got no answer; it may have run there, in part or not at all, and it is not sent again: "
    "call a living worker where that is right"
)
UNSENT = "was not sent"
UNTOLD = "its callee did not say where it is"


class _Why(NamedTuple):
    """The reason why calls end.

    Attributes:
        what: The fate of the call, in words.
        tells: The kind of the message that tells the callee.
    """

    error: BaseException
    what: str = ""
    tells: str = CANCEL


_Wanted: TypeAlias = tuple[Action, _Why | None]


@final
class Delivery:
    """The shell of `CallLife`: one lock around each event, and what that wants without it.

    From any thread.

    Args:
        agent_life: Has this worker's name; its end ends the waits for lost callees.
        codec: Seals the messages that are sent again.
        request: Sends a protocol request, as `Calling.request` does.

    Attributes:
        life: The calls that have not ended.
        lock: Guards them.
    """

    def __init__(
        self,
        agent_life: Life,
        codec: MessageCodec,
        deadlines: Deadlines,
        exchange: Exchange,
        limits: Limits,
        request: Callable[[WorkerInfo, str, object, float], Future[Any]],
    ) -> None:
        self._name = agent_life.name
        self._codec = codec
        self._deadlines = deadlines
        self._post = exchange.post
        self._exchange = exchange
        self._request = request
        self._evicted: WorkerLostError | None = None
        self.lock = threading.Lock()
        self.life = CallLife(limits.pending_calls_per_peer, limits.pending_bytes // UNASKED_PART)
        self._withdraw = self.cancel  # one object for all calls: a bound method is a new one
        agent_life.on_ending(self._end_waits)

    def start(self, call: PendingCall, sealed: Sealed, *, root: bool = False) -> None:
        """Enters a call and posts it; if it cannot be posted, its future gets the reason.

        A call that was entered before is sent again.

        Raises:
            EncodeError: The call is too big for an envelope; nothing was sent and nothing waits.
        """
        envelope, peer, left, facts = sealed.envelope, call.peer, call.limit, call.record.facts
        if was_sent := call.number:
            left -= call.elapsed
        else:
            call.number, call.withdraw = self.life.requests.draw(), self._withdraw
        envelope.call, envelope.time_left = call.number, left if left > 0.0 else 0.0
        size = len(envelope.document)  # headers are small by nature
        if envelope.externals:
            size += envelope.beside()
        if facts is not None:
            facts.request_bytes = size
            if not was_sent:
                facts.begin()
        # The call is entered before it is posted: its reply may be here before `post` returns.
        with critical.section, self.lock:
            do = self.life.send(call, sealed, size if root else None)
        # A reply, or a cancellation, may have come before there is a deadline to cancel. That one
        # then finds the call over and does nothing.
        if left <= SOON_SECONDS and call.deadline is None:
            self.watch(call)
        if do is Do.POST:
            try:
                self._post(peer, envelope)
            except (WorkerLostError, UnknownWorkerError, EncodeError) as error:
                self._refused(call, peer, sealed, error)
                if isinstance(error, EncodeError):
                    raise
                return
            # A cancellation, or the end of this worker, may come between the event and the post.
            # The callee has heard of it before the request then, or not at all; it keeps such news
            # for a while only.
            if call.state is State.GIVEN_UP or self.life.closed:  # perhaps before it was posted
                self._tell(call, peer, CANCEL)
        elif do is Do.ASK:
            self.carry_out([Action(do, call, peer, State.WAITING, size=size)], None)
        elif do is not None:
            sealed.take_back()
            if do is Do.END:
                self._end(call, State.NEW, _Why(self.closed_error()))

    def start_away(self, call: PendingCall, loss: WorkerLostError) -> None:
        """Enters a call whose callee is known as lost, and which waits for its return."""
        call.number, call.withdraw = self.life.requests.draw(), self._withdraw
        if call.record.facts is not None:
            call.record.facts.begin()
        with critical.section, self.lock:
            actions = self.life.send_away(call)
        self.carry_out(actions, _Why(self.closed_error() if self.life.closed else loss))

    def watch(self, call: PendingCall) -> None:
        """Lets a call expire that is due soon; its callee is asked about it before."""
        if call.values:
            ask = call.due - min(ASK_SECONDS, ASK_SHARE * call.limit)
            call.deadline = self._deadlines.at(ask, partial(self._ask, call))
        else:
            call.deadline = self._deadlines.at(call.due, partial(self._expire, call))

    def _ask(self, call: PendingCall) -> None:
        """Asks the callee where a call is whose time is nearly over; on the loop."""
        call.deadline = self._deadlines.at(call.due, partial(self._expire, call))
        if call.state is State.POSTED:
            left = max(call.limit - call.elapsed, 0.0)
            answer = self._request(call.peer, WHERE, call.number, left)
            answer._call_when_done(partial(_hear, call, answer))
        elif call.state is State.OVER:  # it was answered at this moment
            call.deadline.cancel()

    def _expire(self, call: PendingCall, *states: State) -> None:
        """Ends a call at its deadline, on the loop; tells the callee, and drops its reply later.

        With `states`, only a call in one of them ends.
        """
        with critical.section, self.lock:
            actions = self.life.give_up(call, *states)
        if not actions:
            return
        error: BaseException
        was = actions[0].was
        if was is State.AWAY or (was is State.NEW and call.again is not None):
            error = overdue(call)
        elif was is State.WAITING:
            error = not_admitted(call)
        else:
            said, at = call.told or (None, 0.0)
            where = words(said, time.monotonic() - at) or self._exchange.unconnected(call.peer)
            where = where or UNTOLD
            became = f"{where}; it may still run there"
            if call.values:
                became = (
                    f"{where}; {call.peer.name!r} is told to cancel it, which ends a coroutine; a "
                    "function in a thread runs on until it checks rpc.current_call()"
                )
            error = timed_out(call, became)
        self.carry_out(actions, _Why(error, tells=EXPIRE))

    def cancel(self, number: int) -> None:
        """Cancels a call whose future was cancelled; from any thread, idempotent."""
        call = self.life.requests.find(number)
        if call is None:
            return
        with critical.section, self.lock:
            actions = self.life.give_up(call)
        if actions:
            self.carry_out(actions, _Why(CallCancelledError("it was cancelled")))

    def on_admit(self, peer: WorkerInfo, envelope: Envelope) -> None:
        """Posts a call for which its callee sent a permit; on the loop."""
        number = read_body(envelope)
        with critical.section, self.lock:
            actions = self.life.permit(peer, number)
        self.carry_out(actions, None)

    def _refused(
        self, call: PendingCall, peer: WorkerInfo, sealed: Sealed, error: BaseException
    ) -> None:
        """Ends a call that could not be posted, or has it wait; takes its message back."""
        with critical.section, self.lock:
            actions = self.life.refused(call, peer, may_return=is_loss(error))
        if isinstance(error, EncodeError):  # the caller gets it, who has no future then
            actions = [each for each in actions if each.do is not Do.END or each.call is not call]
            if call.deadline is not None:
                call.deadline.cancel()
        try:
            # An interceptor that fails must not keep the futures from their end.
            sealed.take_back()
        finally:
            self.carry_out(actions, _Why(without_frames(error), UNSENT))

    def carry_out(self, actions: Iterable[Action], why: _Why | None) -> None:
        """Does what an event wants.

        `why` is the reason of the calls that end by the event; None if it ends none.
        """
        self._carry_out((action, why) for action in actions)

    def _carry_out(self, actions: Iterable[_Wanted]) -> None:
        """Does all that is wanted, also what an action wants that fails; raises the first error."""
        left, first = deque(actions), None
        while left:
            action, why = left.popleft()
            try:
                left.extend(self._do(action, why))
            except BaseException as error:  # of an interceptor, or of a signal handler
                first = first or error
        if first is not None:
            try:
                raise first
            finally:
                del first  # its traceback holds this frame

    def _do(self, action: Action, why: _Why | None) -> Iterable[_Wanted]:
        do, call, peer, was, message, _ = action
        if do is Do.TAKE_BACK:
            assert message is not None
            message.take_back()
        elif do is Do.WITHDRAW:
            with contextlib.suppress(WorkerLostError, UnknownWorkerError):
                self._post(peer, write_body(WITHDRAW, call.number))
        elif do is Do.POST or do is Do.ASK:
            return self._post_late(action)
        else:
            assert why is not None
            if do is Do.END:
                self._end(call, was, why)
            elif do is Do.TELL:
                self._tell(call, peer, why.tells)
            else:
                self._seek(call, why.error)
        return ()

    def _post_late(self, action: Action) -> Iterable[_Wanted]:
        """Posts a call that has waited, or asks its callee; returns what follows if that fails."""
        _, call, peer, _, message, size = action
        try:
            if message is None:
                self._post(peer, write_body(ASK, [call.number, size]))
            else:
                # Deadlines travel as the time that is left, and this call has waited.
                message.envelope.time_left = max(call.limit - call.elapsed, 0.0)
                self._post(peer, message.envelope)
        except (WorkerLostError, UnknownWorkerError, EncodeError) as error:
            with critical.section, self.lock:
                more = self.life.refused(call, peer, may_return=is_loss(error))
            if message is not None:
                more.append(action._replace(do=Do.TAKE_BACK))
            why = _Why(without_frames(error), UNSENT)
            return [(each, why) for each in more]
        return ()

    def _tell(self, call: PendingCall, peer: WorkerInfo, kind: str) -> None:
        """Tells the callee that nobody wants the value any more."""
        if call.values:
            with contextlib.suppress(WorkerLostError, UnknownWorkerError):
                self._post(peer, write_body(kind, call.number))

    def _end(self, call: PendingCall, was: State, why: _Why) -> None:
        """Fails a call with a fresh exception; it names the call, if it is a call of a user."""
        if call.deadline is not None:
            call.deadline.cancel()
        what = why.what or (UNSENT if was is State.WAITING else "")
        fresh, explain = fresh_copy(why.error), call.record.explain
        if what and call.values and fresh is not why.error:
            fresh.add_note(f"the call of {call.record.function} on {call.peer.name!r} {what}")
        if call.again is not None and call.again.sent > 1 and is_loss(fresh):
            sent = call.again.sent
            fresh.add_note(f"it was sent {sent} times, each time to a worker that was lost")
        if explain is None or (was is State.POSTED and why.tells == EXPIRE):
            call.future.try_set_exception(fresh)
            return

        def explained() -> None:
            raise explain(fresh)

        if call.record.facts is not None:
            call.record.facts.expected = outcome_of(fresh)
        call.future._try_set_thunk(explained, fails=True)

    # The calls that wait for the return of their callee.

    def look(self) -> None:
        """Sends the calls again whose callee is back; called when workers have joined."""
        for call in self.life.requests:
            self._look_for(call)

    def _seek(self, call: PendingCall, loss: BaseException) -> None:
        """Looks for the worker that has taken the place of a lost callee, now and when some join.

        A call without a limit still ends: the callee has as long to come back as a worker may take
        to join.
        """
        again = call.again
        assert again is not None
        if is_loss(loss):
            again.loss = loss
        if call.limit == math.inf:
            patience = partial(self._lose_patience, call, again.sent)
            call.deadline = self._deadlines.after(again.patience, patience)
            if call.state is State.OVER:  # at this moment
                call.deadline.cancel()
        # After the call is AWAY: a successor that has joined before is found here, and one that
        # joins later by `look`.
        self._look_for(call)

    def _lose_patience(self, call: PendingCall, sent: int) -> None:
        """Ends a call without a limit whose callee has not come back since it was last sent."""
        # The patience for an earlier absence of the callee must not end the call in a later one.
        if call.again is not None and call.again.sent == sent:
            self._expire(call, State.AWAY)

    def _look_for(self, call: PendingCall) -> None:
        again = call.again
        if again is None or call.state is not State.AWAY:
            return
        successor = again.successor(call.peer)
        if successor is None:
            return
        with critical.section, self.lock:
            back = self.life.back(call, successor)
        # Several threads may find the successor at once (`_seek`, and the news of each newcomer).
        # The event hands the call to one of them.
        if back:
            again.run(partial(self._send_again, call, again))

    def _send_again(self, call: PendingCall, again: Again) -> None:
        """Sends a call to the successor of its callee; in the pool."""
        if call.limit == math.inf and call.deadline is not None:
            call.deadline.cancel()
        # Interceptors keep in the old record what they did for the message that was lost.
        call.record = CallRecord(call.record.function, facts=call.record.facts)
        try:
            sealed = self._codec.seal(call.peer, CALL, call.record, again.payload, reply=False)
            sealed.envelope.depth = 0 if call.parent is None else call.parent.depth + 1
            root = call.parent is None and call.reads is not None
            self.start(call, sealed, root=root)
        except BaseException as error:  # the top of a task in the pool: the future tells
            self._give_up(call, error)
            self._end(call, State.NEW, _Why(error))  # where `start` has ended it without its future

    def _end_waits(self) -> None:
        """Ends those waits for a callee that no served call needs: a shutdown would wait, too."""
        for call in self.life.requests:
            if call.state is State.AWAY and not still_runs(call.parent):
                self._give_up(call, left_error(call, self._name), State.AWAY)

    def _give_up(self, call: PendingCall, error: BaseException, *states: State) -> None:
        with critical.section, self.lock:
            actions = self.life.give_up(call, *states)
        self.carry_out(actions, _Why(error))

    def lose(self, peer: WorkerInfo, error: WorkerLostError) -> None:
        """Fails the calls that wait for a lost worker."""
        with critical.section, self.lock:
            actions = self.life.lose(lambda other: other == peer, may_return=is_loss(error))
        self._carry_out((each, _Why(error, _became(each))) for each in _ends_first(actions))

    def close(self, error: WorkerLostError | None = None) -> None:
        """Fails all calls that wait, and all that are sent from now on.

        Args:
            error: The reason; None for a shutdown.
        """
        if error is not None:
            # The reason is there before the table closes: a thread that finds it closed asks for
            # it.
            self._evicted = error
        with critical.section, self.lock:
            actions = self.life.close()
        wanted: list[_Wanted] = []
        for each in _ends_first(actions):
            call, was = each.call, each.was
            away = was is State.AWAY and error is None
            cause = left_error(call, self._name) if away else self.closed_error()
            wanted.append((each, _Why(cause, _became(each))))
            if error is not None and each.do is Do.END and was is State.POSTED:
                tell = each._replace(do=Do.TELL)  # this worker may serve its own without an end
                wanted.append((tell, _Why(cause)))
        self._carry_out(wanted)

    def closed_error(self) -> BaseException:
        """Returns the error for a call that begins once this worker was closed."""
        if self._evicted is not None:
            return fresh_copy(self._evicted)
        return NotInitializedError(
            f"the agent {self._name!r} was shut down; call rpc.init_rpc() again"
        )


def _hear(call: PendingCall, answer: Future[Any]) -> None:
    """Keeps a callee's answer about a call; it has a few bytes, which any thread may decode."""
    if answer.exception() is None:
        call.told = answer.value(), time.monotonic()


def _became(action: Action) -> str:
    return UNANSWERED if action.was is State.POSTED else ""


def _ends_first(actions: list[Action]) -> list[Action]:
    """Sorts actions, so that nothing that fails keeps a future from its end."""
    return sorted(actions, key=lambda each: each.do is not Do.END)
