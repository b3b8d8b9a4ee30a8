"""The errors by which calls end at their caller, in words that say what to do."""

from __future__ import annotations

import math
from typing import TypeGuard

from telegrad.errors import (
    CallCancelledError,
    CallTimeoutError,
    EvictedError,
    NotInitializedError,
    UnreachableWorkerError,
    WorkerLostError,
)
from telegrad.rpc.base.failure import fresh_copy
from telegrad.rpc.base.served_call import ServedCall
from telegrad.rpc.call.pending_call import PendingCall
from telegrad.types import WorkerInfo


def is_loss(error: BaseException | None) -> TypeGuard[WorkerLostError]:
    """Returns True if the callee was lost, and not this worker."""
    lost = isinstance(error, WorkerLostError)
    return lost and not isinstance(error, EvictedError | UnreachableWorkerError)


def check_parent(parent: ServedCall, left: float, function: str, to: WorkerInfo) -> None:
    """Checks that the served call, which makes this one, may still make calls."""
    if parent.cancelled:
        raise CallCancelledError(
            f"{function} on {to.name!r} was not sent: the call that makes it, "
            f"{parent.record.function}, was cancelled by {parent.caller.name!r}"
        )
    if left <= 0:
        message = f"{function} on {to.name!r} was not sent: the call that makes it has no time left"
        raise CallTimeoutError(message, worker=to.name, function=function, phase="sending")


def timed_out(call: PendingCall, became: str) -> CallTimeoutError:
    """Returns the error for a call whose reply did not come in time."""
    function, worker, elapsed = call.record.function, call.peer.name, call.elapsed
    return CallTimeoutError(
        f"{function} on {worker!r} took longer than {call.limit:.3g} s (elapsed: {elapsed:.3g} s, "
        f"waiting for the reply); {became}; give a longer timeout=, or math.inf",
        worker=worker,
        function=function,
        phase="waiting",
        elapsed=elapsed,
    )


def not_admitted(call: PendingCall) -> CallTimeoutError:
    """Returns the error for a call that got no place, or no permit, in time."""
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


def overdue(call: PendingCall) -> BaseException:
    """Returns the error for a callee that has not come back in time."""
    function, worker, elapsed = call.record.function, call.peer.name, call.elapsed
    loss = None if call.again is None else call.again.loss
    text = f"{worker!r} did not come back within {elapsed:.3g} s"
    if call.limit == math.inf and loss is not None:
        lost = fresh_copy(loss)
        lost.add_note(f"{text} (RpcOptions.init_timeout)")
        return lost
    error = CallTimeoutError(
        f"{function} on {worker!r} took longer than {call.limit:.3g} s: the worker was lost, and "
        f"{text}; start it again, or give a longer timeout=",
        worker=worker,
        function=function,
        phase="waiting for the worker to come back",
        elapsed=elapsed,
    )
    error.__cause__ = loss
    return error


def left_error(call: PendingCall, worker: str) -> NotInitializedError:
    """Returns the error for a call whose worker left while it waited for a lost callee."""
    return NotInitializedError(
        f"the agent {worker!r} was shut down while the call of {call.record.function} waited for "
        f"{call.peer.name!r} to come back; call rpc.init_rpc() again"
    )
