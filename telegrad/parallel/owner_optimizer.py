"""The part of a distributed optimizer that lives with the parameters of one worker.

Nothing is locked but each parameter, while it is replaced (`Optimizer.apply`): steps of several
trainers go on at once, and two that meet at one parameter do so one after the other.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from telegrad.arrays import namespace
from telegrad.autograd import Gradient, Tensor, is_row_sparse
from telegrad.dist_autograd import Container
from telegrad.errors import ContextError
from telegrad.optim import Optimizer
from telegrad.rpc import RRef, current_agent, expose
from telegrad.types import Shape

__all__ = [
    "GroupPart",
    "OwnerFacts",
    "OwnerOptimizer",
    "StepRequest",
]

Options = dict[int, dict[str, Any]]
"""Options by the number of their group."""

HALF = 1 << 63  # context ids have more bits than an integer of MessagePack
TINY_SQUARE = 1e-30  # below it a sum of squares in float32 has lost digits


@final
@dataclass(frozen=True, slots=True)
class GroupPart:
    """What one worker owns of one parameter group.

    Attributes:
        group: The number of the group.
        numbers: Those of the parameters, counted over all groups.
        rrefs: References to the parameters.
        options: Those that the group was given.
    """

    group: int
    numbers: list[int] = field(default_factory=list)
    rrefs: list[RRef[Any]] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)


@final
@dataclass(frozen=True, slots=True)
class OwnerFacts:
    """What the maker of a distributed optimizer wants to know of an owner's part.

    Attributes:
        defaults: The options that groups have where they say nothing.
        options: All options of each group.
        shapes: Those of the parameters, by number.
    """

    defaults: dict[str, Any]
    options: Options
    shapes: dict[int, Shape]


@final
@dataclass(frozen=True, slots=True)
class StepRequest:
    """What an owner steps by.

    Attributes:
        shares: Context ids, each with what its gradients are multiplied with; they are added up.
        options: Those of this step, by group; groups that are not named are left alone.
        ticket: Of a round of several trainers: names it, between `measure` and `step`. A context
            that is not here adds nothing to a round, and is told of if it is over. 0 for one
            trainer, who must have its context.
        factor: What the sum is multiplied with.
    """

    shares: list[tuple[int, float]]
    options: Options
    ticket: int = 0
    factor: float = 1.0

    def plain(self, groups: Sequence[int]) -> list[Any]:
        """Returns it with the options of some groups, as a list that is quickly encoded."""
        options = [each for i in groups if i in self.options for each in (i, self.options[i])]
        shares = [each for (n, weight) in self.shares for each in (*divmod(n, HALF), weight)]
        return [self.ticket, self.factor, shares, options]

    @staticmethod
    def of(plain: StepRequest | list[Any]) -> StepRequest:
        """Returns what `plain` made a list of; as it is, what is none."""
        if isinstance(plain, StepRequest):
            return plain
        ticket, factor, shares, options = plain
        contexts = [high * HALF + low for high, low in zip(shares[::3], shares[1::3], strict=True)]
        pairs = list(zip(contexts, shares[2::3], strict=True))
        return StepRequest(
            pairs, dict(zip(options[::2], options[1::2], strict=True)), ticket, factor
        )


@expose
@final
class OwnerOptimizer:
    """An optimizer of the parameters that one worker owns; lives there, and is called from others.

    Args:
        optimizer_class: Makes the optimizer.
        parts: References to parameters of this worker, by group.
        grouped: Whether the optimizer gets groups; else the parameters of the one part.
        args: For the optimizer, after the parameters.
        kwargs: For the optimizer.
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
        self._lock = threading.Lock()  # guards the options, and what is held
        self._held: tuple[int, dict[Tensor, Gradient]] = (0, {})

    def add_group(self, part: GroupPart) -> OwnerFacts:
        """Takes on further parameters; returns what is known then."""
        self._optimizer.add_param_group(_group(part))
        self._groups[part.group] = self._optimizer.param_groups[-1]
        self._numbers += part.numbers
        return self.facts()

    def facts(self) -> OwnerFacts:
        """Returns what is known once it is made."""
        defaults = dict(self._optimizer.defaults)
        params = zip(self._numbers, self._optimizer.params, strict=True)
        return OwnerFacts(
            defaults,
            {i: {name: group[name] for name in defaults} for i, group in self._groups.items()},
            {number: parameter.shape for number, parameter in params},
        )

    def measure(self, request: StepRequest | list[Any]) -> tuple[float, list[int]]:
        """Returns the norm of the gradients, and which contexts of a round are over.

        The norm is not finite where a gradient is not. Those of a round are held for the step, so
        that it is made with what was measured even if a trainer is lost in between, and until the
        next round.
        """
        request = StepRequest.of(request)
        gradients, over = self._gradients(request)
        if request.ticket:
            with self._lock:
                self._held = (request.ticket, gradients)
        return math.hypot(*(_norm(gradient) for gradient in gradients.values())), over

    def step(self, request: StepRequest | list[Any]) -> list[int]:
        """Steps the parameters that have a gradient; returns which contexts of a round are over."""
        request = StepRequest.of(request)
        with self._lock:
            held, self._held = self._held, (0, {})
        measured = bool(request.ticket) and held[0] == request.ticket
        gradients, over = (held[1], []) if measured else self._gradients(request)
        if request.factor != 1.0:
            gradients = {p: _scaled(each, request.factor) for p, each in gradients.items()}
        self._set(request.options)
        self._optimizer.apply(gradients)
        return over

    def check_options(self, options: Options) -> None:
        """Raises what the optimizer raises of options that it does not allow."""
        for i, group in self._groups.items():
            self._optimizer.check({**group, **options.get(i, {})})

    def state(self) -> dict[int, dict[str, Any]]:
        """Returns what is remembered of each parameter, by number."""
        state = self._optimizer.state_dict()["state"]
        return {self._numbers[i]: each for i, each in state.items()}

    def load(self, state: Mapping[int, Mapping[str, Any]], options: Options) -> None:
        """Remembers that instead, between two steps of each parameter."""
        first, groups = 0, []
        for i, group in self._groups.items():
            numbers = range(first, first + len(group["params"]))
            groups.append({**group, **options.get(i, {}), "params": list(numbers)})
            first = numbers.stop
        own = {i: state[number] for i, number in enumerate(self._numbers) if number in state}
        with ExitStack() as locks:
            for parameter in sorted(self._optimizer.params, key=id):  # one order for all who do so
                locks.enter_context(parameter.steady())
            self._optimizer.load_state_dict({"state": own, "param_groups": groups})

    def _gradients(self, request: StepRequest) -> tuple[dict[Tensor, Gradient], list[int]]:
        """Returns the sum of the shares, of the groups that are named; and the contexts over."""
        container = current_agent().attached(Container)
        own = {p for i in request.options for p in self._groups[i]["params"]}
        total: dict[Tensor, Any] = {}
        over = []
        for context_id, weight in request.shares:
            try:
                found = container.gradients(context_id)
            except ContextError:
                if not request.ticket:
                    raise
                if container.is_over(context_id):  # else no call of this trainer has led here
                    over.append(context_id)
                continue
            for parameter, gradient in found.items():
                if parameter in own:
                    share = _scaled(_plain(gradient), weight)
                    known = parameter in total
                    total[parameter] = total[parameter] + share if known else share
        return total, over

    def _set(self, options: Options) -> None:
        with self._lock:
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


def _plain(gradient: Any) -> Any:
    """Returns the array, or RowSparse, of a gradient that may have been recorded."""
    return gradient.data if isinstance(gradient, Tensor) else gradient


def _scaled(gradient: Any, factor: float) -> Any:
    if factor == 1.0:
        return gradient
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite stays so
        return gradient * factor


def _norm(gradient: Any) -> float:
    """Returns the 2-norm; no sum of squares overflows where the norm would not."""
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
