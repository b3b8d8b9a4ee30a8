"""What peers say about passes and contexts: on the loop only handed to the pool."""

from __future__ import annotations

from collections.abc import Callable
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
            self._agent.register_handler(kind, self._in_pool(handle))

    def _in_pool(
        self, handle: Callable[[WorkerInfo, Envelope], None]
    ) -> Callable[[WorkerInfo, Envelope], None]:
        def guarded(peer: WorkerInfo, envelope: Envelope) -> None:
            try:
                handle(peer, envelope)
            except DecodeError as error:
                self._agent.tell_garbage(peer, envelope, error)
                if envelope.call:
                    self._agent.reply_error(peer, envelope, error)

        return lambda peer, envelope: self._agent.submit(guarded, peer, envelope)

    def _runner(self, context_id: ContextId, pass_id: PassId) -> PassRunner | None:
        context = self._container.enter(context_id)
        return None if context is None else self._container.runner(context, pass_id)

    def _begin(self, peer: WorkerInfo, envelope: Envelope) -> None:
        message = BeginMessage.from_wire(self._agent.read(envelope))
        runner = self._runner(message.context_id, message.pass_id)
        if runner is None:
            cause = ContextError(self._container.absence(message.context_id))
            self._agent.reply(peer, envelope, describe_cause(cause))
        else:
            runner.begin(peer, message, envelope)

    def _gradient(self, peer: WorkerInfo, envelope: Envelope) -> None:
        land = self._agent.codec.devices.land(peer)
        message = GradientMessage.from_wire(self._agent.read(envelope, land=land))
        runner = self._runner(message.context_id, message.pass_id)
        if runner is not None:
            runner.answer(peer, message)

    def _abort(self, peer: WorkerInfo, envelope: Envelope) -> None:
        message = AbortMessage.from_wire(self._agent.read(envelope))
        runner = self._runner(message.context_id, message.pass_id)
        if runner is None:
            self._agent.reply(peer, envelope)
        else:
            runner.abort(message.cause, (peer, envelope))

    def _release(self, peer: WorkerInfo, envelope: Envelope) -> None:
        message = ReleaseMessage.from_wire(self._agent.read(envelope))
        self._container.release(message.context_id, peer, message.lowest)
