"""`Pipeline`: one model, its stages on several workers, trained in micro-batches.

         driver                     stages
step ────┬─ inputs ──────────────▶ stage 0 ─▶ stage 1 ─▶ stage 2      activations, by micro-batch
         └─ targets ─────────────────────────────────────▶ loss
                                   stage 0 ◀─ stage 1 ◀─ stage 2      gradients
optimizer.step ─────────────────▶ each stage steps its own parameters
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from operator import index
from typing import Any, final

import numpy as np

from telegrad.autograd import Tensor, is_grad_enabled
from telegrad.errors import InvalidUseError, ScheduleError
from telegrad.nn import Module, Parameter, Sequential
from telegrad.nn.seams import fit_state
from telegrad.optim import LossScale, Optimizer
from telegrad.parallel.optimizer.dist_optimizer import DistributedOptimizer
from telegrad.parallel.pipeline.balance import split
from telegrad.parallel.pipeline.checking import check
from telegrad.parallel.pipeline.micro_batches import (
    Argument,
    Spec,
    most_parts,
    shares,
    split_arguments,
    whole_arguments,
)
from telegrad.parallel.pipeline.optimizer import PipelineOptimizer, WaitingGradients
from telegrad.parallel.pipeline.places import Copies, Places, by_stage
from telegrad.parallel.pipeline.plan import Settings, StepOrder, StepReport
from telegrad.parallel.pipeline.report import PipelineReport, ideal, measured, report
from telegrad.parallel.pipeline.schedule import Schedule, make_schedule
from telegrad.parallel.pipeline.sources import Stage, To, source_of, tied_parameters
from telegrad.parallel.pipeline.timeline import as_svg, as_text
from telegrad.rpc import Future, RRef, to_thread
from telegrad.rpc.seams import current_agent, refuse_to_block
from telegrad.types import Array, WorkerInfo


@final
class Pipeline:
    """A model whose stages live on several workers; a step sends micro-batches through them.

    The stages work at the same time, each on another micro-batch, in the order that the schedule
    fixes for each of them. They hand activations and gradients to each other directly. The loss and
    the gradients are those of the whole model on the whole mini-batch, whatever the split; a module
    that looks at the batch as a whole (BatchNorm) sees micro-batches.

    This process is the driver. It may hold stages itself, and it may be any worker of the job.

    Args:
        stages: The stages in order, each in one of these forms: `(worker, module)` moves a module
            of this process to a worker, `(worker, ModuleClass, args)` makes one there, and an RRef
            to a module or a RemoteModule is used where it is. A list of workers in place of one
            shares the micro-batches of the stage, each with a copy of the module. Parameters that
            modules of this process share stay tied.
        schedule: The name of a schedule, see `make_schedule`, or a table of one's own.
        num_microbatches: The number of micro-batches of a mini-batch.
        loss: The loss function: `loss(output, target)` returns the mean over the micro-batch. The
            worker of the last stage must find it by its name. None if the last stage returns the
            loss itself.
        recompute: `never`; `always` to compute activations again in the backward, with the same
            random numbers; `except_last` to do so for all but the last micro-batch.
        specs: The rule for each argument of `step`: `split` along the first axis, `replicate`, or a
            function `(argument, number) -> parts`; None to split all.
        sample: One micro-batch of inputs; a tuple for several inputs. All stages run it once, in
            evaluation mode and without gradients, to show now that each stage takes the output of
            the one before it. None to have this show in the first step.
        keep_copies: True to have each place hand a copy of its weights and of its optimizers' state
            to another one after each step of an optimizer, for `replace`.
        timeout: Seconds for each step and call; None for `RpcOptions.timeout`.

    Raises:
        TypeError: A stage has none of these forms, or an argument is of the wrong type.
        ValueError: There is no stage, or `recompute` is unknown.
        ScheduleError: The schedule is unknown, does not fit the stages, or would wait for ever.
        PipelineError: A stage failed on the sample; the message has the dtypes and shapes that it
            got, and the stage that they came from.
        WorkerLostError: A worker is lost.

    Example:
        >>> import numpy as np
        >>> from telegrad import nn, optim, parallel, rpc
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> with rpc.init_rpc("a"):
        ...     pipe = parallel.Pipeline.from_sequential(
        ...         model, ["a", "a"], balance=[2, 1], num_microbatches=2,
        ...         loss=nn.functional.cross_entropy,
        ...     )
        ...     optimizer = pipe.optimizer(optim.SGD, lr=0.1)
        ...     loss = pipe.step(np.ones((6, 4), np.float32), np.array([0, 1, 2, 0, 1, 2]))
        ...     result = optimizer.step()
        ...     result.stepped, sorted(pipe.state_dict())
        (True, ['0.bias', '0.weight', '2.bias', '2.weight'])
    """

    def __init__(
        self,
        stages: Iterable[Stage],
        *,
        schedule: str | Schedule = "1f1b",
        num_microbatches: int,
        loss: Callable[..., Any] | None = None,
        recompute: str = "never",
        specs: Sequence[Spec] | None = None,
        sample: Any = None,
        keep_copies: bool = False,
        timeout: float | None = None,
    ) -> None:
        given = list(stages)
        settings = Settings(num_microbatches, loss, recompute, specs, timeout, keep_copies)
        refuse_to_block("Pipeline(...)", "write `await rpc.to_thread(Pipeline, ...)`")
        if not given:
            raise ValueError("a pipeline needs at least one stage")
        placed = [source_of(k, each) for k, each in enumerate(given)]
        workers = [each for each, _ in placed]
        self._begin(settings, _schedule(schedule, workers, settings.num_microbatches))
        self._names = [str(k) for k in range(len(given))]
        self._made: Places | None = Places(self._checked, settings, placed, tied_parameters(given))
        if sample is not None:
            self._run_forward(whole_arguments(sample), 1, sample=True)

    def _begin(self, settings: Settings, schedule: Schedule) -> None:
        self._settings, self.schedule = settings, schedule
        self._checked = check(schedule)
        self._names = [""] * schedule.stages  # as in a model that was split
        self._lock = threading.RLock()  # one step at a time
        self._steps = 0
        self._waiting = WaitingGradients()
        self._optimizers: list[PipelineOptimizer] = []
        self._saved: tuple[dict[str, Array], list[dict[str, Any]]] | None = None
        self._copies = Copies()
        self._reports: list[StepReport] = []
        self._uncut: tuple[Sequential, list[To]] | None = None
        self._made = None

    def _split(self, model: Sequential, workers: Sequence[To], balance: Any, sample: Any) -> None:
        parts = split(model, self.schedule.stages, balance, sample)
        place_of = self.schedule.place_of
        stages = [(workers[place_of(stage)], part) for stage, part in enumerate(parts)]
        placed = [source_of(stage, each) for stage, each in enumerate(stages)]
        self._made = Places(self._checked, self._settings, placed, tied_parameters(stages))

    @property
    def _places(self) -> Places:
        if self._made is None:
            raise InvalidUseError(
                "the model is not split yet: the first step or forward measures its modules; pass "
                "sample= to from_sequential to have them measured at once"
            )
        return self._made

    @classmethod
    def from_sequential(
        cls,
        model: Module,
        workers: Sequence[To],
        *,
        balance: str | Sequence[int] = "parameters",
        schedule: str | Schedule = "1f1b",
        num_microbatches: int,
        loss: Callable[..., Any] | None = None,
        recompute: str = "never",
        specs: Sequence[Spec] | None = None,
        sample: Any = None,
        keep_copies: bool = False,
        timeout: float | None = None,
    ) -> Pipeline:
        """Splits a Sequential over workers; the state moves, and names stay those of the model.

        Args:
            model: A Sequential of this process; it keeps its own copy of the state.
            workers: The workers, in the order of the places; a list of workers in place of one
                shares the micro-batches of its stages.
            balance: The number of modules of each stage; `parameters` for stages with about the
                same number of parameters; `time` for stages that take about the same time.
            schedule: As for the class.
            num_microbatches: As for the class.
            loss: As for the class.
            recompute: As for the class.
            specs: As for the class.
            sample: As for the class; `balance="time"` measures the modules on it. None to measure
                with the inputs of the first step or forward, and to split the model then.
            keep_copies: As for the class.
            timeout: As for the class.

        Raises:
            TypeError: `model` is no Sequential.
            ValueError: The balance does not fit the model or the workers.
            Exception: As from the class.
        """
        if not isinstance(model, Sequential):
            raise TypeError(
                f"from_sequential splits an nn.Sequential, not a {type(model).__name__}; pass its "
                "parts to Pipeline([(worker, part), ...])"
            )
        settings = Settings(num_microbatches, loss, recompute, specs, timeout, keep_copies)
        if isinstance(workers, (str, int, WorkerInfo)):
            raise TypeError(
                f"workers must be a list of workers, not {workers!r}: write [{workers!r}]"
            )
        if not workers:
            raise ValueError("a pipeline needs at least one worker")
        if isinstance(schedule, Schedule):
            made = schedule
        else:
            count = None if isinstance(balance, str) else _number_of_counts(balance)
            if count is not None and (not count or count % len(workers)):
                raise ValueError(
                    f"balance has {count} counts for {len(workers)} workers: {list(balance)}; each "
                    "worker has one stage, with 'interleaved' and 'zb-v' two or more"
                )
            made = make_schedule(schedule, len(workers), settings.num_microbatches, count)
        if made.places != len(workers):
            raise ScheduleError(
                f"the schedule {made.name!r} has {made.places} places for {len(workers)} workers"
            )
        refuse_to_block("from_sequential()", "write `await rpc.to_thread(...)`")
        pipe = object.__new__(cls)
        pipe._begin(settings, made)
        if balance == "time" and sample is None:
            split(model, made.stages, "parameters")  # checks that it can be cut
            pipe._uncut = model, list(workers)
        else:
            pipe._split(model, workers, balance, sample)
            if sample is not None:
                pipe._run_forward(whole_arguments(sample), 1, sample=True)
        return pipe

    # -- computing -------------------------------------------------------------------------------

    def step(self, *arguments: Any) -> float:
        """Runs a mini-batch forward and backward; its gradients wait at the stages.

        A second step adds its gradients to those of the first, until an optimizer uses them up.

        Args:
            arguments: The inputs of the first stage and then the target of the loss; if there is
                one argument alone, it is the input. They must not change before the step has
                ended: stages on this worker get arrays of host memory without a copy.

        Returns:
            The loss, as the mean over the mini-batch.

        Raises:
            TypeError: An argument is no array of numbers.
            ValueError: The arguments cannot be split into the micro-batches.
            PipelineError: A stage failed; all others have ended the step, and left no gradients.
            InvalidUseError: No stage has anything to train, or it is called under `no_grad`.
            EncodeError: An argument is larger than one message may be.
            BlockingCallError: On an event loop that telegrad runs; write `await step_async(...)`.
        """
        refuse_to_block("step()", "write `await pipe.step_async(...)`")
        if not is_grad_enabled():
            raise InvalidUseError(
                "step() trains, and under no_grad() there are no gradients; write "
                "pipe.forward(...), or call step() outside no_grad()"
            )
        count = self._settings.num_microbatches
        given = split_arguments(arguments, self._settings.specs_for(arguments), count)
        found = shares(given, count)
        has_target = self._settings.loss is not None and len(given) > 1
        inputs, target = (given[:-1], given[-1]) if has_target else (given, None)
        scale, last = self._scale(), len(self._names) - 1
        self._split_now(inputs)
        with self._lock, self._waiting.entered(opens=True):
            self._steps += 1
            reports = self._places.run(
                lambda member: StepOrder(
                    self._steps,
                    True,
                    found,
                    inputs if 0 in member.stages else [],
                    target if last in member.stages else None,
                    scale,
                )
            )
            self._reports = reports
        losses = {i: loss for each in reports for i, loss in each.losses.items()}
        return float(sum(losses[i] * share for i, share in enumerate(found)))

    def step_async(self, *arguments: Any) -> Future[float]:
        """Starts `step` and returns the future of its loss, for coroutines.

        Change the arguments, or the memory of a batch, only after the future is done.
        """
        return to_thread(self.step, *arguments)  # type: ignore[return-value]

    def forward(self, *inputs: Any) -> Any:
        """Runs inputs through all stages, without gradients.

        Args:
            inputs: The inputs of the first stage; may have fewer rows than micro-batches.

        Returns:
            The output of the last stage for the whole batch: a Tensor, or a tuple of them.

        Raises:
            TypeError: An input is no array of numbers.
            ValueError: An input cannot be split.
            PipelineError: A stage failed.
            BlockingCallError: On an event loop that telegrad runs.
        """
        refuse_to_block("forward()", "write `await rpc.to_thread(pipe.forward, ...)`")
        specs = self._settings.specs_for(inputs)
        count = most_parts(inputs, specs, self._settings.num_microbatches)
        given = split_arguments(inputs, specs, count)
        self._split_now(given)
        reports = self._run_forward(given, count)
        outputs = {i: each for report in reports for i, each in report.outputs.items()}
        return _joined([outputs[i] for i in range(count)])

    def _run_forward(
        self, given: list[Argument], count: int, *, sample: bool = False
    ) -> list[StepReport]:
        """Runs arguments through all stages; a sample only to show that the stages fit together."""
        found = shares(given, count)
        with self._lock:
            self._steps += 1
            return self._places.run(
                lambda member: StepOrder(
                    self._steps, False, found, given if 0 in member.stages else [], sample=sample
                )
            )

    def _split_now(self, inputs: Sequence[Argument]) -> None:
        """Splits a model that waits for its first inputs, by the times of its modules."""
        with self._lock:
            if self._uncut is not None:
                sample = tuple(each.part(0) for each in inputs)
                self._split(*self._uncut, "time", sample)
                self._uncut = None

    # -- the last step as it ran -----------------------------------------------------------------

    def report(self) -> PipelineReport:
        """Returns the numbers of the last training step.

        Raises:
            InvalidUseError: There was none.
        """
        return report(self._places.checked, _of_a_step(self._reports))

    def picture(self, *, svg: bool = False) -> str:
        """Returns a picture of the last training step, beside the ideal one: one row a place.

        The ideal one has the same mean times of actions, and nothing else takes time in it.

        Args:
            svg: True for an SVG document, False for text.

        Raises:
            InvalidUseError: There was none.
        """
        ran = measured(self._places.checked, _of_a_step(self._reports))
        both = [ran, ideal(self._places.checked, ran)]
        return as_svg(both) if svg else "\n".join(map(as_text, both))

    # -- parameters and their gradients ----------------------------------------------------------

    def optimizer(
        self,
        optimizer_class: type[Optimizer],
        *args: Any,
        max_norm: float | None = None,
        loss_scale: LossScale | None = None,
        **kwargs: Any,
    ) -> PipelineOptimizer:
        """Returns an optimizer that steps each stage where it lives.

        It has the parameters that need a gradient now. If others need one later, or some are
        replaced, a step raises InvalidUseError with their name until an optimizer is made again.

        Args:
            optimizer_class: A subclass of `telegrad.optim.Optimizer` that the workers find by name.
            args: Arguments for the optimizer, after the parameters.
            max_norm: The norm to which the gradient of the whole model is clipped.
            loss_scale: The factor for losses. No stage steps if a gradient is not finite anywhere.
            kwargs: Keyword arguments for the optimizer.
        """

        def make() -> DistributedOptimizer:
            rrefs = _parameters(self._places, trained=True)
            optimizer = DistributedOptimizer(
                optimizer_class, rrefs, *args, max_norm=max_norm, loss_scale=loss_scale, **kwargs
            )
            self._places.ask("optimizer_made")
            return optimizer

        made = PipelineOptimizer(
            make, self._waiting, lambda: self._places.first_stages(), loss_scale, self._copy
        )
        if self._uncut is None:
            made.remake(None)
        else:  # it is made once the model is split; a mistake shows here
            trained = [each for each in self._uncut[0].parameters() if each.requires_grad]
            optimizer_class(trained, *args, **kwargs)
        self._optimizers.append(made)
        return made

    def parameter_rrefs(self) -> list[RRef[Parameter]]:
        """Returns references to all parameters, in the order of the model, each once."""
        return _parameters(self._places)

    def gradients(self) -> dict[str, Array]:
        """Returns the gradients that wait at the stages, by name in the whole model.

        Raises:
            InvalidUseError: None wait.
        """
        factor = 1.0 / self._scale()
        with self._waiting.entered(opens=False):
            return self._named(self._places.ask("gradients", lambda _: (factor,)))

    def state_dict(self) -> dict[str, Array]:
        """Returns copies of the state of all stages, with the keys of the whole model.

        The pipeline keeps the last one, together with the state of its optimizers, for `replace`.
        """
        with self._lock:
            if self._uncut is not None:
                return self._uncut[0].state_dict()
            state = self._named(self._places.ask("state"))
            for copy, first in self._places.copies.items():
                state[self._name(*copy)] = state[self._name(*first)].copy()
            self._saved = state, [each.state_dict() for each in self._optimizers]
        return dict(state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replaces the state of all stages; all checks come before the first change.

        Args:
            state: Arrays or Tensors with the keys of the whole model, whatever the split.

        Raises:
            TypeError: `state` is no mapping.
            ValueError: Names or shapes differ; the message lists them.
        """
        with self._lock:
            if self._uncut is not None:
                self._uncut[0].load_state_dict(state)
                return
            facts = self._places.facts
            shapes = self._named([{k: each.shapes for k, each in facts.items()}])
            fitting = fit_state("the pipeline", shapes, state)
            _load(self._places, self._name, fitting)
            self._copy()

    def train(self, mode: bool = True) -> Pipeline:
        """Sets `training` of all stages, and returns this pipeline."""
        if self._uncut is not None:
            self._uncut[0].train(mode)
        else:
            self._places.ask("set_training", lambda _: (mode,))
        return self

    def eval(self) -> Pipeline:
        """Returns `train(False)`."""
        return self.train(False)

    def replace(self, stage: int, worker: str | int | WorkerInfo) -> None:
        """Moves the stages of a lost worker to another one, and all stages to the same step.

        Weights and the state of optimizers are those of the last `state_dict()`; with `keep_copies`
        those after the last step of an optimizer, or after a state was loaded, of which each place
        has a copy left. Gradients that wait are dropped.

        Args:
            stage: The number of a stage, such as `PipelineError.stage`; the other stages of its
                worker move with it.
            worker: The worker that takes its place; may have stages already.

        Raises:
            InvalidUseError: There is no state to go on from, or the stage was given as a reference.
            ValueError: There is no such stage.
            PipelineError: Another stage is lost, too: replace that one as well.
        """
        refuse_to_block("replace()", "write `await rpc.to_thread(pipe.replace, ...)`")
        if stage not in range(self.schedule.stages):
            raise ValueError(f"there is no stage {stage!r} (stages: {self.schedule.stages})")
        with self._lock:
            copies = self._copies.newest(self._places) if self._settings.keep_copies else None
            if copies is not None:
                self._saved = self._named([copies[0]]), copies[1]
            if self._saved is None:
                raise InvalidUseError(
                    "no state is known from which the pipeline could go on; call state_dict() now "
                    "and then, or make the pipeline with keep_copies=True and step its optimizer "
                    "once"
                )
            self._waiting.drop()
            self._places.replace(stage, current_agent().members.find(worker))
            state, optimizers = self._saved
            _load(self._places, self._name, state)
            for optimizer, saved in zip_longest(self._optimizers, optimizers):
                optimizer.remake(saved)

    def _copy(self) -> None:
        if self._settings.keep_copies:
            self._copies.take(self._places, [each.made for each in self._optimizers])

    # -- the parts -------------------------------------------------------------------------------

    def _scale(self) -> float:
        scales = [each.loss_scale for each in self._optimizers if each.loss_scale is not None]
        return float(scales[-1].value) if scales else 1.0

    def _name(self, stage: int, name: str) -> str:
        prefix = self._names[stage]
        return f"{prefix}.{name}" if prefix else name

    def _named(self, answers: Iterable[Mapping[int, Any]]) -> dict[str, Any]:
        return {
            self._name(stage, name): value
            for stage, values in by_stage(answers).items()
            for name, value in values.items()
        }

    def __repr__(self) -> str:
        places = [] if self._made is None else self._made.members
        workers = ", ".join(each.worker.name for each in places) or "no worker yet"
        return (
            f"<Pipeline of {self.schedule.stages} stages on {workers}: {self.schedule.name}, "
            f"{self._settings.num_microbatches} micro-batches>"
        )


def _load(places: Places, name_of: Callable[[int, str], str], state: Mapping[str, Any]) -> None:
    states = {
        stage: {name: state[name_of(stage, name)] for name in each.shapes}
        for stage, each in places.facts.items()
    }
    places.ask("load", lambda member: ({k: states[k] for k in member.stages},))


def _parameters(places: Places, *, trained: bool = False) -> list[RRef[Parameter]]:
    return [
        rref
        for stage, rrefs in by_stage(places.ask("parameters", lambda _: (trained,))).items()
        for name, rref in rrefs.items()
        if (stage, name) not in places.copies
    ]


def _of_a_step(reports: list[StepReport]) -> list[StepReport]:
    if not reports:
        raise InvalidUseError("there was no training step yet, so nothing is known of its times")
    return reports


# -- checks at construction ----------------------------------------------------------------------


def _number_of_counts(balance: Iterable[Any]) -> int:
    try:
        return len([index(each) for each in balance])
    except TypeError:
        message = f"balance must be counts, 'parameters' or 'time', not {balance!r}"
        raise TypeError(message) from None


def _schedule(
    schedule: str | Schedule, workers: Sequence[tuple[WorkerInfo, ...]], count: int
) -> Schedule:
    """Returns the schedule, which fits the workers of the stages."""
    if isinstance(schedule, Schedule):
        made = schedule
    else:
        several = schedule in ("interleaved", "zb-v")  # stages a worker
        places = len(set(workers)) if several else len(workers)
        made = make_schedule(schedule, places, count, len(workers))
    if made.stages != len(workers) or made.micro_batches != count:
        raise ScheduleError(
            f"the schedule {made.name!r} has {made.stages} stages and {made.micro_batches} "
            f"micro-batches, the pipeline {len(workers)} and {count}"
        )
    for place, row in enumerate(made.rows):
        stages = sorted({action.stage for action in row})
        if len({workers[stage] for stage in stages}) != 1:
            names = "; ".join(", ".join(w.name for w in workers[stage]) for stage in stages)
            raise ScheduleError(
                f"place {place} of the schedule {made.name!r} has the stages {stages}, which must "
                f"be on the same workers (given: {names})"
            )
    return made


def _joined(parts: list[list[Array]]) -> Any:
    """Returns the outputs of all micro-batches as those of the whole batch."""
    columns = list(zip(*parts, strict=True))
    found = [
        Tensor(np.concatenate(column) if column[0].ndim else np.stack(column)) for column in columns
    ]
    return found[0] if len(found) == 1 else tuple(found)
