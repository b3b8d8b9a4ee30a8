"""`grad`: gradients with respect to chosen tensors, handed back instead of accumulated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, overload

from telegrad.arrays import namespace
from telegrad.autograd.grad_mode import enable_grad
from telegrad.autograd.graph_task import GraphTask
from telegrad.autograd.node import Edge, Gradient
from telegrad.autograd.tensor import Tensor
from telegrad.errors import AutogradError

__all__ = ["grad"]


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


def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Gradient | Sequence[Gradient | None] | None = None,
    *,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool = False,
) -> tuple[Tensor | None, ...]:
    """Returns the gradients of `outputs` with respect to `inputs`; touches no `Tensor.grad`.

    Runs only what lies between the two.

    Args:
        outputs: One or several roots.
        inputs: Leaves or results that need a gradient.
        grad_outputs: One per output, in its shape; None for a scalar means 1.
        retain_graph: Keeps the graph for another backward; None means as `create_graph`.
        create_graph: Records the backward, so that the results can be differentiated.
        allow_unused: Gives None for an input that no output depends on.

    Returns:
        One per input, in its shape and dtype.

    Raises:
        AutogradError: An input needs no gradient or is unused; else as `backward`.

    >>> from telegrad.autograd import tensor
    >>> x = tensor(3.0, requires_grad=True)
    >>> (slope,) = grad(x**3, x, create_graph=True)
    >>> slope.item(), grad(slope, x)[0].item()
    (27.0, 18.0)
    """
    roots = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    wanted = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    given = _per_root(grad_outputs, len(roots))
    edges = [_edge(x, i) for i, x in enumerate(wanted)]
    task = GraphTask(
        [root.root(g, create_graph=create_graph) for root, g in zip(roots, given, strict=True)],
        accumulate=_nothing,
        retain_graph=create_graph if retain_graph is None else retain_graph,
        create_graph=create_graph,
        captures=edges,
    )
    task.run()
    found = [task.captured.get(edge) for edge in edges]
    unused = [i for i, g in enumerate(found) if g is None]
    if unused and not allow_unused:
        raise AutogradError(
            f"no gradient reached inputs {unused}: the outputs do not depend on them; "
            "pass allow_unused=True to get None for these"
        )
    return tuple(None if g is None else _own(g) for g in found)


def _per_root(
    gradients: Gradient | Sequence[Gradient | None] | None, count: int
) -> Sequence[Gradient | None]:
    if gradients is None:
        return [None] * count
    if isinstance(gradients, (list, tuple)):
        if len(gradients) != count:
            raise AutogradError(f"{count} outputs were given {len(gradients)} gradients")
        return gradients
    if count != 1:
        raise AutogradError(f"{count} outputs were given one gradient; pass a list")
    return [gradients]  # type: ignore[list-item]


def _edge(x: Tensor, i: int) -> Edge:
    edge = x.edge
    if edge is None:
        raise AutogradError(f"input {i} of shape {x.shape} needs no gradient")
    return edge


def _own(gradient: Gradient) -> Tensor:
    # Arrays inside the engine may be shared; what the user gets is the user's.
    if isinstance(gradient, Tensor):
        with enable_grad():
            return gradient.copy()
    return Tensor(namespace(gradient).array(gradient))


def _nothing(tensor: Tensor, gradient: Gradient) -> None:
    """Accumulates nowhere: a task with captures never calls it."""
