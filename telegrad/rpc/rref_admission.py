"""Which method of an RRef's value a request names, and whether the caller may have it.

That is asked before the arguments are decoded where the value is there; where it is still being
created, its class is not known, and what is asked then is asked once the value is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from telegrad.errors import CallRefusedError, DecodeError
from telegrad.rpc.rref_ids import RRefId, rref_id
from telegrad.rpc.user_call import ARGUMENTS

if TYPE_CHECKING:
    from telegrad.rpc.rref_registry import RRefRegistry
    from telegrad.types import WorkerInfo

_INTEGERS = frozenset({int})

__all__ = ["AdmittedMethod", "admit_method", "check_public", "read_rref"]


@final
@dataclass(slots=True)  # frozen ones take three times as long to make
class AdmittedMethod:
    """A method whose name may be had.

    Attributes:
        rref: Of which value.
        name: Its name.
        judged: Whether this caller may call it on this value; False where that is not known yet.
        value: The value itself, where that is known.
    """

    rref: RRefId
    name: str
    judged: bool
    value: object = None

    def arguments(self, payload: object) -> tuple[list[Any], dict[str, Any]]:
        """Returns the arguments that came with it.

        Raises:
            DecodeError: There are none, or for another method than was admitted.
        """
        fields = payload if isinstance(payload, dict) else {}
        args, kwargs = fields.get(ARGUMENTS), fields.get("kwargs")
        same = fields.get("method") == self.name and fields.get("rref") == list(self.rref)
        if not (same and isinstance(args, list) and isinstance(kwargs, dict)):
            raise DecodeError("the body of a method call is not {rref, method, args, kwargs}")
        return args, kwargs


def admit_method(
    registry: RRefRegistry, caller: WorkerInfo, head: Mapping[str, object]
) -> AdmittedMethod:
    """Returns the method that a request names before its arguments.

    Args:
        registry: The RRefs of this worker.
        caller: Who asks.
        head: What stands before the arguments.

    Raises:
        DecodeError: It names none.
        CallRefusedError: The caller may not have it.
    """
    name, rref = head.get("method"), read_rref(registry, head.get("rref"))
    if not isinstance(name, str):
        raise DecodeError("the body of a method call is not {rref, method, args, kwargs}")
    if name[:1] == "_" and name != "__call__":
        check_public(registry, caller, name)
    value = registry.value(rref)
    if value is None or not value.done() or value.failed:
        return AdmittedMethod(rref, name, judged=False)
    found = value.value()
    registry.agent.check_method(found, name, caller)
    return AdmittedMethod(rref, name, judged=True, value=found)


def check_public(registry: RRefRegistry, caller: WorkerInfo, name: str) -> None:
    """Checks that a name may be had of a value at all.

    Raises:
        CallRefusedError: It is private.
    """
    if name.startswith("_"):
        refused = CallRefusedError(
            f"{name[:500]!r} begins with an underscore and is not had of an RRef's value "
            f"at {registry.me.name!r}"
        )
        registry.agent.record_refusal(caller, name, "PRIVATE_NAME", refused)
        raise refused


def read_rref(registry: RRefRegistry, ids: object) -> RRefId:
    """Returns which value a request names, by what it has under `rref`.

    Raises:
        DecodeError: None, or none of this worker's.
    """
    if not (isinstance(ids, list) and len(ids) == 3 and _INTEGERS.issuperset(map(type, ids))):
        raise DecodeError("the body of a request names no RRef")
    rref = rref_id(ids)
    if rref.owner != registry.me.incarnation:
        raise DecodeError(f"{rref} is not owned by {registry.me.name!r}")
    return rref
