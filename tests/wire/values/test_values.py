"""Every value that travels arrives equal, of its own type, and as a copy."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections import defaultdict, deque
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import strategies as st

from telegrad.errors import DecodeError, EncodeError
from telegrad.wire import decode, encode, register_refusal, register_type
from telegrad.wire.document import MARKERS, Tag
from telegrad.wire.values import array_types
from tests.wire.samples import (
    FUNCTIONS,
    Access,
    Bits,
    Called,
    Color,
    Computed,
    Derived,
    Interval,
    Level,
    Model,
    Pair,
    Peculiar,
    Plain,
    Point,
    Slotted,
    Undecorated,
    Unset,
    Watchful,
    Whole,
    Word,
    round_trip,
)


def frame_of(module: str, name: str) -> type:
    """Returns a class that says it is of a package that need not be installed."""
    return type(name, (), {"__module__": module})


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
hashable = (
    plain
    | st.complex_numbers()
    | st.decimals(allow_nan=False)
    | st.dates()
    | st.uuids()
    | st.sampled_from([*Color, *Level, *Word, Access.READ, ...])
)
leaves = (
    hashable
    | st.datetimes(timezones=st.none() | st.just(dt.UTC))
    | st.times()
    | st.timedeltas()
    | st.builds(range, st.integers(), st.integers(), st.integers(min_value=1))
    | st.builds(slice, plain, plain, plain)
    | st.builds(bytearray, st.binary())
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text(), inner)
        | st.dictionaries(hashable, inner)
        | st.sets(hashable)
        | st.frozensets(hashable)
        | st.builds(Point, inner, inner)
        | st.builds(Pair, inner, inner)
        | st.lists(inner).map(deque)
    ),
    max_leaves=20,
)


def same(a: Any, b: Any) -> bool:
    """Equality with types, bounds of deques and factories of dicts, where a NaN is itself."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return (a == b and math.copysign(1, a) == math.copysign(1, b)) or (a != a and b != b)
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, dt.datetime | dt.time):
        return (a, a.fold, repr(a.tzinfo)) == (b, b.fold, repr(b.tzinfo))
    if isinstance(a, deque) and a.maxlen != b.maxlen:
        return False
    if isinstance(a, defaultdict) and a.default_factory is not b.default_factory:
        return False
    if isinstance(a, list | tuple | deque):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return same(list(a), list(b)) and same(list(a.values()), list(b.values()))
    if isinstance(a, set | frozenset):
        return sorted(map(repr, a)) == sorted(map(repr, b))
    if isinstance(a, Point):
        return same(vars(a), vars(b))
    if isinstance(a, slice):
        return same([a.start, a.stop, a.step], [b.start, b.stop, b.step])
    return bool(a == b)


@pytest.mark.parametrize(
    "value",
    [
        2**4000,
        -(2**127),
        [[], [[]], ({},)],
        [[1.0, 2.0], [3.0]],
        [{"a": 1}, {"b": "x"}],
        [{1: 1}, {"b": "x"}],
        [[1, (2,)], []],
        {1: "a", (2, 3): "b", None: "c", 4.5: "d", True + 1: "e", b"f": "f"},
        {"a": {1: {2}}},
        dt.timezone(dt.timedelta(hours=1, microseconds=5), "here"),
        dt.time(1, 2, 3, 4, tzinfo=dt.UTC, fold=1),
        Decimal("1E-99"),
        Decimal("Infinity"),
        Access(0),
        Bits.A | Bits.B,
        {Slotted("a", 2): 1},
        defaultdict(None, {1: 2}),
        defaultdict(Model),
    ],
    ids=repr,
)
def test_a_value_arrives_as_it_was(value: Any) -> None:
    arrived = round_trip(value)
    assert same(arrived, value)


def test_exact_types_are_kept_where_python_calls_them_equal() -> None:
    value = [True, 1, 1.0, np.float64(1), np.int64(1), np.bool_(True), Level.LOW, Word.YES, "yes"]
    assert [type(each) for each in round_trip(value)] == [type(each) for each in value]


def test_containers_arrive_as_copies_each_of_its_own() -> None:
    inner: list[int] = [1]
    arrived = round_trip([inner, inner])
    assert arrived == [[1], [1]]
    assert arrived[0] is not arrived[1]


def test_a_dataclass_is_rebuilt_without_running_its_code() -> None:
    watchful = object.__new__(Watchful)
    object.__setattr__(watchful, "value", 5)
    assert round_trip(watchful).value == 5


def test_a_dataclass_keeps_what_its_post_init_set_and_forgets_what_is_cached() -> None:
    derived = Derived(3)
    assert derived.slow == 4
    arrived = round_trip(derived)
    assert (arrived.total, arrived.extra) == (6, "kept")
    assert "slow" not in vars(arrived)


def test_a_dataclass_travels_with_defaults_that_only_its_class_holds() -> None:
    value = round_trip(Unset(1))
    assert (value.base, value.steps, value.total) == (1, 0, 2)
    del value.total
    with pytest.raises(EncodeError, match="field 'total' was never set"):
        encode(value)


def test_no_descriptor_of_a_class_is_taken_for_a_default() -> None:
    computed = object.__new__(Computed)
    with pytest.raises(EncodeError, match="field 'size' was never set"):
        encode(computed)


@pytest.mark.parametrize("factory", [lambda: 0, partial(list, [1]), Called()])
def test_the_factory_of_a_default_dict_is_a_function_by_reference(factory: Any) -> None:
    with pytest.raises(EncodeError, match=r"value(\.default_factory)? cannot travel"):
        encode(defaultdict(factory))


def test_no_object_of_the_senders_becomes_a_factory() -> None:
    forged = [MARKERS[Tag.DEFAULT_DICT], {"a": 1}, 1, 2]
    with pytest.raises(DecodeError, match="whose factory is no function"):
        decode(msgpack.packb(forged))
    secret = [MARKERS[Tag.DEFAULT_DICT], msgpack.ExtType(Tag.FUNCTION, b"os:system"), 1, 2]
    with pytest.raises(DecodeError, match=r"does not let.*'os:system'.*value.default_factory"):
        decode(msgpack.packb(secret), functions=FUNCTIONS)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (
            Plain(),
            r"samples\.Plain; make it a dataclass, or register it: rpc\.register_type\(Plain,",
        ),
        (memoryview(b""), r"memoryview; send bytes\(view\)$"),
        (re.compile("a"), r"re\.Pattern; register it, in a module that both ends import: "),
        (Fraction(1, 2), r"Fraction; register it, in a module that both ends import: "),
        (Whole(3), r"samples\.Whole; register it, in a module that both ends import: "),
        (object(), "builtins.object; send what it holds as lists"),
        (
            frame_of("pandas.core.frame", "DataFrame")(),
            r"; send df\.to_dict\('list'\), or register",
        ),
        (frame_of("PIL.Image", "Image")(), r"; send numpy\.asarray\(image\), or register"),
    ],
)
def test_the_advice_fits_the_class(value: Any, words: str) -> None:
    with pytest.raises(EncodeError, match=words) as caught:
        encode(value)
    assert ("dataclass" in str(caught.value)) == isinstance(value, Plain)


def test_the_path_begins_with_the_value_but_for_the_body_of_a_message() -> None:
    for name, path in (("value", "value['x']"), (None, "x")):
        with pytest.raises(EncodeError) as caught:
            encode({"x": Plain()}, name=name)
        assert caught.value.path == path


def test_a_registered_type_travels_by_its_two_functions() -> None:
    register_type(Interval, encode=lambda v: (v.low, v.high), decode=lambda v: Interval(*v))
    arrived = round_trip({"i": [Interval(1, 2.5)]})["i"][0]
    assert (arrived.low, arrived.high) == (1, 2.5)
    with pytest.raises(TypeError, match="handles tuple itself"):
        register_type(tuple, encode=list, decode=tuple)
    with pytest.raises(TypeError, match="takes a class"):
        register_type(3, encode=list, decode=tuple)  # type: ignore[arg-type]


def test_what_a_registered_type_refuses_is_named() -> None:
    class Local:
        pass

    register_type(Local, encode=lambda v: 1 / 0, decode=lambda v: Local())
    with pytest.raises(EncodeError, match=r"value\[0\].*ZeroDivisionError"):
        encode([Local()])


class Refused:
    pass


class AlsoRefused(Refused):
    pass


def test_a_refusal_holds_for_subclasses_and_has_its_own_words() -> None:
    register_refusal(Refused, "a Module by value; send RRef(model)")
    with pytest.raises(EncodeError, match=r"args\[0\]\.y.*send RRef") as caught:
        encode({"args": [Point(1.0, AlsoRefused())]}, name=None)
    assert caught.value.path == "args[0].y"


@pytest.mark.parametrize(
    ("value", "path", "words"),
    [
        ({"args": [{"lr": Plain()}]}, "value['args'][0]['lr']", "samples.Plain.*register_type"),
        ([1, (2, Plain())], "value[1][1]", "Plain"),
        ({1: Plain()}, "value[1]", "Plain"),
        ({"x": {(1, 2): Plain()}}, "value['x'][(1, 2)]", "Plain"),
        (Pair(1, Plain()), "value.right", "Plain"),
        (Point(1.0, Plain()), "value.y", "Plain"),
        (slice(0, Plain()), "value.stop", "Plain"),
        ({"args": [np.array([None])]}, "value['args'][0]", "Python objects"),
        ([memoryview(b"")], "value[0]", "memoryview"),
        (Undecorated(1.0), "value", "decorate it"),
        (np.ma.masked_array([1, 2]), "value", "masked"),
        (np.ones((1, 1)).view(np.matrix), "value", "asarray"),
        (iter([]), "value", "list_iterator"),
    ],
)
def test_what_cannot_travel_is_named_with_its_path(value: Any, path: str, words: str) -> None:
    with pytest.raises(EncodeError, match=words) as caught:
        encode(value)
    assert caught.value.path == path
    assert str(caught.value).startswith(f"{path} cannot travel: ")


def test_a_class_inside_a_function_is_refused_with_advice() -> None:
    from dataclasses import make_dataclass  # noqa: PLC0415

    local = make_dataclass("Local", ["x"])
    with pytest.raises(EncodeError, match="top of a module"):
        encode(local(1))


def test_a_cycle_is_refused_with_its_path() -> None:
    cycle: dict[str, Any] = {"a": [1]}
    cycle["a"].append({"b": cycle})
    with pytest.raises(EncodeError, match="contains itself") as caught:
        encode([cycle])
    assert caught.value.path == "value[0]['a'][1]['b']"
    point = Point(1.0)
    point.y = (point,)
    with pytest.raises(EncodeError, match="contains itself"):
        encode(point)


def test_too_deep_a_value_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(EncodeError, match="nested deeper"):
        encode(deep)
    for _ in range(100):
        deep = []
        for _ in range(100):
            deep = [deep]
    assert round_trip(deep) == deep


def test_a_msgpack_extension_of_a_users_is_no_tag() -> None:
    for stranger in (msgpack.ExtType(32, b""), [msgpack.ExtType(32, b""), 1]):
        assert same(round_trip(stranger), stranger)
    with pytest.raises(EncodeError):
        encode(msgpack.Timestamp(1))


def test_a_flag_with_its_own_missing_is_refused_on_arrival() -> None:
    combined = object.__new__(Peculiar)
    vars(combined).update(_value_=3, _name_="A|B")
    with pytest.raises(DecodeError, match="its own way"):
        round_trip(combined)


def test_the_error_of_a_decode_says_where() -> None:
    encoded = encode({"args": [1, {"p": Point(1.0, Decimal("1.5"))}]}).document
    with pytest.raises(DecodeError, match=r"at value\['args'\]\[1\]\['p'\]\.y"):
        decode(encoded.replace(b"1.5", b"1.x"))
    with pytest.raises(DecodeError, match="no class.*Nowhere"):
        decode(
            encode(Point(1.0)).document.replace(b":Point", b":Nowhere").replace(b"\xb8", b"\xba")
        )


BIG = array_types.BESIDE_BYTES


@pytest.mark.parametrize("length", [BIG - 1, BIG, BIG + 1])
@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_big_bytes_travel_beside_their_document(kind: type, length: int) -> None:
    data = kind(b"a" * (length - 1) + b"z")
    small = kind(b"s")
    beside = length >= BIG
    for value in (
        data,
        [data, small],
        [[data], [small]],
        [{"k": data}],
        {"args": [data], "kwargs": {"k": data}},
        (1, (data, "x")),
        Pair(data, small),
    ):
        encoded = encode(value)
        assert (len(encoded.document) < 200) == beside, value
        arrived = round_trip(value)
        assert arrived == value
        assert type(arrived) is type(value)
        assert bool(encoded.externals) == beside


def test_big_bytes_where_they_are_hashed() -> None:
    data = b"k" * BIG
    assert round_trip({data: {data}}) == {data: {data}}


def test_a_big_bytearray_arrives_as_a_copy_each_time() -> None:
    data = bytearray(BIG)
    first, second = round_trip((data, data))
    first[0] = 1
    assert second == data


def test_big_bytes_have_to_be_bytes() -> None:
    for tag in (Tag.BIG_BYTES, Tag.BIG_BYTEARRAY):
        document = msgpack.packb([msgpack.ExtType(tag, b""), msgpack.ExtType(1, bytes(4))])
        for octets in (np.zeros(3, np.int16), np.zeros((2, 2), np.uint8), object()):
            with pytest.raises(DecodeError, match="no array of bytes"):
                decode(document, [octets])
