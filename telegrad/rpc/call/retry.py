"""Calls that are made again when the callee is lost and comes back: for idempotent functions alone.

    send ──▶ answered: a value or an error, of which none is retried
      ▲ └──▶ callee lost ──▶ wait for its successor, looking ever more rarely ──┐
      └─────────────────────────────────────────────────────────────────────────┘

A broken connection alone is no loss: the session mends it, and nothing runs twice.
"""

from __future__ import annotations

import contextvars
import inspect
import math
import numbers
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar, final

from telegrad.errors import (
    CallTimeoutError,
    EvictedError,
    NotInitializedError,
    UnknownWorkerError,
    UnreachableWorkerError,
    WorkerLostError,
)
from telegrad.rpc.call.codec import Prepared
from telegrad.rpc.call.failure import fresh_copy, remote_traceback
from telegrad.rpc.call.served_call import (
    ServedCall,
    current_served_call,
    inherited,
    still_runs,
)
from telegrad.rpc.call.serving import CALL
from telegrad.rpc.call.user_call import call_name, call_payload
from telegrad.rpc.future.future import Future, new_future
from telegrad.rpc.limits import seconds
from telegrad.types import WorkerInfo

if TYPE_CHECKING:
    from telegrad.rpc.agent.core import AgentCore

__all__ = ["Retries", "attach_to", "call_again", "idempotent", "is_idempotent"]

F = TypeVar("F", bound="Callable[..., Any] | staticmethod[..., Any] | classmethod[Any, ..., Any]")

_MARK = "__telegrad_idempotent__"

# How often a call looks whether its callee is back: soon after the loss, since a supervisor may be
# quick; then rarely, since a program takes a second to start. Each wait is shortened by up to half,
# so that the callers of one worker do not all come at the moment of its return.
FIRST_LOOK_SECONDS = 0.05
MOST_LOOK_SECONDS = 1.0


def idempotent(func: F) -> F:
    """Marks a function that may run twice: `retry=` of `rpc_sync` and `rpc_async` takes no other.

    It promises that running it twice, or half and then once, is as good as once; on a worker that
    was started anew, too. Local calls and calls without `retry=` are not changed. The mark may
    stand above or below `@staticmethod`, `@classmethod` and `functions.async_execution`.

    Args:
        func: Plain, `async def` or marked `functions.async_execution`.

    Returns:
        The same function.

    Raises:
        TypeError: It is no function, or one that takes no mark (a builtin).

    Example:
        >>> @idempotent
        ... def store(key: str, value: int) -> None: ...
        >>> is_idempotent(store), is_idempotent(print)
        (True, False)
    """
    target: object = func.__func__ if isinstance(func, staticmethod | classmethod) else func
    if not callable(target) or inspect.isclass(target):
        raise TypeError(f"idempotent marks functions, not {target!r}")
    try:
        setattr(target, _MARK, True)
    except (AttributeError, TypeError):
        raise TypeError(
            f"{call_name(target)} takes no mark; write a function that calls it, and mark that"
        ) from None
    return func


def is_idempotent(func: object) -> bool:
    """Tells whether a function or method carries the mark."""
    return getattr(func, _MARK, False) is True


def call_again(
    agent: AgentCore,
    to: str | int | WorkerInfo,
    func: Callable[..., Any],
    args: Sequence[Any] | None = (),
    kwargs: Mapping[str, Any] | None = None,
    timeout: float | None = None,
    *,
    retry: int,
) -> Future[Any]:
    """Calls a function, and again where the callee is lost and comes back under its name.

    The arguments are encoded once, as they are now.

    Args:
        agent: Who calls.
        to: As for `rpc_async`; a lost worker is waited for like one that is lost later.
        func: Marked `idempotent`.
        args: A tuple or list.
        kwargs: By name.
        timeout: Seconds for all of it together.
        retry: How often it is sent again at most.

    Raises:
        TypeError: `retry` is no int, or an argument of the call has the wrong form.
        ValueError: `retry` is negative, or the function is not marked.
        UnknownWorkerError: There never was such a worker.
        EncodeError: The function or an argument cannot travel; nothing was sent.
        CallTimeoutError: The call that this code serves has no time left.
    """
    given: object = retry
    if isinstance(given, bool) or not isinstance(given, numbers.Integral):
        raise TypeError(f"retry must be a number of times, not {retry!r}")
    if retry < 0:
        raise ValueError(f"retry must be 0 or more, not {retry}")
    if not is_idempotent(func):
        raise ValueError(
            f"retry={retry} for {call_name(func)}, which is not marked: a call whose callee was "
            "lost may have run, in part or to its end; mark the function with @rpc.idempotent if "
            "running it twice is as good as once, else leave retry at 0"
        )
    return agent.attachments[Retries].call(to, func, args, kwargs, timeout, int(retry))


@final
class Retries:
    """What calls of one agent wait for: the return of their callees.

    Args:
        agent: Who calls.
    """

    def __init__(self, agent: AgentCore) -> None:
        self._agent = agent
        self._lock = threading.Lock()  # guards all below
        self._changed = threading.Condition(self._lock)
        self._calls: set[_Call] = set()
        self._waiting: set[_Call] = set()
        self._ending = False
        self._closed = False
        agent.attachments.own_calls.append(self)
        agent.life.on_ending(self._end)
        agent.life.after_close(self._close)

    @property
    def waiting(self) -> int:
        """How many calls wait for the return of their callee."""
        return len(self._waiting)

    @property
    def pending(self) -> int:
        """How many calls have no attempt under way: no table of calls knows of those."""
        with self._lock:
            return sum(not call.in_flight for call in self._calls)

    def wait_until_idle(self, deadline: float) -> bool:
        """Blocks until none of the calls goes on; tells whether that is so at the deadline."""
        with self._changed:
            while self._calls:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(min(left, threading.TIMEOUT_MAX))
        return True

    def call(
        self,
        to: str | int | WorkerInfo,
        func: Callable[..., Any],
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
        timeout: float | None,
        retry: int,
    ) -> Future[Any]:
        """See `call_again`."""
        agent = self._agent
        peer = agent.members.find(to)
        name, payload = call_payload(func, args, kwargs)
        # Where the served call has no time left at all, `send` is the one to say it.
        limit = max(min(seconds(timeout, agent.options.timeout), inherited()[0]), 1e-6)
        parent = current_served_call()
        prepared = Prepared.of(payload).freeze()
        call = _Call(self, agent, peer, name, prepared, limit, retry, parent)
        with self._lock:
            self._calls.add(call)
        call.future._call_when_done(partial(self._forget, call))
        if parent is not None:  # between two attempts no table knows of it
            parent.nested.add(call.future)
            call.future._call_when_done(lambda: parent.nested.discard(call.future))
        call.begin()
        if parent is not None and parent.cancelled:
            call.future.cancel()
        return call.future

    def enter(self, call: _Call) -> bool:
        """Keeps a call that waits; False where nothing is waited for any more."""
        with self._lock:
            ends = self._closed or (self._ending and not still_runs(call.parent))
            if not ends:
                self._waiting.add(call)
            return not ends

    def leave(self, call: _Call) -> bool:
        """Takes out a call; False where it did not wait. Whoever takes it goes on with it."""
        with self._lock:
            waited = call in self._waiting
            self._waiting.discard(call)
        return waited

    def _end(self) -> None:
        """Ends the waits that no served call needs: a graceful shutdown begins, or goes on.

        It would wait for who is lost. What this worker serves it still serves.
        """
        with self._lock:
            self._ending = True
            waiting = {call for call in self._waiting if not still_runs(call.parent)}
            self._waiting -= waiting
        for call in waiting:
            call.end_closed()

    def _close(self) -> None:
        with self._lock:
            self._closed = True
            waiting, self._waiting = self._waiting, set()
        for call in waiting:
            call.end_closed()

    def _forget(self, call: _Call) -> None:
        with self._changed:
            self._calls.discard(call)
            if not self._calls:
                self._changed.notify_all()


@final
class _Call:
    """One call, from its first attempt to its last."""

    def __init__(
        self,
        retries: Retries,
        agent: AgentCore,
        peer: WorkerInfo,
        function: str,
        payload: Prepared,
        limit: float,
        retry: int,
        parent: ServedCall | None,
    ) -> None:
        self.parent = parent
        self.future = new_future(agent.pool.submit, f"the call of {function} on {peer.name!r}")
        self._retries = retries
        self._agent = agent
        self._peer = peer
        self._function = function
        self._payload = payload
        self._limit = limit
        self._left = retry
        self._sent = 0
        self._started = time.monotonic()
        self._context = contextvars.copy_context()
        self._inner: Future[Any] | None = None
        self._loss: WorkerLostError | None = None
        self._waits_until = math.inf
        self._pause = FIRST_LOOK_SECONDS
        self._stop_looking: Callable[[], None] | None = None
        self.future._let_cancel(self._cancelled)

    @property
    def in_flight(self) -> bool:
        """Whether an attempt waits for its reply."""
        return self._inner is not None and not self._inner.done()

    def begin(self) -> None:
        """Makes the first attempt, in the thread of the caller."""
        loss = self._agent.members.lost(self._peer)
        if loss is not None:
            self._wait(loss)
            return
        try:
            self._send(self._limit)
        except BaseException as error:
            self.future.try_set_exception(fresh_copy(error))  # it refers back to this call
            raise

    def end_closed(self) -> None:
        """The agent was shut down while the call waited."""
        self.future.try_set_exception(
            NotInitializedError(
                f"the agent {self._agent.info.name!r} was shut down while the call of {self._function} "
                f"waited for {self._peer.name!r} to come back; call rpc.init_rpc() again"
            )
        )

    def _send(self, limit: float) -> None:
        inner = self._agent.calling.send(
            self._peer, CALL, self._payload, function=self._function, timeout=limit
        )
        self._sent += 1
        self._inner = inner
        if self.future.done():  # cancelled before it could know of the attempt
            inner.cancel()
        inner._when_done(self._answered)

    def _answered(self, inner: Future[Any]) -> None:
        """An attempt has ended; in the pool, where a reply may be decoded."""
        error = inner.exception()
        if error is None:
            self.future.try_set_result(inner.value())
        elif not self._is_loss(error):
            self.future.try_set_exception(error)
        elif not self._left:
            error.add_note(f"it was sent {self._sent} times, each time to a worker that was lost")
            self.future.try_set_exception(error)
        else:
            self._left -= 1
            self._wait(error)

    @staticmethod
    def _is_loss(error: BaseException) -> TypeGuard[WorkerLostError]:
        """Whether the callee was lost, and not this worker, or somebody whom the function needed."""
        return (
            isinstance(error, WorkerLostError)
            and not isinstance(error, EvictedError | UnreachableWorkerError)
            and remote_traceback(error) is None
        )

    def _wait(self, loss: WorkerLostError) -> None:
        """Waits for another incarnation of the callee, if there is time left."""
        now = time.monotonic()
        self._loss = loss
        self._pause = FIRST_LOOK_SECONDS
        # A call without a deadline still ends: who is to come back has as long as a worker may
        # take to join.
        bound = self._agent.options.init_timeout if self._limit == math.inf else math.inf
        self._waits_until = min(self._started + self._limit, now + bound)
        self._look_later()

    def _look_later(self) -> None:
        if not self._retries.enter(self):
            self.end_closed()
            return
        if self.future.done() and self._retries.leave(self):
            return
        pause = self._pause * random.uniform(0.5, 1.0)
        self._pause = min(2 * self._pause, MOST_LOOK_SECONDS)
        left = self._waits_until - time.monotonic()
        look = self._agent.deadlines.after(max(min(pause, left), 0.0), self._look)
        self._stop_looking = look.cancel

    def _look(self) -> None:
        """Looks whether the callee is back; on the loop."""
        if not self._retries.leave(self):
            return
        if time.monotonic() >= self._waits_until:
            self._agent.pool.submit(self._end_waiting)
            return
        try:
            peer = self._agent.members.find(self._peer.name)
        except UnknownWorkerError:
            peer = self._peer
        if peer.incarnation == self._peer.incarnation or self._agent.members.lost(peer) is not None:
            self._look_later()
            return
        self._peer = peer
        self._agent.pool.submit_in(self._context.copy(), self._send_again)

    def _send_again(self) -> None:
        left = self._started + self._limit - time.monotonic()
        if left <= 0:
            self._end_waiting()
            return
        try:
            self._send(left)
        except BaseException as error:  # the top of a task in the pool: the future tells
            self.future.try_set_exception(fresh_copy(error))

    def _end_waiting(self) -> None:
        loss, elapsed = self._loss, time.monotonic() - self._started
        assert loss is not None
        text = f"{self._peer.name!r} did not come back within {elapsed:.3g} s"
        if self._limit == math.inf:
            lost = fresh_copy(loss)
            lost.add_note(f"{text} (RpcOptions.init_timeout)")
            self.future.try_set_exception(lost)
            return
        error = CallTimeoutError(
            f"{self._function} on {self._peer.name!r} took longer than {self._limit:.3g} s: the "
            f"worker was lost, and {text}; start it again, or give a longer timeout=",
            worker=self._peer.name,
            function=self._function,
            phase="waiting for the worker to come back",
            elapsed=elapsed,
        )
        error.__cause__ = loss
        self.future.try_set_exception(error)

    def _cancelled(self) -> None:
        self._retries.leave(self)
        if self._stop_looking is not None:
            self._stop_looking()
        if self._inner is not None:
            self._inner.cancel()


def attach_to(agent: AgentCore) -> None:
    """For the library: puts on an agent what `retry=` needs."""
    agent.attachments.attach(Retries(agent))
