"""Protocol messages of upper packages: plain bodies, which pass no interceptors."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from functools import partial
from typing import Any, final

from telegrad.errors import UnknownWorkerError, WorkerLostError
from telegrad.rpc.call.calling import Calling
from telegrad.rpc.call.codec import MessageCodec
from telegrad.rpc.call.failure import describe_failure
from telegrad.rpc.call.serving import ERROR, REPLY
from telegrad.rpc.future.future import Future
from telegrad.rpc.limits import seconds
from telegrad.transport import Exchange
from telegrad.types import WorkerInfo
from telegrad.wire import FIRST_BUFFER, Buffer, Envelope, read_body, write_body

__all__ = ["Messages"]


@final
class Messages:
    """Sends the messages whose handlers are registered with the `Inbox` of their receiver.

    All methods may be called from any thread.

    Args:
        worker: This worker's name, for errors.
        codec: Chooses the GPU on which arrays arrive, and the memory that a worker shares.
        exchange: Posts the messages.
        calling: Waits for the replies to requests.

    Attributes:
        flush: Sends messages that wait for a later write to a worker; does nothing where it is
            lost.
        post_envelope: Sends an envelope that the codec has sealed; see `Exchange.post`.
    """

    def __init__(
        self, worker: str, codec: MessageCodec, exchange: Exchange, calling: Calling
    ) -> None:
        self._worker = worker
        self._codec = codec
        self._memory = exchange.memory
        self._post = exchange.post
        self._request = calling.request
        self.flush = exchange.flush
        self.post_envelope = exchange.post

    def post(
        self,
        to: WorkerInfo,
        kind: str,
        body: object = None,
        *,
        buffers: Sequence[Buffer] = (),
        rides: bool = False,
    ) -> None:
        """Sends a message that expects no reply.

        Args:
            to: The receiver.
            kind: The kind for which the receiver has registered a handler.
            body: The value that `read` returns there; without arrays where there are buffers.
            buffers: Bytes that arrive as the last `envelope.buffers`. They are not copied and must
                not change until they were handed over.
            rides: True if it waits for the next message to that worker, of any kind, so that both
                leave in one write. Call `flush` where none may follow.

        Raises:
            WorkerLostError: The worker is lost, or this agent was shut down.
        """
        place, memory = self._codec.devices.place(to), partial(self._memory, to)
        envelope = write_body(kind, body, buffers=buffers, place=place, memory=memory)
        self._post(to, envelope, rides=rides)

    def post_packed(
        self, to: WorkerInfo, kind: str, packed: bytes, buffers: Sequence[Buffer]
    ) -> None:
        """Sends a message that expects no reply, with a body whose layout both ends know.

        Args:
            to: The receiver.
            kind: The kind for which the receiver has registered a handler.
            packed: The body; arrives as `envelope.document`, which `read` cannot decode.
            buffers: As for `post`.

        Raises:
            WorkerLostError: The worker is lost, or this agent was shut down.
        """
        self._post(to, Envelope(kind, document=packed, buffers=buffers))

    def request(
        self,
        to: WorkerInfo,
        kind: str,
        body: object = None,
        *,
        timeout: float = math.inf,
        rides: bool = False,
    ) -> Future[Any]:
        """Sends a message whose handler replies with `reply` or `reply_error`.

        Args:
            to: The receiver.
            kind: The kind for which the receiver has registered a handler.
            body: The value that `read` returns there.
            timeout: Seconds.
            rides: As for `post`.

        Returns:
            The future of the reply's body. It fails with WorkerLostError, CallTimeoutError or the
            exception of the error reply; this method itself raises for bad arguments only.
        """
        return self._request(to, kind, body, seconds(timeout, math.inf), rides=rides)

    def reply(
        self,
        to: WorkerInfo,
        request: Envelope,
        body: object = None,
        *,
        buffers: Sequence[Buffer] = (),
        rides: bool = False,
    ) -> None:
        """Answers a request; the answer is dropped when the requester is lost.

        Args:
            to: The worker that sent the request.
            request: The envelope of the request.
            body: The value that its future returns.
            buffers: Bytes that travel behind it, as for `post`.
            rides: As for `post`.
        """
        memory = partial(self._memory, to)
        answer = write_body(REPLY, body, reply=True, buffers=buffers, memory=memory)
        self._answer(to, request, answer, rides=rides)

    def reply_error(self, to: WorkerInfo, request: Envelope, exception: BaseException) -> None:
        """Answers a request with an exception, which is raised at the requester."""
        body = describe_failure(exception, self._worker)
        self._answer(to, request, write_body(ERROR, body, reply=True))

    # Decodes the body of a protocol message, in any thread; raises DecodeError for other bytes.
    # Arrays that are to live on a GPU arrive with `land=codec.devices.land(sender)`.
    read = staticmethod(read_body)

    def shared(self, to: WorkerInfo, data: Buffer) -> Buffer:
        """Returns bytes for one `post`, in memory that a worker shares, if there is any.

        It is called where the bytes may be copied, when the loop might be the thread that posts
        them.
        """
        staged = self._memory(to).stage(Envelope("", buffers=(data,))).staged
        return staged[FIRST_BUFFER] if staged else data

    def _answer(
        self, to: WorkerInfo, request: Envelope, envelope: Envelope, *, rides: bool = False
    ) -> None:
        envelope.call = request.call
        with contextlib.suppress(WorkerLostError, UnknownWorkerError):
            self._post(to, envelope, rides=rides)
