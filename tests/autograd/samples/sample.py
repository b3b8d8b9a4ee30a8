"""`Sample`: arguments that a rule is proved with, and the shapes that hurt, ready made.

A table of samples says for each function of NumPy what it is called with. Floating-point arrays
among the arguments are differentiated, but for those in `fixed`; all else is passed as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from telegrad.types import Array

__all__ = [
    "AXES",
    "Sample",
    "Table",
    "binary",
    "complex_numbers",
    "of_shape",
    "over_axes",
    "unary",
]


@dataclass(frozen=True)
class Sample:
    """One call.

    Attributes:
        arguments: By position; a list of arrays is one argument whose items are differentiated.
        options: By keyword.
        fixed: Positions, and names of options, that are not differentiated.
        second: Whether the gradient of the gradient is checked in tier 1; the reason why not
            stands beside it in the table.
        through: What each array goes through before the call, where gradients are checked: what
            keeps it symmetric while one item is moved. It leaves the array itself as it is.
    """

    arguments: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)
    fixed: tuple[int | str, ...] = ()
    second: bool = True
    through: Callable[[Any], Any] | None = None


Table: TypeAlias = "dict[Callable[..., Any], list[Sample]]"

AXES: list[dict[str, Any]] = [
    {},
    {"axis": 0},
    {"axis": -1, "keepdims": True},
    {"axis": (0, 2)},
    {"axis": (2, -2), "keepdims": True},
    {"axis": ()},
]


def of_shape(shape: tuple[int, ...], low: float = 0.5, high: float = 2.0, seed: int = 0) -> Array:
    """Numbers from `low` to `high`, all distinct, also between seeds: away from ties and kinks."""
    size = int(np.prod(shape))
    order = np.random.default_rng(seed).permutation(size)
    part = (order + 0.31 + 0.07 * seed) / max(size, 1)
    return np.asarray((low + (high - low) * part).reshape(shape))


def complex_numbers(shape: tuple[int, ...], seed: int = 0) -> Array:
    """Numbers of the first quadrant within the unit circle, all distinct."""
    real, imaginary = of_shape(shape, 0.2, 0.6, seed), of_shape(shape, 0.3, 0.7, seed + 1)
    return np.asarray(real + 1j * imaginary)


def unary(low: float, high: float, *, complex_too: bool = False) -> list[Sample]:
    """One array: 0-d, empty, with negative strides, transposed, repeated in memory."""
    arrays = [
        of_shape((), low, high),
        of_shape((0, 3), low, high),
        of_shape((2, 3), low, high),
        of_shape((4,), low, high)[::-1],
        of_shape((2, 3), low, high).T,
        np.broadcast_to(of_shape((2,), low, high), (2, 2)),
    ]
    if complex_too:
        arrays += [complex_numbers((2,)), complex_numbers(())]
    return [Sample((array,)) for array in arrays]


def binary(
    first: tuple[float, float] = (0.5, 2.0),
    second: tuple[float, float] = (0.6, 2.3),
    *,
    complex_too: bool = False,
    scalars: tuple[float, float] = (1.7, 0.9),
) -> list[Sample]:
    """Two arrays that broadcast in every way, an array and a number, and an array with itself."""

    def a(*shape: int) -> Array:
        return of_shape(shape, *first)

    def b(*shape: int) -> Array:
        return of_shape(shape, *second, seed=1)

    samples = [
        Sample((a(2, 3), b(3))),
        Sample((a(2, 1), b(1, 3))),
        Sample((a(), b(2))),
        Sample((a(), b())),
        Sample((a(0, 3), b(3))),
        Sample((a(3)[::-1], b(2, 3)[::-1, ::-1])),
        Sample((a(2), scalars[1])),
        Sample((scalars[0], b(2))),
        Sample((a(2), b(2)), fixed=(1,)),
    ]
    if complex_too:
        z = complex_numbers((2,))
        samples += [
            Sample((z, complex_numbers((2, 1), 3))),
            Sample((z, b(2))),
            Sample((a(2), z)),
        ]
    return samples


def over_axes(
    arrays: Iterable[Array], options: Iterable[dict[str, Any]], **others: Any
) -> list[Sample]:
    """Each array with each choice of options that its shape allows."""
    return [
        Sample((array,), {**chosen, **others})
        for array in arrays
        for chosen in options
        if _fits(chosen.get("axis"), array.ndim)
    ]


def _fits(axis: Any, ndim: int) -> bool:
    axes = axis if isinstance(axis, tuple) else () if axis is None else (axis,)
    return all(-ndim <= k < ndim for k in axes) and len({k % ndim for k in axes if ndim}) == len(
        axes
    )
