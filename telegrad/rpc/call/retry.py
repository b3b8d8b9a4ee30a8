"""Calls that are made again when the callee is lost and comes back: for idempotent functions alone.

    send ──▶ answered: a value or an error, of which none is retried
      ▲ └──▶ callee lost ──▶ wait for its successor ──┐
      └───────────────────────────────────────────────┘

A broken connection alone is no loss: the session mends it, and nothing runs twice.
"""

from __future__ import annotations

import contextlib
import contextvars
import inspect
import math
import numbers
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
from telegrad.rpc.call.served_call import current_served_call, inherited, still_runs
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

# Calls whose callee is lost look so often whether it is back: a supervisor may be quick, and a look
# takes a microsecond.
LOOK_SECONDS = 0.1
LEAST_SECONDS = 1e-6  # of an attempt: one without time says itself that it has none


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
    """Returns True if a function or method carries the mark."""
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
        agent: The agent that calls.
        to: As for `rpc_async`; a lost worker is waited for like one that is lost later.
        func: A function that is marked `idempotent`.
        args: The arguments by position, a tuple or list.
        kwargs: The arguments by name.
        timeout: Seconds for all attempts together.
        retry: The number of times that it is sent again at most.

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
    peer = agent.members.find(to)
    name, payload = call_payload(func, args, kwargs)
    limit = max(min(seconds(timeout, agent.options.timeout), inherited()[0]), LEAST_SECONDS)
    call = _Call(agent, peer, name, Prepared.of(payload).freeze(), limit, int(retry))
    if (loss := agent.members.lost(peer)) is not None:
        call.wait(loss)
    else:
        try:
            call.send()
        except BaseException as error:
            call.future.try_set_exception(fresh_copy(error))  # it refers back to this call
            raise
    if call.parent is not None and call.parent.cancelled:
        call.future.cancel()
    return call.future


@final
class Retries:
    """The calls of one agent that are made again. All methods may be called from any thread.

    Args:
        agent: The agent that calls.
    """

    def __init__(self, agent: AgentCore) -> None:
        self._changed = threading.Condition()  # guards the set of calls
        self._calls: set[_Call] = set()
        self._ending = self._closed = False
        agent.attachments.own_calls.append(self)
        agent.life.on_ending(self._end)
        agent.life.after_close(self._close)

    @property
    def pending(self) -> int:
        """The number of calls that wait for the return of their callee."""
        with self._changed:
            return sum(call.loss is not None for call in self._calls)

    def wait_until_idle(self, deadline: float) -> bool:
        """Blocks until none of the calls goes on; returns True if that is so at the deadline."""
        left = min(deadline - time.monotonic(), threading.TIMEOUT_MAX)
        with self._changed:
            return self._changed.wait_for(lambda: not self._calls, left)

    def enter(self, call: _Call) -> None:
        """Knows of a call until its end."""
        with self._changed:
            self._calls.add(call)
        call.future._call_when_done(partial(self._forget, call))

    def ends(self, call: _Call) -> bool:
        """Returns True if a call may wait no more.

        A graceful shutdown ends the waits that no served call needs, for it would wait for workers
        that are lost.
        """
        return self._closed or (self._ending and not still_runs(call.parent))

    def _end(self) -> None:
        self._ending = True  # the next look of each call sees it

    def _close(self) -> None:
        self._closed = True
        with self._changed:
            calls = list(self._calls)
        for call in calls:
            call.look()  # if it waits, no deadline comes any more

    def _forget(self, call: _Call) -> None:
        with self._changed:
            self._calls.discard(call)
            if not self._calls:
                self._changed.notify_all()


@final
class _Call:
    """One call, from its first attempt to its last.

    Attributes:
        parent: The served call that makes it; None where none does.
        future: The future of its value.
        loss: The loss of the callee, while the call waits for its return; else None.
    """

    def __init__(
        self,
        agent: AgentCore,
        peer: WorkerInfo,
        function: str,
        payload: Prepared,
        limit: float,
        retry: int,
    ) -> None:
        self.parent = current_served_call()
        self.future = new_future(agent.pool.submit, f"the call of {function} on {peer.name!r}")
        self.loss: WorkerLostError | None = None
        self._agent = agent
        self._peer = peer  # in its latest incarnation
        self._function = function
        self._payload = payload
        self._limit = limit  # seconds for all attempts together
        self._retry = retry
        self._sent = 0
        self._started = time.monotonic()
        self._waits_until = math.inf
        self._context = contextvars.copy_context()
        self._inner: Future[Any] | None = None
        self._retries = agent.attachments[Retries]
        self._retries.enter(self)
        self.future._let_cancel(self._cancelled)
        if self.parent is not None:  # between two attempts no table knows of it
            self.parent.nested.add(self.future)
            self.future._call_when_done(partial(self.parent.nested.discard, self.future))

    def send(self) -> None:
        """Makes an attempt."""
        limit = max(self._started + self._limit - time.monotonic(), LEAST_SECONDS)
        inner = self._agent.calling.send(
            self._peer, CALL, self._payload, function=self._function, timeout=limit
        )
        self._sent += 1
        self._inner = inner
        if self.future.done():  # cancelled before it could know of the attempt
            inner.cancel()
        inner._when_done(self._answered)

    def wait(self, loss: WorkerLostError) -> None:
        """Waits for another incarnation of the callee."""
        # A call without a deadline still ends: the callee has as long to come back as a worker may
        # take to join.
        bound = self._agent.options.init_timeout if self._limit == math.inf else math.inf
        self._waits_until = min(self._started + self._limit, time.monotonic() + bound)
        self.loss = loss
        self.look()

    def look(self) -> None:
        """Goes on if the callee is back, or the time is over; else looks again a little later."""
        agent, loss = self._agent, self.loss
        if loss is None or self.future.done():
            return
        if self._retries.ends(self):
            self.future.try_set_exception(
                NotInitializedError(
                    f"the agent {agent.info.name!r} was shut down while the call of "
                    f"{self._function} waited for {self._peer.name!r} to come back; call "
                    "rpc.init_rpc() again"
                )
            )
        elif time.monotonic() >= self._waits_until:
            self.future.try_set_exception(self._overdue(loss))
        else:
            with contextlib.suppress(UnknownWorkerError):
                peer = agent.members.find(self._peer.name)
                if peer.incarnation != self._peer.incarnation and agent.members.lost(peer) is None:
                    self._peer, self.loss = peer, None
                    agent.pool.submit(self._context.copy().run, self._send_again)
                    return
            agent.deadlines.after(LOOK_SECONDS, self.look)

    def _answered(self, inner: Future[Any]) -> None:
        """Takes the end of an attempt; in the pool, where a reply may be decoded."""
        error = inner.exception()
        if error is None:
            self.future.try_set_result(inner.value())
        elif _is_loss(error) and self._sent <= self._retry:
            self.wait(error)
        else:
            if _is_loss(error):
                error.add_note(
                    f"it was sent {self._sent} times, each time to a worker that was lost"
                )
            self.future.try_set_exception(error)

    def _send_again(self) -> None:
        try:
            self.send()
        except BaseException as error:  # the top of a task in the pool: the future tells
            self.future.try_set_exception(fresh_copy(error))

    def _overdue(self, loss: WorkerLostError) -> BaseException:
        """Returns the error for a callee that has not come back in time."""
        elapsed = time.monotonic() - self._started
        text = f"{self._peer.name!r} did not come back within {elapsed:.3g} s"
        if self._limit == math.inf:
            lost = fresh_copy(loss)
            lost.add_note(f"{text} (RpcOptions.init_timeout)")
            return lost
        error = CallTimeoutError(
            f"{self._function} on {self._peer.name!r} took longer than {self._limit:.3g} s: the "
            f"worker was lost, and {text}; start it again, or give a longer timeout=",
            worker=self._peer.name,
            function=self._function,
            phase="waiting for the worker to come back",
            elapsed=elapsed,
        )
        error.__cause__ = loss
        return error

    def _cancelled(self) -> None:
        if self._inner is not None:
            self._inner.cancel()


def _is_loss(error: BaseException) -> TypeGuard[WorkerLostError]:
    """Returns True if the callee was lost, and not this worker or one that the function needed."""
    return (
        isinstance(error, WorkerLostError)
        and not isinstance(error, EvictedError | UnreachableWorkerError)
        and remote_traceback(error) is None
    )


def attach_to(agent: AgentCore) -> None:
    """For the library: puts on an agent what `retry=` needs."""
    agent.attachments.attach(Retries(agent))
