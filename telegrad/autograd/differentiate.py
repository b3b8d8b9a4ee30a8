"""`grad`: gradients with respect to chosen tensors, handed back instead of accumulated."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Any, Literal, final, overload

import numpy as np

from telegrad.arrays import namespace
from telegrad.autograd.grad_mode import enable_grad
from telegrad.autograd.graph_task import GraphTask, is_sole
from telegrad.autograd.node import Edge, Gradient
from telegrad.autograd.row_sparse import is_row_sparse
from telegrad.autograd.tensor import Tensor, holding
from telegrad.autograd.trees import Rebuild, flatten, is_branch
from telegrad.errors import AutogradError

__all__ = ["Wanted", "grad", "gradients_of_roots", "own_gradient", "tensors_in"]


@overload
def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Gradient | Sequence[Gradient | None] | None = None,
    *,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: Literal[False] = False,
) -> tuple[Tensor, ...]: ...


@overload
def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Gradient | Sequence[Gradient | None] | None = None,
    *,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool,
) -> tuple[Tensor | None, ...]: ...


@overload
def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    *,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool = False,
) -> Any: ...


def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    *,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool = False,
) -> Any:
    """Returns the gradients of `outputs` with respect to `inputs`; touches no `Tensor.grad`.

    Runs only what lies between the two.

    Args:
        outputs: One or several roots; a tree of them (dicts, lists, tuples, dataclasses).
        inputs: Leaves or results that need a gradient; a tree of them.
        grad_outputs: One per output, in its shape; None for a scalar means 1.
        retain_graph: Keeps the graph for another backward; None means as `create_graph`.
        create_graph: Records the backward, so that the results can be differentiated.
        allow_unused: Gives None for an input that no output depends on.

    Returns:
        One per input, in its shape and dtype: a tuple for one Tensor and for a list or tuple of
        them, else a tree like `inputs`.

    Raises:
        AutogradError: An input needs no gradient or is unused; else as `backward`.

    >>> from telegrad.autograd import tensor
    >>> x = tensor(3.0, requires_grad=True)
    >>> (slope,) = grad(x**3, x, create_graph=True)
    >>> slope.item(), grad(slope, x)[0].item()
    (27.0, 18.0)
    """
    roots, _ = tensors_in(outputs)
    wanted = Wanted(inputs)
    given = gradients_of_roots(grad_outputs, len(roots))
    task = GraphTask(
        [root.root(g, create_graph=create_graph) for root, g in zip(roots, given, strict=True)],
        accumulate=_nothing,
        retain_graph=create_graph if retain_graph is None else retain_graph,
        create_graph=create_graph,
        captures=wanted.edges,
    )
    task.run()
    return wanted.answer(task.captured, allow_unused=allow_unused)


@final
class Wanted:
    """What a `grad` is to differentiate by, and the form of its answer.

    Args:
        inputs: As for `grad`.

    Raises:
        AutogradError: One of them is no Tensor, or needs no gradient.

    Attributes:
        edges: Where the gradients that are wanted come to.
    """

    def __init__(self, inputs: Any) -> None:
        tensors, self._rebuild = tensors_in(inputs)
        leaves: Sequence[Any] = tensors  # of a tree they may be anything
        self.edges: list[Edge] = []
        for i, x in enumerate(leaves):
            edge = x.edge if isinstance(x, Tensor) else None
            if edge is None:
                raise _no_edge(x, i)
            self.edges.append(edge)

    def answer(self, captured: MutableMapping[Edge, Gradient], *, allow_unused: bool) -> Any:
        """Returns the gradients that came to `edges`, in a tree like that of the inputs.

        Args:
            captured: By edge. It is emptied, for a gradient that nobody else holds is not copied.
            allow_unused: Whether there may be none at some of them.

        Raises:
            AutogradError: None came to one of them, and that is not allowed.
        """
        found: list[Any] = [captured.get(edge) for edge in self.edges]
        captured.clear()
        unused = [i for i, g in enumerate(found) if g is None]
        if unused and not allow_unused:
            raise AutogradError(
                f"no gradient reached inputs {unused}: the outputs do not depend on them; "
                "pass allow_unused=True to get None for these"
            )
        for i in range(len(found)):
            held, found[i] = [found[i]], None
            if held[0] is not None:
                found[i] = holding(held[0]) if is_sole(held) else own_gradient(held[0])
        return self._rebuild(found)


def tensors_in(tree: Any) -> tuple[list[Tensor], Rebuild]:
    """Returns the Tensors of `tree`, and what builds a tree of others; of flat ones, a tuple."""
    if isinstance(tree, Tensor):
        return [tree], tuple
    if isinstance(tree, (list, tuple)):
        for x in tree:  # a generator takes three times as long
            if not isinstance(x, Tensor):
                return flatten(tree)
        return list(tree), tuple
    if is_branch(tree):
        return flatten(tree)
    return list(tree), tuple  # an iterator, such as module.parameters()


def gradients_of_roots(
    gradients: Gradient | Sequence[Gradient | None] | None, count: int
) -> Sequence[Gradient | None]:
    """Returns one gradient, or None, for each of `count` roots.

    Raises:
        AutogradError: It is another number of them.
    """
    if gradients is None:
        return [None] * count
    if isinstance(gradients, (list, tuple)):
        if len(gradients) != count:
            raise AutogradError(f"{count} outputs were given {len(gradients)} gradients")
        return gradients
    if count != 1:
        raise AutogradError(f"{count} outputs were given one gradient; pass a list")
    return [gradients]  # type: ignore[list-item]


def _no_edge(x: Any, i: int) -> AutogradError:
    if not isinstance(x, Tensor):
        return AutogradError(f"input {i} is no tensor but {type(x).__name__}")
    return AutogradError(f"input {i} of shape {x.shape} needs no gradient")


def own_gradient(gradient: Gradient) -> Tensor:
    """Returns a gradient for the user: arrays inside the engine may be shared, this one is not."""
    if type(gradient) is np.ndarray:
        return holding(gradient.copy("K"))
    if isinstance(gradient, Tensor):
        with enable_grad():
            return gradient.copy()
    if is_row_sparse(gradient):
        return gradient.copy()  # type: ignore[return-value]
    return Tensor(namespace(gradient).array(gradient))


def _nothing(tensor: Tensor, gradient: Gradient) -> None:
    """Accumulates nowhere: a task with captures never calls it."""
