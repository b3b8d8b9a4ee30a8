"""The verbs of distributed autograd, on the ambient agent, and how it is put on an agent."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import Token
from types import TracebackType
from typing import Any, cast, final

import numpy as np

from telegrad.autograd import Gradient, Tensor, own_gradient
from telegrad.dist_autograd.container import Container
from telegrad.dist_autograd.context import (
    Ambient,
    ambient_context,
    enter_ambient,
    leave_ambient,
)
from telegrad.dist_autograd.handlers import Handlers
from telegrad.dist_autograd.interceptor import AutogradInterceptor
from telegrad.dist_autograd.messages import PassMode
from telegrad.dist_autograd.pass_gradients import moved_to
from telegrad.dist_autograd.released import ContextId, check_context_id
from telegrad.dist_autograd.remote_roots import RemoteRoots
from telegrad.dist_autograd.roots import gradients_for, listed
from telegrad.dist_autograd.rref_backward import RRefBackward, backward_from_rref
from telegrad.dist_autograd.starting import run_pass_from
from telegrad.errors import ContextError
from telegrad.rpc import Agent, RRef, current_agent

__all__ = ["AutogradContext", "attach_to", "backward", "context", "get_gradients"]


def attach_to(agent: Agent) -> Container:
    """Puts distributed autograd on an agent: the composition root calls it before the agent serves.

    Returns:
        The container of the agent's contexts.
    """
    container = Container(agent)
    agent.attach(container)
    agent.add_interceptor(AutogradInterceptor(container))
    agent.on_lost(container.on_lost)
    Handlers(container).register()
    RRefBackward(container).register()
    RemoteRoots(container).register()
    return container


@final
class AutogradContext:
    """The block of one autograd context; made by `context()`, sync and async."""

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
        container = current_agent().attached(Container)
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

    Inside, every call carries the context; what needs a gradient and crosses between workers is
    recorded, so that `backward` can follow it. Leaving the block releases the context here and
    on all workers that it reached. Threads and tasks started inside with a copy of this Context
    record in it too, until it is left.

    Raises:
        NotInitializedError: No agent runs here.
        ContextError: On entering: this code is inside a context already.
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
        context_id: What `with context() as context_id` gave.
        roots: Tensors of this worker, and RRefs to tensors of any; their sum is differentiated.
            The owner of an RRef alone starts the pass: see `RRef.backward`.
        gradients: One for each root, in its shape; None for a scalar means 1.
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
        AutogradError: No roots, or one that needs no gradient, or is no scalar and was given none;
            a gradient has another shape; the graph was freed, or changed in place.
        OwnerLostError: The owner of a root is lost.
        WorkerLostError: A worker that takes part is lost.
        CallTimeoutError: Not all was done in time.
        BlockingCallError: On an event loop that telegrad runs.
        Exception: What a rule or hook raised first, on any worker; a note names the worker.

    Example:
        >>> import operator
        >>> from telegrad import dist_autograd, rpc, tensor
        >>> with rpc.init_rpc("a"), dist_autograd.context() as context_id:
        ...     x = tensor([1.0, 2.0], requires_grad=True)
        ...     product = rpc.remote("a", operator.mul, (x, x))
        ...     dist_autograd.backward(context_id, [x.sum(), product], [None, [1.0, 10.0]])
        ...     dist_autograd.get_gradients(context_id)[x]
        tensor([ 3., 41.])
    """
    container = current_agent().attached(Container)
    starts = listed(roots)
    given = gradients_for(starts, gradients)
    if len(starts) == 1 and isinstance(starts[0], RRef):
        check_context_id(context_id)  # None, too, is none
        backward_from_rref(
            starts[0],
            context_id,
            gradient=given[0],
            retain_graph=retain_graph,
            create_graph=create_graph,
            timeout=timeout,
        )
        return
    mode = PassMode(retain_graph or create_graph, create_graph)
    call = "dist_autograd.backward, context_id, roots"
    run_pass_from(container, context_id, starts, given, mode, timeout, call=call)


def get_gradients(context_id: ContextId) -> dict[Tensor, Tensor]:
    """Returns the gradients of this worker's leaves that backwards have left in a context.

    Args:
        context_id: What `with context() as context_id` gave; it may have been sent here.

    Returns:
        New tensors in the shape and dtype of their leaves, by leaf, by identity. Leaves that no
        gradient reached are missing. Where `nn.Embedding(sparse=True)` alone has added, it is a
        `RowSparse`; where a backward was recorded (`create_graph`), it can be differentiated.

    Raises:
        TypeError: `context_id` is no context id.
        ContextError: The context was released, or this worker never heard of it.
    """
    gradients = current_agent().attached(Container).gradients(context_id)
    return {leaf: _own(leaf, gradient) for leaf, gradient in gradients.items()}


def _own(leaf: Tensor, gradient: Gradient) -> Tensor:
    """Returns a gradient for the user, where its leaf is."""
    own = own_gradient(gradient)
    if type(gradient) is np.ndarray:
        return own
    return cast("Tensor", moved_to(own, leaf.device))
