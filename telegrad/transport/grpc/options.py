"""The gRPC channel arguments of this library, each with its reason."""

from __future__ import annotations

import resource
from typing import Final

from telegrad.transport.addresses import is_loopback_address, is_number
from telegrad.transport.limits import CONNECTIONS, HANDSHAKE_SECONDS, MAX_MESSAGE_BYTES

SCHEME, TLS_SCHEME = "grpc", "grpcs"
METHOD = "/telegrad.Carrier/Open"

# The streams of one connection: a control stream and eight lanes.
STREAMS: Final = 32
# The connections of one worker: its control stream, two lanes, one that is about to take the place
# of another; and others that have not proved themselves.
CONNECTIONS_PER_WORKER: Final = 4
OTHER_CONNECTIONS: Final = 256
# Descriptors that connections do not take, or half of them if there are few: a process that has
# none left opens no file.
SPARE_DESCRIPTORS: Final = 256
LONGEST_SECONDS: Final = 24 * 3600.0

COMMON_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # Many times the size of gRPC's own headers and the words of a status.
    ("grpc.max_metadata_size", 4 * 2**10),
    ("grpc.absolute_max_metadata_size", 8 * 2**10),
    ("grpc.keepalive_time_ms", 2**31 - 1),  # heartbeats of the session prove more: they echo
    ("grpc.http2.max_pings_without_data", 0),
)


def server_options(
    connections: int = CONNECTIONS, handshake_seconds: float = HANDSHAKE_SECONDS
) -> tuple[tuple[str, int], ...]:
    """Returns the channel arguments of a listener.

    Args:
        connections: The number of workers that it speaks with at once.
        handshake_seconds: Seconds for TLS and HTTP/2 to come up, the same as a stream has
            afterwards to prove itself (gRPC gives 120 s); and as long again until a connection
            without a stream is idle. A dialler opens a stream at once, and a connection with a
            stream is never idle.
    """
    milliseconds = max(1, round(1000 * min(handshake_seconds, LONGEST_SECONDS)))
    return (
        *COMMON_OPTIONS,
        ("grpc.server_handshake_timeout_ms", milliseconds),
        ("grpc.max_connection_idle_ms", 2 * milliseconds),
        ("grpc.max_allowed_incoming_connections", most_connections(connections)),
        ("grpc.so_reuseport", 0),  # else a second job's server takes half of the first one's dials
        ("grpc.max_concurrent_streams", STREAMS),
    )


def most_connections(connections: int) -> int:
    """Returns the most connections of a listener, proved or not; it closes further ones at once.

    Args:
        connections: The number of workers that it speaks with at once.
    """
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(connections * CONNECTIONS_PER_WORKER + OTHER_CONNECTIONS, 2**30)
    if descriptors == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, descriptors - min(SPARE_DESCRIPTORS, descriptors // 2)))


CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    *COMMON_OPTIONS,
    ("grpc.enable_http_proxy", 0),  # workers reach each other directly, whatever the shell sets
    ("grpc.use_local_subchannel_pool", 1),  # a redial must not wait in another channel's backoff
    ("grpc.enable_retries", 0),  # the session sends again what was lost, exactly once
    ("grpc.initial_reconnect_backoff_ms", 100),
    # This one also bounds an attempt, of which a channel gets one: TCP, TLS and HTTP/2 need three
    # round trips, and the dialler has a bound of its own.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 100),
)


def split_address(endpoint: str) -> tuple[str, int]:
    """Returns host and port of `grpc://host:port` or `grpcs://host:port`.

    A v6 address stands in brackets.

    >>> split_address("grpc://[::1]:4000")
    ('::1', 4000)

    Raises:
        ConnectionError: The text is no such endpoint.
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
    """Returns True if only this machine can reach an address.

    >>> is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, False)
    """
    return host == "localhost" or (is_number(host) and is_loopback_address(host))


def join_address(host: str, port: int) -> str:
    """Returns `host:port`, a v6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
