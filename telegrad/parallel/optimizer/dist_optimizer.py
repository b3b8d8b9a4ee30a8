"""`DistributedOptimizer`: steps each parameter at its owner, with the gradients of a context.

trainer                          owner of some of the parameters
DistributedOptimizer ──remote──▶ OwnerOptimizer(optimizer_class, params)     once
step(context_id) ──────────────▶ optimizer.apply(the context's gradients)    all owners at once
"""

from __future__ import annotations

import reprlib
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from typing import Any, final

from telegrad.autograd import Tensor
from telegrad.dist_autograd.seams import Container
from telegrad.errors import CallTimeoutError, WorkerLostError
from telegrad.optim import LossScale, Optimizer
from telegrad.optim.seams import check_saved_state, saved_parts
from telegrad.parallel.optimizer.conductor import ANSWER_SECONDS, Conductor
from telegrad.parallel.optimizer.owners import (
    GroupPart,
    Owner,
    OwnerFacts,
    OwnerOptimizer,
    Owners,
    StepRequest,
    StepResult,
    left_until,
    step_failure,
)
from telegrad.rpc import RRef, register_type, remote
from telegrad.rpc.seams import current_agent, refuse_to_block, seconds, wait_or_cancel
from telegrad.types import Shape, WorkerInfo

# -- the parameters that a distributed optimizer gets: references, or groups of them -------------


def rref_groups(params_rref: object) -> tuple[list[dict[str, Any]], bool]:
    """Returns groups with lists of RRefs as their `params`, and True if groups were given.

    Raises:
        TypeError: An item is no RRef.
        ValueError: There are no parameters, or a group has none.
    """
    if isinstance(params_rref, RRef | Mapping) or not isinstance(params_rref, Iterable):
        raise TypeError(
            f"params_rref must be a list of RRefs, not {type(params_rref).__name__}; write [rref], "
            "or parameter_rrefs(module)"
        )
    given = list(params_rref)
    grouped = bool(given) and isinstance(given[0], Mapping)
    if not grouped:
        return [{"params": _rrefs(given, "params_rref")}], False
    groups = []
    for i, group in enumerate(given):
        if not isinstance(group, Mapping) or "params" not in group:
            raise TypeError(f"params_rref[{i}] must be a dict with 'params', not {group!r}")
        params = group["params"]
        rrefs = [params] if isinstance(params, RRef) else list(params)
        groups.append({**group, "params": _rrefs(rrefs, f"params_rref[{i}]['params']")})
    return groups, True


def parts_by_owner(
    groups: Iterable[Mapping[str, Any]], first_group: int, first_number: int
) -> dict[WorkerInfo, list[GroupPart]]:
    """Returns the parts of the groups that each worker owns, in order of their first parameters.

    Args:
        groups: The groups; see `rref_groups`.
        first_group: The number of the first group.
        first_number: The number of the first parameter.
    """
    parts: dict[WorkerInfo, dict[int, GroupPart]] = {}
    number = first_number
    for i, group in enumerate(groups, start=first_group):
        options = {name: x for name, x in group.items() if name != "params"}
        for rref in group["params"]:
            of_owner = parts.setdefault(rref.owner(), {})
            part = of_owner.setdefault(i, GroupPart(i, options=options))
            part.numbers.append(number)
            part.rrefs.append(rref)
            number += 1
    return {worker: list(of_owner.values()) for worker, of_owner in parts.items()}


def _rrefs(params: list[Any], name: str) -> list[RRef[Any]]:
    for i, rref in enumerate(params):
        if not isinstance(rref, RRef):
            raise TypeError(
                f"{name}[{i}] must be an RRef of a parameter, not {type(rref).__name__}; "
                "write parameter_rrefs(module)"
            )
    if not params:
        raise ValueError("a distributed optimizer needs at least one parameter, as does each group")
    return params


# -- the optimizer -------------------------------------------------------------------------------


# What a copy on another worker has; it counts its own steps.
_TRAVELS = (
    "_conductor", "_made_of", "_numbers", "_owners", "_shapes", "_staleness", "defaults",
    "loss_scale", "param_groups",
)  # fmt: skip


@final
class DistributedOptimizer:
    """One optimizer for parameters of any workers; each parameter is stepped by its owner.

    A step replaces arrays and never writes into them. So trainers may step shared parameters at any
    time: a graph that another trainer has recorded keeps the values that its forward saw, and no
    update is lost.

    It may be sent to other workers: a worker that gets it as an argument steps the same owners'
    optimizers. From then on that worker has its own options and its own loss scale.

        trainers=None                   asynchronous: each trainer steps when it likes (Hogwild)
        trainers=workers                synchronous: a step waits for all trainers, and is one step
                                        with the mean of their gradients
        trainers=workers, staleness=s   bounded: each trainer steps when it likes, and then waits
                                        while it is more than s steps ahead of the slowest

    Args:
        optimizer_class: A subclass of `telegrad.optim.Optimizer` that the owners find by name.
        params_rref: References to parameters, see `parameter_rrefs`; or groups of them: dicts with
            `params` and the options that differ.
        args: Arguments for the optimizer, after the parameters; the same at each owner.
        trainers: Names, ranks or WorkerInfos of the workers that step it; one training loop each.
            They wait for each other on the worker that makes it.
        staleness: The steps that a trainer may be ahead, as drawn above; not negative.
        max_norm: The norm to which the whole gradient, over all owners, is clipped. A step then
            takes two calls to each owner.
        loss_scale: The factor for losses, see `scale_loss`. No owner steps if a gradient of any
            owner is not finite. A step then takes two calls to each owner.
        kwargs: Keyword arguments for the optimizer.

    Raises:
        TypeError: `optimizer_class` is no Optimizer class, or an item no RRef of a parameter.
        ValueError: There are no parameters, or the optimizer class refuses an argument.
        WorkerLostError: An owner is lost.

    Attributes:
        param_groups: Dicts with the options of each group; `params` are the parameters' numbers. A
            step uses the present options; schedulers of `telegrad.optim` set them. The groups
            themselves change by `add_param_group` alone.
        defaults: The options of groups that state none.
        loss_scale: The argument of that name.

    Example:
        >>> from telegrad import dist_autograd, optim, parallel, rpc
        >>> from telegrad.nn import Parameter
        >>> with rpc.init_rpc("a"):
        ...     weight = rpc.RRef(Parameter([3.0]))
        ...     optimizer = parallel.DistributedOptimizer(optim.SGD, [weight], lr=0.5)
        ...     with dist_autograd.context() as context_id:
        ...         loss = weight.to_here() * 2.0
        ...         dist_autograd.backward(context_id, [loss.sum()])
        ...         result = optimizer.step(context_id)
        ...     weight.to_here().item()
        2.0
    """

    def __init__(
        self,
        optimizer_class: type[Optimizer],
        params_rref: Iterable[RRef[Any] | Mapping[str, Any]],
        *args: Any,
        trainers: Sequence[str | int | WorkerInfo] | None = None,
        staleness: int | None = None,
        max_norm: float | None = None,
        loss_scale: LossScale | None = None,
        **kwargs: Any,
    ) -> None:
        given: object = optimizer_class
        if not (isinstance(given, type) and issubclass(given, Optimizer)):
            raise TypeError(
                f"optimizer_class must be a subclass of telegrad.optim.Optimizer, not "
                f"{optimizer_class!r}"
            )
        groups, grouped = rref_groups(params_rref)
        found = _checked(trainers, staleness, max_norm)
        self._made_of = (optimizer_class, list(args), kwargs)
        members = [
            self._owner(worker, parts, grouped=grouped)
            for worker, parts in parts_by_owner(groups, 0, 0).items()
        ]
        self._owners = Owners(members, max_norm, vote=loss_scale is not None)
        # Its first use tells if each could be made.
        facts = self._owners.ask_all("facts", lambda _: (), None)
        self.loss_scale = loss_scale
        self._shapes: dict[int, Shape] = {}
        self._numbers: list[list[int]] = []  # of each group's parameters
        self.defaults: dict[str, Any] = facts[0].defaults
        self.param_groups: list[dict[str, Any]] = []
        self._take_groups([len(group["params"]) for group in groups], facts)
        self._staleness = staleness
        self._steps, self._may_be_ahead = 0, staleness is not None
        self._conductor: RRef[Conductor] | None = None
        if found is not None:
            self._conductor = RRef(Conductor(self._owners, found, staleness))

    @property
    def mode(self) -> str:
        """`asynchronous`, `synchronous` or `bounded`."""
        if self._conductor is None:
            return "asynchronous"
        return "synchronous" if self._staleness is None else "bounded"

    def step(self, context_id: int, timeout: float | None = None) -> StepResult:
        """Steps all parameters that have a gradient in the context, at all owners at once.

        A parameter without a gradient in the context is left alone; in a round, one for which no
        trainer has a gradient. Returns when every owner has answered. If an owner has failed, the
        others have stepped all the same: `step_failure(error)` names them. In bounded mode, if the
        wait for other trainers fails, the step itself has been made, and the next step waits again.

        Args:
            context_id: The id from `with dist_autograd.context() as context_id`; call this inside.
            timeout: Seconds above 0; None for `RpcOptions.timeout`.

        Returns:
            The result: `stepped` is True if the owners stepped; `norm` is the norm if it was
            needed.

        Raises:
            ContextError: The context was released.
            ValueError: This worker is none of the trainers, or `param_groups` has other groups or
                parameters than the owners.
            InvalidUseError: A module at its owner has a trained parameter that no step would reach,
                since it was unfrozen, replaced or added after `parameter_rrefs`; or it has lost
                one. That owner stepped nothing; with `max_norm` or a loss scale none did.
            WorkerLostError: An owner is lost, or the worker at which the trainers wait.
            CallTimeoutError: An owner, or another trainer, did not come in time.
            BlockingCallError: On an event loop that telegrad runs.
            Exception: The first error of an owner, in order of their first parameters; notes name
                the errors of the others, and the owners that stepped.
        """
        agent = current_agent()
        ends = time.monotonic() + seconds(timeout, agent.options.timeout)
        refuse_to_block(
            "step()",
            "in an async def function write `await rpc.to_thread(optimizer.step, context_id)`",
        )
        weight = 1.0 if self.loss_scale is None else 1.0 / float(self.loss_scale.value)
        if self._conductor is not None and self._staleness is None:
            agent.attachments[Container].find(context_id)  # raises here: owners would skip it
            result = self._enter_round(self._conductor, context_id, weight, left_until(ends))
        else:
            if self._may_be_ahead:  # at the first step, or after a failed wait
                self._wait_for_slowest(left_until(ends))
            request = StepRequest([(context_id, weight)], self._options())
            result = self._owners.step(request, left_until(ends))
            self._steps += 1
        if self.loss_scale is not None:
            self.loss_scale.update(overflow=not result.stepped)
        if self.mode == "bounded":
            self._wait_for_slowest(left_until(ends))
        return result

    def _part_at(self, worker: WorkerInfo) -> list[RRef[OwnerOptimizer]]:
        """Returns the part of one owner; nothing for a worker that owns nothing."""
        return [owner.rref for owner in self._owners.members if owner.worker == worker]

    def scale_loss(self, loss: Tensor) -> Tensor:
        """Returns the loss to call `backward` on: multiplied by `loss_scale`, if there is one.

        A step divides gradients by the same factor. So with a loss scale, each copy of an optimizer
        must belong to a single training loop.
        """
        return loss if self.loss_scale is None else self.loss_scale.scale(loss)

    def join(self) -> None:
        """Makes this worker a trainer, from the next round or at the slowest trainer's count.

        For a worker that came late, or that replaces a lost one.
        """
        if self._conductor is not None:
            self._steps = self._conductor.rpc_sync().join()

    def leave(self) -> None:
        """Removes this worker from the trainers: nobody waits for it any more.

        A trainer calls it after its last step, best in a `finally`: it also works in a call that
        was cancelled. A lost trainer is removed without it. It does nothing if there are no
        trainers (asynchronous), or if the worker at which they wait is lost.
        """
        conductor = self._conductor
        if conductor is None:
            return
        outside = current_agent().pool.new_context()  # outside the call being served, if any
        with suppress(WorkerLostError):
            outside.run(lambda: conductor.rpc_sync().leave())

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        """Adds parameters with options of their own; call it while no trainer steps.

        Copies of this optimizer that were sent to other workers before do not step them.

        Args:
            group: `params`, references to parameters of any workers, and the options that differ.

        Raises:
            TypeError: A parameter is no RRef of one.
            ValueError: Trainers wait for each other: give all groups at construction instead. Or
                the optimizer class refuses the group; then make a new optimizer, since some owners
                may have added the group already.
        """
        if self._conductor is not None:
            raise ValueError(
                f"a {self.mode} optimizer has the groups that it was made with; pass them all as "
                "params_rref"
            )
        if not isinstance(group, Mapping):
            raise TypeError(f"add_param_group takes a dict with 'params', not {group!r}")
        self._check_groups()
        groups, _ = rref_groups([group])
        known = {owner.worker: owner for owner in self._owners.members}
        found = parts_by_owner(groups, len(self.param_groups), len(self._shapes))
        facts = []
        for worker, parts in found.items():
            if worker in known:
                old = known[worker]
                facts.append(old.rref.rpc_sync().add_group(parts[0]))
                known[worker] = Owner(worker, old.rref, [*old.groups, parts[0].group])
            else:
                known[worker] = self._owner(worker, parts, grouped=True)
                facts.append(known[worker].rref.rpc_sync().facts())
        self._owners.members = list(known.values())
        self._take_groups([len(groups[0]["params"])], facts)

    def state_dict(self) -> dict[str, Any]:
        """Returns copies of the state at all owners, in the layout of `optim.Optimizer`.

        Parameters are identified by number, in the order given, whatever their owner. So the state
        can be loaded with another number of owners, and by an optimizer of one process. Call it
        between steps if all of it must be of the same moment.

        Returns:
            `state`, `param_groups`, and `loss_scale` if there is one.
        """
        self._check_groups()
        states = self._owners.ask_all("state", lambda _: (), None)
        found: dict[str, Any] = {
            "state": dict(sorted((i, each) for state in states for i, each in state.items())),
            "param_groups": [{**g, "params": list(g["params"])} for g in self.param_groups],
        }
        if self.loss_scale is not None:
            found["loss_scale"] = self.loss_scale.state_dict()
        return found

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores a state that `state_dict()` returned, of this class or of an `optim.Optimizer`.

        The state must be for the same parameters in the same groups and order, with any owners. All
        owners check it before anything changes. Other copies of this optimizer keep their options.

        Raises:
            TypeError: The state is no mapping.
            ValueError: Groups, options or shapes differ, or the state is of something else; the
                message lists all differences.
        """
        self._check_groups()
        groups, states = saved_parts("the optimizer", state_dict)
        known = (self.param_groups, self.defaults, self._shapes)
        check_saved_state("the optimizer", *known, groups, states)
        names = list(self.defaults)
        options = {i: {name: each[name] for name in names} for i, each in enumerate(groups)}
        self._owners.ask_all("check_options", lambda owner: (_of(options, owner),), None)
        if self.loss_scale is not None and "loss_scale" in state_dict:
            self.loss_scale.load_state_dict(state_dict["loss_scale"])

        def part(owner: Owner) -> tuple[Any, ...]:
            numbers = {n for i in owner.groups for n in self.param_groups[i]["params"]}
            return {n: dict(x) for n, x in states.items() if n in numbers}, _of(options, owner)

        self._owners.ask_all("load", part, None)
        for own, theirs in zip(self.param_groups, groups, strict=True):
            own.update({name: x for name, x in theirs.items() if name != "params"})

    def __repr__(self) -> str:
        owners = ", ".join(owner.worker.name for owner in self._owners.members)
        return (
            f"<DistributedOptimizer of {self._made_of[0].__name__} ({self.mode}): "
            f"{len(self._shapes)} parameters of {owners}>"
        )

    def _enter_round(
        self, conductor: RRef[Conductor], context_id: int, weight: float, limit: float
    ) -> StepResult:
        trainers = conductor.rpc_async(timeout=limit + ANSWER_SECONDS)
        try:
            entered = trainers.enter(context_id, weight, self._options(), limit)
            result: StepResult = wait_or_cancel(entered)
        except CallTimeoutError as error:
            if step_failure(error) is None:
                error.add_note(
                    "a round waits for a step of every trainer; one that makes no further steps "
                    "says so by optimizer.leave()"
                )
            raise
        return result

    def _wait_for_slowest(self, limit: float) -> None:
        assert self._conductor is not None
        self._may_be_ahead = True
        try:
            trainers = self._conductor.rpc_async(timeout=limit + ANSWER_SECONDS)
            wait_or_cancel(trainers.wait(self._steps, limit))
        except CallTimeoutError as error:
            error.add_note(
                f"step {self._steps} of this worker was made; then it waited, more than "
                f"{self._staleness} steps ahead of the slowest trainer"
            )
            raise
        self._may_be_ahead = False

    def _options(self) -> dict[int, dict[str, Any]]:
        self._check_groups()
        names = list(self.defaults)
        return {i: {k: group[k] for k in names} for i, group in enumerate(self.param_groups)}

    def _check_groups(self) -> None:
        """Refuses groups that were added, removed or edited here, of which no owner has heard."""
        found = [group.get("params") for group in self.param_groups]
        for i, (here, there) in enumerate(zip_longest(found, self._numbers)):
            if here != there:
                raise ValueError(
                    f"param_groups[{i}] of this DistributedOptimizer has the parameters "
                    f"{reprlib.repr(here)}, and {reprlib.repr(there)} at their owners; edit "
                    "options alone, and write add_param_group(...) for further parameters"
                )

    def _owner(self, worker: WorkerInfo, parts: list[GroupPart], *, grouped: bool) -> Owner:
        optimizer_class, args, kwargs = self._made_of
        arguments = (optimizer_class, parts, grouped, args, kwargs)
        groups = [part.group for part in parts]
        return Owner(worker, remote(worker, OwnerOptimizer, arguments), groups)

    def _take_groups(self, sizes: Sequence[int], facts: Sequence[OwnerFacts]) -> None:
        """Adds groups of these sizes, with the options that their owners report."""
        options = {i: each for fact in facts for i, each in fact.options.items()}
        for size in sizes:
            first = sum(len(group["params"]) for group in self.param_groups)
            numbers = list(range(first, first + size))
            self.param_groups.append({"params": numbers, **options[len(self.param_groups)]})
            self._numbers.append(list(numbers))
        for fact in facts:
            self._shapes.update(fact.shapes)

    def _encode(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _TRAVELS}

    @staticmethod
    def _decode(plain: dict[str, Any]) -> DistributedOptimizer:
        optimizer = object.__new__(DistributedOptimizer)
        for name in _TRAVELS:
            setattr(optimizer, name, plain[name])
        optimizer._steps, optimizer._may_be_ahead = 0, optimizer._staleness is not None
        return optimizer


register_type(
    DistributedOptimizer, encode=DistributedOptimizer._encode, decode=DistributedOptimizer._decode
)


def _of(options: dict[int, dict[str, Any]], owner: Owner) -> dict[int, dict[str, Any]]:
    return {i: options[i] for i in owner.groups}


def _checked(
    trainers: Sequence[str | int | WorkerInfo] | None,
    staleness: int | None,
    max_norm: float | None,
) -> list[WorkerInfo] | None:
    """Returns the trainers, after all arguments have been checked."""
    if max_norm is not None and not max_norm >= 0:
        raise ValueError(f"max_norm must not be negative (got {max_norm})")
    if staleness is not None and (trainers is None or isinstance(staleness, bool) or staleness < 0):
        raise ValueError(
            f"staleness={staleness!r} needs trainers=[...] and must be a number of steps, from 0"
        )
    if trainers is None:
        return None
    if isinstance(trainers, str):
        raise TypeError(f"trainers is one name, not several; write [{trainers!r}]")
    found = [current_agent().members.find(each) for each in trainers]
    if not found or len(set(found)) != len(found):
        raise ValueError(f"trainers must be at least one worker, each once: {list(trainers)!r}")
    return found
