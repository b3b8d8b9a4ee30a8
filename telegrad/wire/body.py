"""Protocol messages as envelopes: a body of plain values, and bytes behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from telegrad.wire.decoder import decode
from telegrad.wire.document import DEFAULT_LIMITS, DecodeLimits
from telegrad.wire.encoder import encode
from telegrad.wire.envelope import Buffer, Envelope
from telegrad.wire.external import describe, rebuild
from telegrad.wire.memory import NO_MEMORY, Memory
from telegrad.wire.registry import Land, Place, first_gpu, land

__all__ = ["read_body", "write_body"]


def _no_memory() -> Memory:
    return NO_MEMORY


def write_body(
    kind: str,
    body: object,
    *,
    reply: bool = False,
    buffers: Sequence[Buffer] = (),
    place: Place = first_gpu,
    memory: Callable[[], Memory] = _no_memory,
) -> Envelope:
    """Makes the envelope of a protocol message, which passes no interceptor.

    Args:
        kind: The envelope's kind.
        body: What `read_body` returns at the other end.
        reply: Whether it answers a request.
        buffers: Bytes that travel behind those of the body, not copied.
        place: Says where arrays of a GPU are to arrive.
        memory: Says where the bytes of arrays are copied to, of a message for one worker.

    Raises:
        EncodeError: The body cannot travel.

    >>> read_body(write_body("store.get", {"key": "k"}))
    {'key': 'k'}
    """
    encoded = encode(body, name=None)
    externals: bytes = b""
    own: Sequence[Buffer] = ()
    if encoded.externals:
        externals, own = describe(encoded.externals, place, memory())
    return Envelope(
        kind,
        reply=reply,
        document=encoded.document,
        externals=externals,
        buffers=[*own, *buffers],
    )


def read_body(
    envelope: Envelope, *, limits: DecodeLimits = DEFAULT_LIMITS, land: Land = land
) -> object:
    """Decodes the body of a protocol message.

    Args:
        envelope: That brought it.
        limits: What it may ask of this end.
        land: Moves arrays that are to live on a GPU.

    Raises:
        DecodeError: It is none.
    """
    externals: list[object] = []
    if envelope.externals:
        externals = rebuild(envelope.externals, envelope.buffers, limits=limits, land=land)
    return decode(envelope.document, externals, limits=limits)
