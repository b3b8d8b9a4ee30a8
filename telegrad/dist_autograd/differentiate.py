"""`grad`: gradients of tensors of any workers with respect to chosen tensors of this one.

The pass is one like any other, but keeps nothing in the context: on other workers it runs only what
leads to yet other ones, here what leads there too, or to what is asked for.
"""

from __future__ import annotations

from typing import Any, Literal, overload

from telegrad.autograd import Tensor, Wanted, gradients_of_roots, tensors_in
from telegrad.dist_autograd.container import Container
from telegrad.dist_autograd.messages import PassMode
from telegrad.dist_autograd.released import ContextId
from telegrad.dist_autograd.roots import listed
from telegrad.dist_autograd.starting import run_pass_from
from telegrad.errors import AutogradError
from telegrad.rpc import RRef, current_agent

__all__ = ["grad"]


@overload
def grad(
    context_id: ContextId,
    outputs: Any,
    inputs: Tensor | list[Tensor] | tuple[Tensor, ...],
    grad_outputs: Any = None,
    *,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: Literal[False] = False,
    timeout: float | None = None,
) -> tuple[Tensor, ...]: ...


@overload
def grad(
    context_id: ContextId,
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    *,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool = False,
    timeout: float | None = None,
) -> Any: ...


def grad(
    context_id: ContextId,
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    *,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool = False,
    timeout: float | None = None,
) -> Any:
    """Returns the gradients of `outputs` with respect to `inputs`, through calls to other workers.

    As `telegrad.grad`, inside an autograd context: nothing is added to the context, no
    `Tensor.grad` is touched. With `create_graph` the results can be differentiated again, by this
    or by `backward` in the same context; a penalty on a gradient is the same as in one process.

    Args:
        context_id: What `with context() as context_id` gave.
        outputs: Tensors of this worker and RRefs to tensors of any: one, or a tree of them (dicts,
            lists, tuples, dataclasses).
        inputs: Leaves or results of this worker that need a gradient, received ones too; a tree.
        grad_outputs: One per output, in its shape; None for a scalar means 1.
        retain_graph: Keeps the graph for another backward; None means as `create_graph`.
        create_graph: Records the backward on all workers that take part.
        allow_unused: Gives None for an input that no output depends on.
        timeout: As for `backward`.

    Returns:
        One per input, in its shape and dtype: a tuple for one Tensor and for a list or tuple of
        them, else a tree like `inputs`.

    Raises:
        AutogradError: An input is no tensor of this worker, needs no gradient or is unused.
        Exception: As `backward`; none of its workers keeps anything of a call that raises.

    Example:
        >>> import operator
        >>> from telegrad import dist_autograd, rpc, tensor
        >>> with rpc.init_rpc("a"), dist_autograd.context() as context_id:
        ...     x = tensor(3.0, requires_grad=True)
        ...     cube = rpc.rpc_sync("a", operator.pow, (x, 3))
        ...     (slope,) = dist_autograd.grad(context_id, cube, x, create_graph=True)
        ...     (curve,) = dist_autograd.grad(context_id, slope, x)
        ...     slope.item(), curve.item()
        (27.0, 18.0)
    """
    container = current_agent().attached(Container)
    roots = listed([outputs] if isinstance(outputs, Tensor | RRef) else tensors_in(outputs)[0])
    if isinstance(inputs, RRef):
        raise AutogradError(
            f"inputs are tensors of this worker, and this is an RRef to one at "
            f"{inputs.owner_name()!r}; call grad there, with rpc_sync"
        )
    wanted = Wanted(inputs)
    given = gradients_of_roots(grad_outputs, len(roots))
    retain = create_graph if retain_graph is None else retain_graph
    runner = run_pass_from(
        container,
        context_id,
        roots,
        given,
        PassMode(retain, create_graph, keep=False),
        timeout,
        call="dist_autograd.grad, context_id, outputs, inputs",
        wanted=wanted.edges,
    )
    return wanted.answer(runner.take_captured(), allow_unused=allow_unused)
