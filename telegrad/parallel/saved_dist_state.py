"""The check of what a distributed optimizer is to load, before any owner hears of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from telegrad.types import Shape

__all__ = ["check_saved_state"]


def check_saved_state(
    own: Sequence[Mapping[str, Any]],
    defaults: Mapping[str, Any],
    shapes: Mapping[int, Shape],
    groups: Sequence[Mapping[str, Any]],
    states: Mapping[int, Mapping[str, Any]],
) -> None:
    """Checks that what was saved is of such groups of such parameters.

    Args:
        own: The groups of the one that is to load, with numbers as their `params`.
        defaults: Its options.
        shapes: Those of its parameters, by number.
        groups: The saved groups.
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
    for i, state in states.items():
        if i not in shapes:
            problems.append(f"parameter {i} is none of {len(shapes)}")
            continue
        problems += [
            f"{name} of parameter {i} has shape {np.shape(x)}, {shapes[i]} needed"
            for name, x in state.items()
            if np.shape(x) not in ((), shapes[i])
        ]
    if problems:
        raise ValueError(f"state does not fit the optimizer: {'; '.join(problems)}")
