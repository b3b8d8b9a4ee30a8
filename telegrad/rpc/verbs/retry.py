"""Calls that are made again when the callee is lost and comes back: for idempotent functions alone.

    send ──▶ answered: a value or an error, of which none is retried
      ▲ └──▶ callee lost ──▶ wait for its successor ──┐
      └───────────────────────────────────────────────┘

A broken connection alone is no loss: the session mends it, and nothing runs twice. `Calling` keeps
the call in its table meanwhile, as one that waits for its reply.
"""

from __future__ import annotations

import contextvars
import inspect
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from telegrad.rpc.call.codec import Prepared
from telegrad.rpc.call.pending_call import Again
from telegrad.rpc.call.serving import CALL
from telegrad.rpc.call.user_call import call_name, call_payload
from telegrad.rpc.future.future import Future
from telegrad.types import WorkerInfo

if TYPE_CHECKING:
    from telegrad.rpc.agent.core import AgentCore

F = TypeVar("F", bound="Callable[..., Any] | staticmethod[..., Any] | classmethod[Any, ..., Any]")

_MARK = "__telegrad_idempotent__"


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
    context = contextvars.copy_context()

    def run(work: Callable[[], None]) -> None:  # in a copy: the last attempt may be in one still
        agent.pool.submit_call(context.copy(), work, nested=True, bounded=False)

    again = Again(
        payload=Prepared.of(payload).freeze(),
        retry=int(retry),
        patience=agent.options.init_timeout,
        successor=agent.members.successor,
        run=run,
        loss=agent.members.lost(peer),
    )
    return agent.calling.send(
        peer, CALL, again.payload, function=name, timeout=timeout, again=again
    )
