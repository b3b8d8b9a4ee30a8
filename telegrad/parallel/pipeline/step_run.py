"""One step at one place: runs the row of the schedule, action by action, in one thread.

    forward    take the inputs ─ run the stage on detached copies ─ keep them ─ hand the outputs on
    backward   take the gradients of the outputs ─ run the local graph ─ add those of the parameters
               to the step's ─ hand those of the inputs back

Stages before the first one with anything to train need no gradients: a None behind the outputs of
a stage says that none of them depends on a parameter that is trained, and the next stage keeps no
graph back to them. The gradients that it hands back are then None.

An action ends before it hands its results over. So on one clock no action begins before those that
it needs have ended.

Every wait ends: with the values, at the deadline of the step, at the loss of a worker of the
pipeline, or as soon as another stage has failed.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias, final

import numpy as np

from telegrad.autograd import (
    Gradient,
    GradientTarget,
    GraphTask,
    Tensor,
    enable_grad,
    is_row_sparse,
    no_grad,
    recompute,
)
from telegrad.autograd.seams import HalvedBackward, edge_of, graph_root, post_accumulate_hooks
from telegrad.dist_autograd.seams import PassGradients
from telegrad.errors import CallTimeoutError, InvalidUseError, PipelineError, WorkerLostError
from telegrad.parallel.bucket import Slot, assign_buckets
from telegrad.parallel.pipeline.mailbox import EndedElsewhereError, Key, Peer
from telegrad.parallel.pipeline.micro_batches import described
from telegrad.parallel.pipeline.plan import (
    TIES,
    LocalPlace,
    PlacePlan,
    PlannedAction,
    StepOrder,
    StepReport,
    Tie,
)
from telegrad.parallel.pipeline.schedule import Kind
from telegrad.parallel.pipeline.skips import Skips, through
from telegrad.types import Array

FORWARD, BACKWARD, INPUTS, WEIGHTS = (each.value for each in Kind)
PHASES = {
    FORWARD: "forward",
    BACKWARD: "backward",
    INPUTS: "backward for inputs",
    WEIGHTS: "backward for weights",
    TIES: "exchange of shared parameters",
}

Awaited: TypeAlias = "dict[Tensor, Callable[[Tensor], None]]"
"""Parameters, and what is called with each of them once it has its next gradient."""

BUCKET_BYTES = 4 * 2**20  # 34 ms at 1 Gbit/s, and some 0.2 ms for a message


@dataclass(slots=True)
class _Kept:
    """What a stage keeps of a micro-batch from its forward to its backward."""

    inputs: list[Tensor]
    outputs: list[Tensor]
    halved: HalvedBackward | None = None
    stashed: dict[str, Tensor] = field(default_factory=dict)
    popped: dict[str, Tensor] = field(default_factory=dict)
    here: dict[str, Tensor] = field(default_factory=dict)  # of connections inside the stage

    def leaves(self) -> list[Tensor]:
        """Returns all that came from other stages."""
        return [*self.inputs, *self.popped.values()] if self.popped else self.inputs


@final
class _Target(GradientTarget):
    """The target of one backward: gradients of parameters go to those of the step, inputs' stay.

    Args:
        step: The gradients of the step.
        inputs: The leaves whose gradients stay here.
        awaited: The parameters whose next gradient is told to somebody.
    """

    def __init__(self, step: PassGradients, inputs: Sequence[Tensor], awaited: Awaited) -> None:
        super().__init__()
        self._step, self._awaited = step, awaited
        self.inputs: dict[Tensor, Gradient | None] = dict.fromkeys(inputs)

    def __call__(self, tensor: Tensor, gradient: Gradient) -> None:
        if tensor in self.inputs:
            self.inputs[tensor] = gradient
            return
        self._step(tensor, gradient)
        if self._awaited and (complete := self._awaited.pop(tensor, None)) is not None:
            complete(tensor)

    def get(self, tensor: Tensor) -> Tensor | None:
        """Returns the gradient of a parameter in this step so far."""
        return self._step.get(tensor)

    def replace(self, tensor: Tensor, gradient: Tensor | None) -> None:
        """Replaces the gradient of a parameter in this step."""
        self._step.replace(tensor, gradient)


@final
class _SharedGradients:
    """The gradients of parameters that belong to another place, on their way there by buckets.

        last backward    leaf 3   leaf 2   leaf 1   leaf 0     end of the row
        buckets            └───┬────┘        └───┬────┘              │
        messages               0 ══════════      └─────────────────▶ 1 ══════════

    A bucket is sent as soon as the last backward of its stages has computed all of it, while that
    goes on with the other leaves. The last bucket is sent at the end, with what came to leaves
    after theirs was sent: gradients are sums, and the owner adds up all that it gets. A bucket is
    also sent at the end if one of its parameters has a hook, which may use or replace the gradient
    until the pass is over.

    Args:
        run: The step.
        tie: The parameters.
    """

    def __init__(self, run: StepRun, tie: Tie) -> None:
        self._run, self._tie = run, tie
        place = run.place
        self._parameters = [place.parameter(stage, name) for _, _, stage, name in tie.parameters]
        self._buckets = _buckets(self._parameters)
        self._missing = [{self._parameters[k] for k in each} for each in self._buckets]
        self._sent: set[int] = set()

    def watch(self, stage: int, awaited: Awaited) -> None:
        """Waits for the gradients of a stage, whose last backward begins."""
        for b, members in enumerate(self._buckets[:-1]):
            for k in members:
                parameter = self._parameters[k]
                hooked = any(True for _ in post_accumulate_hooks(parameter))
                if self._tie.parameters[k][2] == stage and not hooked:
                    awaited[parameter] = partial(self._complete, b)

    def send_rest(self) -> None:
        """Sends all that was not sent yet."""
        for b, members in enumerate(self._buckets[:-1]):
            if b not in self._sent:
                self._send(b, members)
        self._send(len(self._buckets) - 1, range(len(self._parameters)))

    def _complete(self, b: int, parameter: Tensor) -> None:
        self._missing[b].discard(parameter)
        if not self._missing[b]:
            self._send(b, self._buckets[b])

    def _send(self, b: int, members: Sequence[int]) -> None:
        gradients, values = self._run.gradients, []
        for k in members:
            found = gradients.get(self._parameters[k])
            values.append(None if found is None else _dense(found))
            gradients.replace(self._parameters[k], None)
        self._sent.add(b)
        key = Key(TIES, self._tie.parameters[0][0], self._tie.copy, str(b))
        self._run.carry(self._run.place.peers[self._tie.owner], key, values)


@final
class _Sharing:
    """All gradients that this place hands to owners in one step.

    Args:
        run: The step.
        plan: The plan of the place; None if there are no gradients.

    Attributes:
        awaited: The parameters whose next gradient completes a bucket, or part of one.
        ends: The last backward of each stage; empty if nothing is shared.
    """

    def __init__(self, run: StepRun, plan: PlacePlan | None) -> None:
        self.awaited: Awaited = {}
        self.ends: dict[int, tuple[str, int]] = {}
        self._parts: list[_SharedGradients] = []
        if plan is None:
            return
        self._parts = [_SharedGradients(run, each) for each in plan.ties if each.copy == plan.place]
        if self._parts:
            backwards = [each for each in plan.row if each[0] in (BACKWARD, WEIGHTS)]
            self.ends = {stage: (kind, i) for kind, stage, i in backwards}

    def begin(self, kind: str, stage: int, i: int) -> None:
        """Notes that an action begins."""
        if self.ends[stage] == (kind, i):
            for part in self._parts:
                part.watch(stage, self.awaited)

    def send_rest(self) -> None:
        """Sends all that was not sent yet."""
        for part in self._parts:
            part.send_rest()

    def clear(self) -> None:
        """Lets go of the step, to which the parts lead back."""
        self.awaited.clear()
        self._parts.clear()


@final
class StepRun(Skips):
    """Runs one step at one place; used once, by one thread.

    The layers of skip connections find it where they run, and put their values aside here.

    Args:
        place: The place.
        order: The step.
        gradients: Gets the gradients of the parameters, in a training step.

    Attributes:
        place: The place.
        gradients: The gradients of the parameters so far.
    """

    def __init__(self, place: LocalPlace, order: StepOrder, gradients: PassGradients) -> None:
        self.place, self._last = place, place.last
        self._order = order
        self.gradients = gradients
        self._kept: dict[int, dict[int, _Kept]] = {stage: {} for stage in place.stages}
        self._now = (TIES, min(place.stages), -1)
        self._source = -1  # the stage whose values are awaited, or that values are handed to
        self._doing = ""  # that in words; empty while the stage itself is at work
        self._present: _Kept | None = None  # of the forward that is at work
        self._results: list[tuple[Key, list[Any]]] = []  # gradients of skip connections
        self._began = 0.0
        self._times: list[tuple[float, float]] = []
        self._held: dict[int, int] = {}  # the most micro-batches so far, by stage
        self._losses: dict[int, float] = {}
        self._trains = False  # True once a loss depends on a parameter that needs a gradient
        self._outputs: dict[int, list[Array]] = {}
        self._sharing = _Sharing(self, place.plan if order.train else None)

    def run(self) -> StepReport:
        """Runs all actions of the row, or all forwards of it.

        Raises:
            PipelineError: An action failed, or waited in vain.
            InvalidUseError: No stage has anything to train.
        """
        train, count = self._order.train, len(self._order.shares)
        try:
            with (
                enable_grad() if train else no_grad(),
                through(self) if self.place.plan.skips else nullcontext(),
            ):
                self._exchange_values()
                for action in self.place.row:
                    if train or (action.kind == FORWARD and action.micro_batch < count):
                        self._act(action)
                if train:
                    self._exchange_gradients()
        except BaseException as error:  # around the user's modules
            self._kept.clear()
            raise self._failure(error) from error
        finally:
            self._sharing.clear()
        if self._losses and not self._trains:
            raise InvalidUseError(
                "this pipeline has nothing to train: its loss depends on no parameter that needs a "
                "gradient; set requires_grad of one, or call forward()"
            )
        times = np.asarray(self._times)
        return StepReport(self._losses, self._outputs, self._held, times)

    # -- the actions -----------------------------------------------------------------------------

    def _act(self, action: PlannedAction) -> None:
        """Runs an action, notes its times, and hands its results over."""
        kind, stage, i, _, gives, to = action
        self._now = kind, stage, i
        if (error := self.place.mailbox.error) is not None:
            self._doing, self._source = "was to begin", stage
            raise error
        if self._sharing.ends:
            self._sharing.begin(kind, stage, i)
        self._began = time.monotonic()
        values = _ACTIONS[kind](self, action)
        self._times.append((self._began, time.monotonic()))
        if gives is not None:
            assert to is not None
            self.carry(to, gives, values)
        while self._results:
            self.hand(*self._results.pop())

    def _forward(self, action: PlannedAction) -> list[Any]:
        order, place = self._order, self.place
        _, stage, i, takes, gives, _ = action
        if takes is None:
            inputs = [Tensor(each.part(i)) for each in order.inputs]
        else:
            inputs = self._leaves(self.take(takes, stage - 1))
        if stage not in place.checked:
            self._check_inputs(stage, i, inputs)
        kept = self._present = _Kept(inputs, [])
        outputs = self._call(stage, i, inputs)
        self._present = None
        kept.outputs = [outputs] if type(outputs) is Tensor else _tensors(outputs, place, stage, i)
        values = [] if gives is None else self._values(kept.outputs)
        if stage == self._last:
            self._finish(i, kept)
        if order.train:
            here = self._kept[stage]
            here[i] = kept
            self._held[stage] = max(len(here), self._held.get(stage, 0))
        return values

    def _call(self, stage: int, i: int, inputs: list[Tensor]) -> Any:
        module, mode = self.place.stages[stage], self.place.plan.recompute
        if mode != "never" and self._order.train:
            last = i == len(self._order.shares) - 1
            if mode == "always" or not last:
                return recompute(module, *inputs)
        return module(*inputs)

    def _finish(self, i: int, kept: _Kept) -> None:
        """Computes the loss of a micro-batch, or keeps its outputs."""
        order, function = self._order, self.place.plan.loss
        if not order.train:
            self._outputs[i] = [x.data for x in kept.outputs]
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
        kept.outputs = [loss]
        self._losses[i] = float(loss.data.reshape(()))
        self._trains |= loss.requires_grad

    def _backward(self, action: PlannedAction) -> list[Any]:
        _, stage, i, takes, _, _ = action
        kept = self._kept[stage].pop(i)
        roots = self._roots(stage, i, takes, kept)
        target = _Target(self.gradients, kept.leaves(), self._sharing.awaited)
        if roots:
            task = GraphTask(roots, accumulate=target)
            task.run()
            for completion in target.finish():
                completion.wait()
        return self._given(kept, target.inputs)

    def _backward_of_inputs(self, action: PlannedAction) -> list[Any]:
        _, stage, i, takes, _, _ = action
        kept = self._kept[stage][i]
        roots = self._roots(stage, i, takes, kept)
        edges = {x: edge for x in kept.leaves() if (edge := edge_of(x)) is not None}
        kept.halved = HalvedBackward(roots, list(edges.values()))
        found = kept.halved.run_inputs()
        return self._given(kept, {x: found.get(edge) for x, edge in edges.items()})

    def _backward_of_weights(self, action: PlannedAction) -> list[Any]:
        _, stage, i, *_ = action
        self.place.mailbox.look()
        kept = self._kept[stage].pop(i)
        assert kept.halved is not None
        target = _Target(self.gradients, (), self._sharing.awaited)
        kept.halved.run_weights(target)
        for completion in target.finish():
            completion.wait()
        return []

    def _roots(self, stage: int, i: int, takes: Key | None, kept: _Kept) -> list[Any]:
        """Returns where the gradients of a backward start; its outputs are no longer kept."""
        order = self._order
        if takes is not None:
            gradients = self.take(takes, stage + 1)
        else:  # of the loss
            weight: Array = np.empty_like(kept.outputs[0].data)  # on its device
            weight.fill(order.shares[i] * order.scale)
            gradients = [weight]
        pairs = list(zip(kept.outputs, gradients, strict=True))
        for name, value in kept.stashed.items():
            _, target = self.place.plan.skips[name]
            pairs += [(value, self.take(Key(BACKWARD, stage, i, name), target)[0])]
        kept.outputs, kept.stashed = [], {}
        return [graph_root(x, g) for x, g in pairs if g is not None and x.requires_grad]

    def _given(self, kept: _Kept, found: Mapping[Tensor, Gradient | None]) -> list[Any]:
        """Returns the gradients of the inputs; those of skip connections are handed over, too."""
        _, _, i = self._now
        for name, x in kept.popped.items():
            source, _ = self.place.plan.skips[name]
            self._results.append((Key(BACKWARD, source, i, name), [found.get(x)]))
        return [found.get(x) for x in kept.inputs]

    # -- skip connections --------------------------------------------------------------------------

    def stash(self, name: str, value: Tensor) -> None:
        """Hands a value to the stage that takes it."""
        source, target = self.place.plan.skips[name]
        kept = self._present
        assert kept is not None
        _, _, i = self._now
        if target == source:
            kept.here[name] = value
        else:
            kept.stashed[name] = value
            self.hand(Key(FORWARD, target, i, name), self._values([value]))

    def pop(self, name: str) -> Tensor:
        """Takes a value, once for each micro-batch."""
        source, target = self.place.plan.skips[name]
        kept = self._present
        assert kept is not None
        if target == source:
            return kept.here.pop(name)
        if name not in kept.popped:
            _, stage, i = self._now
            (kept.popped[name],) = self._leaves(self.take(Key(FORWARD, stage, i, name), source))
        return kept.popped[name]

    # -- tied parameters ---------------------------------------------------------------------------

    def _exchange_values(self) -> None:
        """Hands the values of owned parameters to their copies, and takes those of copies here."""
        place, plan = self.place, self.place.plan
        for tie in plan.ties:
            if tie.owner == plan.place:
                values = [place.parameter(stage, name).data for stage, name, _, _ in tie.parameters]
                key = Key(TIES, tie.parameters[0][2], tie.owner)
                self.carry(place.peers[tie.copy], key, values)
        for tie in plan.ties:
            if tie.copy == plan.place:
                owner, _, copy, _ = tie.parameters[0]
                values = self.take(Key(TIES, copy, tie.owner), owner)
                for (_, _, stage, name), value in zip(tie.parameters, values, strict=True):
                    place.parameter(stage, name).data = value

    def _exchange_gradients(self) -> None:
        """Hands the gradients of copies to the owners of their parameters, which add them up."""
        place, plan, gradients = self.place, self.place.plan, self.gradients
        self._now = (TIES, min(place.stages), -1)
        self._sharing.send_rest()
        for tie in plan.ties:
            if tie.owner != plan.place:
                continue
            owner, _, copy, _ = tie.parameters[0]
            own = [place.parameter(stage, name) for stage, name, _, _ in tie.parameters]
            buckets = _buckets(own)
            for b, members in enumerate(buckets):
                some = own if b == len(buckets) - 1 else [own[k] for k in members]
                values = self.take(Key(TIES, owner, tie.copy, str(b)), copy)
                for parameter, value in zip(some, values, strict=True):
                    if value is not None:
                        gradients(parameter, value)

    # -- what surrounds them ---------------------------------------------------------------------

    def _values(self, tensors: Sequence[Tensor]) -> list[Any]:
        """Returns the arrays of tensors for another stage; None behind them for no gradients."""
        values: list[Any] = [x.data for x in tensors]
        if self._order.train and not any(x.requires_grad for x in tensors):
            values.append(None)
        return values

    def _leaves(self, values: list[Any]) -> list[Tensor]:
        """Returns the values that came from another stage as leaves of this stage's graph."""
        needed = self._order.train
        if values and values[-1] is None:
            needed, values = False, values[:-1]
        return [Tensor(x, requires_grad=needed and x.dtype.kind in "fc") for x in values]

    def take(self, key: Key, source: int) -> list[Any]:
        """Waits for the values that another stage hands over."""
        self._source, self._doing = source, "waited for"
        values: list[Any] = self.place.mailbox.take(key)
        self._doing = ""
        self._began = time.monotonic()
        return values

    def hand(self, key: Key, values: list[Any]) -> None:
        """Hands values to the stage that the key names."""
        here = self.place
        self.carry(here.peers[here.place_of(key.stage, key.micro_batch)], key, values)

    def carry(self, to: Peer, key: Key, values: list[Any]) -> None:
        """Hands values to a place."""
        self._source, self._doing = key.stage, "had done"
        self.place.mailboxes.carry(to, self._order.step, key, values, self.place.mailbox)
        self._doing = ""

    def _check_inputs(self, stage: int, i: int, inputs: list[Tensor]) -> None:
        """Raises an error that names both stages if `forward` cannot be called with the inputs."""
        place = self.place
        module = place.stages[stage]
        try:
            inspect.signature(module.forward).bind(*inputs)
        except TypeError as error:
            given = f"{len(inputs)} {'output' if stage else 'input'}{'s' * (len(inputs) != 1)}"
            source = f"{place.name(stage - 1, i)} gives" if stage else "the step has"
            raise TypeError(
                f"{source} {given}, which the forward of {place.name(stage, i)}, a "
                f"{type(module).__name__}, does not take: {error}"
            ) from None
        place.checked.add(stage)

    def _failure(self, error: BaseException) -> BaseException:
        """Returns the error of this step, with the stage, the micro-batch and the phase."""
        kind, stage, i = self._now
        place, source, phase = self.place, self._source, PHASES[kind]
        work = phase if i < 0 else f"{phase} of micro-batch {i}"
        if not self._doing:
            words = f"{place.name(stage, i)} failed in the {work}: {_words(error)}"
            if kind == FORWARD and self._present is not None:
                given = described([x.data for x in self._present.inputs])
                giver = place.name(stage - 1, i) if stage else "the caller"
                words += f"; {giver} gave it {given}"
            return self._error(words, stage, i, phase)
        where = f"{place.name(stage, i)} {self._doing} the {work}"
        if isinstance(error, WorkerLostError):
            names = [each.name for each in place.plan.workers]
            homes = [error.worker in [names[k] for k in places] for places in place.plan.places]
            source = source if homes[source] or True not in homes else homes.index(True)
            words = f"stage {source} on worker {error.worker!r} is lost; {where}: {error}"
            return self._error(words, source, i, phase, error.worker)
        if isinstance(error, CallTimeoutError):
            words = f"the step was not over in time; {where} from {place.name(source, i)}"
        elif isinstance(error, EndedElsewhereError):
            words = where
        else:
            words = f"{where}: {_words(error)}"
        return self._error(words, source, i, phase)

    def _error(
        self, words: str, stage: int, micro_batch: int, phase: str, worker: str = ""
    ) -> PipelineError:
        worker = worker or self.place.worker_of(stage, micro_batch).name
        return PipelineError(
            words, stage=stage, worker=worker, micro_batch=micro_batch, phase=phase
        )


_ACTIONS: Final[Mapping[str, Callable[[StepRun, PlannedAction], list[Any]]]] = {
    FORWARD: StepRun._forward,
    BACKWARD: StepRun._backward,
    INPUTS: StepRun._backward_of_inputs,
    WEIGHTS: StepRun._backward_of_weights,
}


def _tensors(outputs: Any, place: LocalPlace, stage: int, i: int) -> list[Tensor]:
    found = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
    for each in found:
        if not isinstance(each, Tensor):
            raise TypeError(
                f"{place.name(stage, i)} must return a Tensor or a tuple of Tensors, and "
                f"there is a {type(each).__name__} in its output"
            )
    return found


def _buckets(parameters: Sequence[Tensor]) -> list[tuple[int, ...]]:
    """Returns the numbers of the parameters of each bucket, the last parameters first."""
    slots = [Slot(each.shape, each.dtype) for each in parameters]
    return [each.members for each in assign_buckets(slots, BUCKET_BYTES)]


def _dense(gradient: Any) -> Any:
    return gradient.to_dense() if is_row_sparse(gradient) else gradient.data


def _shape_of(value: Any) -> str:
    return (
        f"one of shape {value.shape}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
    )


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
