"""Who asks for which function of whom, and the errors that say it is not given."""

from __future__ import annotations

from typing import final

from telegrad.errors import CallRefusedError, FunctionNotFoundError
from telegrad.types import WorkerInfo
from telegrad.wire.function_ref import FunctionRef
from telegrad.wire.lookup import MAIN_NAMES, main_script, module_of

__all__ = ["CallableRequest"]

_SOMEBODY = WorkerInfo("", -1, 0)  # who asks where nobody says who does


@final
class CallableRequest:
    """Who asks for what, to be named in errors.

    Args:
        ref: What is asked for.
        caller: Who asks.
        worker: Who is asked.

    Attributes:
        ref: What is asked for.
        caller: Who asks.
    """

    __slots__ = ("_worker", "caller", "ref")

    def __init__(self, ref: FunctionRef, caller: WorkerInfo | None, worker: str) -> None:
        self.ref = ref
        self.caller = _SOMEBODY if caller is None else caller
        self._worker = f"worker {worker!r}" if worker else "this worker"

    def refused(self, why: str) -> CallRefusedError:
        """Returns the error for what may not be had."""
        name = repr(self.ref.name)[:500]
        return CallRefusedError(f"{self._worker} does not let {self._who} have {name}: {why}")

    def not_found(self) -> FunctionNotFoundError:
        """Returns the error for what is not there."""
        module, _, path = self.ref.name.partition(":")
        if module in MAIN_NAMES:
            return self._not_in_script(path)
        if module_of(module) is None:
            return FunctionNotFoundError(
                f"{self._worker} has not imported {module!r}, so it has no {path!r} for"
                f" {self._who}; import {module} in its script ({main_script()})"
            )
        return FunctionNotFoundError(
            f"{self._worker} has no {path!r} in its module {module!r}, which {self._who} has;"
            " do both run the same version?"
        )

    def _not_in_script(self, path: str) -> FunctionNotFoundError:
        own, script = main_script(), self.ref.script
        if script == own:
            return FunctionNotFoundError(
                f"{self._worker} has no {path!r} in its script ({own}), which is also that of"
                f" {self._who}; define it at the top level, before init_rpc and not only"
                " on some ranks"
            )
        return FunctionNotFoundError(
            f"{self._worker} has no {path!r} in its script ({own}); the script of"
            f" {self._who} is {script or 'another one, or this one started otherwise'}."
            " All workers run the same script, or import what they call from a module"
        )

    @property
    def _who(self) -> str:
        return f"the caller {self.caller.name!r}" if self.caller.name else "the caller"
