"""Starts a pass at this worker and waits until it has ended everywhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from threading import get_ident
from typing import Any, final

from telegrad.autograd import Edge, Tensor
from telegrad.dist_autograd.container import Container
from telegrad.dist_autograd.desk import Desk, Work
from telegrad.dist_autograd.ids import ContextId
from telegrad.dist_autograd.messages import PassMode
from telegrad.dist_autograd.pass_runner import PassRunner
from telegrad.dist_autograd.roots import find_roots
from telegrad.errors import AutogradError, CallTimeoutError, WorkerLostError
from telegrad.rpc import Future, RRef
from telegrad.rpc.seams import (
    AgentCore,
    Driven,
    RRefCalls,
    Shield,
    barred,
    comes_from,
    current_served_call,
    new_future,
    refuse_to_block,
    seconds,
)


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
    check_may_block(call)
    started, served = time.monotonic(), current_served_call()
    ends = started + limit if served is None else min(started + limit, served.deadline)
    found = find_roots(container, context, roots, gradients, create_graph=mode.create, ends=ends)
    runner = container.new_pass(context)
    submit, ended = agent.pool.submit, runner.ended
    # Both in the pool: a deadline comes on the loop, a cancellation may, and an abort runs code of
    # the graph.
    stop = agent.deadlines.at(ends, partial(submit, _abort_late, agent, runner, started))
    ended._let_cancel(partial(submit, _interrupt, runner))
    try:
        if served is not None:
            served.nests(ended)
            if served.cancelled:  # perhaps before it was added
                ended.cancel()
        OwnPart(agent, runner, container.desk).run(partial(runner.start, found, mode, wanted))
        if served is not None and served.cancelled and ended._failed:
            served.check()
        ended.value()
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
        stop.cancel()
        if served is not None:
            served.nested.discard(ended)
        # An exception has ended the wait (Ctrl-C, a cancelled call), and nothing else would end the
        # pass before its deadline.
        if not ended.done():
            _interrupt(runner)
        _forget_frames(runner)
    return runner


def check_may_block(call: str) -> None:
    """Raises an error where the caller must not wait for a pass.

    Args:
        call: The arguments of `rpc.to_thread` in the message.

    Raises:
        BlockingCallError: The caller does.
    """
    if barred():
        verb = call.partition(",")[0].rpartition(".")[2]
        instead = f"in an async def function write `await rpc.to_thread({call})`"
        refuse_to_block(f"{verb}()", instead)


def _forget_frames(runner: PassRunner) -> None:
    """Removes the traceback from the error that the pass keeps; the caller has a copy with it.

    If this thread ran a rule, the frames are the program's and would keep its objects alive.
    """
    if runner.ended._failed and (error := runner.ended.exception()) is not None:
        BaseException.__setattr__(error, "__traceback__", None)  # frozen ones too


def _interrupt(runner: PassRunner) -> None:
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


# -- work of the thread that calls backward, while it waits --------------------------------------
#
# If the transport allows it, the waiting thread itself reads what comes, and handles the messages
# of its pass. Otherwise it would sleep, and each message would wake another thread: a step of two
# calls, backward and SGD took 1.1 times as long, which is more than the benchmark's gate leaves.


@final
class OwnPart(Driven):
    """The work of one thread that waits for the end of one pass.

    Args:
        desk: The dispatcher that gives this thread the messages that it has received.
    """

    def __init__(self, agent: AgentCore, runner: PassRunner, desk: Desk) -> None:
        self._pool = agent.pool
        self._runner = runner
        self._desk = desk
        self._taken: deque[Work] = deque()
        # The future that this thread waits for; the next message completes it.
        self._news: Future[None] | None = None
        self.reads = agent.exchange.reader

    def run(self, start: Callable[[], None]) -> None:
        """Starts the pass, and blocks until it has ended everywhere.

        Raises:
            CallCancelledError: The call that this thread serves was cancelled.
        """
        ended, waiting, me = self._runner.ended, self._desk.waiting, get_ident()
        ended._call_when_done(self._wake)
        self._do(start)
        while not ended.done():
            news = self._news = new_future(self._pool.submit, "the end of a pass")
            comes_from(news, self)
            if ended.done():  # it ended before `_news` was set
                return
            # Only around the wait: a message that this thread receives elsewhere, as in a rule that
            # calls another worker, would lie here until the rule returns.
            waiting[me] = self._take
            try:
                news.wait()
            finally:
                del waiting[me]
                if self._taken:
                    self._do(self._work_off)

    def _take(self, work: Work) -> None:
        """Queues a message that this thread has just received; called in this thread."""
        self._taken.append(work)
        self._wake()

    def _work_off(self) -> None:
        """Reads the messages, then works on the own pass; the pool works on the other passes."""
        rests: dict[Callable[[], None], None] = {}
        while self._taken:
            if (rest := self._taken.popleft()()) is not None:
                rests[rest] = None
        # The work of other passes goes first: rules of the own pass may take long.
        for rest in rests:
            if rest != self._runner.work:
                self._pool.submit(rest)
        if self._runner.work in rests:
            self._runner.work()

    def _do(self, work: Callable[[], None]) -> None:
        with Shield():  # Ctrl-C in between would send only a part of the messages
            self._pool.new_context().run(work)

    def _wake(self) -> None:
        if self._news is not None:
            self._news.try_set_result(None)
