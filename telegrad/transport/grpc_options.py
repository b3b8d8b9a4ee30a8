"""The gRPC channel arguments of this library, each with its reason."""

from __future__ import annotations

import ipaddress

__all__ = [
    "CHANNEL_OPTIONS",
    "METHOD",
    "SCHEME",
    "SERVER_OPTIONS",
    "TLS_SCHEME",
    "is_loopback",
    "join_address",
    "split_address",
]

SCHEME, TLS_SCHEME = "grpc", "grpcs"
METHOD = "/telegrad.Carrier/Open"

# A write is at most 1 MiB of envelopes, or one of 2 MiB; a chunk 1 MiB. Never -1: a stranger would
# choose how much memory is taken.
MAX_MESSAGE_BYTES = 4 * 2**20

# For TLS and HTTP/2 to come up, as long as a stream has afterwards to prove itself. gRPC gives 120 s:
# strangers who connect and say nothing would keep as many descriptors for as long.
HANDSHAKE_MILLISECONDS = 5_000

COMMON_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 2**31 - 1),  # heartbeats of the session know more: they echo
    ("grpc.http2.max_pings_without_data", 0),
)

SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    *COMMON_OPTIONS,
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_MILLISECONDS),
    ("grpc.so_reuseport", 0),  # else a second job's server takes half of the first one's dials
    ("grpc.max_connection_idle_ms", 30_000),  # without a stream: whoever dials opens one at once
    ("grpc.max_concurrent_streams", 32),  # of one connection: a control stream and eight lanes
)

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    *COMMON_OPTIONS,
    ("grpc.enable_http_proxy", 0),  # workers reach each other directly, whatever the shell says
    ("grpc.use_local_subchannel_pool", 1),  # a redial must not wait in another channel's backoff
    ("grpc.enable_retries", 0),  # the session sends again what was lost, exactly once
    ("grpc.initial_reconnect_backoff_ms", 100),
    # This one is also how long an attempt may take, of which a channel gets one: TCP, TLS and HTTP/2
    # need three round trips, and the dialler has a bound of its own.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 100),
)


def split_address(endpoint: str) -> tuple[str, int]:
    """Returns host and port of `grpc://host:port` or `grpcs://host:port`.

    A v6 address stands in brackets.

    >>> split_address("grpc://[::1]:4000")
    ('::1', 4000)

    Raises:
        ConnectionError: It is no such endpoint.
    """
    scheme, separator, address = endpoint.partition("://")
    host, colon, port = address.rpartition(":")
    if (
        scheme not in (SCHEME, TLS_SCHEME)
        or not separator
        or not colon
        or not host
        or not port.isdecimal()
    ):
        raise ConnectionError(f"{endpoint!r} is no endpoint; write grpcs://host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_loopback(host: str) -> bool:
    """Returns whether only this machine can reach an address.

    >>> is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def join_address(host: str, port: int) -> str:
    """Returns `host:port`, a v6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
