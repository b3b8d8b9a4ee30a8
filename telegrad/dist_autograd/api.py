"""The verbs of distributed autograd on the ambient agent, and its attachment to an agent."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import Token
from types import TracebackType
from typing import Any, Literal, cast, final, overload

import numpy as np

from telegrad.autograd import Gradient, Tensor, Wanted, gradients_of_roots, own_gradient, tensors_in
from telegrad.dist_autograd.container import Container, Handlers
from telegrad.dist_autograd.context import (
    Ambient,
    ambient_context,
    enter_ambient,
    leave_ambient,
)
from telegrad.dist_autograd.ids import ContextId
from telegrad.dist_autograd.interceptor import AutogradInterceptor
from telegrad.dist_autograd.messages import PassMode
from telegrad.dist_autograd.pass_gradients import moved_to
from telegrad.dist_autograd.roots import check_root, gradients_for, listed, serve_roots
from telegrad.dist_autograd.starting import check_may_block, run_pass
from telegrad.errors import AutogradError, ContextError
from telegrad.rpc import RRef
from telegrad.rpc.seams import AgentCore, current_agent, reference_of, refuse_in_section

__all__ = [
    "AutogradContext",
    "attach_to",
    "backward",
    "backward_from_rref",
    "context",
    "get_gradients",
    "grad",
]


# -- the verbs -----------------------------------------------------------------------------------


def attach_to(agent: AgentCore) -> Container:
    """Attaches distributed autograd to an agent, before the agent serves.

    Returns:
        The container of the agent's contexts.
    """
    container = Container(agent)
    agent.attachments.attach(container)
    agent.codec.add(AutogradInterceptor(container))
    agent.inbox.on_loss(container.on_lost)
    Handlers(container).register()
    serve_roots(container)
    return container


@final
class AutogradContext:
    """The block of one autograd context, from `context()`; sync and async."""

    def __init__(self) -> None:
        self._entered: tuple[Container, Ambient, Token[Ambient | None]] | None = None

    def __enter__(self) -> ContextId:
        outer = ambient_context()
        if outer is not None:
            raise ContextError(
                f"this code is inside autograd context {outer} already, and contexts do not nest; "
                "leave that block first, or open the other one in a thread of its own (a function "
                "called in a context runs in it)"
            )
        container = current_agent().attachments[Container]
        ambient = Ambient(container.create())
        self._entered = (container, ambient, enter_ambient(ambient))
        return ambient.context_id

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._entered is not None
        container, ambient, token = self._entered
        try:
            leave_ambient(ambient, token)
        finally:
            container.release(ambient.context_id)

    async def __aenter__(self) -> ContextId:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, trace)


def context() -> AutogradContext:
    """Opens an autograd context, in a `with` or `async with` block that gives its id.

    Inside the block, every call carries the context. Tensors that need a gradient and go between
    workers are recorded, so that `backward` can follow them. The end of the block releases the
    context here and on all workers that it reached. Threads and tasks started inside with a copy of
    the Context record in it too, until the block ends.

    Raises:
        NotInitializedError: No agent runs here.
        ContextError: The block is entered inside another context.

    Example:
        >>> import numpy as np
        >>> from telegrad import dist_autograd, rpc, tensor
        >>> with rpc.init_rpc("a"), dist_autograd.context() as context_id:
        ...     x = tensor([1.0, 2.0], requires_grad=True)
        ...     y = rpc.rpc_sync("a", np.multiply, (x, x))  # recorded at both ends
        ...     dist_autograd.backward(context_id, [y.sum()])
        ...     dist_autograd.get_gradients(context_id)[x]
        tensor([2., 4.])
    """
    return AutogradContext()


def backward(
    context_id: ContextId,
    roots: Sequence[Tensor | RRef[Any]],
    gradients: Sequence[Gradient | None] | None = None,
    *,
    retain_graph: bool = False,
    create_graph: bool = False,
    timeout: float | None = None,
) -> None:
    """Computes the gradients of `roots` on all workers that took part, and keeps them there.

    Gradients of leaves are added to the context, on the worker where each leaf lives; read them
    with `get_gradients`. `Tensor.grad` is never touched. When it raises, no worker that can be
    reached keeps any gradient of this call.

    Args:
        context_id: The id from `with context() as context_id`.
        roots: Tensors of this worker, and RRefs to tensors of any; their sum is differentiated.
        gradients: One gradient for each root, in its shape; None for a scalar means 1.
        retain_graph: Keeps the graph for another backward.
        create_graph: Records the backward on all workers, so that the gradients in the context can
            be differentiated again there; implies `retain_graph`.
        timeout: Seconds above 0; None for `RpcOptions.timeout`; `math.inf` for no limit. What
            the served call has left bounds it.

    Raises:
        TypeError: `roots` is no list of tensors, or `context_id` no context id.
        ContextError: The context was released, or this worker, or the owner of a root, knows none
            of that id.
        ContextMismatchError: A gradient reached what was received in another context.
        AutogradError: There are no roots; a root needs no gradient, or is no scalar and got none; a
            gradient has another shape; the graph was freed, or a saved value changed in place.
        OwnerLostError: The owner of a root is lost.
        WorkerLostError: A worker that takes part is lost.
        CallTimeoutError: The pass did not end in time.
        BlockingCallError: The caller runs on an event loop of telegrad.
        Exception: The first error of a rule or hook on any worker; a note names the worker.

    Example:
        >>> import numpy as np
        >>> from telegrad import dist_autograd, rpc, tensor
        >>> with rpc.init_rpc("a"), dist_autograd.context() as context_id:
        ...     x = tensor([1.0, 2.0], requires_grad=True)
        ...     product = rpc.remote("a", np.multiply, (x, x))
        ...     dist_autograd.backward(context_id, [x.sum(), product], [None, [1.0, 10.0]])
        ...     dist_autograd.get_gradients(context_id)[x]
        tensor([ 3., 41.])
    """
    container = current_agent().attachments[Container]
    starts = listed(roots)
    given = gradients_for(starts, gradients)
    mode = PassMode(retain_graph or create_graph, create_graph)
    call = "dist_autograd.backward, context_id, roots"
    run_pass(container, context_id, starts, given, mode, timeout, call=call)


def backward_from_rref(
    rref: RRef[Any],
    context_id: ContextId | None,
    *,
    gradient: Gradient | None = None,
    retain_graph: bool = False,
    create_graph: bool = False,
    timeout: float | None = None,
) -> None:
    """Runs backward from the value of an RRef; see `RRef.backward`."""
    mode, call = PassMode(retain_graph or create_graph, create_graph), "rref.backward, context_id"
    agent = reference_of(rref).registry.agent
    if context_id is not None:
        container = agent.attachments[Container]
        run_pass(container, context_id, [rref], [gradient], mode, timeout, call=call)
        return
    check_may_block(call)
    if not rref.is_owner():
        raise ContextError(
            f"backward() without a context id differentiates on the owner of the RRef alone, which "
            f"is {rref.owner_name()!r} and not {agent.info.name!r}; write "
            "rref.backward(context_id) inside `with dist_autograd.context() as context_id`"
        )
    what = f"the value of this RRef at {rref.owner_name()!r}"
    root = check_root(rref.to_here(timeout), what, given=gradient is not None)
    root.backward(gradient, retain_graph=mode.retain, create_graph=mode.create)


def get_gradients(context_id: ContextId) -> dict[Tensor, Tensor]:
    """Returns the gradients of this worker's leaves that backwards have left in a context.

    Args:
        context_id: The id from `with context() as context_id`, on this worker or on another one.

    Returns:
        New tensors in the shape and dtype of their leaves, by leaf, by identity. Leaves that no
        gradient reached are missing. Where `nn.Embedding(sparse=True)` alone has added, it is a
        `RowSparse`; where a backward was recorded (`create_graph`), it can be differentiated.

    Raises:
        TypeError: `context_id` is no context id.
        ContextError: The context was released, or this worker never heard of it.

    Example:
        >>> import numpy as np
        >>> from telegrad import dist_autograd, rpc, tensor
        >>> with rpc.init_rpc("a"), dist_autograd.context() as context_id:
        ...     x = tensor([1.0, 2.0], requires_grad=True)
        ...     y = rpc.rpc_sync("a", np.multiply, (x, x))
        ...     dist_autograd.backward(context_id, [y.sum()])
        ...     dist_autograd.get_gradients(context_id)[x]
        tensor([2., 4.])
    """
    refuse_in_section("get_gradients()")
    gradients = current_agent().attachments[Container].find(context_id).gradients()
    return {leaf: _own(leaf, gradient) for leaf, gradient in gradients.items()}


def _own(leaf: Tensor, gradient: Gradient) -> Tensor:
    """Returns a copy of a gradient for the user, on the device of its leaf."""
    own = own_gradient(gradient)
    if type(gradient) is np.ndarray:
        return own
    return cast("Tensor", moved_to(own, leaf.device))


# -- `grad`: gradients of tensors of any workers with respect to chosen tensors of this one ------
#
# The pass keeps nothing in the context. On other workers it runs only nodes that lead to yet other
# workers; here it runs nodes that lead to other workers or to the inputs.


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

    This is `telegrad.grad` inside an autograd context: it adds nothing to the context and touches
    no `Tensor.grad`. With `create_graph` the results can be differentiated again, by this
    or by `backward` in the same context; a penalty on a gradient is the same as in one process.

    Args:
        context_id: The id from `with context() as context_id`.
        outputs: Tensors of this worker and RRefs to tensors of any worker: one, or a tree of them
            (dicts, lists, tuples, dataclasses).
        inputs: Leaves or results of this worker that need a gradient, received ones too; a tree.
        grad_outputs: One gradient per output, in its shape; None for a scalar means 1.
        retain_graph: Keeps the graph for another backward; None means as `create_graph`.
        create_graph: Records the backward on all workers that take part.
        allow_unused: Returns None for an input that no output depends on.
        timeout: Seconds above 0; None for `RpcOptions.timeout`; `math.inf` for no limit.

    Returns:
        One gradient per input, in its shape and dtype: a tuple for one Tensor and for a list or
        tuple of them, else a tree like `inputs`.

    Raises:
        AutogradError: An input is no tensor of this worker, needs no gradient or is unused.
        Exception: An error that `backward` lists; then no worker keeps anything of the call.

    Example:
        >>> import numpy as np
        >>> from telegrad import dist_autograd, rpc, tensor
        >>> with rpc.init_rpc("a"), dist_autograd.context() as context_id:
        ...     x = tensor(3.0, requires_grad=True)
        ...     cube = rpc.rpc_sync("a", np.power, (x, 3))
        ...     (slope,) = dist_autograd.grad(context_id, cube, x, create_graph=True)
        ...     (curve,) = dist_autograd.grad(context_id, slope, x)
        ...     slope.item(), curve.item()
        (27.0, 18.0)
    """
    container = current_agent().attachments[Container]
    roots = listed([outputs] if isinstance(outputs, Tensor | RRef) else tensors_in(outputs)[0])
    if isinstance(inputs, RRef):
        raise AutogradError(
            f"inputs are tensors of this worker, and this is an RRef to one at "
            f"{inputs.owner_name()!r}; call grad there, with rpc_sync"
        )
    wanted = Wanted(inputs)
    given = gradients_of_roots(grad_outputs, len(roots))
    retain = create_graph if retain_graph is None else retain_graph
    runner = run_pass(
        container,
        context_id,
        roots,
        given,
        PassMode(retain, create_graph, keep=False),
        timeout,
        call="dist_autograd.grad, context_id, outputs, inputs",
        wanted=wanted.edges,
    )
    return wanted.answer(
        runner.take_captured(), allow_unused=allow_unused, streams=runner.gradients.streams
    )
