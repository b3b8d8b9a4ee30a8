"""Who may open a lane, and what a peer gone mad may send on one."""

from __future__ import annotations

import pytest

from telegrad import pb
from telegrad.transport.channels.lanes import MOST_LANES
from telegrad.transport.security.handshake import DialHandshake, Identity, Reason
from telegrad.wire import (
    PIECE_BYTES,
    Envelope,
    Frame,
    Piece,
    chunk_header,
    cut,
    pack_frame,
    unpack_frame,
)
from tests.loops import on_loop
from tests.transport.promises.hand_made import (
    DATA,
    MALLORY,
    Peer,
    answers_to,
    serves_on,
    until_closed,
)
from tests.transport.promises.test_strangers import told
from tests.transport.workers import TOKEN, Floor
from tests.wire.chunks import read_chunk

# Lanes of sockets check what comes as those over gRPC do.
over_all = pytest.mark.parametrize(
    "floor", ["inproc", "local", "grpc", "tcp", "self-signed tcp"], indirect=True
)


BIG = Envelope("test.message", 5, buffers=[DATA], number=1)
FIRST, SECOND = cut(BIG)


def chunk(sequence: int, piece: Piece) -> bytes:
    return chunk_header(sequence, piece) + bytes(piece.data)


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


def test_a_lane_of_a_stream_that_the_listener_dialled(floor: Floor) -> None:
    """Whoever dialled the stream dials its lanes; the other end takes none for it."""
    host, friend = floor.worker("host"), floor.worker("friend")
    host.knows(friend)
    host.send(friend, 1)
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
    hello = pb.Hello.FromString(DialHandshake(Identity("job", MALLORY), TOKEN).hello()[1:])
    hello.purpose, hello.stream = purpose, stream
    (answer,) = answers_to(floor, host, b"H" + hello.SerializeToString())
    assert told(answer)[0] is Reason.MALFORMED


OUT_OF_PLACE = {str(order): [chunk(i, FIRST) for i in order] for order in ([1], [0, 0], [0, 2])}
GARBAGE = {
    "header": b"x" * 28,
    "noise": b"\xff" * 1000,
    "grid": chunk(0, Piece(1, 2, 17, b"x")),
    "short": chunk(0, Piece(1, 2, 0, b"short")),
    "part": chunk(0, Piece(1, 7, 0, FIRST.data)),
    "long": chunk(0, Piece(1, 2, 0, bytes(PIECE_BYTES + 1))),
}


@pytest.mark.few(9)
@over_all
@pytest.mark.parametrize("what", [*OUT_OF_PLACE, *GARBAGE])
def test_chunks_out_of_place_and_garbage_end_the_stream(floor: Floor, what: str) -> None:
    """Who sent garbage is given up, too; else the peer may dial again, and go on."""
    host = floor.worker("host")
    peer = Peer(floor, host)

    async def talk() -> None:
        control, shake = await peer.stream()
        lane = await peer.lane(shake.stream_id())
        await control.send(shake.frames().seal(pack_frame(Frame(envelopes=[BIG]))))
        for message in OUT_OF_PLACE.get(what) or [GARBAGE[what]]:
            await lane.send(message)
        await until_closed(control)
        await until_closed(lane)
        await peer.close()

    on_loop(talk)
    if what in GARBAGE:
        assert "it broke the protocol" in host.recorder.wait_lost().reason
    assert bool(host.recorder.lost) == (what in GARBAGE)
    serves_on(floor, host)


def framed(*chunks: bytes) -> list[Frame]:
    return [Frame([BIG], laneless=b""), *[Frame(laneless=each) for each in chunks]]


def test_chunks_in_frames_and_the_answer_in_frames(floor: Floor) -> None:
    """A peer that cannot open a lane says so, and gets what the host has for it in frames."""
    host = floor.worker("host")
    peer = Peer(floor, host)
    back = Envelope("test.message", 6, buffers=[DATA])
    parts: list[bytes] = []

    async def talk() -> None:
        control, shake = await peer.stream()
        frames = shake.frames()
        # The second comes twice, and before the first.
        for frame in framed(chunk(0, SECOND), chunk(0, SECOND), chunk(0, FIRST)):
            await control.send(frames.seal(pack_frame(frame)))
        host.exchange.post(MALLORY, back)
        while sum(map(len, parts)) < len(DATA):
            frame = unpack_frame(frames.open(await control.receive()))
            if frame.laneless:
                parts.append(bytes(read_chunk(frame.laneless)[1].data))

    on_loop(talk)
    assert host.recorder.wait_envelopes(1)[0].buffers[0] == DATA
    assert b"".join(parts) == DATA
    assert host.exchange.statistics().lanes == 0
    on_loop(peer.close)


@pytest.mark.few(6)
@over_all
@pytest.mark.parametrize("what", GARBAGE)
def test_garbage_in_place_of_a_chunk_in_a_frame_loses_the_peer(floor: Floor, what: str) -> None:
    host = floor.worker("host")
    peer = Peer(floor, host)

    async def talk() -> None:
        control, shake = await peer.stream()
        frames = shake.frames()
        for frame in framed(GARBAGE[what]):
            await control.send(frames.seal(pack_frame(frame)))
        await until_closed(control)
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
    serves_on(floor, host, BIG.call)
    on_loop(peer.close)
