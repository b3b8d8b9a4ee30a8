"""One step at one place: runs the row of the schedule, action by action, in one thread.

    forward    take the inputs ─ run the stage on detached copies ─ keep them ─ hand the outputs on
    backward   take the gradients of the outputs ─ run the local graph ─ add those of the parameters
               to the step's ─ hand those of the inputs back

Every wait ends: with the values, at the deadline of the step, at the loss of a worker of the
pipeline, or as soon as another stage has failed.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from telegrad.autograd import (
    Gradient,
    GradientTarget,
    GraphTask,
    Tensor,
    enable_grad,
    no_grad,
    recompute,
)
from telegrad.autograd.seams import HalvedBackward, edge_of, graph_root
from telegrad.dist_autograd.seams import PassGradients
from telegrad.errors import CallTimeoutError, PipelineError, WorkerLostError
from telegrad.nn import Module
from telegrad.parallel.pipeline.mailbox import Key, Mailbox, Mailboxes, PlaceId
from telegrad.parallel.pipeline.micro_batches import Argument
from telegrad.parallel.pipeline.schedule import Kind
from telegrad.types import Array, WorkerInfo

__all__ = ["Place", "PlacePlan", "StepOrder", "StepReport", "StepRun"]

FORWARD, BACKWARD, INPUTS, WEIGHTS = (each.value for each in Kind)
PHASES = {
    FORWARD: "forward",
    BACKWARD: "backward",
    INPUTS: "backward for inputs",
    WEIGHTS: "backward for weights",
}


@final
@dataclass(frozen=True, slots=True)
class PlacePlan:
    """All that one place has to know of its pipeline.

    Attributes:
        pipeline: The number of the pipeline.
        place: The number of the place.
        row: Its row of the schedule: kind, stage and micro-batch of each action.
        workers: The worker of each stage.
        places: The place of each stage.
        driver: The worker that trains the pipeline.
        most_held: The most micro-batches whose activations each of its stages holds at a time.
        loss: The loss function, for the place of the last stage.
        recompute: `never`, `always` or `except_last`.
    """

    pipeline: int
    place: int
    row: list[tuple[str, int, int]]
    workers: list[WorkerInfo]
    places: list[int]
    driver: WorkerInfo
    most_held: dict[int, int]
    loss: Any = None
    recompute: str = "never"


@final
@dataclass(frozen=True, slots=True)
class StepOrder:
    """The message with which a driver starts a step at one place.

    Attributes:
        step: The number of the step.
        train: True for a training step, False for a forward alone.
        sizes: The share of each micro-batch in the mini-batch; they add up to 1.
        inputs: The inputs of the pipeline, for the place of the first stage.
        target: The target of the loss, for the place of the last stage; None without one.
        scale: The factor of all gradients.
    """

    step: int
    train: bool
    shares: list[float]
    inputs: list[Argument] = field(default_factory=list)
    target: Argument | None = None
    scale: float = 1.0


@final
@dataclass(frozen=True, slots=True)
class StepReport:
    """The answer of a place at the end of a step.

    Attributes:
        ended: True if the place has run its whole row; False if it heard of a failure elsewhere.
        losses: The loss of each micro-batch, from the place of the last stage.
        outputs: The outputs of each micro-batch, from the place of the last stage in a forward.
        held: The most micro-batches whose activations each stage has held at a time.
        times: For each action the times when the place was free for it, when it began and when it
            ended, on the clock of `time.monotonic`; of shape (actions, 3).
    """

    ended: bool
    losses: list[float] = field(default_factory=list)
    outputs: list[list[Array]] = field(default_factory=list)
    held: dict[int, int] = field(default_factory=dict)
    times: Array | None = None


@final
@dataclass(frozen=True, slots=True)
class Place:
    """One place of a pipeline: its stages, and the way to those of other places.

    Attributes:
        plan: Its plan.
        stages: Its modules, by the number of the stage.
        mailbox: Its mailbox.
        mailboxes: The messages to other places.
        checked: The stages whose `forward` is known to take what the stage before it gives.
    """

    plan: PlacePlan
    stages: dict[int, Module]
    mailbox: Mailbox
    mailboxes: Mailboxes
    checked: set[int] = field(default_factory=set)

    @property
    def last(self) -> int:
        """The number of the last stage of the pipeline."""
        return len(self.plan.workers) - 1

    def name(self, stage: int) -> str:
        """Returns a stage in words."""
        return f"stage {stage} on worker {self.plan.workers[stage].name!r}"

    def carry(self, step: int, key: Key, values: list[Any]) -> None:
        """Hands values to the stage that `key` names."""
        plan = self.plan
        to = PlaceId(plan.pipeline, plan.places[key.stage])
        self.mailboxes.carry(plan.workers[key.stage], to, step, key, values)


@dataclass(slots=True)
class _Kept:
    """What a stage keeps of a micro-batch from its forward to its backward."""

    inputs: list[Tensor]
    outputs: list[Tensor]
    loss: Tensor | None = None
    halved: HalvedBackward | None = None


@final
class _Target(GradientTarget):
    """The target of one backward: gradients of parameters go to those of the step, inputs' stay."""

    def __init__(self, step: PassGradients, inputs: Sequence[Tensor]) -> None:
        super().__init__()
        self._step = step
        self.inputs: dict[Tensor, Gradient | None] = dict.fromkeys(inputs)

    def __call__(self, tensor: Tensor, gradient: Gradient) -> None:
        if tensor in self.inputs:
            self.inputs[tensor] = gradient
        else:
            self._step(tensor, gradient)

    def get(self, tensor: Tensor) -> Tensor | None:
        """Returns the gradient of a parameter in this step so far."""
        return self._step.get(tensor)

    def replace(self, tensor: Tensor, gradient: Tensor | None) -> None:
        """Replaces the gradient of a parameter in this step."""
        self._step.replace(tensor, gradient)


@final
class StepRun:
    """Runs one step at one place; used once, by one thread.

    Args:
        place: The place.
        order: The step.
        gradients: Gets the gradients of the parameters, in a training step.
    """

    def __init__(self, place: Place, order: StepOrder, gradients: PassGradients) -> None:
        self._place = place
        self._order = order
        self._gradients = gradients
        self._kept: dict[tuple[int, int], _Kept] = {}
        self._now = ("", -1, -1)
        self._source = -1  # the stage whose values are awaited, or that values are handed to
        self._doing = ""  # that in words; empty while the stage itself is at work
        self._free = self._began = 0.0
        self._times: list[tuple[float, float, float]] = []
        self._held: dict[int, int] = {}
        self._losses: list[float] = []
        self._outputs: list[list[Array]] = []

    def run(self) -> StepReport:
        """Runs all actions of the row, or all forwards of it.

        Raises:
            PipelineError: An action failed, or waited in vain.
        """
        run: dict[str, Callable[[int, int], None]] = {
            FORWARD: self._forward,
            BACKWARD: self._backward,
            INPUTS: self._backward_of_inputs,
            WEIGHTS: self._backward_of_weights,
        }
        train = self._order.train
        try:
            with enable_grad() if train else no_grad():
                for kind, stage, i in self._place.plan.row:
                    if not train and kind != FORWARD:
                        continue
                    self._now, self._doing, self._source = (kind, stage, i), "was to begin", stage
                    self._place.mailbox.check()
                    self._doing = ""
                    self._free = self._began = time.monotonic()
                    run[kind](stage, i)
                    ended = time.monotonic()
                    self._times.append((self._free, self._began, ended))
        except BaseException as error:  # around the user's modules
            self._kept.clear()
            raise self._failure(error) from error
        times = np.asarray(self._times)
        return StepReport(True, self._losses, self._outputs, self._held, times)

    # -- the actions -----------------------------------------------------------------------------

    def _forward(self, stage: int, i: int) -> None:
        order, place = self._order, self._place
        if stage == 0:
            arrays = [each.part(i) for each in order.inputs]
        else:
            arrays = self._take(Key(FORWARD, stage, i))
        inputs = [_input(x, needs=order.train and stage > 0) for x in arrays]
        self._check_inputs(stage, inputs)
        outputs = _tensors(self._call(stage, i, inputs), place.name(stage))
        kept = _Kept(inputs, outputs)
        if stage == place.last:
            self._finish(i, kept)
        else:
            self._hand(Key(FORWARD, stage + 1, i), [x.data for x in outputs])
        if order.train:
            self._kept[stage, i] = kept
            self._count_held(stage)

    def _call(self, stage: int, i: int, inputs: list[Tensor]) -> Any:
        module, mode = self._place.stages[stage], self._place.plan.recompute
        last = i == len(self._order.shares) - 1
        if self._order.train and (mode == "always" or (mode == "except_last" and not last)):
            return recompute(module, *inputs)
        return module(*inputs)

    def _finish(self, i: int, kept: _Kept) -> None:
        """Computes the loss of a micro-batch, or keeps its outputs."""
        order, function = self._order, self._place.plan.loss
        if not order.train:
            self._outputs.append([x.data for x in kept.outputs])
            return
        loss: Any
        if function is None:
            loss = kept.outputs[0]
        elif order.target is None:
            loss = function(*kept.outputs)
        else:
            loss = function(*kept.outputs, order.target.part(i))
        if not isinstance(loss, Tensor) or loss.data.size != 1:
            what = "the output of the last stage" if function is None else "the loss"
            raise TypeError(
                f"{what} must be a Tensor of one item, the mean over the micro-batch, not "
                f"{_shape_of(loss)}"
            )
        kept.loss, kept.outputs = loss, []
        self._losses.append(float(loss.data.reshape(())))

    def _backward(self, stage: int, i: int) -> None:
        roots, kept = self._roots(stage, i)
        del self._kept[stage, i]
        target = _Target(self._gradients, kept.inputs)
        if roots:
            GraphTask(roots, accumulate=target).run()
            self._finish_pass(target)
        self._hand_back(stage, i, [target.inputs[x] for x in kept.inputs])

    def _backward_of_inputs(self, stage: int, i: int) -> None:
        roots, kept = self._roots(stage, i)
        edges = [edge_of(x) for x in kept.inputs]
        kept.halved = HalvedBackward(roots, [edge for edge in edges if edge is not None])
        found = kept.halved.run_inputs()
        self._hand_back(stage, i, [None if edge is None else found.get(edge) for edge in edges])

    def _backward_of_weights(self, stage: int, i: int) -> None:
        kept = self._kept.pop((stage, i))
        assert kept.halved is not None
        target = _Target(self._gradients, ())
        kept.halved.run_weights(target)
        self._finish_pass(target)

    def _roots(self, stage: int, i: int) -> tuple[list[Any], _Kept]:
        """Returns where the gradients of a backward start; its outputs are no longer kept."""
        order = self._order
        if stage < self._place.last:
            gradients = self._take(Key(BACKWARD, stage, i))
            kept = self._kept[stage, i]
            pairs = list(zip(kept.outputs, gradients, strict=True))
        else:
            kept = self._kept[stage, i]
            assert kept.loss is not None
            weight = np.full(kept.loss.shape, order.shares[i] * order.scale, kept.loss.dtype)
            pairs = [(kept.loss, weight)]
        kept.outputs, kept.loss = [], None
        return [graph_root(x, g) for x, g in pairs if g is not None and x.requires_grad], kept

    def _hand_back(self, stage: int, i: int, gradients: list[Any]) -> None:
        if stage > 0:
            self._hand(Key(BACKWARD, stage - 1, i), gradients)

    @staticmethod
    def _finish_pass(target: _Target) -> None:
        for completion in target.finish():
            completion.wait()

    # -- what surrounds them ---------------------------------------------------------------------

    def _take(self, key: Key) -> list[Any]:
        self._source = key.stage + (-1 if key.kind == FORWARD else 1)
        self._doing = "waited for"
        values: list[Any] = self._place.mailbox.take(key)
        self._doing = ""
        self._began = time.monotonic()
        return values

    def _hand(self, key: Key, values: list[Any]) -> None:
        self._source, self._doing = key.stage, "had done"
        self._place.carry(self._order.step, key, values)
        self._doing = ""

    def _count_held(self, stage: int) -> None:
        held = sum(each[0] == stage for each in self._kept)
        self._held[stage] = max(held, self._held.get(stage, 0))
        most = self._place.plan.most_held[stage]
        if held > most:
            raise AssertionError(
                f"{self._place.name(stage)} holds the activations of {held} micro-batches, and its "
                f"schedule says that it holds {most}"
            )

    def _check_inputs(self, stage: int, inputs: list[Tensor]) -> None:
        """Raises an error that names both stages if `forward` cannot be called with the inputs."""
        place = self._place
        if stage in place.checked:
            return
        module = place.stages[stage]
        try:
            inspect.signature(module.forward).bind(*inputs)
        except TypeError as error:
            given = f"{len(inputs)} {'output' if stage else 'input'}{'s' * (len(inputs) != 1)}"
            source = f"{place.name(stage - 1)} gives" if stage else "the step has"
            raise TypeError(
                f"{source} {given}, which the forward of {place.name(stage)}, a "
                f"{type(module).__name__}, does not take: {error}"
            ) from None
        place.checked.add(stage)

    def _failure(self, error: BaseException) -> BaseException:
        """Returns the error of this step, with the stage, the micro-batch and the phase."""
        kind, stage, i = self._now
        place, source, phase = self._place, self._source, PHASES.get(kind, "step")
        if not self._doing:
            words = f"{place.name(stage)} failed in the {phase} of micro-batch {i}: {_words(error)}"
            return self._error(words, stage, i, phase)
        where = f"{place.name(stage)} {self._doing} the {phase} of micro-batch {i}"
        if isinstance(error, WorkerLostError):
            lost = [j for j, each in enumerate(place.plan.workers) if each.name == error.worker]
            source = source if source in lost or not lost else lost[0]
            words = f"{place.name(source)} is lost; {where}: {error}"
        elif isinstance(error, CallTimeoutError):
            words = f"the step was not over in time; {where} from {place.name(source)}"
        else:
            words = f"{where}: {_words(error)}"
        return self._error(words, source, i, phase)

    def _error(self, words: str, stage: int, micro_batch: int, phase: str) -> PipelineError:
        worker = self._place.plan.workers[stage].name
        return PipelineError(
            words, stage=stage, worker=worker, micro_batch=micro_batch, phase=phase
        )


def _input(array: Any, *, needs: bool) -> Tensor:
    """Returns an array that arrived as a leaf of this stage's graph."""
    return Tensor(array, requires_grad=needs and np.issubdtype(array.dtype, np.inexact))


def _tensors(outputs: Any, stage: str) -> list[Tensor]:
    found = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
    for each in found:
        if not isinstance(each, Tensor):
            raise TypeError(
                f"{stage} must return a Tensor or a tuple of Tensors, and there is a "
                f"{type(each).__name__} in its output"
            )
    return found


def _shape_of(value: Any) -> str:
    return (
        f"one of shape {value.shape}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
    )


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
