"""Objects as buffers that a link can send: a head, then the bytes of each array.

head: number of buffers that follow (4 bytes), length of the document (8 bytes), document, externals

In place of an object that cannot travel goes the error, with a number of buffers that none has.
"""

from __future__ import annotations

import struct
from typing import TypeAlias

from telegrad.collectives.link import Link
from telegrad.errors import DecodeError, EncodeError
from telegrad.rpc import RRef
from telegrad.rpc.seams import decode_error, project_function
from telegrad.wire import (
    Buffer,
    copy_of,
    decode,
    describe,
    encode,
    encode_exception,
    rebuild,
)

Packed: TypeAlias = list[Buffer]

_HEAD = struct.Struct("<IQ")
_FAILED = 2**32 - 1


def pack(value: object, name: str) -> Packed:
    """Encodes a value as it is now; nothing refers to its memory afterwards.

    Args:
        value: The value.
        name: Its name in errors.

    Raises:
        EncodeError: Something in it cannot travel.

    >>> unpack(pack({"a": (1, None)}, "obj"))
    {'a': (1, None)}
    """
    encoded = encode(value, name=name)
    if any(isinstance(each, RRef) for each in encoded.externals):
        raise EncodeError(
            f"{name} cannot travel: it holds an RRef, whose holders are counted in calls alone; "
            "pass it to rpc.rpc_sync, or publish the object",
            path=name,
        )
    externals, buffers = describe(encoded.externals)
    head = _HEAD.pack(len(buffers), len(encoded.document))
    return [b"".join([head, encoded.document, externals]), *buffers]


def unpack(packed: Packed) -> object:
    """Decodes a value; its arrays may use the memory of the buffers.

    Raises:
        DecodeError: The bytes are something else, or name what may not be built here.
        Exception: The error in place of the value, if there is one.

    >>> unpack(pack_error(ValueError("too long")))
    Traceback (most recent call last):
        ...
    ValueError: too long
    """
    head = bytes(packed[0])
    _, length = _read_head(head)
    if failed(packed):
        raise decode_error(decode(head[_HEAD.size :]))
    document, externals = head[_HEAD.size :][:length], head[_HEAD.size + length :]
    return decode(document, rebuild(externals, packed[1:]), functions=project_function)


def pack_error(error: Exception) -> Packed:
    """Returns what is sent in place of a value that cannot travel."""
    document = encode(encode_exception(error)).document
    return [b"".join([_HEAD.pack(_FAILED, len(document)), document])]


def failed(packed: Packed) -> bool:
    """Returns True if this is an error in place of a value."""
    return _read_head(packed[0])[0] == _FAILED


def copy_packed(packed: Packed) -> Packed:
    """Returns a copy to unpack, of what is also sent to others."""
    return [packed[0], *map(copy_of, packed[1:])]


def send_packed(link: Link, to: int, packed: Packed) -> None:
    """Sends a packed value; never waits."""
    for buffer in packed:
        link.send(to, buffer)


async def receive_packed(link: Link, source: int) -> Packed:
    """Waits for a packed value from a rank; raises DecodeError if it sends something else."""
    head = await link.receive(source)
    count, _ = _read_head(head)
    if count == _FAILED:
        return [head]
    return [head, *[await link.receive(source) for _ in range(count)]]


def _read_head(head: Buffer) -> tuple[int, int]:
    if memoryview(head).nbytes < _HEAD.size:
        raise DecodeError(f"a packed object begins with {memoryview(head).nbytes} bytes")
    count, length = _HEAD.unpack_from(head)
    return count, length
