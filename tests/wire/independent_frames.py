"""Reads handshakes, frames and chunks by docs/wire-format.md alone: no line of telegrad is run here.

Of protobuf only what stands in its description of the wire is used, and no generated message.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Iterator
from typing import Any, TypeAlias

import msgpack

# -- protobuf: what a message holds, by the numbers of protos/ ------------------------------------

Schema: TypeAlias = dict[int, Any]

REFUSAL: Schema = {1: ("reason", int), 2: ("words", str)}
PROOF: Schema = {1: ("mac", bytes), 2: ("received", int), 3: ("resumes", bool)}
HELLO: Schema = {
    1: ("oldest_version", int), 2: ("newest_version", int), 3: ("capabilities", [str]),
    4: ("job", str), 5: ("name", str), 6: ("rank", "zigzag"), 7: ("incarnation", int),
    8: ("nonce", bytes), 9: ("purpose", str), 10: ("expected_name", str),
    11: ("expected_incarnation", int), 12: ("stream", bytes),
}  # fmt: skip
HANDSHAKE = {b"H": HELLO, b"P": PROOF, b"W": PROOF, b"R": REFUSAL}
HEARTBEAT: Schema = {
    1: ("sent", float), 2: ("echo", float), 3: ("lag", float), 4: ("busy", int), 5: ("chunks", int),
}  # fmt: skip
FIELDS = "number", "kind", "call", "reply", "time_left", "depth", "document", "externals"
LENDING: Schema = {
    1: ("slabs", [int]), 2: ("slab_sizes", [int]), 3: ("envelopes", [int]), 4: ("parts", [int]),
    5: ("loans", [int]), 6: ("lenders", [int]), 7: ("offsets", [int]), 8: ("returned", [int]),
    9: ("dropped", [int]),
}  # fmt: skip
FRAME: Schema = {
    3: ("heartbeat", HEARTBEAT), 5: ("goodbye", {1: ("reason", str)}), 6: ("lending", LENDING),
    7: ("laneless", {1: ("chunk", bytes)}), 8: ("head", bytes), 9: ("raw", bytes),
}  # fmt: skip


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 0x80:
            return value, at


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
            yield key >> 3, value
            continue
        size, at = (8, at) if key & 7 == 1 else varint(data, at)
        assert key & 7 in (1, 2)
        assert at + size <= len(data)
        yield key >> 3, data[at : at + size]
        at += size


def one(kind: Any, raw: Any) -> Any:
    if isinstance(kind, dict):
        return message(kind, raw)
    if kind is float:
        return struct.unpack("<d", raw)[0]
    if kind == "zigzag":
        return (raw >> 1) ^ -(raw & 1)
    return raw.decode() if kind is str else kind(raw)


def message(schema: Schema, data: bytes) -> dict[str, Any]:
    """Returns the fields that stand in a message, by name."""
    found: dict[str, Any] = {}
    for number, raw in fields(data):
        name, kind = schema[number]
        if not isinstance(kind, list):
            found[name] = one(kind, raw)
        elif kind == [int] and isinstance(raw, bytes):  # packed
            at = 0
            while at < len(raw):
                value, at = varint(raw, at)
                found.setdefault(name, []).append(value)
        else:
            found.setdefault(name, []).append(one(kind[0], raw))
    return found


def frame(data: bytes) -> dict[str, Any]:
    """Returns what is in a frame; a part that comes in pieces is shown as its size."""
    found = message(FRAME, data)
    raw, items = found.pop("raw", b""), msgpack.unpackb(found.pop("head"))
    found["receipt"], *items = items
    while items:
        envelope = dict(zip(FIELDS, items, strict=False))
        named, several = items[8:10]
        sizes, pairs = items[10 : 10 + several], items[10 + several : 10 + several + 2 * named]
        del items[: 10 + several + 2 * named]
        if several:
            envelope["buffers"] = []
        for size in sizes:
            envelope["buffers"].append(raw[:size] if size >= 0 else -size)
            raw = raw[max(size, 0) :]
        if named:
            envelope["headers"] = dict(zip(pairs[::2], pairs[1::2], strict=True))
        found.setdefault("envelopes", []).append(envelope)
    assert not raw
    return found


# -- the handshake and what follows from it -------------------------------------------------------


def transcript(dialler: bytes, listener: bytes) -> bytes:
    return struct.pack(">I", len(dialler)) + dialler + listener


def stream_key(token: bytes, role: bytes, hellos: bytes) -> bytes:
    return hmac.digest(token, b"telegrad key|" + role + b"|" + hellos, "sha256")


def stream_id(token: bytes | None, hellos: bytes) -> bytes:
    text = b"telegrad stream|" + hellos
    return hashlib.sha256(text).digest() if token is None else hmac.digest(token, text, "sha256")


def mac(
    token: bytes | None,
    role: bytes,
    purpose: bytes,
    told: dict[str, Any],
    hellos: bytes,
    binding: bytes,
) -> bytes:
    if token is None:
        return b""
    covered = b"tls|" + binding + b"|" + hellos if binding else hellos
    resumption = b"%d,%d" % (told.get("received", 0), told.get("resumes", False))
    return hmac.digest(token, b"|".join((role, purpose, resumption, covered)), "sha256")


def tag(key: bytes, counter: int, payload: bytes) -> bytes:
    return hashlib.blake2b(struct.pack(">Q", counter) + payload, key=key, digest_size=16).digest()


def chunk(data: bytes) -> dict[str, Any]:
    sequence, number, part, offset = struct.unpack_from(">QQIQ", data)
    return {
        "sequence": sequence, "number": number, "part": part, "offset": offset,
        "data": data[28:].hex(),
    }  # fmt: skip
