"""One input of a fuzzer, cut into the several byte strings that a target takes."""

from __future__ import annotations

import struct

__all__ = ["join", "split"]

_LENGTH = struct.Struct(">H")
_REST = 0xFFFF  # in place of a length: all that is left


def join(*parts: bytes) -> bytes:
    """Puts parts into one input; the last one may be of any length."""
    head = b"".join(_LENGTH.pack(len(part)) + part for part in parts[:-1])
    return head + _LENGTH.pack(_REST) + parts[-1]


def split(data: bytes, most: int = 32) -> list[bytes]:
    """Cuts any input into parts; never fails, and undoes `join`."""
    parts: list[bytes] = []
    at = 0
    while at + _LENGTH.size <= len(data) and len(parts) < most:
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        end = len(data) if length == _REST else min(at + length, len(data))
        parts.append(data[at:end])
        at = end
        if length == _REST:
            return parts
    return [*parts, data[at:]]
