"""Starts a pass at this worker and waits until it has ended everywhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from telegrad.autograd import Edge, Tensor
from telegrad.dist_autograd.container import Container
from telegrad.dist_autograd.context import Context
from telegrad.dist_autograd.messages import PassMode
from telegrad.dist_autograd.pass_runner import PassRunner, Root
from telegrad.dist_autograd.released import ContextId
from telegrad.dist_autograd.remote_roots import find_roots
from telegrad.errors import AutogradError, BlockingCallError, CallTimeoutError, WorkerLostError
from telegrad.rpc import RRef, current_served_call, on_own_loop, seconds

__all__ = ["run_pass", "run_pass_from"]


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
) -> PassRunner:
    """Runs a pass with this worker as its starter; blocks until it has ended everywhere.

    Args:
        container: The contexts of this worker.
        context: In which of them.
        roots: Where it starts.
        mode: How it runs.
        limit: Seconds; what the served call has left bounds them.
        wanted: Edges of this worker's graph whose gradients it is run for, if it keeps none.

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
    runner.start(roots, mode, wanted)
    try:
        _wait(runner, limit)
    except WorkerLostError as lost:
        lost.add_note(
            f"backward of autograd context {context.id}, started on worker "
            f"{container.agent.name!r}, was aborted and left no gradients; repeat the step in a new "
            "context, without that worker"
        )
        raise
    return runner


def _wait(runner: PassRunner, limit: float) -> None:
    started = time.monotonic()
    try:
        runner.ended.wait(max(limit, 1e-6))
    except CallTimeoutError:
        if runner.ended.done():
            runner.ended.value()
            return
    except BaseException:
        if not runner.ended.done():  # interrupted while it waited
            runner.abort(AutogradError("backward was interrupted at its starter"), at_once=True)
        raise
    else:
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
    runner.ended.wait()  # at once: with this error, or as it ended in this very moment
