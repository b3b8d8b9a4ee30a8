"""Starts a pass at this worker and waits until it has ended everywhere."""

from __future__ import annotations

import time
from collections.abc import Sequence

from telegrad.dist_autograd.container import Container
from telegrad.dist_autograd.context import Context
from telegrad.dist_autograd.pass_runner import PassRunner, Root
from telegrad.errors import AutogradError, CallTimeoutError, WorkerLostError
from telegrad.rpc import current_served_call

__all__ = ["run_pass"]


def run_pass(
    container: Container,
    context: Context,
    roots: Sequence[Root],
    *,
    retain_graph: bool,
    limit: float,
) -> None:
    """Runs a pass with this worker as its starter; blocks until it has ended everywhere.

    Args:
        container: The contexts of this worker.
        context: In which of them.
        roots: Where it starts.
        retain_graph: Keeps the graph for another pass.
        limit: Seconds; what the served call has left bounds them.

    Raises:
        ContextError: The context was released meanwhile.
        Exception: How the pass ended; see `telegrad.dist_autograd.backward`.
    """
    runner = container.new_pass(context)
    served = current_served_call()
    if served is not None:
        limit = min(limit, served.deadline - time.monotonic())
    runner.start(roots, retain=retain_graph)
    try:
        _wait(runner, limit)
    except WorkerLostError as lost:
        lost.add_note(
            f"backward of autograd context {context.id}, started on worker "
            f"{container.agent.name!r}, was aborted and left no gradients; repeat the step in a new "
            "context, without that worker"
        )
        raise


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
