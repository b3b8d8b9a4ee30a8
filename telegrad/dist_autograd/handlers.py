"""What peers say about passes and contexts: handed on at once, see `desk`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import final

from telegrad.dist_autograd.container import Container
from telegrad.dist_autograd.messages import (
    ABORT,
    BEGIN,
    GRADIENT,
    RELEASE,
    AbortMessage,
    BeginMessage,
    GradientMessage,
    PassId,
    ReleaseMessage,
    describe_cause,
)
from telegrad.dist_autograd.pass_runner import PassRunner
from telegrad.dist_autograd.released import ContextId
from telegrad.errors import ContextError, DecodeError
from telegrad.types import WorkerInfo
from telegrad.wire import Envelope

__all__ = ["Handlers"]


@final
class Handlers:
    """The receiving end of the four kinds of messages.

    Args:
        container: The contexts of this worker.
    """

    def __init__(self, container: Container) -> None:
        self._container = container
        self._agent = container.agent

    def register(self) -> None:
        """Registers them on the agent."""
        for kind, handle in (
            (BEGIN, self._begin),
            (GRADIENT, self._gradient),
            (ABORT, self._abort),
            (RELEASE, self._release),
        ):
            self._agent.register_handler(kind, self._handed_on(handle), anywhere=True)

    def _handed_on(
        self, handle: Callable[[WorkerInfo, Envelope], PassRunner | None]
    ) -> Callable[[WorkerInfo, Envelope], None]:
        def guarded(peer: WorkerInfo, envelope: Envelope) -> PassRunner | None:
            try:
                return handle(peer, envelope)
            except DecodeError as error:
                self._agent.tell_garbage(peer, envelope, error)
                if envelope.call:
                    self._agent.reply_error(peer, envelope, error)
            return None

        def handler(peer: WorkerInfo, envelope: Envelope) -> None:
            self._container.desk.put(partial(guarded, peer, envelope))

        return handler

    def _runner(self, context_id: ContextId, pass_id: PassId) -> PassRunner | None:
        context = self._container.enter(context_id)
        return None if context is None else self._container.runner(context, pass_id)

    def _begin(self, peer: WorkerInfo, envelope: Envelope) -> PassRunner | None:
        message = BeginMessage.from_wire(self._agent.read(envelope))
        runner = self._runner(message.context_id, message.pass_id)
        if runner is None:
            cause = ContextError(self._container.absence(message.context_id))
            self._agent.reply(peer, envelope, describe_cause(cause))
        else:
            runner.begin(peer, message, envelope)
        return runner

    def _gradient(self, peer: WorkerInfo, envelope: Envelope) -> PassRunner | None:
        land = self._agent.codec.devices.land(peer)
        message = GradientMessage.from_wire(self._agent.read(envelope, land=land))
        runner = self._runner(message.context_id, message.pass_id)
        if runner is not None:
            runner.answer(peer, message)
        return runner

    def _abort(self, peer: WorkerInfo, envelope: Envelope) -> PassRunner | None:
        message = AbortMessage.from_wire(self._agent.read(envelope))
        runner = self._runner(message.context_id, message.pass_id)
        if runner is None:
            self._agent.reply(peer, envelope)
        else:
            runner.abort(message.cause, (peer, envelope))
        return runner

    def _release(self, peer: WorkerInfo, envelope: Envelope) -> None:
        message = ReleaseMessage.from_wire(self._agent.read(envelope))
        self._container.release(message.context_id, peer, message.lowest)
