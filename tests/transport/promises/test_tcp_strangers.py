"""Who may use a direct port, what may come there, and what becomes of everything else."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telegrad.errors import DecodeError
from telegrad.testing import leaks
from telegrad.transport import (
    CarrierClosedError,
    ConnectionLimits,
    Session,
    TcpTransport,
)
from telegrad.transport.channels.base import Counters, LaneThreads
from telegrad.transport.channels.cargo import Cargo
from telegrad.transport.channels.lane import Lane, SocketChunks
from telegrad.transport.channels.pace import Pace
from telegrad.transport.security.handshake import (
    Reason,
    RefusedError,
)
from telegrad.transport.security.tls import trusting_context
from telegrad.transport.sockets.message_socket import ByteSocket
from telegrad.transport.sockets.socket_carrier import SocketCarrier
from telegrad.transport.sockets.tcp import direct_endpoint
from telegrad.types import WorkerInfo
from telegrad.wire import Envelope, chunk_header, cut
from tests.loops import on_loop
from tests.repeated import on_examples
from tests.transport.promises.hand_made import Peer, serves_on
from tests.transport.socket_pairs import MemoryTls, header_of, memory_pair, tcp_pair
from tests.transport.workers import (
    LOCALHOST,
    SECONDS,
    Authority,
    Floor,
    Worker,
    floor_of,
    meanwhile,
    port_of,
)

MOST_BYTES = 16 * 1024  # of a message before the proof


@pytest.fixture(params=["tcp", "self-signed tcp"])
def floor(request: pytest.FixtureRequest) -> Iterator[Floor]:
    with floor_of(request.param) as workers:
        yield workers


@pytest.fixture
def mutual(authority: Authority) -> Iterator[Floor]:
    with floor_of("mutual tcp", authority) as workers:
        yield workers


def connect(host: Worker) -> socket.socket:
    return socket.create_connection((LOCALHOST, port_of(host)), SECONDS)


def connect_tls(host: Worker, context: ssl.SSLContext | None = None) -> socket.socket:
    """Returns a connection whose handshake of TLS is done."""
    context = trusting_context() if context is None else context
    stranger = connect(host)
    try:
        return context.wrap_socket(stranger)
    except OSError:
        stranger.close()
        raise


def is_closed(stranger: socket.socket) -> bool:
    """Waits for the end of a connection, on which nothing may come before it."""
    return received(stranger) == b""


def received(stranger: socket.socket) -> bytes:
    """Returns all bytes until the end of a connection."""
    came = b""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while block := stranger.recv(1000):
            came += block
    return came


# -- who ---------------------------------------------------------------------------------------


# A lane of any transport, and a move to a socket.
LANES_AND_MOVES = pytest.mark.parametrize(
    ("floor", "moves"),
    [
        *((kind, False) for kind in ("inproc", "local", "grpc", "tcp", "self-signed tcp")),
        *((kind, True) for kind in ("tcp", "self-signed tcp")),
    ],
    indirect=["floor"],
)


@pytest.mark.few(3)
@LANES_AND_MOVES
@pytest.mark.parametrize("token", [b"another token, long enough", None])
def test_a_socket_without_the_token(floor: Floor, token: bytes | None, moves: bool) -> None:
    host = floor.worker("host")
    peer = Peer(floor, host)

    async def talk() -> None:
        _, shake = await (peer.begin() if moves else peer.stream())
        refused = await peer.reason(shake.stream_id(), token=token, moves=moves)
        assert refused is Reason.AUTHENTICATION
        await peer.close()

    on_loop(talk)
    assert host.exchange.statistics().lanes == 0
    serves_on(floor, host)


@pytest.mark.few(1)
@LANES_AND_MOVES
def test_a_socket_of_no_stream_or_of_an_old_one(floor: Floor, moves: bool) -> None:
    host = floor.worker("host")
    peer = Peer(floor, host)

    async def talk() -> None:
        assert await peer.reason(b"x" * 32, moves=moves) is Reason.UNKNOWN_STREAM
        _, old = await peer.stream()
        await peer.stream()  # in place of the first
        assert await peer.reason(b"x" * 32, moves=moves) is Reason.UNKNOWN_STREAM
        assert await peer.reason(old.stream_id(), moves=moves) is Reason.UNKNOWN_STREAM
        await peer.close()

    on_loop(talk)
    serves_on(floor, host)


def test_lanes_are_where_their_stream_is_and_a_stream_moves_once(floor: Floor) -> None:
    host = floor.worker("host")
    peer = Peer(floor, host)

    async def talk() -> None:
        _, over_grpc = await peer.begin()
        assert await peer.reason(over_grpc.stream_id()) is Reason.MALFORMED
        _, moved = await peer.stream()
        assert await peer.reason(moved.stream_id(), moves=True) is Reason.MALFORMED
        with pytest.raises(RefusedError) as refused:
            await peer.begin(lane_of=moved.stream_id())
        assert refused.value.reason is Reason.MALFORMED
        await peer.close()

    on_loop(talk)
    serves_on(floor, host)


@LANES_AND_MOVES
def test_somebody_elses_stream(floor: Floor, moves: bool) -> None:
    """Its id, and the token, are not enough under another name."""
    host = floor.worker("host")
    alice, mallory = Peer(floor, host, WorkerInfo("alice", 1, 1)), Peer(floor, host)

    async def talk() -> None:
        _, own = await (alice.begin() if moves else alice.stream())
        await mallory.stream()
        assert await mallory.reason(own.stream_id(), moves=moves) is Reason.UNKNOWN_STREAM
        await alice.close()
        await mallory.close()

    on_loop(talk)


def test_no_stream_begins_at_a_direct_port(floor: Floor) -> None:
    host = floor.worker("host")
    peer = Peer(floor, host)

    async def talk() -> None:
        assert await peer.reason(b"") is Reason.MALFORMED
        await peer.close()

    on_loop(talk)
    assert host.exchange.statistics().connections == 0


# -- certificates ------------------------------------------------------------------------------


def test_under_mutual_tls_a_certificate_of_the_job_is_demanded(
    mutual: Floor, tmp_path: Path
) -> None:
    """No token gets so far: a client without one, or with a foreign one, is cut off before."""
    host = mutual.worker("host")
    elsewhere = tmp_path / "elsewhere"
    foreign = Authority(elsewhere).tls("alice").pair
    paths = elsewhere / "crt", elsewhere / "key"
    paths[0].write_bytes(foreign.certificate)
    paths[1].write_bytes(foreign.key)
    for shown in (None, paths):
        context = trusting_context()
        if shown is not None:
            context.load_cert_chain(*shown)
        with connect_tls(host, context) as stranger:
            assert is_closed(stranger)
    serves_on(mutual, host)


def test_under_mutual_tls_a_name_is_that_of_its_certificate(
    mutual: Floor, authority: Authority
) -> None:
    host, alice = mutual.worker("host"), mutual.worker("alice")
    alice.knows(host)
    alice.send(host, 1)
    mallory = Peer(mutual, host, alice.info, authority.tls("mallory"))

    async def talk() -> None:
        assert await mallory.reason(b"x" * 32, moves=True) is Reason.AUTHENTICATION
        await mallory.close()

    on_loop(talk)
    assert not host.recorder.lost


def test_a_dialler_believes_its_own_authority_alone(encrypted: Floor, authority: Authority) -> None:
    """Who ends TLS at a direct port shows a certificate of the job, or is not talked to."""
    host = encrypted.worker("host")
    peer = Peer(encrypted, host, tls=authority.tls("alice"))

    async def talk() -> None:
        with pytest.raises(CarrierClosedError, match=r"no TLS \(CERTIFICATE_VERIFY_FAILED"):
            await peer.socket()
        await peer.close()

    on_loop(talk)


@pytest.mark.parametrize("kind", ["self-signed tcp", "mutual tcp"])
def test_a_dialler_talks_no_older_tls(kind: str, authority: Authority) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    options = authority.options("host")
    context.load_cert_chain(options.certificate, options.key)
    dialler = TcpTransport((), lambda: None, tls=authority.tls("alice") if "m" in kind[0] else None)
    with socket.create_server((LOCALHOST, 0)) as listening:

        def serve() -> None:
            with listening.accept()[0] as accepted, contextlib.suppress(OSError):
                context.wrap_socket(accepted, server_side=True).close()

        serving = meanwhile(serve)

        async def talk() -> None:
            carrier = await dialler.dial(f"tcps://{LOCALHOST}:{listening.getsockname()[1]}")
            with pytest.raises(CarrierClosedError, match="(?i)protocol.version"):
                await carrier.secure()
            await carrier.close()

        on_loop(talk)
        serving.result(SECONDS)


def test_older_tls_is_refused(encrypted: Floor) -> None:
    host = encrypted.worker("host")
    context = trusting_context()
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError, match="(?i)protocol.version"):
        connect_tls(host, context)
    serves_on(encrypted, host)


# -- strangers ---------------------------------------------------------------------------------


def client_hello() -> bytes:
    """Returns the first bytes of a handshake of TLS."""
    with socket.socket() as unused:
        return MemoryTls(unused).hello()


HALF_DONE = ["nothing", "a byte", "a header", "half a hello", "a hello", "TLS", "half a message"]


def half_done(host: Worker, how: str) -> socket.socket:
    """Returns a connection of which the other end says no more, and never will."""
    if how in ("TLS", "half a message"):
        stranger = connect_tls(host)
        stranger.sendall(header_of(bytes(100)) + bytes(50) if how != "TLS" else b"")
        return stranger
    hello, stranger = client_hello(), connect(host)
    stranger.sendall(
        hello[
            : {"nothing": 0, "a byte": 1, "a header": 5, "half a hello": 100}.get(how, len(hello))
        ]
    )
    return stranger


@pytest.mark.parametrize("how", HALF_DONE)
def test_who_stops_in_a_handshake_is_cut_off(encrypted: Floor, how: str) -> None:
    host = encrypted.worker("host", limits=ConnectionLimits(handshake_seconds=0.1))
    with half_done(host, how) as stranger:
        if how == "a hello":
            assert received(stranger)[:1] == b"\x16"  # a ServerHello, and then the end
        else:
            assert is_closed(stranger)


NOISE = {
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "noise": b"\xff" * 100,
    "big": (MOST_BYTES + 1).to_bytes(4, "big"),
    "empty": bytes(4),
    "TLS": client_hello(),
}


@pytest.mark.parametrize("said", NOISE.values(), ids=NOISE)
def test_who_says_what_is_no_hello_is_cut_off(plain: Floor, said: bytes) -> None:
    """At a plain port, of which none answers to a hello of TLS either."""
    host = plain.worker("host")
    with connect(host) as stranger:
        stranger.sendall(said)
        assert len(received(stranger)) < 500
    serves_on(plain, host)


@pytest.mark.parametrize("kind", [each for each in NOISE if each != "TLS"])
def test_who_says_no_hello_under_tls_is_cut_off(encrypted: Floor, kind: str) -> None:
    host = encrypted.worker("host")
    with connect_tls(host) as stranger:
        stranger.sendall(NOISE[kind])
        assert len(received(stranger)) < 500
    serves_on(encrypted, host)


@pytest.mark.parametrize("said", [NOISE["http"], NOISE["noise"], header_of(b"H1") + b"H1"])
def test_plain_bytes_at_a_port_that_encrypts(encrypted: Floor, said: bytes) -> None:
    host = encrypted.worker("host")
    with connect(host) as stranger:
        stranger.sendall(said)
        assert len(received(stranger)) < 10  # an alert
    serves_on(encrypted, host)


@pytest.mark.few(1)
@pytest.mark.parametrize("how", HALF_DONE)
def test_of_too_many_strangers_the_oldest_goes(encrypted: Floor, how: str) -> None:
    """Each of them would be waited for, and none keeps a friend out."""
    host = encrypted.worker("host", limits=ConnectionLimits(unproved=2), prove_within=SECONDS)
    with half_done(host, how) as oldest, connect(host), connect(host):
        received(oldest)
        serves_on(encrypted, host)


@pytest.mark.long
@pytest.mark.parametrize("n", [210, pytest.param(4200, marks=pytest.mark.long)])
def test_handshakes_half_done_by_the_hundred(encrypted: Floor, n: int) -> None:
    """They are cut off, and what they took comes back."""
    host = encrypted.worker("host", limits=ConnectionLimits(unproved=20), prove_within=SECONDS)
    serves_on(encrypted, host)

    def storm() -> None:
        with contextlib.ExitStack() as stack:
            strangers = [
                stack.enter_context(half_done(host, HALF_DONE[i % len(HALF_DONE)]))
                for i in range(n)
            ]
            for each in strangers[:-20]:
                received(each)

    with leaks.no_leaked_descriptors():
        storm()
    before = resident_kib()
    with leaks.no_leaked_descriptors():
        storm()
    assert resident_kib() - before < 10_000 + 2 * n  # 64 KiB each, if one were kept
    friend = encrypted.worker("dave").knows(host)
    count = len(host.recorder.calls())
    friend.post(host, 79)
    host.recorder.wait_envelopes(count + 1)


def resident_kib() -> int:
    """Returns the memory of this process."""
    found = re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1])


# -- framing: a lane under TLS or without, and what a test writes on its socket ----------------


class Unloading:
    """A lane that takes what a test writes on its socket.

    Args:
        envelope: The envelope whose chunks it takes.
        below: The lane's end of the connection.
        wire: The test's end.
    """

    def __init__(self, envelope: Envelope, below: ByteSocket, wire: socket.socket) -> None:
        self.wire = wire
        carrier = SocketCarrier(below, "here", takes_over=True)
        self._below = carrier.direct
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
        self._threads = LaneThreads()
        cargo = Cargo(session, threading.Lock(), self._take)
        self._lane = Lane(
            carrier,
            SocketChunks(carrier.direct),
            cargo,
            Counters(),
            pace=Pace(0.0, 10.0),
            on_broken=self._end,
        )
        self._lane.start(self._threads)

    def _take(self, complete: object) -> None:
        assert isinstance(complete, list)
        assert not any(each.failure for each in complete)
        self.got += complete
        self._ended.set()

    def _end(self, error: Exception) -> None:
        self.broke.append(error)
        self._ended.set()

    def feed(self, stream: bytes) -> None:
        """Writes bytes, and then nothing more; waits for what comes of it."""
        with self.wire:
            with contextlib.suppress(ConnectionError):  # it has seen enough
                self.wire.sendall(stream)
                self.wire.shutdown(socket.SHUT_WR)
            assert self._ended.wait(SECONDS)
        self._lane.let_go()
        self._below.end()
        self._threads.close()


def plain_lane(envelope: Envelope) -> Unloading:
    wire, below = tcp_pair()
    below.setblocking(False)
    return Unloading(envelope, below, wire)


def encrypted_lane(envelope: Envelope) -> tuple[Unloading, MemoryTls]:
    """Returns a lane under TLS, and what encrypts for it."""
    below, client = memory_pair()
    return Unloading(envelope, below, client.wire), client


SMALL = Envelope("test.message", buffers=[bytes(range(256)) * 300])  # one piece


def framed(envelope: Envelope) -> bytes:
    numbered = Envelope("test.message", buffers=envelope.buffers, number=1)
    stream = b""
    for sequence, piece in enumerate(cut(numbered)):
        header, data = chunk_header(sequence, piece), bytes(piece.data)
        stream += header_of(header + data) + header + data
    return stream


@pytest.mark.parametrize("tls", [False, True])
def test_chunks_that_are_as_they_were_arrive(tls: bool) -> None:
    stream = framed(SMALL)
    if tls:
        lane, client = encrypted_lane(SMALL)
        stream = client.encrypted(stream)
    else:
        lane = plain_lane(SMALL)
    lane.feed(stream)
    assert [bytes(got.buffers[0]) for got in lane.got] == [bytes(SMALL.buffers[0])]


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(
    at=st.integers(0, 2**20), bit=st.integers(0, 7), how=st.sampled_from(["cut", "flip", "drop"])
)
def test_under_tls_they_arrive_as_they_were_or_not_at_all(at: int, bit: int, how: str) -> None:
    """Wherever bytes are flipped, left out, or missing at the end."""
    lane, client = encrypted_lane(SMALL)
    stream = bytearray(client.encrypted(framed(SMALL)))
    at %= len(stream) if at % 2 else 40  # half of them in the first record's beginning
    if how == "cut":
        del stream[at:]
    elif how == "drop":
        del stream[at]
        stream += bytes(1)
    else:
        stream[at] ^= 1 << bit
    lane.feed(bytes(stream))
    assert not lane.got
    assert isinstance(lane.broke[0], CarrierClosedError)


@pytest.mark.parametrize("order", [[0, 0], [1, 0], [0, 2, 1], [0, 1, 1], [2]], ids=str)
def test_records_of_tls_come_in_their_order_and_once(order: list[int]) -> None:
    stream = framed(SMALL)
    lane, client = encrypted_lane(SMALL)
    pieces = [stream[:10_000], stream[10_000:20_000], stream[20_000:]]
    records = [client.encrypted(piece) for piece in pieces]
    lane.feed(b"".join(records[i] for i in order))
    assert not lane.got
    assert isinstance(lane.broke[0], CarrierClosedError)


@pytest.mark.parametrize("sent", [0, 2, 40, 50_000])
def test_an_end_in_good_order_is_an_end_too_soon(sent: int) -> None:
    """Somebody who ends TLS itself has not sent what is missing."""
    lane, client = encrypted_lane(SMALL)
    lane.feed(client.encrypted(framed(SMALL)[:sent]) + client.end())
    assert not lane.got
    assert isinstance(lane.broke[0], CarrierClosedError)


@settings(max_examples=60, deadline=None)
@given(noise=st.binary(max_size=200), head=st.integers(0, 32))
def test_noise_ends_a_lane(noise: bytes, head: int) -> None:
    lane = plain_lane(SMALL)
    lane.feed(framed(SMALL)[:head] + noise)
    assert not lane.got
    assert isinstance(lane.broke[0], CarrierClosedError | DecodeError)


@on_examples(st.lists(st.text(max_size=30)), st.integers(-5, 70_000), st.booleans())
def test_ports_that_are_none_are_not_dialled(told: list[str], port: int, encrypted: bool) -> None:
    capabilities = [*told, f"direct-port={port}"]
    found = direct_endpoint("grpc://10.0.0.5:1", capabilities, encrypted=encrypted)
    if found:
        assert found.startswith("tcps://" if encrypted else "tcp://")
        assert 0 < int(found.rpartition(":")[2]) < 2**16
    assert direct_endpoint("local://abc/path", ["direct-port=5"], encrypted=encrypted) == ""
