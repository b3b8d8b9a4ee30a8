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

__all__ = ["Stage", "To", "source_of", "tied_parameters"]

To: TypeAlias = str | int | WorkerInfo | Sequence[str | int | WorkerInfo]
Stage: TypeAlias = (
    tuple[To, Module]
    | tuple[To, Callable[..., Module]]
    | tuple[To, Callable[..., Module], Sequence[Any]]
    | RRef[Any]
    | RemoteModule
)
"""A stage: `(worker, module)`, `(worker, ModuleClass, args)`, an RRef of a module, a RemoteModule.

In place of a worker there may be a list of workers, which share the micro-batches of the stage.
"""

FORMS = "(worker, module), (worker, ModuleClass, args), an RRef of a Module, or a RemoteModule"


def source_of(stage: int, given: object) -> tuple[tuple[WorkerInfo, ...], StageSource]:
    """Returns the workers of a stage, and where its module comes from.

    Raises:
        TypeError: `given` is no form of a stage.
        ValueError: The list of workers is empty, or names one twice.
        UnknownWorkerError: There is no such worker.
    """
    if isinstance(given, RemoteModule):
        given = given.get_module_rref()
    if isinstance(given, RRef):
        return (given.owner(),), StageSource(rref=given)
    if isinstance(given, Module):
        raise TypeError(
            f"stage {stage} is a {type(given).__name__} and no worker is named; write (worker, module)"
        )
    if not isinstance(given, (tuple, list)) or len(given) not in (2, 3):
        raise TypeError(f"stage {stage} must be {FORMS}, not {given!r}")
    to, module, *rest = given
    workers = _workers(stage, to)
    if isinstance(module, RemoteModule):
        raise TypeError(f"stage {stage} is a RemoteModule, which has its worker: pass it alone")
    if isinstance(module, Module) and not rest:
        return workers, StageSource(moved=MovedModule.of(module))
    if not callable(module) or isinstance(module, Module):
        raise TypeError(f"stage {stage} must be {FORMS}, not {given!r}")
    args = rest[0] if rest else ()
    if not isinstance(args, (tuple, list)):
        raise TypeError(f"the arguments of stage {stage} must be a tuple, not {args!r}")
    return workers, StageSource(module_class=module, args=list(args))


def tied_parameters(stages: Sequence[object]) -> list[list[tuple[int, str]]]:
    """Returns the parameters that several given modules share, each as its stages and names."""
    found: dict[int, list[tuple[int, str]]] = {}
    for stage, given in enumerate(stages):
        module = given[1] if isinstance(given, (tuple, list)) and len(given) == 2 else None
        if isinstance(module, Module):
            for name, parameter in module.named_parameters():
                found.setdefault(id(parameter), []).append((stage, name))
    return [places for places in found.values() if len(places) > 1]


def _workers(stage: int, to: object) -> tuple[WorkerInfo, ...]:
    find = current_agent().members.find
    if not isinstance(to, list) and (isinstance(to, WorkerInfo) or not isinstance(to, tuple)):
        return (find(to),)
    workers = tuple(find(each) for each in to)
    if not workers or len(set(workers)) != len(workers):
        raise ValueError(f"stage {stage} needs one worker or several, each once: {list(to)!r}")
    return workers
