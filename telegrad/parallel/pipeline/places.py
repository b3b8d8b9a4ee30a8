"""The places of a pipeline as its driver sees them: calls to their runners, and one step of all.

The driver starts a step with one message to each place and then only listens. A place that fails
says so in its answer; then the driver tells the other places, and raises once all have answered.

Each place may hand copies of its state to a neighbour, so that no state is lost with a worker:

    after a step of the optimizer, number v    place 0 ─ copy v ─▶ place 1 ─ copy v ─▶ place 2 ─▶ 0
    worker of place 1 lost                     place 0, v: its own · place 1, v: at place 2 · ...

A place keeps its last two copies and those of its neighbour: a worker may be lost while the newest
copies are on their way. All places go on from the newest number of which each has a copy left.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, final

from telegrad.errors import (
    CallTimeoutError,
    InvalidUseError,
    PipelineError,
    UnknownWorkerError,
    WorkerLostError,
)
from telegrad.parallel.optimizer.dist_optimizer import DistributedOptimizer
from telegrad.parallel.pipeline.checking import Checked
from telegrad.parallel.pipeline.mailbox import Mailboxes, PlaceId
from telegrad.parallel.pipeline.plan import PlacePlan, Settings, StepOrder, StepReport, Tie
from telegrad.parallel.pipeline.runner import StageFacts, StageRunner, StateCopy
from telegrad.parallel.pipeline.schedule import Action
from telegrad.parallel.pipeline.sources import StageSource
from telegrad.rpc import Future, RRef, as_completed, remote, wait_all
from telegrad.rpc.seams import current_agent, wait_each
from telegrad.types import WorkerInfo


@final
@dataclass(frozen=True, slots=True)
class RemotePlace:
    """One place.

    Attributes:
        id: Its name in messages.
        worker: Its worker.
        stages: The numbers of its stages.
        row: The actions that it runs.
        runner: A reference to its runner.
    """

    id: PlaceId
    worker: WorkerInfo
    stages: list[int]
    row: tuple[Action, ...]
    runner: RRef[StageRunner]


@final
class Places:
    """All places of a pipeline.

    A row of the schedule is that of one place; or of several, where a list of workers was given.
    Then the first one runs the actions of the first micro-batch, the second one those of the
    second, and so on by turns. Each has a copy of the parameters; the first one's count.

    Args:
        checked: The schedule.
        settings: The settings of the pipeline.
        placed: The workers of each stage, and where its module comes from.
        tied: The parameters that several stages share: the stages and the names of each.

    Raises:
        ValueError: Skip connections do not fit.
        PipelineError: A place is lost, or did not answer in time.
        Exception: Any error of a module's class.

    Attributes:
        members: The places, by number.
        checked: The schedule with a row for each place.
        facts: The facts about each stage.
        copies: The parameters whose values are those of an earlier stage: their stage and name, and
            those of the earlier stage.
    """

    def __init__(
        self,
        checked: Checked,
        settings: Settings,
        placed: Sequence[tuple[tuple[WorkerInfo, ...], StageSource]],
        tied: Sequence[Sequence[tuple[int, str]]],
    ) -> None:
        self._settings = settings
        self._pipeline = secrets.randbits(62)
        self._failed = False  # True if the last step has not ended well
        self._begun = 0  # the number of the last step
        self._sources = {stage: source for stage, (_, source) in enumerate(placed)}
        self._homes: list[list[int]] = [[] for _ in placed]  # the places of each stage
        self.members: list[RemotePlace] = []
        for row in checked.schedule.rows:
            stages = sorted({action.stage for action in row})
            workers = placed[stages[0]][0]
            for r, worker in enumerate(workers):
                for stage in stages:
                    self._homes[stage].append(len(self.members))
                own = tuple(each for each in row if each.micro_batch % len(workers) == r)
                self.members.append(self._member(len(self.members), worker, stages, own))
        rows = tuple(each.row for each in self.members)
        self.checked = replace(checked, schedule=replace(checked.schedule, rows=rows))
        self.facts: dict[int, StageFacts] = by_stage(self.ask("facts"))
        self.copies = {copy: first for first, *others in tied for copy in others}
        self._skips = _skips(self.facts)
        # From here on a module is wanted for a replacement alone, which loads a state into it.
        self._sources = {stage: each.hollow() for stage, each in self._sources.items()}
        self._connect()

    def _member(
        self, number: int, worker: WorkerInfo, stages: list[int], row: tuple[Action, ...]
    ) -> RemotePlace:
        sources = {stage: self._sources[stage] for stage in stages}
        runner = remote(worker, StageRunner, (sources,), timeout=self._settings.timeout)
        return RemotePlace(PlaceId(self._pipeline, number), worker, stages, row, runner)

    def _connect(self) -> None:
        """Tells each place where all others are."""
        workers, last = [each.worker for each in self.members], len(self._homes) - 1
        ties = self._ties()

        def plan(member: RemotePlace) -> PlacePlan:
            number = member.id.place
            return PlacePlan(
                member.id.pipeline,
                number,
                [(each.kind.value, each.stage, each.micro_batch) for each in member.row],
                workers,
                self._homes,
                current_agent().info,
                self._begun,
                self._skips,
                [each for each in ties if number in (each.owner, each.copy)],
                self._settings.loss if last in member.stages else None,
                self._settings.recompute,
            )

        self.ask("connect", lambda member: (plan(member),))

    def _ties(self) -> list[Tie]:
        """Returns the parameters that places share, because they are tied or on several workers."""
        found: dict[tuple[int, int], list[tuple[int, str, int, str]]] = {}
        for stage, homes in enumerate(self._homes):
            for name in self.facts[stage].parameters:
                source = self.copies.get((stage, name), (stage, name))
                owner = self._homes[source[0]][0]
                for home in homes:
                    if (home, stage, name) != (owner, *source):
                        found.setdefault((owner, home), []).append((*source, stage, name))
        return [Tie(owner, copy, names) for (owner, copy), names in found.items()]

    def first_stages(self) -> dict[str, int]:
        """Returns the first stage of each worker, by name."""
        return {each.worker.name: each.stages[0] for each in reversed(self.members)}

    def replace(self, stage: int, worker: WorkerInfo) -> None:
        """Makes a place of a stage anew on another worker, without the state of its modules.

        If the stage has several places, it is the first one whose worker is lost.

        Raises:
            InvalidUseError: A module of the place was given as a reference.
        """
        lost = current_agent().members.lost
        places = [self.members[number] for number in self._homes[stage]]
        old = next((each for each in places if lost(each.worker) is not None), places[0])
        for each in old.stages:
            if self._sources[each].rref is not None:
                raise InvalidUseError(
                    f"stage {each} was given as a reference to a module of "
                    f"{old.worker.name!r}, and how to make another one is not known here; give "
                    "stages as (worker, module) or (worker, ModuleClass, args) to replace them"
                )
        number = old.id.place
        self.members[number] = self._member(number, worker, old.stages, old.row)
        self._connect()

    def ask(
        self, method: str, arguments: Callable[[RemotePlace], Sequence[Any]] = lambda _: ()
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
        except BaseException:  # an interrupt, or the error of a runner
            for call in calls:
                call.cancel()
            raise

    def ask_living(self, method: str) -> list[Any]:
        """Calls a method of each runner that can be reached; returns the values of those."""
        calls: list[Future[Any]] = []
        for member in self.members:
            with suppress(WorkerLostError, UnknownWorkerError):
                calls.append(self._call(member, method, ()))
        wait_each(calls)
        found = []
        for call in calls:
            with suppress(WorkerLostError, CallTimeoutError):
                found.append(call.value())
        return found

    def _call(self, member: RemotePlace, method: str, arguments: Sequence[Any]) -> Future[Any]:
        proxy = member.runner.rpc_async(timeout=self._settings.timeout)
        called: Future[Any] = getattr(proxy, method)(*arguments)
        return called

    def run(self, order: Callable[[RemotePlace], StepOrder]) -> list[StepReport]:
        """Runs a step at all places; returns their reports by place.

        Raises:
            PipelineError: A place failed; every other one has ended the step.
            EncodeError: An argument cannot be sent.
        """
        orders = [replace(order(each), afresh=self._failed) for each in self.members]
        self._failed = True  # until it has ended well
        step, calls = orders[0].step, list[Future[Any]]()
        self._begun = step
        try:
            unsent = self._begin(orders, calls)
            told = unsent is not None
            if told:
                self._end(step)
            for call in as_completed(calls, timeout=math.inf):
                if not told and call.exception() is not None:
                    told = True
                    self._end(step)
        except BaseException:  # Ctrl-C, or the end of the call that this thread serves
            self._end(step)
            raise
        if told:
            failure = self._failure(unsent, calls, "step")
            raise failure from failure.__cause__
        self._failed = False
        return [StepReport.from_wire(call.value()) for call in calls]

    def _begin(self, orders: Sequence[StepOrder], calls: list[Future[Any]]) -> Exception | None:
        """Calls all places and adds the futures to `calls`; returns the error that stopped this."""
        try:
            for member, each in zip(self.members, orders, strict=True):
                calls.append(self._call(member, "run", (_handed(member, each),)))
        except Exception as error:  # a worker is lost, or an argument is too large for a message
            return error
        return None

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
        if not isinstance(first, (PipelineError, WorkerLostError, CallTimeoutError)):
            return first
        if isinstance(first, WorkerLostError):
            first = self._lost(first, self.members[k], calls, phase)
        elif isinstance(first, CallTimeoutError):
            first = _named(first, self.members[k], f"did not answer in time in the {phase}", phase)
        for other, error in failed:
            if other != k:
                name = self.members[other].worker.name
                first.add_note(f"worker {name!r} failed too: {type(error).__name__}: {error}")
        return first

    def _lost(
        self,
        error: WorkerLostError,
        called: RemotePlace,
        calls: Sequence[Future[Any]],
        phase: str,
    ) -> PipelineError:
        """Returns the error of a lost worker: that of the place called, or one that it called.

        The places that waited for the worker know best how far the step was.
        """
        member = next((each for each in self.members if each.worker.name == error.worker), called)
        ended = [call.value() for call in calls if call.done() and call.exception() is None]
        reports = map(StepReport.from_wire, ended) if phase == "step" else ()
        waits = [each.wait for each in reports if each.wait]
        if not waits:
            return _named(error, member, f"is lost in the {phase}", phase)
        wait = min(waits, key=lambda each: each.worker != member.worker.name)
        stage = wait.stage if wait.worker == member.worker.name else -1
        words = f"is lost; {wait.words}"
        return _named(error, member, words, wait.phase, stage, wait.micro_batch)


def _handed(member: RemotePlace, order: StepOrder) -> list[Any] | int:
    """Returns an order as the argument of a call; it is left at a runner on this worker.

    Arrays of a GPU are sent there, too: the runner's thread works in another stream, and would not
    wait for the one in which they are made.
    """
    given = order.inputs if order.target is None else [*order.inputs, order.target]
    if not member.runner.is_owner() or any(each.on_gpu for each in given):
        return order.to_wire()
    member.runner.local_value().leave(order)  # no byte of it is copied
    return order.step


def _named(
    error: BaseException,
    member: RemotePlace,
    words: str,
    phase: str,
    stage: int = -1,
    micro_batch: int = -1,
) -> PipelineError:
    """Returns the error of a place that the driver itself has seen to fail."""
    stage = member.stages[0] if stage < 0 else stage
    name = member.worker.name
    named = PipelineError(
        f"stage {stage} on worker {name!r} {words}: {type(error).__name__}: {error}",
        stage=stage,
        worker=name,
        micro_batch=micro_batch,
        phase=phase,
    )
    named.__cause__ = error
    return named


def by_stage(answers: Iterable[Mapping[int, Any]]) -> dict[int, Any]:
    """Returns the answers of all places as one, by stage and in their order.

    Of several places of a stage the first one's answer counts.
    """
    found: dict[int, Any] = {}
    for answer in answers:
        for stage, value in answer.items():
            found.setdefault(stage, value)
    return dict(sorted(found.items()))


def _skips(facts: Mapping[int, StageFacts]) -> dict[str, tuple[int, int]]:
    """Returns the stages between which each skip connection goes.

    Raises:
        ValueError: A name does not begin at one stage and end at the same or a later one.
    """
    begins = [(name, stage) for stage, each in facts.items() for name in each.stashed]
    ends = [(name, stage) for stage, each in facts.items() for name in each.popped]
    for kind, found, others in (("Stash", begins, ends), ("Pop", ends, begins)):
        for name, stage in found:
            same = [other for each, other in found if each == name]
            if len(same) > 1:
                raise ValueError(
                    f"{kind}({name!r}) is there {len(same)} times, in the stages {same}; each skip "
                    "connection needs a name of its own"
                )
            if name not in dict(others):
                other = "Pop" if kind == "Stash" else "Stash"
                raise ValueError(
                    f"{kind}({name!r}) of stage {stage} has no {other}({name!r}) in any stage"
                )
    skips = {name: (stage, dict(ends)[name]) for name, stage in begins}
    for name, (source, target) in skips.items():
        if target < source:
            raise ValueError(
                f"Pop({name!r}) is in stage {target}, before Stash({name!r}) in stage {source}; a "
                "skip connection goes to the same or a later stage"
            )
    return skips


def _rank(error: BaseException) -> int:
    """Returns the rank of an error: the lower, the more it says of the cause."""
    cause = error.__cause__
    if isinstance(error, PipelineError):
        if isinstance(cause, WorkerLostError):
            return 1 if cause.worker == error.worker else 2
        return 4 if isinstance(cause, CallTimeoutError) else 0
    return 3 if isinstance(error, WorkerLostError) else 5


# -- copies of the state ---------------------------------------------------------------------------

Saved: TypeAlias = "tuple[dict[int, dict[str, Any]], list[dict[str, Any]]]"
"""The state of each stage, and that of each optimizer in the layout of its `state_dict`."""


@final
class Copies:
    """The copies of one pipeline, as its driver knows them: it holds numbers and options alone."""

    def __init__(self) -> None:
        self._version = 0
        self._groups: dict[int, list[list[dict[str, Any]]]] = {}

    def take(self, places: Places, optimizers: Sequence[DistributedOptimizer]) -> None:
        """Has every place hand a copy to its neighbour.

        Raises:
            PipelineError: A place is lost; the copies before these are still there.
        """
        self._version += 1
        options = [[dict(group) for group in each.param_groups] for each in optimizers]
        self._groups[self._version] = options
        self._groups = dict(sorted(self._groups.items())[-2:])

        def arguments(member: RemotePlace) -> Sequence[Any]:
            parts = [part for each in optimizers for part in each._part_at(member.worker)]
            return self._version, parts, _neighbour(member, places.members)

        places.ask("copy", arguments)

    def newest(self, places: Places) -> Saved | None:
        """Returns the newest state of which living places have all parts; None if there is none."""
        found: dict[int, dict[int, StateCopy]] = {}
        for kept in places.ask_living("copies"):
            for place, versions in kept.items():
                found.setdefault(place, {}).update(versions)
        for version in sorted(self._groups, reverse=True):
            copies = [found.get(each.id.place, {}).get(version) for each in places.members]
            whole = [each for each in copies if each is not None]
            if len(whole) == len(copies):
                return _joined(whole, self._groups[version])
        return None


def _neighbour(member: RemotePlace, members: Sequence[RemotePlace]) -> RRef[StageRunner] | None:
    """Returns the runner of the next place that is on another worker."""
    first = member.id.place + 1
    others = [*members[first:], *members[:first]]
    return next((each.runner for each in others if each.worker != member.worker), None)


def _joined(copies: Sequence[StateCopy], groups: Sequence[list[dict[str, Any]]]) -> Saved:
    optimizers = []
    for k, options in enumerate(groups):
        state: dict[int, Mapping[str, Any]] = {}
        for each in copies:
            if k < len(each.optimizers):
                state |= each.optimizers[k]
        optimizers.append({"state": dict(sorted(state.items())), "param_groups": options})
    return by_stage([each.stages for each in copies]), optimizers
