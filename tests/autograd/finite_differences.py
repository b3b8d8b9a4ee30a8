"""Checks of derivatives that cost little: along a line, not item by item."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from telegrad.arrays import namespace
from telegrad.autograd import Tensor, grad, gradcheck, gradgradcheck
from telegrad.errors import AutogradError

__all__ = ["check_along_a_line", "check_second_along_a_line"]

# Differences along a line err by 1e-8 of what they measure; a wrong item changes the sum by more.
RTOL, ATOL = 1e-6, 1e-7


def check_along_a_line(function: Callable[..., Any], inputs: Tensor | Sequence[Any]) -> None:
    """Compares the gradients of a function with a difference.

    All items of all inputs move at once, each by a random factor of its own: two evaluations check
    the sum of all derivatives along that line, whereas `gradcheck` makes two for each item.

    Args:
        function: A function of the inputs that returns a Tensor or a tuple of them.
        inputs: Its arguments, away from kinks; Tensors that need a gradient move.

    Raises:
        AutogradError: A gradient is wrong; the message is that of `gradcheck`, if it finds it, too.
    """
    given, moving = _moving(inputs)
    starts = [given[i].data for i in moving]
    values = _line(starts, lambda there: function(*_replaced(given, moving, there)))
    try:
        assert gradcheck(*values, rtol=RTOL, atol=ATOL)
    except AutogradError:
        gradcheck(function, given)
        raise


def check_second_along_a_line(function: Callable[..., Any], inputs: Tensor | Sequence[Any]) -> None:
    """Compares the second derivatives of a function with a difference of its first ones.

    The incoming gradients move, too. Arguments and errors are those of `check_along_a_line`; the
    message is that of `gradgradcheck`.
    """
    given, moving = _moving(inputs)
    generator = np.random.default_rng(21)
    incoming = [_drawn(generator, y.data) for y in _listed(function(*given))]

    def slopes(there: list[Tensor]) -> tuple[Tensor, ...]:
        leaves, gradients = there[: len(moving)], there[len(moving) :]
        outputs = _listed(function(*_replaced(given, moving, leaves)))
        found = grad(outputs, leaves, gradients, create_graph=True, allow_unused=True)
        return tuple(each for each in found if each is not None)

    values = _line([*(given[i].data for i in moving), *incoming], slopes)
    try:
        assert gradcheck(*values, rtol=RTOL, atol=ATOL)
    except AutogradError:
        gradgradcheck(function, given)
        raise


def _moving(inputs: Tensor | Sequence[Any]) -> tuple[list[Any], list[int]]:
    """Returns the inputs, and the places of those that need a gradient."""
    given = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    return given, [i for i, x in enumerate(given) if isinstance(x, Tensor) and x.requires_grad]


def _replaced(given: list[Any], places: list[int], leaves: list[Tensor]) -> list[Any]:
    arguments = [*given]
    for i, leaf in zip(places, leaves, strict=True):
        arguments[i] = leaf
    return arguments


def _line(
    starts: list[Any], values: Callable[[list[Tensor]], Any]
) -> tuple[Callable[[Tensor], Any], Tensor]:
    """Returns the values along a line as a function of one number, and where the line begins."""
    generator = np.random.default_rng(20)
    moves = [_drawn(generator, x) for x in starts]

    def at(t: Tensor) -> Any:
        return values([Tensor(x) + t * move for x, move in zip(starts, moves, strict=True)])

    return at, Tensor(namespace(*starts).zeros(()), requires_grad=True)


def _listed(outputs: Any) -> list[Tensor]:
    return [outputs] if isinstance(outputs, Tensor) else list(outputs)


def _drawn(generator: np.random.Generator, like: Any) -> Any:
    """Random numbers of a shape and dtype, none of them near 0."""
    sign = generator.choice([-1.0, 1.0], like.shape)
    drawn = sign * generator.uniform(0.5, 1.5, like.shape)
    if like.dtype.kind == "c":
        drawn = drawn + 1j * generator.uniform(-0.5, 0.5, like.shape)
    return namespace(like).asarray(np.asarray(drawn, like.dtype))
