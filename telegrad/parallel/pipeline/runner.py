"""`StageRunner`: the stages that one place of a pipeline runs, on the worker where they live."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, final

from telegrad.autograd.seams import array_of
from telegrad.dist_autograd.seams import (
    Ambient,
    Container,
    PassGradients,
    ambient_context,
    enter_ambient,
    leave_ambient,
)
from telegrad.errors import ContextError, InvalidUseError, PipelineError
from telegrad.nn import Module, Parameter
from telegrad.parallel.optimizer.owners import OwnerOptimizer
from telegrad.parallel.pipeline.mailbox import EndedElsewhereError, Mailboxes, PlaceId
from telegrad.parallel.pipeline.plan import LocalPlace, PlacePlan, StepOrder, StepReport, Wait
from telegrad.parallel.pipeline.skips import names_in
from telegrad.parallel.pipeline.sources import StageSource
from telegrad.parallel.pipeline.step_run import StepRun
from telegrad.rpc import RRef, expose
from telegrad.rpc.seams import current_agent, current_served_call
from telegrad.types import Array, Shape


@final
@dataclass(frozen=True, slots=True)
class StageFacts:
    """The facts about a stage that its pipeline asks for at construction.

    Attributes:
        name: The name of its class.
        shapes: The shapes of its state, by name.
        parameters: The names of its parameters.
        trained: The names of those that need a gradient.
        stashed: The names of the skip connections that begin here.
        popped: The names of those that end here.
    """

    name: str
    shapes: dict[str, Shape]
    parameters: list[str]
    trained: list[str]
    stashed: list[str]
    popped: list[str]


@final
@dataclass(frozen=True, slots=True)
class StateCopy:
    """The state of one place at one time.

    Attributes:
        stages: The state of each stage.
        optimizers: For each optimizer the state of the parameters here, by their numbers.
    """

    stages: dict[int, dict[str, Array]]
    optimizers: list[dict[int, dict[str, Any]]]


@expose
@final
class StageRunner:
    """The stages of one place; made and called by the driver of the pipeline.

    Args:
        sources: The modules, by the number of their stage.
    """

    def __init__(self, sources: Mapping[int, StageSource]) -> None:
        self._stages = {stage: source.module(stage) for stage, source in sources.items()}
        self._place: LocalPlace | None = None
        self._running = threading.Lock()
        self._left: dict[int, StepOrder] = {}  # by step; one at most
        self._copies: dict[int, dict[int, StateCopy]] = {}
        self._names: dict[int, set[str]] = {}  # of the parameters, when the plan was made
        self._offered: dict[int, Parameter] = {}  # those that an optimizer is made for, by id
        self._stepped: dict[int, Parameter] | None = None  # those of the last optimizer

    def facts(self) -> dict[int, StageFacts]:
        """Returns the facts about each stage."""
        found = {}
        for stage, module in self._stages.items():
            parameters = dict(module.named_parameters())
            trained = [name for name, each in parameters.items() if each.requires_grad]
            found[stage] = StageFacts(
                type(module).__name__,
                module.state_shapes(),
                list(parameters),
                trained,
                *names_in(module),
            )
        return found

    def connect(self, plan: PlacePlan) -> None:
        """Takes the plan of the pipeline, at first or after a stage was replaced."""
        mailboxes = current_agent().attachments[Mailboxes]
        me = PlaceId(plan.pipeline, plan.place)
        mailbox = mailboxes.open(me, plan.workers, plan.driver, plan.begun)
        peers = mailboxes.peers(plan.pipeline, plan.workers)
        self._place = LocalPlace(plan, self._stages, mailbox, mailboxes, peers)
        self._names = {
            stage: {name for name, _ in module.named_parameters()}
            for stage, module in self._stages.items()
        }

    def leave(self, order: StepOrder) -> None:
        """Takes the order of a step from a driver on this worker, as it is, in place of any other.

        Args:
            order: The order; `run` is then called with the number of its step.
        """
        self._left = {order.step: order}

    def run(self, given: list[Any] | int) -> list[Any]:
        """Runs a step; returns its report at its end, here or elsewhere, as plain values.

        Gradients of the parameters go to the autograd context of the call.

        Args:
            given: The order as plain values; or the step, if its order was left here.

        Raises:
            PipelineError: This place failed, or waited in vain.
            InvalidUseError: No order of that step is here: its driver has given the step up, and
                begun a later one.
        """
        if not isinstance(given, int):
            return self._run(StepOrder.from_wire(given)).to_wire()
        order = self._left.pop(given, None)
        if order is None:
            raise InvalidUseError(f"step {given} has no order here: a later one has begun, or none")
        return self._run(order).to_wire()

    def _run(self, order: StepOrder) -> StepReport:
        place, context_id = self._place, ambient_context()
        assert place is not None
        agent, served = current_agent(), current_served_call()
        assert served is not None
        context = None if context_id is None else agent.attachments[Container].find(context_id)
        gradients = PassGradients(lambda: () if context is None else context.ended_passes())
        outside = Ambient(0, active=False)  # calls of the stage itself are not recorded
        with self._running:
            mailbox = place.mailbox
            mailbox.begin(order.step, served.deadline, afresh=order.afresh)
            served.on_cancel(lambda: mailbox.fail(served.given_up()))
            token = enter_ambient(outside)
            try:
                for peer in mailbox.peers:  # those lost before the step began
                    if (lost := agent.members.lost(peer)) is not None:
                        mailbox.fail(lost)
                if order.train:
                    self._check_structure()
                with _evaluating(self._stages.values()) if order.sample else nullcontext():
                    report = StepRun(place, order, gradients).run()
                gradients.complete = True
                if context is not None and not context.keep(gradients):
                    raise ContextError(f"autograd context {context_id} was released in the step")
            except BaseException as error:
                gradients.clear()
                elsewhere = isinstance(error.__cause__, EndedElsewhereError)
                if elsewhere and isinstance(error, PipelineError):
                    at = error.worker, error.stage, error.micro_batch, error.phase
                    return StepReport(wait=Wait(str(error), *at))
                raise
            finally:
                leave_ambient(outside, token)
                mailbox.end(gradients.clear)
            return report

    def _check_structure(self) -> None:
        """Refuses a step with parameters that nobody would step, or exchange with other places."""
        for stage, module in self._stages.items():
            parameters = dict(module.named_parameters())
            where = f"stage {stage} on worker {current_agent().info.name!r}"
            for name in parameters.keys() ^ self._names[stage]:
                raise InvalidUseError(
                    f"parameter {name!r} of {where} was added or removed after the pipeline was "
                    "made; make the pipeline again"
                )
            stepped = parameters.values() if self._stepped is None else self._stepped.values()
            ids = set(map(id, stepped))
            for name, each in parameters.items():
                if each.requires_grad and id(each) not in ids:
                    raise InvalidUseError(
                        f"parameter {name!r} of {where} was unfrozen or replaced after the "
                        "optimizer was made, and no optimizer steps it; call pipe.optimizer(...) "
                        "again"
                    )

    def parameters(self, for_optimizer: bool) -> dict[int, dict[str, RRef[Parameter]]]:
        """Returns references to the parameters of each stage, by name and in its order.

        Args:
            for_optimizer: True for those that need a gradient.
        """
        found = {
            stage: {
                name: each
                for name, each in module.named_parameters()
                if each.requires_grad or not for_optimizer
            }
            for stage, module in self._stages.items()
        }
        if for_optimizer:
            self._offered = {id(p): p for named in found.values() for p in named.values()}
        return {
            stage: {name: RRef(each) for name, each in named.items()}
            for stage, named in found.items()
        }

    def optimizer_made(self) -> None:
        """Records that there is an optimizer of the parameters that were asked for last."""
        self._stepped = self._offered

    def gradients(self, factor: float) -> dict[int, dict[str, Array]]:
        """Returns the gradients in the context of this call, multiplied, by stage and name."""
        context_id = ambient_context()
        assert context_id is not None
        held = current_agent().attachments[Container].find(context_id).gradients()
        return {
            stage: {
                name: _scaled(held[parameter], factor)
                for name, parameter in module.named_parameters()
                if parameter in held
            }
            for stage, module in self._stages.items()
        }

    def state(self) -> dict[int, dict[str, Array]]:
        """Returns the state of each stage."""
        return {stage: module.state_dict() for stage, module in self._stages.items()}

    def load(self, states: Mapping[int, Mapping[str, Any]]) -> None:
        """Replaces the state of stages."""
        for stage, state in states.items():
            self._stages[stage].load_state_dict(state)

    def copy(
        self,
        version: int,
        optimizers: Sequence[RRef[OwnerOptimizer]],
        neighbour: RRef[StageRunner] | None,
    ) -> None:
        """Keeps a copy of the state of this place, and hands one to a neighbour.

        Args:
            version: The number of the copy.
            optimizers: The parts of the pipeline's optimizers that step parameters here.
            neighbour: The runner of another place.
        """
        assert self._place is not None
        place = self._place.plan.place
        states = [each.local_value().state() for each in optimizers]
        copied = StateCopy(self.state(), states)
        self.keep(version, place, copied)
        if neighbour is not None:
            neighbour.rpc_sync().keep(version, place, copied)

    def keep(self, version: int, place: int, copied: StateCopy) -> None:
        """Keeps a copy of a place; older ones but the last are dropped."""
        known = self._copies.setdefault(place, {})
        known[version] = copied
        for old in sorted(known)[:-2]:
            del known[old]

    def copies(self) -> dict[int, dict[int, StateCopy]]:
        """Returns the copies kept here, by place and number.

        A neighbour may still hand one over, from a step of the optimizer that has failed elsewhere.
        """
        return {place: dict(known) for place, known in list(self._copies.items())}

    def set_training(self, mode: bool) -> None:
        """Sets the mode of each stage."""
        for module in self._stages.values():
            module.train(mode)


@contextmanager
def _evaluating(stages: Iterable[Module]) -> Iterator[None]:
    """Sets all modules of some stages to evaluation, for a block."""
    modes = [(part, part.training) for module in stages for part in module.modules()]
    for part, _ in modes:
        part.training = False
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def _scaled(gradient: Any, factor: float) -> Any:
    found = array_of(gradient)
    return found if factor == 1.0 else found * factor
