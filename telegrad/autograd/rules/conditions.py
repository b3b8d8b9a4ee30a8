"""Functions that take each item from one of several places, with their rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from telegrad.arrays import namespace
from telegrad.autograd.creation import as_tensor
from telegrad.autograd.extend import composed, numpy_function
from telegrad.autograd.ops import broadcast_to, getitem, put, stack, where
from telegrad.autograd.rules.selection import chosen, in_range, plain
from telegrad.autograd.rules.stacking import alike

__all__: list[str] = []


@composed(np.choose)
def _choose(a: Any, choices: Any, out: None = None, mode: str = "raise") -> Any:
    first, *parts = alike((a, *choices))
    count = len(parts)
    numbers = in_range(first.data, count, mode)
    if ((numbers < 0) | (numbers >= count)).any():
        raise ValueError(f"a number of a choice is not from 0 to {count - 1}")
    shape = np.broadcast_shapes(numbers.shape, *[x.shape for x in parts])
    pile = stack(*[broadcast_to(x, to=shape) for x in parts], axis=0)
    places = broadcast_to(numbers, to=shape)[None].astype(np.intp)
    return getitem(chosen(pile, places, axis=0), index=0)


@composed(np.select)
def _select(condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0) -> Any:
    if len(condlist) != len(choicelist) or not len(condlist):
        raise ValueError(
            f"select needs as many choices as conditions, and one at least: {len(choicelist)} and "
            f"{len(condlist)} were given"
        )
    result = default
    for condition, choice in zip(reversed(condlist), reversed(choicelist), strict=True):
        if plain(condition, choice).dtype != np.bool_:
            raise TypeError("a condition of select must be of bool")
        result = where(condition, choice, result)
    return as_tensor(result)


def _several(conditions: Any, ndim: int) -> bool:
    """Tells whether these are conditions, or one, as NumPy does."""
    if isinstance(conditions, (list, tuple)):
        return np.ndim(conditions[0]) > 0 or ndim == 0
    return np.ndim(conditions) > (1 if ndim else 0)


@composed(np.piecewise)
def _piecewise(x: Any, condlist: Any, funclist: Sequence[Any], *args: Any, **kw: Any) -> Any:
    x = as_tensor(x)
    several = _several(condlist, x.ndim)
    conditions = [plain(c, x).astype(np.bool_) for c in (condlist if several else [condlist])]
    if len(funclist) == len(conditions) + 1:
        given = conditions[0]
        for condition in conditions[1:]:
            given = given | condition
        conditions.append(~given)
    if len(funclist) != len(conditions):
        raise ValueError(
            f"piecewise needs as many functions as conditions, or one more: {len(funclist)} and "
            f"{len(conditions)} were given"
        )
    result: Any = namespace(x.data).zeros_like(x.data)
    for condition, function in zip(conditions, funclist, strict=True):
        value = function
        if callable(function):
            part = getitem(x, index=condition)
            if not part.size:
                continue
            value = function(part, *args, **kw)
        result = put(result, value, index=condition)
    return as_tensor(result)


def _finite(g: Any, x: Any) -> Any:
    if x.dtype.kind != "c":
        return where(np.isfinite(x), g, 0.0)
    real = where(np.isfinite(np.real(x)), np.real(g), 0.0)
    return real + 1j * where(np.isfinite(np.imag(x)), np.imag(g), 0.0)


# fmt: off
nan_to_num = numpy_function(np.nan_to_num, "x", options={"nan": 0.0, "posinf": None, "neginf": None}, complex_rule="own",
                            x=_finite)
# fmt: on
