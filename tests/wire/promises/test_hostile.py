"""Bytes of a stranger: a value, or DecodeError. Nothing is imported, run or reserved for them.

Mutations of all that is read are in `tests/fuzz`; here are bytes that were made to deceive.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from random import Random
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import strategies as st

from telegrad.errors import DecodeError, RemoteError
from telegrad.wire import (
    BLOCK_BYTES,
    PIECE_BYTES,
    Assembly,
    Envelope,
    Piece,
    Span,
    decode,
    decode_exception,
    encode,
    encode_exception,
    rebuild,
)
from telegrad.wire.document import MARKERS, Tag
from tests.fuzz.engine import run_one
from tests.fuzz.parts import join
from tests.repeated import on_examples
from tests.wire.chunks import read_chunk
from tests.wire.samples import FUNCTIONS, double


@pytest.mark.parametrize("size", [0, 27, 28, 28 + PIECE_BYTES + 1])
def test_what_is_no_chunk(size: int) -> None:
    with pytest.raises(DecodeError, match="not a chunk"):
        read_chunk(bytes(size))


trees = st.recursive(
    st.none()
    | st.integers(-5, 2**64 - 1)
    | st.text(max_size=5)
    | st.binary(max_size=20)
    | st.floats()
    | st.builds(msgpack.ExtType, st.sampled_from(list(Tag)), st.binary(max_size=17))
    | st.sampled_from(["builtins:ValueError", "tests.wire.samples:Point", "x", "RED"])
    | st.sampled_from(["tests.wire.samples:Color", "tests.wire.samples:Pair", "csr_array"]),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.tuples(st.sampled_from(list(MARKERS.values())), st.lists(inner, max_size=8)).map(
            lambda pair: [pair[0], *pair[1]]
        )
    ),
    max_leaves=12,
)


@on_examples(trees)
def test_well_formed_documents_of_wrong_tags(tree: Any) -> None:
    run_one("decoder", join(msgpack.packb(tree)))


WRONG_TREES: list[Any] = [
    [MARKERS[Tag.TUPLE]],
    MARKERS[Tag.TUPLE],
    [1, MARKERS[Tag.TUPLE]],
    [MARKERS[Tag.SET], []],
    [MARKERS[Tag.DTYPE], "O"],
    [MARKERS[Tag.DTYPE], "f8,O"],
    [MARKERS[Tag.SCALAR], "<f8", b"x"],
    [MARKERS[Tag.SLICE], 1, 2, 3, 4],
    [MARKERS[Tag.RANGE], 1, 2, 0],
    [MARKERS[Tag.EXCEPTION], {}],
    [MARKERS[Tag.DATACLASS], "builtins:int"],
    [MARKERS[Tag.DEQUE], "x"],
    msgpack.ExtType(Tag.BIG_INT, b""),
    msgpack.ExtType(Tag.ZONE, b"../../etc/passwd"),
    msgpack.ExtType(Tag.ZONE, b"Nowhere/Ever"),
    msgpack.ExtType(Tag.EXTERNAL, b"\x00\x00\x00\x09"),
    msgpack.ExtType(99, b""),
]


def test_documents_of_tags_that_stand_where_they_do_not_belong(subtests: pytest.Subtests) -> None:
    for tree in WRONG_TREES:
        with subtests.test(tree=tree):
            run_one("decoder", join(msgpack.packb(tree)))


@on_examples(trees)
def test_wrong_descriptions_of_exceptions(tree: Any) -> None:
    plain = encode_exception(ValueError("x"))
    for wrong in (tree, *({**plain, key: tree} for key in plain)):
        with suppress(DecodeError):
            decode_exception(wrong)


@pytest.mark.parametrize(
    "name",
    [
        "os:environ",
        "subprocess:Popen",
        "builtins:object",
        "tests.wire.samples:Plain",
        "tests.wire.samples:Undecorated",
        "tests.wire.samples:Point.__class__",
        "tests.wire.samples:_Hidden",
        "tests.wire.samples:os.PathLike",
        "tests.wire.samples:Point.tags",
        "antigravity:Point",
        "no.such.module:Point",
        "tests.wire.samples",
        "",
        ":",
        "a:b:c",
    ],
)
@pytest.mark.parametrize(
    "tag", [Tag.DATACLASS, Tag.NAMED_TUPLE, Tag.ENUM, Tag.FLAG, Tag.REGISTERED]
)
def test_only_real_classes_of_their_kind_are_built(tag: Tag, name: str) -> None:
    for items in ([], [1], ["x", 1], ["x"]):
        with pytest.raises(DecodeError):
            decode(msgpack.packb([MARKERS[tag], name, *items]))
    assert "antigravity" not in sys.modules


def test_a_dataclass_gets_no_attribute_that_its_class_would_run() -> None:
    name = "tests.wire.samples:Point"
    fields = ["x", 1, "y", 2, "tags", []]
    for extra in ("__class__", "__dict__", "__eq__", "__of_no_class__"):
        with pytest.raises(DecodeError, match="has not here"):
            decode(msgpack.packb([MARKERS[Tag.DATACLASS], name, *fields, extra, 1]))
    computed = [MARKERS[Tag.DATACLASS], "tests.wire.samples:Computed", "size", 1]
    with pytest.raises(DecodeError, match="has not here"):
        decode(msgpack.packb([*computed, "computed_size", 1]))
    with pytest.raises(DecodeError, match="without"):
        decode(msgpack.packb([MARKERS[Tag.DATACLASS], name, "x", 1]))


@pytest.mark.parametrize("name", ["os:system", "subprocess:run", "builtins:eval", "numpy:load"])
def test_a_function_as_a_value_is_one_that_may_be_called(name: str) -> None:
    document = msgpack.packb(["x", msgpack.ExtType(Tag.FUNCTION, name.encode())])
    with pytest.raises(DecodeError, match="does not let"):
        decode(document, functions=FUNCTIONS)


def test_no_function_may_stand_in_a_message_that_takes_none() -> None:
    document = encode(("x", double)).document
    with pytest.raises(DecodeError, match="samples:double': no function may stand"):
        decode(document)
    assert decode(document, functions=FUNCTIONS) == ("x", double)


def test_an_exception_of_a_class_that_is_none_arrives_as_a_remote_error() -> None:
    plain = encode_exception(ValueError("x"))
    for name in ("os:system", "builtins:int", "builtins:SystemExit", "no:Such", "::"):
        error = decode_exception({**plain, "type": name})
        assert type(error) is RemoteError
        assert error.type_name == name


def test_deep_documents_are_refused() -> None:
    for deep in (b"\x91" * 100_000 + b"\xc0", b"\x92\xc7\x00\x20" * 100_000 + b"\xc0"):
        with pytest.raises(DecodeError):
            decode(deep)
    document = encode(1).document
    for _ in range(50):
        part = [document, b"", []]
        plain = {**encode_exception(ValueError("x")), "args": [["x", part]]}
        document = msgpack.packb([MARKERS[Tag.EXCEPTION], plain])
    assert isinstance(decode(document), ValueError)


def test_an_array_whose_description_lies_is_refused() -> None:
    for meta in (
        ["<f8", "C", 2],
        ["<f8", "C", -1],
        ["<f8", "C", True],
        ["<f8", "X", 1],
        ["|O", "C", 1],
        ["V99999999999", "C", 0],
        [["struct", 8, False, [["a", None, 0, "|O"]]], "C", 1],
        [["ml", "sys"], "C", 8],
        [["ml", "finfo"], "C", 8],
        [["sub", "<f4", [2**40, 2**40]], "C", 0],
        ["<f8", "C", *[1] * 65],
        ["|V0", "C", 2**62, 2**62],
        [],
        None,
        "x",
    ):
        with pytest.raises(DecodeError, match="external 0"):
            rebuild(msgpack.packb([["array", meta, 1]]), [bytearray(8)])
    wrong: list[Any] = [[["array", ["<f8", "C"], -1]], [["nope", 1, 1]], [[]], 3]
    for lines in [*wrong, [["array", [], 2**62]]]:
        with pytest.raises(DecodeError):
            rebuild(msgpack.packb(lines), [bytearray(8)])
    with pytest.raises(DecodeError):
        rebuild(b"", [b"x"])


def test_pieces_that_do_not_fit() -> None:
    def assembly() -> Assembly:
        return Assembly(Envelope("k", number=1, buffers=[b""]), {2: 10})

    for piece in (
        Piece(1, 2, 0, bytes(11)),
        Piece(1, 2, 1, bytes(9)),
        Piece(1, 2, 0, bytes(9)),
        Piece(1, 2, PIECE_BYTES, b"x"),
        Piece(1, 3, 0, b"x"),
        Piece(1, 0, 0, b"x"),
    ):
        with pytest.raises(DecodeError, match="does not fit"):
            assembly().claim(piece.span)
    with pytest.raises(DecodeError, match="impossible"):
        Assembly(Envelope("k"), {2: 2**60})


@pytest.mark.parametrize("part", [0, 2])
def test_parts_for_which_there_is_no_memory(part: int) -> None:
    def no_memory(kind: str, size: int) -> memoryview:
        raise MemoryError(f"{size} bytes of {kind}")

    size = 2**60 if part == 0 else 10
    envelope = Envelope("k", number=1, buffers=[b""])
    assembly = Assembly(envelope, {part: size}, size, no_memory)
    with pytest.raises(MemoryError, match=f"no memory for {size} bytes"):
        assembly.claim(Span(1, part, 0, min(size, PIECE_BYTES)))


@on_examples(st.randoms(use_true_random=False))
def test_pieces_may_be_cut_anew(random: Random) -> None:
    """On the grid of 16 KiB, and overlap: all is there when each block is, and not before."""
    size = random.randint(1, 6) * BLOCK_BYTES + random.choice([0, 5])
    content = np.random.default_rng(size).bytes(size)
    assembly = Assembly(Envelope("k", number=1, buffers=[b""]), {2: size})
    blocks = -(-size // BLOCK_BYTES)
    missing, claims = set(range(blocks)), list[tuple[Piece, memoryview]]()
    while missing or claims:
        if claims and random.random() < 0.5:
            piece, place = claims.pop(random.randrange(len(claims)))
            if random.random() < 0.5:
                place[:] = piece.data
                missing -= _block_numbers(piece)
                done = assembly.settle(piece.span, came=True)
            else:
                done = assembly.settle(piece.span, came=False)
            assert done == assembly.complete == (not missing and not claims)
            assert assembly.left == len(missing)
            continue
        first = random.randrange(blocks)
        end = random.randint(first + 1, blocks)
        stretch = content[first * BLOCK_BYTES : end * BLOCK_BYTES]
        piece = Piece(1, 2, first * BLOCK_BYTES, stretch)
        claimed = assembly.claim(piece.span)
        assert (claimed is None) == missing.isdisjoint(range(first, end))
        if claimed is not None:
            claims.append((piece, claimed))
    assert bytes(assembly.join().buffers[0]) == content


def _block_numbers(piece: Piece) -> set[int]:
    first = piece.offset // BLOCK_BYTES
    return set(range(first, first + -(-len(piece.data) // BLOCK_BYTES)))
