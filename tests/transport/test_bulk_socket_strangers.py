"""Who may open a lane over a socket, what may come on one, and what protects it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telegrad.errors import DecodeError
from telegrad.transport import BulkSockets, CarrierClosedError, ConnectionLimits, Session
from telegrad.transport.channels.base import Counters
from telegrad.transport.channels.bulk_thread import BulkThread
from telegrad.transport.channels.cargo import Cargo
from telegrad.transport.channels.pace import Pace
from telegrad.transport.channels.socket_lane import SocketLane
from telegrad.transport.security.handshake import DialHandshake, Identity, Reason, RefusedError
from telegrad.transport.security.seal import TAG_BYTES, Seal, lane_secret, make_seal
from telegrad.transport.sockets.message_socket import header_of
from telegrad.transport.sockets.tcp import BulkSocket, bulk_endpoint
from telegrad.wire import Envelope, Frame, Piece, chunk_header, cut, pack_frame
from tests.repeated import on_examples
from tests.transport.test_bulk_sockets import port_of
from tests.transport.test_bulk_strangers import (
    BIG,
    DATA,
    FIRST,
    SECOND,
    Peer,
    chunk,
    ends,
    on_loop,
    serves_on,
)
from tests.transport.workers import SECONDS, TOKEN, Floor, Worker, floor_of

LOCALHOST = "127.0.0.1"


@pytest.fixture(params=["sockets", "sealed sockets"])
def floor(request: pytest.FixtureRequest) -> Iterator[Floor]:
    with floor_of(request.param) as workers:
        yield workers


@pytest.fixture
def plain() -> Iterator[Floor]:
    with floor_of("sockets") as workers:
        yield workers


class SocketPeer(Peer):
    """A dialler made by hand, whose lanes are sockets."""

    async def socket(self) -> BulkSocket:
        dialler = BulkSockets(0, lambda: None)
        carrier = await dialler.dial(f"bulk://{LOCALHOST}:{port_of(self.host)}")
        self.carriers.append(carrier)
        assert isinstance(carrier, BulkSocket)
        return carrier

    async def lane(self, stream: bytes, *, token: bytes | None = TOKEN) -> BulkSocket:
        carrier = await self.socket()
        shake = DialHandshake(Identity("job", self.info), token, lane_of=stream)
        await carrier.send(shake.hello())
        shake.takes_answer(await carrier.receive())
        await carrier.send(shake.prove(0, resumes=False))
        shake.takes_welcome(await carrier.receive())
        return carrier

    async def reason(self, stream: bytes, *, token: bytes | None = TOKEN) -> Reason:
        with pytest.raises(RefusedError) as error:
            await self.lane(stream, token=token)
        return error.value.reason


def connect(host: Worker) -> socket.socket:
    return socket.create_connection((LOCALHOST, port_of(host)), SECONDS)


def is_closed(stranger: socket.socket) -> bool:
    """Waits for the end of a connection, on which nothing may come before it."""
    try:
        return stranger.recv(1) == b""
    except ConnectionError:
        return True


# -- who -----------------------------------------------------------------------------------------


def test_a_lane_of_ones_own_stream(plain: Floor) -> None:
    host = plain.worker("host")
    peer = SocketPeer(plain, host)

    async def talk() -> None:
        control, shake = await peer.dial()
        lane = await peer.lane(shake.stream_id())
        await lane.send(chunk(0, SECOND))  # any order, and the announcement last
        await control.send(shake.frames().seal(pack_frame(Frame(envelopes=[BIG]))))
        await lane.send(chunk(1, FIRST))

    on_loop(talk)
    (got,) = host.recorder.wait_envelopes(1)
    assert got.buffers[0] == DATA
    on_loop(peer.close)


@pytest.mark.parametrize("token", [b"another token, long enough", None])
def test_a_lane_without_the_token(plain: Floor, token: bytes | None) -> None:
    host = plain.worker("host")
    peer = SocketPeer(plain, host)

    async def talk() -> None:
        _, shake = await peer.dial()
        assert await peer.reason(shake.stream_id(), token=token) is Reason.AUTHENTICATION
        await peer.close()

    on_loop(talk)
    assert host.exchange.statistics().lanes == 0


def test_a_lane_of_no_stream_or_of_an_old_one(plain: Floor) -> None:
    host = plain.worker("host")
    peer = SocketPeer(plain, host)

    async def talk() -> None:
        assert await peer.reason(b"x" * 32) is Reason.UNKNOWN_STREAM
        _, old = await peer.dial()
        await peer.dial()  # in place of the first
        assert await peer.reason(old.stream_id()) is Reason.UNKNOWN_STREAM
        await peer.close()

    on_loop(talk)
    serves_on(plain, host)


def test_no_control_stream_runs_over_a_socket_for_lanes(floor: Floor) -> None:
    host = floor.worker("host")
    peer = SocketPeer(floor, host)

    async def talk() -> None:
        assert await peer.reason(b"") is Reason.MALFORMED
        await peer.close()

    on_loop(talk)
    assert host.exchange.statistics().connections == 0


def test_who_says_nothing_is_cut_off(plain: Floor) -> None:
    host = plain.worker("host", limits=ConnectionLimits(handshake_seconds=0.1))
    with connect(host) as silent, connect(host) as half:
        half.sendall(header_of(bytes(100)) + bytes(50))
        assert is_closed(silent)
        assert is_closed(half)
    serves_on(plain, host)


@pytest.mark.parametrize(
    "said",
    [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100, (16 * 1024 + 1).to_bytes(4, "big"), bytes(4)],
    ids=["http", "noise", "big", "empty"],
)
def test_who_says_what_is_no_hello_is_cut_off(plain: Floor, said: bytes) -> None:
    host = plain.worker("host")
    with connect(host) as stranger:
        stranger.sendall(said)
        refusal = b""
        while came := _received(stranger):
            refusal += came
        assert len(refusal) < 500
    serves_on(plain, host)


def _received(stranger: socket.socket) -> bytes:
    try:
        return stranger.recv(1000)
    except ConnectionError:
        return b""


def test_of_too_many_strangers_the_oldest_goes(plain: Floor) -> None:
    host = plain.worker("host", limits=ConnectionLimits(unproved=2))
    with connect(host) as oldest, connect(host), connect(host):
        assert is_closed(oldest)
    serves_on(plain, host)


# -- what ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sequences", [[1], [0, 0], [0, 2]])
def test_a_chunk_out_of_its_place_ends_the_stream(plain: Floor, sequences: list[int]) -> None:
    host = plain.worker("host")
    peer = SocketPeer(plain, host)

    async def talk() -> None:
        control, shake = await peer.dial()
        lane = await peer.lane(shake.stream_id())
        await control.send(shake.frames().seal(pack_frame(Frame(envelopes=[BIG]))))
        for sequence in sequences:
            await lane.send(chunk(sequence, FIRST))
        await ends(control)
        await ends(lane)
        await peer.close()

    on_loop(talk)
    assert not host.recorder.lost
    serves_on(plain, host)


@pytest.mark.parametrize(
    "message",
    [
        b"\x00" * 28,
        b"\xff" * 1000,
        chunk(0, Piece(1, 2, 17, b"x")),
        chunk(0, Piece(1, 2, 0, b"short")),
        chunk(0, Piece(1, 7, 0, FIRST.data)),
    ],
    ids=["header", "noise", "grid", "short", "part"],
)
def test_garbage_on_a_lane(plain: Floor, message: bytes) -> None:
    host = plain.worker("host")
    peer = SocketPeer(plain, host)

    async def talk() -> None:
        control, shake = await peer.dial()
        lane = await peer.lane(shake.stream_id())
        await control.send(shake.frames().seal(pack_frame(Frame(envelopes=[BIG]))))
        await lane.send(message)
        await ends(lane)
        await peer.close()

    on_loop(talk)
    assert "it broke the protocol" in host.recorder.wait_lost().reason
    serves_on(plain, host)


def test_where_streams_have_tls_plain_chunks_are_not_taken() -> None:
    """The token alone opens a lane; its bytes take what only the ends of the stream know."""
    with floor_of("sealed sockets") as floor:
        alice, host = floor.pair()
        alice.post(host, 1)
        host.recorder.wait_envelopes(1)
        stream = host.connection(alice.info).stream
        assert stream is not None
        peer = SocketPeer(floor, host, alice.info)

        async def talk() -> None:
            lane = await peer.lane(stream.lanes.way.stream_id)
            await lane.send(chunk(0, FIRST) + bytes(TAG_BYTES))
            await ends(lane)
            await peer.close()

        on_loop(talk)
        alice.post(host, 2, buffers=[DATA])
        assert host.recorder.wait_envelopes(2)[1].buffers[0] == DATA
        assert not host.recorder.lost


# -- seals ---------------------------------------------------------------------------------------


def seals(secret: bytes = b"s" * 32, transcript: bytes = b"hellos") -> tuple[Seal, Seal]:
    here = make_seal(secret, transcript, dialled=True)
    there = make_seal(secret, transcript, dialled=False)
    assert here is not None
    assert there is not None
    return here, there


@given(st.binary(min_size=1, max_size=100), st.integers(0, 2**64 - 1), st.binary(max_size=30))
def test_a_sealed_chunk_opens_at_the_other_end(data: bytes, sequence: int, header: bytes) -> None:
    here, there = seals()
    for one, other in ((here, there), (there, here)):
        sealed = one.seal(sequence, header, data)
        assert len(sealed) == len(data) + TAG_BYTES
        assert other.open(sequence, header, sealed) == data


@given(st.integers(0, 10), st.integers(0, 31), st.integers(0, 7))
def test_what_is_altered_does_not(sequence: int, byte: int, bit: int) -> None:
    here, there = seals()
    sealed = bytearray(here.seal(5, b"header", bytes(16)))
    sealed[byte] ^= 1 << bit
    with pytest.raises(CarrierClosedError, match="wrong tag"):
        there.open(5, b"header", sealed)
    good = here.seal(5, b"header", bytes(16))
    if sequence != 5:
        with pytest.raises(CarrierClosedError, match="wrong tag"):
            there.open(sequence, b"header", good)
    with pytest.raises(CarrierClosedError, match="wrong tag"):
        there.open(5, b"Header", good)
    with pytest.raises(CarrierClosedError, match="wrong tag"):
        here.open(5, b"header", good)  # sent back to who wrote it


@pytest.mark.parametrize(("secret", "transcript"), [(b"t" * 32, b"hellos"), (b"s" * 32, b"others")])
def test_a_seal_is_of_one_lane(secret: bytes, transcript: bytes) -> None:
    here, _ = seals()
    _, there = seals(secret, transcript)
    with pytest.raises(CarrierClosedError, match="wrong tag"):
        there.open(0, b"", here.seal(0, b"", b"data"))


def test_a_secret_takes_the_token_tls_and_both_hellos() -> None:
    first = lane_secret(TOKEN, b"certificate", b"hellos")
    assert len({first, lane_secret(TOKEN, b"certificate", b"others")}) == 2
    assert len({first, lane_secret(b"another token", b"certificate", b"hellos")}) == 2
    assert lane_secret(TOKEN, b"", b"hellos") == lane_secret(None, b"certificate", b"hellos") == b""
    assert make_seal(b"", b"hellos", dialled=True) is None


# -- framing -------------------------------------------------------------------------------------


class Unloading:
    """A lane that takes what a test writes on its socket."""

    def __init__(self, envelope: Envelope, seal: Seal | None) -> None:
        listener = socket.create_server((LOCALHOST, 0))
        self.wire = socket.create_connection(listener.getsockname(), SECONDS)
        carrier = BulkSocket(listener.accept()[0], "here")
        listener.close()
        session = Session()
        session.connection_made(0)
        sender = Session()
        sender.connection_made(0)
        sender.post(envelope)
        frame = sender.next_write()
        frame.awaited[1] = {2: len(envelope.buffers[0])}
        session.received(frame)
        self.got: list[Envelope] = []
        self.broke: list[Exception] = []
        self._ended = threading.Event()
        self._bulk = BulkThread()
        cargo = Cargo(session, threading.Lock(), self._bulk, self._take, self._fail)
        self._lane = SocketLane(
            carrier,
            carrier,
            cargo,
            self._bulk,
            Counters(),
            pace=Pace(0.0),
            seal=seal,
            on_broken=self._end,
        )
        self._lane.start()

    def _take(self, complete: object) -> None:
        assert isinstance(complete, list)
        self.got += complete
        self._ended.set()

    def _fail(self, error: BaseException) -> None:
        raise AssertionError("there was memory") from error

    def _end(self, error: Exception) -> None:
        self.broke.append(error)
        self._ended.set()

    def feed(self, stream: bytes, cuts: list[int]) -> None:
        """Writes bytes in so many pieces, and then nothing more; waits for what comes of it."""
        with self.wire:
            bounds = [0, *sorted(at % (len(stream) + 1) for at in cuts), len(stream)]
            try:
                for begin, end in pairwise(bounds):
                    self.wire.sendall(stream[begin:end])
                self.wire.shutdown(socket.SHUT_WR)
            except ConnectionError:
                pass  # it has seen enough
            assert self._ended.wait(SECONDS)
        self._lane.let_go()
        self._bulk.close()


SMALL = Envelope("test.message", buffers=[bytes(range(256)) * 300])  # one piece
TWO = Envelope("test.message", buffers=[DATA])


def framed(envelope: Envelope, seal: Seal | None) -> bytes:
    numbered = Envelope("test.message", buffers=envelope.buffers, number=1)
    stream = b""
    for sequence, piece in enumerate(cut(numbered)):
        header, data = chunk_header(sequence, piece), bytes(piece.data)
        sealed = data if seal is None else seal.seal(sequence, header, data)
        stream += header_of(header + sealed) + header + sealed
    return stream


@pytest.mark.parametrize("protected", [False, True])
@settings(max_examples=20, deadline=None)
@given(cuts=st.lists(st.integers(0, 2**21), max_size=8))
def test_chunks_may_come_in_any_portions(protected: bool, cuts: list[int]) -> None:
    here, there = seals() if protected else (None, None)
    lane = Unloading(TWO, there)
    lane.feed(framed(TWO, here), cuts)
    (got,) = lane.got
    assert bytes(got.buffers[0]) == DATA


@settings(max_examples=60, deadline=None)
@given(at=st.integers(0, 2**20), bit=st.integers(0, 7), short=st.booleans())
def test_sealed_ones_arrive_as_they_were_or_not_at_all(at: int, bit: int, short: bool) -> None:
    here, there = seals()
    stream = bytearray(framed(SMALL, here))
    at %= len(stream) if at % 2 else 40  # half of them in what stands before the data
    if short:
        del stream[at:]
    else:
        stream[at] ^= 1 << bit
    lane = Unloading(SMALL, there)
    lane.feed(bytes(stream), [])
    assert not lane.got
    assert isinstance(lane.broke[0], CarrierClosedError | DecodeError)


@settings(max_examples=60, deadline=None)
@given(noise=st.binary(max_size=200), head=st.integers(0, 32))
def test_noise_ends_a_lane(noise: bytes, head: int) -> None:
    stream = framed(SMALL, None)[:head] + noise
    lane = Unloading(SMALL, None)
    lane.feed(stream, [])
    assert not lane.got
    assert isinstance(lane.broke[0], CarrierClosedError | DecodeError)


@on_examples(st.lists(st.text(max_size=30)), st.integers(-5, 70_000))
def test_ports_that_are_none_are_not_dialled(told: list[str], port: int) -> None:
    found = bulk_endpoint("grpc://10.0.0.5:1", [*told, f"bulk-port={port}"])
    if found:
        assert 0 < int(found.rpartition(":")[2]) < 2**16
    assert bulk_endpoint("local://abc/path", ["bulk-port=5"]) == ""
