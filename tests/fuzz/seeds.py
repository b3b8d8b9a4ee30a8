"""Inputs in good form, from which mutations begin; `python -m tests.fuzz.seeds` renews the corpus."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections import Counter, OrderedDict, defaultdict, deque
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import ml_dtypes
import numpy as np
import scipy.sparse

from telegrad.transport.security.handshake import (
    AcceptHandshake,
    DialHandshake,
    Identity,
    Reason,
    RefusedError,
    refusal,
)
from telegrad.types import WorkerInfo
from telegrad.wire import (
    PIECE_BYTES,
    Envelope,
    Frame,
    Heartbeat,
    chunk_header,
    cut,
    describe,
    encode,
    encode_exception,
    pack_frame,
)
from tests.fuzz.parts import join
from tests.wire.samples import Access, Bits, Color, OddError, Pair, Point, double

__all__ = ["CORPUS", "corpus", "seeds"]

CORPUS = Path(__file__).parent / "corpus"
ZONE = dt.timezone(dt.timedelta(hours=2), "here")
VALUES: tuple[Any, ...] = (
    {"func": "tests.wire.samples:double", "args": [1, 2.5], "kwargs": {"x": None}},
    [1, -1, 2**63, 2**70, -(2**90), 1.5, "text", b"bytes", True, None, 3j, ...],
    [(1, 2), {3, 4}, frozenset({"a"}), {1: 2, (3,): [4]}, slice(1, None, 2), range(9)],
    [OrderedDict(a=1), Counter("aab"), defaultdict(list, {"k": [1]}), deque([1, 2], 3)],
    [dt.datetime(2024, 2, 29, tzinfo=ZONE), dt.date(1, 1, 1), dt.time(1, 2), dt.timedelta(5, 6)],
    [ZoneInfo("UTC"), UUID(int=5), Decimal("1.50"), PurePosixPath("/a/b"), bytearray(b"ab")],
    [Color.RED, Access.READ | Access.RUN, Bits.A, Point(1.0, Color.BOTH), Pair(1, "b"), double],
    [np.float32(2), np.bool_(True), np.str_("x"), np.datetime64("2024-01-01"), np.dtype("<i4")],
    [np.arange(6).reshape(2, 3), np.zeros((0, 2), "F"), np.array([("a", 1)], "U1,i4")],
    [np.ones(3, ml_dtypes.bfloat16), np.dtype([("a", "f4"), ("b", "(2,)i2")], align=True)],
    [scipy.sparse.csr_array(np.eye(3)), scipy.sparse.coo_array(np.eye(2))],
    [OddError(1, detail="x"), ValueError("v"), ExceptionGroup("g", [KeyError(1)])],
    encode_exception(OddError(2, detail="y")),
)
BIG = Envelope("test.message", 4, document=b"d" * 70_000, buffers=[b"a", bytes(80_000)], number=1)
TWO = Envelope("test.message", 5, buffers=[bytes(PIECE_BYTES + 5)], number=2)
FRAMES = (
    Frame([Envelope("rpc.call", 1, document=b"\x80", depth=2, time_left=3.0, number=1)], receipt=1),
    Frame([Envelope("rpc.reply", 1, reply=True, headers={"rref": b"\x91\x01"}, number=2)]),
    Frame([Envelope("a", buffers=[b"ab", b""], externals=b"\x90", number=3)], receipt=2),
    Frame(heartbeat=Heartbeat(1.5, 2.5, lag=0.1, busy=3, chunks=4)),
    Frame(goodbye="over", receipt=2),
    Frame([BIG]),
    Frame([BIG, TWO]),
)


def _decoder() -> list[bytes]:
    inputs = []
    for value in VALUES:
        encoded = encode(value)
        metadata, buffers = describe(encoded.externals)
        inputs.append(join(metadata, *map(bytes, buffers), encoded.document))
    return inputs


def _handshake() -> list[bytes]:
    inputs = [join(b"sa", refusal(RefusedError(Reason.FENCED, "no")), b"")]
    alice, bob = (
        Identity("job", WorkerInfo(name, i, 3 + 4 * i)) for i, name in enumerate(("alice", "bob"))
    )
    for mode, token in ((b"i", None), (b"s", b"another token")):
        for lane in (b"", b"l"):
            lane_of = bytes(32) if lane else b""
            dial = DialHandshake(alice, token, expected=bob.info, nonce=bytes(32), lane_of=lane_of)
            accept = AcceptHandshake(bob, token, nonce=bytes(32))
            accept.takes_hello(dial.hello())
            dial.takes_answer(accept.answer())
            proof = dial.prove(3, resumes=True)
            accept.takes_proof(proof)
            inputs.append(join(mode + b"a" + lane, dial.hello(), proof))
            own = AcceptHandshake(alice, token, nonce=bytes(32))
            back = DialHandshake(bob, token, nonce=bytes(32), lane_of=lane_of)
            own.takes_hello(back.hello())
            welcome = own.welcome(0, resumes=False)
            inputs.append(join(mode + b"d" + lane, own.answer(), welcome))
    return inputs


def _chunk(sequence: int, envelope: Envelope) -> bytes:
    piece = list(cut(envelope))[sequence]
    return chunk_header(sequence, piece) + bytes(piece.data)


def _session() -> list[bytes]:
    writes = [b"f" + pack_frame(each) for each in FRAMES]
    last = b"c" + _chunk(1, TWO)
    return [
        join(writes[0], writes[1], b"w", writes[2], writes[3], writes[4]),
        join(writes[6], last, b"b\x01", writes[6], last, writes[1]),
        join(writes[5], b"w", b"b\x00", writes[5], b"w"),
    ]


def _chunks() -> list[bytes]:
    small = Envelope("a", buffers=[bytes(PIECE_BYTES + 5), b"b" * 100], number=1)
    announced = pack_frame(Frame([small]))
    last = _chunk(1, small)
    return [join(announced, last, last), join(pack_frame(Frame([BIG, TWO])), _chunk(1, TWO))]


def seeds() -> dict[str, list[bytes]]:
    """Returns inputs in good form, by target."""
    return {
        "decoder": _decoder(),
        "frame": [pack_frame(each) for each in FRAMES],
        "handshake": _handshake(),
        "session": _session(),
        "chunks": _chunks(),
    }


def corpus(target: str) -> list[bytes]:
    """Returns what is kept in the corpus of a target."""
    return [file.read_bytes() for file in sorted((CORPUS / target).glob("*")) if file.is_file()]


def write_corpus() -> None:
    """Adds the seeds to the corpus, under names of their contents."""
    for target, inputs in seeds().items():
        (CORPUS / target).mkdir(parents=True, exist_ok=True)
        for each in inputs:
            (CORPUS / target / hashlib.sha256(each).hexdigest()[:16]).write_bytes(each)


if __name__ == "__main__":
    write_corpus()
