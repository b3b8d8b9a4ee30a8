"""What optimizers save: copies of what they remember, and the check of what is to be loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from sys import getrefcount
from typing import Any

from telegrad.arrays import as_array, device_of, is_array, namespace, to_device
from telegrad.autograd import Tensor
from telegrad.types import Array

__all__ = ["check_saved", "copied", "restored", "with_rows"]


def copied(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `state` with arrays copied."""
    return {name: namespace(x).array(x) if is_array(x) else x for name, x in state.items()}


def restored(saved: Mapping[str, Any], parameter: Tensor) -> dict[str, Any]:
    """Returns `saved` with arrays copied to the dtype and device of `parameter`.

    Numbers stay numbers; an array of no axes is one, where the parameter has axes.
    """
    found: dict[str, Any] = {}
    for name, x in saved.items():
        array = _array(x)
        if isinstance(x, (bool, int, float)) or array.shape != parameter.shape:
            found[name] = array.item()
        else:
            moved = to_device(array, device_of(parameter.data))
            found[name] = namespace(moved).array(moved, dtype=parameter.dtype, copy=True)
    return found


def with_rows(state: Mapping[str, Any], name: str, rows: Array, values: Array) -> Array:
    """Returns the array `state[name]` with `values` in `rows`.

    It is that array itself if `state` alone holds it, and a copy otherwise.
    """
    sole = getrefcount(state[name]) == 2 and state[name].base is None  # 2: by `state` and the call
    table: Array = state[name] if sole else state[name].copy()
    table[rows] = values
    return table


def check_saved(
    who: str,
    own: Sequence[Mapping[str, Any]],
    defaults: Mapping[str, Any],
    groups: Sequence[Mapping[str, Any]],
    states: Mapping[int, Mapping[str, Any]],
) -> None:
    """Checks that what was saved is of such groups of such parameters.

    Args:
        who: The optimizer's class, for messages.
        own: The groups of the one that is to load.
        defaults: Its options.
        groups: The saved ones, with numbers as their `params`.
        states: What was saved, by the parameter's number.

    Raises:
        ValueError: Something differs; the message lists what.
    """
    counts = [len(group["params"]) for group in own], [len(group["params"]) for group in groups]
    problems = []
    if counts[0] != counts[1]:
        problems.append(f"its groups have {counts[1]} parameters, {counts[0]} needed")
    for i, group in enumerate(groups):
        missing = [name for name in defaults if name not in group]
        if missing:
            problems.append(f"group {i} lacks {', '.join(missing)}")
    params = [p for group in own for p in group["params"]]
    for i, state in states.items():
        if not 0 <= int(i) < len(params):
            problems.append(f"parameter {i} is none of {len(params)}")
            continue
        shape = params[int(i)].shape
        problems += [
            f"{name} of parameter {i} has shape {_array(x).shape}, {shape} needed"
            for name, x in state.items()
            if _array(x).shape not in ((), shape)
        ]
    if problems:
        raise ValueError(f"state does not fit {who}: {'; '.join(problems)}")


def _array(value: Any) -> Any:
    return value.data if isinstance(value, Tensor) else as_array(value)
