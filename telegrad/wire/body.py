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
        body: The value that `read_body` returns at the other end.
        reply: True if it answers a request.
        buffers: Bytes that travel behind those of the body, not copied.
        place: Returns the device on which arrays of a GPU are to arrive.
        memory: Returns the memory to copy the bytes of arrays into, for a message to one worker.

    Raises:
        EncodeError: The body contains a value that cannot travel.

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
        envelope: The envelope with the body.
        limits: The limits on the resources that it may use here.
        land: Moves arrays to the GPU on which they are to live.

    Raises:
        DecodeError: The envelope has no valid body.
        MemoryError: This worker had no memory for it.
    """
    if envelope.failure is not None:
        raise envelope.failure
    externals: list[object] = []
    if envelope.externals:
        externals = rebuild(envelope.externals, envelope.buffers, limits=limits, land=land)
    return decode(envelope.document, externals, limits=limits)
