"""The messages between the two ends of a stream.

    rpc.stream   {func, script, args, kwargs, stream}     a request; its one reply is the end:
    rref.stream  {rref, method, args, kwargs, stream}     {items, failure}
    rpc.item     a value, as the reply of a call has it   to the consumer
                 header "stream": [stream, number, size]
    rpc.more     [stream, taken]                          to the producer

The consumer draws the number of the stream. An item is no reply to the session, since a request
has exactly one; to the interceptors it is one, in the autograd context of the request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from telegrad.errors import DecodeError
from telegrad.rpc.call.codec import write_header
from telegrad.wire import Envelope, decode, read_body

__all__ = [
    "ITEM",
    "ITEMS_PER_TURN",
    "MORE",
    "STREAM",
    "ItemHeader",
    "StreamEnd",
    "read_item",
    "read_more",
    "read_number",
    "size_of",
    "write_item",
]

STREAM = "rpc.stream"
ITEM = "rpc.item"
MORE = "rpc.more"

HEADER = "stream"

# What is produced and read without a wait must not hold an event loop: after so many items the
# others get a turn, which takes about 10 us.
ITEMS_PER_TURN = 16


@final
@dataclass(frozen=True, slots=True)
class ItemHeader:
    """The place of an item.

    Attributes:
        stream: The number of the stream, drawn by the consumer.
        number: The place of the item, from 0.
        size: The bytes of the item, as both ends count them.
    """

    stream: int
    number: int
    size: int


@final
@dataclass(frozen=True, slots=True)
class StreamEnd:
    """The end of a stream.

    Attributes:
        items: The number of items that it had.
        failure: The error, as `rebuild_failure` takes it; None if the generator just ended.
    """

    items: int
    failure: dict[str, object] | None

    def write(self) -> dict[str, object]:
        """Returns what travels."""
        return {"items": self.items, "failure": self.failure}

    @staticmethod
    def read(body: object) -> StreamEnd:
        """Takes apart what arrived.

        Raises:
            DecodeError: It is something else.
        """
        if isinstance(body, dict):
            items, failure = body.get("items"), body.get("failure")
            known = failure is None or isinstance(failure, dict)
            if isinstance(items, int) and _is_natural(items) and known:
                return StreamEnd(items, failure)
        raise DecodeError("the end of a stream is not {items, failure}")


def size_of(envelope: Envelope) -> int:
    """Returns how much an item takes of the window, headers left out."""
    size = len(envelope.document) + len(envelope.externals)
    for buffer in envelope.buffers:
        size += memoryview(buffer).nbytes
    return size


def write_item(envelope: Envelope, header: ItemHeader) -> None:
    """Makes an item of what was sealed as a reply."""
    envelope.reply = False
    envelope.headers[HEADER] = write_header([header.stream, header.number, header.size])


def read_item(envelope: Envelope) -> ItemHeader:
    """Makes of an item what the codec opens as a reply, and says which one it is.

    Raises:
        DecodeError: It does not say.
    """
    envelope.reply = True
    header = envelope.headers.pop(HEADER, None)
    parts = decode(header, ()) if header is not None else None
    if isinstance(parts, list) and len(parts) == 3 and all(map(_is_natural, parts)):
        return ItemHeader(*parts)
    raise DecodeError("an item of a stream does not say [stream, number, size]")


def read_number(payload: object) -> int:
    """Returns what the consumer calls the stream that it asks for.

    Raises:
        DecodeError: It does not say.
    """
    number = payload.get("stream") if isinstance(payload, dict) else None
    if isinstance(number, int) and _is_natural(number):
        return number
    raise DecodeError("a request for a stream does not say which stream it is")


def read_more(envelope: Envelope) -> tuple[int, int]:
    """Returns which stream is meant, and how many of its items were taken.

    Raises:
        DecodeError: It does not say.
    """
    body = read_body(envelope)
    if isinstance(body, list) and len(body) == 2 and all(map(_is_natural, body)):
        return body[0], body[1]
    raise DecodeError("the body of rpc.more is not [stream, taken]")


def _is_natural(value: object) -> bool:
    return type(value) is int and value >= 0
