"""The places of a pipeline as its driver sees them: calls to their runners, and one step of all.

The driver starts a step with one message to each place and then only listens. A place that fails
says so in its answer; then the driver tells the other places, and raises once all have answered.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from telegrad.errors import (
    CallTimeoutError,
    InvalidUseError,
    PipelineError,
    UnknownWorkerError,
    WorkerLostError,
)
from telegrad.parallel.pipeline.checking import Checked
from telegrad.parallel.pipeline.mailbox import Mailboxes, PlaceId
from telegrad.parallel.pipeline.runner import StageFacts, StageRunner, StageSource
from telegrad.parallel.pipeline.settings import Settings
from telegrad.parallel.pipeline.step_run import PlacePlan, StepOrder, StepReport
from telegrad.rpc import Future, RRef, as_completed, remote, wait_all
from telegrad.rpc.seams import current_agent
from telegrad.types import WorkerInfo

__all__ = ["Member", "Places", "by_stage"]


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
        checked: The schedule.
        settings: The settings of the pipeline.
        placed: The worker of each stage, and where its module comes from.

    Raises:
        ValueError: A stage has no parameters that need a gradient.
        PipelineError: A place is lost, or did not answer in time.
        Exception: Any error of a module's class.

    Attributes:
        members: The places, by number.
        facts: The facts about each stage.
    """

    def __init__(
        self,
        checked: Checked,
        settings: Settings,
        placed: Sequence[tuple[WorkerInfo, StageSource]],
    ) -> None:
        self._checked, self._settings = checked, settings
        self._pipeline = secrets.randbits(62)
        self._sources = {stage: source for stage, (_, source) in enumerate(placed)}
        self.members: list[Member] = []
        for place, row in enumerate(checked.schedule.rows):
            stages = sorted({action.stage for action in row})
            self.members.append(self._member(place, placed[stages[0]][0], stages))
        self.facts: dict[int, StageFacts] = by_stage(self.ask("facts"))
        for stage, each in self.facts.items():
            if not each.trained:
                raise ValueError(
                    f"stage {stage}, a {each.name} on worker {placed[stage][0].name!r}, has no "
                    "parameter that needs a gradient; put it into the stage beside it"
                )
        # From here on a module is wanted for a replacement alone, which loads a state into it.
        self._sources = {stage: each.hollow() for stage, each in self._sources.items()}
        self._connect()

    def _member(self, place: int, worker: WorkerInfo, stages: list[int]) -> Member:
        sources = {stage: self._sources[stage] for stage in stages}
        runner = remote(worker, StageRunner, (sources,), timeout=self._settings.timeout)
        return Member(PlaceId(self._pipeline, place), worker, stages, runner)

    def _connect(self) -> None:
        """Tells each place where all others are."""
        schedule = self._checked.schedule
        places = [schedule.place_of(stage) for stage in range(schedule.stages)]
        workers = [self.members[place].worker for place in places]
        last = schedule.stages - 1

        def plan(member: Member) -> PlacePlan:
            row = schedule.rows[member.id.place]
            return PlacePlan(
                member.id.pipeline,
                member.id.place,
                [(each.kind.value, each.stage, each.micro_batch) for each in row],
                workers,
                places,
                current_agent().info,
                {stage: self._checked.held[stage] for stage in member.stages},
                self._settings.loss if last in member.stages else None,
                self._settings.recompute,
            )

        self.ask("connect", lambda member: (plan(member),))

    def member_of(self, stage: int) -> Member:
        """Returns the place of a stage."""
        return self.members[self._checked.schedule.place_of(stage)]

    def replace(self, stage: int, worker: WorkerInfo) -> None:
        """Makes the place of a stage anew on another worker, without the state of its modules.

        Raises:
            InvalidUseError: A module of the place was given as a reference.
        """
        old = self.member_of(stage)
        for each in old.stages:
            if self._sources[each].rref is not None:
                raise InvalidUseError(
                    f"stage {each} was given as a reference to a module of "
                    f"{old.worker.name!r}, and how to make another one is not known here; give "
                    "stages as (worker, module) or (worker, ModuleClass, args) to replace them"
                )
        made = self._member(old.id.place, worker, old.stages)
        self.members[old.id.place] = made
        self._connect()

    def ask(
        self, method: str, arguments: Callable[[Member], Sequence[Any]] = lambda _: ()
    ) -> list[Any]:
        """Calls a method of each runner, all at once; returns the values by place.

        Raises:
            PipelineError: A place is lost, or did not answer in time.
            Exception: The first error of a runner.
        """
        calls: list[Future[Any]] = []
        try:
            calls.extend(self._call(each, method, arguments(each)) for each in self.members)
            return wait_all(calls)
        except (WorkerLostError, UnknownWorkerError, CallTimeoutError) as error:
            raise self._failure(error, calls, method) from error

    def _call(self, member: Member, method: str, arguments: Sequence[Any]) -> Future[Any]:
        proxy = member.runner.rpc_async(timeout=self._settings.timeout)
        called: Future[Any] = getattr(proxy, method)(*arguments)
        return called

    def run(self, order: Callable[[Member], StepOrder]) -> list[StepReport]:
        """Runs a step at all places; returns their reports by place.

        Raises:
            PipelineError: A place failed; every other one has ended the step.
        """
        orders = [order(each) for each in self.members]
        step, calls = orders[0].step, list[Future[Any]]()
        unsent: BaseException | None = None
        try:
            for member, each in zip(self.members, orders, strict=True):
                calls.append(self._call(member, "run", (each,)))
        except (WorkerLostError, UnknownWorkerError, CallTimeoutError) as error:
            unsent = error
            self._end(step)
        told = unsent is not None
        for call in as_completed(calls, timeout=math.inf):
            if not told and call.exception() is not None:
                told = True
                self._end(step)
        if told:
            failure = self._failure(unsent, calls, "step")
            raise failure from failure.__cause__
        return [call.value() for call in calls]

    def _end(self, step: int) -> None:
        mailboxes = current_agent().attachments[Mailboxes]
        for member in self.members:
            mailboxes.end(member.worker, member.id, step)

    def _failure(
        self, unsent: BaseException | None, calls: Sequence[Future[Any]], phase: str
    ) -> BaseException:
        """Returns the error that explains the others, with notes that name them.

        Args:
            unsent: The error of the place behind those of `calls`, whose call could not be made.
            calls: The calls.
            phase: The work that the calls were for.
        """
        found = [(k, call.exception() if call.done() else None) for k, call in enumerate(calls)]
        if unsent is not None and len(calls) < len(self.members):
            found.append((len(calls), unsent))
        failed = [(k, error) for k, error in found if error is not None]
        k, first = min(failed, key=lambda each: (_rank(each[1]), each[0]))
        if not isinstance(first, PipelineError):
            member = self.members[k]
            if not isinstance(first, (WorkerLostError, CallTimeoutError)):
                return first
            stage = member.stages[0]
            words = f"stage {stage} on worker {member.worker.name!r} "
            words += "is lost" if isinstance(first, WorkerLostError) else "did not answer in time"
            named = PipelineError(
                f"{words} in the {phase}: {type(first).__name__}: {first}",
                stage=stage,
                worker=member.worker.name,
                phase=phase,
            )
            named.__cause__, first = first, named
        for other, error in failed:
            if other != k:
                name = self.members[other].worker.name
                first.add_note(f"worker {name!r} failed too: {type(error).__name__}: {error}")
        return first


def by_stage(answers: Iterable[Mapping[int, Any]]) -> dict[int, Any]:
    """Returns the answers of all places as one, by stage and in their order."""
    found = {stage: value for answer in answers for stage, value in answer.items()}
    return dict(sorted(found.items()))


def _rank(error: BaseException) -> int:
    """Returns the rank of an error: the lower, the more it says of the cause."""
    cause = error.__cause__
    if isinstance(error, PipelineError):
        if isinstance(cause, WorkerLostError):
            return 1 if cause.worker == error.worker else 2
        return 4 if isinstance(cause, CallTimeoutError) else 0
    return 3 if isinstance(error, WorkerLostError) else 5
