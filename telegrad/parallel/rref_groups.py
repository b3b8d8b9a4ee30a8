"""Parameters of a distributed optimizer as they are given: references, or groups of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from telegrad.parallel.owner_optimizer import GroupPart
from telegrad.rpc import RRef
from telegrad.types import WorkerInfo

__all__ = ["parts_by_owner", "rref_groups"]


def rref_groups(params_rref: object) -> tuple[list[dict[str, Any]], bool]:
    """Returns groups with lists of RRefs as their `params`, and whether groups were given.

    Raises:
        TypeError: Something is no RRef.
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
    """Returns what of each group each worker owns, in the order of their first parameters.

    Args:
        groups: See `rref_groups`.
        first_group: The number of the first of them.
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
