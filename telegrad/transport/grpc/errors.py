"""The translation of gRPC's and the socket's errors into this library's: one file for the edge."""

from __future__ import annotations

import asyncio
from typing import Final

import grpc
from grpc.aio import AbortError, InternalError, UsageError

from telegrad.transport.base import CarrierClosedError
from telegrad.transport.host import spelled
from telegrad.wire import escaped

__all__ = ["STREAM_ERRORS", "closed", "unreachable"]

# All errors that gRPC raises from a read or write on a stream that is over: AioRpcError at the
# dialler; at the listener UsageError, InternalError or AbortError, depending on its progress.
STREAM_ERRORS: Final = (
    grpc.RpcError,
    AbortError,
    InternalError,
    UsageError,
    asyncio.InvalidStateError,
)


def closed(description: str, error: BaseException | None = None) -> CarrierClosedError:
    """Returns the error of a carrier that broke."""
    return CarrierClosedError(f"the stream with {description} ended{_reason(error)}")


def unreachable(endpoint: str, error: BaseException) -> ConnectionError:
    """Returns the error of a dial that failed: refused is told apart from all other causes."""
    if isinstance(error, ConnectionRefusedError):
        gone = "" if error.errno else f" ({error})"  # there is no socket
        return ConnectionRefusedError(f"nobody listens at {endpoint}{gone}")
    return ConnectionError(f"{endpoint} cannot be reached{_reason(error)}")


def _reason(error: BaseException | None) -> str:
    if error is None:
        return ""
    if isinstance(error, grpc.aio.AioRpcError):
        return f" ({error.code().name.lower()}: {escaped(str(error.details()))})"
    return f" ({spelled(error)})"
