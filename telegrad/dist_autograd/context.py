"""One autograd context at one worker, and the context that a block or a served call is in."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from telegrad.arrays import namespace, to_device
from telegrad.autograd import Gradient, GradientTarget, Tensor, enable_grad, is_row_sparse
from telegrad.dist_autograd.functions import RecvFunction, SendFunction
from telegrad.dist_autograd.ids import ContextId
from telegrad.dist_autograd.messages import PassId
from telegrad.dist_autograd.pass_protocol import FunctionKey
from telegrad.types import WorkerInfo

if TYPE_CHECKING:
    from telegrad.dist_autograd.pass_runner import PassRunner

__all__ = [
    "Ambient",
    "Context",
    "Functions",
    "PassGradients",
    "ambient_context",
    "enter_ambient",
    "leave_ambient",
    "moved_to",
    "sum_of",
]


# -- the gradients of one pass at one worker, apart until it is known how the pass ends ----------
#
# An array for most leaves; a RowSparse where nothing else was added; a Tensor that can be
# differentiated again where the pass was recorded.


@final
class PassGradients(GradientTarget):
    """Keeps gradients by leaf and never touches `tensor.grad`; safe from several threads.

    Args:
        earlier: Finds those of the passes of this context that have ended.
    """

    def __init__(self, earlier: Callable[[], Sequence[PassGradients]]) -> None:
        super().__init__()
        self._earlier = earlier
        self._lock = threading.Lock()
        self._held: dict[Tensor, Gradient] = {}
        self._cleared = False

    def __call__(self, tensor: Tensor, gradient: Gradient) -> None:
        """Adds `gradient` to what is kept for `tensor`, where that is; shares no memory with it.

        So a hook may write into what `get` returns, as it may into `tensor.grad`.
        """
        plain = type(gradient) is np.ndarray  # as most, and of the graph task's own
        with self._lock:
            if self._cleared:
                return
            present = self._held.get(tensor)
            if plain:
                self._held[tensor] = gradient if present is None else sum_of(present, gradient)
            else:
                home = tensor.device
                added = moved_to(gradient, home)
                held = _copy(added) if present is None else sum_of(present, added)
                self._held[tensor] = moved_to(held, home)

    def get(self, tensor: Tensor) -> Tensor | None:
        """Returns what is kept for `tensor`; a RowSparse as it is."""
        held: Any = self._held.get(tensor)
        return held if held is None or _is_whole(held) else Tensor(held)

    def replace(self, tensor: Tensor, gradient: Tensor | None) -> None:
        """Keeps `gradient` for `tensor` instead."""
        with self._lock:
            if gradient is None:
                self._held.pop(tensor, None)
            elif not self._cleared:
                rows = is_row_sparse(gradient)
                self._held[tensor] = gradient if rows or gradient.requires_grad else gradient.data

    def earlier(self) -> Sequence[PassGradients]:
        """Returns the gradients of the passes of this context that have ended."""
        return self._earlier()

    def held(self) -> dict[Tensor, Gradient]:
        """Returns the gradients; they belong to the pass, nobody writes into them."""
        with self._lock:
            return dict(self._held)

    def clear(self) -> None:
        """Takes them away, for good."""
        with self._lock:
            self._cleared = True
            self._held.clear()


def sum_of(first: Any, second: Any) -> Gradient:
    """Returns the sum of two gradients of one leaf; rows of rows, recorded if one of them is."""
    if isinstance(first, Tensor) or isinstance(second, Tensor):
        with enable_grad():
            return _dense(first) + _dense(second)  # type: ignore[no-any-return]
    total: Any = first + second
    result: Gradient = np.asarray(total) if isinstance(total, np.generic) else total
    return result


def _dense(gradient: Any) -> Any:
    return gradient.to_dense() if is_row_sparse(gradient) else gradient


def _is_whole(gradient: object) -> bool:
    return isinstance(gradient, Tensor) or is_row_sparse(gradient)


def moved_to(gradient: Any, device: str) -> Gradient:
    """Returns it on a device: what operations give of CuPy's arrays is on the thread's current one."""
    if _is_whole(gradient):
        with enable_grad():
            return gradient.to(device)  # type: ignore[no-any-return]
    return to_device(gradient, device)


def _copy(gradient: Any) -> Gradient:
    copied: Gradient
    if is_row_sparse(gradient):
        copied = gradient.copy()  # type: ignore[assignment]
    elif not isinstance(gradient, Tensor):
        copied = gradient  # the graph task hands over an array of its own
    elif gradient.requires_grad:
        copied = gradient.copy()
    else:
        copied = namespace(gradient.data).array(gradient.data)
    return copied


# ------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Ambient:
    """What the ContextVar holds: a context, until the block or the served call ends.

    Attributes:
        context_id: The context.
        active: False afterwards, so that a thread or task left behind inherits nothing.
    """

    context_id: ContextId
    active: bool = True


_ambient: ContextVar[Ambient | None] = ContextVar("telegrad_autograd_context", default=None)


def ambient_context() -> ContextId | None:
    """Returns the context in which a verb called here records."""
    ambient = _ambient.get()
    return ambient.context_id if ambient is not None and ambient.active else None


def enter_ambient(ambient: Ambient) -> Token[Ambient | None]:
    """Makes a context the ambient one."""
    return _ambient.set(ambient)


def leave_ambient(ambient: Ambient, token: Token[Ambient | None]) -> None:
    """Takes it back, also from whoever copied it."""
    ambient.active = False
    _ambient.reset(token)


@dataclass(frozen=True, slots=True)
class Functions:
    """The send and recv functions recorded in a context so far."""

    sends: dict[FunctionKey, SendFunction]
    receives: dict[FunctionKey, RecvFunction]


@final
class Context:
    """What one worker has recorded in one autograd context, and its passes there.

    All methods may be called from any thread.
    """

    def __init__(self, context_id: ContextId) -> None:
        self.id = context_id
        self._lock = threading.Lock()
        self._sends: dict[FunctionKey, SendFunction] = {}
        self._receives: dict[FunctionKey, RecvFunction] = {}
        self._touched: set[WorkerInfo] = set()
        self._passes: dict[PassId, PassRunner] = {}
        self._released = False

    def touch(self, peer: WorkerInfo) -> bool:
        """Notes that a peer will be told of this context, and so must be told of its release.

        Returns:
            False when this is released: then the peer must not be told of it any more.
        """
        with self._lock:
            if not self._released:
                self._touched.add(peer)
            return not self._released

    def record_send(self, function: SendFunction) -> None:
        """Records what goes to a peer."""
        with self._lock:
            self._sends[function.peer, function.message] = function

    def record_receive(self, function: RecvFunction) -> None:
        """Records what came from a peer."""
        with self._lock:
            if not self._released:
                self._receives[function.peer, function.message] = function

    def remove_send(self, key: FunctionKey) -> None:
        """Forgets a send that is known not to have been handed over."""
        with self._lock:
            self._sends.pop(key, None)

    def remove_receive(self, key: FunctionKey) -> None:
        """Forgets a receive that could not be decoded."""
        with self._lock:
            self._receives.pop(key, None)

    def functions(self) -> Functions:
        """Returns what is recorded now: the cut of a pass that enters now."""
        with self._lock:
            return Functions(dict(self._sends), dict(self._receives))

    def add_pass(self, runner: PassRunner) -> PassRunner | None:
        """Adds a pass; returns the one that is there already, None when this is released."""
        with self._lock:
            if self._released:
                return None
            return self._passes.setdefault(runner.id, runner)

    def find_pass(self, pass_id: PassId) -> PassRunner | None:
        """Returns a pass that has reached this worker."""
        return self._passes.get(pass_id)

    def passes(self) -> list[PassRunner]:
        """Returns the passes that have reached this worker."""
        with self._lock:
            return list(self._passes.values())

    def gradients(self) -> dict[Tensor, Gradient]:
        """Returns the sums of the gradients of the passes that ended here, by leaf.

        They belong to the context: nobody writes into them. Arrays; where only rows were added,
        RowSparse; where a pass was recorded, Tensors.
        """
        total: dict[Tensor, Gradient] = {}
        for kept in self.ended_passes():
            for tensor, gradient in kept.held().items():
                known = total.get(tensor)
                total[tensor] = gradient if known is None else sum_of(known, gradient)
        return total

    def ended_passes(self) -> list[PassGradients]:
        """Returns where the passes that ended here keep their gradients."""
        return [runner.gradients for runner in self.passes() if runner.done]

    def release(self) -> tuple[set[WorkerInfo], list[PassRunner], Functions]:
        """Drops everything; returns the peers to tell, the passes to abort, and what was recorded.

        That is a user's, who may be told of its end: let go of it where no lock is held.
        """
        with self._lock:
            self._released = True
            touched, passes = self._touched, list(self._passes.values())
            recorded = Functions(self._sends, self._receives)
            self._sends, self._receives = {}, {}
            self._touched, self._passes = set(), {}
        return touched, passes, recorded
