"""Backward on one worker: a graph task whose gradients are added to `tensor.grad`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, final

from telegrad.autograd.graph_task import GraphTask
from telegrad.errors import AutogradError

if TYPE_CHECKING:
    from telegrad.autograd.node import Gradient
    from telegrad.autograd.tensor import Tensor

__all__ = ["GradientTarget", "LocalGradients", "backward"]


class GradientTarget(ABC):
    """Where a backward keeps the gradients of leaves; calling it adds one.

    Post-accumulate hooks are given it, so that they work on the gradient wherever it is kept.
    """

    @abstractmethod
    def __call__(self, tensor: Tensor, gradient: Gradient) -> None:
        """Adds `gradient` to what is kept for `tensor`."""

    @abstractmethod
    def get(self, tensor: Tensor) -> Tensor | None:
        """Returns what is kept for `tensor`."""

    @abstractmethod
    def replace(self, tensor: Tensor, gradient: Tensor | None) -> None:
        """Keeps `gradient` for `tensor` instead."""


@final
class LocalGradients(GradientTarget):
    """Keeps gradients in `tensor.grad`."""

    def __call__(self, tensor: Tensor, gradient: Gradient) -> None:
        """Adds `gradient` to `tensor.grad`, atomically among backwards in several threads."""
        tensor.accumulate_grad(gradient)

    def get(self, tensor: Tensor) -> Tensor | None:
        """Returns `tensor.grad`."""
        return tensor.grad

    def replace(self, tensor: Tensor, gradient: Tensor | None) -> None:
        """Sets `tensor.grad`."""
        tensor.grad = gradient


def backward(
    tensors: Sequence[Tensor],
    gradients: Sequence[Gradient | None] | None = None,
    *,
    retain_graph: bool = False,
    create_graph: bool = False,
) -> None:
    """Adds the gradients of `tensors` with respect to the leaves to each leaf's `grad`.

    Args:
        tensors: The roots. All are run through in one pass.
        gradients: One per root, in its shape; None for a scalar root means 1.
        retain_graph: Keeps the graph for another backward.
        create_graph: Records the backward, so that gradients can be differentiated again;
            implies `retain_graph`.

    Raises:
        AutogradError: A root needs no gradient, or has more than one item and no gradient was
            given; the graph was freed, was changed in place, or leaves this process.
    """
    if gradients is not None and len(gradients) != len(tensors):
        raise AutogradError(f"{len(tensors)} roots were given {len(gradients)} gradients")
    given = gradients if gradients is not None else [None] * len(tensors)
    pairs = zip(tensors, given, strict=True)
    GraphTask(
        [tensor.root(gradient, create_graph=create_graph) for tensor, gradient in pairs],
        accumulate=LocalGradients(),
        retain_graph=retain_graph or create_graph,
        create_graph=create_graph,
    ).run()
