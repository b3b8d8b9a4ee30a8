"""The forms in which a stage is given to a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from telegrad.nn import Module
from telegrad.parallel.pipeline.moving import MovedModule
from telegrad.parallel.pipeline.runner import StageSource
from telegrad.parallel.remote_module import RemoteModule
from telegrad.rpc import RRef
from telegrad.rpc.seams import current_agent
from telegrad.types import WorkerInfo

__all__ = ["Stage", "source_of"]

To: TypeAlias = str | int | WorkerInfo
Stage: TypeAlias = (
    tuple[To, Module]
    | tuple[To, Callable[..., Module]]
    | tuple[To, Callable[..., Module], Sequence[Any]]
    | RRef[Any]
    | RemoteModule
)
"""A stage: `(worker, module)`, `(worker, ModuleClass, args)`, an RRef of a module, a RemoteModule."""

FORMS = "(worker, module), (worker, ModuleClass, args), an RRef of a Module, or a RemoteModule"


def source_of(stage: int, given: object) -> tuple[WorkerInfo, StageSource]:
    """Returns the worker of a stage, and where its module comes from.

    Raises:
        TypeError: `given` is no form of a stage.
        UnknownWorkerError: There is no such worker.
    """
    if isinstance(given, RemoteModule):
        given = given.get_module_rref()
    if isinstance(given, RRef):
        return given.owner(), StageSource(rref=given)
    if isinstance(given, Module):
        raise TypeError(
            f"stage {stage} is a {type(given).__name__} and no worker is named; write (worker, module)"
        )
    if not isinstance(given, (tuple, list)) or len(given) not in (2, 3):
        raise TypeError(f"stage {stage} must be {FORMS}, not {given!r}")
    worker, module, *rest = given
    info = current_agent().members.find(worker)
    if isinstance(module, RemoteModule):
        raise TypeError(f"stage {stage} is a RemoteModule, which has its worker: pass it alone")
    if isinstance(module, Module) and not rest:
        return info, StageSource(moved=MovedModule.of(module))
    if not callable(module) or isinstance(module, Module):
        raise TypeError(f"stage {stage} must be {FORMS}, not {given!r}")
    args = rest[0] if rest else ()
    if not isinstance(args, (tuple, list)):
        raise TypeError(f"the arguments of stage {stage} must be a tuple, not {args!r}")
    return info, StageSource(module_class=module, args=list(args))
