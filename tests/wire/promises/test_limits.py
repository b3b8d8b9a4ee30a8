"""What a message may ask of its reader, to the last level, element and byte."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgpack
import numpy as np
import pytest
import scipy.sparse

from telegrad import pb
from telegrad.errors import DecodeError, EncodeError
from telegrad.wire import (
    SMALL_LIMITS,
    DecodeLimits,
    Envelope,
    Frame,
    Heartbeat,
    decode,
    encode,
    measure,
    pack_frame,
    read_body,
    rebuild,
    unpack_frame,
    write_body,
)
from telegrad.wire.document import (
    COPIES,
    FEW_KEYS,
    MARKERS,
    SECONDS_AT_LEAST,
    SECONDS_PER_KEY,
    Allowance,
    Tag,
)
from telegrad.wire.encoder import MAX_DEPTH
from telegrad.wire.frame import MAX_ITEMS
from tests.wire.heads import frame_of
from tests.wire.samples import Bits

PRIME = 2**61 - 1  # every multiple of it has the hash 0
MIB = 2**20


@contextmanager
def at_most(octets: int) -> Iterator[None]:
    """Fails where Python or NumPy allocate more at once."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < octets
    finally:
        tracemalloc.stop()


def nested(levels: int) -> bytes:
    return b"\x91" * levels + b"\xc0"


# -- size, depth, elements ------------------------------------------------------------------------


def test_the_largest_document() -> None:
    limits = DecodeLimits(document_bytes=1000)
    assert decode(msgpack.packb("x" * 997), limits=limits) == "x" * 997
    with pytest.raises(DecodeError, match=r"1001 bytes \(at most: 1000\).*document_bytes"):
        decode(msgpack.packb("x" * 998), limits=limits)


@pytest.mark.parametrize("depth", [32, 255, 256, 257, 1000, 1024])
def test_the_deepest_document(depth: int) -> None:
    limits = DecodeLimits(depth=depth)
    assert decode(nested(depth), limits=limits)
    with pytest.raises(DecodeError, match=f"deeper than {depth} levels"):
        decode(nested(depth + 1), limits=limits)


def test_what_the_encoder_makes_is_never_too_deep() -> None:
    value: Any = np.dtype([("a", "f4")])
    for _ in range(MAX_DEPTH - 1):
        value = (value,)
    assert decode(encode(value).document) == value


def test_the_most_elements() -> None:
    limits = DecodeLimits(elements=1000)
    assert len(decode(msgpack.packb([0] * 1000), limits=limits)) == 1000
    halves = {"a": [0] * 499, "b": [0] * 499}
    assert decode(msgpack.packb(halves), limits=limits) == halves
    for many in ([0] * 1001, {"a": [0] * 500, "b": [0] * 499}, [{str(i): 0} for i in range(501)]):
        with pytest.raises(DecodeError, match="more than 1000 elements"):
            decode(msgpack.packb(many), limits=limits)
    strings = ["x" * 100] * 900  # more bytes than elements
    assert decode(msgpack.packb(strings), limits=limits) == strings


def test_the_most_externals() -> None:
    line = ["array", ["<f8", "C"], 0]
    with pytest.raises(DecodeError, match="more than 100 elements"):
        rebuild(msgpack.packb([line] * 200), [], limits=DecodeLimits(elements=100))


def test_elements_of_documents_inside_exceptions_count_too() -> None:
    part = [msgpack.packb([0] * 400), b"", []]
    plain: dict[str, Any] = {
        "type": "builtins:ValueError",
        "message": "",
        "attributes": {},
        "notes": [],
        "cause": None,
    }
    for parts in (2, 3):
        args = [["x", part] for _ in range(parts)]
        document = msgpack.packb([MARKERS[Tag.EXCEPTION], {**plain, "args": args}])
        error = decode(document, limits=DecodeLimits(elements=1000))
        assert (error.args[-1] == "x") == (parts == 3)  # what cannot be read is there in words


def test_a_description_of_externals_has_the_same_bounds() -> None:
    lying = (b"\xdd" + (2**20).to_bytes(4, "big")) * 1000
    with at_most(8 * MIB), pytest.raises(DecodeError, match="not a description"):
        rebuild(lying.ljust(2**20, b"\xc0"), [])
    with pytest.raises(DecodeError, match="deeper than 256 levels"):
        rebuild(nested(300), [])


@pytest.mark.parametrize("size", [100, 256, 257, 4096, MIB])
def test_lengths_that_lie_reserve_little(size: int) -> None:
    lying = (b"\xdc" + min(size, 2**16 - 1).to_bytes(2, "big")) * (size // 3)
    with at_most(MIB + 100 * size), pytest.raises(DecodeError):
        decode(lying)


def test_messages_that_are_read_on_the_loop_are_small() -> None:
    assert read_body(write_body("rpc.cancel", 7), limits=SMALL_LIMITS) == 7
    with pytest.raises(DecodeError):
        read_body(write_body("rpc.cancel", "x" * 2000), limits=SMALL_LIMITS)


# -- keys that collide ----------------------------------------------------------------------------


class Clock:
    """Seconds of the processor that go by with every look."""

    def __init__(self, seconds: float) -> None:
        self.now = 0.0
        self.seconds = seconds

    def __call__(self) -> float:
        self.now += self.seconds
        return self.now


def test_what_keys_may_cost() -> None:
    keys = list(range(100 * FEW_KEYS))
    values: set[int] = set()
    Allowance(DecodeLimits(), Clock(FEW_KEYS * SECONDS_PER_KEY)).fill(values.update, keys)
    assert values == set(keys)
    with pytest.raises(DecodeError, match="keys that collide"):
        Allowance(DecodeLimits(), Clock(SECONDS_AT_LEAST)).fill(values.update, keys)


@pytest.mark.parametrize("container", [set, frozenset, lambda keys: dict.fromkeys(keys, 0)])
def test_many_honest_keys(container: Any) -> None:
    sent = container([*range(2000), *(float(i) + 0.5 for i in range(2000)), (1, 2), None])
    arrived = decode(encode(sent).document)
    assert type(arrived) is type(sent)
    assert arrived == sent
    if type(sent) is dict:
        assert list(arrived) == list(sent)


@pytest.mark.parametrize(
    "tag", [Tag.SET, Tag.FROZENSET, Tag.DICT, Tag.ORDERED_DICT, Tag.COUNTER, Tag.DEFAULT_DICT]
)
def test_keys_that_collide_are_given_up(tag: Tag, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("telegrad.wire.document.SECONDS_AT_LEAST", 0.01)
    numbers = [k * PRIME for k in range(8, 20_008)]
    assert len(set(map(hash, numbers))) == 1
    items: list[Any] = [
        msgpack.ExtType(Tag.BIG_INT, each.to_bytes(each.bit_length() // 8 + 1, "little"))
        for each in numbers
    ]
    if tag not in (Tag.SET, Tag.FROZENSET):
        items = [part for item in items for part in (item, 1)]
    factory = [None] if tag is Tag.DEFAULT_DICT else []
    with pytest.raises(DecodeError, match="keys that collide"):
        decode(msgpack.packb([MARKERS[tag], *factory, *items]))


# -- what is copied, or kept ----------------------------------------------------------------------


def test_bytes_that_are_copied_many_times() -> None:
    octets = np.zeros(2 * MIB, np.uint8)
    once = [MARKERS[Tag.BIG_BYTEARRAY], msgpack.ExtType(Tag.EXTERNAL, bytes(4))]
    assert len(decode(msgpack.packb([once] * COPIES), [octets])) == COPIES
    with at_most((COPIES + 2) * octets.nbytes), pytest.raises(DecodeError, match="many values"):
        decode(msgpack.packb([once] * 1000), [octets])


def test_sparse_arrays_that_share_their_parts_for_ever() -> None:
    array = scipy.sparse.csr_array(np.eye(300))
    encoded = encode([array] * 3)
    assert len(decode(encoded.document, encoded.externals)) == 3
    lines = msgpack.unpackb(encoded.document, ext_hook=msgpack.ExtType)
    with pytest.raises(DecodeError, match="too many sparse arrays"):
        decode(msgpack.packb(lines[:1] * 1000), encoded.externals)


def test_indices_that_scipy_makes_narrower_count_as_copies() -> None:
    parts: list[object] = [np.ones(2), np.zeros(2, int), np.minimum(np.arange(50_001), 2)]
    plain = [MARKERS[Tag.SPARSE], "csr_matrix", [50_000, 3]]
    plain += [msgpack.ExtType(Tag.EXTERNAL, i.to_bytes(4, "big")) for i in range(3)]
    with pytest.raises(DecodeError, match="many values"):
        decode(msgpack.packb([plain] * 50), parts)


def test_indices_of_sparse_arrays_are_integers() -> None:
    parts: list[object] = [np.ones(1), np.zeros(1, complex), np.arange(2)]
    plain = [MARKERS[Tag.SPARSE], "csr_array", [1, 3]]
    plain += [msgpack.ExtType(Tag.EXTERNAL, i.to_bytes(4, "big")) for i in range(3)]
    with pytest.raises(DecodeError, match="no integers"):
        decode(msgpack.packb(plain), parts)


def test_combinations_of_flags_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def combined(value: int) -> Any:
        return decode(msgpack.packb([MARKERS[Tag.FLAG], "tests.wire.samples:Bits", value]))

    assert combined(2**10) == Bits(2**10)
    assert combined(3) == Bits.A | Bits.B
    monkeypatch.setattr("telegrad.wire.values.class_types.MOST_COMBINATIONS", 50)
    with pytest.raises(DecodeError, match="50 combinations here already"):
        for value in range(2**11, 2**11 + 50):
            combined(value)
    assert combined(3) == Bits.A | Bits.B


def test_what_is_wrong_in_a_large_document_is_said_without_a_path() -> None:
    wrong = ["x" * 2 * MIB, [MARKERS[Tag.DATE], 1]]
    with at_most(20 * MIB), pytest.raises(DecodeError, match="3 integers") as caught:
        decode(msgpack.packb(wrong))
    assert "at value" not in str(caught.value)


def test_keys_as_long_as_the_document_do_not_fill_the_error() -> None:
    wrong: Any = [MARKERS[Tag.DATE], 1]
    for _ in range(20):
        wrong = {"k" * 10_000: wrong}
    with pytest.raises(DecodeError) as caught:
        decode(msgpack.packb(wrong))
    assert len(str(caught.value)) < 2000


# -- frames ---------------------------------------------------------------------------------------


def test_the_most_envelopes_of_a_write() -> None:
    tiny = [1, "a", 0, False, 0, 0, b"", b"", 0, 0]
    most = MAX_ITEMS // len(tiny) - 1
    assert len(unpack_frame(frame_of([0, *tiny * most])).envelopes) == most
    above = frame_of([0, *tiny * (most + 2)])
    with at_most(MIB), pytest.raises(DecodeError, match=f"more than {MAX_ITEMS} items"):
        unpack_frame(above)
    for garbage in (b"\xff" * 70_000, b"\x42\xff" * 40_000, b"\x0b" + bytes(70_000)):
        with at_most(2 * MIB), pytest.raises(DecodeError):
            unpack_frame(garbage)


@pytest.mark.parametrize("size", [200, 70_000])
@pytest.mark.parametrize(
    "head", [b"\xdd\x00\x00\xff\xff", b"\xdc\x00\xf0", b"\xdf\x00\x00\xff\xff"]
)
def test_lists_in_lists_take_no_memory(head: bytes, size: int) -> None:
    """At every level msgpack reserves the length that is announced."""
    nested = head * (size // len(head))
    frame = b"\x42" + bytes([size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14]) + nested
    with at_most(2 * MIB), pytest.raises(DecodeError):
        unpack_frame(frame.ljust(size + 4, b"\xc0"))


def test_fields_in_any_order_and_unknown_ones() -> None:
    """Other libraries write fields in other orders, and later versions more of them."""
    head = msgpack.packb([2**40, 2**63, "a", 3, False, 0, 0, bytes(70_000), b"", 0, 2, 3, 300])
    raw = bytes(range(3)) + bytes(300)
    unknown = b"\x99\x06" + bytes(8) + b"\x9d\x06" + bytes(4) + b"\x98\x06\x01"
    beat = pb.Frame(heartbeat=pb.Heartbeat(sent=1.5)).SerializeToString()
    one, other = (pb.Frame(head=head).SerializeToString(), pb.Frame(raw=raw).SerializeToString())
    for parts in itertools.permutations((one, other, beat, unknown)):
        frame = unpack_frame(b"".join(parts))
        assert (frame.receipt, frame.heartbeat) == (2**40, Heartbeat(1.5))
        (envelope,) = frame.envelopes
        assert (envelope.number, envelope.document) == (2**63, bytes(70_000))
        assert [bytes(each) for each in envelope.buffers] == [raw[:3], raw[3:]]


def test_announcements_are_bounded() -> None:
    limits = DecodeLimits(document_bytes=MIB, message_bytes=4 * MIB)
    for large, field in ((Envelope("a", document=bytes(MIB + 1)), "document_bytes"),
                         (Envelope("a", externals=bytes(MIB + 1)), "document_bytes"),
                         (Envelope("a", buffers=[bytes(4 * MIB + 1)]), "message_bytes")):  # fmt: skip
        with pytest.raises(DecodeError, match=field):
            unpack_frame(pack_frame(Frame([large])), limits)
        with pytest.raises(EncodeError, match=field):
            measure(large, limits)
    unpack_frame(pack_frame(Frame([Envelope("a", buffers=[bytes(4 * MIB)])])), limits)


def test_small_parts_have_limits_too() -> None:
    large = Envelope("a", document=bytes(60), externals=bytes(20), buffers=[bytes(50), bytes(50)])
    assert measure(large, DecodeLimits(document_bytes=60, message_bytes=180))[1]
    with pytest.raises(EncodeError, match=r"bytes: 180, at most 179.*message_bytes"):
        measure(large, DecodeLimits(document_bytes=60, message_bytes=179))
    with pytest.raises(EncodeError, match=r"bytes: 60, at most 59.*document_bytes"):
        measure(large, DecodeLimits(document_bytes=59, message_bytes=180))


def test_two_envelopes_of_one_number() -> None:
    one = Envelope("a", document=bytes(70_000), number=5)
    other = Envelope("b", buffers=[b"x", bytes(70_000)], number=5)
    for pair in ((one, other), (one, one), (Envelope("a", number=5), other)):
        with pytest.raises(DecodeError, match="one number"):
            unpack_frame(pack_frame(Frame([*pair])))
    small = Envelope("a", number=5)
    assert len(unpack_frame(pack_frame(Frame([small, small]))).envelopes) == 2
