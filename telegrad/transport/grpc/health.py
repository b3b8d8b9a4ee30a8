"""Answers the health checks of gRPC (`grpc.health.v1.Health`) beside the streams of workers.

A client of health checks has proved nothing. So it is answered only where nobody but this machine's
users, or holders of a certificate of the job, can ask. It is told that the listener serves, nothing
else: no name, no job, no version. `Check` alone is there. `Watch` would let a stranger keep a
stream open for as long as it likes; gRPC's clients take UNIMPLEMENTED for it as "does not say".

gRPC gathers a question whole before any code sees it. So there are few at a time, each for a short
time, and as with streams that have not proved themselves the newest is never refused.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeAlias, final

import grpc
import grpc.aio

from telegrad.transport.grpc.errors import STREAM_ERRORS

METHOD = "/grpc.health.v1.Health/Check"
MOST_QUESTIONS = 16  # at once; an honest one arrives with the headers that announce it
QUESTION_SECONDS = 5.0  # as a handshake

# HealthCheckRequest { string service = 1; }: for the whole server, and for its one service.
_KNOWN_REQUESTS = frozenset({b"", b"\x0a\x00", b"\x0a\x10telegrad.Carrier"})
_SERVING = b"\x08\x01"  # HealthCheckResponse { ServingStatus status = 1; } with SERVING = 1

_Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"


@final
class HealthHandler(grpc.GenericRpcHandler):
    """Says that the listener serves: it answers on the very loop that serves the streams."""

    def __init__(self) -> None:
        self._questions: dict[asyncio.Future[None], None] = {}  # by the future that ends it
        # A stream of one message is the same to a client; here it is read only if there is room for
        # it.
        self._method: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(
            self._check
        )

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        """Returns the handler of a call of `Check`; None for any other method."""
        return self._method if handler_call_details.method == METHOD else None

    async def _check(self, _: object, context: _Context) -> None:
        request = await self._question(context)
        if request is None:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "the question did not come")
        if request not in _KNOWN_REQUESTS:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service is known here")
        await context.write(_SERVING)

    async def _question(self, context: _Context) -> bytes | None:
        """Returns the question; None where it took too long, or there were too many."""
        given_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._questions[given_up] = None
        if len(self._questions) > MOST_QUESTIONS:
            oldest = next(iter(self._questions))
            del self._questions[oldest]
            oldest.set_result(None)
        reading = asyncio.ensure_future(_read(context))
        try:
            first: set[asyncio.Future[Any]] = {reading, given_up}
            await asyncio.wait(first, timeout=QUESTION_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._questions.pop(given_up, None)
        return reading.result() if reading.done() else None  # else it ends with the call


async def _read(context: _Context) -> bytes | None:
    try:
        request: object = await context.read()
    except STREAM_ERRORS:
        return None
    return request if isinstance(request, bytes) else None
