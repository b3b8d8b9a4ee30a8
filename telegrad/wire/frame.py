"""Frames to bytes and back: a frame is the content of one write on a control stream.

A frame begins with its head, one flat msgpack list, and the bytes of buffers stand behind that:

    [receipt,
     number, kind, call, reply, time_left, depth, document, externals, headers, buffers,
     size, ...,  name, header, ...,                                # of that envelope
     number, kind, ...]

Both are fields of a protobuf message that holds the rest. A frame without a rest is written and
read by hand, in half the time that protobuf takes to build its objects. The list has no containers,
which take many times their bytes.

An envelope has parts: 0 its document, 1 its externals, 2 and up its buffers. Small parts travel
in-line; the others are only announced, and come as pieces (`telegrad.wire.pieces`): on bulk lanes,
or as chunks of later frames where no lane can be opened.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import msgpack
from google.protobuf.message import DecodeError as ProtobufError

from telegrad import pb
from telegrad.errors import DecodeError, EncodeError
from telegrad.wire.document import DEFAULT_LIMITS, UNCHECKED_SIZE, DecodeLimits
from telegrad.wire.envelope import Buffer, Envelope
from telegrad.wire.lending import FIRST_BUFFER, Lending, pack_lending, unpack_lending

INLINE_BYTES = 64 * 2**10  # a larger part is cheaper as a piece: its bytes are not held twice
INLINE_TOTAL = 256 * 2**10  # per envelope; a quarter of a write, so that control is not held up
MAX_KIND_LENGTH = 100  # characters; kinds are `package.verb`

ENVELOPE_BYTES = 64  # bytes of an envelope's own fields, about; only for filling writes
_PART_OVERHEAD = 16  # bytes that announcing a part takes at most
# The places of an envelope's own fields, from the first and from the last.
_ENVELOPE_FIELDS: Final = 10
_DOCUMENT, _EXTERNALS, _HEADERS, _BUFFERS = -4, -3, -2, -1
# Of one write. At 64 bytes for an envelope and 16 for a part, ours fill a write with half as many.
MAX_ITEMS: Final = 340 * 2**10

# The first bytes of protobuf's fields `head` and `raw`.
_HEAD: Final = (pb.Frame.HEAD_FIELD_NUMBER << 3 | 2).to_bytes()
_RAW: Final = (pb.Frame.RAW_FIELD_NUMBER << 3 | 2).to_bytes()

_INF: Final = math.inf
_MOST_DEPTH: Final = 2**32
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
    return _inline(_sizes(parts_of(envelope)))


def _sizes(parts: Iterable[Buffer]) -> list[int]:
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
    sizes = _sizes(parts_of(envelope))
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
    fields: list[object] = [frame.receipt]
    raw: list[Buffer] = []
    behind = 0
    lending = frame.lending
    for envelope in frame.envelopes:
        document, externals, left = envelope.document, envelope.externals, envelope.time_left
        if left == _INF:
            left = 0
        elif left < _SHORTEST_TIME:
            left = _SHORTEST_TIME
        fields += (envelope.number, envelope.kind, envelope.call, envelope.reply, left,
                   envelope.depth, document, externals, 0, 0)  # fmt: skip
        if (
            envelope.buffers
            or envelope.headers
            or lending is not None
            or len(document) + len(externals) > INLINE_BYTES
        ):
            lent = () if lending is None else lending.lent.get(envelope.number, ())
            behind += _pack_more(fields, raw, envelope, lent)
    head: bytes = msgpack.packb(fields)
    alone = (
        lending is None
        and frame.heartbeat is None
        and frame.goodbye is None
        and frame.laneless is None
    )
    if alone and not raw and len(head) < 0x80:
        return _HEAD + len(head).to_bytes() + head
    parts: list[Buffer] = [_HEAD, _length(len(head)), head]
    if raw:
        parts += (_RAW, _length(behind), *raw)
    if not alone:
        parts.append(_pack_rest(frame))
    return b"".join(parts)


def _pack_rest(frame: Frame) -> bytes:
    """Returns what is in a frame beside its head and its buffers, as protobuf."""
    beat, goodbye, lending, laneless = (
        frame.heartbeat, frame.goodbye, frame.lending, frame.laneless
    )  # fmt: skip
    packed = pb.Frame()
    if beat is not None:
        packed.heartbeat.sent, packed.heartbeat.echo = beat.sent, beat.echo
        packed.heartbeat.lag, packed.heartbeat.busy = beat.lag, beat.busy
        packed.heartbeat.chunks = beat.chunks
    if goodbye is not None:
        packed.goodbye.SetInParent()
        packed.goodbye.reason = goodbye
    if lending is not None:
        pack_lending(packed.lending, lending)
    if laneless is not None:
        packed.laneless.SetInParent()
        packed.laneless.chunk = laneless
    return packed.SerializeToString()


def _length(size: int) -> bytes:
    """Returns a length as protobuf writes it."""
    octets = bytearray()
    while size >= 0x80:
        octets.append(size & 0x7F | 0x80)
        size >>= 7
    octets.append(size)
    return bytes(octets)


def _pack_more(
    fields: list[object], raw: list[Buffer], envelope: Envelope, lent: Collection[int]
) -> int:
    """Adds what an envelope has beside its fields, and announces its big and lent parts.

    Returns:
        The bytes of those buffers that are not announced.
    """
    buffers, sizes, behind = envelope.buffers, [], 0
    for buffer in buffers:  # they are few; a comprehension is a call of its own
        sizes.append(size := buffer.nbytes if type(buffer) is memoryview else len(buffer))
        behind += size
    fields[_HEADERS], fields[_BUFFERS] = len(envelope.headers), len(sizes)
    texts = len(envelope.document), len(envelope.externals)
    if not lent and behind <= INLINE_BYTES >= sum(texts):  # then all fit together, too
        raw += buffers
    else:
        inline = [fits and k not in lent for k, fits in enumerate(_inline([*texts, *sizes]))]
        for k, place in enumerate((_DOCUMENT, _EXTERNALS)):
            if not inline[k]:
                fields[place] = texts[k]
        for k, fits in enumerate(inline[FIRST_BUFFER:]):
            if fits:
                raw.append(buffers[k])
            else:
                behind -= sizes[k]
                sizes[k] = -sizes[k]
    fields += sizes
    for header in envelope.headers.items():
        fields += header
    return behind


def unpack_frame(data: bytes, limits: DecodeLimits = DEFAULT_LIMITS) -> Frame:
    """Reads one write.

    In-line buffers arrive as writable `bytearray`s of their own. Nothing is allocated for parts
    that are only announced.

    Raises:
        DecodeError: The bytes are not a frame, or the frame breaks the protocol.
    """
    raw: Buffer = b""
    packed = None
    try:
        if data[:1] == _HEAD and data[1] == len(data) - 2 < 0x80:  # a short head alone
            fields = msgpack.unpackb(data[2:])
        else:
            head, raw, at = _outline(data)
            if at < len(data):  # the rest, or these two in another order
                packed = pb.Frame.FromString(data[at:])
                head, raw = packed.head or head, packed.raw or raw
            fields = msgpack.unpackb(head) if len(head) <= UNCHECKED_SIZE else _items(head)
        frame = _unpack_head(fields, raw, limits)
    except DecodeError:
        raise
    except (ValueError, TypeError, LookupError, ProtobufError, msgpack.UnpackException) as error:
        raise DecodeError(f"not a frame ({len(data)} bytes): {error}") from error
    if packed is not None:
        _unpack_news(frame, packed)
    return frame


def _outline(data: bytes) -> tuple[Buffer, Buffer, int]:
    """Returns the head and the buffers with which a frame begins, and where they end."""
    found: list[Buffer] = []
    at = 0
    for tag in (_HEAD, _RAW):
        size = 0
        if data[at : at + 1] == tag:
            for shift in range(0, 35, 7):
                at += 1
                size |= (data[at] & 0x7F) << shift
                if data[at] < 0x80:
                    break
            at += 1
        if at + size > len(data):
            raise DecodeError(f"a field of {size} bytes in a frame of {len(data)}")
        found.append(memoryview(data)[at : at + size])
        at += size
    return found[0], found[1], at


def _items(head: Buffer) -> Any:
    """Returns the items of a head that is not among the smallest.

    At every level msgpack reserves the length that an array announces before it reads the items.
    So these are read without arrays.
    """
    unpacker = msgpack.Unpacker(max_buffer_size=len(head), max_array_len=0, max_map_len=0)
    unpacker.feed(head)
    count = unpacker.read_array_header()
    if count > MAX_ITEMS:
        raise DecodeError(f"a frame of more than {MAX_ITEMS} items")
    items = list(islice(unpacker, count))
    if len(items) != count or unpacker.tell() != len(head):
        raise DecodeError(f"a frame of {count} items that holds {len(items)}, or more")
    return items


def _unpack_news(frame: Frame, packed: pb.Frame) -> None:
    """Reads what is in a frame beside its envelopes."""
    if packed.HasField("heartbeat"):
        beat = packed.heartbeat
        values = (beat.sent, beat.echo, beat.lag)
        if not all(map(math.isfinite, values)):
            raise DecodeError(f"a heartbeat with times that are no numbers: {values}")
        frame.heartbeat = Heartbeat(*values, busy=beat.busy, chunks=beat.chunks)
    if packed.HasField("lending"):
        frame.lending = unpack_lending(packed.lending, frame.awaited)
    if packed.HasField("goodbye"):
        frame.goodbye = packed.goodbye.reason
    if packed.HasField("laneless"):
        frame.laneless = packed.laneless.chunk


def _unpack_head(fields: Any, raw: Buffer, limits: DecodeLimits) -> Frame:
    """Returns the receipt and the envelopes of a head, with the buffers behind it."""
    if type(fields) is not list or type(fields[0]) is not int or fields[0] < 0:
        raise DecodeError("a frame that does not begin with a receipt")
    frame = Frame([], fields[0])
    end, at, begins = len(fields), 1, 0
    while at < end:
        number, kind, call, reply, left, depth, document, externals, named, several = fields[
            at : at + _ENVELOPE_FIELDS
        ]
        at += _ENVELOPE_FIELDS
        if type(kind) is not str or not 0 < len(kind) <= MAX_KIND_LENGTH:
            raise DecodeError(f"an envelope of kind {kind!r:.{MAX_KIND_LENGTH}}")
        # What is no integer raises a TypeError, but for a boolean.
        if (
            type(number) is not int
            or number | call | depth | named | several < 0
            or depth >= _MOST_DEPTH
            or not (reply is False or reply is True)
        ):
            raise DecodeError(f"an envelope of kind {kind!r} with fields out of bounds")
        if not 0 <= left < _INF:
            raise DecodeError(f"an envelope of kind {kind!r} with {left} s left")
        buffers: list[Buffer] = []
        headers: dict[str, bytes] = {}
        if several or named or type(document) is not bytes or type(externals) is not bytes:
            sizes = fields[at : at + several]
            items = fields[at + several : at + several + 2 * named]
            at += several + 2 * named
            whole = type(document) is bytes is type(externals)
            for size in sizes:
                if type(size) is not int:
                    raise DecodeError(f"a buffer of {size!r:.100} bytes")
                ends = begins + size if size >= 0 else begins
                buffers.append(bytearray(raw[begins:ends]))
                whole &= size >= 0
                begins = ends
            headers = _headers(items) if items else {}
            if not whole:
                awaited = _announced(kind, (document, externals), sizes, limits)
                frame.awaited[number] = awaited
                document = b"" if 0 in awaited else document
                externals = b"" if 1 in awaited else externals
        frame.envelopes.append(
            Envelope(kind, call, reply, left or _INF, depth, document, externals, headers, buffers,
                     number)
        )  # fmt: skip
    if at != end:
        raise DecodeError("a frame that ends within an envelope")
    if begins != len(raw):
        raise DecodeError(f"buffers of {len(raw)} bytes for envelopes that announce {begins}")
    if frame.awaited and len({each.number for each in frame.envelopes}) < len(frame.envelopes):
        raise DecodeError("two envelopes of one number, of which one has big parts")
    return frame


def _headers(items: list[Any]) -> dict[str, bytes]:
    """Returns headers from names and values in turn."""
    names, values = items[::2], items[1::2]
    # First: whoever chooses integers chooses their hashes, and how many of them collide.
    if set(map(type, names)) != {str} or set(map(type, values)) != {bytes}:
        raise DecodeError("an envelope with headers that are no bytes")
    return dict(zip(names, values, strict=True))


def _announced(
    kind: str, texts: Sequence[bytes | int], sizes: Sequence[int], limits: DecodeLimits
) -> dict[int, int]:
    """Returns the parts that are still to come, with their sizes.

    Args:
        kind: The kind of the envelope.
        texts: Its document and its externals, or their sizes.
        sizes: The sizes of its buffers.
        limits: The limits of what may come.
    """
    awaited: dict[int, int] = {}
    for part, size in enumerate(texts):
        if isinstance(size, bytes):
            continue
        if type(size) is not int or not 0 < size <= limits.document_bytes:
            raise DecodeError(
                f"an envelope of kind {kind!r} announces a document of {size!r:.100} bytes; at "
                f"most {limits.document_bytes} may come (Limits.document_bytes)"
            )
        awaited[part] = size
    awaited |= {part: -size for part, size in enumerate(sizes, FIRST_BUFFER) if size < 0}
    if (total := sum(awaited.values())) > limits.message_bytes:
        raise DecodeError(
            f"an envelope of kind {kind!r} announces {total} bytes; at most {limits.message_bytes}"
            " may come (Limits.message_bytes)"
        )
    return awaited
