"""The places of a pipeline as its driver sees them: calls to their runners, and one step of all.

The driver starts a step with one message to each place and then only listens. A place that fails
says so in its answer; then the driver tells the other places, and raises once all have answered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

from telegrad.errors import CallTimeoutError, PipelineError, UnknownWorkerError, WorkerLostError
from telegrad.parallel.pipeline.mailbox import Mailboxes, PlaceId
from telegrad.parallel.pipeline.runner import StageRunner
from telegrad.parallel.pipeline.step_run import StepOrder, StepReport
from telegrad.rpc import Future, RRef, as_completed, wait_all
from telegrad.rpc.seams import current_agent
from telegrad.types import WorkerInfo

__all__ = ["Member", "Places"]


@final
@dataclass(frozen=True, slots=True)
class Member:
    """One place.

    Attributes:
        id: Its name in messages.
        worker: Its worker.
        stages: The numbers of its stages.
        runner: A reference to its runner.
    """

    id: PlaceId
    worker: WorkerInfo
    stages: list[int]
    runner: RRef[StageRunner]


@final
class Places:
    """All places of a pipeline.

    Args:
        members: The places, by number.
        timeout: Seconds for each call; None for `RpcOptions.timeout`.
    """

    def __init__(self, members: Sequence[Member], timeout: float | None) -> None:
        self.members = list(members)
        self.timeout = timeout

    def ask(
        self, method: str, arguments: Callable[[Member], Sequence[Any]] = lambda _: ()
    ) -> list[Any]:
        """Calls a method of each runner, all at once; returns the values by place.

        Raises:
            PipelineError: A place is lost, or did not answer in time.
            Exception: The first error of a runner.
        """
        calls = [self._call(each, method, arguments(each)) for each in self.members]
        try:
            return wait_all(calls)
        except (WorkerLostError, CallTimeoutError) as error:
            raise self._failure(error, calls, method) from error

    def _call(self, member: Member, method: str, arguments: Sequence[Any]) -> Future[Any]:
        called: Future[Any] = getattr(member.runner.rpc_async(timeout=self.timeout), method)(
            *arguments
        )
        return called

    def run(self, order: Callable[[Member], StepOrder]) -> list[StepReport]:
        """Runs a step at all places; returns their reports by place.

        Raises:
            PipelineError: A place failed; every other one has ended the step.
        """
        orders = [order(each) for each in self.members]
        calls: list[Future[Any]] = []
        try:
            for member, each in zip(self.members, orders, strict=True):
                calls.append(self._call(member, "run", (each,)))
        except (WorkerLostError, UnknownWorkerError, CallTimeoutError):
            self._end(calls, orders[0].step)
            raise
        told = False
        for call in as_completed(calls, timeout=math.inf):
            if not told and call.exception() is not None:
                told = True
                self._end(calls, orders[0].step)
        if told:
            raise self._failure(None, calls, "step")
        return [call.value() for call in calls]

    def _end(self, calls: Sequence[Future[Any]], step: int) -> None:
        mailboxes = current_agent().attachments[Mailboxes]
        for member, _ in zip(self.members, calls, strict=False):
            mailboxes.end(member.worker, member.id, step)

    def _failure(
        self, error: BaseException | None, calls: Sequence[Future[Any]], phase: str
    ) -> BaseException:
        """Returns the error that explains the others, with notes that name them."""
        found: list[tuple[int, int, BaseException]] = []
        for k, call in enumerate(calls):
            failed = call.exception() if call.done() else None
            if failed is not None:
                found.append((_rank(failed), k, failed))
        if not found:
            assert error is not None
            return error
        _, k, first = min(found, key=lambda each: each[:2])
        if not isinstance(first, PipelineError):
            member = self.members[k]
            stage = member.stages[0]
            first = _named(first, stage, member.worker.name, phase)
        for _, other, failed in found:
            if other != k:
                name = self.members[other].worker.name
                first.add_note(f"worker {name!r} failed too: {type(failed).__name__}: {failed}")
        return first


def _named(error: BaseException, stage: int, worker: str, phase: str) -> PipelineError:
    named = PipelineError(
        f"stage {stage} on worker {worker!r} failed in the {phase}: {type(error).__name__}: {error}",
        stage=stage,
        worker=worker,
        phase=phase,
    )
    named.__cause__ = error
    return named


def _rank(error: BaseException) -> int:
    """Returns the rank of an error: the lower, the more it says of the cause."""
    cause = error.__cause__
    if isinstance(error, PipelineError):
        if isinstance(cause, WorkerLostError):
            return 1 if cause.worker == error.worker else 2
        return 4 if isinstance(cause, CallTimeoutError) else 0
    return 3 if isinstance(error, WorkerLostError) else 5
