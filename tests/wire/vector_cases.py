"""The values of the published test vectors, and the form in which JSON shows them.

`shown` looks at values and never at bytes, so what it gives is what the bytes have to mean.
"""

from __future__ import annotations

import datetime as dt
import math
import operator
import time
import zoneinfo
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum, Flag, auto
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple
from uuid import UUID

import ml_dtypes
import numpy as np
import scipy.sparse

import telegrad.dist_autograd  # noqa: F401 - makes Tensors travel
from telegrad import Tensor, tensor
from telegrad.autograd import RowSparse
from telegrad.types import WorkerInfo
from telegrad.wire import register_type

UTC = dt.UTC


class Color(Enum):
    RED = 1
    GREEN = "green"


class Access(Flag):
    READ = auto()
    WRITE = auto()


@dataclass
class Point:
    x: float
    y: Any = 0
    tags: list[str] = field(default_factory=list)


class Pair(NamedTuple):
    left: Any
    right: Any = None


class _Row(NamedTuple):
    number: int
    text: str


class Marked(Pair):
    """A named tuple with room for attributes."""


def marked() -> Marked:
    value = Marked(2, 0.5)
    value.note = "x"  # type: ignore[attr-defined]
    return value


Unfindable = namedtuple("Lost", ("value",))  # type: ignore[name-match]


class Interval:
    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = low, high


@dataclass
class Beside:
    """Bytes that are taken for so many that they travel beside the document."""

    value: bytes | bytearray


@dataclass
class ForGpu:
    """An array of a GPU that is to arrive on the GPU of a number, and on its first one for 0."""

    value: np.ndarray[Any, Any]
    number: int


class Secret:
    """Cannot travel; of an exception's argument its words do."""

    def __repr__(self) -> str:
        return "<a secret>"


def double(x: Any) -> Any:
    return 2 * x


register_type(Interval, encode=lambda v: (v.low, v.high), decode=lambda v: Interval(*v))


def failure() -> Exception:
    """Returns an exception with all that one can have."""
    try:
        try:
            raise KeyError("w")
        except KeyError as cause:
            raise FileNotFoundError(2, "not there", "/data") from cause
    except FileNotFoundError as error:
        error.add_note("while loading")
        return error


PLAIN: dict[str, Any] = {
    "none": None,
    "true": True,
    "false": False,
    "zero": 0,
    "negative fixint": -32,
    "uint8": 200,
    "int16": -1000,
    "uint32": 2**32 - 1,
    "int64, beyond what a double holds": -(2**53) - 1,
    "the biggest plain integer": 2**64 - 1,
    "the smallest plain integer": -(2**63),
    "float": 1.5,
    "float that is whole": 2.0,
    "negative zero": -0.0,
    "the smallest float": 5e-324,
    "not a number": math.nan,
    "infinity": math.inf,
    "negative infinity": -math.inf,
    "empty text": "",
    "text": "grüße, 世界 🌍",
    "text with a lone surrogate": "a\udc80b",
    "bytes": b"\x00\xff",
    "empty list": [],
    "list": [1, "two", [3.0, None]],
    "empty dict": {},
    "dict": {"lr": 0.1, "nested": {"on": True}},
}

TAGGED: dict[str, Any] = {
    "an integer beyond 64 bits": 2**64,
    "a negative integer beyond 64 bits": -(2**63) - 1,
    "a very big integer": 3**100,
    "complex": 1.5 - 2j,
    "ellipsis": ...,
    "decimal": Decimal("-1.10"),
    "uuid": UUID("12345678-1234-5678-1234-567812345678"),
    "path": Path("/data/a b"),
    "pure posix path": PurePosixPath("a/b"),
    "pure windows path": PureWindowsPath("c:/a"),
    "function": double,
    "class": Point,
    "function of C": operator.add,
    "time zone by name": zoneinfo.ZoneInfo("Europe/Berlin"),
    "bytearray": bytearray(b"ab"),
    "empty tuple": (),
    "tuple": (1, "a", (2.0,)),
    "tuple in a list that begins with an ellipsis": [..., (1,)],
    "set of one": {7},
    "set of several": {1, 2, 3},
    "frozenset": frozenset({(1, 2)}),
    "dict with other keys": {1: "one", (2, 3): None, "s": 2.5},
    "dict with one key that is no text": {None: 0},
    "slice": slice(1, None, -1),
    "range": range(0, 10, 3),
    "date": dt.date(2024, 2, 29),
    "time": dt.time(1, 2, 3, 4),
    "time with a zone": dt.time(1, 2, 3, tzinfo=UTC),
    "datetime": dt.datetime(2024, 10, 27, 2, 30, 0, 123456),
    "datetime the second time": dt.datetime(
        2024, 10, 27, 2, 30, fold=1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")
    ),
    "timedelta": dt.timedelta(days=-1, seconds=5, microseconds=6),
    "timezone": dt.timezone(dt.timedelta(hours=-3, minutes=-30)),
    "timezone with a name": dt.timezone(dt.timedelta(hours=1), "CET"),
    "ordered dict": OrderedDict([("b", 1), ("a", 2)]),
    "counter": Counter({"a": 2, (1,): 1}),
    "default dict": defaultdict(list, {"a": [1]}),
    "default dict without a factory": defaultdict(None, {1: 2}),
    "deque": deque([1, 2], 5),
    "deque without a bound": deque(["a"]),
    "enum": Color.GREEN,
    "combined flags": Access.READ | Access.WRITE,
    "dataclass": Point(1.0, (2, 3), ["a"]),
    "named tuple": Pair(1, [2]),
    "named tuple of a private class": _Row(1, "a"),
    "named tuple with an attribute": marked(),
    "named tuple whose class nobody can find": Unfindable(3),
    "tuple of a class in C": time.struct_time((2024, 2, 29, 1, 2, 3, 3, 60, 0), {"tm_zone": "CET"}),
    "registered type": Interval(0.5, 1.5),
    "dtype": np.dtype("<f4"),
    "structured dtype": np.dtype([("a", "<i2"), ("b", ">f8", (2,))]),
    "ml dtype": np.dtype(ml_dtypes.bfloat16),
    "scalar float32": np.float32(0.1),
    "scalar bool": np.True_,
    "scalar int64": np.int64(-5),
    "scalar complex64": np.complex64(1 - 1j),
    "scalar datetime64": np.datetime64("2024-02-29T12:00:00", "ns"),
    "scalar str": np.str_("ab"),
    "scalar bfloat16": ml_dtypes.bfloat16(1.5),
}

_grid = np.arange(6, dtype="<f4").reshape(2, 3)
_record = np.zeros(2, np.dtype([("id", "<u4"), ("xy", "<f8", (2,)), ("name", "S3")], align=True))
_record["id"], _record["xy"], _record["name"] = [1, 2], [[0.5, 1.5], [2.5, 3.5]], [b"a", b"bcd"]
_one = np.array([1], "i4")
_twice = np.array([1, 2], "<i4")

ARRAYS: dict[str, Any] = {
    "bool": np.array([True, False]),
    **{f"int{8 * n}": np.array([-1, 0, 100], f"<i{n}") for n in (1, 2, 4, 8)},
    **{f"uint{8 * n}": np.array([0, 1, 200], f"<u{n}") for n in (1, 2, 4, 8)},
    **{f"float{8 * n}": np.array([-0.0, 1.5, np.inf, np.nan], f"<f{n}") for n in (2, 4, 8)},
    **{f"complex{8 * n}": np.array([1 - 2j, 0], f"<c{n}") for n in (8, 16)},
    "bytes": np.array([b"a", b"bcd"], "S3"),
    "text": np.array(["a", "世界"], "<U2"),
    "void": np.array([b"\x00\x01\x02\x03"], "V4"),
    "datetime64": np.array(["2024-02-29", "NaT"], "<M8[D]"),
    "timedelta64 in steps of 25 us": np.array([1, -2], "<m8[25us]"),
    "bfloat16": np.array([1.5, -2.0], ml_dtypes.bfloat16),
    "float8": np.array([1.5, -2.0], ml_dtypes.float8_e4m3fn),
    "int4": np.array([1, -2], ml_dtypes.int4),
    "structured, aligned, with an array inside": _record,
    "big-endian": np.array([1, 2], ">i4"),
    "big-endian text": np.array(["ab"], ">U2"),
    "no dimensions": np.array(3.5),
    "empty": np.zeros((0, 3), "<f4"),
    "two dimensions": _grid,
    "order of Fortran": np.asfortranarray(_grid),
    "neither order": np.arange(12, dtype="<i2").reshape(3, 4)[::2, ::-1],
    "three dimensions in the order of Fortran": np.asfortranarray(
        np.arange(24, dtype="<u1").reshape(2, 3, 4)
    ),
    "one array twice": [_twice, {"again": _twice}],
    "arrays among other things": {"w": _grid, "step": 3, "b": (np.float32(1), np.zeros(1, "<f8"))},
    "sparse csr": scipy.sparse.csr_array((np.array([1.5]), _one, np.array([0, 1, 1], "i4"))),
    "sparse coo": scipy.sparse.coo_array((np.array([2], "i8"), (_one, _one)), shape=(2, 3)),
}

OBJECTS: dict[str, Any] = {
    "many bytes": Beside(b"\x00\x01\x02\x03"),
    "a long bytearray": Beside(bytearray(b"abcd")),
    "an array for the first GPU": ForGpu(np.array([1.5, 2.5], "<f4"), 0),
    "an array for another GPU": ForGpu(np.array([1.5, 2.5], "<f4"), 2),
    "tensor": tensor([1.0, 2.0]),
    "a gradient of some rows": RowSparse(np.array([2, 0], "<i8"), np.ones((2, 1), "<f4"), (5, 1)),
    "worker": WorkerInfo("ps", 0, 1),
    "exception": ValueError("bad", 3),
    "exception with an array and an argument that cannot travel": ValueError(_twice, Secret()),
    "exception with attributes, a note and a cause": failure(),
}

# A set has no order; Python's is the same in every process where its members are small integers.
FREE_ORDER = frozenset({"set of several"})
# What cannot travel of it arrives in words.
LOSSY = frozenset({"exception with an array and an argument that cannot travel"})
BESIDE = frozenset({"many bytes", "a long bytearray"})
TABLES = {"plain": PLAIN, "tagged": TAGGED, "arrays": ARRAYS, "objects": OBJECTS}


# -- as JSON shows it -----------------------------------------------------------------------------


def shown(value: object) -> tuple[Any, list[Any]]:
    """Returns a value and what is lifted out of it, each array once."""
    lifted: list[Any] = []
    form = _shown(value, lifted)
    return form, [_external(each) for each in lifted]


def _external(lifted: Any) -> dict[str, Any]:
    if isinstance(lifted, RowSparse):
        parts = [_array(lifted.rows), _array(lifted.values), list(lifted.shape)]
        return {"$row_sparse": parts}
    if isinstance(lifted, Tensor):
        return {"$tensor": _array(lifted.data)}
    return {"$array": _array(lifted)}


def _shown(value: Any, lifted: list[Any]) -> Any:
    def inside(items: Any) -> list[Any]:
        return [_shown(item, lifted) for item in items]

    def pairs(mapping: Any) -> list[Any]:
        return [inside(pair) for pair in mapping.items()]

    kind = type(value)
    name = f"{kind.__module__}:{kind.__qualname__}"
    if kind in (bool, str, type(None)):
        return value
    if kind is Beside:
        tag = "$big_bytes" if type(value.value) is bytes else "$big_bytearray"
        return {tag: inside([np.frombuffer(value.value, np.uint8)])}
    if kind is ForGpu:
        return _shown(value.value, lifted)
    if kind in (np.ndarray, Tensor, RowSparse):
        if not any(each is value for each in lifted):
            lifted.append(value)
        return {"$external": next(i for i, each in enumerate(lifted) if each is value)}
    if kind is dict and all(type(key) is str for key in value):
        return {key: _shown(each, lifted) for key, each in value.items()}
    match value:
        case np.generic():
            item = _item(value.dtype, value)
            return {"$scalar": {"dtype": _dtype(value.dtype), "item": item}}
        case np.dtype():
            return {"$dtype": _dtype(value)}
        case Color():
            return {"$enum": [name, value.name]}
        case Access():
            return {"$flag": [name, value.value]}
        case int():
            return value if abs(value) < 2**53 else {"$int": str(value)}
        case float():
            return value if math.isfinite(value) else {"$float": str(value)}
        case bytes():
            return {"$bytes": value.hex()}
        case time.struct_time():
            hidden = [value.tm_zone, value.tm_gmtoff]
            names = [*kind.__match_args__, "tm_zone", "tm_gmtoff"]
            return {"$struct": [name, 9, names, *value, *hidden]}
        case Marked():
            own = vars(value)
            return {
                "$struct": [name, 2, [*kind.__match_args__, *own], *inside([*value, *own.values()])]
            }
        case tuple() if kind.__name__ in ("_Row", "Lost"):
            label = name if kind is _Row else "Lost"
            return {"$struct": [label, len(value), [*kind.__match_args__], *inside(value)]}
        case Pair():
            return {"$named_tuple": [name, inside(value)]}
        case Point():
            return {"$dataclass": [name, _shown(vars(value), lifted)]}
        case WorkerInfo():
            return {"$dataclass": [name, {each: getattr(value, each) for each in kind.__slots__}]}
        case BaseException():
            return {"$exception": _exception(value)}
        case Interval():
            return {"$registered": [name, {"$tuple": [value.low, value.high]}]}
        case list():
            return inside(value)
        case tuple():
            return {"$tuple": inside(value)}
        case set() | frozenset():
            return {f"${kind.__name__}": inside(sorted(value))}
        case OrderedDict():
            return {"$ordered_dict": pairs(value)}
        case Counter():
            return {"$counter": pairs(value)}
        case defaultdict():
            return {"$default_dict": [_shown(value.default_factory, lifted), *pairs(value)]}
        case dict():
            return {"$dict": pairs(value)}
        case deque():
            return {"$deque": [value.maxlen, *inside(value)]}
        case bytearray():
            return {"$bytearray": value.hex()}
        case complex():
            return {"$complex": [value.real, value.imag]}
        case Decimal():
            return {"$decimal": str(value)}
        case UUID():
            return {"$uuid": value.hex}
        case Path():
            return {"$path": ["P", str(value)]}
        case PurePosixPath():
            return {"$path": ["p", str(value)]}
        case PureWindowsPath():
            return {"$path": ["w", str(value)]}
        case slice():
            return {"$slice": inside([value.start, value.stop, value.step])}
        case range():
            return {"$range": [value.start, value.stop, value.step]}
        case scipy.sparse.csr_array():
            parts = (value.data, value.indices, value.indptr)
            return {"$sparse": ["csr_array", list(value.shape), *inside(parts)]}
        case scipy.sparse.coo_array():
            parts = (value.data, *value.coords)
            return {"$sparse": ["coo_array", list(value.shape), *inside(parts)]}
    if value is ...:
        return {"$ellipsis": None}
    if callable(value):
        module = value.__module__.removeprefix("_")  # operator's C functions say _operator
        return {"$function": f"{module}:{value.__qualname__}"}
    return _shown_time(value, inside)


def _exception(error: BaseException) -> dict[str, Any]:
    names = ("errno", "strerror", "filename") if isinstance(error, OSError) else ()
    return {
        "type": f"{type(error).__module__}:{type(error).__qualname__}",
        "message": str(error),
        "args": [[repr(each), _part(each)] for each in error.args],
        "attributes": {each: _part(getattr(error, each)) for each in names},
        "notes": list(getattr(error, "__notes__", [])),
        "cause": None if error.__cause__ is None else _exception(error.__cause__),
    }


def _part(value: object) -> dict[str, Any] | None:
    if isinstance(value, Secret):
        return None
    form, objects = shown(value)
    return {"value": form, "objects": objects}


def _shown_time(value: Any, inside: Any) -> Any:
    match value:
        case dt.datetime():
            fields = [*value.timetuple()[:6], value.microsecond, value.fold]
            return {"$datetime": [*fields, *inside([value.tzinfo])]}
        case dt.date():
            return {"$date": [value.year, value.month, value.day]}
        case dt.time():
            fields = [value.hour, value.minute, value.second, value.microsecond, value.fold]
            return {"$time": [*fields, *inside([value.tzinfo])]}
        case dt.timedelta():
            return {"$timedelta": [value.days, value.seconds, value.microseconds]}
        case dt.timezone():
            offset, name = value.utcoffset(None), value.tzname(None)
            own = None if name.startswith("UTC") else name
            return {"$timezone": [offset.days, offset.seconds, offset.microseconds, own]}
        case zoneinfo.ZoneInfo():
            return {"$zone": value.key}
    raise TypeError(f"{value!r} has no form in JSON yet")


def _array(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    items = [_item(array.dtype, array[index]) for index in np.ndindex(array.shape)]
    return {
        "dtype": _dtype(array.dtype),
        "order": "F" if fortran else "C",
        "shape": list(array.shape),
        "items": items,
    }


def _dtype(dtype: np.dtype[Any]) -> Any:
    if dtype.subdtype is not None:
        return ["sub", _dtype(dtype.subdtype[0]), list(dtype.subdtype[1])]
    if dtype.names is not None and dtype.fields is not None:
        members = [
            [name, None, dtype.fields[name][1], _dtype(dtype.fields[name][0])]
            for name in dtype.names
        ]
        return ["struct", dtype.itemsize, dtype.isalignedstruct, members]
    return ["ml", dtype.name] if dtype.type.__module__ == "ml_dtypes" else dtype.str


def _item(dtype: np.dtype[Any], item: Any) -> Any:
    if dtype.names is not None and dtype.fields is not None:
        return {name: _item(dtype.fields[name][0], item[name]) for name in dtype.names}
    if dtype.subdtype is not None:
        return [_item(dtype.subdtype[0], each) for each in item.reshape(-1)]
    if dtype.type.__module__ == "ml_dtypes" and dtype.name != "bfloat16":
        return {"$bytes": np.asarray(item).tobytes().hex()}
    match dtype.kind:
        case "b":
            return bool(item)
        case "U":
            return str(item)
        case "S":
            return {"$bytes": bytes(item).ljust(dtype.itemsize, b"\0").hex()}
        case "V" if dtype.name != "bfloat16":
            return {"$bytes": bytes(item).hex()}
        case "c":
            return {"$complex": [_shown(float(item.real), []), _shown(float(item.imag), [])]}
        case "f" | "V":
            return _shown(float(item), [])
    return _shown(int(np.asarray(item).astype("i8") if dtype.kind in "mM" else item), [])
