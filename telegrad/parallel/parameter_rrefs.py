"""References to the parameters of a module, made where the module lives."""

from __future__ import annotations

from typing import Any

from telegrad.nn import Module, Parameter
from telegrad.rpc import RRef, expose, rpc_sync

__all__ = ["parameter_rrefs"]


def parameter_rrefs(module_or_rref: Module | RRef[Any]) -> list[RRef[Parameter]]:
    """Returns a reference to each parameter of a module, in the order of its `parameters()`.

    Args:
        module_or_rref: A module of this worker, or a reference to one of any worker; then the
            references are made by its owner, in one call.

    Raises:
        TypeError: It is neither, or the reference is to something else.
        WorkerLostError: The owner is lost.
    """
    if isinstance(module_or_rref, Module):
        return [RRef(parameter) for parameter in module_or_rref.parameters()]
    if not isinstance(module_or_rref, RRef):
        raise TypeError(
            f"parameter_rrefs takes a Module or an RRef of one, not {module_or_rref!r} "
            f"({type(module_or_rref).__name__})"
        )
    if module_or_rref.is_owner():
        return make_parameter_rrefs(module_or_rref)
    return rpc_sync(module_or_rref.owner(), make_parameter_rrefs, (module_or_rref,))


@expose
def make_parameter_rrefs(module_rref: RRef[Any]) -> list[RRef[Parameter]]:
    """Runs at the owner of a module; see `parameter_rrefs`."""
    module = module_rref.local_value()
    if not isinstance(module, Module):
        raise TypeError(
            f"the reference is to {type(module).__name__}, not to a Module: it has no parameters"
        )
    return parameter_rrefs(module)
