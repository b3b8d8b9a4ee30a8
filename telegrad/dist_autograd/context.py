"""One autograd context at one worker, and the ambient context of a block or a served call."""

from __future__ import annotations

import threading
from collections import Counter
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import final

from telegrad.autograd import Gradient, Tensor
from telegrad.dist_autograd.functions import Functions, RecvFunction, SendFunction
from telegrad.dist_autograd.ids import ContextId
from telegrad.dist_autograd.messages import PassId
from telegrad.dist_autograd.pass_gradients import PassGradients, sum_of
from telegrad.dist_autograd.pass_protocol import FunctionKey
from telegrad.dist_autograd.pass_runner import PassRunner
from telegrad.types import WorkerInfo

__all__ = [
    "Ambient",
    "Context",
    "ambient_context",
    "enter_ambient",
    "leave_ambient",
]


@dataclass(slots=True, eq=False)
class Ambient:
    """The value of the ContextVar: a context, until the block or the served call ends.

    Attributes:
        context_id: The context.
        active: False after the end, so that a thread or task that still runs has no context.
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
    """Ends the ambient context, also in threads and tasks that copied it."""
    ambient.active = False
    _ambient.reset(token)


@final
class Context:
    """The functions that one worker has recorded in one autograd context, and its passes there.

    All methods may be called from any thread.

    Args:
        context_id: The id of the context.
        introducer: The peer whose message named it here first; None at its creator.

    Attributes:
        id: The id of the context.
        introducer: The peer that named it here first, or None.
        opened: How much of it each peer, by incarnation, has opened here: the context itself, and
            passes. The container's lock guards it.
    """

    def __init__(self, context_id: ContextId, introducer: WorkerInfo | None = None) -> None:
        self.id = context_id
        self.introducer = introducer
        self.opened = Counter[int]()
        self._lock = threading.Lock()
        self._sends: dict[FunctionKey, SendFunction] = {}
        self._receives: dict[FunctionKey, RecvFunction] = {}
        self._touched: dict[int, WorkerInfo] = {}  # by incarnation
        self._passes: dict[PassId, PassRunner] = {}
        self._kept: list[PassGradients] = []
        self._released = False

    def touch(self, peer: WorkerInfo) -> bool:
        """Records that a peer will learn of this context, and so must learn of its release.

        Returns:
            False if this is released: then the caller must not tell the peer of it.
        """
        with self._lock:
            if not self._released:
                self._touched[peer.incarnation] = peer
            return not self._released

    def record_send(self, function: SendFunction) -> None:
        """Records the function of a message to a peer."""
        with self._lock:
            self._sends[function.peer.incarnation, function.message] = function

    def record_receive(self, function: RecvFunction) -> None:
        """Records the function of a message from a peer."""
        with self._lock:
            if not self._released:
                self._receives[function.peer.incarnation, function.message] = function

    def remove_send(self, key: FunctionKey) -> None:
        """Removes a send whose message certainly was not delivered."""
        with self._lock:
            self._sends.pop(key, None)

    def remove_receive(self, key: FunctionKey) -> None:
        """Removes a receive whose message could not be decoded."""
        with self._lock:
            self._receives.pop(key, None)

    def functions(self) -> Functions:
        """Returns the functions recorded now, which are the cut of a pass that enters now."""
        with self._lock:
            return Functions(dict(self._sends), dict(self._receives))

    def add_pass(self, runner: PassRunner) -> PassRunner | None:
        """Adds a pass; returns the present one of this id, or None if this is released."""
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

        The gradients belong to the context, so callers must not write into them. They are arrays;
        RowSparse if only rows were added; Tensors if a pass was recorded.
        """
        total: dict[Tensor, Gradient] = {}
        for kept in self.ended_passes():
            for tensor, gradient in kept.held().items():
                known = total.get(tensor)
                total[tensor] = gradient if known is None else sum_of(known, gradient)
        return total

    def ended_passes(self) -> list[PassGradients]:
        """Returns the gradients of the passes that ended here with success."""
        with self._lock:
            return self._kept + [each.gradients for each in self._passes.values() if each.done]

    def keep(self, gradients: PassGradients) -> bool:
        """Adds gradients that a backward of this worker alone has left.

        `PassGradients.clear` takes them back.

        Returns:
            False if this is released: then nothing was kept.
        """
        with self._lock:
            if not self._released:
                self._kept.append(gradients)
            return not self._released

    def release(self) -> tuple[dict[int, WorkerInfo], list[PassRunner], Functions]:
        """Releases the context.

        Returns:
            The peers to tell by incarnation, the passes to abort, and the recorded functions.

        The functions may hold objects of the user that have finalizers. The caller drops them where
        no lock is held.
        """
        with self._lock:
            self._released = True
            touched, passes = self._touched, list(self._passes.values())
            recorded = Functions(self._sends, self._receives)
            self._sends, self._receives = {}, {}
            self._touched, self._passes, self._kept = {}, {}, []
        for runner in passes:
            runner.gradients.release()
        return touched, passes, recorded
