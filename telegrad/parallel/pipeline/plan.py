"""The settings of a pipeline, the plan of each of its places, and the messages of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

import numpy as np

from telegrad.nn import Module, Parameter
from telegrad.parallel.pipeline.mailbox import Key, Mailboxes, Peer, PlaceMailbox
from telegrad.parallel.pipeline.micro_batches import Argument, Spec, check_spec
from telegrad.parallel.pipeline.schedule import Kind
from telegrad.types import Array, WorkerInfo

TIES = "T"  # no kind of a schedule: before its first action and after its last
RECOMPUTE = ("never", "always", "except_last")


@final
@dataclass(frozen=True, slots=True)
class Settings:
    """The arguments of a `Pipeline` beside its stages and its schedule; see there.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An argument has a value that there is not.
    """

    num_microbatches: int
    loss: Callable[..., Any] | None
    recompute: str
    specs: Sequence[Spec] | None
    timeout: float | None
    keep_copies: bool = False

    def __post_init__(self) -> None:
        count: object = self.num_microbatches
        if isinstance(count, bool) or not isinstance(count, int | np.integer):
            raise TypeError(f"num_microbatches must be an integer, not {count!r}")
        if count < 1:
            raise ValueError(f"num_microbatches must be at least 1, not {count}")
        object.__setattr__(self, "num_microbatches", int(count))  # NumPy's integers as well
        if self.loss is not None and not callable(self.loss):
            raise TypeError(f"loss must be a function, not {self.loss!r}")
        if self.recompute not in RECOMPUTE:
            raise ValueError(f"recompute must be one of {RECOMPUTE}, not {self.recompute!r}")
        for spec in self.specs or ():
            check_spec(spec)

    def specs_for(self, arguments: Sequence[Any]) -> list[Spec]:
        """Returns the rule for each argument of a step.

        Raises:
            TypeError: There are more arguments than rules, or none at all.
        """
        if not arguments:
            raise TypeError("a pipeline needs the inputs of its first stage")
        if self.specs is None:
            return ["split"] * len(arguments)
        if len(self.specs) < len(arguments):
            raise TypeError(
                f"{len(arguments)} arguments were given, and specs has {len(self.specs)} rules"
            )
        return list(self.specs[: len(arguments)])


@final
@dataclass(frozen=True, slots=True)
class Tie:
    """Parameters of two places that are the same ones.

    The owner's optimizer steps them. At the start of a step the owner hands their values to the
    copy, at its end the copy hands its gradients to the owner.

    Attributes:
        owner: The place whose parameters count.
        copy: The other place.
        parameters: For each parameter the stage and the name at the owner, and both at the copy.
    """

    owner: int
    copy: int
    parameters: list[tuple[int, str, int, str]]


@final
@dataclass(frozen=True, slots=True)
class PlacePlan:
    """All that one place has to know of its pipeline.

    Attributes:
        pipeline: The number of the pipeline.
        place: The number of the place.
        row: Its row of the schedule: kind, stage and micro-batch of each action.
        workers: The worker of each place.
        places: The places of each stage: several if several workers share its micro-batches.
        driver: The worker that trains the pipeline.
        begun: The number of the last step before the plan.
        skips: The stages between which each skip connection goes, by name.
        ties: The parameters that it shares with other places.
        loss: The loss function, for the place of the last stage.
        recompute: `never`, `always` or `except_last`.
    """

    pipeline: int
    place: int
    row: list[tuple[str, int, int]]
    workers: list[WorkerInfo]
    places: list[list[int]]
    driver: WorkerInfo
    begun: int
    skips: dict[str, tuple[int, int]]
    ties: list[Tie]
    loss: Any = None
    recompute: str = "never"


@final
@dataclass(frozen=True, slots=True)
class StepOrder:
    """The message with which a driver starts a step at one place.

    Attributes:
        step: The number of the step.
        train: True for a training step, False for a forward alone.
        shares: The share of each micro-batch in the mini-batch; they add up to 1.
        inputs: The inputs of the pipeline, for the place of the first stage.
        target: The target of the loss, for the place of the last stage; None without one.
        scale: The factor of all gradients.
        afresh: True if the step before it failed, so that nothing counts that it recorded.
        sample: True for a forward that only shows if the stages fit together.
    """

    step: int
    train: bool
    shares: list[float]
    inputs: list[Argument] = field(default_factory=list)
    target: Argument | None = None
    scale: float = 1.0
    afresh: bool = False
    sample: bool = False

    def to_wire(self) -> list[Any]:
        """Returns the order as plain values in fixed places, which the codec takes as they are."""
        inputs, target = [[*each] for each in self.inputs], self.target and [*self.target]
        options = self.scale, self.afresh, self.sample
        return [self.step, self.train, self.shares, inputs, target, *options]

    @staticmethod
    def from_wire(values: list[Any]) -> StepOrder:
        """Returns the order that `to_wire` turned into these values."""
        step, train, shares, inputs, target, *rest = values
        arguments = [Argument(*each) for each in inputs]
        return StepOrder(step, train, shares, arguments, target and Argument(*target), *rest)


@final
@dataclass(frozen=True, slots=True)
class Wait:
    """The point at which a place heard that a step has failed elsewhere.

    Attributes:
        words: The point in words, with the place.
        worker: The name of the worker that it waited for.
        stage: The stage of that worker that it waited for.
        micro_batch: The micro-batch; -1 if it exchanged shared parameters.
        phase: The phase, as of a `PipelineError`.
    """

    words: str
    worker: str
    stage: int
    micro_batch: int
    phase: str


@final
@dataclass(frozen=True, slots=True)
class StepReport:
    """The answer of a place at the end of a step.

    Attributes:
        losses: The loss of each micro-batch, from a place of the last stage.
        outputs: The outputs of each micro-batch, from a place of the last stage in a forward.
        held: The most micro-batches whose activations each stage has held at a time.
        times: For each action the times when it had its inputs and when it had its results, on the
            clock of `time.monotonic`; of shape (actions, 2).
        wait: The point at which the place heard of a failure elsewhere; None if its row has ended.
    """

    losses: dict[int, float] = field(default_factory=dict)
    outputs: dict[int, list[Array]] = field(default_factory=dict)
    held: dict[int, int] = field(default_factory=dict)
    times: Array | None = None
    wait: Wait | None = None

    def to_wire(self) -> list[Any]:
        """Returns the report as plain values in fixed places; see `StepOrder.to_wire`."""
        pairs = [[*each, *each.values()] for each in (self.losses, self.outputs, self.held)]
        times = b"" if self.times is None else self.times.tobytes()
        return [*pairs, times, self.wait]

    @staticmethod
    def from_wire(values: list[Any]) -> StepReport:
        """Returns the report that `to_wire` turned into these values."""
        losses, outputs, held, times, wait = values
        moments = np.frombuffer(times).reshape(-1, 2)
        return StepReport(_halves(losses), _halves(outputs), _halves(held), moments, wait)


def _halves(values: list[Any]) -> dict[int, Any]:
    """Returns the dict of the keys in the first half of a list, and of the values behind them."""
    count = len(values) // 2
    return dict(zip(values[:count], values[count:], strict=True))


class PlannedAction(NamedTuple):
    """One action of a row, with all that is the same in each step.

    Attributes:
        kind: The letter of its kind.
        stage: The stage that does it.
        micro_batch: The micro-batch that it is done for.
        takes: The key of the values that it takes from the stage beside it; None for none.
        gives: The key of the values that it hands to the stage beside it; None for none.
        to: The place that takes those.
    """

    kind: str
    stage: int
    micro_batch: int
    takes: Key | None
    gives: Key | None
    to: Peer | None


@final
@dataclass(frozen=True, slots=True)
class LocalPlace:
    """One place of a pipeline: its stages, and the way to those of other places.

    Attributes:
        plan: Its plan.
        stages: Its modules, by the number of the stage.
        mailbox: Its mailbox.
        mailboxes: The messages to other places.
        peers: All places, by number, this one among them.
        checked: The stages whose `forward` is known to take what the stage before it gives.
        row: Its row of the schedule.
    """

    plan: PlacePlan
    stages: dict[int, Module]
    mailbox: PlaceMailbox
    mailboxes: Mailboxes
    peers: list[Peer]
    checked: set[int] = field(default_factory=set)
    row: list[PlannedAction] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "row", [self._planned(*each) for each in self.plan.row])
        self.mailbox.expected = frozenset(self._expected())

    def _expected(self) -> Iterator[Key]:
        """Yields the keys of all values that are handed to this place in a step."""
        plan = self.plan
        for each in self.row:
            if each.takes is not None:
                yield each.takes
            ahead = each.kind == Kind.FORWARD.value
            letter = (Kind.FORWARD if ahead else Kind.BACKWARD).value
            for name, (source, target) in plan.skips.items():
                if each.stage == (target if ahead else source):
                    yield Key(letter, each.stage, each.micro_batch, name)
        for tie in plan.ties:
            owner, _, copy, _ = tie.parameters[0]
            yield Key(TIES, copy, tie.owner)
            for b in range(len(tie.parameters)):  # there are no more buckets than that
                yield Key(TIES, owner, tie.copy, str(b))

    def _planned(self, kind: str, stage: int, i: int) -> PlannedAction:
        if kind == Kind.WEIGHTS.value:
            return PlannedAction(kind, stage, i, None, None, None)
        ahead = kind == Kind.FORWARD.value
        letter = (Kind.FORWARD if ahead else Kind.BACKWARD).value
        source, target = (stage - 1, stage + 1) if ahead else (stage + 1, stage - 1)
        takes = Key(letter, stage, i) if 0 <= source <= self.last else None
        if not 0 <= target <= self.last:
            return PlannedAction(kind, stage, i, takes, None, None)
        to = self.peers[self.place_of(target, i)]
        return PlannedAction(kind, stage, i, takes, Key(letter, target, i), to)

    @property
    def last(self) -> int:
        """The number of the last stage of the pipeline."""
        return len(self.plan.places) - 1

    def place_of(self, stage: int, i: int) -> int:
        """Returns the place that runs a stage for a micro-batch."""
        places = self.plan.places[stage]
        return places[i % len(places)] if self.plan.place not in places else self.plan.place

    def worker_of(self, stage: int, i: int) -> WorkerInfo:
        """Returns the worker that runs a stage for a micro-batch."""
        return self.plan.workers[self.place_of(stage, i)]

    def name(self, stage: int, i: int) -> str:
        """Returns a stage in words, and the worker that runs it for a micro-batch."""
        return f"stage {stage} on worker {self.worker_of(stage, i).name!r}"

    def parameter(self, stage: int, name: str) -> Parameter:
        """Returns a parameter of a stage that is here."""
        *path, last = name.split(".")
        module = self.stages[stage]
        for each in path:
            module = module._modules[each]
        return module._parameters[last]
