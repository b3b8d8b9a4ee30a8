"""References to the parameters of a module, made where the module lives."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from telegrad.nn import Module, Parameter
from telegrad.rpc import RRef, expose, rpc_sync

__all__ = ["RemotePart", "make_parameter_rrefs", "parameter_rrefs"]


class RemotePart(Module):
    """A module, or a part of one, whose parameters live on another worker."""

    @abstractmethod
    def remote_parameters(self) -> list[RRef[Parameter]]:
        """Returns references to them, made there."""


def parameter_rrefs(module_or_rref: Module | RRef[Any]) -> list[RRef[Parameter]]:
    """Returns a reference to each parameter of a module, in the order of its `parameters()`.

    Those of its `RemoteModule` parts, wherever they live, come after its own.

    Args:
        module_or_rref: A module of this worker, or a reference to one of any worker; then the
            references are made by its owner, in one call.

    Raises:
        TypeError: It is neither, or the reference is to something else.
        WorkerLostError: The owner is lost.
    """
    if isinstance(module_or_rref, Module):
        return _of_module(module_or_rref)
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


def _of_module(module: Module) -> list[RRef[Parameter]]:
    parts = [each for each in module.modules() if isinstance(each, RemotePart)]
    own = [] if module in parts else [RRef(parameter) for parameter in module.parameters()]
    return own + [rref for part in parts for rref in part.remote_parameters()]
