"""Sessions between workers: envelopes exactly once, over carriers that may break at any time."""

from __future__ import annotations

from telegrad.transport.addresses import (
    HIGHEST_PORT,
    LOOPBACK,
    LOOPBACK_V6,
    Interface,
    address_of,
    interfaces,
    is_everywhere,
    is_local,
    is_localhost,
    is_loopback_address,
    is_number,
    own_loopback,
    route_to,
    split_advertised,
    split_host,
)
from telegrad.transport.base import (
    Carrier,
    CarrierClosedError,
    Listener,
    Receiver,
    Transport,
    WrappedCarrier,
)

# This import is the first: before gRPC is imported.
from telegrad.transport.grpc.environment import set_grpc_environment
from telegrad.transport.grpc.transport import GrpcTransport
from telegrad.transport.host import (
    can_read_directly,
    cores,
    open_process,
    read_host_id,
    start_thread,
)
from telegrad.transport.inproc import InprocNetwork, InprocTransport
from telegrad.transport.io.pump import WaitGate
from telegrad.transport.io.shield import MAIN, Shield
from telegrad.transport.io.socket_reader import SocketReader, Stay
from telegrad.transport.io.spin import LONGEST_SLEEP, Spin, longest_spin
from telegrad.transport.limits import ConnectionLimits
from telegrad.transport.log import get_logger
from telegrad.transport.loop import (
    LoopThread,
    barred,
    handing,
    hands_over,
    on_own_loop,
    put_off,
    refuse_in_section,
    refuse_to_block,
    shared_loop_thread,
)
from telegrad.transport.security.audit import CALL_REFUSED, Audit
from telegrad.transport.security.certificate import Certificate, KeyPair
from telegrad.transport.security.certificates import (
    make_authority,
    make_certificate,
    read_certificate,
)
from telegrad.transport.security.credentials import (
    find_token,
    make_token,
    read_token_file,
    token_path,
    write_token_file,
)
from telegrad.transport.security.guest_list import GuestList
from telegrad.transport.security.handshake import Identity
from telegrad.transport.security.own_file import fault_of_file
from telegrad.transport.security.tls import Tls, TlsOptions, find_tls, load_tls, self_signed_tls
from telegrad.transport.session.accept import Entrance
from telegrad.transport.session.exchange import Exchange
from telegrad.transport.session.link import Dial, dial_peers, kind_of_failure, own_endpoints
from telegrad.transport.session.requests import Requests
from telegrad.transport.session.session import Session
from telegrad.transport.session.shared_port import SharedPort
from telegrad.transport.session.terms import Credentials
from telegrad.transport.sockets.tcp import TcpTransport
from telegrad.transport.sockets.unix import LocalTransport, find_local
from telegrad.transport.sockets.unix_path import is_unix
from telegrad.wire import escaped

__all__ = [
    "CALL_REFUSED",
    "HIGHEST_PORT",
    "LONGEST_SLEEP",
    "LOOPBACK",
    "LOOPBACK_V6",
    "MAIN",
    "Audit",
    "Carrier",
    "CarrierClosedError",
    "Certificate",
    "ConnectionLimits",
    "Credentials",
    "Dial",
    "Entrance",
    "Exchange",
    "GrpcTransport",
    "GuestList",
    "Identity",
    "InprocNetwork",
    "InprocTransport",
    "Interface",
    "KeyPair",
    "Listener",
    "LocalTransport",
    "LoopThread",
    "Receiver",
    "Requests",
    "Session",
    "SharedPort",
    "Shield",
    "SocketReader",
    "Spin",
    "Stay",
    "TcpTransport",
    "Tls",
    "TlsOptions",
    "Transport",
    "WaitGate",
    "WrappedCarrier",
    "address_of",
    "barred",
    "can_read_directly",
    "cores",
    "dial_peers",
    "escaped",
    "fault_of_file",
    "find_local",
    "find_tls",
    "find_token",
    "get_logger",
    "handing",
    "hands_over",
    "interfaces",
    "is_everywhere",
    "is_local",
    "is_localhost",
    "is_loopback_address",
    "is_number",
    "is_unix",
    "kind_of_failure",
    "load_tls",
    "longest_spin",
    "make_authority",
    "make_certificate",
    "make_token",
    "on_own_loop",
    "open_process",
    "own_endpoints",
    "own_loopback",
    "put_off",
    "read_certificate",
    "read_host_id",
    "read_token_file",
    "refuse_in_section",
    "refuse_to_block",
    "route_to",
    "self_signed_tls",
    "set_grpc_environment",
    "shared_loop_thread",
    "split_advertised",
    "split_host",
    "start_thread",
    "token_path",
    "write_token_file",
]
