"""Clients that break in: raw gRPC streams, and raw sockets that speak just enough HTTP/2."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from telegrad import pb
from telegrad.transport.security.handshake import DialHandshake, Identity, Reason
from telegrad.transport.security.tags import FrameTags
from telegrad.types import WorkerInfo
from telegrad.wire import Envelope, Frame, decode, encode, pack_frame, unpack_frame
from tests.wire.heads import frame_of

SECONDS = 30.0
METHOD = "/telegrad.Carrier/Open"
OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]


@dataclass
class Ended:
    """How a stream ended.

    Attributes:
        received: What came back before.
        code: Of gRPC.
    """

    received: list[bytes]
    code: grpc.StatusCode

    @property
    def refusal(self) -> tuple[Reason, str]:
        """What the last message says, which has to be a refusal."""
        last = self.received[-1]
        assert last[:1] == b"R", last[:50]
        told = pb.Refusal.FromString(last[1:])
        return Reason(told.reason), told.words


class Stream:
    """One stream; counts what was given to it."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.received: list[bytes] = []

    async def send(self, *messages: bytes) -> None:
        """Writes; an end of the stream is seen by whoever reads."""
        for message in messages:
            try:
                await self.call.write(message)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                return

    async def read(self) -> bytes | None:
        """Returns what comes next; None at the end."""
        try:
            message = await self.call.read()
        except grpc.aio.AioRpcError:
            return None
        if not isinstance(message, bytes):
            return None
        self.received.append(message)
        return message

    async def ended(self) -> Ended:
        """Reads until the other end closes."""
        while await self.read() is not None:
            pass
        return Ended(self.received, await self.call.code())


@asynccontextmanager
async def streams(port: int, count: int = 1) -> AsyncIterator[list[Stream]]:
    """Opens streams, each on a connection of its own."""
    channels = [
        grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS) for _ in range(count)
    ]
    try:
        yield [Stream(channel.stream_stream(METHOD)()) for channel in channels]
    finally:
        for channel in channels:
            await channel.close()


@asynccontextmanager
async def listener(serve: Callable[[object, Any], Coroutine[Any, Any, None]]) -> AsyncIterator[int]:
    """Listens as a worker does, and serves every stream in a way of its own."""

    class Handler(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> Any:
            return grpc.stream_stream_rpc_method_handler(serve)

    server = grpc.aio.server(handlers=(Handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0.5)


class Member:
    """One that holds the token, and speaks the protocol as far as it pleases."""

    def __init__(self, stream: Stream, job: str, token: bytes | None, info: WorkerInfo) -> None:
        self.stream = stream
        self.info = info
        self.shake = DialHandshake(Identity(job, self.info), token)
        self.tags = FrameTags(sending=b"", receiving=b"")
        self.posted = 0
        self.held = 0

    async def join(self) -> None:
        """Shakes hands as a worker does."""
        await self.stream.send(self.shake.hello())
        self.shake.takes_answer(await self._must_read())
        await self.stream.send(self.shake.prove(0, resumes=False))
        self.shake.takes_welcome(await self._must_read())
        frames = self.shake.frames()
        assert isinstance(frames, FrameTags)
        self.tags = frames

    async def write(self, frame: Frame | bytes) -> None:
        """Writes a frame, sealed."""
        payload = frame if isinstance(frame, bytes) else pack_frame(frame)
        await self.stream.send(self.tags.seal(payload))

    async def post(self, envelope: Envelope) -> None:
        """Writes an envelope, numbered."""
        self.posted += 1
        envelope.number = self.posted
        await self.write(Frame([envelope], receipt=self.held))

    async def call(self, body: object) -> Envelope:
        """Sends a call's document, in-line whatever its size, and returns the answer."""
        document = body if isinstance(body, bytes) else encode(body).document
        self.posted += 1
        number = self.posted
        envelope = [number, "rpc.call", number, False, 0, 0, document, b"", 0, 0]
        await self.write(frame_of([self.held, *envelope]))
        while True:
            frame = unpack_frame(self.tags.open(await self._must_read()))
            for answer in frame.envelopes:
                self.held = max(self.held, answer.number)
                if answer.reply and answer.call == number:
                    return answer

    async def _must_read(self) -> bytes:
        message = await self.stream.read()
        assert message is not None, await self.stream.call.details()
        return message


def error_of(answer: Envelope) -> tuple[str, str]:
    """The type and words of the error that a call was answered with."""
    assert answer.kind == "rpc.error", answer.kind
    told = decode(answer.document)
    return str(told["type"]), str(told["message"])


# -- below gRPC ----------------------------------------------------------------------------------

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 7, 8, 9
INITIAL_WINDOW = 4  # a setting
ACK, END_HEADERS = 1, 4


def h2_frame(kind: int, payload: bytes, *, flags: int = 0, stream: int = 0) -> bytes:
    """One frame of HTTP/2."""
    return (
        struct.pack(">I", len(payload))[1:]
        + bytes([kind, flags])
        + struct.pack(">I", stream)
        + payload
    )


def h2_headers(path: str = METHOD) -> bytes:
    """The headers of a method, by default of our one, each as a literal without a table and without Huffman."""
    pairs = {
        ":method": "POST", ":scheme": "http", ":path": path, ":authority": "127.0.0.1",
        "content-type": "application/grpc", "te": "trailers",
    }  # fmt: skip
    return b"".join(
        b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in pairs.items()
    )


def opening(path: str = METHOD) -> bytes:
    """What opens a stream on a new connection."""
    headers = h2_frame(HEADERS, h2_headers(path), flags=END_HEADERS, stream=1)
    return PREFACE + h2_frame(SETTINGS, b"") + headers


def endless_headers(size: int) -> bytes:
    """What opens a connection with headers of so many bytes, after which more have to come."""
    block = b"\x00\x03abc\x03def" * (16384 // 9)
    more = h2_frame(CONTINUATION, block, stream=1)
    start = PREFACE + h2_frame(SETTINGS, b"") + h2_frame(HEADERS, h2_headers(), stream=1)
    return start + more * (size // len(more))


def client_hello() -> bytes:
    """The first message of a TLS handshake."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["h2"])
    coming, leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
    begun = context.wrap_bio(coming, leaving, server_hostname="telegrad")
    with contextlib.suppress(ssl.SSLWantReadError):
        begun.do_handshake()
    return leaving.read()


def grpc_prefix(size: int) -> bytes:
    """What stands before a gRPC message of that size."""
    return b"\x00" + struct.pack(">I", size)


def data(payload: bytes) -> bytes:
    """A stretch of a gRPC message, in frames as large as HTTP/2 takes."""
    return b"".join(
        h2_frame(DATA, payload[at : at + 16384], stream=1) for at in range(0, len(payload), 16384)
    )


class RawStream:
    """A stream over a socket of one's own, that can stop anywhere."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), SECONDS)
        self.sent = 0
        self.came = b""
        self.used = 0  # of the windows
        self.acknowledged = 0  # settings, which hold at the other end from then on

    def send(self, octets: bytes) -> bool:
        """Sends; tells whether the other end still takes it."""
        try:
            self.socket.sendall(octets)
        except OSError:
            return False
        self.sent += len(octets)
        return True

    def drips(self, octets: bytes) -> bool:
        """Sends, and looks for a moment whether the stream has ended; tells whether it goes on."""
        if not self.send(octets):
            return False
        try:
            more = self.socket.recv(65536)
        except TimeoutError:
            return True
        except ConnectionResetError:
            return False
        self.came += more
        return bool(more) and not _ends(self.came)

    def push(self, octets: bytes) -> int:
        """Sends all of a message that the other end makes room for; returns how much that was.

        Gives up where no room is made for two seconds, or the stream is over.
        """
        self.socket.settimeout(2.0)
        pushed = 0
        while pushed < len(octets):
            room = min(16384, self._window(0), self._window(1), len(octets) - pushed)
            if room > 0:
                if not self.send(h2_frame(DATA, octets[pushed : pushed + room], stream=1)):
                    break
                pushed += room
                self.used += room
                continue
            try:
                more = self.socket.recv(65536)
            except (TimeoutError, ConnectionResetError):
                break
            self.came += more
            if not more or _ends(self.came):
                break
            self._acknowledge()
        return pushed

    def _acknowledge(self) -> None:
        told = [each for each in _frames(self.came) if each[0] == SETTINGS and not each[1] & ACK]
        for _ in told[self.acknowledged :]:
            self.send(h2_frame(SETTINGS, b"", flags=ACK))
        self.acknowledged = len(told)

    def _window(self, stream: int) -> int:
        """How much may be sent, as HTTP/2 counts it: on the stream, or on the connection (0)."""
        size = 65535 - self.used
        for kind, _, of, payload in _frames(self.came):
            if kind == WINDOW_UPDATE and of == stream:
                size += int.from_bytes(payload, "big")
            elif kind == SETTINGS and stream:
                for at in range(0, len(payload), 6):
                    name, value = struct.unpack_from(">HI", payload, at)
                    size += value - 65535 if name == INITIAL_WINDOW else 0
        return size

    def wait_for_end(self) -> None:
        """Reads until the stream is ended or reset, or the connection closed."""
        while not _ends(self.came):
            try:
                more = self.socket.recv(65536)
            except ConnectionResetError:
                return
            if not more:
                return
            self.came += more

    def wait_for_close(self) -> None:
        """Reads until the connection is closed."""
        with contextlib.suppress(ConnectionResetError):
            while self.socket.recv(65536):
                pass

    def __enter__(self) -> RawStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def _frames(came: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Kind, flags, stream and payload of each frame that is there whole."""
    at = 0
    while at + 9 <= len(came):
        size = int.from_bytes(came[at : at + 3], "big")
        if at + 9 + size > len(came):
            return
        stream = int.from_bytes(came[at + 5 : at + 9], "big")
        yield came[at + 3], came[at + 4], stream, came[at + 9 : at + 9 + size]
        at += 9 + size


def _ends(came: bytes) -> bool:
    """Whether what came ends stream 1, by trailers or a reset; or the connection."""
    return any(
        kind == GOAWAY or (of == 1 and (kind == RESET or (kind == HEADERS and flags & 1)))
        for kind, flags, of, _ in _frames(came)
    )
