"""Answers the health checks of gRPC (`grpc.health.v1.Health`) beside the streams of workers.

Whoever asks has proved nothing, so it is answered only where nobody but this machine's users, or
holders of a certificate of the job, can ask; and hears that the listener serves, nothing else: no
name, no job, no version. `Check` alone is there. `Watch` would let a stranger keep a stream open
for as long as it likes; gRPC's clients take UNIMPLEMENTED for it as "does not say".
"""

from __future__ import annotations

from typing import final

import grpc
import grpc.aio

__all__ = ["HealthHandler"]

METHOD = "/grpc.health.v1.Health/Check"

# HealthCheckRequest { string service = 1; }: of the whole server, and of the one service it has.
_KNOWN_REQUESTS = frozenset({b"", b"\x0a\x00", b"\x0a\x10telegrad.Carrier"})
_SERVING = b"\x08\x01"  # HealthCheckResponse { ServingStatus status = 1; } with SERVING = 1


@final
class HealthHandler(grpc.GenericRpcHandler):
    """Says that the listener serves: it answers on the very loop that serves the streams."""

    def __init__(self) -> None:
        self._method: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(
            _check
        )

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        """Returns what answers a call of `Check`; None for any other method."""
        return self._method if handler_call_details.method == METHOD else None


async def _check(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
    if request not in _KNOWN_REQUESTS:
        await context.abort(grpc.StatusCode.NOT_FOUND, "no such service is known here")
    return _SERVING
