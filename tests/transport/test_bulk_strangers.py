"""Who may open a lane, and what a peer gone mad may send on one."""

from __future__ import annotations

import numpy as np
import pytest

from telegrad import pb
from telegrad.transport import Carrier, CarrierClosedError
from telegrad.transport.channels.lanes import MOST_LANES
from telegrad.transport.security.handshake import DialHandshake, Identity, Reason, RefusedError
from telegrad.types import WorkerInfo
from telegrad.wire import PIECE_BYTES, Envelope, Frame, Piece, chunk_header, cut, pack_frame
from tests.loops import on_loop
from tests.transport.workers import TOKEN, Floor, Worker

MALLORY = WorkerInfo("mallory", 9, 99)
DATA = np.random.default_rng(0).bytes(PIECE_BYTES + 1000)
BIG = Envelope("test.message", 5, buffers=[DATA], number=1)
FIRST, SECOND = cut(BIG)


def chunk(sequence: int, piece: Piece) -> bytes:
    return chunk_header(sequence, piece) + bytes(piece.data)


class Peer:
    """A dialler made by hand, with a control stream and lanes."""

    def __init__(self, floor: Floor, host: Worker, info: WorkerInfo = MALLORY) -> None:
        self.floor = floor
        self.host = host
        self.info = info
        self.carriers: list[Carrier] = []

    async def dial(
        self, *, lane_of: bytes = b"", token: bytes | None = TOKEN
    ) -> tuple[Carrier, DialHandshake]:
        carrier = await self.floor.transport().dial(self.host.endpoints[0])
        self.carriers.append(carrier)
        shake = DialHandshake(Identity("job", self.info), token, lane_of=lane_of)
        await carrier.send(shake.hello())
        shake.takes_answer(await carrier.receive())
        await carrier.send(shake.prove(0, resumes=False))
        shake.takes_welcome(await carrier.receive())
        return carrier, shake

    async def refused(self, *, lane_of: bytes, token: bytes | None = TOKEN) -> Reason:
        with pytest.raises(RefusedError) as error:
            await self.dial(lane_of=lane_of, token=token)
        return error.value.reason

    async def close(self) -> None:
        for carrier in self.carriers:
            await carrier.close()


async def ends(carrier: Carrier) -> None:
    """Reads until the other end closes."""
    with pytest.raises(CarrierClosedError):
        while True:
            await carrier.receive()


def serves_on(floor: Floor, host: Worker) -> None:
    friend = floor.worker("friend").knows(host)
    before = len(host.recorder.calls())
    friend.post(host, 77, buffers=[DATA])
    assert host.recorder.wait_envelopes(before + 1)[-1].buffers[0] == DATA


def test_a_lane_of_ones_own_stream(floor: Floor) -> None:
    host = floor.worker("host")
    peer = Peer(floor, host)

    async def talk() -> None:
        control, shake = await peer.dial()
        lanes = [(await peer.dial(lane_of=shake.stream_id()))[0] for _ in range(MOST_LANES)]
        # Any order, any lane, and the announcement last of all.
        await lanes[5].send(chunk(0, SECOND))
        await lanes[2].send(chunk(0, FIRST))
        await control.send(shake.frames().seal(pack_frame(Frame(envelopes=[BIG]))))
        assert await peer.refused(lane_of=shake.stream_id()) is Reason.UNKNOWN_STREAM

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
        _, shake = await peer.dial()
        reason = await peer.refused(lane_of=shake.stream_id(), token=token)
        assert reason is Reason.AUTHENTICATION
        await peer.close()

    on_loop(talk)
    assert host.exchange.statistics().lanes == 0


def test_a_lane_of_no_stream_or_of_an_old_one(floor: Floor) -> None:
    host = floor.worker("host")
    peer = Peer(floor, host)

    async def talk() -> None:
        assert await peer.refused(lane_of=b"x" * 32) is Reason.UNKNOWN_STREAM
        _, old = await peer.dial()
        assert await peer.refused(lane_of=b"x" * 32) is Reason.UNKNOWN_STREAM
        _, new = await peer.dial()  # in place of the first
        assert await peer.refused(lane_of=old.stream_id()) is Reason.UNKNOWN_STREAM
        await peer.dial(lane_of=new.stream_id())
        await peer.close()

    on_loop(talk)
    serves_on(floor, host)


def test_a_lane_of_somebody_elses_stream(floor: Floor) -> None:
    host = floor.worker("host")
    peer, other = Peer(floor, host), Peer(floor, host, WorkerInfo("eve", 8, 88))

    async def talk() -> None:
        _, shake = await peer.dial()
        await other.dial()
        assert await other.refused(lane_of=shake.stream_id()) is Reason.UNKNOWN_STREAM
        await peer.dial(lane_of=shake.stream_id())
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
        assert await peer.refused(lane_of=stream_id) is Reason.UNKNOWN_STREAM
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


@pytest.mark.parametrize("sequences", [[1], [0, 0], [0, 2]])
def test_a_chunk_out_of_its_place_ends_the_stream(floor: Floor, sequences: list[int]) -> None:
    host = floor.worker("host")
    peer = Peer(floor, host)

    async def talk() -> None:
        control, shake = await peer.dial()
        lane, _ = await peer.dial(lane_of=shake.stream_id())
        await control.send(shake.frames().seal(pack_frame(Frame(envelopes=[BIG]))))
        for sequence in sequences:
            await lane.send(chunk(sequence, FIRST))
        await ends(control)
        await ends(lane)
        await peer.close()

    on_loop(talk)
    assert not host.recorder.lost  # it may dial again, and go on
    serves_on(floor, host)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"x" * 28,
        b"\xff" * 1000,
        chunk(0, Piece(1, 2, 17, b"x")),
        chunk(0, Piece(1, 2, 0, b"short")),
        chunk(0, Piece(1, 7, 0, FIRST.data)),
        chunk(0, Piece(1, 2, 0, bytes(PIECE_BYTES + 1))),
    ],
    ids=["nothing", "header", "noise", "grid", "short", "part", "long"],
)
def test_garbage_on_a_lane(floor: Floor, message: bytes) -> None:
    host = floor.worker("host")
    peer = Peer(floor, host)

    async def talk() -> None:
        control, shake = await peer.dial()
        lane, _ = await peer.dial(lane_of=shake.stream_id())
        await control.send(shake.frames().seal(pack_frame(Frame(envelopes=[BIG]))))
        await lane.send(message)
        await ends(lane)
        await peer.close()

    on_loop(talk)
    assert "it broke the protocol" in host.recorder.wait_lost().reason
    serves_on(floor, host)


def test_chunks_of_what_is_never_announced_hold_up_their_lane_alone(floor: Floor) -> None:
    host = floor.worker("host")
    peer = Peer(floor, host)

    async def talk() -> None:
        control, shake = await peer.dial()
        mad = (await peer.dial(lane_of=shake.stream_id()))[0]
        lane = (await peer.dial(lane_of=shake.stream_id()))[0]
        await mad.send(chunk(0, Piece(1000, 2, 0, b"x")))
        await control.send(shake.frames().seal(pack_frame(Frame(envelopes=[BIG]))))
        for sequence, piece in enumerate((FIRST, SECOND)):
            await lane.send(chunk(sequence, piece))

    on_loop(talk)
    assert host.recorder.wait_envelopes(1)[0].buffers[0] == DATA
    serves_on(floor, host)
    on_loop(peer.close)
