"""The verbs of distributed autograd on the ambient agent, and its attachment to an agent."""

from __future__ import annotations

import math
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
from telegrad.dist_autograd.ids import ContextId, check_context_id
from telegrad.dist_autograd.interceptor import AutogradInterceptor
from telegrad.dist_autograd.messages import PassMode
from telegrad.dist_autograd.pass_gradients import moved_to
from telegrad.dist_autograd.remote_roots import RemoteRoots
from telegrad.dist_autograd.roots import check_root, gradients_for, listed, root_of
from telegrad.dist_autograd.starting import run_pass, run_pass_from
from telegrad.errors import (
    AutogradError,
    BlockingCallError,
    CallTimeoutError,
    ContextError,
    DecodeError,
    OwnerLostError,
)
from telegrad.rpc import RRef
from telegrad.rpc.seams import (
    AgentCore,
    RRefCalls,
    RRefServing,
    UserCall,
    current_agent,
    on_own_loop,
    reference_of,
)
from telegrad.types import WorkerInfo

__all__ = [
    "AutogradContext",
    "RRefBackward",
    "attach_to",
    "backward",
    "backward_from_rref",
    "context",
    "get_gradients",
    "grad",
]


# -- `RRef.backward` at both ends ----------------------------------------------------------------
#
#     holder                                           owner
#     rref.backward  {rref, context, gradient,
#                     retain, create}         ───────▶  the starter: once the value is there, a pass
#                                                       that has it as its only root
#     None, or what ended the pass            ◀───────  the pass has ended everywhere
#
# The gradient of the root is an argument like any other: it is recorded if the pass is. The owner
# sends the request to itself in the same way. If the holder gives up or is lost, the served call is
# cancelled, which ends the wait for the pass and aborts it. Without a context there is no message:
# only the owner may call backward, and it differentiates its own graph.

BACKWARD = "rref.backward"
LABEL = "RRef.backward"


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
    if on_own_loop():
        raise BlockingCallError(
            f"{LABEL}() would block a loop of telegrad's; in an async def function write "
            "`await rpc.to_thread(rref.backward, context_id)`"
        )
    if context_id is None:
        _local(rref, gradient, PassMode(retain_graph, create_graph), timeout)
        return
    number = int(check_context_id(context_id))
    owner, calls = rref.owner(), reference_of(rref).registry.agent.attachments[RRefCalls]
    payload = {
        "rref": list(reference_of(rref).rref),
        "context": number,
        "gradient": gradient if create_graph or not isinstance(gradient, Tensor) else gradient.data,
        "retain": bool(retain_graph),
        "create": bool(create_graph),
    }
    ended = calls.send(reference_of(rref), BACKWARD, payload, LABEL, timeout)
    try:
        ended.wait()
    except KeyboardInterrupt:
        ended.cancel()  # no other code holds this future
        raise
    except (CallTimeoutError, OwnerLostError) as error:
        error.add_note(
            f"backward of autograd context {context_id} had its root at {owner.name!r} and is "
            "aborted unless it ended in that very moment; repeat the step in a new context"
        )
        raise


def _local(
    rref: RRef[Any], gradient: Gradient | None, mode: PassMode, timeout: float | None
) -> None:
    if not rref.is_owner():
        raise ContextError(
            f"backward() without a context id differentiates on the owner of the RRef alone, which "
            f"is {rref.owner_name()!r} and not {reference_of(rref).registry.me.name!r}; write "
            "rref.backward(context_id) inside `with dist_autograd.context() as context_id`"
        )
    value = rref.to_here(timeout)
    root = check_root(value, _called(rref.owner()), given=gradient is not None)
    root.backward(gradient, retain_graph=mode.retain, create_graph=mode.create)


@final
class RRefBackward:
    """The owner's end of `RRef.backward`.

    Args:
        container: The contexts of this worker.
    """

    def __init__(self, container: Container) -> None:
        self._container = container
        self._serving = container.agent.attachments[RRefServing]

    def register(self) -> None:
        """Makes the agent serve these requests."""
        self._container.agent.serving.serve(BACKWARD, self._prepare)

    def _prepare(self, caller: WorkerInfo, payload: object) -> UserCall:
        del caller
        fields = payload if isinstance(payload, dict) else {}
        context_id, gradient = fields.get("context"), fields.get("gradient")
        retain, create = fields.get("retain"), fields.get("create")
        if not (type(context_id) is int and isinstance(retain, bool) and isinstance(create, bool)):
            raise DecodeError(
                f"the body of {BACKWARD} is not {{rref, context, gradient, retain, create}}"
            )
        mode = PassMode(retain or create, create)

        def backward_from(value: object) -> UserCall:
            return UserCall(self._run, (value, context_id, gradient, mode), name=LABEL)

        return self._serving.on_value(payload, "backward", backward_from)

    def _run(self, value: object, context_id: ContextId, gradient: Any, mode: PassMode) -> None:
        called = _called(self._container.agent.info)
        root = root_of(value, called, gradient, create_graph=mode.create)
        context = self._container.find(context_id)
        # `here=False`: the holder of the RRef gets the result as soon as the pass has ended.
        run_pass(self._container, context, [root], mode, math.inf, here=False)


def _called(owner: WorkerInfo) -> str:
    return f"the value of this RRef at {owner.name!r}"


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
    RRefBackward(container).register()
    RemoteRoots(container).register()
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
        >>> import operator
        >>> from telegrad import dist_autograd, rpc, tensor
        >>> with rpc.init_rpc("a"), dist_autograd.context() as context_id:
        ...     x = tensor([1.0, 2.0], requires_grad=True)
        ...     y = rpc.rpc_sync("a", operator.mul, (x, x))  # recorded at both ends
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
            The owner of an RRef alone starts the pass: see `RRef.backward`.
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
        >>> import operator
        >>> from telegrad import dist_autograd, rpc, tensor
        >>> with rpc.init_rpc("a"), dist_autograd.context() as context_id:
        ...     x = tensor([1.0, 2.0], requires_grad=True)
        ...     product = rpc.remote("a", operator.mul, (x, x))
        ...     dist_autograd.backward(context_id, [x.sum(), product], [None, [1.0, 10.0]])
        ...     dist_autograd.get_gradients(context_id)[x]
        tensor([ 3., 41.])
    """
    container = current_agent().attachments[Container]
    starts = listed(roots)
    given = gradients_for(starts, gradients)
    if len(starts) == 1 and isinstance(starts[0], RRef):
        check_context_id(context_id)  # raises for None, too
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
        context_id: The id from `with context() as context_id`, on this worker or on another one.

    Returns:
        New tensors in the shape and dtype of their leaves, by leaf, by identity. Leaves that no
        gradient reached are missing. Where `nn.Embedding(sparse=True)` alone has added, it is a
        `RowSparse`; where a backward was recorded (`create_graph`), it can be differentiated.

    Raises:
        TypeError: `context_id` is no context id.
        ContextError: The context was released, or this worker never heard of it.

    Example:
        >>> import operator
        >>> from telegrad import dist_autograd, rpc, tensor
        >>> with rpc.init_rpc("a"), dist_autograd.context() as context_id:
        ...     x = tensor([1.0, 2.0], requires_grad=True)
        ...     y = rpc.rpc_sync("a", operator.mul, (x, x))
        ...     dist_autograd.backward(context_id, [y.sum()])
        ...     dist_autograd.get_gradients(context_id)[x]
        tensor([2., 4.])
    """
    gradients = current_agent().attachments[Container].gradients(context_id)
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
    return wanted.answer(
        runner.take_captured(), allow_unused=allow_unused, streams=runner.gradients.streams
    )
