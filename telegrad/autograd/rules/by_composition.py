"""Gradients that can be differentiated again, of functions whose own backward cannot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from telegrad.autograd.differentiate import grad
from telegrad.autograd.grad_mode import enable_grad
from telegrad.autograd.tensor import Tensor

__all__ = ["recorded_gradients"]


def recorded_gradients(
    body: Callable[..., Any],
    inputs: Sequence[Any],
    gradients: Sequence[Any],
    needs: Sequence[bool],
) -> list[Any]:
    """Returns the gradients of `inputs`, recorded: `body` is computed once more.

    Args:
        body: What was computed, written with operations that have rules; gives a tuple.
        inputs: Its arguments.
        gradients: One per output; None where there is none.
        needs: Which inputs need a gradient.

    Returns:
        One per input; None for what needs none or does not matter.
    """
    with enable_grad():
        # Views, so that an input which depends on another one counts as an input of its own.
        own = [x.reshape(x.shape) if isinstance(x, Tensor) else x for x in inputs]
        outputs = body(*own)
        pairs = [(y, g) for y, g in zip(outputs, gradients, strict=True) if g is not None]
        wanted = [i for i, needed in enumerate(needs) if needed]
        found = grad(
            [y for y, _ in pairs],
            [own[i] for i in wanted],
            [g for _, g in pairs],
            create_graph=True,
            allow_unused=True,
        )
    results: list[Any] = [None] * len(inputs)
    for i, g in zip(wanted, found, strict=True):
        results[i] = g
    return results
