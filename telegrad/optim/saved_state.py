"""Saved state of optimizers and schedulers: copies of it, and checks before it is loaded."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from telegrad.arrays import (
    as_array,
    computing_dtype,
    device_of,
    is_array,
    is_floating,
    namespace,
    to_device,
)
from telegrad.autograd import Tensor
from telegrad.types import Shape


def copied(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a copy of `state` with copies of its arrays."""
    return {name: namespace(x).array(x) if is_array(x) else x for name, x in state.items()}


def restored(saved: Mapping[str, Any], parameter: Tensor) -> dict[str, Any]:
    """Returns `saved` with arrays copied to the device of `parameter`, in `computing_dtype`.

    Numbers stay numbers. An array of no axes becomes a number if the parameter has axes.
    """
    found: dict[str, Any] = {}
    dtype = computing_dtype(parameter.dtype)
    for name, x in saved.items():
        array = _array(x)
        if isinstance(x, (bool, int, float)) or array.shape != parameter.shape:
            found[name] = array.item()
        else:
            moved = to_device(array, device_of(parameter.data))
            found[name] = namespace(moved).array(moved, dtype=dtype, copy=True)
    return found


def entries(who: str, state: object, /, **kinds: Callable[[Any], Any]) -> list[Any]:
    """Returns the entries of a saved state, in the order of `kinds`.

    Args:
        who: The name of what loads the state, for messages.
        state: The state.
        kinds: For each entry a function that converts it; it raises TypeError, ValueError or
            KeyError for one of another kind.

    Raises:
        TypeError: The state is no mapping.
        ValueError: An entry is missing or of another kind; the message lists these.

    >>> entries("StepLR", {"last_epoch": 3}, last_epoch=int)
    [3]
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"{who} loads the dict of a state_dict(), not {reprlib.repr(state)}")
    found, problems = [], []
    for name, kind in kinds.items():
        if name not in state:
            problems.append(f"it lacks {name}")
            continue
        try:
            found.append(kind(state[name]))
        except (TypeError, ValueError, KeyError, OverflowError):
            problems.append(f"{name} is {reprlib.repr(state[name])}")
    if problems:
        raise ValueError(f"state does not fit {who}: {'; '.join(problems)}")
    return found


def saved_parts(who: str, state: object) -> tuple[list[Any], dict[Any, Any]]:
    """Returns the groups and the states of parameters in the state of an optimizer; see `entries`.

    >>> saved_parts("SGD", {"state": {}, "param_groups": [{"params": [0]}]})
    ([{'params': [0]}], {})
    """

    def groups_of(saved: Any) -> list[Any]:
        return [{**_dict(group), "params": list(group["params"])} for group in saved]

    def states_of(saved: Any) -> dict[Any, Any]:
        return {i: _dict(each) for i, each in _dict(saved).items()}

    groups, states = entries(who, state, param_groups=groups_of, state=states_of)
    return groups, states


def _dict(value: object) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise TypeError
    return value


def check_saved_state(
    who: str,
    own: Sequence[Mapping[str, Any]],
    defaults: Mapping[str, Any],
    shapes: Mapping[int, Shape],
    groups: Sequence[Mapping[str, Any]],
    states: Mapping[int, Mapping[str, Any]],
) -> None:
    """Checks that saved state fits the groups of an optimizer.

    Args:
        who: The name of the optimizer that loads, for messages.
        own: The groups of that optimizer.
        defaults: Its options.
        shapes: The shapes of its parameters, by number.
        groups: The saved groups, with numbers as their `params`.
        states: The saved state of each parameter, by its number.

    Raises:
        ValueError: Something does not fit; the message lists the differences.
    """
    counts = [len(group["params"]) for group in own], [len(group["params"]) for group in groups]
    problems = []
    if counts[0] != counts[1]:
        problems.append(f"its groups have {counts[1]} parameters, {counts[0]} needed")
    for i, group in enumerate(groups):
        missing = [name for name in defaults if name not in group]
        if missing:
            problems.append(f"group {i} lacks {', '.join(missing)}")
    for i, state in states.items():
        if i not in shapes:
            problems.append(f"parameter {i} is none of {len(shapes)}")
            continue
        for name, x in state.items():
            shape = _shape_of_numbers(x)
            if shape is None:
                problems.append(f"{name} of parameter {i} is {reprlib.repr(x)}")
            elif shape not in ((), shapes[i]):
                problems.append(f"{name} of parameter {i} has shape {shape}, {shapes[i]} needed")
    if problems:
        raise ValueError(f"state does not fit {who}: {'; '.join(problems)}")


def _shape_of_numbers(value: Any) -> Shape | None:
    try:
        array = _array(value)
    except (TypeError, ValueError):
        return None
    return array.shape if array.dtype.kind in "biufc" or is_floating(array.dtype) else None


def _array(value: Any) -> Any:
    return value.data if isinstance(value, Tensor) else as_array(value)
