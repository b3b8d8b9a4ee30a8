"""Protocol messages of upper packages: plain bodies, which pass no interceptors."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, final

from telegrad.errors import UnknownWorkerError, WorkerLostError
from telegrad.rpc.base.failure import describe_failure
from telegrad.rpc.base.limits import seconds
from telegrad.rpc.base.tick import Tick
from telegrad.rpc.call.calling import Calling
from telegrad.rpc.call.codec import MessageCodec
from telegrad.rpc.call.serving import ERROR, REPLY
from telegrad.rpc.future.future import Future
from telegrad.transport import Exchange
from telegrad.types import WorkerInfo
from telegrad.wire import FIRST_BUFFER, Buffer, Envelope, read_body, write_body

# Seconds that a message waits for another one to the same worker.
RIDE_SECONDS = 0.1


@final
class Messages:
    """Sends the messages whose handlers are registered with the `Inbox` of their receiver.

    All methods may be called from any thread.

    Args:
        worker: This worker's name, for errors.
        codec: Chooses the GPU on which arrays arrive, and the memory that a worker shares.
        exchange: Posts the messages.
        calling: Waits for the replies to requests.
        after: Calls a function on the loop, some seconds later.

    Attributes:
        post_envelope: Sends an envelope that the codec has sealed; see `Exchange.post`.
    """

    def __init__(
        self,
        worker: str,
        codec: MessageCodec,
        exchange: Exchange,
        calling: Calling,
        after: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self._worker = worker
        self._codec = codec
        self._memory = exchange.memory
        self._request = calling.request
        self.post_envelope = exchange.post
        self._write = exchange.flush
        self._riding: dict[WorkerInfo, None] = {}  # receivers for whom something may wait
        self._tick = Tick(after, RIDE_SECONDS, self.flush, lambda: bool(self._riding))

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
                leave in one write; it leaves alone at the next `flush`, `RIDE_SECONDS` later at the
                latest.

        Raises:
            WorkerLostError: The worker is lost, or this agent was shut down.
        """
        place, memory = self._codec.devices.place(to), partial(self._memory, to)
        envelope = write_body(kind, body, buffers=buffers, place=place, memory=memory)
        self.post_envelope(to, envelope, rides=rides)
        if rides:
            self._riding[to] = None
            self._tick.start()

    def flush(self) -> None:
        """Sends the messages that wait for later ones."""
        with contextlib.suppress(KeyError):
            while True:
                self._write(self._riding.popitem()[0])

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
        self.post_envelope(to, Envelope(kind, document=packed, buffers=buffers))

    def request(
        self,
        to: WorkerInfo,
        kind: str,
        body: object = None,
        *,
        timeout: float = math.inf,
        most: int = 0,
    ) -> Future[Any]:
        """Sends a message whose handler replies with `reply` or `reply_error`.

        Args:
            to: The receiver.
            kind: The kind for which the receiver has registered a handler.
            body: The value that `read` returns there.
            timeout: Seconds.
            most: The maximal bytes of the reply's body; 0 for any number.

        Returns:
            The future of the reply's body. It fails with WorkerLostError, CallTimeoutError,
            DecodeError for a reply that is too large, or the exception of the error reply; this
            method itself raises for bad arguments only.
        """
        return self._request(to, kind, body, seconds(timeout, math.inf), most)

    def reply(
        self,
        to: WorkerInfo,
        request: Envelope,
        body: object = None,
        *,
        buffers: Sequence[Buffer] = (),
    ) -> None:
        """Answers a request; the answer is dropped when the requester is lost.

        Args:
            to: The worker that sent the request.
            request: The envelope of the request.
            body: The value that its future returns.
            buffers: Bytes that travel behind it, as for `post`.
        """
        memory = partial(self._memory, to)
        answer = write_body(REPLY, body, reply=True, buffers=buffers, memory=memory)
        self._answer(to, request, answer)

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

    def _answer(self, to: WorkerInfo, request: Envelope, envelope: Envelope) -> None:
        envelope.call = request.call
        with contextlib.suppress(WorkerLostError, UnknownWorkerError):
            self.post_envelope(to, envelope)
