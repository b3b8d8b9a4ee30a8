"""The frames, handshakes and conversation of the published test vectors.

Made by the very objects that workers use, from fixed nonces, ids and times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from telegrad import pb
from telegrad.transport.security.handshake import (
    AcceptHandshake,
    DialHandshake,
    Identity,
    Reason,
    RefusedError,
    Underlay,
    refusal,
)
from telegrad.transport.security.tags import Frames
from telegrad.transport.session.session import Session
from telegrad.types import WorkerInfo
from telegrad.wire import (
    Envelope,
    Frame,
    Heartbeat,
    Lending,
    Lent,
    Piece,
    chunk_header,
    describe,
    encode,
    encode_exception,
    pack_chunk,
    pack_frame,
    unpack_frame,
)
from telegrad.wire.frame import parts_of
from tests.wire.vector_cases import shown

Json: TypeAlias = dict[str, Any]

TOKEN = b"8f1d3a5c7e9b0d2f4a6c8e0b1d3f5a7c"
JOB = "default"
FINGERPRINT = bytes(range(64, 96))  # of the certificate that the listener has shown
DIALLER_NONCE, LISTENER_NONCE = bytes(range(32)), bytes(range(32, 64))
LINE = WorkerInfo("store.-1.2a.node", -1, 42)
COORDINATOR = WorkerInfo("coordinator", -1, 77)
NODE, SERVER = WorkerInfo("node", 1, 2), WorkerInfo("server", 0, 1)


def fields(message: Any) -> Json:
    """Returns what stands in a protobuf message, by name; bytes in hexadecimal."""

    def one(value: Any) -> Any:
        if isinstance(value, bytes):
            return value.hex()
        return fields(value) if hasattr(value, "ListFields") else value

    found: Json = {}
    for field, value in message.ListFields():
        if isinstance(value, int | float | str | bytes) or hasattr(value, "ListFields"):
            found[field.name] = one(value)
        else:
            found[field.name] = [one(each) for each in value]
    return found


def frame_fields(data: bytes) -> Json:
    """Returns what is in a frame, by name; a part that comes in pieces is shown as its size."""
    frame, found = unpack_frame(data), fields(pb.Frame.FromString(data))
    found.pop("raw", None)
    del found["head"]
    found["receipt"] = frame.receipt
    lent = {} if frame.lending is None else frame.lending.lent
    for each in frame.envelopes:
        announced = dict(frame.awaited.get(each.number, {}))
        announced |= {part: it.size for part, it in lent.get(each.number, {}).items()}
        parts = [announced.get(part, bytes(octets)) for part, octets in enumerate(parts_of(each))]
        shown = [part.hex() if isinstance(part, bytes) else part for part in parts]
        envelope: Json = {
            "number": each.number,
            "kind": each.kind,
            "call": each.call,
            "reply": each.reply,
            "time_left": 0 if each.time_left == math.inf else each.time_left,
            "depth": each.depth,
            "document": shown[0],
            "externals": shown[1],
        }
        if shown[2:]:
            envelope["buffers"] = shown[2:]
        if each.headers:
            envelope["headers"] = {name: value.hex() for name, value in each.headers.items()}
        found.setdefault("envelopes", []).append(envelope)
    return found


# -- frames and chunks ----------------------------------------------------------------------------


def frames() -> list[Json]:
    """Returns frames as they are before they are sealed."""
    array, big = np.array([1, 2, 3], "<f4"), bytes(70_000)
    metadata, buffers = describe([array])
    call = Envelope("rpc.call", 7, False, 2.5, 1, b"\xc0", number=3)
    many = {
        "nothing but a receipt": Frame(receipt=5),
        "a request": Frame([call], 2),
        "a reply with an array": Frame(
            [
                Envelope(
                    "rpc.reply",
                    7,
                    True,
                    document=encode(array).document,
                    externals=metadata,
                    buffers=buffers,
                    number=1,
                )
            ],
            3,
        ),
        "a message with a header": Frame(
            [Envelope("rpc.item", document=b"\x01", headers={"stream": b"\x93\x01\x00\x01"})]
        ),
        "a big buffer is announced": Frame([Envelope("a.b", buffers=[b"ab", big], number=1)]),
        "a big document and big externals are announced": Frame(
            [Envelope("a.b", document=big, externals=big, number=300)]
        ),
        "several envelopes": Frame([Envelope("a.b", number=1), Envelope("a.c", number=2)]),
        "a question": Frame(heartbeat=Heartbeat(12.5, 0.0, 0.001, 3, 4)),
        "an answer": Frame(heartbeat=Heartbeat(0.0, 12.5), receipt=9),
        "a goodbye": Frame(receipt=9, goodbye="shutdown"),
        "a goodbye without a reason": Frame(goodbye=""),
        "no lane can be opened": Frame(receipt=9, laneless=b""),
        "a chunk that finds no lane": Frame(laneless=pack_chunk(Piece(1, 3, 0, b"\x01\x02"))),
        "a big buffer lies in shared memory": Frame(
            [Envelope("a.b", buffers=[b"ab", big], number=1)],
            lending=Lending([(4, 2**24)], {1: {3: Lent(300, 4, 2**17, len(big))}}, [8, 9], [2]),
        ),
        "a big document lies in shared memory, and a loan is given back": Frame(
            [Envelope("a.b", document=big, buffers=[big], number=1)],
            lending=Lending(
                lent={1: {0: Lent(301, 4, 0, len(big)), 2: Lent(7, 0, 0, len(big))}},
            ),
        ),
    }
    packed = {name: pack_frame(frame) for name, frame in many.items()}
    return [
        {"name": name, "message": data.hex(), "fields": frame_fields(data)}
        for name, data in packed.items()
    ]


def chunks() -> list[Json]:
    """Returns chunks of bulk lanes; their data is far shorter than real ones' is."""
    pieces = [Piece(1, 3, 0, b"\x01\x02"), Piece(300, 0, 2**20, b"\xff")]
    return [
        {
            "message": (chunk_header(i, piece) + bytes(piece.data)).hex(),
            "sequence": i,
            "number": piece.number,
            "part": piece.part,
            "offset": piece.offset,
            "data": bytes(piece.data).hex(),
        }
        for i, piece in enumerate(pieces)
    ]


# -- handshakes -----------------------------------------------------------------------------------


@dataclass
class Shaken:
    """A handshake that both ends have been through."""

    messages: list[tuple[str, bytes]]
    dialler: DialHandshake
    listener: AcceptHandshake


def shake(
    dialler: WorkerInfo,
    listener: WorkerInfo,
    token: bytes | None = TOKEN,
    *,
    expected: bool = True,
    received: tuple[int, int] = (0, 0),
    resumes: bool = False,
    lane_of: bytes = b"",
    binding: bytes = b"",
) -> Shaken:
    """Has two ends go through a handshake; each checks what the other one proves."""
    underlay = Underlay(binding)
    dial = DialHandshake(
        Identity(JOB, dialler),
        token,
        expected=listener if expected else None,
        nonce=DIALLER_NONCE,
        lane_of=lane_of,
        underlay=underlay,
    )
    accept = AcceptHandshake(
        Identity(JOB, listener), token, nonce=LISTENER_NONCE, underlay=underlay
    )
    hello = dial.hello()
    accept.takes_hello(hello)
    answer = accept.answer()
    dial.takes_answer(answer)
    proof = dial.prove(received[0], resumes=resumes)
    accept.takes_proof(proof)
    welcome = accept.welcome(received[1], resumes=resumes)
    dial.takes_welcome(welcome)
    messages = [("dialler", hello), ("listener", answer), ("dialler", proof)]
    return Shaken([*messages, ("listener", welcome)], dial, accept)


PARSERS: dict[bytes, Any] = {b"H": pb.Hello, b"P": pb.Proof, b"W": pb.Welcome, b"R": pb.Refusal}


def handshake_message(sender: str, message: bytes) -> Json:
    """Returns a message of a handshake with what stands in it."""
    parsed = PARSERS[message[:1]].FromString(message[1:])
    return {"from": sender, "message": message.hex(), "fields": fields(parsed)}


def handshakes() -> list[Json]:
    """Returns handshakes, with what follows from them."""
    lane = shake(NODE, SERVER).dialler.stream_id()
    cases: dict[str, Json] = {
        "a control stream": {},
        "a session resumed": {"received": (5, 300), "resumes": True},
        "a bulk lane of the first": {"lane_of": lane},
        "under TLS": {"binding": FINGERPRINT},
        "a bulk lane under TLS": {"binding": FINGERPRINT, "lane_of": lane},
        "without a token": {"token": None},
        "without a token, under TLS": {"token": None, "binding": FINGERPRINT},
    }
    return [
        _handshake("introducing itself to whoever answers", LINE, COORDINATOR, expected=False),
        *(_handshake(name, NODE, SERVER, **options) for name, options in cases.items()),
    ]


def _handshake(name: str, dialler: WorkerInfo, listener: WorkerInfo, **options: Any) -> Json:
    shaken = shake(dialler, listener, **options)
    token, binding = options.get("token", TOKEN), options.get("binding", b"")
    case: Json = {
        "name": name,
        "token": None if token is None else token.decode(),
        "binding": binding.hex(),
        "messages": [handshake_message(*each) for each in shaken.messages],
        "stream_id": shaken.dialler.stream_id().hex(),
    }
    if shaken.listener.lane_of:
        return case
    to_listener, to_dialler = shaken.dialler.frames(), shaken.listener.frames()
    payloads = [pack_frame(Frame(receipt=receipt)) for receipt in (1, 2)]
    case["sealed"] = [
        {
            "from": sender,
            "counter": i,
            "payload": payload.hex(),
            "message": side.seal(payload).hex(),
        }
        for sender, side in (("dialler", to_listener), ("listener", to_dialler))
        for i, payload in enumerate(payloads)
    ]
    return case


def refusals() -> list[Json]:
    """Returns what a listener says in place of its hello or welcome."""
    errors = [RefusedError(reason, f"words about {reason.name}") for reason in Reason]
    return [handshake_message("listener", refusal(error)) for error in errors]


# -- a conversation -------------------------------------------------------------------------------


class Talk:
    """Both ends of one stream, and what they say to each other."""

    def __init__(self, steps: list[Json], dialler: WorkerInfo, listener: WorkerInfo) -> None:
        self._steps = steps
        self._stream = listener.name
        shaken = shake(dialler, listener, expected=listener is not COORDINATOR)
        names = {"dialler": dialler.name, "listener": listener.name}
        for sender, message in shaken.messages:
            told = handshake_message(names[sender], message)
            steps.append({"stream": self._stream, **told})
        self._ends: dict[str, tuple[Session, Frames]] = {
            dialler.name: (Session(), shaken.dialler.frames()),
            listener.name: (Session(), shaken.listener.frames()),
        }
        for session, _ in self._ends.values():
            session.connection_made(0)

    def say(self, sender: str, what: str, envelope: Envelope | None = None, **extra: Any) -> None:
        """Writes a frame, and has the other end read it."""
        session, sealing = self._ends[sender]
        if envelope is not None:
            session.post(envelope)
        frame = session.next_write()
        frame.heartbeat = extra.get("heartbeat")
        frame.goodbye = extra.get("goodbye")
        message = sealing.seal(pack_frame(frame))
        ((other, opening),) = (end for name, end in self._ends.items() if name != sender)
        payload = opening.open(message)
        other.received(unpack_frame(payload))
        step: Json = {
            "stream": self._stream,
            "from": sender,
            "what": what,
            "message": message.hex(),
            "fields": frame_fields(payload),
        }
        if extra.get("body", ...) is not ...:
            value, objects = extra["body"]
            step |= {"value": value, "objects": objects}
        self._steps.append(step)

    def send(self, sender: str, kind: str, call: int, body: object, **options: Any) -> None:
        """Says an envelope with a value."""
        encoded = encode(body)
        metadata, buffers = describe(encoded.externals)
        envelope = Envelope(
            kind,
            call,
            kind in ("control.reply", "rpc.reply", "rpc.error"),
            options.get("time_left", math.inf),
            document=encoded.document,
            externals=metadata,
            buffers=buffers,
        )
        self.say(sender, kind, envelope, body=shown(body))

    def part(self, sender: str, reason: str) -> None:
        """Says goodbye, which the other end answers."""
        other = next(name for name in self._ends if name != sender)
        self.say(sender, "goodbye", goodbye=reason)
        self.say(other, "the answer", goodbye="answer")


def conversation() -> list[Json]:
    """Returns how a client joins a job, calls a function twice, and leaves."""
    steps: list[Json] = []
    line = Talk(steps, LINE, COORDINATOR)
    line.send(LINE.name, "member.reserve", 1, {"name": "node"})
    line.send("coordinator", "control.reply", 1, {"name": "node", "rank": 1, "world_size": 1})
    line.send(LINE.name, "store.add", 2, {"key": "telegrad/incarnation", "amount": 1})
    line.send("coordinator", "control.reply", 2, 2)
    join = {"name": "node", "rank": 1, "world_size": 1, "incarnation": 2, "endpoints": []}
    line.send(LINE.name, "member.join", 3, {**join, "control": []})
    members = [["server", 0, 1, ["grpc://127.0.0.1:4000"]], ["node", 1, 2, []]]
    line.send("coordinator", "control.reply", 3, {"members": members})
    talk = Talk(steps, NODE, SERVER)
    call(talk, 1, "scale", [np.array([1, 2, 3], "<f4"), 2.0])
    talk.send("server", "rpc.reply", 1, np.array([2, 4, 6], "<f4"))
    talk.say("server", "a question", heartbeat=Heartbeat(100.5, 0.0, 0.0, 0))
    talk.say("node", "its answer", heartbeat=Heartbeat(0.0, 100.5))
    call(talk, 2, "fail", ["no"])
    talk.send("server", "rpc.error", 2, failure())
    talk.part("node", "done")
    line.send(LINE.name, "member.leave", 4, {"reason": "done"})
    line.send("coordinator", "control.reply", 4, None)
    line.part(LINE.name, "done")
    return steps


def call(talk: Talk, number: int, function: str, args: Sequence[object]) -> None:
    """Says a call of a function of the server's own script."""
    body = {"func": f"__main__:{function}", "args": list(args), "kwargs": {}}
    talk.send("node", "rpc.call", number, body, time_left=60.0)


def failure() -> Json:
    """Returns what a worker says of an exception that one of its functions raised."""
    return {
        "error": encode_exception(ValueError("no")),
        "type": "builtins:ValueError",
        "message": "no",
        "traceback": "Traceback (most recent call last):\n  ...\nValueError: no\n",
        "worker": "server",
        "pid": 4711,
    }
