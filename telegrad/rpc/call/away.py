"""The calls that wait for the return of a lost callee: those that may run twice.

They stay in the table of calls. The thread that removes one from here has it alone: it sends the
call again, or ends it.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TypeGuard, final

from telegrad.critical import critical
from telegrad.errors import (
    CallCancelledError,
    CallTimeoutError,
    EvictedError,
    NotInitializedError,
    UnreachableWorkerError,
    WorkerLostError,
)
from telegrad.rpc.base.failure import fresh_copy
from telegrad.rpc.base.interceptor import CallRecord
from telegrad.rpc.base.life import Life
from telegrad.rpc.base.served_call import still_runs
from telegrad.rpc.call.codec import MessageCodec
from telegrad.rpc.call.serving import CALL
from telegrad.rpc.call.table import Again, PendingCall
from telegrad.rpc.pool.deadlines import Deadlines
from telegrad.types import WorkerInfo


def is_loss(error: BaseException | None) -> TypeGuard[WorkerLostError]:
    """Returns True if the callee was lost, and not this worker."""
    lost = isinstance(error, WorkerLostError)
    return lost and not isinstance(error, EvictedError | UnreachableWorkerError)


@final
class AwayCalls:
    """The calls of one worker whose callee is lost and may come back. From any thread.

    Args:
        life: The life of the agent, whose end ends the waits.
        deadlines: The moments at which waits end.
        codec: Seals the messages that are sent again.
        start: Posts a call of the table, given its message and `root`.
        end: Removes a call from the table and ends it with an error.
    """

    def __init__(
        self,
        life: Life,
        deadlines: Deadlines,
        codec: MessageCodec,
        start: Callable[..., None],
        end: Callable[[PendingCall, BaseException], None],
    ) -> None:
        self._life = life
        self._deadlines = deadlines
        self._codec = codec
        self._start = start
        self._end = end
        self._lock = threading.Lock()  # guards what is added, and the peers of calls
        self._calls: dict[int, PendingCall] = {}
        self._closed = False
        life.on_ending(self._end_waits)

    def __len__(self) -> int:
        return len(self._calls)

    def take(self, call: PendingCall, peer: WorkerInfo, error: BaseException | None) -> bool:
        """Has a call of the table wait for its callee's return; returns False if it may not.

        Args:
            call: The call.
            peer: The callee to which it was sent, or was to be.
            error: The reason why that did not answer.
        """
        again = call.again
        if again is None or self._closed or not is_loss(error):
            return False
        # A call without a limit still ends: the callee has as long to come back as a worker may
        # take to join.
        patience = again.patience if call.limit == math.inf else math.inf
        until = min(call.started + call.limit, time.monotonic() + patience)
        with critical.section, self._lock:
            # The loop and the thread that posts it both hear of a loss.
            if call.number in self._calls or call.peer != peer:
                return True
            if again.sent > again.retry:
                return False
            again.loss = error
            if call.deadline is not None:
                call.deadline.cancel()
            call.deadline = self._deadlines.at(until, partial(self._expire, call, again))
            self._calls[call.number] = call
        if call.future.done() or self._closed:  # at this moment
            self._give_up(call)
        else:
            self._look_for(call, again)
        return True

    def remove(self, call: PendingCall) -> bool:
        """Removes a call; returns False if it does not wait here."""
        return self._calls.pop(call.number, None) is not None

    def look(self) -> None:
        """Sends the calls again whose callee is back; called when workers have joined."""
        for call in list(self._calls.values()):
            if call.again is not None:
                self._look_for(call, call.again)

    def close(self, *, evicted: bool) -> None:
        """Takes no more calls, and ends the waits; those of an evicted worker end elsewhere."""
        self._closed = True
        if evicted:
            self._calls.clear()
        self._end_waits()

    def _look_for(self, call: PendingCall, again: Again) -> None:
        successor = again.successor(call.peer)
        with critical.section, self._lock:
            if successor is None or not self.remove(call):
                return
            call.peer = successor
        again.run(partial(self._send_again, call, again))

    def _send_again(self, call: PendingCall, again: Again) -> None:
        """Sends a call to the successor of its callee; in the pool."""
        if call.deadline is not None:
            call.deadline.cancel()
        call.record = CallRecord(call.record.function)
        try:
            if call.given_up:
                raise CallCancelledError("it was cancelled")
            sealed = self._codec.seal(call.peer, CALL, call.record, again.payload, reply=False)
            sealed.envelope.depth = 0 if call.parent is None else call.parent.depth + 1
            root = call.parent is None and call.reads is not None
            self._start(call, sealed, root=root)
        except BaseException as error:  # the top of a task in the pool: the future tells
            self._end(call, error)

    def _expire(self, call: PendingCall, again: Again) -> None:
        if self.remove(call):
            self._end(call, _overdue(call, again))

    def _end_waits(self) -> None:
        """Ends those waits that no served call needs: a shutdown would wait for lost workers."""
        for call in list(self._calls.values()):
            if self._closed or not still_runs(call.parent):
                self._give_up(call)

    def _give_up(self, call: PendingCall) -> None:
        if self.remove(call):
            error = NotInitializedError(
                f"the agent {self._life.name!r} was shut down while the call of "
                f"{call.record.function} waited for {call.peer.name!r} to come back; call "
                "rpc.init_rpc() again"
            )
            self._end(call, error)


def _overdue(call: PendingCall, again: Again) -> BaseException:
    """Returns the error for a callee that has not come back in time."""
    function, worker, elapsed = call.record.function, call.peer.name, call.elapsed
    text = f"{worker!r} did not come back within {elapsed:.3g} s"
    if call.limit == math.inf and again.loss is not None:
        lost = fresh_copy(again.loss)
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
    error.__cause__ = again.loss
    return error
