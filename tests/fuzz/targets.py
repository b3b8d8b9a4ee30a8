"""What is fuzzed: everything that reads bytes before, or while, it is known who sent them.

A target takes any bytes and returns, whatever they are. It raises only where a promise is broken: an
error of no type that its callers expect, a proof that is taken without the token, an envelope that is
handed over twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from telegrad.errors import DecodeError
from telegrad.rpc.seams import CallablePolicy
from telegrad.transport.security.handshake import (
    AcceptHandshake,
    DialHandshake,
    Identity,
    RefusedError,
)
from telegrad.transport.security.tags import BadTagError, FrameTags
from telegrad.transport.session.session import Session
from telegrad.types import WorkerInfo
from telegrad.wire import (
    BLOCK_BYTES,
    Assembly,
    DecodeLimits,
    Envelope,
    Piece,
    decode,
    decode_exception,
    pack_frame,
    read_head,
    rebuild,
    unpack_frame,
)
from tests.fuzz.parts import split
from tests.wire.chunks import read_chunk

__all__ = ["TARGETS", "Target"]

# The memory of a part is taken whole when its first piece comes. The default of 64 GiB would measure
# that, and not what bytes alone can bring about.
LIMITS = DecodeLimits(message_bytes=4 * 2**20)
TOKEN = b"a token that is in no seed"
IDENTITY = Identity("job", WorkerInfo("bob", 1, 7))
ALICE = WorkerInfo("alice", 0, 3)
FUNCTIONS = CallablePolicy().resolve
ARRAYS = (np.arange(3), np.zeros((2, 0), np.uint8))


@dataclass(frozen=True)
class Target:
    """One thing that is fuzzed.

    Attributes:
        run: Takes an input.
        parts: Whether an input is made by `parts.join`.
    """

    run: Callable[[bytes], None]
    parts: bool = False


def decoder(data: bytes) -> None:
    """A document and what stands beside it: the first part describes, the last is the document."""
    *beside, document = split(data)
    externals: list[object] = list(ARRAYS)
    if beside:
        with suppress(DecodeError):
            externals = rebuild(beside[0], [bytearray(each) for each in beside[1:]])
    value: Any = None
    with suppress(DecodeError):
        value = decode(document, externals, functions=FUNCTIONS)
    with suppress(DecodeError):
        decode_exception(value, functions=FUNCTIONS)
    with suppress(DecodeError):
        read_head(document, "args")


def frame(data: bytes) -> None:
    """A write, as it comes out of a stream whose tags are right; and one whose tag is not."""
    with suppress(BadTagError):
        FrameTags(sending=b"k" * 32, receiving=b"k" * 32).open(data)
        raise AssertionError("a tag was made up")
    with suppress(DecodeError):
        received = unpack_frame(data, LIMITS)
        if not received.awaited:
            again = pack_frame(received)
            assert pack_frame(unpack_frame(again)) == again


def handshake(data: bytes) -> None:
    """Both roles: the first part chooses one, the others are what the other end says."""
    kind, *messages = split(data)
    first, second, *_ = *messages, b"", b""
    insecure, lane = kind[:1] == b"i", kind[2:3] == b"l"
    token = None if insecure else TOKEN
    with suppress(RefusedError):
        if kind[1:2] == b"d":
            lane_of = bytes(32) if lane else b""
            dial = DialHandshake(IDENTITY, token, expected=ALICE, nonce=bytes(32), lane_of=lane_of)
            dial.takes_answer(first)
            dial.prove(0, resumes=False)
            dial.takes_welcome(second)
        else:
            accept = AcceptHandshake(IDENTITY, token, nonce=bytes(32))
            accept.takes_hello(first)
            accept.answer()
            accept.takes_proof(second)
        assert insecure, "a proof was taken from somebody without the token"


def session(data: bytes) -> None:
    """A sequence of writes, chunks and breaks, by the first byte of each part."""
    played = _Played()
    with suppress(DecodeError):
        for part in split(data):
            played.take(part[:1], part[1:])


class _Played:
    """One end of a session, to which an input happens."""

    def __init__(self) -> None:
        self.session = Session(LIMITS)
        self.session.connection_made(0)
        self.session.post(Envelope("test.message", 1, document=b"x"))
        self.session.post(Envelope("test.message", 2, buffers=[bytes(70_000)]))
        self.seen: set[int] = set()

    def take(self, what: bytes, body: bytes) -> None:
        session = self.session
        before, acknowledged = session.received_number, session.acknowledged
        if what == b"c":
            self.chunk(body)
        elif what == b"b":
            session.connection_lost()
            session.connection_made(int.from_bytes(body[:8], "big"))
        elif what == b"w":
            session.next_write()
            session.next_piece()
        else:
            self.handed_over(session.received(unpack_frame(body, LIMITS)))
        assert session.received_number >= before
        assert session.acknowledged >= acknowledged

    def chunk(self, body: bytes) -> None:
        _, piece = read_chunk(body)
        if not self.session.announced(piece.number):
            return
        place = self.session.claim(piece.span)
        if place is None:
            return
        place[:] = piece.data
        assembly = self.session.settle(piece.span, came=True)
        if assembly is not None:
            assembly.join()
            self.handed_over(self.session.finish(piece.number))

    def handed_over(self, envelopes: list[Envelope]) -> None:
        for envelope in envelopes:
            assert envelope.number not in self.seen
            self.seen.add(envelope.number)


def chunks(data: bytes) -> None:
    """Chunks of one message, whose announcement is the first part."""
    announcement, *others = split(data)
    with suppress(DecodeError):
        received = unpack_frame(announcement, LIMITS)
        for envelope in received.envelopes:
            awaited = received.awaited.get(envelope.number)
            if awaited:
                _assembled(Assembly(envelope, awaited, LIMITS.message_bytes), others)


def _assembled(assembly: Assembly, chunks: list[bytes]) -> None:
    placed: set[tuple[int, int]] = set()
    for chunk in chunks:
        _, piece = read_chunk(chunk)
        place = assembly.claim(piece.span)
        blocks = _blocks(piece)
        assert (place is None) == (blocks <= placed)
        if place is None:
            continue
        placed |= blocks
        place[:] = piece.data
        if assembly.settle(piece.span, came=True):
            assembly.join()


def _blocks(piece: Piece) -> set[tuple[int, int]]:
    end = piece.offset + len(piece.data)
    return {(piece.part, offset) for offset in range(piece.offset, end, BLOCK_BYTES)}


TARGETS: Mapping[str, Target] = {
    "decoder": Target(decoder, parts=True),
    "frame": Target(frame),
    "handshake": Target(handshake, parts=True),
    "session": Target(session, parts=True),
    "chunks": Target(chunks, parts=True),
}
