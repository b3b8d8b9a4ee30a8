"""Starts a pass at this worker and waits until it has ended everywhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, final

from telegrad.autograd import Edge, Tensor
from telegrad.dist_autograd.container import Container
from telegrad.dist_autograd.desk import OwnPart
from telegrad.dist_autograd.ids import ContextId
from telegrad.dist_autograd.messages import PassMode
from telegrad.dist_autograd.pass_runner import PassRunner
from telegrad.dist_autograd.roots import find_roots
from telegrad.errors import AutogradError, BlockingCallError, CallTimeoutError, WorkerLostError
from telegrad.rpc import RRef
from telegrad.rpc.seams import (
    AgentCore,
    RRefCalls,
    current_served_call,
    on_own_loop,
    seconds,
)

__all__ = [
    "refuse_on_loop",
    "run_pass",
]


def run_pass(
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
    """Runs a pass with this worker as its starter; blocks until it has ended everywhere.

    Args:
        container: The contexts of this worker.
        context_id: The context of the pass.
        roots: Tensors of this worker, and RRefs to tensors of any worker.
        gradients: One gradient for each root, None for the 1 of a scalar.
        mode: The options of the pass.
        timeout: Seconds, as the user gave them; None for the default. The time left of the served
            call bounds them.
        call: The arguments of `rpc.to_thread` in the message for callers on a loop.
        wanted: Edges of this worker whose gradients the pass computes, if the context keeps none.

    Returns:
        This worker's part of the pass, which has captured the gradients of the edges.

    Raises:
        Exception: `telegrad.dist_autograd.backward` lists the errors.
    """
    context, agent = container.find(context_id), container.agent
    limit = seconds(timeout, agent.options.timeout)
    refuse_on_loop(call)
    started, served = time.monotonic(), current_served_call()
    ends = started + limit if served is None else min(started + limit, served.deadline)
    found = find_roots(container, context, roots, gradients, create_graph=mode.create, ends=ends)
    runner = container.new_pass(context)
    late = partial(_abort_late, agent, runner, started)
    expire = partial(agent.pool.submit, late)
    stop = agent.deadlines.at(ends, expire) if ends < math.inf else None
    cancelled = _Cancelled(agent, runner)
    try:
        if served is not None:
            served.nested.add(cancelled)
            if served.cancelled:  # perhaps before `cancelled` was added
                cancelled.cancel()
        start = partial(runner.start, found, mode, wanted)
        _wait(late, runner, partial(OwnPart(agent, runner, container.desk).run, start, ends))
        if served is not None and served.cancelled and runner.ended._failed:
            served.check()
        runner.ended.value()
    except WorkerLostError as lost:
        note = (
            f"backward of autograd context {context.id}, started on worker {agent.info.name!r}, "
            "was aborted and left no gradients; repeat the step in a new context, without that "
            "worker"
        )
        for root in roots:
            if isinstance(root, RRef) and root.owner().incarnation == lost.incarnation:
                told = agent.attachments[RRefCalls].of_owner(root.owner(), lost)
                told.add_note(note)
                raise told from lost
        lost.add_note(note)
        raise
    finally:
        if stop is not None:
            stop.cancel()
        if served is not None:
            served.nested.discard(cancelled)
        _forget_frames(runner)
    return runner


def refuse_on_loop(call: str) -> None:
    """Raises an error if the caller runs on a loop of telegrad, which the pass would block.

    Args:
        call: The arguments of `rpc.to_thread` in the message.

    Raises:
        BlockingCallError: The caller does.
    """
    if on_own_loop():
        verb = call.partition(",")[0].rpartition(".")[2]
        raise BlockingCallError(
            f"{verb}() would block a loop of telegrad's; in an async def function write "
            f"`await rpc.to_thread({call})`"
        )


def _forget_frames(runner: PassRunner) -> None:
    """Removes the traceback from the error that the pass keeps; the caller has a copy with it.

    If this thread ran a rule, the frames are the program's and would keep its objects alive.
    """
    if runner.ended._failed and (error := runner.ended.exception()) is not None:
        BaseException.__setattr__(error, "__traceback__", None)  # frozen ones too


@final
class _Cancelled:
    """A handle that aborts the pass when the served call that started it is cancelled."""

    def __init__(self, agent: AgentCore, runner: PassRunner) -> None:
        self._agent = agent
        self._runner = runner

    def cancel(self) -> bool:
        """Submits the abort of the pass to the pool; any thread may call it; never blocks."""
        self._agent.pool.submit(_interrupt, self._runner)
        return True


def _wait(late: Callable[[], None], runner: PassRunner, wait: Callable[[], None]) -> None:
    """Waits until a pass has ended; aborts it after a timeout or an interrupt."""
    try:
        wait()
    except CallTimeoutError:
        late()
        runner.ended.wait()
    except BaseException:
        _interrupt(runner)
        raise


def _interrupt(runner: PassRunner) -> None:
    if not runner.ended.done():
        runner.abort(AutogradError("backward was interrupted at its starter"), at_once=True)


def _abort_late(agent: AgentCore, runner: PassRunner, started: float) -> None:
    """Aborts a pass that has not ended in time."""
    if runner.ended.done():
        return
    elapsed = time.monotonic() - started
    late, awaited = runner.missing()
    error = CallTimeoutError(
        f"backward was not done after {elapsed:.3g} s, {awaited}; it is aborted "
        "everywhere and left no gradients; give a longer timeout=, or math.inf",
        worker=", ".join(late),
        function="dist_autograd.backward",
        phase="waiting",
        elapsed=elapsed,
    )
    runner.abort(error, at_once=True)
