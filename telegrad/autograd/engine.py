"""Backward on one worker: a graph task whose gradients are added to `tensor.grad`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from telegrad.autograd.gradient_target import LocalGradients
from telegrad.autograd.graph_task import GraphTask
from telegrad.errors import AutogradError

if TYPE_CHECKING:
    from telegrad.autograd.node import Gradient
    from telegrad.autograd.tensor import Tensor

__all__ = ["backward"]


def backward(
    tensors: Sequence[Tensor],
    gradients: Sequence[Gradient | None] | None = None,
    *,
    retain_graph: bool = False,
    create_graph: bool = False,
) -> None:
    """Adds the gradients of `tensors` with respect to the leaves to each leaf's `grad`.

    What hooks have asked to be done at the end of the pass (see `GradientTarget.at_end`) is done
    when this returns.

    Args:
        tensors: The roots. All are run through in one pass.
        gradients: One per root, in its shape; None for a scalar root means 1.
        retain_graph: Keeps the graph for another backward.
        create_graph: Records the backward, so that gradients can be differentiated again;
            implies `retain_graph`.

    Raises:
        AutogradError: A root needs no gradient, or has more than one item and no gradient was
            given; the graph was freed, was changed in place, or leaves this process.
        Exception: What a rule, a hook or the end of the pass raised.
    """
    if gradients is not None and len(gradients) != len(tensors):
        raise AutogradError(f"{len(tensors)} roots were given {len(gradients)} gradients")
    given = gradients if gradients is not None else [None] * len(tensors)
    pairs = zip(tensors, given, strict=True)
    target = LocalGradients()
    task = GraphTask(
        [tensor.root(gradient, create_graph=create_graph) for tensor, gradient in pairs],
        accumulate=target,
        retain_graph=retain_graph or create_graph,
        create_graph=create_graph,
    )
    try:
        task.run()
        for completion in target.finish():
            completion.wait()
    except BaseException as error:
        target.abandon(error)
        raise
