"""The handshake by which two workers prove to each other who they are. Pure.

    dialler                          listener
      hello ─────────────────────────▶ takes_hello   same job, a common version, the name expected
      takes_answer ◀────────────────── answer        its own hello
      prove(received) ───────────────▶ takes_proof   the dialler holds the token
      takes_welcome ◀───────────────── welcome(received)  so does the listener; frames follow

At every step the listener may send a refusal instead, which ends the stream. Each side states the
number of the last envelope that it holds, after it has dropped the previous carrier; the other
side's number decides what is sent again. A proof is HMAC-SHA256(token, role | purpose | that number
| both hellos in full): it is valid for no other role, purpose, number or stream.

Under TLS a proof also covers the certificate that the listener has shown: "tls" and its fingerprint
stand before the hellos. An attacker in between, with one TLS connection to each end, shows the
dialler another certificate, and neither proof is valid at the other end. Frames then need no tags.
If both ends have to show certificates, the name in a hello must be one of those in the sender's
certificate; upper and lower case count as equal.

A bulk lane opens with the same four messages. Its hello names the control stream that it belongs
to, by an id that both ends computed from that stream's hellos. The number is 0, and chunks follow.
"""

from __future__ import annotations

import enum
import hmac
import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import final

from google.protobuf.message import DecodeError as ProtobufDecodeError

from telegrad import pb
from telegrad.transport.base import Carrier
from telegrad.transport.security.tags import (
    STREAM_ID_BYTES,
    UNTAGGED,
    Frames,
    make_frames,
    stream_id,
)
from telegrad.types import WorkerInfo
from telegrad.wire import escaped

OLDEST_VERSION = NEWEST_VERSION = 2
CONTROL, BULK, MOVED = "control", "bulk", "moved"


class Reason(enum.IntEnum):
    """A reason for which a stream was refused; the numbers are those of `pb.Refusal.Reason`."""

    UNSPECIFIED = 0
    VERSION = 1
    JOB = 2
    NAME = 3
    INCARNATION = 4
    AUTHENTICATION = 5
    FENCED = 6
    UNKNOWN_SESSION = 7
    NOT_ADMITTED = 8
    DUPLICATE = 9
    MALFORMED = 10
    UNKNOWN_STREAM = 11
    UNANNOUNCED = 12

    @classmethod
    def _missing_(cls, value: object) -> Reason:
        return cls.UNSPECIFIED


class RefusedError(ConnectionError):
    """One of the two sides ended a handshake early.

    Attributes:
        reason: The reason as a code, for programs.
        words: The reason as text, for people.
    """

    def __init__(self, reason: Reason, words: str) -> None:
        super().__init__(words)
        self.reason = reason
        self.words = words


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity that this worker claims: its job, name, rank and incarnation."""

    job: str
    info: WorkerInfo


def itself(name: str) -> str:
    """Returns the name itself: by default a certificate must contain the name in the hello."""
    return name


@final
@dataclass(frozen=True, slots=True)
class Underlay:
    """Facts that the connection below a handshake has proved; none by default.

    Attributes:
        binding: The fingerprint of the certificate that the listener has shown.
        peer_names: The names in the other end's certificate; None if it was not asked for one.
        certified: Maps the name in a hello to the name that must be in the certificate.
        told: Capabilities that this end states on this connection.
    """

    binding: bytes = b""
    peer_names: frozenset[str] | None = None
    certified: Callable[[str], str] = itself
    told: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        carrier: Carrier,
        certified: Callable[[str], str] = itself,
        listening: tuple[str, ...] = (),
    ) -> Underlay:
        """Returns the facts that a carrier proves; `listening`: what its listener tells, too."""
        return cls(carrier.binding, carrier.peer_names, certified, (*listening, *carrier.told))

    def protects(self, capabilities: Collection[str]) -> bool:
        """Returns True if frames need no tags: TLS protects them, or both ends know they are safe.

        Args:
            capabilities: The capabilities of the other end.
        """
        return bool(self.binding) or (UNTAGGED in self.told and UNTAGGED in capabilities)

    def check(self, hello_name: str) -> None:
        """Checks the name in a hello.

        Raises:
            RefusedError: The certificate is for other names.
        """
        if self.peer_names is None:
            return
        name = self.certified(hello_name)
        if name and name.lower() in map(str.lower, self.peer_names):
            return
        holders = " and ".join(map(repr, sorted(self.peer_names))) or "nobody"
        raise RefusedError(
            Reason.AUTHENTICATION,
            f"a peer that claims to be {name or hello_name!r} has shown the certificate of "
            f"{holders}; run: telegrad certs issue {name or 'NAME'}, and start it with that one",
        )


class Handshake:
    """The part that both halves of a handshake share; each of them derives from it.

    Attributes:
        capabilities: The capabilities of the other end, once its hello was taken.
        transcript: Both hellos in full, once the other end's was taken.

    Args:
        identity: The identity of this end.
        token: The secret that both must hold; None in an insecure job.
        underlay: The facts that the connection has proved.
        dialled: True if this end dialled.
    """

    def __init__(
        self, identity: Identity, token: bytes | None, underlay: Underlay | None, *, dialled: bool
    ) -> None:
        self._identity = identity
        self._token = token
        self._underlay = Underlay() if underlay is None else underlay
        self._roles = (b"dialler", b"listener") if dialled else (b"listener", b"dialler")
        self._purpose = CONTROL
        self._hello = b""
        self.capabilities: tuple[str, ...] = ()
        self.transcript = b""

    def stream_id(self) -> bytes:
        """Returns the id of this stream, which its lanes name."""
        return stream_id(self._token, self.transcript)

    def frames(self) -> Frames:
        """Returns the object that seals and opens the frames of this stream."""
        token = None if self._underlay.protects(self.capabilities) else self._token
        return make_frames(token, self.transcript, dialled=self._roles[0] == b"dialler")

    def _check_proof(self, told: pb.Proof | pb.Welcome) -> None:
        role = self._roles[1]
        right = self._mac(role, told.received, resumes=told.resumes)
        if self._token is None or hmac.compare_digest(right, told.mac):
            return
        holds = "another token" if told.mac else "no token"
        if told.mac and self._underlay.binding:
            holds += ", or somebody in between has shown a certificate of its own"
        raise RefusedError(
            Reason.AUTHENTICATION,
            f"the {role.decode()} holds {holds}; give every worker of the job the same one in "
            f"RpcOptions.token, TELEGRAD_TOKEN or TELEGRAD_TOKEN_FILE",
        )

    def _mac(self, role: bytes, received: int, *, resumes: bool) -> bytes:
        if self._token is None:
            return b""
        binding, proved = self._underlay.binding, self.transcript
        if binding:  # only a bare transcript begins with a zero byte
            proved = b"tls|" + binding + b"|" + proved
        parts = (role, self._purpose.encode(), b"%d,%d" % (received, resumes), proved)
        return hmac.digest(self._token, b"|".join(parts), "sha256")


@final
class DialHandshake(Handshake):
    """The dialler's half of a handshake.

    Args:
        identity: The identity of the dialler.
        token: The secret that both must hold; None in an insecure job.
        expected: The worker that should answer; None to accept any.
        nonce: 32 random bytes.
        lane_of: For a lane: the id of the stream that it belongs to.
        moves: True if this stream is no lane but replaces that stream.
        underlay: The facts that the connection has proved.
    """

    def __init__(
        self,
        identity: Identity,
        token: bytes | None,
        *,
        expected: WorkerInfo | None = None,
        nonce: bytes | None = None,
        lane_of: bytes = b"",
        moves: bool = False,
        underlay: Underlay | None = None,
    ) -> None:
        super().__init__(identity, token, underlay, dialled=True)
        self._expected = expected
        self._purpose = (MOVED if moves else BULK) if lane_of else CONTROL
        told = self._underlay.told
        self._hello = _hello(identity, told, nonce, expected, self._purpose, lane_of)

    def hello(self) -> bytes:
        """Returns the first message."""
        return b"H" + self._hello

    def takes_answer(self, message: bytes) -> WorkerInfo:
        """Reads the listener's hello; returns the identity that it claims.

        Raises:
            RefusedError: The listener refuses, or is not the expected one.
        """
        body = _body(message, b"H")
        hello = _parse_hello(body)
        if hello.purpose != self._purpose or hello.stream:
            raise RefusedError(Reason.MALFORMED, f"a hello for {hello.purpose!r} in answer")
        _check_versions(hello)
        _check_job(hello, self._identity)
        peer = _info(hello)
        self._underlay.check(peer.name)
        _check_expected(peer, self._expected)
        self.capabilities = tuple(hello.capabilities)
        self.transcript = _transcript(self._hello, body)
        return peer

    def prove(self, received: int, *, resumes: bool) -> bytes:
        """Returns the proof, with the number of the last envelope that this side holds."""
        mac = self._mac(self._roles[0], received, resumes=resumes)
        return b"P" + pb.Proof(mac=mac, received=received, resumes=resumes).SerializeToString()

    def takes_welcome(self, message: bytes) -> int:
        """Returns the number of the last envelope that the listener holds.

        Raises:
            RefusedError: The listener refuses, or does not hold the token.
        """
        welcome = pb.Welcome()
        _parse(welcome, _body(message, b"W"))
        self._check_proof(welcome)
        return welcome.received


@final
class AcceptHandshake(Handshake):
    """The listener's half of a handshake; `DialHandshake` describes the arguments.

    Attributes:
        claimed: The identity that the dialler claims; None before a hello was read.
        lane_of: The id of the stream that a lane belongs to, or that this stream replaces, once a
            hello was taken; empty for any other control stream.
    """

    def __init__(
        self,
        identity: Identity,
        token: bytes | None,
        *,
        nonce: bytes | None = None,
        underlay: Underlay | None = None,
    ) -> None:
        super().__init__(identity, token, underlay, dialled=False)
        self.claimed: WorkerInfo | None = None
        self.lane_of = b""
        self._nonce = nonce

    def takes_hello(self, message: bytes) -> WorkerInfo:
        """Reads the first message; returns the identity that the dialler claims.

        Raises:
            RefusedError: The dialler does not belong here; send it `refusal`.
        """
        body = _body(message, b"H")
        hello = _parse_hello(body)
        self.claimed = claimed = _info(hello)
        told = self._underlay.told
        self._hello = _hello(self._identity, told, self._nonce, None, hello.purpose)
        if len(hello.stream) != (0 if hello.purpose == CONTROL else STREAM_ID_BYTES):
            raise RefusedError(Reason.MALFORMED, f"a {hello.purpose} hello with a wrong stream id")
        _check_versions(hello)
        _check_job(hello, self._identity)
        self._underlay.check(claimed.name)
        if hello.expected_name:
            expected = WorkerInfo(hello.expected_name, 0, hello.expected_incarnation)
            _check_expected(self._identity.info, expected)
        self.lane_of, self._purpose = hello.stream, hello.purpose
        self.capabilities = tuple(hello.capabilities)
        self.transcript = _transcript(body, self._hello)
        return claimed

    @property
    def moves(self) -> bool:
        """True if this stream is to replace the stream that its hello names."""
        return self._purpose == MOVED

    def answer(self) -> bytes:
        """Returns this side's hello."""
        return b"H" + self._hello

    def takes_proof(self, message: bytes) -> tuple[int, bool]:
        """Returns the number of the last envelope that the dialler holds, and True if it resumes.

        Raises:
            RefusedError: The dialler does not hold the token.
        """
        proof = pb.Proof()
        _parse(proof, _body(message, b"P"))
        self._check_proof(proof)
        return proof.received, proof.resumes

    def welcome(self, received: int, *, resumes: bool) -> bytes:
        """Returns the last message, with the number of the last envelope that this side holds."""
        mac = self._mac(self._roles[0], received, resumes=resumes)
        return b"W" + pb.Welcome(mac=mac, received=received, resumes=resumes).SerializeToString()


def refusal(error: RefusedError) -> bytes:
    """Returns the message that tells the other side the reason for which the stream ends."""
    told = pb.Refusal(reason=error.reason.name, words=error.words)
    return b"R" + told.SerializeToString()


def _hello(
    identity: Identity,
    told: tuple[str, ...],
    nonce: bytes | None,
    expected: WorkerInfo | None,
    purpose: str,
    lane_of: bytes = b"",
) -> bytes:
    hello = pb.Hello(
        oldest_version=OLDEST_VERSION,
        newest_version=NEWEST_VERSION,
        capabilities=told,
        job=identity.job,
        name=identity.info.name,
        rank=identity.info.rank,
        incarnation=identity.info.incarnation,
        nonce=secrets.token_bytes(32) if nonce is None else nonce,
        purpose=purpose,
        stream=lane_of,
    )
    if expected is not None:
        hello.expected_name = expected.name
        hello.expected_incarnation = expected.incarnation
    return hello.SerializeToString()


def _body(message: bytes, tag: bytes) -> bytes:
    """Returns the content behind the tag; raises the error that a refusal carries."""
    if message[:1] == b"R":
        told = pb.Refusal()
        _parse(told, message[1:])
        raise RefusedError(Reason(told.reason), escaped(told.words))
    if message[:1] != tag:
        raise RefusedError(Reason.MALFORMED, "that was no message of a telegrad handshake")
    return message[1:]


def _parse(into: pb.Hello | pb.Proof | pb.Welcome | pb.Refusal, body: bytes) -> None:
    try:
        into.ParseFromString(body)
    except (ProtobufDecodeError, UnicodeDecodeError) as error:
        words = "that was no message of a telegrad handshake"
        raise RefusedError(Reason.MALFORMED, words) from error


def _parse_hello(body: bytes) -> pb.Hello:
    hello = pb.Hello()
    _parse(hello, body)
    if hello.purpose not in (CONTROL, BULK, MOVED) or len(hello.nonce) < 16 or not hello.name:
        raise RefusedError(Reason.MALFORMED, "a hello without a known purpose, nonce or name")
    return hello


def _info(hello: pb.Hello) -> WorkerInfo:
    return WorkerInfo(hello.name, hello.rank, hello.incarnation)


def _check_versions(hello: pb.Hello) -> None:
    if hello.oldest_version > NEWEST_VERSION or hello.newest_version < OLDEST_VERSION:
        raise RefusedError(
            Reason.VERSION,
            f"no protocol version in common ({hello.name!r}: {hello.oldest_version} to "
            f"{hello.newest_version}, here: {OLDEST_VERSION} to {NEWEST_VERSION}); install the "
            f"same telegrad everywhere",
        )


def _check_job(hello: pb.Hello, identity: Identity) -> None:
    if hello.job != identity.job:
        raise RefusedError(
            Reason.JOB,
            f"{hello.name!r} belongs to job {hello.job!r}, {identity.info.name} to job "
            f"{identity.job!r}; check the address, and TELEGRAD_JOB on both",
        )


def _check_expected(found: WorkerInfo, expected: WorkerInfo | None) -> None:
    if expected is None:
        return
    if found.name != expected.name:
        raise RefusedError(
            Reason.NAME, f"{expected.name} was dialled, but {found.name} listens there now"
        )
    if expected.incarnation not in (0, found.incarnation):
        raise RefusedError(
            Reason.INCARNATION,
            f"incarnation {expected.incarnation} of {expected.name} is gone; incarnation "
            f"{found.incarnation} answers in its place",
        )


def _transcript(dialler: bytes, listener: bytes) -> bytes:
    """Joins both hellos so that no other pair of them gives the same bytes."""
    return len(dialler).to_bytes(4, "big") + dialler + listener
