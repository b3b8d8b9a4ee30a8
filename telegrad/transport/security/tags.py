"""The tag on every frame: proof that its writer holds the token and that it is in its place.

    message = BLAKE2b(key, counter | payload, 16 bytes) | payload

BLAKE2b with a key is a MAC by itself (RFC 7693) and costs 2 us. HMAC-SHA256, which the handshake
uses, costs 20 us in the midst of a call, as OpenSSL looks up its algorithm each time.

The key belongs to one direction of one stream. The counter is not sent; so a frame that is left
out, repeated, moved or forged fails. The chunks of bulk lanes carry no tag: a lane proves itself
when it is opened, and after that array bytes are as safe as the network is. Only TLS protects
against an attacker that reads frames, or alters the data on lanes.

Frames carry no tag where something better protects them: TLS, or for a Unix socket the kernel,
which tells that both ends belong to this user. Both ends have to know that about their carrier, and
to state it (`UNTAGGED`).
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final, Protocol, final

UNTAGGED: Final = "untagged"
TAG_BYTES = 16  # 2**-128 per guess, and one guess closes the stream
STREAM_ID_BYTES = 32


class BadTagError(ConnectionError):
    """A frame was not written by the peer, or not at this place; never reaches users."""


class Frames(Protocol):
    """An object that protects the frames of one stream."""

    def seal(self, payload: bytes) -> bytes:
        """Returns the message to send for a payload."""

    def open(self, message: bytes) -> bytes:
        """Returns the payload of a message.

        Raises:
            BadTagError: The peer did not write it, or not at this place.
        """


@final
class PlainFrames:
    """Frames without tags: in a job that runs `insecure`, under TLS, and over a Unix socket."""

    seal = staticmethod(bytes)  # which returns the payload as it is
    open = staticmethod(bytes)


@final
class FrameTags:
    """Seals outgoing frames and checks incoming ones, on one stream.

    Args:
        sending: The key of the outgoing direction.
        receiving: The key of the incoming direction.
    """

    def __init__(self, *, sending: bytes, receiving: bytes) -> None:
        self._sending = hashlib.blake2b(key=sending, digest_size=TAG_BYTES)
        self._receiving = hashlib.blake2b(key=receiving, digest_size=TAG_BYTES)
        self._sent = 0
        self._received = 0

    def seal(self, payload: bytes) -> bytes:
        """Returns the payload behind its tag."""
        running = self._sending.copy()  # cheaper than to begin with the key each time
        running.update(self._sent.to_bytes(8, "big") + payload)
        self._sent += 1
        return running.digest() + payload

    def open(self, message: bytes) -> bytes:
        """Returns the payload of the next message.

        Raises:
            BadTagError: The tag is wrong; the stream cannot go on.
        """
        tag, payload = message[:TAG_BYTES], message[TAG_BYTES:]
        running = self._receiving.copy()
        running.update(self._received.to_bytes(8, "big") + payload)
        if not hmac.compare_digest(tag, running.digest()):
            raise BadTagError(f"frame {self._received} carries a wrong tag")
        self._received += 1
        return payload


def make_frames(token: bytes | None, transcript: bytes, *, dialled: bool) -> Frames:
    """Returns the object that seals and opens the frames of one stream.

    Args:
        token: The job's token; None if frames carry no tags.
        transcript: Both hellos in full; their nonces make the keys this stream's own.
        dialled: True if this side dialled.
    """
    if token is None:
        return PlainFrames()
    to_listener = hmac.digest(token, b"telegrad key|dialler|" + transcript, "sha256")
    to_dialler = hmac.digest(token, b"telegrad key|listener|" + transcript, "sha256")
    if dialled:
        return FrameTags(sending=to_listener, receiving=to_dialler)
    return FrameTags(sending=to_dialler, receiving=to_listener)


def stream_id(token: bytes | None, transcript: bytes) -> bytes:
    """Returns the id of a control stream, by which lanes state that they belong to it.

    The id is no secret: a peer that names it has to prove itself as well.

    Args:
        token: The job's token; None in an insecure job.
        transcript: Both hellos in full.
    """
    text = b"telegrad stream|" + transcript
    return hashlib.sha256(text).digest() if token is None else hmac.digest(token, text, "sha256")
