"""Whatever a stranger, or a peer gone mad, sends: the listener serves on."""

from __future__ import annotations

import socket

import pytest

from telegrad import pb
from telegrad.transport import ConnectionLimits
from telegrad.transport.security.handshake import DialHandshake, Identity, Reason
from telegrad.wire import Envelope, Frame, pack_frame
from tests.loops import on_loop
from tests.transport.promises.hand_made import MALLORY, Peer, answers_to, serves_on, until_closed
from tests.transport.workers import SECONDS, Floor
from tests.wire.heads import frame_of


def told(message: bytes) -> tuple[Reason, str]:
    assert message[:1] == b"R"
    refusal = pb.Refusal.FromString(message[1:])
    return Reason(refusal.reason), refusal.words


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "message", [b"", b"GET / HTTP/1.1\r\n\r\n", b"H\xff\xff\xff", b"x" * 16384]
)
def test_garbage_in_place_of_a_hello(floor: Floor, message: bytes) -> None:
    host = floor.worker("host")
    (answer,) = answers_to(floor, host, message)
    assert told(answer)[0] is Reason.MALFORMED
    serves_on(floor, host)


@pytest.mark.parametrize("most", [16384, 100])
def test_a_stranger_gets_16_kib_or_what_the_limits_say(floor: Floor, most: int) -> None:
    limits = ConnectionLimits() if most == 16384 else ConnectionLimits(handshake_bytes=most)
    host = floor.worker("host", limits=limits)
    (answer,) = answers_to(floor, host, b"H" + bytes(most))
    assert told(answer) == (Reason.MALFORMED, f"{most + 1} bytes before any proof")


def test_frames_before_the_proof(floor: Floor) -> None:
    host = floor.worker("host")
    hello = DialHandshake(Identity("job", MALLORY), None).hello()
    frame = pack_frame(Frame(envelopes=[Envelope("test.message", 1, number=1)]))
    _, answer = answers_to(floor, host, hello, frame)
    assert told(answer)[0] is Reason.MALFORMED
    serves_on(floor, host)


@pytest.mark.few(4)
@pytest.mark.parametrize(
    "payload",
    [
        b"\xff" * 100,
        pack_frame(Frame(receipt=12)),
        pack_frame(Frame(envelopes=[Envelope("test.message", 1)])),
        frame_of([0, 1, "a", 0, False, 0, 0, b"", b"", 0, 1, -(2**63)]),
    ],
    ids=["noise", "receipt", "number", "size"],
)
@pytest.mark.parametrize("sealed", [True, False])
def test_garbage_inside_a_stream_that_proved_itself(
    floor: Floor, payload: bytes, sealed: bool
) -> None:
    host = floor.worker("host")

    async def talk() -> None:
        carrier, shake = await Peer(floor, host).begin()
        await carrier.send(shake.frames().seal(payload) if sealed else payload)
        await until_closed(carrier)

    on_loop(talk)
    if sealed:
        assert "it broke the protocol" in host.recorder.wait_lost().reason
    serves_on(floor, host)


def test_a_frame_that_is_repeated_closes_the_stream(floor: Floor) -> None:
    host = floor.worker("host")

    async def talk() -> None:
        carrier, shake = await Peer(floor, host).begin()
        frame = Frame(envelopes=[Envelope("test.message", 5, number=1)])
        message = shake.frames().seal(pack_frame(frame))
        await carrier.send(message)
        await carrier.send(message)
        await until_closed(carrier)

    on_loop(talk)
    assert host.recorder.calls() == [5]


def test_raw_garbage_on_the_port(grpc_floor: Floor, capfd: pytest.CaptureFixture[str]) -> None:
    host = grpc_floor.worker("host")
    name, _, port = host.endpoints[0].removeprefix("grpc://").partition(":")
    for data in (
        b"\x00" * 1000,
        b"GET / HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 99,
    ):
        with socket.create_connection((name, int(port)), SECONDS) as stream:
            stream.sendall(data)
            stream.shutdown(socket.SHUT_WR)
            try:
                while stream.recv(4096):
                    pass
            except ConnectionResetError:
                pass
    serves_on(grpc_floor, host)
    assert capfd.readouterr().err == ""
