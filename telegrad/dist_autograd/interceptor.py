"""The interceptor that adds a context, a grad mode, and send and recv functions to calls.

request in a context    [True if gradients are on, the context's creator, its number]; then, if
                        Tensors need a gradient, a message id and the indices of their externals
outside, under no_grad  [False]
outside                 no header; a Tensor that needs a gradient causes a warning
reply                   [message id, indices of externals] if Tensors need a gradient; a reply is in
                        the context of its request
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import final

from telegrad.autograd import GradMode, Tensor, is_grad_enabled
from telegrad.autograd.seams import warn_user
from telegrad.dist_autograd.container import Container
from telegrad.dist_autograd.context import Ambient, Context, ambient_context, enter_ambient
from telegrad.dist_autograd.ids import ContextId, read_context_id, write_context_id
from telegrad.errors import DecodeError
from telegrad.rpc.seams import CallRecord, Interceptor, Message

NAME = "dist_autograd"

_INTEGERS = frozenset({int})


@dataclass(slots=True)  # a frozen one takes twice as long to create
class _CallState:
    """The state that a call keeps from its request for its reply, whatever completes the reply."""

    context_id: ContextId | None
    grad: bool
    ambient: Ambient | None = None  # at the callee; ends with the reply


PLAIN = _CallState(None, grad=True)  # the state of a call without a header


@final
class AutogradInterceptor(Interceptor):
    """Records the Tensors that leave and enter this worker."""

    def __init__(self, container: Container) -> None:
        self._container = container

    @property
    def name(self) -> str:
        """The interceptor's key in headers and call states."""
        return NAME

    hears_all = False

    def speaks(self, call: CallRecord, *, reply: bool) -> bool:
        """Returns True if a message without Tensors is in a context or under no_grad."""
        if reply:
            return NAME in call.state
        return ambient_context() is not None or not is_grad_enabled()

    def outgoing(self, message: Message) -> None:
        """Writes the message's context into its header and records the Tensors that it carries."""
        state = self._state_of(message)
        if state is PLAIN and not message.externals:
            return
        context = None if state.context_id is None else self._container.get(state.context_id)
        # Before the message leaves: a release that comes meanwhile has to reach the peer, too.
        if context is not None and not context.touch(message.peer):
            context = None  # released meanwhile
        sent: list[int] = []
        if state.grad and message.externals:
            if context is not None:
                sent = context.record_send(message.peer, message.externals)
            elif any(isinstance(each, Tensor) and each.requires_grad for each in message.externals):
                _warn(message)
        if message.reply:
            if sent:
                message.headers[NAME] = sent
        elif context is not None:
            message.headers[NAME] = [state.grad, *write_context_id(context.id), *sent]
        elif not state.grad:
            message.headers[NAME] = [False]

    def incoming(self, message: Message) -> None:
        """Enters the context of a request; puts received Tensors into the graph."""
        header = message.headers.get(NAME)
        if header is None:
            return
        grad, context_id, sent = _read(message, header)
        context = None if context_id is None else self._container.enter(context_id, message.peer)
        if not message.reply:
            self._serve(message, context_id, grad, context)
        if context is not None and sent:
            context.record_receive(message.peer, sent, message.externals)

    def undelivered(self, message: Message) -> None:
        """Removes the function that was recorded for a message that nobody will read."""
        header = message.headers.get(NAME)
        if header is None:
            return
        _, context_id, sent = _read(message, header)
        context = self._container.get(context_id) if context_id is not None else None
        if context is None or not sent:
            return
        # An outgoing message carries at least one Tensor.
        context.forget(message.peer, sent[0], sent=bool(message.externals))

    def _state_of(self, message: Message) -> _CallState:
        """Returns the state of the request for a reply, and of the calling code for a request."""
        if message.reply:
            state = message.call.state.get(NAME)
            if not isinstance(state, _CallState):
                return PLAIN  # its request had no valid header
            if state.ambient is not None and message.final:
                state.ambient.active = False
            return state
        context_id, grad = ambient_context(), is_grad_enabled()
        if context_id is None and grad:
            return PLAIN
        state = _CallState(context_id, grad)
        message.call.state[NAME] = state
        return state

    def _serve(
        self, message: Message, context_id: ContextId | None, grad: bool, context: Context | None
    ) -> None:
        """Sets up the Context in which the user's function will run."""
        ambient = None
        if context is not None:
            ambient = Ambient(context.id)
            enter_ambient(ambient)
        if not grad:
            GradMode(enabled=False).__enter__()  # never left: only this call uses this Context
        message.call.state[NAME] = _CallState(context_id, grad, ambient)


def _read(message: Message, header: object) -> tuple[bool, ContextId | None, Sequence[int]]:
    """Returns the grad mode, the context, and the message id with the slots, or an empty list."""
    grad, context_id, sent = True, None, header
    if message.reply:
        state = message.call.state.get(NAME)
        context_id = state.context_id if isinstance(state, _CallState) else None
    elif isinstance(header, list) and len(header) not in {0, 2} and type(header[0]) is bool:
        grad, sent = header[0], header[3:]
        context_id = read_context_id(header[1:3]) if len(header) > 1 else None
    else:
        sent = None
    if isinstance(sent, list) and (not sent or _INTEGERS.issuperset(map(type, sent))):
        return grad, context_id, sent
    raise DecodeError(f"the header {NAME!r} is {header!r}")


def _warn(message: Message) -> None:
    """Warns at the user's line that makes the call, or at the function that returns the Tensor.

    By default, Python's filters show the warning once for each place. A value that telegrad's own
    functions return, for example to an RRef's `to_here`, has no such place here: no warning.
    """
    what = "the value of" if message.reply else "an argument of"
    words = (
        f"a Tensor that needs a gradient is {what} {message.call.function} but was sent to "
        f"{message.peer.name!r} outside of an autograd context: it arrives as one that needs "
        "none; call inside `with dist_autograd.context()`, or send tensor.detach(), or use "
        "no_grad()"
    )
    served = message.call.served
    function = None if served is None else inspect.unwrap(served)
    if not message.reply or not isinstance(function, FunctionType):
        warn_user(words)
    elif not function.__module__.startswith("telegrad."):  # its frame has ended
        warnings.warn_explicit(
            words,
            UserWarning,
            function.__code__.co_filename,
            function.__code__.co_firstlineno,
            function.__module__,
            function.__globals__.setdefault("__warningregistry__", {}),
        )
