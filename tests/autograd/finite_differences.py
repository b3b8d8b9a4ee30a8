"""A check of second derivatives that costs little: along a line, not item by item."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from telegrad.arrays import namespace
from telegrad.autograd import Tensor, grad, gradcheck

__all__ = ["check_second_along_a_line"]

# Differences along a line err by 1e-8 of what they measure; a wrong item changes the sum by more.
RTOL, ATOL = 1e-6, 1e-7


def check_second_along_a_line(
    function: Callable[..., Any], inputs: Tensor | Sequence[Any], *, rtol: float = RTOL
) -> None:
    """Compares the second derivatives of a function with differences of its first ones.

    All items of all inputs, and of the incoming gradients, move at once, each by a random factor of
    its own: two evaluations check the sum of all second derivatives along that line, whereas
    `gradgradcheck` makes two for each item.

    Args:
        function: A function of the inputs that returns a Tensor or a tuple of them.
        inputs: Its arguments, away from kinks; Tensors that need a gradient move.
        rtol: The allowed relative error.

    Raises:
        AutogradError: A second derivative is wrong.
    """
    given = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    moving = [i for i, x in enumerate(given) if isinstance(x, Tensor) and x.requires_grad]
    generator = np.random.default_rng(20)
    starts = [given[i].data for i in moving]
    starts += [_drawn(generator, y.data) for y in _listed(function(*given))]
    moves = [_drawn(generator, x) for x in starts]

    def slopes(t: Tensor) -> tuple[Tensor, ...]:
        """Returns the first derivatives at a point of the line."""
        there = [Tensor(x) + t * move for x, move in zip(starts, moves, strict=True)]
        leaves, incoming = there[: len(moving)], there[len(moving) :]
        arguments = [*given]
        for i, leaf in zip(moving, leaves, strict=True):
            arguments[i] = leaf
        outputs = _listed(function(*arguments))
        found = grad(outputs, leaves, incoming, create_graph=True, allow_unused=True)
        return tuple(each for each in found if each is not None)

    start = Tensor(namespace(*starts).zeros(()), requires_grad=True)
    assert gradcheck(slopes, start, rtol=rtol, atol=ATOL)


def _listed(outputs: Any) -> list[Tensor]:
    return [outputs] if isinstance(outputs, Tensor) else list(outputs)


def _drawn(generator: np.random.Generator, like: Any) -> Any:
    """Random numbers of a shape and dtype, none of them near 0."""
    sign = generator.choice([-1.0, 1.0], like.shape)
    drawn = sign * generator.uniform(0.5, 1.5, like.shape)
    if like.dtype.kind == "c":
        drawn = drawn + 1j * generator.uniform(-0.5, 0.5, like.shape)
    return namespace(like).asarray(np.asarray(drawn, like.dtype))
