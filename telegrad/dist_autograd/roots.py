"""The roots of a pass: their checks, and those that live on other workers.

    starter                                                  owner of a root
    autograd.root {rref, context, given}  ────────────────▶  a send function above the value
    a recv function of that               ◀── message ─────
    the pass begins, with the recv function as its root

So the graph is the same as if the value had been fetched inside the context, but the array stays at
its owner. A send function whose answer got lost does no harm: without a receive, it is answered
with none. A root that this worker owns needs no message.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from telegrad.arrays import namespace
from telegrad.autograd import Edge, Gradient, Tensor, attach, gradients_of_roots
from telegrad.autograd.seams import array_of, graph_root
from telegrad.dist_autograd.container import Container
from telegrad.dist_autograd.context import Context
from telegrad.dist_autograd.ids import ContextId
from telegrad.errors import AutogradError, DecodeError
from telegrad.rpc import Future, RRef
from telegrad.rpc.seams import RRefCalls, RRefServing, UserCall, reference_of, wait_each
from telegrad.types import WorkerInfo


def listed(roots: object) -> list[Tensor | RRef[Any]]:
    """Returns the roots of a pass as a list.

    Raises:
        TypeError: `roots` is no list or tuple, or one item is neither a Tensor nor an RRef.
        AutogradError: The list is empty.
    """
    if not isinstance(roots, list | tuple):
        raise TypeError(
            f"roots must be a list of tensors, not {type(roots).__name__}; for one loss "
            "write dist_autograd.backward(context_id, [loss])"
        )
    if not roots:
        raise AutogradError("backward needs at least one root, and the list is empty")
    for i, root in enumerate(roots):
        if not isinstance(root, Tensor | RRef):
            raise TypeError(_no_tensor(f"roots[{i}]", root))
    return list(roots)


def gradients_for(roots: Sequence[object], gradients: object) -> list[Any]:
    """Returns one gradient for each root, None for the 1 of a scalar.

    Raises:
        TypeError: `gradients` is no list or tuple.
        AutogradError: The numbers of gradients and roots differ.
    """
    if not isinstance(gradients, list | tuple | None):
        raise TypeError(
            f"gradients must be a list with one for each root, not {type(gradients).__name__}; for "
            "one root write dist_autograd.backward(context_id, [root], [gradient])"
        )
    return list(gradients_of_roots(gradients, len(roots)))


def check_root(root: object, what: str, *, given: bool = False) -> Tensor:
    """Returns `root` if it can be the root of a backward.

    Args:
        root: The tensor.
        what: The name of the tensor in messages.
        given: True if its gradient is given.

    Raises:
        TypeError: `root` is no Tensor.
        AutogradError: The tensor needs no gradient; or it has more than one item and its gradient
            is not given.
    """
    if not isinstance(root, Tensor):
        raise TypeError(_no_tensor(what, root))
    if not given and root.size != 1:
        raise AutogradError(
            f"{what} has shape {root.shape}, and a root must be a scalar; reduce it, "
            "for instance with .sum() or .mean(), or give its gradient"
        )
    if not root.requires_grad:
        raise AutogradError(
            f"{what} needs no gradient: it does not depend on any tensor that does, or "
            "was computed under no_grad() or from values received outside the context"
        )
    return root


def _no_tensor(what: str, root: object) -> str:
    return f"{what} must be a Tensor, not {type(root).__name__}; a root is the loss itself"


# -- roots of other workers -----------------------------------------------------------------------

Root: TypeAlias = tuple[Edge, Gradient]

ROOT = "autograd.root"
LABEL = "RRef.backward"
LEAST_SECONDS = 1e-6  # of a request without time: it raises the timeout itself


def find_roots(
    container: Container,
    context: Context,
    roots: Sequence[Tensor | RRef[Any]],
    gradients: Sequence[Any],
    *,
    create_graph: bool,
    ends: float,
) -> list[Root]:
    """Returns the edges and gradients of these roots, after concurrent requests to other owners.

    Args:
        container: The contexts of this worker.
        context: The context of the pass.
        roots: Tensors of this worker, and RRefs to tensors of any worker.
        gradients: One gradient for each root, None for the 1 of a scalar.
        create_graph: True to record the pass.
        ends: The time of `time.monotonic` at which an owner's answer is late.

    Raises:
        TypeError: A root is no Tensor.
        AutogradError: A value cannot be a root, or its gradient has another shape.
        ContextError: An owner does not know the context.
        OwnerLostError: An owner is lost.
        CallTimeoutError: An owner has not answered in time.
    """
    for i, root in enumerate(roots):
        if isinstance(root, Tensor):  # before any request is sent
            check_root(root, f"roots[{i}]", given=gradients[i] is not None)
    limit = max(ends - time.monotonic(), LEAST_SECONDS)
    asked = _ask_all(container, context, roots, gradients, limit)
    found = []
    for i, (root, gradient) in enumerate(zip(roots, gradients, strict=True)):
        if isinstance(root, RRef):
            value, owner = asked[i].value(), root.owner()
            if owner != container.agent.info:
                value = _received(context, owner, value, gradient)
            what = f"roots[{i}], the value of this RRef at {owner.name!r}"
            root = check_root(value, what, given=gradient is not None)
        found.append(graph_root(root, gradient, create_graph=create_graph))
    return found


def _ask_all(
    container: Container,
    context: Context,
    roots: Sequence[Tensor | RRef[Any]],
    gradients: Sequence[Any],
    limit: float,
) -> dict[int, Future[Any]]:
    """Returns the futures of the owners' answers, by the index of each root."""
    calls = container.agent.attachments[RRefCalls]
    asked: dict[int, Future[Any]] = {}
    try:
        for i, root in enumerate(roots):
            if not isinstance(root, RRef):
                continue
            reference = reference_of(root)
            if reference.fork is None:  # its own; the value may still be in creation
                asked[i] = calls.fetch(reference, limit)
            else:
                given = gradients[i] is not None
                payload = {"rref": list(reference.rref), "context": context.id, "given": given}
                asked[i] = calls.send(reference, ROOT, payload, LABEL, limit)
        if asked:
            wait_each(list(asked.values()))
    except BaseException:  # Ctrl-C, a cancelled call, an RRef that was released
        for each in asked.values():
            each.cancel()
        raise
    return asked


def _received(context: Context, owner: WorkerInfo, answer: Any, gradient: Any) -> Tensor:
    """Returns a placeholder for a tensor of another worker: its shape and dtype without memory."""
    match answer:
        case (int(message), tuple(shape), np.dtype() as dtype):
            xp = namespace(array_of(gradient))
            root = attach(xp.broadcast_to(xp.zeros((), dtype), shape), None)
        case _:
            raise DecodeError(f"the answer to {ROOT} is not (message, shape, dtype)")
    context.record_receive(owner, (message, 0), (root,))
    return root


def serve_roots(container: Container) -> None:
    """Makes an agent serve the requests for roots that live on its worker."""
    agent = container.agent
    serving = agent.attachments[RRefServing]

    def record(value: object, context_id: ContextId, given: bool, caller: WorkerInfo) -> Any:
        root = check_root(value, f"the value of this RRef at {agent.info.name!r}", given=given)
        if not given:
            graph_root(root)  # raises if the value cannot be a root for another reason
        context = container.find(context_id)
        context.touch(caller)
        message, _ = context.record_send(caller, (root,))
        return message, root.shape, root.dtype

    def prepare(caller: WorkerInfo, payload: object) -> UserCall:
        fields = payload if isinstance(payload, dict) else {}
        context_id, given = fields.get("context"), fields.get("given")
        if not (type(context_id) is int and isinstance(given, bool)):
            raise DecodeError(f"the body of {ROOT} is not {{rref, context, given}}")

        def record_call(value: object) -> UserCall:
            return UserCall(record, (value, context_id, given, caller), name=LABEL)

        return serving.on_value(caller, payload, "backward", record_call)

    agent.serving.serve(ROOT, prepare)
