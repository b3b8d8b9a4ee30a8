"""Reads what passes on a carrier: who talks with whom, what for, and which kinds of envelopes.

A worker's line to the coordinator says a name of its own, `store.<rank>.<a number drawn at
random>.<the worker's name>`; here it is `store.<rank>`, so that a seed does the same to it in every run.

The first two messages of each direction are the handshake: a letter and a protobuf message. What
follows on a control stream are frames, behind a tag where the job has a token and no TLS.
"""

from __future__ import annotations

import re
from typing import final

from google.protobuf.message import DecodeError

from telegrad import pb
from telegrad.testing.fault_plan import HANDSHAKE

__all__ = ["CarrierReader"]

CONTROL = "control"
TAG_BYTES = 16
HANDSHAKE_MESSAGES = 2  # in each direction
LINE = re.compile(r"(store\.-?\d+)\.[0-9a-f]+(\..*)?")
LETTERS = {b"H": "hello", b"P": "proof", b"W": "welcome", b"R": "refusal"}


@final
class CarrierReader:
    """What one end of a carrier knows from the messages that passed it. Pure; not thread-safe.

    Attributes:
        here: Name of the worker at this end; empty until its hello has passed.
        there: Name of the worker at the other end; empty until it is known.
        purpose: What the carrier is for; empty until the dialler's hello has passed.
        sent: Messages that this end has sent.

    Args:
        dialled: Whether this end dialled.
        tls: Whether the carrier is encrypted, so that frames need no tags.
    """

    def __init__(self, *, dialled: bool, tls: bool = False) -> None:
        self.here = ""
        self.there = ""
        self.purpose = ""
        self.sent = 0
        self._received = 0
        self._dialled = dialled
        self._tls = tls
        self._tagged = False

    @property
    def proved(self) -> bool:
        """Whether this end has received all of the other's handshake."""
        return self._received >= HANDSHAKE_MESSAGES

    def sends(self, message: bytes) -> tuple[str, ...]:
        """Reads a message that this end sends; returns the kinds of what it carries."""
        self.sent += 1
        return self._read(message, self.sent, own=True)

    def receives(self, message: bytes) -> tuple[str, ...]:
        """Reads a message that this end received; returns the kinds of what it carries."""
        self._received += 1
        return self._read(message, self._received, own=False)

    def _read(self, message: bytes, number: int, *, own: bool) -> tuple[str, ...]:
        try:
            if number <= HANDSHAKE_MESSAGES:
                return (self._read_handshake(message, own=own),)
            if self.purpose != CONTROL:
                return (self.purpose,)
            return kinds_of(message[TAG_BYTES:] if self._tagged else message)
        except DecodeError:
            return ("garbage",)

    def _read_handshake(self, message: bytes, *, own: bool) -> str:
        letter, body = message[:1], message[1:]
        if letter == b"H":
            self._read_hello(pb.Hello.FromString(body), own=own)
        elif letter == b"P":
            self._tagged = bool(pb.Proof.FromString(body).mac) and not self._tls
        return HANDSHAKE + LETTERS.get(letter, "garbage")

    def _read_hello(self, hello: pb.Hello, *, own: bool) -> None:
        if own:
            self.here = name_in(hello)
        else:
            self.there = name_in(hello)
        if own == self._dialled:
            self.purpose = hello.purpose
            if hello.expected_name and own:
                self.there = hello.expected_name


def name_in(hello: pb.Hello) -> str:
    """Returns the name that a hello says, without what differs from one run to the next."""
    line = LINE.fullmatch(hello.name)
    return hello.name if line is None else line[1]


def kinds_of(payload: bytes) -> tuple[str, ...]:
    """Returns the kinds of all that a frame carries, each once.

    Raises:
        DecodeError: The bytes are not a frame.
    """
    frame = pb.Frame.FromString(payload)
    kinds = dict.fromkeys(envelope.kind for envelope in frame.envelopes)
    found = [*kinds]
    if frame.HasField("heartbeat"):
        found.append("heartbeat")
    if frame.HasField("goodbye"):
        found.append("goodbye")
    return tuple(found) or ("receipt",)
