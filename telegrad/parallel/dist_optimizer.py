"""`DistributedOptimizer`: steps each parameter where it lives, with the gradients of a context.

trainer                          owner of some of the parameters
DistributedOptimizer ──remote──▶ OwnerOptimizer(optimizer_class, params)     once
step(context_id) ──────────────▶ optimizer.apply(the context's gradients)    all owners at once
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any, final

from telegrad.autograd import Tensor
from telegrad.dist_autograd import Container
from telegrad.optim import Optimizer
from telegrad.rpc import Future, RRef, collect_all, current_agent, expose, remote, rpc_async
from telegrad.types import WorkerInfo

__all__ = ["DistributedOptimizer"]


@expose
@final
class OwnerOptimizer:
    """An optimizer of the parameters that one worker owns; lives there.

    Args:
        optimizer_class: Makes the optimizer.
        params: References to parameters of this worker.
        args: For the optimizer, after the parameters.
        kwargs: For the optimizer.
    """

    def __init__(
        self,
        optimizer_class: type[Optimizer],
        params: Sequence[RRef[Any]],
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> None:
        self._lock = threading.Lock()
        self._optimizer = optimizer_class([_parameter(rref) for rref in params], *args, **kwargs)

    def step(self, context_id: int) -> None:
        """Steps the parameters that have a gradient in the context."""
        gradients = current_agent().attached(Container).gradients(context_id)
        with self._lock:  # an optimizer's own state, whatever its class; arrays have their locks
            self._optimizer.apply(gradients)


@expose
def step_owner_optimizer(optimizer: RRef[OwnerOptimizer], context_id: int) -> None:
    """Runs at the owner of some of the parameters; see `DistributedOptimizer.step`."""
    optimizer.local_value().step(context_id)


@final
class DistributedOptimizer:
    """One optimizer for parameters of any workers; each is stepped by its owner.

    A step replaces arrays and never writes into them. So trainers may step shared parameters at
    any time: a graph that another one has recorded keeps the values that its forward saw, and no
    update is lost.

    Args:
        optimizer_class: A subclass of `telegrad.optim.Optimizer` that the owners find by name.
        params_rref: References to parameters: see `parameter_rrefs`.
        args: For the optimizer, after the parameters; the same at each owner.
        kwargs: For the optimizer.

    Raises:
        TypeError: `optimizer_class` is no Optimizer class, or an item no RRef of a parameter.
        ValueError: There are no parameters, or what the optimizer class refuses.
        WorkerLostError: An owner is lost.
    """

    def __init__(
        self,
        optimizer_class: type[Optimizer],
        params_rref: Iterable[RRef[Any]],
        *args: Any,
        **kwargs: Any,
    ) -> None:
        given: object = optimizer_class
        if not (isinstance(given, type) and issubclass(given, Optimizer)):
            raise TypeError(
                f"optimizer_class must be a subclass of telegrad.optim.Optimizer, not "
                f"{optimizer_class!r}"
            )
        groups = _by_owner(params_rref)
        self._optimizers: list[tuple[WorkerInfo, RRef[OwnerOptimizer]]] = [
            (owner, remote(owner, OwnerOptimizer, (optimizer_class, rrefs, list(args), kwargs)))
            for owner, rrefs in groups.items()
        ]
        # Its first use tells whether each could be made.
        _wait_for_all(
            [rpc_async(owner, check_owner_optimizer, (rref,)) for owner, rref in self._optimizers],
            [owner for owner, _ in self._optimizers],
        )

    def step(self, context_id: int, timeout: float | None = None) -> None:
        """Steps all parameters that have a gradient in the context, at all owners at once.

        A parameter that no gradient of the context reached is left alone. Returns when every
        owner has answered; the others have stepped even when one has failed.

        Args:
            context_id: What `with dist_autograd.context() as context_id` gave; call this inside.
            timeout: Seconds above 0; None for `RpcOptions.timeout`.

        Raises:
            ContextError: The context was released.
            WorkerLostError: An owner is lost.
            CallTimeoutError: An owner did not answer in time.
            Exception: The first error of an owner, in the order of their first parameters; notes
                tell of the others.
        """
        _wait_for_all(
            [
                rpc_async(owner, step_owner_optimizer, (rref, context_id), timeout=timeout)
                for owner, rref in self._optimizers
            ],
            [owner for owner, _ in self._optimizers],
        )


@expose
def check_owner_optimizer(optimizer: RRef[OwnerOptimizer]) -> None:
    """Raises at the owner what making the optimizer raised."""
    optimizer.local_value()


def _by_owner(params_rref: object) -> dict[WorkerInfo, list[RRef[Any]]]:
    if isinstance(params_rref, RRef) or not isinstance(params_rref, Iterable):
        raise TypeError(
            f"params_rref must be a list of RRefs, not {type(params_rref).__name__}; write [rref], "
            "or parameter_rrefs(module)"
        )
    groups: dict[WorkerInfo, list[RRef[Any]]] = {}
    for i, rref in enumerate(params_rref):
        if not isinstance(rref, RRef):
            raise TypeError(
                f"params_rref[{i}] must be an RRef of a parameter, not {type(rref).__name__}; "
                "write parameter_rrefs(module)"
            )
        groups.setdefault(rref.owner(), []).append(rref)
    if not groups:
        raise ValueError("a distributed optimizer needs at least one parameter")
    return groups


def _parameter(rref: RRef[Any]) -> Tensor:
    value = rref.local_value()
    if not isinstance(value, Tensor):
        raise TypeError(f"{rref!r} is of {type(value).__name__}, not of a parameter")
    return value


def _wait_for_all(futures: Sequence[Future[None]], owners: Sequence[WorkerInfo]) -> None:
    """Waits for every owner and raises the first error, with notes of the others."""
    collect_all(futures).wait()
    errors = [(owner, future.exception()) for owner, future in zip(owners, futures, strict=True)]
    failed = [(owner, error) for owner, error in errors if error is not None]
    if not failed:
        return
    owner, first = failed[0]
    first.add_note(f"raised by the optimizer on worker {owner.name!r}")
    for other, error in failed[1:]:
        first.add_note(f"worker {other.name!r} failed too: {type(error).__name__}: {error}")
    raise first
