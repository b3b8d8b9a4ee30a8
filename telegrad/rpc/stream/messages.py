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

from telegrad.errors import DecodeError
from telegrad.rpc.call.codec import write_header
from telegrad.wire import Envelope, decode, read_body

STREAM = "rpc.stream"
ITEM = "rpc.item"
MORE = "rpc.more"

HEADER = "stream"

# A stream that is produced and read without a wait must not hold an event loop: after so many items
# the other tasks get a turn, which takes about 10 us.
ITEMS_PER_TURN = 16


def read_end(body: object) -> tuple[int, dict[str, object] | None]:
    """Returns the number of items that a stream had, and its error.

    Args:
        body: The reply of the request; its failure is one that `rebuild_failure` takes, or None if
            the generator just ended.

    Raises:
        DecodeError: It is something else.
    """
    if isinstance(body, dict):
        items, failure = body.get("items"), body.get("failure")
        known = failure is None or isinstance(failure, dict)
        if isinstance(items, int) and _is_natural(items) and known:
            return items, failure
    raise DecodeError("the end of a stream is not {items, failure}")


def size_of(envelope: Envelope) -> int:
    """Returns the bytes that an item takes of the window, headers left out."""
    return len(envelope.document) + envelope.beside()


def write_item(envelope: Envelope, stream: int, number: int, size: int) -> None:
    """Makes an item of what was sealed as a reply.

    Args:
        envelope: The sealed value.
        stream: The number of the stream, drawn by the consumer.
        number: The place of the item, from 0.
        size: The bytes of the item, as both ends count them.
    """
    envelope.reply = False
    envelope.headers[HEADER] = write_header([stream, number, size])


def read_item(envelope: Envelope) -> tuple[int, int, int]:
    """Makes of an item what the codec opens as a reply; returns its stream, number and size.

    Raises:
        DecodeError: It does not say.
    """
    envelope.reply = True
    header = envelope.headers.pop(HEADER, None)
    stream, number, size = _naturals(None if header is None else decode(header, ()), 3, "an item")
    return stream, number, size


def read_number(payload: object) -> int:
    """Returns what the consumer calls the stream that it asks for.

    Raises:
        DecodeError: It does not say.
    """
    said = [payload.get("stream")] if isinstance(payload, dict) else None
    return _naturals(said, 1, "a request")[0]


def read_more(envelope: Envelope) -> tuple[int, int]:
    """Returns which stream is meant, and how many of its items were taken.

    Raises:
        DecodeError: It does not say.
    """
    stream, taken = _naturals(read_body(envelope), 2, "rpc.more")
    return stream, taken


def _naturals(value: object, count: int, what: str) -> list[int]:
    if not isinstance(value, list) or len(value) != count or not all(map(_is_natural, value)):
        raise DecodeError(f"{what} of a stream does not say {count} numbers from 0")
    return value


def _is_natural(value: object) -> bool:
    return type(value) is int and value >= 0
