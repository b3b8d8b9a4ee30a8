"""The callee's end of calls: admit, decode, run, reply; every request gets exactly one reply.

loop       request arrives ──▶ submitted to the pool
pool       admit, interceptors, decode, prepare ──▶ plain function ──▶ encode, reply
                                                └─▶ async def ──▶ user loop ──▶ encode, reply
                                                └─▶ async_execution ──▶ its Future ──▶ encode, reply

A request that is not admitted is not decoded: nothing of its arguments is ever built.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from functools import partial
from types import FunctionType
from typing import Any, final

from telegrad.critical import critical
from telegrad.errors import (
    CallRefusedError,
    DecodeError,
    EncodeError,
    PoolExhaustedError,
    UnknownWorkerError,
    WorkerLostError,
)
from telegrad.rpc.base.call_record import CallFacts, CallObserver, CallRecord, Outcome
from telegrad.rpc.base.failure import describe_failure, fresh_copy
from telegrad.rpc.base.served_call import ServedCall, current_served_call, enter_served_call
from telegrad.rpc.call.admission import ASK, WITHDRAW
from telegrad.rpc.call.admission_callee import CalleeAdmission
from telegrad.rpc.call.codec import MessageCodec, Sealed, unreadable
from telegrad.rpc.call.pending_call import WHERE, tell
from telegrad.rpc.call.runner import Runner
from telegrad.rpc.call.user_call import (
    Admit,
    CallMode,
    Prepare,
    UserCall,
    name_call,
    plain_function,
)
from telegrad.rpc.future.future import Future
from telegrad.rpc.pool.inbox import Inbox
from telegrad.rpc.pool.pool import Pool
from telegrad.transport import CALL_REFUSED, Audit, Exchange, get_logger
from telegrad.types import WorkerInfo
from telegrad.wire import SMALL_LIMITS, Envelope, read_body, write_body

CALL = "rpc.call"
CANCEL = "rpc.cancel"  # call: its caller does not want its value any more
EXPIRE = "rpc.expire"  # call: the same, since its time is over
REPLY = "rpc.reply"
ERROR = "rpc.error"

# Cancellations that came before their requests, of all callers together. A cancellation does not
# wait for the arrays of its request, so it may overtake it. It may also cross the reply, and then
# stays until as many others have come: nobody can tell the two apart. No number is drawn twice.
EARLY_CANCELS = 10_000

_logger = get_logger(__name__)


@final
class Serving:
    """Runs the calls of other workers here.

    Args:
        admission: Bounds the bytes that it takes in at once.
        most_calls: The most calls of one caller at once.
        observers: The observers of these calls; there may be more later.
    """

    def __init__(
        self,
        worker: str,
        codec: MessageCodec,
        pool: Pool,
        runner: Runner,
        exchange: Exchange,
        inbox: Inbox,
        admission: CalleeAdmission,
        most_calls: int,
        observers: Sequence[CallObserver],
    ) -> None:
        self.worker = worker
        self._codec = codec
        self._pool = pool
        self.runner = runner
        self._post = exchange.post
        self._inbox = inbox
        self.admission = admission
        self._lock = threading.Lock()
        self._most_calls = most_calls
        self._observers = observers
        # The calls that are served, the oldest first, by the caller's incarnation and the number.
        self._calls: dict[tuple[int, int], ServedCall] = {}
        self._counts: dict[int, int] = {}  # their number, by the caller's incarnation
        self._early: dict[tuple[int, int], bool] = {}  # the oldest first; True for expired calls
        self._ended = 0
        inbox.on_loss_at_once(self.lose)
        inbox.refuse_request = self.refuse
        for kind, handler in (
            (ASK, admission.on_ask),
            (WITHDRAW, admission.on_withdraw),
            (CANCEL, partial(self._on_cancel, expired=False)),
            (EXPIRE, partial(self._on_cancel, expired=True)),
            (WHERE, self._on_where),
        ):
            inbox.register(kind, handler)

    @property
    def served(self) -> int:
        """The number of calls that were answered: a caller that has a reply finds it counted."""
        with critical.section, self._lock:
            return self._ended + sum(not call.active for call in self._calls.values())

    def serve(self, kind: str, prepare: Prepare) -> None:
        """Registers the server of requests of a kind that carry user values.

        Args:
            kind: The envelope's kind.
            prepare: `prepare(caller, payload) -> UserCall` runs in the pool, in the Context of the
                call, after the interceptors. The UserCall's value is the reply. An exception of
                `prepare` is the reply, too.
        """
        self.serve_named(kind, lambda call, document: prepare)

    def serve_named(self, kind: str, admit: Admit) -> None:
        """Registers the server of requests of a kind that name the called function.

        Args:
            kind: The envelope's kind.
            admit: `admit(call, document) -> prepare` runs in the pool, in the Context of the
                call, before anything of the request is decoded, names the function in the call's
                record, and returns the `prepare` of `serve`. An exception is the reply: nothing of
                the request's arguments is ever built.
        """
        handler = partial(self.accept, admit)
        self._inbox.register(kind, handler, anywhere=True, takes_failed=True)

    def accept(self, admit: Admit, caller: WorkerInfo, envelope: Envelope) -> None:
        """Takes a request; from any thread, blocks nowhere."""
        number, depth = envelope.call, envelope.depth
        key = caller.incarnation, number
        # A second call of the number would hide the first one from the loss of its caller, and from
        # the end of this worker.
        if key in self._calls:  # only a caller that lies sends it twice
            error = DecodeError(f"call {number} came again while it is served")
            self._pool.submit(self._inbox.tell_garbage, caller, envelope.kind, error)
            return
        kind, now = envelope.kind, time.monotonic()
        record, deadline = CallRecord(kind), now + envelope.time_left
        call = ServedCall(self.worker, caller, number, record, deadline, depth, kind, now)
        if self.admission.expects:  # nearly never: most have not asked
            call.release = self.admission.arrive(caller, number)
        with critical.section, self._lock:
            # Under one lock, as in `_on_cancel`: the cancellation finds the call here, or the call
            # finds the cancellation, whichever comes first.
            self._calls[key] = call
            count = self._counts[key[0]] = self._counts.get(key[0], 0) + 1
            expired = self._early.pop(key, None) if self._early else None
        if self._observers:
            record.facts = CallFacts(kind, caller, True, now, call, self._observers)
            beside = envelope.beside() if envelope.externals else 0
            record.facts.request_bytes = len(envelope.document) + beside
            record.facts.begin()
        if expired is not None:
            call.cancelled, call.expired = True, expired
        if count > self._most_calls:
            message = (
                f"worker {self.worker!r} has {self._most_calls} calls of {caller.name!r} to serve, "
                "as many as it takes of one worker (Limits.served_calls_per_peer); wait for some "
                "first"
            )
            self._refuse(call, envelope, PoolExhaustedError(message))
            return
        context = self._pool.new_context()
        nested = depth > 0
        submit = self._pool.submit_call
        if not submit(context, self._serve, call, admit, envelope, nested=nested):
            which, pool = "nested" if nested else "root", self._pool
            message = f"the pool of worker {self.worker!r} has "
            if pool.shortage:
                message += f"no thread for a further {which} call: {pool.shortage}"
            else:
                message += (
                    f"{pool.threads} threads, all busy, and takes no further {which} call; call "
                    "less at a time, or make the functions async def"
                )
            self._refuse(call, envelope, PoolExhaustedError(message))

    def _refuse(self, call: ServedCall, envelope: Envelope, error: BaseException) -> None:
        """Fails a call whose request is not opened."""
        if call.record.function == envelope.kind:
            name_call(call, envelope.document)
        self._codec.drop(call.caller, call.record, envelope, fresh_copy(error))
        self._fail(call, error)

    def calls(self) -> list[ServedCall]:
        """Returns the calls that are served now, the oldest first."""
        with critical.section, self._lock:
            return list(self._calls.values())

    def oldest(self) -> ServedCall | None:
        """Returns the oldest of them."""
        with critical.section, self._lock:
            return next(iter(self._calls.values()), None)

    def refuse(self, caller: WorkerInfo, number: int, error: Exception) -> None:
        """Answers a request that is not served, if its caller can be reached."""
        self.admission.release(caller, number)
        with critical.section, self._lock:
            self._early.pop((caller.incarnation, number), None)
        self._answer_refused(caller, number, error)

    def _answer_refused(self, caller: WorkerInfo, number: int, error: Exception) -> None:
        sealed = self._codec.seal_bare(ERROR, describe_failure(error, self.worker))
        sealed.envelope.call = number
        with contextlib.suppress(WorkerLostError, UnknownWorkerError):
            self._post(caller, sealed.envelope)

    def lose(self, caller: WorkerInfo, error: WorkerLostError) -> None:
        """Gives up the calls of a lost worker, and those that it asked for."""
        del error
        self.admission.lose(caller)
        with critical.section, self._lock:
            orphans = [call for call in self._calls.values() if call.caller == caller]
        for call in orphans:
            call.cancel()

    def serves(self, call: ServedCall) -> bool:
        """Returns True if a call is served by this agent, and not by another one of the process."""
        with critical.section, self._lock:
            return self._calls.get((call.caller.incarnation, call.number)) is call

    def close(self, limit: float) -> None:
        """Gives up all calls that are served: no reply leaves this worker any more.

        Args:
            limit: Seconds to wait for the coroutines, which are cancelled.
        """
        with critical.section, self._lock:
            orphans = list(self._calls.values())
        for call in orphans:
            call.cancel()
        self.runner.close(limit)

    def is_idle(self, *, given_up: bool = True) -> bool:
        """Returns True if no call is served except the one that this runs in.

        Args:
            given_up: True if calls count that nobody waits for any more.
        """
        served = current_served_call()
        own = 1 if served is not None and self.serves(served) else 0  # not another agent's
        with critical.section, self._lock:
            return sum(given_up or not call.cancelled for call in self._calls.values()) <= own

    def _serve(self, call: ServedCall, admit: Admit, envelope: Envelope) -> None:
        """Serves a call in the pool, inside the Context in which the function runs."""
        enter_served_call(call)
        if call.cancelled or call.deadline <= time.monotonic():
            name_call(call, envelope.document)  # for the words of the error
            self._refuse(call, envelope, call.given_up())
            return
        if envelope.failure is not None:  # its document may be missing, too
            failure = unreadable(
                envelope.failure, self.worker, call.caller, envelope.kind, envelope
            )
            self._refuse(call, envelope, failure)
            return
        try:
            admitted = admit(call, envelope.document)
        except BaseException as error:  # at the top of a remote handler
            self._refuse(call, envelope, error)
            return
        try:
            known = type(admitted) is UserCall  # it has no arguments
            payload = self._codec.open(call.caller, call.record, envelope, known=known)
            # The caller of this holds the envelope; arrays in the memory of its buffers may end
            # before.
            envelope.buffers = ()
            if type(admitted) is UserCall:
                user_call = admitted
            elif call.record.starts_after is not None:
                self._start_after(call.record.starts_after, call, admitted, payload)
                return
            else:
                user_call = admitted(call.caller, payload)
        except BaseException as error:  # at the top of a remote handler
            self._fail(call, error)
            return
        del payload
        self._start(call, user_call)

    def _start_after(
        self, starts_after: Future[Any], call: ServedCall, prepare: Prepare, payload: object
    ) -> None:
        def start(done: Future[Any]) -> None:
            if (error := done.exception()) is not None:
                self._fail(call, error)
                return
            try:
                user_call = prepare(call.caller, payload)
            except BaseException as refused:  # at the top of a remote handler
                self._fail(call, refused)
            else:
                self._start(call, user_call)

        def give_up() -> None:
            starts_after.try_set_exception(call.given_up())

        # In this order: where the call was cancelled before, the future fails at once, and then
        # `start` is called with that error and starts nothing.
        call.on_cancel(give_up)
        starts_after._when_done(start)

    def _start(self, call: ServedCall, user_call: UserCall) -> None:
        call.began = time.monotonic()
        record = call.record
        func = user_call.func
        record.function = user_call.name
        record.served = func if type(func) is FunctionType else plain_function(func)
        if user_call.mode is CallMode.PLAIN:
            call.runner = threading.current_thread()
            value, sealed = None, None
            try:
                value = func(*user_call.args, **user_call.kwargs)
            except BaseException as error:  # around the user's function: any is its reply
                sealed = self._seal(call, None, error)
            finally:
                # From here on nothing refers to its arguments: memory that the caller has lent for
                # them goes back with the reply, and its next request takes it from the caches.
                user_call.args, user_call.kwargs = (), {}
            sealed = sealed or self._seal(call, value, None)
            del value
            self._reply(call, sealed)
        else:
            self.runner.run(user_call, partial(self._settle, call), call.runs_by)

    def _on_cancel(self, caller: WorkerInfo, envelope: Envelope, *, expired: bool) -> None:
        """Cancels a call that its caller gave up; on the loop."""
        number = read_body(envelope, limits=SMALL_LIMITS)
        if not isinstance(number, int):
            return
        key = caller.incarnation, number
        with critical.section, self._lock:
            call = self._calls.get(key)
            if call is None:
                if key not in self._early and len(self._early) >= EARLY_CANCELS:
                    del self._early[next(iter(self._early))]
                self._early[key] = self._early.get(key, False) or expired
        if call is not None:
            call.cancel(expired=expired)

    def _on_where(self, caller: WorkerInfo, envelope: Envelope) -> None:
        """Answers where a call is whose time is nearly over; on the loop."""
        number = read_body(envelope, limits=SMALL_LIMITS)
        if not isinstance(number, int):
            raise DecodeError("the body of rpc.where is no number")
        with critical.section, self._lock:
            call = self._calls.get((caller.incarnation, number))
        if call is None:
            said = tell(None, None, ())
        else:
            calls = [each._label for each in list(call.nested) if isinstance(each, Future)]
            said = tell(call.came, call.began, calls)
        reply = write_body(REPLY, said, reply=True)
        reply.call = envelope.call
        with contextlib.suppress(WorkerLostError, UnknownWorkerError):
            self._post(caller, reply)

    def _settle(self, call: ServedCall, value: object, error: BaseException | None) -> None:
        self._reply(call, self._seal(call, value, error))

    def _seal(self, call: ServedCall, value: object, error: BaseException | None) -> Sealed:
        """Makes the reply of a call that has ended."""
        # Ended before the look: a cancellation that comes after it finds nothing to cancel.
        call.end()
        if call.cancelled:
            return self._seal_failure(call, call.given_up())
        if error is not None:
            return self._seal_failure(call, error)
        try:
            return self._codec.seal(
                call.caller, REPLY, call.record, value, reply=True, settled=True
            )
        except BaseException as unsendable:  # at the top of a remote handler
            return self._seal_failure(call, unsendable)

    def _seal_failure(self, call: ServedCall, error: BaseException) -> Sealed:
        body = describe_failure(error, self.worker)
        try:
            return self._codec.seal(call.caller, ERROR, call.record, body, reply=True)
        except BaseException:  # at the top of a remote handler: an interceptor failed
            _logger.exception("the error of %s could not be sent as it is", call.record.function)
            return self._codec.seal_bare(ERROR, {**body, "error": None})

    def _fail(self, call: ServedCall, error: BaseException) -> None:
        call.end()
        self._reply(call, self._seal_failure(call, error))

    def _reply(self, call: ServedCall, sealed: Sealed) -> None:
        if sealed.memory is not None:
            try:
                sealed.memory.settle(sealed.envelope)
            except BaseException as error:  # at the top of a remote handler: no memory for a copy
                sealed.take_back()
                sealed = self._seal_failure(call, error)
        sealed.envelope.call = call.number
        facts = call.record.facts
        if facts is not None:  # first: a caller that has the reply finds it told
            reply = sealed.envelope
            facts.reply_bytes = len(reply.document) + (reply.beside() if reply.externals else 0)
            facts.end(Outcome.VALUE if reply.kind == REPLY else call.failed())
        try:
            self._post(call.caller, sealed.envelope)
        except (WorkerLostError, UnknownWorkerError):
            sealed.take_back()
        except EncodeError as error:  # it refers to more than an envelope has room for
            sealed.take_back()
            self._answer_refused(call.caller, call.number, error)
        if call.release is not None:
            call.let_others_in()
        # The call leaves the table behind its reply. A shutdown waits until the table is empty, and
        # would else close the connection before the reply is posted.
        key = caller, _ = call.caller.incarnation, call.number
        with critical.section, self._lock:
            if self._calls.get(key) is call:
                del self._calls[key]
            left = self._counts[caller] = self._counts[caller] - 1
            if not left:
                del self._counts[caller]
            self._ended += 1


def record_refusal(
    audit: Audit,
    caller: WorkerInfo,
    function: str,
    reason: str,
    error: CallRefusedError,
    kind: str | None,
) -> None:
    """For the library: writes a refused call into the audit log.

    Args:
        audit: The log.
        caller: The worker that called.
        function: `module:qualname`.
        reason: The reason, for programs.
        error: The error that the caller gets.
        kind: The kind of the envelope; None for that of the call that is served.
    """
    served = current_served_call()
    audit.record(
        CALL_REFUSED,
        caller=caller.name,
        incarnation=caller.incarnation,
        kind=served.kind if kind is None and served is not None else kind,
        function=function,
        reason=reason,
        words=str(error),
    )
