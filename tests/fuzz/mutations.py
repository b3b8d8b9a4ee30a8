"""Inputs made from others by a seeded generator: the same seed, the same inputs."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import msgpack

from telegrad.wire.document import Tag
from tests.fuzz.parts import join, split

__all__ = ["inputs"]

MOST_BYTES = 100_000
TAGS = [msgpack.packb(msgpack.ExtType(tag, b"")) for tag in Tag]
# What readers trip over: lengths that lie, tags, the ends of number ranges, names.
TOKENS = (
    *TAGS,
    b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdc\xff\xff", b"\xc6\xff\xff\xff\xff",
    b"\xdb\x7f\xff\xff\xff", b"\xc9\xff\xff\xff\xff\x02", b"\x91" * 40, b"\x81\xa1a" * 40,
    b"\x92\xc7\x00\x20" * 30, b"\x92\xc7\x00\x22" * 300, b"\xc7\x09\x02" + b"\xff" * 9, b"\xd6\x01\0\0\0\0",
    b"\xd6\x01\0\0\0\x01", b"\xd3\x80\0\0\0\0\0\0\0", b"\xcf" + b"\xff" * 8, b"\xcb\x7f\xf8" + bytes(6),
    b"\xa2|O", b"\xa3<f8", b"\xa3|V0", b"\xa3sub", b"\xa6struct", b"\xa2ml", b"\xa9os:system",
    b"\xc7\x09\x08os:system", b"\xadbuiltins:eval", b"\xb3tests.wire.samples:", b"\xc7\x12\x09../../../etc/hosts",
    b"\x0a\x00", b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x52\x09" + b"\xff" * 8 + b"\x01", b"\x5a\x00",
    b"\x12\x01a", b"\x4a\x06\x0a\x01a\x12\x01b", bytes(8), b"\xff" * 8, b"H", b"P", b"W", b"R", b"",
)  # fmt: skip
NAMES = (
    "builtins:ValueError", "builtins:int", "os:environ", "tests.wire.samples:Point",
    "tests.wire.samples:Color", "tests.wire.samples:Pair", "tests.wire.samples:Access",
    "tests.wire.samples:OddError", "csr_array", "coo_matrix", "RED", "x", "y", "tags", "", "a" * 40,
)  # fmt: skip


def inputs(corpus: Sequence[bytes], seed: int, *, parts: bool, trees: bool) -> Iterator[bytes]:
    """Yields inputs without an end.

    Args:
        corpus: What to begin with.
        seed: Of the generator.
        parts: Whether inputs are joined parts, of which one is then changed at a time.
        trees: Whether the last part is a msgpack document, which is then also made from nothing.
    """
    rng = random.Random(seed)
    while True:
        made = rng.choice(corpus)
        if not parts:
            yield _changed(rng, made, corpus)
            continue
        pieces = split(made)
        if trees and rng.random() < 0.4:
            pieces[-1] = msgpack.packb(_tree(rng, 4), unicode_errors="surrogatepass")
        elif rng.random() < 0.1:
            pieces.insert(rng.randrange(len(pieces) + 1), rng.choice(split(rng.choice(corpus))))
        else:
            at = rng.randrange(len(pieces))
            pieces[at] = _changed(rng, pieces[at], corpus)
        made = join(*pieces)
        yield made if rng.random() < 0.98 else _changed(rng, made, corpus)


def _changed(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        at = rng.randrange(len(changed) + 1)
        end = min(len(changed), at + rng.choice((1, 2, 4, 30)))
        how = rng.randrange(8)
        if how == 0 and at < len(changed):
            changed[at] = rng.randrange(256)
        elif how == 1 and at < len(changed):
            changed[at] ^= 1 << rng.randrange(8)
        elif how == 2:
            del changed[at:end]
        elif how == 3:
            changed[at:at] = rng.randbytes(rng.choice((1, 2, 5)))
        elif how == 4:
            changed[at:at] = changed[at:end] * rng.choice((1, 2, 50))
        elif how == 5:
            changed[at:at] = rng.choice(TOKENS)
        elif how == 6:
            token = rng.choice(TOKENS)
            changed[at : at + len(token)] = token
        else:
            other = rng.choice(corpus)
            start = rng.randrange(len(other) + 1)
            changed[at:] = other[start:]
    return bytes(changed[:MOST_BYTES])


def _tree(rng: random.Random, depth: int) -> Any:
    kind = rng.randrange(14 if depth else 9)
    if kind == 0:
        return rng.choice((None, True, False, 0, 1, -1, 2**31, 2**63, -(2**63), 0.5, float("nan")))
    if kind == 1:
        return rng.randrange(-5, 300)
    if kind == 2:
        return rng.choice(NAMES)
    if kind == 3:
        return rng.randbytes(rng.randrange(20))
    if kind in (4, 5):
        payload = rng.choice((rng.randbytes(rng.randrange(18)), bytes(4), b"\0\0\0\1"))
        return msgpack.ExtType(rng.randrange(1, 12), payload)
    if kind == 6:
        return rng.choice(("<f8", "|O", "|V0", "<U4", "|S0", "<M8[s]", "sub", "struct", "ml"))
    if kind == 7:
        return msgpack.ExtType(rng.choice(list(Tag)), b"")
    if kind == 8:
        return []
    items = [_tree(rng, depth - 1) for _ in range(rng.randrange(6))]
    if kind == 9:
        return {rng.choice(NAMES): each for each in items}
    if kind == 10:
        return items
    return [msgpack.ExtType(rng.choice(list(Tag)), b""), *items]
