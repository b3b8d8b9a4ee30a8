"""Reading a message runs no code of the program's: one test for each way in which it might.

`with_code.py` holds classes that note whatever of them runs.
"""

from __future__ import annotations

import builtins
import contextlib
import datetime as dt
import sys
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import ml_dtypes
import msgpack
import numpy as np
import pytest
import scipy.sparse

from telegrad.errors import DecodeError, EncodeError, RemoteError
from telegrad.rpc.seams import CallablePolicy
from telegrad.wire import decode, decode_exception, describe, encode, encode_exception, rebuild
from telegrad.wire.document import MARKERS, Tag
from telegrad.wire.values.builtin_types import code_of
from tests.wire.promises import with_code as code
from tests.wire.promises.with_code import RAN
from tests.wire.samples import Access, Bits, Color, Level, Pair, Point, Slotted, Word, round_trip

HERE = "tests.wire.promises.with_code"


@pytest.fixture(autouse=True)
def nothing_ran() -> Iterator[None]:
    RAN.clear()
    yield
    assert RAN == []


def record(name: str, **fields: object) -> list[object]:
    """A dataclass as it stands in a document."""
    pairs = [part for pair in (fields or {"value": 1}).items() for part in pair]
    return [MARKERS[Tag.DATACLASS], f"{HERE}:{name}", *pairs]


EVERYTHING = record("Everything")
WORD = [MARKERS[Tag.ENUM], f"{HERE}:OwnWord", "YES"]


def refused(tree: object, words: str, externals: Any = ()) -> None:
    with pytest.raises(DecodeError, match=words):
        decode(msgpack.packb(tree), externals)


# -- objects ---------------------------------------------------------------------------------------


def test_an_object_that_answers_to_everything_is_asked_nothing() -> None:
    for name in ("Everything", "Hiding"):
        value = decode(msgpack.packb({"args": [record(name)]}))["args"][0]
        assert type.__dict__["__qualname__"].__get__(type(value)) == name
        assert code.vars_of(value) == {"value": 1}
    assert decode(msgpack.packb(WORD)) is type.__getattribute__(code.OwnWord, "_member_map_")["YES"]


def test_a_metaclass_is_asked_nothing() -> None:
    value = decode(msgpack.packb(record("OfMeta")))
    assert code.vars_of(value) == {"value": 1}
    refused([MARKERS[Tag.SET], record("OfMeta")], "unhashable")


def test_no_descriptor_in_the_place_of_a_field() -> None:
    value = decode(msgpack.packb(record("Described", value=7)))
    assert code.vars_of(value) == {"value": 7}


def test_a_module_that_loads_itself_is_left_alone() -> None:
    lazily = code.lazily()
    next(lazily)
    try:
        for tag in (Tag.DATACLASS, Tag.ENUM, Tag.NAMED_TUPLE):
            refused([MARKERS[tag], "tests_lazy:Thing", 1], "no class 'tests_lazy:Thing'")
        refused(msgpack.ExtType(Tag.FUNCTION, b"tests_lazy:thing"), "tests_lazy")
    finally:
        next(lazily, None)
    RAN[:] = [
        each for each in RAN if each != "Lazy.__spec__"
    ]  # sys.modules' own, when it is removed


def test_no_class_is_asked_whether_it_is_a_named_tuple() -> None:
    """A class with a private name may be named there: each of these is, and runs nothing."""
    built = []
    for name, value in vars(code).items():
        if not issubclass(type(value), type):
            continue
        for names in ([], ["value"], ["value", "x"]):
            tree = [MARKERS[Tag.STRUCT], f"{HERE}:{name}", min(1, len(names)), names, *names]
            with contextlib.suppress(DecodeError):
                decode(msgpack.packb(tree))
                built.append(name)
    assert {"OwnTuple", "Answering"} <= set(built) <= {"OwnTuple", "Answering", "Marked", "Pair"}


def test_no_module_is_asked_for_what_it_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("tests_answering")
    monkeypatch.setattr(module, "__getattr__", code.noted("__getattr__"), raising=False)
    monkeypatch.setitem(sys.modules, "tests_answering", module)
    refused([MARKERS[Tag.DATACLASS], "tests_answering:Thing"], "no class")
    refused(msgpack.ExtType(Tag.FUNCTION, b"tests_answering:thing"), "tests_answering")


# -- sets and dicts --------------------------------------------------------------------------------

NUMPY = [MARKERS[Tag.SCALAR], "<f8", bytes(8)]
LOUD = {
    "Everything.__hash__": EVERYTHING,
    "Own.__hash__": record("Own"),
    "OwnHash.__hash__": record("OwnHash"),
    "OwnEqual.__eq__": record("OwnEqual"),
    "OwnTuple.__hash__": [MARKERS[Tag.NAMED_TUPLE], f"{HERE}:OwnTuple", 1],
    "OwnColor.__hash__": [MARKERS[Tag.ENUM], f"{HERE}:OwnColor", "RED"],
    "OwnLookup.__getattribute__": [MARKERS[Tag.ENUM], f"{HERE}:OwnLookup", "RED"],
    "OwnWord.__hash__": WORD,
    "Looked.__getattribute__": record("Looked"),
    "Described.value": record("Described"),
    "CarefulError.__hash__": [MARKERS[Tag.EXCEPTION], {
        "type": f"{HERE}:CarefulError", "message": "", "args": [], "attributes": {},
        "notes": [], "cause": None,
    }],
}  # fmt: skip


def inside(tree: object) -> list[object]:
    """It, and what is hashed along with it."""
    return [
        tree,
        [MARKERS[Tag.TUPLE], 1, [MARKERS[Tag.TUPLE], tree]],
        [MARKERS[Tag.NAMED_TUPLE], "tests.wire.samples:Pair", "x", tree],
        [MARKERS[Tag.DATACLASS], f"{HERE}:Key", "name", "x", "size", tree, "note", []],
    ]


@pytest.mark.parametrize("name", LOUD)
def test_a_member_or_key_that_hashes_its_own_way(name: str) -> None:
    words = name.replace(".", r"\.")
    for tree in inside(LOUD[name]):
        for tag in (Tag.SET, Tag.FROZENSET):
            refused({"a": [MARKERS[tag], 1, tree]}, words)
        for tag in (Tag.DICT, Tag.ORDERED_DICT, Tag.COUNTER):
            refused([MARKERS[tag], 1, 1, tree, 1], words)
        refused([MARKERS[Tag.DEFAULT_DICT], None, tree, 1], words)
        many = [part for i in range(300) for part in (i, 1)]
        refused([MARKERS[Tag.DICT], *many, tree, 1], words)


def test_numpy_asks_whatever_it_is_compared_with() -> None:
    pair = [MARKERS[Tag.NAMED_TUPLE], f"{HERE}:Answering", 1]
    assert decode(msgpack.packb([MARKERS[Tag.SET], pair])) == {(1,)}
    refused([MARKERS[Tag.SET], pair, NUMPY], r"Answering\.__array__")
    refused([MARKERS[Tag.SET], [MARKERS[Tag.DTYPE], "<f8"], pair], r"Answering\.__array__")


@pytest.mark.parametrize(
    "members",
    [
        [1, 2.5, "x", b"y", None, True, 1j, ...],
        [dt.date(2020, 1, 1), dt.datetime(2020, 1, 1, tzinfo=dt.UTC), dt.timedelta(1), dt.UTC],
        [Decimal(1), Path("x"), range(3), (1, ("a", frozenset({2})))],
        [Color.RED, Level.LOW, Word.YES, Access.READ, Access.READ | Access.RUN, Bits.A],
        [Slotted("a"), code.Key("a"), code.Key("a", (1, Color.RED), [1]), Pair(1, Slotted("b"))],
        [np.float64(2), np.int8(3), np.str_("x"), np.dtype("f4"), Pair(np.int64(1))],
        [Point, round_trip, np.sin, len, dict],
    ],
    ids=["plain", "times", "others", "enumerations", "instances", "numpy", "by reference"],
)
def test_members_that_run_nothing_arrive(members: list[Any]) -> None:
    assert code_of(members) is None
    values: list[Any] = [set(members), frozenset(members), dict.fromkeys(members, 1)]
    values += [OrderedDict.fromkeys(members), Counter(members), defaultdict(None, values[2])]
    allowed = CallablePolicy("importable").resolve
    for value in values:
        encoded = encode(value)
        assert decode(encoded.document, encoded.externals, functions=allowed) == value


@pytest.mark.parametrize(
    ("value", "path", "words"),
    [
        ({code.OwnHash()}, "value", r"a set which .* OwnHash\.__hash__, .* send list\(value\), "),
        (frozenset({code.OwnHash()}), "value", r"a frozenset .* send list\(value\), "),
        (
            [{1: {code.OwnEqual(): 1}}],
            "value[0][1]",
            r"a dict .*OwnEqual\.__eq__.*list\(value.items",
        ),
        ({(1, code.OwnTuple()): 1}, "value", r"OwnTuple\.__hash__"),
        (Counter([code.OwnHash()]), "value", r"a Counter .*list\(value\.items\(\)\)"),
    ],
)
def test_the_sender_is_told(value: Any, path: str, words: str) -> None:
    RAN.clear()
    with pytest.raises(EncodeError, match=words) as caught:
        encode(value)
    assert caught.value.path == path
    assert round_trip([(code.OwnHash(), 1)])[0][0].value == 1


def test_what_a_registered_type_gives_is_no_exception() -> None:
    assert type(round_trip([code.Registered()])[0]) is code.Registered
    with pytest.raises(EncodeError, match=r"Registered\.__hash__"):
        encode((frozenset({code.Registered()}),))


# -- flags -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Missing", "_missing_"),
        ("Iterating", "_iter_member_"),
        ("Setting", "__setattr__"),
        ("OfNumbers", "no plain integers"),
    ],
)
def test_a_flag_that_makes_combinations_its_own_way(name: str, words: str) -> None:
    refused([MARKERS[Tag.FLAG], f"{HERE}:{name}", 3], words)


# -- what is dropped -------------------------------------------------------------------------------


def test_no_object_with_a_finaliser_is_made() -> None:
    """Else a document that is wrong further on would run it, and so would each copy."""
    refused([record("DroppedRecord"), [MARKERS[Tag.DATE], 1]], "__del__")
    refused([MARKERS[Tag.NAMED_TUPLE], f"{HERE}:DroppedPair", 1], "__del__")
    plain = {**encode_exception(ValueError("x")), "type": f"{HERE}:DroppedError"}
    assert type(decode_exception(plain)) is RemoteError
    for value in (code.DroppedRecord(), code.DroppedPair()):
        with pytest.raises(EncodeError, match="__del__.*RRef"):
            encode(value)
        del value
    RAN.clear()


# -- exceptions ------------------------------------------------------------------------------------


def exception(name: str, args: list[object], **attributes: object) -> dict[str, object]:
    def part(tree: object) -> list[object]:
        return [msgpack.packb(tree), b"", []]

    return {
        "type": name,
        "message": "m",
        "args": [["words", part(each)] for each in args],
        "attributes": {key: part(each) for key, each in attributes.items()},
        "notes": ["n"],
        "cause": encode_exception(ValueError("cause")),
    }


def test_an_exception_whose_class_has_an_opinion_on_everything() -> None:
    error = decode_exception(exception(f"{HERE}:CarefulError", [2, "x"], detail=[1], errno=2))
    assert type(error) is code.CarefulError
    own = code.vars_of(error)
    assert own["detail"] == [1]
    assert own["__notes__"] == ["n"]
    assert BaseException.__dict__["args"].__get__(error) == (2, "x")
    assert OSError.__dict__["errno"].__get__(error) == 2
    assert type(BaseException.__dict__["__cause__"].__get__(error)) is ValueError


@pytest.mark.parametrize(
    "name",
    sorted(
        f"builtins:{name}"
        for name, each in vars(builtins).items()
        if isinstance(each, type) and issubclass(each, Exception)
    ),
)
def test_constructors_in_c_ask_no_argument(name: str) -> None:
    """`OSError` looks its first one up, `BlockingIOError` makes a number of its third."""
    attributes = dict.fromkeys(
        ("errno", "start", "end", "filename", "x", "characters_written"), EVERYTHING
    )
    for count in range(1, 6):
        some: list[list[Any]] = [
            [EVERYTHING] * count,
            [2, "x", EVERYTHING][-count:],
            ["x", [EVERYTHING]],
        ]
        for args in some:
            error = decode_exception(exception(name, args, **attributes))
            assert isinstance(error, Exception)


# -- functions -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["project", "exposed"])
def test_what_is_named_is_asked_nothing(mode: str) -> None:
    policy = CallablePolicy(mode)
    for name in ("found", "Everything", "OfMeta", "CarefulError"):
        tree = [msgpack.ExtType(Tag.FUNCTION, f"{HERE}:{name}".encode()), [MARKERS[Tag.DATE], 1]]
        with pytest.raises(DecodeError, match="3 integers|does not let"):
            decode(msgpack.packb(tree), functions=policy.resolve)


# -- anywhere --------------------------------------------------------------------------------------

VALUES: list[Any] = [
    [1, "x", {"a": 2}], (1, 2), {1}, frozenset({1}), {1: 2}, OrderedDict(a=1), Counter("a"),
    defaultdict(list, {1: 2}), deque([1], 2), slice(1, 2, 3), range(1, 2, 3), dt.date(2020, 1, 1),
    dt.datetime(2020, 1, 1, tzinfo=dt.timezone(dt.timedelta(1 / 24), "x")), dt.time(1), dt.timedelta(1),
    Color.RED, Access.READ | Access.RUN, Point(1.0), Slotted("x"), Pair(1, 2), OSError(2, "x"),
    code.Registered(), np.float32(1), np.dtype("f4"), np.dtype([("a", "f4"), ("b", "i4", (2,))]),
    np.array((1, 2.0), dtype=[("a", "f4"), ("b", "i4")])[()], np.dtype(ml_dtypes.bfloat16), bytearray(2**20),
    scipy.sparse.csr_array(np.eye(2)), scipy.sparse.coo_matrix(np.eye(2)),
    round_trip,
]  # fmt: skip


def replaced(tree: Any, by: object) -> Iterator[Any]:
    """Yields the tree with each of its parts in turn replaced."""
    yield by
    if type(tree) is list:
        for i, part in enumerate(tree):
            for new in replaced(part, by):
                yield [*tree[:i], new, *tree[i + 1 :]]
    elif type(tree) is dict:
        for key, part in tree.items():
            for new in replaced(part, by):
                yield {**tree, key: new}


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_an_object_in_the_place_of_anything(value: Any) -> None:
    """Errors included: what they show of a document, they show as the bytes that came."""
    encoded = encode(value)
    externals = rebuild(*describe(encoded.externals)) if encoded.externals else []
    tree = msgpack.unpackb(encoded.document, ext_hook=msgpack.ExtType, strict_map_key=False)
    for by in (
        EVERYTHING,
        record("Hiding"),
        WORD,
        record("OfMeta"),
        record("Own"),
        [EVERYTHING],
        {"a": EVERYTHING},
    ):
        for new in replaced(tree, by):
            try:
                decode(msgpack.packb(new), externals)
            except DecodeError:
                continue
            finally:
                assert RAN == [], new
