"""Starts a pass at this worker and waits until it has ended everywhere."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from threading import get_ident
from typing import Any, final

from telegrad.autograd import Edge, Tensor
from telegrad.dist_autograd.container import Container
from telegrad.dist_autograd.context import Context
from telegrad.dist_autograd.desk import Desk, Work
from telegrad.dist_autograd.ids import ContextId
from telegrad.dist_autograd.messages import PassMode
from telegrad.dist_autograd.pass_runner import PassRunner, Root
from telegrad.dist_autograd.remote_roots import find_roots
from telegrad.errors import AutogradError, BlockingCallError, CallTimeoutError, WorkerLostError
from telegrad.rpc import Agent, Future, RRef
from telegrad.rpc.seams import Driven, Shield, current_served_call, new_future, on_own_loop, seconds

__all__ = [
    "LEAST_SECONDS",
    "OwnPart",
    "run_pass",
    "run_pass_from",
]


# -- what the thread that waits for the end of a pass does of it meanwhile -----------------------
#
# It reads what comes from a worker that it waits for, where the transport lets it, and does itself what
# it has read; without that it would sleep while another thread is woken for each message.

LEAST_SECONDS = 1e-6  # so that the wait itself says that the time is over


@final
class OwnPart(Driven):
    """Of one thread, in one pass.

    Args:
        agent: This worker.
        runner: Its part of the pass.
        desk: Where what this thread reads comes from.
    """

    def __init__(self, agent: Agent, runner: PassRunner, desk: Desk) -> None:
        self._agent = agent
        self._runner = runner
        self._desk = desk
        self._taken: deque[Work] = deque()
        # Completed by the next message; made to be waited for.
        self._news: Future[Any] | None = None
        self.peer = agent.info  # it may be any; who waits for this alone asks `drive`

    def take(self, work: Work) -> None:
        """Leaves a message to this thread, which has just read it; in this thread."""
        self._taken.append(work)
        self._wake()

    def run(self, start: Callable[[], None], limit: float) -> None:
        """Starts the pass, and blocks until it has ended everywhere.

        Args:
            start: Starts it.
            limit: Seconds that this thread waits; how long it computes is not bounded.

        Raises:
            CallTimeoutError: It has not ended by then.
            CallCancelledError: The call was cancelled that this thread serves.
        """
        ended, ends = self._runner.ended, time.monotonic() + limit
        ended.call_when_done(self._wake)
        waiting, me = self._desk.waiting, get_ident()
        self._do(start)
        while not ended.done():
            news = self._news = new_future(self._agent.submit, "the end of a pass")
            news.stands_for(self, _nothing)
            if ended.done():  # before it could have told of it
                return
            waiting[me] = self
            try:
                news.wait(max(ends - time.monotonic(), LEAST_SECONDS))
            finally:
                del waiting[me]
                if self._taken:
                    self._do(partial(self._desk.work_through, self._taken, self._runner))

    reads = None  # who waits elsewhere leaves it to this thread

    def drive(self, gate: Any, seconds: float) -> None:
        """Reads what comes from a worker that this waits for, until a gate is open."""
        peer = self._runner.peer
        if peer is not None:
            self._agent.drive(peer, gate, seconds)

    def _do(self, work: Callable[[], None]) -> None:
        with Shield():  # Ctrl-C in between would leave a pass half told
            self._agent.new_context().run(work)

    def _wake(self) -> None:
        if self._news is not None:
            self._news.try_set_result(None)


def _nothing() -> None:
    pass


# ------------------------------------------------------------------------------------------------


def run_pass_from(
    container: Container,
    context_id: ContextId,
    roots: Sequence[Tensor | RRef[Any]],
    gradients: Sequence[Any],
    mode: PassMode,
    timeout: float | None,
    *,
    call: str,
    wanted: Sequence[Edge] = (),
) -> PassRunner:
    """Runs a pass from roots of any workers, as `run_pass` does.

    Args:
        container: The contexts of this worker.
        context_id: In which of them.
        roots: Tensors of this worker, and RRefs to tensors of any.
        gradients: One for each, None for the 1 of a scalar.
        mode: How it runs.
        timeout: Seconds, as the user said.
        call: What to write on a loop, behind `rpc.to_thread(`.
        wanted: As for `run_pass`.

    Raises:
        Exception: As `telegrad.dist_autograd.backward` says.
    """
    context = container.find(context_id)
    limit = seconds(timeout, container.agent.options.timeout)
    if on_own_loop():
        raise BlockingCallError(
            f"{call.partition(',')[0].rpartition('.')[2]}() would block a loop of telegrad's; in an "
            f"async def function write `await rpc.to_thread({call})`"
        )
    ends = time.monotonic() + limit
    found = find_roots(container, context, roots, gradients, create_graph=mode.create, limit=limit)
    return run_pass(container, context, found, mode, ends - time.monotonic(), wanted)


def run_pass(
    container: Container,
    context: Context,
    roots: Sequence[Root],
    mode: PassMode,
    limit: float,
    wanted: Sequence[Edge] = (),
    *,
    here: bool = True,
) -> PassRunner:
    """Runs a pass with this worker as its starter; blocks until it has ended everywhere.

    Args:
        container: The contexts of this worker.
        context: In which of them.
        roots: Where it starts.
        mode: How it runs.
        limit: Seconds; what the served call has left bounds them.
        wanted: Edges of this worker's graph whose gradients it is run for, if it keeps none.
        here: Whether this thread computes, too; if not it returns as soon as the pass has ended,
            even if a rule still runs.

    Returns:
        This worker's part of the pass, which has captured what came to the edges.

    Raises:
        ContextError: The context was released meanwhile.
        Exception: How the pass ended; see `telegrad.dist_autograd.backward`.
    """
    runner = container.new_pass(context)
    served = current_served_call()
    if served is not None:
        limit = min(limit, served.deadline - time.monotonic())
    started, agent = time.monotonic(), container.agent
    late = partial(_abort_late, agent, runner, started)
    stop = agent.after(limit, partial(agent.submit, late)) if limit < math.inf else None
    cancelled = _Cancelled(agent, runner)
    try:
        if served is not None:
            served.nested.add(cancelled)
            if served.cancelled:  # perhaps before it knew of this
                cancelled.cancel()
        start = partial(runner.start, roots, mode, wanted)
        if here:
            _do(late, runner, partial(OwnPart(agent, runner, container.desk).run, start, limit))
        else:
            agent.submit(start)
            _do(late, runner, partial(_ended, runner, limit))
        if served is not None and served.cancelled and runner.ended.failed:
            served.check()
        runner.ended.value()
    except WorkerLostError as lost:
        lost.add_note(
            f"backward of autograd context {context.id}, started on worker "
            f"{container.agent.name!r}, was aborted and left no gradients; repeat the step in a new "
            "context, without that worker"
        )
        raise
    finally:
        if stop is not None:
            stop()
        if served is not None:
            served.nested.discard(cancelled)
        _forget_frames(runner)
    return runner


def _forget_frames(runner: PassRunner) -> None:
    """Takes off what the pass keeps its error's frames, once the caller has a copy with them.

    Where this thread ran a rule they are its own, and keep what the program has there.
    """
    if runner.ended.failed and (error := runner.ended.exception()) is not None:
        BaseException.__setattr__(error, "__traceback__", None)  # frozen ones too


@final
class _Cancelled:
    """What hears that the call was cancelled that a pass is started in, while its thread computes."""

    def __init__(self, agent: Agent, runner: PassRunner) -> None:
        self._agent = agent
        self._runner = runner

    def cancel(self) -> bool:
        """Has the pass aborted; from any thread, blocks nowhere."""
        self._agent.submit(_interrupt, self._runner)
        return True


def _do(late: Callable[[], None], runner: PassRunner, wait: Callable[[], None]) -> None:
    """Waits until a pass has ended, or says why it is given up."""
    try:
        wait()
    except CallTimeoutError:
        late()
    except BaseException:
        _interrupt(runner)
        raise


def _ended(runner: PassRunner, limit: float) -> None:
    done = new_future(None, "the end of a pass")  # not the error that it ended with

    def wake() -> None:
        done.try_set_result(None)

    runner.ended.call_when_done(wake)
    done.wait(max(limit, LEAST_SECONDS))


def _interrupt(runner: PassRunner) -> None:
    if not runner.ended.done():
        runner.abort(AutogradError("backward was interrupted at its starter"), at_once=True)


def _abort_late(agent: Agent, runner: PassRunner, started: float) -> None:
    """Aborts a pass that has not ended in time; then it has, with this error or in this moment."""
    if runner.ended.done():
        return
    elapsed = time.monotonic() - started
    error = CallTimeoutError(
        f"backward was not done after {elapsed:.3g} s, {runner.missing()}; it is aborted "
        "everywhere and left no gradients; give a longer timeout=, or math.inf",
        worker=", ".join(runner.late_workers()),
        function="dist_autograd.backward",
        phase="waiting",
        elapsed=elapsed,
    )
    runner.abort(error, at_once=True)
    runner.ended.wait()
