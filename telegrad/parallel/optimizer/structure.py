"""The modules of an owner whose parameters a distributed optimizer steps, as they once were.

parameter_rrefs(module)   notes the module's parameters, and if they are trained
OwnerOptimizer(...)       finds the notes of its parameters
each step                 compares these with the modules, before anything is stepped
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from functools import partial
from typing import final

from telegrad.autograd import Tensor
from telegrad.errors import InvalidUseError
from telegrad.nn import Module
from telegrad.rpc.seams import AgentCore


@final
class ModuleNote:
    """The parameters of a module when references to them were made.

    Args:
        module: The module; neither it nor its parameters are kept alive.
    """

    def __init__(self, module: Module) -> None:
        self._module = weakref.ref(module)
        self._noted = {
            id(each): (name, each.requires_grad, weakref.ref(each))
            for name, each in module.named_parameters()
        }

    def check(self, own: set[int], known: References) -> None:
        """Raises InvalidUseError for a parameter that nobody would step, or that the module lost.

        Args:
            own: The ids of the parameters that the optimizer steps.
            known: Says which other parameters are stepped.
        """
        module = self._module()
        if module is None:
            return
        now = {id(each): (name, each) for name, each in module.named_parameters()}
        for key, (name, each) in now.items():
            _, trained, reference = self._noted.get(key, ("", False, _gone))
            left_out = trained and reference() is each  # by the optimizer's maker
            if each.requires_grad and not left_out and key not in own and not known.steps(each):
                raise known.error(name, module, "unfrozen, added or replaced")
        for key, (name, _, reference) in self._noted.items():
            lost = reference() if key in own and key not in now else None
            if lost is not None and lost.requires_grad:
                raise known.error(name, module, "removed or replaced")


@final
class References:
    """The references of one agent to parameters of its modules, and who steps these.

    No lock is needed: each operation on one of the dicts is atomic.

    Args:
        worker: The name of this worker, for errors.
    """

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._notes: dict[int, tuple[weakref.ref[Tensor], ModuleNote]] = {}  # by parameter's id
        self._steppers: weakref.WeakValueDictionary[int, object] = weakref.WeakValueDictionary()

    def note(self, module: Module) -> None:
        """Notes the parameters of a module to which references are made."""
        note = ModuleNote(module)
        for each in module.parameters():
            forget = partial(_forget, self._notes, id(each))
            self._notes[id(each)] = weakref.ref(each, forget), note

    def take(self, stepper: object, params: Iterable[Tensor]) -> list[ModuleNote]:
        """Records who steps parameters, and keeps them; returns the last notes of these."""
        found = {}
        for each in params:
            self._steppers[id(each)] = stepper
            if (noted := self._notes.get(id(each))) is not None:
                found[id(noted[1])] = noted[1]
        return list(found.values())

    def steps(self, parameter: Tensor) -> bool:
        """Returns True if any distributed optimizer steps a parameter of this worker."""
        return id(parameter) in self._steppers

    def error(self, name: str, module: Module, what: str) -> InvalidUseError:
        """Returns the error for a parameter that has changed."""
        return InvalidUseError(
            f"parameter {name!r} of {type(module).__name__} on worker {self._worker!r} was {what} "
            "after the references to its parameters were made, and no step would reach it; make "
            "the references (parallel.parameter_rrefs) and the optimizer again"
        )


def attach_to(agent: AgentCore) -> None:
    """For the library: makes an agent note the modules to whose parameters references are made."""
    agent.attachments.attach(References(agent.info.name))


def _gone() -> None:
    return None


def _forget(notes: dict[int, tuple[weakref.ref[Tensor], ModuleNote]], key: int, _: object) -> None:
    notes.pop(key, None)
