"""What peers say about passes and contexts: handed on at once, see `desk`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeAlias, final

from telegrad.dist_autograd.container import Container
from telegrad.dist_autograd.desk import Work
from telegrad.dist_autograd.messages import (
    ABORT,
    PASS,
    RELEASE,
    AbortMessage,
    PassId,
    PassMessage,
    ReleaseMessage,
    read_head_alone,
)
from telegrad.dist_autograd.pass_runner import PassRunner
from telegrad.dist_autograd.released import ContextId
from telegrad.errors import ContextError, DecodeError, UnknownWorkerError, WorkerLostError
from telegrad.types import WorkerInfo
from telegrad.wire import Envelope

__all__ = ["Handlers"]

Handle: TypeAlias = Callable[[WorkerInfo, Envelope], PassRunner | None]


@final
class Handlers:
    """The receiving end of the three kinds of messages.

    Args:
        container: The contexts of this worker.
    """

    def __init__(self, container: Container) -> None:
        self._container = container
        self._agent = container.agent

    def register(self) -> None:
        """Registers them on the agent."""
        put, later = self._container.desk.put, self._container.later
        for kind, handle, hand_on in (
            (PASS, self._hear, put),
            (ABORT, self._guarded(self._abort), put),
            (RELEASE, self._guarded(self._release), later),
        ):
            self._agent.register_handler(kind, _handed_on(handle, hand_on), anywhere=True)

    def _guarded(self, handle: Handle) -> Handle:
        def guarded(peer: WorkerInfo, envelope: Envelope) -> PassRunner | None:
            try:
                return handle(peer, envelope)
            except DecodeError as error:
                self._tell_garbage(peer, envelope, error)
            return None

        return guarded

    def _tell_garbage(self, peer: WorkerInfo, envelope: Envelope, error: DecodeError) -> None:
        self._agent.tell_garbage(peer, envelope, error)
        if envelope.call:
            self._agent.reply_error(peer, envelope, error)

    def _hear(self, peer: WorkerInfo, envelope: Envelope) -> PassRunner | None:
        try:
            body = self._agent.read(envelope, land=self._agent.codec.devices.land(peer))
            message = PassMessage.from_wire(body)
        except DecodeError as error:
            self._tell_garbage(peer, envelope, error)
            return self._unreadable(peer, envelope, error)
        context_id, pass_id = message.context_id, message.pass_id
        context = self._container.enter(context_id)
        runner = None if context is None else self._container.runner(context, pass_id)
        if runner is None and message.begun:
            runner = self._container.ending(pass_id)
        if runner is not None:
            runner.hear(peer, message)
        elif message.mode is not None:
            absent = ContextError(self._container.absence(context_id))
            self._fail(peer, context_id, pass_id, absent)
        return runner

    def _unreadable(
        self, peer: WorkerInfo, envelope: Envelope, error: DecodeError
    ) -> PassRunner | None:
        """Has the pass fail that a message is about: at who sent it, and at this worker."""
        try:
            context_id, pass_id = read_head_alone(envelope.document)
        except DecodeError:
            return None  # nobody knows which
        context = self._container.get(context_id)
        runner = None if context is None else context.find_pass(pass_id)
        if runner is None:
            runner = self._container.ending(pass_id)
        if runner is not None:
            # It may have been the last that the sender had to say, its reply among it. So this
            # worker waits for that no more, but for the sender to hear of the abort.
            runner.abort(error)
            runner.hear(peer, PassMessage(context_id, pass_id, begun=True))
        self._fail(peer, context_id, pass_id, error)
        return runner

    def _fail(
        self, peer: WorkerInfo, context_id: ContextId, pass_id: PassId, cause: BaseException
    ) -> None:
        """Has a pass fail at who began it here."""
        message = PassMessage(context_id, pass_id, begun=True, cause=cause)
        with suppress(WorkerLostError, UnknownWorkerError):
            self._agent.post(peer, PASS, message.to_wire())

    def _abort(self, peer: WorkerInfo, envelope: Envelope) -> PassRunner | None:
        message = AbortMessage.from_wire(self._agent.read(envelope))
        context = self._container.enter(message.context_id)
        runner = None if context is None else self._container.runner(context, message.pass_id)
        if runner is None:
            self._agent.reply(peer, envelope)
        else:
            runner.abort(message.cause, (peer, envelope))
        return runner

    def _release(self, peer: WorkerInfo, envelope: Envelope) -> None:
        message = ReleaseMessage.from_wire(self._agent.read(envelope))
        self._container.release(message.context_id, peer, message.lowest)


def _handed_on(
    handle: Handle, put: Callable[[Work], None]
) -> Callable[[WorkerInfo, Envelope], None]:
    def handler(peer: WorkerInfo, envelope: Envelope) -> None:
        put(partial(handle, peer, envelope))

    return handler
