"""Backward on one worker: a graph task whose gradients are added to `tensor.grad`."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol, final

from telegrad.autograd.graph.dispatch import BACKWARD, TABLE
from telegrad.autograd.graph.graph_task import GraphTask
from telegrad.autograd.tensor.tensor import Gradient, Tensor, accumulate_grad, graph_root
from telegrad.errors import AutogradError

# -- targets for the gradients of leaves, and work at the end of a pass --------------------------
#
# task runs ──▶ target(leaf, gradient) ──▶ hook(leaf, target) ──▶ target.at_end(end)
#     │
#     ├─ every leaf has its gradient ──▶ end.finish() ──▶ waited for ──▶ backward returns
#     └─ the task or an end raised ──▶ end.abandon(cause) ──▶ backward raises that error


class Completion(Protocol):
    """A future: work that ends later, with success or an error."""

    def wait(self) -> object:
        """Blocks until the work is done; raises its error."""

    def exception(self) -> BaseException | None:
        """Returns the error of finished work, or None if it succeeded."""

    def then(self, callback: Callable[[Any], object], /) -> object:
        """Calls `callback(self)` when the work is done; at once, in this thread, if it is."""


class PassEnd(ABC):
    """Work that a post-accumulate hook leaves for the end of the pass that called it.

    Exactly one of two things happens. Either only `finish` is called, and it succeeds. Or the pass
    fails and `abandon` is called before, during or after `finish`. `finish` itself may be what
    made the pass fail.
    """

    @abstractmethod
    def finish(self) -> Completion:
        """Starts the remaining work, now that every leaf of this pass has its gradient.

        This must not wait. The pass is over when all completions that its ends returned are done.
        A local backward waits for them in its caller's thread; a distributed one blocks no thread.
        """

    @abstractmethod
    def abandon(self, cause: BaseException) -> None:
        """Gives the work up because the pass failed. Must not wait; any thread may call it."""


class GradientTarget(ABC):
    """The place where one pass keeps the gradients of leaves; a call adds one gradient.

    Post-accumulate hooks receive the target, so they work on the gradient wherever it is kept.
    Each pass has one target. The engine that runs the pass calls `finish`, waits for the
    completions that it returns, and calls `abandon` if any of these steps raises.
    """

    def __init__(self) -> None:
        self._ends_lock = threading.Lock()  # guards the next three attributes
        self._ends: list[PassEnd] = []
        self._finishing = False
        self._abandoned = False

    @abstractmethod
    def __call__(self, tensor: Tensor, gradient: Gradient) -> None:
        """Adds `gradient`, which may be a RowSparse, to the gradient of `tensor`.

        The target may keep an array without a copy: see `GraphTask`.
        """

    @abstractmethod
    def get(self, tensor: Tensor) -> Tensor | None:
        """Returns the gradient of `tensor`, or None."""

    @abstractmethod
    def replace(self, tensor: Tensor, gradient: Tensor | None) -> None:
        """Replaces the gradient of `tensor` by `gradient`."""

    def earlier(self) -> Sequence[GradientTarget]:
        """Returns the targets of passes before this one that keep their gradients apart.

        The user reads the sum of their gradients and of this target's. A target that keeps
        `tensor.grad` has no earlier ones, as `tensor.grad` is that sum.
        """
        return ()

    def at_end(self, end: PassEnd) -> None:
        """Makes `end` finish or abandon its work together with this pass. Hooks call this.

        Raises:
            AutogradError: The pass has failed, or every leaf already has its gradient.
        """
        with self._ends_lock:
            if self._abandoned or self._finishing:
                state = "has failed" if self._abandoned else "has run through"
                raise AutogradError(f"the backward pass that this hook belongs to {state} already")
            self._ends.append(end)

    @property
    def has_ends(self) -> bool:
        """True if `finish` has work to start."""
        return bool(self._ends)

    def finish(self) -> list[Completion]:
        """Starts the work of the ends of this pass. The engine that runs the pass calls it once.

        Returns:
            The completions that must be done before the pass is over.
        """
        with self._ends_lock:
            self._finishing = True
            ends = [] if self._abandoned else list(self._ends)
        return [end.finish() for end in ends]

    def abandon(self, cause: BaseException) -> None:
        """Tells the ends of this pass that it failed; idempotent. The engine calls it.

        If an end raises, the others hear all the same, and a note of `cause` tells of its error.
        """
        with self._ends_lock:
            self._abandoned = True
            ends, self._ends = self._ends, []
        for end in ends:
            try:
                end.abandon(cause)
            except Exception as error:  # of any class, and the pass must still end everywhere
                cause.add_note(f"{type(end).__qualname__}.abandon raised {error!r}")


@final
class LocalGradients(GradientTarget):
    """A target that keeps gradients in `tensor.grad`."""

    def __call__(self, tensor: Tensor, gradient: Gradient) -> None:
        """Adds `gradient` to `tensor.grad`, atomically among backwards in several threads."""
        accumulate_grad(tensor, gradient, own=True)

    def get(self, tensor: Tensor) -> Tensor | None:
        """Returns `tensor.grad`."""
        return tensor.grad

    def replace(self, tensor: Tensor, gradient: Tensor | None) -> None:
        """Sets `tensor.grad`."""
        tensor.grad = gradient


# -- local backward ------------------------------------------------------------------------------


@TABLE.register(BACKWARD)
def backward(
    tensors: Sequence[Tensor],
    gradients: Sequence[Gradient | None] | None = None,
    *,
    retain_graph: bool = False,
    create_graph: bool = False,
) -> None:
    """Adds the gradients of `tensors` with respect to the leaves to each leaf's `grad`.

    When this returns, the work that hooks left for the end of the pass is done (see
    `GradientTarget.at_end`).

    Args:
        tensors: The roots. One pass runs through all of them.
        gradients: One gradient per root, in its shape; None for a scalar root means 1.
        retain_graph: Keeps the graph for another backward.
        create_graph: Records the backward, so that gradients can be differentiated again;
            implies `retain_graph`.

    Raises:
        AutogradError: A root needs no gradient, or has more than one item and got no gradient;
            or the graph was freed, leaves this process, or saved a value that was changed in place.
        Exception: A rule, a hook or the end of the pass raised this error.
    """
    if gradients is not None and len(gradients) != len(tensors):
        raise AutogradError(f"{len(tensors)} roots were given {len(gradients)} gradients")
    given = gradients if gradients is not None else [None] * len(tensors)
    pairs = zip(tensors, given, strict=True)
    target = LocalGradients()
    task = GraphTask(
        [graph_root(tensor, gradient, create_graph=create_graph) for tensor, gradient in pairs],
        accumulate=target,
        retain_graph=retain_graph or create_graph,
        create_graph=create_graph,
    )
    try:
        task.run()
        for completion in target.finish():
            completion.wait()
            if task.streams is not None:
                task.streams.wait()  # the end may have worked on a GPU meanwhile
    except BaseException as error:
        target.abandon(error)
        raise
