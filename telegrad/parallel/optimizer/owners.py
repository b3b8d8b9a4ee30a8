"""The owners of a distributed optimizer's parameters: the part at each owner, and all of them.

    plain step                    step ──▶ every owner                     one call per owner
    clipped, or loss scaled       measure ──▶ every owner, then step       two calls per owner

The second form knows the norm of the whole gradient, and if all of it is finite, before any owner
steps. It also knows which trainers of a round were lost by then. Some owners may still have the
gradients of a lost trainer; a further call measures without them, so that all owners step alike.
"""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from telegrad.arrays import namespace
from telegrad.autograd import Gradient, Tensor, is_row_sparse
from telegrad.autograd.seams import array_of, steady
from telegrad.critical import critical
from telegrad.dist_autograd.seams import Container
from telegrad.errors import (
    BlockingCallError,
    CallTimeoutError,
    ContextError,
    WaitCycleError,
    WorkerLostError,
)
from telegrad.optim import Optimizer
from telegrad.parallel.optimizer.structure import References
from telegrad.rpc import Future, RRef, expose, remote_traceback
from telegrad.rpc.seams import current_agent, fresh_copy, wait_each
from telegrad.types import Shape, WorkerInfo

# -- the part of a distributed optimizer at one owner --------------------------------------------
#
# Nothing is locked but each parameter, while it is replaced (`Optimizer.apply`). Steps of several
# trainers run at the same time; two that meet at one parameter replace it one after the other.

Options = dict[int, dict[str, Any]]
"""Options by the number of their group."""

HALF = 1 << 63  # context ids have more bits than an integer of MessagePack
TINY_SQUARE = 1e-30  # below it a sum of squares in float32 has lost digits


@final
@dataclass(frozen=True, slots=True)
class GroupPart:
    """The part of one parameter group that one worker owns.

    Attributes:
        group: The number of the group.
        numbers: The numbers of the parameters, counted over all groups.
        rrefs: References to the parameters.
        options: The options given for the group.
    """

    group: int
    numbers: list[int] = field(default_factory=list)
    rrefs: list[RRef[Any]] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)


@final
@dataclass(frozen=True, slots=True)
class OwnerFacts:
    """The facts about an owner's part that a distributed optimizer asks for at construction.

    Attributes:
        defaults: The options of groups that state none.
        options: All options of each group.
        shapes: The shapes of the parameters, by number.
    """

    defaults: dict[str, Any]
    options: Options
    shapes: dict[int, Shape]


@final
@dataclass(frozen=True, slots=True)
class StepRequest:
    """A request to an owner to step.

    Attributes:
        shares: Context ids, each with a factor for its gradients; the products are added up.
        options: The options for this step, by group; groups that are not named are left alone.
        ticket: For a round of several trainers: its name, which links `measure` and `step`. A
            context that is missing here adds nothing to a round, and is reported if it is over. 0
            for one trainer, whose context must be here.
        factor: The factor for the sum.
    """

    shares: list[tuple[int, float]]
    options: Options
    ticket: int = 0
    factor: float = 1.0

    def plain(self, groups: Sequence[int]) -> list[Any]:
        """Returns the request, with the options of some groups, as a list that encodes quickly."""
        options = [each for i in groups if i in self.options for each in (i, self.options[i])]
        shares = [each for (n, weight) in self.shares for each in (*divmod(n, HALF), weight)]
        return [self.ticket, self.factor, shares, options]

    @staticmethod
    def of(plain: list[Any]) -> StepRequest:
        """Returns the request from the list of `plain`."""
        ticket, factor, shares, options = plain
        contexts = [high * HALF + low for high, low in zip(shares[::3], shares[1::3], strict=True)]
        pairs = list(zip(contexts, shares[2::3], strict=True))
        return StepRequest(
            pairs, dict(zip(options[::2], options[1::2], strict=True)), ticket, factor
        )


@expose
@final
class OwnerOptimizer:
    """The optimizer for the parameters of one owner; lives there, and is called by other workers.

    Args:
        optimizer_class: The class of the optimizer.
        parts: References to parameters of this worker, by group.
        grouped: True if the optimizer gets groups; False if it gets the parameters of the only
            part.
        args: Arguments for the optimizer, after the parameters.
        kwargs: Keyword arguments for the optimizer.
    """

    def __init__(
        self,
        optimizer_class: type[Optimizer],
        parts: Sequence[GroupPart],
        grouped: bool,
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> None:
        groups = [_group(part) for part in parts]
        params: Any = groups if grouped else groups[0]["params"]
        self._optimizer = optimizer_class(params, *args, **kwargs)
        self._groups = {
            part.group: own for part, own in zip(parts, self._optimizer.param_groups, strict=True)
        }
        self._numbers = [number for part in parts for number in part.numbers]
        self._references = current_agent().attachments[References]
        self._note_params()
        self._lock = threading.Lock()  # guards the options and the held gradients
        self._held: tuple[int, dict[Tensor, Gradient]] = (0, {})

    def add_group(self, part: GroupPart) -> OwnerFacts:
        """Adds parameters; returns the new facts."""
        self._optimizer.add_param_group(_group(part))
        self._groups[part.group] = self._optimizer.param_groups[-1]
        self._numbers += part.numbers
        self._note_params()
        return self.facts()

    def facts(self) -> OwnerFacts:
        """Returns the facts about this part."""
        defaults = dict(self._optimizer.defaults)
        params = zip(self._numbers, self._optimizer.params, strict=True)
        return OwnerFacts(
            defaults,
            {i: {name: group[name] for name in defaults} for i, group in self._groups.items()},
            {number: parameter.shape for number, parameter in params},
        )

    def measure(self, plain: list[Any]) -> tuple[float, list[int]]:
        """Returns the norm of the gradients, and the contexts of a round that are over.

        The norm is not finite if a gradient is not. The gradients of a round are held for its step,
        and until the next round: so the step uses what was measured, even if a trainer is lost in
        between.
        """
        request = StepRequest.of(plain)
        gradients, over = self._gradients(request)
        if request.ticket:
            with critical.section, self._lock:
                self._held = (request.ticket, gradients)
        return math.hypot(*(_norm(gradient) for gradient in gradients.values())), over

    def step(self, plain: list[Any]) -> list[int]:
        """Steps the parameters that have a gradient; returns a round's contexts that are over."""
        request = StepRequest.of(plain)
        with critical.section, self._lock:
            held, self._held = self._held, (0, {})
        measured = bool(request.ticket) and held[0] == request.ticket
        gradients, over = (held[1], []) if measured else self._gradients(request)
        self._set(request.options)
        self._optimizer.apply(gradients, scale=float(request.factor))
        return over

    def check_options(self, options: Options) -> None:
        """Raises the optimizer's error for options that it does not allow."""
        for i, group in self._groups.items():
            self._optimizer.check({**group, **options.get(i, {})})

    def state(self) -> dict[int, dict[str, Any]]:
        """Returns the optimizer's state of each parameter, by number."""
        state = self._optimizer.state_dict()["state"]
        return {self._numbers[i]: each for i, each in state.items()}

    def load(self, state: Mapping[int, Mapping[str, Any]], options: Options) -> None:
        """Replaces the state and the options, between two steps of each parameter."""
        first, groups = 0, []
        for i, group in self._groups.items():
            numbers = range(first, first + len(group["params"]))
            groups.append({**group, **options.get(i, {}), "params": list(numbers)})
            first = numbers.stop
        own = {i: state[number] for i, number in enumerate(self._numbers) if number in state}
        with ExitStack() as locks:
            for parameter in sorted(self._optimizer.params, key=id):  # the same order in all loads
                locks.enter_context(steady(parameter))
            self._optimizer.load_state_dict({"state": own, "param_groups": groups})

    def _gradients(self, request: StepRequest) -> tuple[dict[Tensor, Gradient], list[int]]:
        """Returns the sum of the shares for the named groups, and the contexts that are over."""
        for note in self._notes:
            note.check(self._own, self._references)
        container = current_agent().attachments[Container]
        own = {p for i in request.options for p in self._groups[i]["params"]}
        total: dict[Tensor, Any] = {}
        over = []
        for context_id, weight in request.shares:
            try:
                found = container.find(context_id).gradients()
            except ContextError:
                if not request.ticket:
                    raise
                if container.is_over(context_id):  # else no call of this trainer has come here
                    over.append(context_id)
                continue
            for parameter, gradient in found.items():
                if parameter in own:
                    share = _scaled(array_of(gradient), weight)
                    known = parameter in total
                    total[parameter] = total[parameter] + share if known else share
        return total, over

    def _note_params(self) -> None:
        params = self._optimizer.params
        self._own = set(map(id, params))
        self._notes = self._references.take(self, params)

    def _set(self, options: Options) -> None:
        with critical.section, self._lock:
            for i, given in options.items():
                group = self._groups[i]
                if not given.items() <= group.items():
                    self._optimizer.check({**group, **given})
                    group.update(given)


def _group(part: GroupPart) -> dict[str, Any]:
    return {**part.options, "params": list(_parameters(part.rrefs))}


def _parameters(rrefs: Iterable[RRef[Any]]) -> Iterable[Tensor]:
    for rref in rrefs:
        value = rref.local_value()
        if not isinstance(value, Tensor):
            raise TypeError(f"{rref!r} is of {type(value).__name__}, not of a parameter")
        yield value


def _scaled(gradient: Any, factor: float) -> Any:
    if factor == 1.0:
        return gradient
    with np.errstate(over="ignore", invalid="ignore"):  # infinities and NaNs stay what they are
        return gradient * factor


def _norm(gradient: Any) -> float:
    """Returns the 2-norm; no sum of squares overflows unless the norm does."""
    items = gradient.coalesce().values if is_row_sparse(gradient) else gradient
    if items.size == 0:
        return 0.0
    xp: Any = namespace(items)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        if items.dtype.kind == "f" and items.dtype.itemsize >= 4:
            flat = items.ravel()
            square = float(flat @ flat)
            if TINY_SQUARE < square < math.inf:
                return math.sqrt(square)
        sizes = xp.abs(items).astype(np.float64)
        largest = float(sizes.max())
        if largest == 0 or not math.isfinite(largest):
            return largest
        sizes /= largest
        return largest * math.sqrt(float((sizes * sizes).sum()))


# -- all owners ----------------------------------------------------------------------------------

_ATTRIBUTE = "telegrad_step_failure"  # travels with the exception

# The least timeout of a call, so that the call itself raises its timeout error.
LEAST_SECONDS = 1e-3


@final
@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of a step of a distributed optimizer.

    Attributes:
        stepped: True if the owners stepped. They do not if the loss is scaled and a gradient at any
            owner is not finite.
        norm: The norm of the whole gradient, over all owners, before clipping; None if neither
            `max_norm` nor a loss scale needs it.
        trainers: The number of trainers whose gradients were averaged.
        uneven: True if a trainer was lost, or left its context, while the round was stepped: its
            gradients may count at some owners only. Always False if a norm was computed.

    Example:
        >>> result = StepResult(stepped=True, norm=2.5)
        >>> result.stepped, result.norm, result.trainers
        (True, 2.5, 1)
    """

    stepped: bool
    norm: float | None = None
    trainers: int = 1
    uneven: bool = False


@final
@dataclass(frozen=True, slots=True)
class StepFailure:
    """The progress of a failed step, by the names of owners.

    Attributes:
        stepped: The owners that have stepped.
        failed: The owners that raised. If `update` raised, some parameters may have been stepped.
        unknown: The owners that are lost or did not answer in time: they may have stepped or not.

    Example:
        >>> str(StepFailure(stepped=("ps0",), unknown=("ps1",)))
        'ps0 stepped; ps1 may have stepped or not'
    """

    stepped: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    def __str__(self) -> str:
        words = []
        for names, what in (
            (self.stepped, "stepped"),
            (self.failed, "did not step"),
            (self.unknown, "may have stepped or not"),
        ):
            words += [f"{', '.join(names)} {what}"] if names else []
        return "; ".join(words) or "no owner stepped"


def step_failure(error: BaseException) -> StepFailure | None:
    """Returns the owners that stepped when `DistributedOptimizer.step` raised.

    Args:
        error: The error that it raised, on any trainer.

    Returns:
        The owners; None for an error from elsewhere.

    >>> step_failure(ValueError("of something else")) is None
    True
    """
    failure = getattr(error, _ATTRIBUTE, None)
    return failure if isinstance(failure, StepFailure) else None


@final
@dataclass(frozen=True, slots=True)
class Owner:
    """One owner.

    Attributes:
        worker: The worker.
        rref: A reference to its part of the optimizer.
        groups: The numbers of the groups in which it has parameters.
    """

    worker: WorkerInfo
    rref: RRef[OwnerOptimizer]
    groups: list[int] = field(default_factory=list)


@final
@dataclass(slots=True)
class Owners:
    """All owners, in order of their first parameters.

    Attributes:
        members: The owners.
        max_norm: The norm to which the whole gradient is clipped; None for no clipping.
        vote: True if no owner may step when a gradient of any owner is not finite.
    """

    members: list[Owner]
    max_norm: float | None
    vote: bool

    def step(self, request: StepRequest, timeout: float) -> StepResult:
        """Steps every owner; see `DistributedOptimizer.step`.

        Args:
            request: The request, with the options of all groups.
            timeout: Seconds for everything.

        Raises:
            Exception: The first error of an owner, in the order of the owners.
        """
        ends = time.monotonic() + timeout
        if self.max_norm is None and not self.vote:
            over = self._ask("step", request, timeout, steps=True)
            return StepResult(stepped=True, trainers=len(request.shares), uneven=any(over))
        request, norm = self._measure(request, ends)
        trainers = len(request.shares)
        if self.vote and not math.isfinite(norm):
            return StepResult(stepped=False, norm=norm, trainers=trainers)
        factor = 1.0 if self.max_norm is None else self.max_norm / (norm + 1e-6)
        if not factor >= 1:  # so that NaN counts as well, as in `clip_grad_norm_`
            request = dataclasses.replace(request, factor=factor)
        self._ask("step", request, left_until(ends), steps=True)
        return StepResult(stepped=True, norm=norm, trainers=trainers)

    def _measure(self, request: StepRequest, ends: float) -> tuple[StepRequest, float]:
        """Returns a request without contexts that are over at some owner, and its norm."""
        while True:
            found = self._ask("measure", request, left_until(ends), steps=False)
            over = {context_id for _, contexts in found for context_id in contexts}
            if not over:
                return request, math.hypot(*(norm for norm, _ in found))
            kept = [share for share in request.shares if share[0] not in over]
            more = len(request.shares) / max(len(kept), 1)
            shares = [(context_id, weight * more) for context_id, weight in kept]
            request = dataclasses.replace(request, shares=shares)

    def ask_all(
        self,
        method: str,
        arguments: Callable[[Owner], Sequence[Any]],
        timeout: float | None,
    ) -> list[Any]:
        """Calls a method of each owner's part, all at once, and waits for every answer.

        Args:
            method: The name of a method of `OwnerOptimizer`.
            arguments: Returns the arguments for an owner.
            timeout: Seconds for each call.

        Returns:
            The answers, in the order of the owners.

        Raises:
            Exception: The first error, in that order; notes name the others.
        """
        outcomes = self._outcomes(method, arguments, timeout)
        self._raise_first(outcomes, None)
        return [value for value, _, _ in outcomes]

    def _ask(self, method: str, request: StepRequest, timeout: float, *, steps: bool) -> list[Any]:
        def arguments(owner: Owner) -> Sequence[Any]:
            return (request.plain(owner.groups),)

        values = []
        for value, error, _ in (outcomes := self._outcomes(method, arguments, timeout)):
            if error is not None:
                self._raise_first(outcomes, self._failure(outcomes) if steps else StepFailure())
            values.append(value)
        return values

    def _outcomes(
        self,
        method: str,
        arguments: Callable[[Owner], Sequence[Any]],
        timeout: float | None,
    ) -> list[tuple[Any, Exception | None, bool]]:
        """Returns for each owner the value, the error, and True if the call was sent."""
        calls: list[Future[Any] | BaseException] = []
        agent = current_agent()
        for owner in self.members:
            lost = agent.members.lost(owner.worker)
            if lost is not None:  # the other owners step all the same
                calls.append(fresh_copy(lost))  # gets notes; the agent raises the original, too
                continue
            # A call on the reference itself. As an argument it would be counted, at the cost of a
            # message from its owner.
            part = owner.rref.rpc_async(timeout=timeout)
            try:
                calls.append(getattr(part, method)(*arguments(owner)))
            except Exception as error:
                calls.append(error)
        wait_each([call for call in calls if isinstance(call, Future)])
        return [_outcome(call) for call in calls]

    def _failure(self, outcomes: Sequence[tuple[Any, Exception | None, bool]]) -> StepFailure:
        stepped, failed, unknown = [], [], []
        for owner, (_, error, sent) in zip(self.members, outcomes, strict=True):
            if error is None:
                stepped.append(owner.worker.name)
            elif sent and isinstance(error, CallTimeoutError | WorkerLostError):
                unknown.append(owner.worker.name)
            else:
                failed.append(owner.worker.name)
        return StepFailure(tuple(stepped), tuple(failed), tuple(unknown))

    def _raise_first(
        self,
        outcomes: Sequence[tuple[Any, Exception | None, bool]],
        failure: StepFailure | None,
    ) -> None:
        names = [owner.worker.name for owner in self.members]
        failed = [
            (name, error)
            for name, (_, error, _) in zip(names, outcomes, strict=True)
            if error is not None
        ]
        if not failed:
            return
        name, first = failed[0]
        first.add_note(f"raised by the optimizer on worker {name!r}")
        for other, error in failed[1:]:
            first.add_note(f"worker {other!r} failed too: {type(error).__name__}: {error}")
        if failure is not None:
            first.add_note(f"of the owners {failure}")
            vars(first)[_ATTRIBUTE] = failure
        raise first


def left_until(ends: float) -> float:
    """Returns the seconds until `ends`, a time of `time.monotonic`; at least LEAST_SECONDS."""
    return max(ends - time.monotonic(), LEAST_SECONDS)


def _outcome(call: Any) -> tuple[Any, Exception | None, bool]:
    if not isinstance(call, Future):
        return None, call, False
    try:
        return call.value(), None, True
    except (BlockingCallError, WaitCycleError) as error:
        if remote_traceback(error) is None:
            raise  # raised by the wait for it, so it says nothing about the owner
        return None, error, True
    except Exception as error:
        return None, error, True
