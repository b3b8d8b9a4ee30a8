"""What protects the chunks of a lane over a socket of its own: AES-GCM, where its stream has TLS.

    key = HMAC-SHA256(HMAC-SHA256(token, control stream's hellos), role | lane's hellos)
    sealed chunk = header (28 bytes, plain) | AES-256-GCM(key, nonce = sequence, data; header) (+ 16)

The hellos of the control stream hold 64 random bytes, and went under TLS: who recorded it all and
finds out the token later still has no key. A key is for one direction of one lane, and a nonce for
one chunk of that: what is left out, repeated, moved or made up fails, and the lane with it.

AES-GCM costs 0.13 ms a MiB here (8 GB/s, as much as a copy; the interpreter's lock is free
meanwhile), beside 0.7 for a tag of HMAC-SHA256 and 1.25 for one of BLAKE2b: to encrypt is cheaper than
only to authenticate. Where the stream itself is plain, on loopback or in an insecure job, chunks
are plain too, as they are on lanes over gRPC.
"""

from __future__ import annotations

import hmac
from typing import Final, final

from telegrad.transport.base import CarrierClosedError
from telegrad.transport.security.tags import BadTagError
from telegrad.wire import Buffer

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
except ImportError:  # installed without what telegrad depends on
    can_seal = False
else:
    can_seal = True

__all__ = [
    "TAG_BYTES",
    "Seal",
    "SealedFrames",
    "can_seal",
    "lane_secret",
    "make_seal",
    "moved_secret",
]

TAG_BYTES: Final = 16
NONCE_BYTES: Final = 12


@final
class Seal:
    """Seals what leaves by one lane and opens what comes; one thread for each.

    Args:
        sending: The key of the outgoing direction.
        receiving: The key of the incoming direction.
    """

    def __init__(self, *, sending: bytes, receiving: bytes) -> None:
        self._sending = AESGCM(sending)
        self._receiving = AESGCM(receiving)

    def seal(self, sequence: int, header: bytes, data: Buffer) -> bytes:
        """Returns the data of a chunk, encrypted, with its tag."""
        return self._sending.encrypt(_nonce(sequence), data, header)

    def open(self, sequence: int, header: Buffer, sealed: Buffer) -> bytes:
        """Returns the data of a chunk.

        Raises:
            CarrierClosedError: The peer did not write it, or not at this place.
        """
        try:
            return self._receiving.decrypt(_nonce(sequence), sealed, bytes(header))
        except InvalidTag as error:
            raise CarrierClosedError(f"chunk {sequence} carries a wrong tag") from error


@final
class SealedFrames:
    """The frames of a stream that has moved to a socket: encrypted, each with its tag.

    Args:
        seal: Of this stream alone.
    """

    def __init__(self, seal: Seal) -> None:
        self._seal = seal
        self._sent = self._received = 0

    def seal(self, payload: bytes) -> bytes:
        """Returns what to send; by who has the writer's turn."""
        sealed = self._seal.seal(self._sent, b"", payload)
        self._sent += 1
        return sealed

    def open(self, message: bytes) -> bytes:
        """Returns what was sent; by whoever reads.

        Raises:
            BadTagError: Somebody else wrote it, or not at this place.
        """
        try:
            payload = self._seal.open(self._received, b"", message)
        except CarrierClosedError as error:
            raise BadTagError(f"frame {self._received} carries a wrong tag") from error
        self._received += 1
        return payload


def moved_secret(secret: bytes, transcript: bytes) -> bytes:
    """Returns what the ends of a stream share for its lanes that has taken another one's place.

    Args:
        secret: What they shared there; empty where it was plain.
        transcript: Both hellos of its own handshake in full.
    """
    return secret and hmac.digest(secret, b"telegrad lanes|" + transcript, "sha256")


def lane_secret(token: bytes | None, binding: bytes, transcript: bytes) -> bytes:
    """Returns what the ends of a control stream share for its lanes; empty where that is plain.

    Args:
        token: The job's token; None in an insecure job.
        binding: The fingerprint of the certificate that the listener has shown; empty without TLS.
        transcript: Both hellos of the control stream in full.
    """
    if token is None or not binding:
        return b""
    return hmac.digest(token, b"telegrad lanes|" + transcript, "sha256")


def make_seal(secret: bytes, transcript: bytes, *, dialled: bool) -> Seal | None:
    """Returns what protects one lane; None where its stream is plain.

    Args:
        secret: What the two ends of the control stream share; empty where it is plain.
        transcript: Both hellos of the lane in full.
        dialled: Whether this side dialled.

    Raises:
        CarrierClosedError: The package cryptography is not installed.
    """
    if not secret:
        return None
    if not can_seal:
        raise CarrierClosedError("pip install cryptography: chunks have to be encrypted")
    to_listener = hmac.digest(secret, b"telegrad lane key|dialler|" + transcript, "sha256")
    to_dialler = hmac.digest(secret, b"telegrad lane key|listener|" + transcript, "sha256")
    if dialled:
        return Seal(sending=to_listener, receiving=to_dialler)
    return Seal(sending=to_dialler, receiving=to_listener)


def _nonce(sequence: int) -> bytes:
    return sequence.to_bytes(NONCE_BYTES, "big")
