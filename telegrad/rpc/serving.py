"""The callee's end of calls: decode, run, reply; every request gets exactly one reply.

loop       request arrives ──▶ submitted to the pool
pool       decode, interceptors, prepare ──▶ plain function ──▶ encode, reply
                                         └─▶ async def ──▶ user loop ──▶ encode, reply
                                         └─▶ async_execution ──▶ its Future ──▶ encode, reply
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, TypeAlias, final

from telegrad.errors import (
    CallTimeoutError,
    EncodeError,
    PoolExhaustedError,
    UnknownWorkerError,
    WorkerLostError,
)
from telegrad.rpc.admission_callee import CalleeAdmission
from telegrad.rpc.admission_caller import ASK, WITHDRAW
from telegrad.rpc.codec import MessageCodec, Sealed, read_body
from telegrad.rpc.executor import Executor
from telegrad.rpc.future import Future, new_future
from telegrad.rpc.interceptor import CallRecord
from telegrad.rpc.remote_failure import describe_failure
from telegrad.rpc.served_call import ServedCall, current_served_call, enter_served_call
from telegrad.rpc.user_call import CallMode, UserCall
from telegrad.rpc.user_loop import UserLoop
from telegrad.types import WorkerInfo
from telegrad.wire import Envelope

__all__ = ["CALL", "CANCEL", "ERROR", "REPLY", "Handler", "Prepare", "Serving"]

CALL = "rpc.call"
CANCEL = "rpc.cancel"
REPLY = "rpc.reply"
ERROR = "rpc.error"

Handler: TypeAlias = Callable[[WorkerInfo, Envelope], None]
Prepare: TypeAlias = Callable[[WorkerInfo, object], UserCall]
Settle: TypeAlias = Callable[[object, BaseException | None], None]

_logger = logging.getLogger(__name__)


@final
class Serving:
    """Runs what others call here.

    Args:
        worker: This worker's name.
        codec: Opens requests and seals replies.
        executor: Where requests are decoded and plain functions run.
        user_loop: Where coroutines run.
        new_context: Makes the Context of one call.
        post: Posts an envelope; raises WorkerLostError.
        admission: What it takes in at once.
    """

    def __init__(
        self,
        worker: str,
        codec: MessageCodec,
        executor: Executor,
        user_loop: UserLoop,
        new_context: Callable[[], contextvars.Context],
        post: Callable[[WorkerInfo, Envelope], None],
        admission: CalleeAdmission,
    ) -> None:
        self.worker = worker
        self._codec = codec
        self._executor = executor
        self._user_loop = user_loop
        self._new_context = new_context
        self._post = post
        self._admission = admission
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._calls: dict[tuple[WorkerInfo, int], ServedCall] = {}
        self._served = 0

    @property
    def served(self) -> int:
        """How many calls were answered."""
        return self._served

    @property
    def admitted_bytes(self) -> int:
        """Of calls that had to ask, what is here or on its way."""
        return self._admission.in_use

    @property
    def handlers(self) -> dict[str, Handler]:
        """What takes the messages about calls, by their kind."""
        return {
            ASK: self._admission.on_ask,
            WITHDRAW: self._admission.on_withdraw,
            CANCEL: self._on_cancel,
        }

    def accept(self, prepare: Prepare, caller: WorkerInfo, envelope: Envelope) -> None:
        """Takes a request; on the loop, blocks nowhere."""
        record = CallRecord(envelope.kind)
        call = ServedCall(caller, envelope.call, record, envelope.time_left, envelope.depth)
        call.release = self._admission.arrive(caller, envelope.call)
        with self._lock:
            self._calls[caller, envelope.call] = call
        if envelope.depth == 0 and self._executor.exhausted:
            message = (
                f"the pool of worker {self.worker!r} has {self._executor.threads} threads, all "
                "busy, and takes no further root call; call less at a time, or make the functions "
                "async def"
            )
            exhausted = PoolExhaustedError(message)
            self._codec.drop(caller, record, envelope, exhausted)
            self._fail(call, exhausted)
            return
        self._executor.submit_in(self._new_context(), self._serve, call, prepare, envelope)

    def refuse(self, caller: WorkerInfo, number: int) -> None:
        """Hears that a request was answered without being served."""
        self._admission.release(caller, number)

    def lose(self, caller: WorkerInfo) -> None:
        """Gives up what a lost worker has called, or wants to."""
        self._admission.lose(caller)
        with self._lock:
            orphans = [call for call in self._calls.values() if call.caller == caller]
        for call in orphans:
            call.cancel()

    def wait_until_idle(self, deadline: float) -> bool:
        """Blocks until no call is served but the one that this runs in; tells whether it is so."""
        own = 1 if current_served_call() is not None else 0
        with self._changed:
            while len(self._calls) > own:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(min(left, threading.TIMEOUT_MAX))
        return True

    def run(self, user_call: UserCall, settle: Settle) -> None:
        """Runs a call in its mode; `settle(value, error)` is called once, where it ends."""
        if user_call.mode is CallMode.COROUTINE:
            self._run_coroutine(user_call, settle)
            return
        try:
            value = user_call()
            if user_call.mode is CallMode.FUTURE:
                future = _checked_future(user_call, value)
        except (
            BaseException
        ) as error:  # around the user's function: whatever it raises is its reply
            settle(None, error)
            return
        if user_call.mode is CallMode.FUTURE:
            _let_others_in()
            _when_done(future, settle)
        else:
            settle(value, None)

    def run_to_future(self, user_call: UserCall) -> Future[Any]:
        """Runs a call in its mode, inside the call that is served now; returns its Future."""
        outcome = new_future(self._executor.submit, "a call")

        def settle(value: object, error: BaseException | None) -> None:
            if error is None:
                outcome.try_set_result(value)
            else:
                outcome.try_set_exception(error)

        self.run(user_call, settle)
        return outcome

    def _serve(self, call: ServedCall, prepare: Prepare, envelope: Envelope) -> None:
        """In the pool, inside the Context in which the function runs."""
        enter_served_call(call)
        if call.cancelled or call.deadline <= time.monotonic():
            expired = self._expired(call)
            self._codec.drop(call.caller, call.record, envelope, expired)
            self._fail(call, expired)
            return
        try:
            payload = self._codec.open(call.caller, call.record, envelope)
            user_call = prepare(call.caller, payload)
        except BaseException as error:  # at the top of a remote handler
            self._fail(call, error)
            return
        del payload, envelope
        call.record.function = user_call.name
        self.run(user_call, lambda value, error: self._settle(call, value, error))

    def _on_cancel(self, caller: WorkerInfo, envelope: Envelope) -> None:
        """Hears that the caller gave a call up; on the loop."""
        number = read_body(envelope)
        if not isinstance(number, int):
            return
        with self._lock:
            call = self._calls.get((caller, number))
        if call is not None:
            call.cancel()

    def _run_coroutine(self, user_call: UserCall, settle: Settle) -> None:
        def finished(task: asyncio.Task[Any]) -> None:
            if task.cancelled():
                settle(None, asyncio.CancelledError(f"{user_call.name} was cancelled"))
                return
            error = task.exception()
            settle(None if error is not None else task.result(), error)

        served = current_served_call()
        on_start = served.can_cancel if served is not None else _ignore
        try:
            # A copy: the task enters its Context while this thread is still inside its own.
            self._user_loop.spawn(
                user_call.name, contextvars.copy_context(), user_call, on_start, finished
            )
        except RuntimeError as error:
            settle(None, error)
        else:
            _let_others_in()

    def _settle(self, call: ServedCall, value: object, error: BaseException | None) -> None:
        call.active = False
        if call.cancelled:
            self._fail(call, self._expired(call))
        elif error is not None:
            self._fail(call, error)
        else:
            try:
                sealed = self._codec.seal(call.caller, REPLY, call.record, value, reply=True)
            except Exception as unsendable:  # at the top of a remote handler
                self._fail(call, unsendable)
            else:
                self._reply(call, sealed)

    def _fail(self, call: ServedCall, error: BaseException) -> None:
        call.active = False
        body = describe_failure(error, self.worker)
        try:
            sealed = self._codec.seal(call.caller, ERROR, call.record, body, reply=True)
        except Exception:  # at the top of a remote handler: an interceptor failed
            _logger.exception("the error of %s could not be sent as it is", call.record.function)
            sealed = self._codec.seal_bare(ERROR, {**body, "error": None})
        self._reply(call, sealed)

    def _reply(self, call: ServedCall, sealed: Sealed) -> None:
        sealed.envelope.call = call.number
        with self._lock:
            self._served += 1  # first: who has the reply may ask for the statistics
        try:
            self._post(call.caller, sealed.envelope)
        except (WorkerLostError, UnknownWorkerError):
            sealed.take_back()
        except EncodeError as error:  # it refers to more than an envelope has room for
            sealed.take_back()
            self._reply_bare(call, error)
        call.let_others_in()
        with self._changed:
            self._calls.pop((call.caller, call.number), None)
            self._changed.notify_all()

    def _reply_bare(self, call: ServedCall, error: BaseException) -> None:
        sealed = self._codec.seal_bare(ERROR, describe_failure(error, self.worker))
        sealed.envelope.call = call.number
        with contextlib.suppress(WorkerLostError, UnknownWorkerError):
            self._post(call.caller, sealed.envelope)

    def _expired(self, call: ServedCall) -> CallTimeoutError:
        return CallTimeoutError(
            f"{call.record.function} was given up by {call.caller.name!r} before its value was "
            f"there on {self.worker!r}",
            worker=self.worker,
            function=call.record.function,
            phase="serving",
        )


def _let_others_in() -> None:
    """What is left of the call is a promise, which others may have to keep."""
    served = current_served_call()
    if served is not None:
        served.let_others_in()


def _checked_future(user_call: UserCall, value: object) -> Future[Any]:
    if not isinstance(value, Future):
        raise TypeError(
            f"{user_call.name} is marked async_execution and must return a telegrad.rpc.Future, "
            f"not {value!r} ({type(value).__name__}); remove the mark or return a Future"
        )
    return value


def _when_done(future: Future[Any], settle: Settle) -> None:
    def hand_on(done: Future[Any]) -> None:
        error = done.exception()
        settle(None if error is not None else done.value(), error)

    future.add_done_callback(hand_on)


def _ignore(cancel_task: Callable[[], None]) -> None:
    del cancel_task
