"""Backward with the value of an RRef as its root: `RRef.backward`, at both ends.

    holder                                           owner
    rref.backward  {rref, context, gradient,
                    retain, create}         ───────▶  the starter: once the value is there, a pass
                                                      that has it as its only root
    None, or what ended the pass            ◀───────  the pass has ended everywhere

The gradient of the root is an argument as any other: recorded, if the pass is. The owner asks
itself in the same way. A holder that gives up, or is lost, takes the pass with it:
the served call is cancelled, and with it the wait for the pass, which is then aborted. Without a
context there is no message: the owner's own graph is differentiated where it is.
"""

from __future__ import annotations

import math
from typing import Any, final

from telegrad.autograd import Gradient, Tensor
from telegrad.dist_autograd.container import Container
from telegrad.dist_autograd.messages import PassMode
from telegrad.dist_autograd.released import ContextId, check_context_id
from telegrad.dist_autograd.roots import check_root, root_of
from telegrad.dist_autograd.starting import run_pass
from telegrad.errors import (
    BlockingCallError,
    CallTimeoutError,
    ContextError,
    DecodeError,
    OwnerLostError,
)
from telegrad.rpc import RRef, RRefCalls, RRefServing, UserCall, on_own_loop
from telegrad.types import WorkerInfo

__all__ = ["RRefBackward", "backward_from_rref"]

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
    owner, calls = rref.owner(), rref.reference.registry.agent.attached(RRefCalls)
    payload = {
        "rref": list(rref.reference.rref),
        "context": number,
        "gradient": gradient if create_graph or not isinstance(gradient, Tensor) else gradient.data,
        "retain": bool(retain_graph),
        "create": bool(create_graph),
    }
    ended = calls.send(rref.reference, BACKWARD, payload, LABEL, timeout)
    try:
        ended.wait()
    except KeyboardInterrupt:
        ended.cancel()  # nobody else knows of it
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
            f"is {rref.owner_name()!r} and not {rref.reference.registry.me.name!r}; write "
            "rref.backward(context_id) inside `with dist_autograd.context() as context_id`"
        )
    value = rref.to_here(timeout)
    root = check_root(value, _called(rref.owner()), given=gradient is not None)
    root.backward(gradient, retain_graph=mode.retain, create_graph=mode.create)


@final
class RRefBackward:
    """The owner's end.

    Args:
        container: The contexts of this worker.
    """

    def __init__(self, container: Container) -> None:
        self._container = container
        self._serving = container.agent.attached(RRefServing)

    def register(self) -> None:
        """Has the agent serve these requests."""
        self._container.agent.serve(BACKWARD, self._prepare)

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
        # Whoever holds the RRef hears at once how it ended.
        run_pass(self._container, context, [root], mode, math.inf, here=False)


def _called(owner: WorkerInfo) -> str:
    return f"the value of this RRef at {owner.name!r}"
