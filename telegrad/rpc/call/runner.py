"""The runner of user functions: in a thread, on the user loop, or until a Future is completed."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeAlias, final

from telegrad.rpc.base.served_call import current_served_call
from telegrad.rpc.call.user_call import CallMode, UserCall, plain_function
from telegrad.rpc.future.future import Future, new_future
from telegrad.rpc.future.waits import comes_from
from telegrad.rpc.pool.pool import Pool
from telegrad.rpc.pool.user_loop import UserLoop

Settle: TypeAlias = Callable[[object, BaseException | None], None]


@final
class Runner:
    """Runs each UserCall in its mode, inside the call that is served.

    Args:
        pool: The threads of plain functions.
        user_loop: The loop of coroutines.
    """

    def __init__(self, pool: Pool, user_loop: UserLoop) -> None:
        self._pool = pool
        self._user_loop = user_loop

    def run(self, user_call: UserCall, settle: Settle, runs_by: Callable[[object], None]) -> None:
        """Runs a call in its mode; `settle(value, error)` is called once, where it ends.

        `runs_by` gets the object by which it ends, as in `ServedCall.runner`, at every change.
        """
        mode = user_call.mode
        if mode is CallMode.COROUTINE:
            self._run_coroutine(user_call, settle, runs_by)
            return
        runs_by(threading.current_thread())
        try:
            value = user_call.func(*user_call.args, **user_call.kwargs)
            if mode is CallMode.FUTURE:
                future = user_call.future_of(value)
        except BaseException as error:  # around the user's function: any exception is its reply
            settle(None, error)
            return
        if mode is CallMode.FUTURE:
            runs_by(future)
            self._settle_later(future, settle)
        else:
            settle(value, None)

    def run_to_future(self, user_call: UserCall) -> Future[Any]:
        """Runs a call in its mode, inside the call that is served now; returns its Future."""
        outcome = new_future(self._pool.submit, "a call")
        if (served := current_served_call()) is not None:  # the innermost one is the user's
            served.record.served = plain_function(user_call.func) or served.record.served

        def settle(value: object, error: BaseException | None) -> None:
            if error is None:
                outcome.try_set_result(value)
            else:
                outcome.try_set_exception(error)

        self.run(user_call, settle, partial(comes_from, outcome))
        return outcome

    def _settle_later(self, future: Future[Any], settle: Settle) -> None:
        """Settles with the future's result, or at once when the call is cancelled.

        The future itself is not cancelled: other calls may wait for the same one.
        """
        ends = [settle]

        def end(value: object, error: BaseException | None) -> None:
            try:
                settle = ends.pop()  # atomic: one of the two has it
            except IndexError:
                return
            settle(value, error)

        served = current_served_call()
        if served is not None:

            def cancelled() -> None:  # perhaps on the loop, which encodes nothing
                self._pool.submit(end, None, served.given_up())

            served.let_others_in()
            served.on_cancel(cancelled)

        def hand_on(done: Future[Any]) -> None:
            error = done.exception()
            end(None if error is not None else done.value(), error)

        future._when_done(hand_on)

    def _run_coroutine(
        self, user_call: UserCall, settle: Settle, runs_by: Callable[[object], None]
    ) -> None:
        def start() -> Coroutine[Any, Any, Any]:
            runs_by(asyncio.current_task())
            coroutine: Coroutine[Any, Any, Any] = user_call()
            return coroutine

        def finished(value: object, error: BaseException | None) -> None:
            if isinstance(error, asyncio.CancelledError):
                if served is not None and served.cancelled:
                    error = served.given_up()  # an RRef may keep it
                else:
                    error = asyncio.CancelledError(f"{user_call.name} was cancelled")
            settle(value, error)

        served = current_served_call()
        on_start = served.on_cancel if served is not None else lambda _: None
        try:
            # A copy: the task enters its Context while this thread is still inside its own.
            self._user_loop.spawn(
                user_call.name, contextvars.copy_context(), start, on_start, finished
            )
        except RuntimeError as error:
            settle(None, error)
        else:
            if served is not None:  # only a promise is left of it, which others may have to keep
                served.let_others_in()

    def close(self, limit: float) -> None:
        """Cancels the coroutines; waits so many seconds for them to end."""
        self._user_loop.close(limit)
