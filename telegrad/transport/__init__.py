"""Sessions between workers: envelopes exactly once, over carriers that may break at any time."""

from __future__ import annotations

from telegrad.transport import grpc_environment  # noqa: F401  # first: before gRPC is imported
from telegrad.transport.addresses import (
    Interface,
    address_of,
    interfaces,
    is_everywhere,
    is_local,
    is_localhost,
    is_loopback_address,
    is_number,
    route_to,
    split_advertised,
    split_host,
)
from telegrad.transport.audit import CALL_REFUSED, Audit
from telegrad.transport.base import (
    Carrier,
    CarrierClosedError,
    Listener,
    Receiver,
    Transport,
    WrappedCarrier,
)
from telegrad.transport.bulk_sockets import BulkSockets
from telegrad.transport.certificate import Certificate, KeyPair
from telegrad.transport.certificates import (
    make_authority,
    make_certificate,
    read_certificate,
)
from telegrad.transport.credentials import (
    find_token,
    make_token,
    read_token_file,
    write_token_file,
)
from telegrad.transport.exchange import Exchange
from telegrad.transport.grpc_transport import GrpcTransport
from telegrad.transport.guest_list import GuestList
from telegrad.transport.inproc import InprocNetwork, InprocTransport
from telegrad.transport.interrupts import Shield
from telegrad.transport.limits import ConnectionLimits
from telegrad.transport.link import Dial, Link, dial_peers, own_endpoints
from telegrad.transport.local_transport import LocalTransport, find_local
from telegrad.transport.loop import LoopThread, hands_over, on_own_loop, shared_loop_thread
from telegrad.transport.pump import Gate
from telegrad.transport.session import Session, SessionStatistics
from telegrad.transport.shared_port import SharedPort
from telegrad.transport.statistics import ExchangeStatistics
from telegrad.transport.tls import Tls, TlsOptions, find_tls, load_tls, self_signed_tls

__all__ = [
    "CALL_REFUSED",
    "Audit",
    "BulkSockets",
    "Carrier",
    "CarrierClosedError",
    "Certificate",
    "ConnectionLimits",
    "Dial",
    "Exchange",
    "ExchangeStatistics",
    "Gate",
    "GrpcTransport",
    "GuestList",
    "InprocNetwork",
    "InprocTransport",
    "Interface",
    "KeyPair",
    "Link",
    "Listener",
    "LocalTransport",
    "LoopThread",
    "Receiver",
    "Session",
    "SessionStatistics",
    "SharedPort",
    "Shield",
    "Tls",
    "TlsOptions",
    "Transport",
    "WrappedCarrier",
    "address_of",
    "dial_peers",
    "find_local",
    "find_tls",
    "find_token",
    "hands_over",
    "interfaces",
    "is_everywhere",
    "is_local",
    "is_localhost",
    "is_loopback_address",
    "is_number",
    "load_tls",
    "make_authority",
    "make_certificate",
    "make_token",
    "on_own_loop",
    "own_endpoints",
    "read_certificate",
    "read_token_file",
    "route_to",
    "self_signed_tls",
    "shared_loop_thread",
    "split_advertised",
    "split_host",
    "write_token_file",
]
