"""`np.pad`: what stands around an array, as a function of the array.

Constants are padded in one go; all other modes axis by axis, as NumPy does, from items that
exist, so that functions which have rules do the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from telegrad.arrays import is_inexact, namespace
from telegrad.autograd.extend import composed, constant, primitive
from telegrad.autograd.ops import broadcast_to, concatenate, getitem
from telegrad.autograd.ops.shape import along
from telegrad.autograd.tensor import Tensor
from telegrad.errors import AutogradError
from telegrad.types import Shape

__all__: list[str] = []


def _inside(shape: Shape, width: Any) -> tuple[slice, ...]:
    pairs = _pairs(width, len(shape))
    return tuple([slice(before, before + n) for n, (before, _) in zip(shape, pairs, strict=True)])


def _pairs(given: Any, ndim: int, missing: Any = 0) -> list[list[Any]]:
    """Returns what NumPy's pad is given for each axis, before and after."""
    if isinstance(given, Mapping):
        found = {axis % ndim: pair for axis, pair in given.items()}
        given = [np.broadcast_to(found.get(axis, missing), 2).tolist() for axis in range(ndim)]
    pairs: list[list[Any]] = np.broadcast_to(given, (ndim, 2)).tolist()
    return pairs


# The rule of what does not depend on the array: constants, and what `empty` leaves there.
_pad_constant = primitive(
    "pad",
    np.pad,
    "array",
    options={"pad_width": 0, "mode": "constant", "constant_values": 0},
    complex_rule="holomorphic",
    array=lambda g, shape, pad_width: getitem(g, index=_inside(shape, pad_width)),
)


# A mode returns the items at `places`, counted from the first one of the axis, all of one side.
# `side` is 0 before the array and 1 after it.


def _edge(a: Any, axis: int, places: Any, side: int) -> Any:
    end = getitem(a, index=along(axis, slice(-1, None) if side else slice(0, 1)))
    shape = (*a.shape[:axis], len(places), *a.shape[axis + 1 :])
    return broadcast_to(end, to=shape)


def _ramp(a: Any, axis: int, places: Any, side: int, end_values: Any = 0) -> Any:
    width = len(places)
    steps = np.arange(1, width + 1) if side else np.arange(width, 0, -1)
    xp = namespace(a.data)
    away = xp.asarray((steps / width).astype(a.dtype))
    away = away.reshape(_shape_of_axis(a.ndim, axis, width))
    if isinstance(end_values, Tensor) and end_values.requires_grad:
        raise AutogradError("pad has no gradient with respect to end_values; pass t.detach()")
    end = _pairs(end_values, a.ndim)[axis][side]
    return _edge(a, axis, places, side) * (1 - away) + end * away


def _shape_of_axis(ndim: int, axis: int, n: int) -> Shape:
    return tuple([n if k == axis else 1 for k in range(ndim)])


def _statistic(function: Callable[..., Any]) -> Callable[..., Any]:
    def pad(a: Any, axis: int, places: Any, side: int, stat_length: Any = None) -> Any:
        n = a.shape[axis]
        count = n if stat_length is None else min(_pairs(stat_length, a.ndim)[axis][side], n)
        part = getitem(a, index=along(axis, slice(n - count, None) if side else slice(0, count)))
        return _edge(function(part, axis=axis, keepdims=True), axis, places, side)

    return pad


def _folded(a: Any, axis: int, places: Any, period: int, reflect_type: str) -> Any:
    """Mirrors at both ends, again and again; "odd" turns each image around the item at the end.

    Place j is in image number q = j // period, and images of odd numbers run backwards.
    """
    n = a.shape[axis]
    image, inside = np.divmod(places, period)
    backwards = image % 2 == 1
    items = getitem(a, index=along(axis, np.where(backwards, n - 1 - inside, inside)))
    if reflect_type == "even":
        return items
    xp = namespace(a.data)
    shape = _shape_of_axis(a.ndim, axis, len(places))
    sign, odd, image = (
        xp.asarray(x.astype(a.dtype)).reshape(shape) for x in (1 - 2 * backwards, backwards, image)
    )
    first, last = (getitem(a, index=along(axis, i)) for i in (slice(0, 1), slice(n - 1, n)))
    return sign * items + odd * (first + last) + image * (last - first)


def _reflect(a: Any, axis: int, places: Any, side: int, reflect_type: str = "even") -> Any:
    return _folded(a, axis, places, max(a.shape[axis] - 1, 1), reflect_type)


def _symmetric(a: Any, axis: int, places: Any, side: int, reflect_type: str = "even") -> Any:
    return _folded(a, axis, places, a.shape[axis], reflect_type)


def _wrap(a: Any, axis: int, places: Any, side: int) -> Any:
    return getitem(a, index=along(axis, places % a.shape[axis]))


_MODES: Final[Mapping[str, Callable[..., Any]]] = {
    "edge": _edge,
    "linear_ramp": _ramp,
    "maximum": _statistic(np.max),
    "mean": _statistic(np.mean),
    "median": _statistic(np.median),
    "minimum": _statistic(np.min),
    "reflect": _reflect,
    "symmetric": _symmetric,
    "wrap": _wrap,
}


_without_gradient = constant(np.pad)


@composed(np.pad)
def _pad(array: Any, pad_width: Any, mode: Any = "constant", **kwargs: Any) -> Any:
    if not is_inexact(array.dtype):
        return _without_gradient(array, pad_width, mode, **kwargs)
    if mode in ("constant", "empty"):
        return _pad_constant(array, pad_width=pad_width, mode=mode, **kwargs)
    if mode not in _MODES:
        raise ValueError(f"pad of tensors knows no mode {mode!r}; it knows {', '.join(_MODES)}")
    for axis, (before, after) in enumerate(_pairs(pad_width, array.ndim)):
        n = array.shape[axis]
        sides = [np.arange(-before, 0), np.arange(n, n + after)]
        parts = [
            _MODES[mode](array, axis, places, side, **kwargs) if len(places) else None
            for side, places in enumerate(sides)
        ]
        present = [part for part in (parts[0], array, parts[1]) if part is not None]
        array = concatenate(*present, axis=axis) if len(present) > 1 else array
    return array
