"""Backward on one worker: a graph task whose gradients are added to `tensor.grad`."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol, final

from telegrad.autograd.graph.dispatch import BACKWARD, TABLE
from telegrad.autograd.graph.graph_task import GraphTask
from telegrad.autograd.tensor.tensor import Gradient, Tensor
from telegrad.errors import AutogradError

__all__ = [
    "Completion",
    "GradientTarget",
    "LocalGradients",
    "PassEnd",
    "backward",
]


# -- where a backward keeps the gradients of leaves, and what is done at the end of its pass -----
#
# task runs ──▶ target(leaf, gradient) ──▶ hook(leaf, target) ──▶ target.at_end(end)
#     │
#     ├─ every leaf has its gradient ──▶ end.finish() ──▶ waited for ──▶ backward returns
#     └─ something raised, here or there ──▶ end.abandon(cause) ──▶ backward raises it


class Completion(Protocol):
    """What will be done later, with success or an error: a future, as seen from here."""

    def wait(self) -> object:
        """Blocks until it is done; raises its error."""

    def exception(self) -> BaseException | None:
        """Returns the error of what is done, or None."""

    def add_done_callback(self, callback: Callable[[Any], object], /) -> object:
        """Calls `callback(self)` once it is done; at once, here, if it is."""


class PassEnd(ABC):
    """What a post-accumulate hook wants done when the pass that called it has run through.

    Exactly one of two things happens: `finish` alone, which then succeeds; or the pass fails and
    `abandon` is called, before, during or after `finish`, which may itself be why it fails.
    """

    @abstractmethod
    def finish(self) -> Completion:
        """Starts what is left to do, now that every leaf of this pass has its gradient.

        Must not wait: the pass does, and is over when all that its ends returned is done. A local
        backward waits in its caller's thread; in a distributed one, nobody waits.
        """

    @abstractmethod
    def abandon(self, cause: BaseException) -> None:
        """Hears that the pass failed. Must not wait; may be called from any thread."""


class GradientTarget(ABC):
    """Where a backward keeps the gradients of leaves; calling it adds one.

    Post-accumulate hooks are given it, so that they work on the gradient wherever it is kept.
    There is one for each pass. Who runs the pass calls `finish`, waits for what it returns, and
    calls `abandon` when anything of this raises.
    """

    def __init__(self) -> None:
        self._ends_lock = threading.Lock()  # guards the three below
        self._ends: list[PassEnd] = []
        self._finishing = False
        self._abandoned = False

    @abstractmethod
    def __call__(self, tensor: Tensor, gradient: Gradient) -> None:
        """Adds `gradient`, which may be a RowSparse, to what is kept for `tensor`.

        An array may be kept: see `GraphTask`.
        """

    @abstractmethod
    def get(self, tensor: Tensor) -> Tensor | None:
        """Returns what is kept for `tensor`."""

    @abstractmethod
    def replace(self, tensor: Tensor, gradient: Tensor | None) -> None:
        """Keeps `gradient` for `tensor` instead."""

    def earlier(self) -> Sequence[GradientTarget]:
        """Returns the targets of passes before this one that keep their gradients apart.

        The user reads the sum of theirs and this one's. None of them for `tensor.grad`, which is
        that sum itself.
        """
        return ()

    def at_end(self, end: PassEnd) -> None:
        """Has `end` finish, or abandon, its work together with this pass. For hooks.

        Raises:
            AutogradError: The pass has failed, or every leaf has its gradient already.
        """
        with self._ends_lock:
            if self._abandoned or self._finishing:
                state = "has failed" if self._abandoned else "has run through"
                raise AutogradError(f"the backward pass that this hook belongs to {state} already")
            self._ends.append(end)

    @property
    def has_ends(self) -> bool:
        """Whether `finish` has anything to start."""
        return bool(self._ends)

    def finish(self) -> list[Completion]:
        """Starts what the ends of this pass have left to do; for who runs the pass, once.

        Returns:
            What must be done before the pass is over.
        """
        with self._ends_lock:
            self._finishing = True
            ends = [] if self._abandoned else list(self._ends)
        return [end.finish() for end in ends]

    def abandon(self, cause: BaseException) -> None:
        """Tells the ends of this pass that it failed; idempotent. For who runs the pass."""
        with self._ends_lock:
            self._abandoned = True
            ends, self._ends = self._ends, []
        for end in ends:
            end.abandon(cause)


@final
class LocalGradients(GradientTarget):
    """Keeps gradients in `tensor.grad`."""

    def __call__(self, tensor: Tensor, gradient: Gradient) -> None:
        """Adds `gradient` to `tensor.grad`, atomically among backwards in several threads."""
        tensor.accumulate_grad(gradient, own=True)

    def get(self, tensor: Tensor) -> Tensor | None:
        """Returns `tensor.grad`."""
        return tensor.grad

    def replace(self, tensor: Tensor, gradient: Tensor | None) -> None:
        """Sets `tensor.grad`."""
        tensor.grad = gradient


# ------------------------------------------------------------------------------------------------


@TABLE.register(BACKWARD)
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
