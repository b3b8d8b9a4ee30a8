"""What a document says first, read without the rest: nothing is built and no code runs.

Calls of one function begin with the same bytes, and what is read of them is the same: msgpack reads
from the front, and nothing that follows changes it. So heads are read once, and kept.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgpack

from telegrad.errors import DecodeError

__all__ = ["read_head"]

# Of a document that is looked at: twice the longest name, in UTF-8, and the path of a script.
HEAD_BYTES = 12 * 1024
HEAD_ITEMS = 64  # of a list or dict in it; msgpack reserves what a header announces
KEPT_HEADS = 1000  # functions, scripts; reading one takes 1.5 us, finding it 0.3
KEPT_BYTES = 512  # of each; longer ones are read again


def read_head(document: bytes, end: str) -> dict[str, Any]:
    """Returns the entries of a dict up to one key, as they stand in the document.

    Args:
        document: From `encode`, or from anyone.
        end: The key before which it stops.

    Returns:
        What msgpack makes of them; what is tagged stays so.

    Raises:
        DecodeError: The document is no dict, or has no such key, or too much stands before it.

    Example:
        >>> from telegrad.wire import encode
        >>> read_head(encode({"func": "math:sqrt", "args": [2.0]}).document, "args")
        {'func': 'math:sqrt'}
    """
    key = _packed(end)
    at = document.find(key, 0, KEPT_BYTES)
    if at > 0:
        try:
            return _read_kept(document[: at + len(key)], end).copy()
        except DecodeError:
            pass  # the key stands inside something else there
    return _read(document, end)


@lru_cache
def _packed(key: str) -> bytes:
    packed: bytes = msgpack.packb(key)
    return packed


@lru_cache(KEPT_HEADS)
def _read_kept(head: bytes, end: str) -> dict[str, Any]:
    return _read(head, end)


def _read(document: bytes, end: str) -> dict[str, Any]:
    unpacker = msgpack.Unpacker(
        max_buffer_size=HEAD_BYTES,
        max_array_len=HEAD_ITEMS,
        max_map_len=HEAD_ITEMS,
        unicode_errors="surrogatepass",
    )
    head: dict[str, Any] = {}
    try:
        unpacker.feed(document[:HEAD_BYTES])
        for _ in range(unpacker.read_map_header()):
            key = unpacker.unpack()
            if key == end:
                return head
            if type(key) is not str:
                break
            head[key] = unpacker.unpack()
    except Exception as error:  # whatever garbage makes msgpack raise
        raise DecodeError(f"a document that cannot be read as far as {end!r}: {error}") from error
    raise DecodeError(f"a document without {end!r}")
