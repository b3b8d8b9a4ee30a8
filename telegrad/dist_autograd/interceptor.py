"""What distributed autograd adds to every call: context, grad mode, send and recv functions.

in a context, gradients on    {"context": id, "message": n, "slots": [which externals]}
in a context, under no_grad   {"context": id, "grad": False}
outside, under no_grad        {"grad": False}
outside                       nothing; a Tensor that needs a gradient warns
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Collection
from dataclasses import dataclass
from types import FunctionType
from typing import NamedTuple, final

from telegrad.autograd import GradMode, Tensor, is_grad_enabled, place_under
from telegrad.dist_autograd.container import Container
from telegrad.dist_autograd.context import Ambient, Context, ambient_context, enter_ambient
from telegrad.dist_autograd.functions import RecvFunction, SendFunction
from telegrad.dist_autograd.released import ContextId
from telegrad.errors import DecodeError
from telegrad.rpc import Interceptor, Message

__all__ = ["AutogradInterceptor"]

NAME = "dist_autograd"


class _CallState(NamedTuple):
    """What a call keeps from its request for its reply, whoever completes that."""

    context_id: ContextId | None
    grad: bool
    ambient: Ambient | None = None  # at the callee: ends with the reply


PLAIN = _CallState(None, grad=True)  # of a call that says nothing, and keeps nothing


@dataclass(frozen=True, slots=True)
class _Header:
    context_id: ContextId | None = None
    grad: bool = True
    message: int = 0
    slots: tuple[int, ...] = ()

    def write(self) -> dict[str, object]:
        fields: dict[str, object] = {}
        if self.context_id is not None:
            fields["context"] = self.context_id
        if not self.grad:
            fields["grad"] = False
        if self.message:
            fields["message"] = self.message
            fields["slots"] = list(self.slots)
        return fields

    @staticmethod
    def read(message: Message) -> _Header:
        fields = message.headers.get(NAME)
        if fields is None:
            return _Header()
        if not isinstance(fields, dict):
            raise DecodeError(f"the header {NAME!r} is {fields!r}")
        context_id, number = fields.get("context"), fields.get("message", 0)
        slots = fields.get("slots", [])
        good = (
            (context_id is None or isinstance(context_id, int))
            and isinstance(number, int)
            and isinstance(slots, list)
            and {int}.issuperset(map(type, slots))
        )
        if not good:
            raise DecodeError(f"the header {NAME!r} is {fields!r}")
        return _Header(context_id, fields.get("grad", True) is not False, number, tuple(slots))


@final
class AutogradInterceptor(Interceptor):
    """Records what crosses the boundary of this worker.

    Args:
        container: The contexts of this worker.
    """

    def __init__(self, container: Container) -> None:
        self._container = container

    @property
    def name(self) -> str:
        """Its key in headers and call states."""
        return NAME

    def outgoing(self, message: Message) -> None:
        """Says which context the message is in and records what it carries."""
        state = self._state_of(message)
        if state is PLAIN and not message.externals:
            return
        context = self._touch(state, message)
        number = 0
        slots: tuple[int, ...] = ()
        if state.grad:
            needing = {
                i: each
                for i, each in enumerate(message.externals)
                if isinstance(each, Tensor) and each.requires_grad
            }
            if needing and context is None:
                _warn(message)
            elif needing and context is not None:
                number = self._record_send(context, message, needing.values())
                slots = tuple(needing)
        header = _Header(None if context is None else context.id, state.grad, number, slots)
        if fields := header.write():
            message.headers[NAME] = fields

    def incoming(self, message: Message) -> None:
        """Enters the context of a request; puts received Tensors into the graph."""
        if NAME not in message.headers:
            return
        header = _Header.read(message)
        context = None
        if message.reply:
            state = message.call.state.get(NAME)
            if isinstance(state, _CallState) and state.context_id == header.context_id:
                context = self._open(header.context_id)
        else:
            context = self._open(header.context_id)
            self._serve(message, header, context)
        if context is not None and header.message:
            self._record_receive(context, message, header)

    def undelivered(self, message: Message) -> None:
        """Forgets what was recorded for a message that will not be read."""
        header = _Header.read(message)
        if header.context_id is None or not header.message:
            return
        context = self._container.get(header.context_id)
        if context is None:
            return
        key = (message.peer, header.message)
        if message.externals:  # it was going out: it carries at least one Tensor
            context.remove_send(key)
        else:
            context.remove_receive(key)

    def _state_of(self, message: Message) -> _CallState:
        """A reply is in the context of its request; a request in that of the code that calls."""
        if message.reply:
            state = message.call.state.get(NAME)
            if not isinstance(state, _CallState):
                return PLAIN  # its request said nothing, or was garbage
            if state.ambient is not None and message.final:
                state.ambient.active = False
            return state
        context_id, grad = ambient_context(), is_grad_enabled()
        if context_id is None and grad:
            return PLAIN
        state = _CallState(context_id, grad)
        message.call.state[NAME] = state
        return state

    def _touch(self, state: _CallState, message: Message) -> Context | None:
        if state.context_id is None:
            return None
        context = self._container.get(state.context_id)
        if context is None or not context.touch(message.peer):
            return None  # released meanwhile
        return context

    def _open(self, context_id: ContextId | None) -> Context | None:
        return None if context_id is None else self._container.enter(context_id)

    def _serve(self, message: Message, header: _Header, context: Context | None) -> None:
        """Sets up the Context in which the user's function will run."""
        ambient = None
        if context is not None:
            ambient = Ambient(context.id)
            enter_ambient(ambient)
        if not header.grad:
            GradMode(enabled=False).__enter__()  # for good: this Context is the call's own
        message.call.state[NAME] = _CallState(header.context_id, header.grad, ambient)

    def _record_send(self, context: Context, message: Message, tensors: Collection[Tensor]) -> int:
        number = self._container.new_message()
        context.record_send(
            SendFunction.of(tensors, context_id=context.id, peer=message.peer, message=number)
        )
        return number

    def _record_receive(self, context: Context, message: Message, header: _Header) -> None:
        function = RecvFunction(
            len(header.slots), context_id=context.id, peer=message.peer, message=header.message
        )
        externals = message.externals
        for output, slot in enumerate(header.slots):
            value = externals[slot] if 0 <= slot < len(externals) else None
            if not isinstance(value, Tensor):
                raise DecodeError(f"slot {slot} of the message holds {type(value).__name__}")
            place_under(value, function, output)
        context.record_receive(function)


def _warn(message: Message) -> None:
    """Warns at the user's line that calls, or at the function that returns the Tensor.

    Once for each of them, as Python's filters do.
    """
    what = "the value of" if message.reply else "an argument of"
    words = (
        f"a Tensor that needs a gradient is {what} {message.call.function} but was sent to "
        f"{message.peer.name!r} outside of an autograd context: it arrives as one that needs "
        "none; call inside `with dist_autograd.context()`, or send tensor.detach(), or use no_grad()"
    )
    served = message.call.served
    function = None if served is None else inspect.unwrap(served)
    if message.reply and isinstance(function, FunctionType):  # no frame of it is left here
        warnings.warn_explicit(
            words,
            UserWarning,
            function.__code__.co_filename,
            function.__code__.co_firstlineno,
            function.__module__,
            function.__globals__.setdefault("__warningregistry__", {}),
        )
        return
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("telegrad."):
        level, frame = level + 1, frame.f_back
    warnings.warn(words, UserWarning, stacklevel=level)
