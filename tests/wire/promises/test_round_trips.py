"""What the properties of `test_values` and `test_arrays` leave out: all of it mixed."""

from __future__ import annotations

import datetime as dt
import itertools
import operator
from collections import Counter, OrderedDict, defaultdict, deque
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from unittest.mock import patch
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import strategies as st

from telegrad.errors import EncodeError
from telegrad.wire import decode, describe, encode, encoder, rebuild
from telegrad.wire import memory as copies
from telegrad.wire.values import array_types
from tests.repeated import on_examples
from tests.wire.samples import (
    FUNCTIONS,
    Access,
    Bits,
    Color,
    Pair,
    Point,
    Slotted,
    double,
    round_trip,
)
from tests.wire.values.test_values import same, values

# -- at once, and item by item ---------------------------------------------------------------------

BESIDE = [np.arange(3.0), np.arange(3.0), np.zeros(2, [("a", "i1")]), np.array(["a"])]
plain = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.sampled_from(["\ud800", 2**64, -(2**70)])
)
few = st.sampled_from(BESIDE) | plain
bodies = st.recursive(
    few | st.tuples(few),
    lambda inner: (
        st.lists(few)
        | st.lists(inner)
        | st.dictionaries(st.text(max_size=2) | st.integers(), inner)
        | st.fixed_dictionaries({"func": st.text(), "args": st.lists(few), "kwargs": st.just({})})
    ),
    max_leaves=10,
)


def item_by_item() -> AbstractContextManager[object]:
    return patch.multiple(encoder, _WHOLE={}, AT_ONCE=frozenset())


@on_examples(bodies | values, st.sampled_from([3, array_types.BESIDE_BYTES]))
def test_a_body_is_encoded_at_once_as_it_is_item_by_item(body: Any, beside: int) -> None:
    with patch.object(array_types, "BESIDE_BYTES", beside):
        at_once = encode(body)
        with item_by_item():
            one_by_one = encode(body)
    assert one_by_one.document == at_once.document
    assert describe(one_by_one.externals) == describe(at_once.externals)
    if beside != 3:  # else bytes of the body are lifted, too
        assert list(map(id, one_by_one.externals)) == list(map(id, at_once.externals))


@pytest.mark.parametrize("body", [[0, [None]], {"args": [0, 1]}, [{"a": 1}, {"b": 0}], 0])
def test_what_cannot_be_lifted_at_once_is_named_by_its_path(body: Any) -> None:
    def with_objects(value: Any) -> Any:
        if isinstance(value, list):
            return [with_objects(each) for each in value]
        if isinstance(value, dict):
            return {key: with_objects(each) for key, each in value.items()}
        return np.array([None]) if value == 0 else BESIDE[0]

    refused = []
    for way in (nullcontext(), item_by_item()):
        with way, pytest.raises(EncodeError, match="Python objects") as caught:
            encode(with_objects(body))
        refused.append((str(caught.value), caught.value.path))
    assert refused[0] == refused[1]


# -- copies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("big", [False, True], ids=["as small ones", "as big ones"])
def test_gaps_between_fields_tell_nothing_of_this_process(
    big: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lay in memory that a copy was made in is nobody's business."""
    monkeypatch.setattr(copies, "BIG_BYTES", 1 if big else 2**20)
    dtype = np.dtype({"names": ["a"], "formats": ["u1"], "offsets": [60], "itemsize": 64})
    array = np.frombuffer(b"\x07" * (64 * 64), dtype).reshape(8, 8)
    for _ in range(20):
        secrets = [np.full(64 * 64, 99, np.uint8) for _ in range(20)]
        del secrets
        for view in (array.T, array[::-1], array[:, ::2]):
            _, (octets,) = describe([view])
            assert set(bytes(octets)) == {7}


# -- all of it, mixed -----------------------------------------------------------------------------


def survives_as_text(path: PureWindowsPath) -> bool:
    """Python reads the text of some in another way: of a host without a share."""
    return PureWindowsPath(str(path)) == path


zones = st.sampled_from(
    [None, dt.UTC, dt.timezone(dt.timedelta(hours=-3, seconds=7), "x"), ZoneInfo("UTC")]
)
keys = st.text(max_size=3) | st.integers() | st.tuples(st.integers(), st.text(max_size=2))
rare = (
    st.datetimes(timezones=zones)
    | st.times(timezones=zones)
    | zones
    | st.builds(Path, st.text("ab/.", max_size=5))
    | st.builds(PurePosixPath, st.text("ab/.", max_size=5))
    | st.builds(PureWindowsPath, st.text("ab\\.:", max_size=5)).filter(survives_as_text)
    | st.builds(Access, st.integers(0, 7))
    | st.builds(Bits, st.integers(0, 7))
    | st.builds(Slotted, st.text(max_size=3), st.integers())
    | st.sampled_from(
        [double, operator.add, Point, np.dtype("<f2"), np.dtype([("a", "U1")]), Color.BOTH]
    )
)
mixed = st.recursive(
    rare | values,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=3)
        | st.dictionaries(keys, inner, max_size=3).map(OrderedDict)
        | st.dictionaries(keys, inner, max_size=3).map(lambda d: defaultdict(list, d))
        | st.builds(lambda items, bound: deque(items, bound), st.lists(inner), st.integers(1, 5))
        | st.dictionaries(keys, st.integers(), max_size=3).map(Counter)
        | st.builds(Pair, inner, inner)
    ),
    max_leaves=10,
)


@on_examples(mixed)
def test_every_kind_of_value_in_every_other(value: Any) -> None:
    assert same(round_trip(value), value)


@on_examples(mixed)
def test_what_arrived_is_encoded_as_it_came(value: Any) -> None:
    first = encode(value)
    metadata, buffers = describe(first.externals)
    arrays = rebuild(metadata, [bytearray(each) for each in buffers])
    arrived = decode(first.document, arrays, functions=FUNCTIONS)
    again = encode(arrived)
    if not has_sets(value):  # theirs is the order of their hashes
        assert again.document == first.document
    assert describe(again.externals)[0] == metadata


def has_sets(value: Any) -> bool:
    if isinstance(value, set | frozenset):
        return len(value) > 1
    if isinstance(value, dict):
        return any(map(has_sets, itertools.chain(value, value.values())))
    if isinstance(value, list | tuple | deque):
        return any(map(has_sets, value))
    return isinstance(value, Point) and any(map(has_sets, vars(value).values()))


@on_examples(st.lists(mixed, max_size=2), st.text(max_size=5))
def test_exceptions_keep_what_travels(args: list[Any], note: str) -> None:
    error = LookupError(*args)
    error.add_note(note)
    error.__cause__ = OSError(2, "missing")
    arrived = round_trip([error])[0]
    assert type(arrived) is LookupError
    assert all(map(same, arrived.args, error.args))
    assert arrived.__notes__[0] == note
    assert isinstance(arrived.__cause__, OSError)
    assert arrived.__cause__.errno == 2
