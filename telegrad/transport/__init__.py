"""Sessions between workers: envelopes exactly once, over carriers that may break at any time."""

from __future__ import annotations

from telegrad.transport.base import Carrier, CarrierClosedError, Listener, Receiver, Transport
from telegrad.transport.credentials import (
    find_token,
    make_token,
    read_token_file,
    write_token_file,
)
from telegrad.transport.exchange import Exchange, ExchangeStatistics, Waiter
from telegrad.transport.grpc_transport import GrpcTransport
from telegrad.transport.inproc import InprocNetwork, InprocTransport
from telegrad.transport.loop import LoopThread, on_own_loop, shared_loop_thread
from telegrad.transport.session import Session, SessionStatistics

__all__ = [
    "Carrier",
    "CarrierClosedError",
    "Exchange",
    "ExchangeStatistics",
    "GrpcTransport",
    "InprocNetwork",
    "InprocTransport",
    "Listener",
    "LoopThread",
    "Receiver",
    "Session",
    "SessionStatistics",
    "Transport",
    "Waiter",
    "find_token",
    "make_token",
    "on_own_loop",
    "read_token_file",
    "shared_loop_thread",
    "write_token_file",
]
