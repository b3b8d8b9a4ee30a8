"""What a listener bounds before anybody has proved anything: messages, connections, and their time."""

from __future__ import annotations

import resource
import socket
from contextlib import ExitStack

import pytest

from telegrad.transport import GrpcTransport
from telegrad.transport.grpc.options import (
    OTHER_CONNECTIONS,
    SPARE_DESCRIPTORS,
    most_connections,
    server_options,
    split_address,
)
from telegrad.transport.limits import MAX_INLINE_BYTES, MAX_MESSAGE_BYTES
from telegrad.transport.security.tags import FrameTags
from telegrad.transport.session.session import Session
from telegrad.wire import PIECE_BYTES, Envelope, Piece, chunk_header, pack_frame
from tests.break_in.strangers import PREFACE, SETTINGS, RawStream, h2_frame
from tests.transport.workers import SECONDS, Floor, wait_until

SOON = 0.2  # seconds for a connection to come up, and half of those until it is idle
HTTP2 = PREFACE + h2_frame(SETTINGS, b"")


def test_the_largest_messages_fit() -> None:
    """An envelope whose headers are as large as they may be, alone in its write; and a chunk."""
    session = Session()
    session.connection_made(0)
    tags = FrameTags(sending=bytes(32), receiving=bytes(32))
    envelope = Envelope("k" * 100, 2**63, document=b"x", time_left=1.0, depth=1000)
    room = MAX_INLINE_BYTES - 2 * 100
    envelope.headers = {f"part{i}": bytes(room // 8) for i in range(8)}
    session.post(envelope)
    write = tags.seal(pack_frame(session.next_write()))
    assert MAX_INLINE_BYTES - 1000 < len(write) < MAX_MESSAGE_BYTES
    piece = Piece(2**63, 2**31, 0, bytes(PIECE_BYTES))
    assert len(chunk_header(2**63, piece)) + PIECE_BYTES < MAX_MESSAGE_BYTES


def test_a_large_envelope_arrives(grpc_floor: Floor) -> None:
    alice, bob = grpc_floor.pair()
    headers = {"h": bytes(MAX_INLINE_BYTES - 1000)}
    alice.exchange.post(bob.info, Envelope("test.message", 1, headers=headers))
    (arrived,) = bob.recorder.wait_envelopes(1)
    assert len(arrived.headers["h"]) == len(headers["h"])


@pytest.mark.parametrize("said", [b"", HTTP2], ids=["nothing", "HTTP/2"])
def test_a_connection_without_a_stream_ends(grpc_floor: Floor, said: bytes) -> None:
    host = grpc_floor.worker("host", transport=GrpcTransport(handshake_seconds=SOON))
    with RawStream(split_address(host.endpoints[0])[1]) as stranger:
        stranger.send(said)
        stranger.wait_for_close()


def test_one_with_a_stream_is_not_idle(grpc_floor: Floor) -> None:
    """A stranger that came later, and was ended for being idle, says that the time has passed."""
    host = grpc_floor.worker("host", transport=GrpcTransport(handshake_seconds=SOON))
    alice = grpc_floor.worker("alice", prove_within=SECONDS).knows(host)
    alice.send(host, 1)
    for _ in range(2):
        with RawStream(split_address(host.endpoints[0])[1]) as stranger:
            stranger.send(HTTP2)
            stranger.wait_for_close()
    alice.send(host, 2)
    assert [link.came_up for link in alice.connections.values()] == [1]


def test_more_connections_than_a_listener_takes(
    grpc_floor: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is there stays, what is too much is closed at once, and there is room when they are gone."""
    monkeypatch.setattr("telegrad.transport.grpc.options.OTHER_CONNECTIONS", 2)
    host = grpc_floor.worker("host", transport=GrpcTransport(connections=1))
    alice = grpc_floor.worker("alice").knows(host)
    alice.send(host, 1)
    port = split_address(host.endpoints[0])[1]

    def is_open(stranger: socket.socket) -> bool:
        stranger.settimeout(0.01)
        try:
            return bool(stranger.recv(65536))
        except TimeoutError:
            return True
        except ConnectionResetError:
            return False

    with ExitStack() as stack:
        crowd = [stack.enter_context(RawStream(port)) for _ in range(20)]
        wait_until("room is all taken", lambda: sum(is_open(each.socket) for each in crowd) < 6)
        alice.send(host, 2)
    bob = grpc_floor.worker("bob").knows(host)
    bob.send(host, 3)


@pytest.mark.parametrize(
    ("descriptors", "connections", "most"),
    [
        (1024, 10_000, 1024 - SPARE_DESCRIPTORS),
        (1024, 10, 40 + OTHER_CONNECTIONS),
        (256, 10_000, 128),
        (1, 1, 1),
        (10**6, 10_000, 40_000 + OTHER_CONNECTIONS),
        (resource.RLIM_INFINITY, 10_000, 40_000 + OTHER_CONNECTIONS),
        (resource.RLIM_INFINITY, 2**62, 2**30),
    ],
)
def test_the_bound_on_connections(
    monkeypatch: pytest.MonkeyPatch, descriptors: int, connections: int, most: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (descriptors, descriptors))
    assert most_connections(connections) == most


def test_times_that_gRPC_can_count() -> None:
    for seconds in (1e-9, float("inf")):
        assert all(0 <= value < 2**31 for _, value in server_options(1, seconds))
