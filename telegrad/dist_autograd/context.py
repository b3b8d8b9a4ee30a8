"""One autograd context at one worker, and the ambient context of a block or a served call."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import final

import numpy as np

from telegrad.arrays import current_place
from telegrad.autograd import Gradient, Tensor, place_under
from telegrad.critical import critical
from telegrad.dist_autograd.functions import Functions, RecvFunction, SendFunction
from telegrad.dist_autograd.ids import ContextId
from telegrad.dist_autograd.messages import PassId
from telegrad.dist_autograd.pass_gradients import PassGradients, sum_of
from telegrad.errors import DecodeError
from telegrad.types import WorkerInfo


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
    """The functions that one worker has recorded in one autograd context, and its gradients there.

    All methods may be called from any thread.

    Args:
        new_message: Function that returns a new autograd message id.
        introducer: The peer whose message named it here first; None at its creator.

    Attributes:
        introducer: The peer that named it here first, or None.
        recorded: The functions recorded so far.
        opened: The number of things that each peer has opened, by incarnation: the context itself,
            and passes. The container's lock guards it, and the next one.
        passes: The passes that have reached this worker.
    """

    def __init__(
        self,
        context_id: ContextId,
        new_message: Callable[[], int],
        introducer: WorkerInfo | None = None,
    ) -> None:
        self.id = context_id
        self.introducer = introducer
        self.recorded = Functions({}, {})
        self.opened = Counter[int]()
        self.passes: list[PassId] = []
        self._new_message = new_message
        self._lock = threading.Lock()
        self._touched: dict[int, WorkerInfo] = {}  # by incarnation
        self._gradients: list[PassGradients] = []
        self._released = False

    def touch(self, peer: WorkerInfo) -> bool:
        """Records that a peer will learn of this context, and so must learn of its release.

        Returns:
            False if this is released: then the caller must not tell the peer of it.
        """
        with critical.section, self._lock:
            if not self._released:
                self._touched[peer.incarnation] = peer
            return not self._released

    def record_send(self, peer: WorkerInfo, values: Iterable[object]) -> list[int]:
        """Records the send function of a message, if one of its Tensors needs a gradient.

        Returns:
            The autograd message id, and the places in `values` of the Tensors that need one; empty
            where none does.
        """
        needing = {
            place: each
            for place, each in enumerate(values)
            if isinstance(each, Tensor) and each.requires_grad
        }
        if not needing:
            return []
        number = self._new_message()
        function = SendFunction(needing.values(), context_id=self.id, peer=peer, message=number)
        with critical.section, self._lock:
            self.recorded.sends[peer.incarnation, number] = function
        return [number, *needing]

    def record_receive(
        self, peer: WorkerInfo, sent: Sequence[int], values: Sequence[object]
    ) -> None:
        """Records the recv function of a message, and makes its Tensors outputs of it.

        Args:
            peer: The sender.
            sent: The result of `record_send` there.
            values: The values that the message has brought; nothing else holds the Tensors.

        Raises:
            DecodeError: One of the places holds no Tensor.
        """
        number, *places = sent
        function = RecvFunction(len(places), context_id=self.id, peer=peer, message=number)
        for output, place in enumerate(places):
            value = values[place] if 0 <= place < len(values) else None
            if not isinstance(value, Tensor):
                raise DecodeError(f"slot {place} of the message holds {type(value).__name__}")
            place_under(value, function, output)
            array = value.data
            if type(array) is not np.ndarray and (made := current_place(array)) is not None:
                function._made_on = (made,)
        with critical.section, self._lock:
            # A reply may come after the release, which has taken the functions already.
            if not self._released:
                self.recorded.receives[peer.incarnation, number] = function

    def forget(self, peer: WorkerInfo, message: int, *, sent: bool) -> None:
        """Removes the function of a message that nobody will read."""
        with critical.section, self._lock:
            functions = self.recorded.sends if sent else self.recorded.receives
            functions.pop((peer.incarnation, message), None)

    def functions(self) -> Functions:
        """Returns the functions recorded now, which are the cut of a pass that enters now."""
        with critical.section, self._lock:
            return Functions(dict(self.recorded.sends), dict(self.recorded.receives))

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
        with critical.section, self._lock:
            return [each for each in self._gradients if each.complete]

    def keep(self, gradients: PassGradients) -> bool:
        """Adds the gradients of a pass, which count once they are complete.

        `PassGradients.clear` takes them back.

        Returns:
            False if this is released: then nothing was kept.
        """
        with critical.section, self._lock:
            if not self._released:
                self._gradients.append(gradients)
            return not self._released

    def release(self) -> tuple[dict[int, WorkerInfo], object]:
        """Releases the context.

        Returns:
            The peers to tell by incarnation, and the recorded functions. These may hold objects of
            the user that have finalizers. The caller drops them where no lock is held.
        """
        with critical.section, self._lock:
            self._released = True
            recorded, self.recorded = self.recorded, Functions({}, {})
            touched, self._touched = self._touched, {}
            gradients, self._gradients = self._gradients, []
        for each in gradients:
            each.release()
        return touched, (recorded, gradients)
