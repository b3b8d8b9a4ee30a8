"""Named tuples of classes that no public name leads to, and tuples of classes in C."""

from __future__ import annotations

import functools
import itertools
import logging.config
import os
import platform
import shutil
import sys
import time
import types
from collections import namedtuple
from typing import Any, NamedTuple

import msgpack
import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from telegrad import tensor
from telegrad.errors import DecodeError, EncodeError
from telegrad.wire import decode, encode
from telegrad.wire.document import KINDS, MARKERS, Tag
from tests.wire.samples import Pair, round_trip

HERE = __name__
MATRIX = np.array([[2.0, 1.0], [1.0, 3.0]])


class _Private(NamedTuple):
    left: Any
    right: Any = None

    def total(self) -> Any:
        return self.left + self.right


class _Dropped(NamedTuple):
    left: Any


_Dropped.__del__ = lambda self: None  # type: ignore[attr-defined]


class Base(NamedTuple):
    item: Any


class Open(Base):
    """A named tuple with room for attributes."""

    unit = "m"

    @functools.cached_property
    def slow(self) -> int:
        raise AssertionError("ran")

    @property
    def scale(self) -> Any:
        return self.__dict__["scale"]

    def method(self) -> None: ...


class _NotNamed(tuple[int, ...]):
    __slots__ = ()


def struct(name: object, count: object, names: object, *values: object) -> bytes:
    document: bytes = msgpack.packb([MARKERS[Tag.STRUCT], name, count, names, *values])
    return document


def same(arrived: Any, value: Any) -> None:
    assert type(arrived) is type(value)
    for one, other in itertools.zip_longest(arrived, value):
        np.testing.assert_array_equal(one, other)


# -- NumPy's, SciPy's, Python's ------------------------------------------------------------------


@pytest.mark.parametrize("name", ["svd", "eig", "eigh", "qr", "slogdet"])
def test_results_of_linalg_arrive_as_they_are(name: str) -> None:
    value = getattr(np.linalg, name)(MATRIX)
    assert type(value).__match_args__
    same(round_trip(value), value)
    same(round_trip({"a": [value]})["a"][0], value)


@pytest.mark.parametrize("name", ["unique_all", "unique_counts", "unique_inverse"])
def test_results_of_unique_arrive_as_they_are(name: str) -> None:
    value = getattr(np, name)(np.array([3, 1, 3]))
    same(round_trip(value), value)


@pytest.mark.parametrize(
    "value",
    [
        os.stat(os.curdir),
        os.statvfs(os.curdir),
        os.uname(),
        os.times(),
        os.terminal_size((80, 24)),
        time.localtime(0),
        time.gmtime(0),
    ],
    ids=lambda value: type(value).__qualname__,
)
def test_structs_of_c_arrive_with_what_stands_beside_their_items(value: Any) -> None:
    arrived = round_trip([value])[0]
    assert type(arrived) is type(value)
    assert arrived.__reduce__() == value.__reduce__()


def test_scipys_results_arrive_with_their_attributes() -> None:
    x, y = np.arange(5.0), np.array([1.0, 3.0, 2.0, 5.0, 4.0])
    line = round_trip(scipy.stats.linregress(x, y))
    assert line.intercept_stderr == scipy.stats.linregress(x, y).intercept_stderr
    for value in (scipy.stats.ttest_ind(x, y), scipy.stats.pearsonr(x, y), scipy.stats.mode(x)):
        same(round_trip(value), value)
    assert round_trip(scipy.stats.ttest_ind(x, y)).df == 8
    interval = scipy.stats.pearsonr(x, y).confidence_interval()
    assert round_trip(scipy.stats.pearsonr(x, y)).confidence_interval() == interval


def test_scipys_dicts_arrive_with_their_attributes() -> None:
    found = scipy.optimize.minimize(lambda v: float((v**2).sum()), [1.0, 2.0], method="BFGS")
    root = scipy.optimize.root_scalar(lambda v: v - 1, bracket=[0, 2])
    for value in (found, root):
        arrived = round_trip(value)
        assert type(arrived) is type(value)
        assert list(arrived) == list(value)
    assert round_trip(found).success is True
    np.testing.assert_array_equal(round_trip(found).x, found.x)
    with pytest.raises(EncodeError, match=r"send dict\(value\)"):
        encode(scipy.optimize.OptimizeResult({1: 2}))


def test_a_named_tuple_of_tensors() -> None:
    value: Any = np.linalg.svd(tensor(MATRIX))
    arrived = round_trip(value)
    assert type(arrived) is type(value)
    np.testing.assert_array_equal(arrived.S.numpy(), value.S.numpy())


# -- those of a program --------------------------------------------------------------------------


def test_a_class_with_a_private_name_is_found() -> None:
    arrived = round_trip([_Private(1, (2, 3))])[0]
    assert arrived == _Private(1, (2, 3))
    assert type(arrived) is _Private
    assert round_trip({_Private(1, 2): 1}) == {(1, 2): 1}


@given(st.lists(st.text(max_size=3), min_size=1, max_size=5), st.lists(st.text(), max_size=5))
def test_a_class_that_no_name_leads_to_is_made_anew(names: list[str], values: list[str]) -> None:
    items = (values * 5 + [""] * 5)[: len(names)]
    cls = namedtuple("Lost", names, rename=True)  # type: ignore[misc]
    value = cls(*items)
    arrived = round_trip(value)
    assert repr(arrived) == repr(value)
    assert arrived == value
    fields: tuple[str, ...] = vars(cls)["__match_args__"]
    for name in fields:
        assert getattr(arrived, name) == getattr(value, name)
    assert type(round_trip(arrived)) is type(arrived)


@pytest.mark.parametrize(
    "value",
    [shutil.disk_usage(os.curdir), functools.lru_cache(len).cache_info(), sys.version_info,
     sys.flags],
    ids=lambda value: type(value).__qualname__,
)  # fmt: skip
def test_pythons_own_that_no_name_leads_to(value: Any) -> None:
    arrived = round_trip(value)
    assert arrived == tuple(value)
    first = [name for name in dir(value) if not name.startswith(("_", "n_"))][0]  # noqa: RUF015
    assert getattr(arrived, first) == getattr(value, first) or callable(getattr(value, first))


def test_attributes_beside_the_items_arrive() -> None:
    value: Any = Open(1)
    value.__dict__.update(note="x", scale=2, unit="km", _library=np, slow=3)
    arrived = round_trip(value)
    assert type(arrived) is Open
    assert arrived.__dict__ == {"note": "x", "scale": 2, "unit": "km"}
    assert arrived.scale == 2
    with pytest.raises(EncodeError, match=r"value\.note cannot travel"):
        value.note = types
        encode(value)

    class Lost(Base):
        pass

    lost: Any = Lost(1)
    lost.note = [2]
    arrived = round_trip(lost)
    assert (arrived, arrived.item, arrived.note) == ((1,), 1, [2])
    assert round_trip(arrived).note == [2]


def test_what_cannot_arrive_whole_is_refused_with_advice() -> None:
    class Lost(NamedTuple):
        item: int

        def doubled(self) -> int:
            return 2 * self.item

    with pytest.raises(EncodeError, match=r"a class with 'doubled' .*, or send tuple\(value\)"):
        encode(Lost(1))
    with pytest.raises(EncodeError, match=r"of 5 items, whose class has 6 fields; send tuple\("):
        encode(platform.uname())
    assert round_trip(tuple(platform.uname())) == tuple(platform.uname())
    with pytest.raises(EncodeError, match="__del__"):
        encode(_Dropped(1))


# -- what strangers may send ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "os:environ",
        "subprocess:Popen",
        "subprocess:_active",
        "builtins:object",
        "builtins:dict",
        "collections:OrderedDict",
        f"logging.config:{logging.config.ConvertingDict.__name__}",
        f"{HERE}:_NotNamed",
        f"{HERE}:_Dropped",
        f"{HERE}:_Private.total",
        f"{HERE}:_Private.__class__",
        f"{HERE}:os.stat_result",
        "antigravity:_Point",
        "no.such.module:_Point",
        "_:_",
        ":",
        "a:b:c",
        "",
        "1",
        "not a name",
    ],
)
def test_nothing_but_named_tuples_is_built(name: str) -> None:
    for names in ([], ["left"], ["left", "right"]):
        for count in range(len(names) + 1):
            with pytest.raises(DecodeError):
                decode(struct(name, count, names, *range(len(names))))
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (struct(f"{HERE}:_Private", 2, ["left", "other"], 1, 2), "other fields here"),
        (struct(f"{HERE}:_Private", 2, ["left", "right", "x"], 1, 2, 3), "no place for 'x'"),
        (struct(f"{HERE}:Open", 1, ["item", "method"], 1, 2), "'method', which it has not here"),
        (struct(f"{HERE}:Open", 1, ["item", "slow"], 1, 2), "'slow', which it has not here"),
        (struct(f"{HERE}:Open", 1, ["item", "__class__"], 1, 2), "which it has not here"),
        (struct(f"{HERE}:Open", 1, ["item"], 1, 2), "numbers of names and values"),
        (struct(f"{HERE}:Open", 2, ["item"], 1), "numbers of names and values"),
        (struct(f"{HERE}:Open", True, ["item"], 1), "numbers of names and values"),
        (struct("Lost", 1, [1], 1), "without names"),
        (struct("Lost", 1, "a", 1), "without names"),
        (struct(None, 1, ["a"], 1), "without a name"),
        (struct("Lost", 0, ["count"], 1), "'count', which it has not here"),
        (struct("Lost", 2000, ["a"] * 2000, *range(2000)), "more than 1000 names"),
        (struct("os:stat_result", 1, ["st_mode"], 1), "other fields here"),
        (struct("os:stat_result", 10, ["", "x"] * 5 + ["wrong"], *range(11)), "other fields"),
        (struct("sys:version_info", 0, []), "no class"),
    ],
)
def test_what_is_wrong_is_refused(document: bytes, words: str) -> None:
    with pytest.raises(DecodeError, match=words):
        decode(document)


def test_classes_that_are_made_are_counted() -> None:
    def lost(n: int) -> bytes:
        trees = [[MARKERS[Tag.STRUCT], f"Lost{i % n}", 1, ["a"], i] for i in range(2 * KINDS)]
        document: bytes = msgpack.packb(trees)
        return document

    assert len(decode(lost(KINDS))) == 2 * KINDS
    with pytest.raises(DecodeError, match=f"more than {KINDS} kinds of named tuples"):
        decode(lost(KINDS + 1))


def test_the_path_to_an_item_is_its_name() -> None:
    with pytest.raises(EncodeError) as caught:
        encode(_Private(1, Pair(2, object())))
    assert caught.value.path == "value.right.right"
    wrong = [MARKERS[Tag.DATE], 1]
    document = struct(f"{HERE}:_Private", 2, ["left", "right"], 1, wrong)
    with pytest.raises(DecodeError, match=r"at value\.right"):
        decode(document)
