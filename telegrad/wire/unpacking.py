"""msgpack with bounds: lengths by the bytes that are there, depth, and items in all.

msgpack reserves what an array's header announces before it reads the items, at every level. So a
document is first walked through without building it; once it is known to be there to the end, what
all its headers reserve together is bounded by its size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgpack

from telegrad.errors import DecodeError
from telegrad.wire.limits import DecodeLimits

__all__ = ["is_small", "too_many_elements", "unpack"]

MSGPACK_DEPTH: Final = 1024  # levels that msgpack's own reader takes
# Bytes. Below, what lying lengths can reserve is too little to matter, and nothing is so deep that
# the default limit would tell.
UNCHECKED_SIZE: Final = 256
_AS_DATETIMES: Final = 3  # telegrad writes its own timestamps, other languages what they have


def is_small(size: int, limits: DecodeLimits) -> bool:
    """Tells whether a document of so many bytes is within the limits, whatever is in it."""
    return (
        size <= UNCHECKED_SIZE
        and size <= limits.depth
        and size <= limits.elements
        and size <= limits.document_bytes
    )


def _check(document: bytes, limits: DecodeLimits) -> None:
    """Walks through a document without building it."""
    size = len(document)
    if size > limits.document_bytes:
        raise DecodeError(
            f"a document of {size} bytes (at most: {limits.document_bytes}); send arrays in place "
            "of long lists, or raise Limits.document_bytes"
        )
    levels = max(0, MSGPACK_DEPTH - limits.depth)
    unpacker = msgpack.Unpacker(
        max_buffer_size=size + levels,
        max_str_len=size,
        max_bin_len=size,
        max_array_len=min(size, limits.elements),
        max_map_len=min(size, limits.elements),
        max_ext_len=size,
    )
    unpacker.feed(b"\x91" * levels)  # a list around a list: what is left is what it may take
    unpacker.feed(document)
    try:
        unpacker.skip()
    except msgpack.StackError as error:
        raise DecodeError(
            f"a document nested deeper than {limits.depth} levels (Limits.depth)"
        ) from error


def unpack(
    document: bytes,
    limits: DecodeLimits,
    *,
    extension: Callable[[int, bytes], object] = msgpack.ExtType,
    array: Callable[[list[Any]], object] | None = None,
    mapping: Callable[[dict[Any, Any]], object] | None = None,
) -> Any:
    """Builds a document, once it is known to be one that the limits allow.

    Args:
        document: What to read.
        limits: Its bounds.
        extension: Makes something of an extension's code and payload.
        array: Takes the place of each array, innermost first.
        mapping: Takes the place of each map.

    Raises:
        DecodeError: It is larger or deeper than the limits allow.
        Exception: Whatever msgpack makes of garbage, and whatever the hooks raise.
    """
    size = len(document)
    if is_small(size, limits):
        return msgpack.unpackb(
            document,
            ext_hook=extension,
            list_hook=array,
            object_hook=mapping,
            unicode_errors="surrogatepass",
            timestamp=_AS_DATETIMES,
        )
    _check(document, limits)
    items = -1 if size <= limits.elements else limits.elements  # -1: as the bytes that are there
    try:
        return msgpack.unpackb(
            document,
            ext_hook=extension,
            list_hook=array,
            object_hook=mapping,
            unicode_errors="surrogatepass",
            timestamp=_AS_DATETIMES,
            max_array_len=items,
            max_map_len=items,
        )
    except ValueError as error:
        long = "max_array_len" in str(error) or "max_map_len" in str(error)
        if long and limits.elements < len(document):
            raise too_many_elements(limits) from error
        raise


def too_many_elements(limits: DecodeLimits) -> DecodeError:
    """Returns the error of a document whose containers hold too much."""
    return DecodeError(
        f"a document of more than {limits.elements} elements; send arrays in place of long lists, "
        "or raise Limits.elements"
    )
