"""Frames to bytes and back: a frame is the content of one write on a control stream.

An envelope has parts: 0 its document, 1 its externals, 2 and up its buffers. Small parts travel
in-line; the others are only announced, and come as pieces (`telegrad.wire.pieces`): on bulk lanes,
or as chunks of later frames where no lane can be opened.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError as ProtobufError

from telegrad import pb
from telegrad.errors import DecodeError, EncodeError
from telegrad.wire.document import DEFAULT_LIMITS, DecodeLimits
from telegrad.wire.envelope import Buffer, Envelope
from telegrad.wire.lending import Lending, pack_lending, unpack_lending

INLINE_BYTES = 64 * 2**10  # a larger part is cheaper as a piece: its bytes are not held twice
INLINE_TOTAL = 256 * 2**10  # per envelope; a quarter of a write, so that control is not held up
MAX_KIND_LENGTH = 100  # characters; kinds are `package.verb`

ENVELOPE_BYTES = 64  # bytes of an envelope's own fields, about; only for filling writes
_PART_OVERHEAD = 16  # bytes that announcing a part takes at most
# Of one write. At 64 bytes each, not even the smallest envelopes fill a write with more. Protobuf
# turns an empty envelope of two bytes into 150: so writes are counted before they are read if they
# are bigger than those of one envelope whose parts all travel in-line.
MAX_ENVELOPES = 34 * 2**10
_COUNTED_SIZE = 2 * MAX_ENVELOPES

_SHORTEST_TIME = 1e-9  # seconds; written for a deadline that has passed, because 0 means none


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A sign of life.

    Attributes:
        sent: The time on the writer's clock, in seconds.
        echo: `sent` of the last heartbeat that the writer received; 0 if none so far.
        lag: The recent lag of the writer's loop, in seconds.
        busy: The number of calls that the writer is serving.
        chunks: The number of chunks that the writer took from the lanes of this stream.
    """

    sent: float
    echo: float = 0.0
    lag: float = 0.0
    busy: int = 0
    chunks: int = 0


@dataclass(slots=True)
class Frame:
    """One write.

    Attributes:
        envelopes: New envelopes, in the order of their numbers.
        receipt: A cumulative number: the writer holds every envelope up to it.
        heartbeat: A sign of life, if there is one in it.
        goodbye: The reason, in words, for which the writer closes the session; nothing follows.
        awaited: In a received frame: for each envelope number, the parts that come as pieces, with
            their sizes. Such a part is empty in the envelope until an `Assembly` has completed it.
            Ignored when packing.
        lending: News about shared memory. A part that is lent is not awaited; it is empty in a
            received envelope until its bytes are taken from the shared memory.
        laneless: Not None if the dialler of the stream cannot open lanes: a piece of a big part, as
            `pieces.pack_chunk` returns it; empty if there is none.
    """

    envelopes: list[Envelope] = field(default_factory=list)
    receipt: int = 0
    heartbeat: Heartbeat | None = None
    goodbye: str | None = None
    awaited: dict[int, dict[int, int]] = field(default_factory=dict)
    lending: Lending | None = None
    laneless: bytes | None = None


def parts_of(envelope: Envelope) -> tuple[Buffer, ...]:
    """Returns document, externals and buffers, in the order of their part numbers."""
    return (envelope.document, envelope.externals, *envelope.buffers)


def inline_parts(envelope: Envelope) -> list[bool]:
    """Returns for each part True if it travels in the envelope; the others come as pieces."""
    return _inline(_sizes(envelope))


def _sizes(envelope: Envelope) -> list[int]:
    parts = parts_of(envelope)
    return [part.nbytes if type(part) is memoryview else len(part) for part in parts]


def _inline(sizes: Sequence[int]) -> list[bool]:
    if sum(sizes) <= INLINE_BYTES:
        return [True] * len(sizes)
    left = INLINE_TOTAL
    inline = []
    for size in sizes:
        fits = size <= INLINE_BYTES and size <= left
        left -= size if fits else 0
        inline.append(fits)
    return inline


def measure(envelope: Envelope, limits: DecodeLimits = DEFAULT_LIMITS) -> tuple[int, bool]:
    """Returns the bytes of an envelope in a frame, about, and True if all of it travels there.

    Parts that come as pieces are not counted.

    Raises:
        EncodeError: Its parts are bigger than a receiver with these limits accepts.
    """
    fields = ENVELOPE_BYTES
    if envelope.headers:
        fields += sum(map(len, envelope.headers)) + sum(map(len, envelope.headers.values()))
    sizes = _sizes(envelope)
    if (total := sum(sizes)) > limits.message_bytes:
        raise EncodeError(
            f"an envelope of kind {envelope.kind!r} is too big (bytes: {total}, at most "
            f"{limits.message_bytes}); send less in one call, or raise Limits.message_bytes at "
            "both ends"
        )
    if (most := max(sizes[:2])) > limits.document_bytes:
        raise EncodeError(
            f"the document of an envelope of kind {envelope.kind!r} is too big (bytes: {most}, at "
            f"most {limits.document_bytes}); send arrays in place of long lists, or raise "
            "Limits.document_bytes at both ends"
        )
    inline = _inline(sizes)
    within = sum([size for size, fits in zip(sizes, inline, strict=True) if fits])
    return fields + _PART_OVERHEAD * len(envelope.buffers) + within, all(inline)


def pack_frame(frame: Frame) -> bytes:
    """Turns a frame into the bytes of one write; big parts are announced, not contained."""
    packed = pb.Frame()
    packed.receipt = frame.receipt
    lent = {} if (lending := frame.lending) is None else lending.lent
    for envelope in frame.envelopes:
        _pack_envelope(packed.envelopes.add(), envelope, lent.get(envelope.number, ()))
    if (beat := frame.heartbeat) is not None:
        packed.heartbeat.sent, packed.heartbeat.echo = beat.sent, beat.echo
        packed.heartbeat.lag, packed.heartbeat.busy = beat.lag, beat.busy
        packed.heartbeat.chunks = beat.chunks
    if frame.goodbye is not None:
        packed.goodbye.SetInParent()
        packed.goodbye.reason = frame.goodbye
    if frame.lending is not None:
        pack_lending(packed.lending, frame.lending)
    if frame.laneless is not None:
        packed.laneless.SetInParent()
        packed.laneless.chunk = frame.laneless
    return packed.SerializeToString()


def _pack_envelope(packed: pb.Envelope, envelope: Envelope, lent: Collection[int]) -> None:
    """Sets the fields without defaults, one at a time, which costs half of keyword arguments."""
    packed.number = envelope.number
    packed.kind = envelope.kind
    packed.call = envelope.call
    if envelope.reply:
        packed.reply = True
    if envelope.depth:
        packed.depth = envelope.depth
    if (left := envelope.time_left) != math.inf:
        packed.time_left = left if left > _SHORTEST_TIME else _SHORTEST_TIME
    if envelope.headers:
        for name, value in envelope.headers.items():
            packed.headers[name] = value
    document, externals, buffers = envelope.document, envelope.externals, envelope.buffers
    behind = 0
    for buffer in buffers:
        behind += buffer.nbytes if type(buffer) is memoryview else len(buffer)
    # Where neither is larger, each part fits, and so do all together.
    if lent or behind > INLINE_BYTES or len(document) + len(externals) > INLINE_BYTES:
        _pack_parts(packed, envelope, lent)
        return
    packed.document = document
    if externals:
        packed.externals = externals
    if buffers:
        sizes, places = packed.buffer_sizes, packed.buffers
        for buffer in buffers:  # they are few: one by one takes half as long as at once
            octets = bytes(buffer)
            sizes.append(len(octets))
            places.append(octets)


def _pack_parts(packed: pb.Envelope, envelope: Envelope, lent: Collection[int]) -> None:
    """Sets the parts of an envelope that has big or lent parts."""
    sizes = _sizes(envelope)
    inline = [fits and part not in lent for part, fits in enumerate(_inline(sizes))]
    if inline[0]:
        packed.document = envelope.document
    else:
        packed.document_size = sizes[0]
    if inline[1]:
        packed.externals = envelope.externals
    else:
        packed.externals_size = sizes[1]
    placed = zip(envelope.buffers, inline[2:], strict=True)
    packed.buffer_sizes.extend(sizes[2:])
    packed.buffers.extend([bytes(buffer) if fits else b"" for buffer, fits in placed])


def unpack_frame(data: bytes, limits: DecodeLimits = DEFAULT_LIMITS) -> Frame:
    """Reads one write.

    In-line buffers arrive as writable `bytearray`s of their own. Nothing is allocated for parts
    that are only announced.

    Raises:
        DecodeError: The bytes are not a frame, or the frame breaks the protocol.
    """
    try:
        outline = pb.FrameOutline.FromString(data) if len(data) > _COUNTED_SIZE else None
        if outline is not None and len(outline.envelopes) > MAX_ENVELOPES:
            raise DecodeError(f"a frame of more than {MAX_ENVELOPES} envelopes")
        packed = pb.Frame.FromString(data)
    except (ProtobufError, UnicodeDecodeError, TypeError) as error:
        raise DecodeError(f"not a frame ({len(data)} bytes): {error}") from error
    awaited: dict[int, dict[int, int]] = {}
    envelopes: list[Envelope] = []
    for entry in packed.envelopes[:]:  # a slice is a list, which is cheaper to go through
        envelopes.append(_unpack_envelope(entry, limits, awaited))  # noqa: PERF401 - one call less
    if awaited and len({each.number for each in envelopes}) < len(envelopes):
        raise DecodeError("two envelopes of one number, of which one has big parts")
    frame = Frame(envelopes, packed.receipt, None, None, awaited)
    if packed.HasField("heartbeat"):
        beat = packed.heartbeat
        values = (beat.sent, beat.echo, beat.lag)
        if not all(map(math.isfinite, values)):
            raise DecodeError(f"a heartbeat with times that are no numbers: {values}")
        frame.heartbeat = Heartbeat(*values, busy=beat.busy, chunks=beat.chunks)
    if packed.HasField("lending"):
        frame.lending = unpack_lending(packed.lending, awaited)
    if packed.HasField("goodbye"):
        frame.goodbye = packed.goodbye.reason
    if packed.HasField("laneless"):
        frame.laneless = packed.laneless.chunk
    return frame


def _unpack_envelope(
    packed: pb.Envelope, limits: DecodeLimits, awaited: dict[int, dict[int, int]]
) -> Envelope:
    """Reads one envelope; adds its parts that are still to come to `awaited`."""
    kind, time_left = packed.kind, packed.time_left
    if not kind or len(kind) > MAX_KIND_LENGTH:
        raise DecodeError(f"an envelope of kind {kind[:MAX_KIND_LENGTH]!r}")
    if not 0.0 <= time_left < math.inf:
        raise DecodeError(f"an envelope of kind {kind!r} with {time_left} s left")
    number, document, externals = packed.number, packed.document, packed.externals
    headers = packed.headers  # testing for truth is five times cheaper than iterating, as below
    buffers: list[Buffer] = []
    if packed.buffer_sizes or packed.document_size or packed.externals_size:
        sizes, octets = packed.buffer_sizes[:], packed.buffers[:]
        texts = (document, packed.document_size), (externals, packed.externals_size)
        if texts[0][1] or texts[1][1] or list(map(len, octets)) != sizes:  # not all is here
            awaited[number] = _announced(kind, texts, sizes, octets, limits)
        buffers.extend(map(bytearray, octets))
    elif packed.buffers:
        raise DecodeError(f"an envelope of kind {kind!r} with buffers that it does not announce")
    return Envelope(
        kind,
        packed.call,
        packed.reply,
        time_left or math.inf,
        packed.depth,
        document,
        externals,
        {name: headers[name] for name in headers} if headers else {},
        buffers,
        number,
    )


def _announced(
    kind: str,
    texts: Sequence[tuple[bytes, int]],
    sizes: Sequence[int],
    buffers: Sequence[bytes],
    limits: DecodeLimits,
) -> dict[int, int]:
    """Checks the parts that are here; returns those still to come, with their sizes."""
    awaited: dict[int, int] = {}
    for part, (text, size) in enumerate(texts):
        if size and text:
            raise DecodeError(f"an envelope of kind {kind!r} has part {part} and announces it too")
        if size > limits.document_bytes:
            raise DecodeError(
                f"an envelope of kind {kind!r} announces a document of {size} bytes; at most "
                f"{limits.document_bytes} may come (Limits.document_bytes)"
            )
        if size:
            awaited[part] = size
    if len(sizes) != len(buffers):
        raise DecodeError(
            f"an envelope of kind {kind!r} announces {len(sizes)} buffers and has {len(buffers)}"
        )
    for part, (size, buffer) in enumerate(zip(sizes, buffers, strict=True), start=2):
        if buffer and len(buffer) != size:
            raise DecodeError(
                f"an envelope of kind {kind!r} announces {size} bytes for part {part} and has"
                f" {len(buffer)}"
            )
        if size and not buffer:
            awaited[part] = size
    if (total := sum(awaited.values())) > limits.message_bytes:
        raise DecodeError(
            f"an envelope of kind {kind!r} announces {total} bytes; at most {limits.message_bytes}"
            " may come (Limits.message_bytes)"
        )
    return awaited
