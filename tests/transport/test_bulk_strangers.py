"""Who may open a lane, and what a peer gone mad may send on one."""

from __future__ import annotations

import numpy as np
import pytest

from telegrad import pb
from telegrad.transport.channels.lanes import MOST_LANES
from telegrad.transport.security.handshake import DialHandshake, Identity, Reason
from telegrad.types import WorkerInfo
from telegrad.wire import PIECE_BYTES, Envelope, Frame, Piece, chunk_header, cut, pack_frame
from tests.loops import on_loop
from tests.transport.hand_made import MALLORY, Peer, until_closed
from tests.transport.workers import TOKEN, Floor, Worker

# Lanes of sockets check what comes as those over gRPC do.
over_all = pytest.mark.parametrize(
    "floor", ["inproc", "local", "grpc", "tcp", "self-signed tcp"], indirect=True
)

DATA = np.random.default_rng(0).bytes(PIECE_BYTES + 1000)
BIG = Envelope("test.message", 5, buffers=[DATA], number=1)
FIRST, SECOND = cut(BIG)


def chunk(sequence: int, piece: Piece) -> bytes:
    return chunk_header(sequence, piece) + bytes(piece.data)


def serves_on(floor: Floor, host: Worker) -> None:
    friend = floor.worker("friend").knows(host)
    before = len(host.recorder.calls())
    friend.post(host, 77, buffers=[DATA])
    assert host.recorder.wait_envelopes(before + 1)[-1].buffers[0] == DATA


@over_all
def test_a_lane_of_ones_own_stream(floor: Floor) -> None:
    host = floor.worker("host")
    peer = Peer(floor, host)

    async def talk() -> None:
        control, shake = await peer.stream()
        lanes = [await peer.lane(shake.stream_id()) for _ in range(MOST_LANES)]
        # Any order, any lane, and the announcement last of all.
        await lanes[5].send(chunk(0, SECOND))
        await lanes[2].send(chunk(0, FIRST))
        await control.send(shake.frames().seal(pack_frame(Frame(envelopes=[BIG]))))
        assert await peer.reason(shake.stream_id()) is Reason.UNKNOWN_STREAM

    on_loop(talk)
    (got,) = host.recorder.wait_envelopes(1)
    assert got.buffers[0] == DATA
    assert host.exchange.statistics().lanes == MOST_LANES
    on_loop(peer.close)


@pytest.mark.parametrize("token", [b"another token, long enough", None])
def test_a_lane_without_the_token(floor: Floor, token: bytes | None) -> None:
    host = floor.worker("host")
    peer = Peer(floor, host)

    async def talk() -> None:
        _, shake = await peer.stream()
        reason = await peer.reason(shake.stream_id(), token=token)
        assert reason is Reason.AUTHENTICATION
        await peer.close()

    on_loop(talk)
    assert host.exchange.statistics().lanes == 0


def test_a_lane_of_no_stream_or_of_an_old_one(floor: Floor) -> None:
    host = floor.worker("host")
    peer = Peer(floor, host)

    async def talk() -> None:
        assert await peer.reason(b"x" * 32) is Reason.UNKNOWN_STREAM
        _, old = await peer.stream()
        assert await peer.reason(b"x" * 32) is Reason.UNKNOWN_STREAM
        _, new = await peer.stream()  # in place of the first
        assert await peer.reason(old.stream_id()) is Reason.UNKNOWN_STREAM
        await peer.lane(new.stream_id())
        await peer.close()

    on_loop(talk)
    serves_on(floor, host)


def test_a_lane_of_somebody_elses_stream(floor: Floor) -> None:
    host = floor.worker("host")
    peer, other = Peer(floor, host), Peer(floor, host, WorkerInfo("eve", 8, 88))

    async def talk() -> None:
        _, shake = await peer.stream()
        await other.stream()
        assert await other.reason(shake.stream_id()) is Reason.UNKNOWN_STREAM
        await peer.lane(shake.stream_id())
        await peer.close()
        await other.close()

    on_loop(talk)


def test_a_lane_of_a_stream_that_the_listener_dialled(floor: Floor) -> None:
    """Whoever dialled the stream dials its lanes; the other end takes none for it."""
    host, friend = floor.worker("host"), floor.worker("friend")
    host.knows(friend)
    host.post(friend, 1)
    friend.recorder.wait_envelopes(1)
    stream = host.connection(friend.info).stream
    assert stream is not None
    stream_id = stream.lanes.way.stream_id
    peer = Peer(floor, host, friend.info)

    async def talk() -> None:
        assert await peer.reason(stream_id) is Reason.UNKNOWN_STREAM
        await peer.close()

    on_loop(talk)


@pytest.mark.parametrize(
    ("purpose", "stream"), [("control", b"x" * 32), ("bulk", b""), ("bulk", b"x"), ("other", b"")]
)
def test_hellos_that_do_not_fit(floor: Floor, purpose: str, stream: bytes) -> None:
    host = floor.worker("host")

    async def talk() -> bytes:
        carrier = await floor.transport().dial(host.endpoints[0])
        hello = pb.Hello.FromString(DialHandshake(Identity("job", MALLORY), TOKEN).hello()[1:])
        hello.purpose, hello.stream = purpose, stream
        await carrier.send(b"H" + hello.SerializeToString())
        message = await carrier.receive()
        await carrier.close()
        return message

    refusal = pb.Refusal.FromString(on_loop(talk)[1:])
    assert Reason(refusal.reason) is Reason.MALFORMED


@over_all
@pytest.mark.parametrize("sequences", [[1], [0, 0], [0, 2]])
def test_a_chunk_out_of_its_place_ends_the_stream(floor: Floor, sequences: list[int]) -> None:
    host = floor.worker("host")
    peer = Peer(floor, host)

    async def talk() -> None:
        control, shake = await peer.stream()
        lane = await peer.lane(shake.stream_id())
        await control.send(shake.frames().seal(pack_frame(Frame(envelopes=[BIG]))))
        for sequence in sequences:
            await lane.send(chunk(sequence, FIRST))
        await until_closed(control)
        await until_closed(lane)
        await peer.close()

    on_loop(talk)
    assert not host.recorder.lost  # it may dial again, and go on
    serves_on(floor, host)


@over_all
@pytest.mark.parametrize(
    "message",
    [
        b"x" * 28,
        b"\xff" * 1000,
        chunk(0, Piece(1, 2, 17, b"x")),
        chunk(0, Piece(1, 2, 0, b"short")),
        chunk(0, Piece(1, 7, 0, FIRST.data)),
        chunk(0, Piece(1, 2, 0, bytes(PIECE_BYTES + 1))),
    ],
    ids=["header", "noise", "grid", "short", "part", "long"],
)
def test_garbage_on_a_lane(floor: Floor, message: bytes) -> None:
    host = floor.worker("host")
    peer = Peer(floor, host)

    async def talk() -> None:
        control, shake = await peer.stream()
        lane = await peer.lane(shake.stream_id())
        await control.send(shake.frames().seal(pack_frame(Frame(envelopes=[BIG]))))
        await lane.send(message)
        await until_closed(lane)
        await peer.close()

    on_loop(talk)
    assert "it broke the protocol" in host.recorder.wait_lost().reason
    serves_on(floor, host)


def test_chunks_of_what_is_never_announced_hold_up_their_lane_alone(floor: Floor) -> None:
    host = floor.worker("host")
    peer = Peer(floor, host)

    async def talk() -> None:
        control, shake = await peer.stream()
        mad = await peer.lane(shake.stream_id())
        lane = await peer.lane(shake.stream_id())
        await mad.send(chunk(0, Piece(1000, 2, 0, b"x")))
        await control.send(shake.frames().seal(pack_frame(Frame(envelopes=[BIG]))))
        for sequence, piece in enumerate((FIRST, SECOND)):
            await lane.send(chunk(sequence, piece))

    on_loop(talk)
    assert host.recorder.wait_envelopes(1)[0].buffers[0] == DATA
    serves_on(floor, host)
    on_loop(peer.close)
