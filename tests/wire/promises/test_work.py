"""The work of reading a message grows with its size, and not with the square of it.

Work is counted, not timed: each call of a function, and each eight bytes that are allocated between
two calls. Python counts the same on every machine.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections import OrderedDict
from collections.abc import Callable
from pathlib import PurePosixPath

import msgpack
import numpy as np
import pytest

from telegrad.errors import DecodeError
from telegrad.wire import decode, decode_exception, encode, encode_exception
from telegrad.wire.document import MARKERS, UNCHECKED_SIZE, Tag
from telegrad.wire.exceptions import MAX_NOTES
from tests.wire.samples import Access, Color, OddError, Pair, Point, double

WORD = 8  # bytes
SIZE = 300
# A square gives 4. What is the same for all sizes takes away from 2, a growing list adds to it.
DOUBLE = 2.5


def work(do: Callable[[], object]) -> int:
    """Returns the calls and allocated words of a repetition, without what is made once."""
    do()
    return min(counted(do) for _ in range(2))


def counted(do: Callable[[], object]) -> int:
    calls = words = seen = 0

    def count(*event: object) -> None:
        nonlocal calls, words, seen
        del event
        calls += 1
        now = tracemalloc.get_traced_memory()[0]
        words += max(0, now - seen) // WORD
        seen = now

    tracemalloc.start()
    sys.setprofile(count)
    try:
        do()
    finally:
        sys.setprofile(None)
        tracemalloc.stop()
    return calls + words


def plain_error(**fields: object) -> dict[str, object]:
    return {**encode_exception(ValueError()), **fields}


def exception_document(**fields: object) -> bytes:
    packed: bytes = msgpack.packb([MARKERS[Tag.EXCEPTION], plain_error(**fields)])
    return packed


def part(value: object) -> list[object]:
    return [encode(value).document, b"", []]


def unreadable(levels: int) -> bytes:
    """A document that cannot be read, in an exception in such a document, and so on."""
    wrong = msgpack.ExtType(99, b"")
    document: bytes = msgpack.packb(["x" * UNCHECKED_SIZE, wrong])
    for _ in range(levels):
        inner = [MARKERS[Tag.EXCEPTION], plain_error(args=[["x", [document, b"", []]]])]
        document = msgpack.packb([inner, wrong])
    return document


def errors(n: int) -> list[Exception]:
    return [ValueError(i) for i in range(n)]


MANY: dict[str, Callable[[int], bytes]] = {
    "notes": lambda n: exception_document(notes=["x"] * (10 * n)),
    "arguments": lambda n: exception_document(args=[["x", part(1)]] * (n // 6)),
    "unreadable arguments": lambda n: exception_document(
        args=[["x", [b"\xc7", b"", []]]] * (n // 6)
    ),
    "attributes": lambda n: exception_document(
        attributes={f"a{i}": part(1) for i in range(n // 6)}
    ),
    "unreadable attributes": lambda n: exception_document(
        attributes={f"a{i}": [b"\xc7", b"", []] for i in range(n // 6)}
    ),
    "an ExceptionGroup": lambda n: encode(ExceptionGroup("many", errors(n // 12))).document,
    "ExceptionGroups": lambda n: encode([ExceptionGroup("one", errors(1))] * (n // 24)).document,
    "errors with slots and causes": lambda n: (
        encode([OddError(1, detail="x")] * (n // 12)).document
    ),
    "unknown classes": lambda n: msgpack.packb(
        [[MARKERS[Tag.EXCEPTION], plain_error(type=f"not_here:Error{i}")] for i in range(n // 6)]
    ),
    "fields of a dataclass": lambda n: msgpack.packb(
        [MARKERS[Tag.DATACLASS], "tests.wire.samples:Point", *(f"f{i // 2}" for i in range(2 * n))]
    ),
    "dataclasses": lambda n: encode([Point(1.0, Color.RED)] * (n // 6)).document,
    "named tuples": lambda n: encode([Pair(1, 2)] * (n // 6)).document,
    "named tuples without a class": lambda n: msgpack.packb(
        [[MARKERS[Tag.STRUCT], f"Lost{i}", 1, ["a"], i] for i in range(n // 6)]
    ),
    "names of a named tuple": lambda n: msgpack.packb(
        [MARKERS[Tag.STRUCT], "Lost", n, [f"a{i}" for i in range(n)], *range(n)]
    ),
    "flags": lambda n: encode([Access.READ | Access.RUN] * (n // 12)).document,
    "nested keys": lambda n: encode({(i, (i, frozenset({i}))): 1 for i in range(n // 3)}).document,
    "a set of texts": lambda n: encode({str(i) for i in range(n)}).document,
    "an OrderedDict": lambda n: encode(OrderedDict.fromkeys(range(n))).document,
    "fields of a dtype": lambda n: encode(np.dtype([(f"f{i}", "f4") for i in range(n)])).document,
    "scalars and dtypes": lambda n: encode([np.float16(1), np.dtype("f4")] * (n // 3)).document,
    "parts of a path": lambda n: encode(PurePosixPath("a/" * n)).document,
    "functions": lambda n: encode([double] * n).document,
    "refused functions": lambda n: msgpack.packb(
        [msgpack.ExtType(Tag.FUNCTION, f"os:system{i}".encode()) for i in range(n)]
    ),
    "tags without values": lambda n: msgpack.packb([MARKERS[Tag.TUPLE]] * n),
}


def read(document: bytes) -> object:
    try:
        return decode(document)
    except DecodeError as error:
        return str(error)


def test_twice_the_size_is_twice_the_work(subtests: pytest.Subtests) -> None:
    for name, document in MANY.items():
        with subtests.test(name):
            once, twice = document(SIZE), document(2 * SIZE)
            assert work(lambda: read(twice)) < DOUBLE * work(lambda: read(once))  # noqa: B023


def test_one_more_level_does_not_double_the_work() -> None:
    few, many = unreadable(4), unreadable(8)
    assert work(lambda: read(many)) < DOUBLE * work(lambda: read(few))


def test_errors_that_are_argument_and_cause_at_once_are_bounded() -> None:
    def chain(length: int) -> Exception:
        error = ValueError()
        for _ in range(length):
            error, inner = ValueError("again", error), error
            error.__cause__ = inner
        return error

    assert len(encode(chain(50)).document) < 10 * len(encode(chain(10)).document)
    arrived = decode(encode(chain(50)).document)
    assert type(arrived.__cause__) is type(arrived.args[1]) is ValueError


def test_notes_beyond_the_limit_are_counted_in_one() -> None:
    error = ValueError("noisy")
    for i in range(3 * MAX_NOTES):
        error.add_note(f"note {i}")
    for plain in (encode_exception(error), plain_error(notes=error.__notes__)):
        notes = decode_exception(plain).__notes__
        assert notes[: MAX_NOTES - 1] == error.__notes__[: MAX_NOTES - 1]
        assert notes[MAX_NOTES - 1 :] == [f"{2 * MAX_NOTES + 1} more notes, which were left out"]
