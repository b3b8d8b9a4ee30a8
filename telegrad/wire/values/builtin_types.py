"""Python's own types on the wire, beyond those that msgpack has."""

from __future__ import annotations

import datetime as dt
import os
import re
import struct
import types
import zoneinfo
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from enum import Enum
from operator import attrgetter
from pathlib import Path, PosixPath, PurePath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any, Final, TypeAlias
from uuid import UUID

import msgpack
import numpy as np

from telegrad.errors import DecodeError
from telegrad.wire.document import FEW_KEYS, MARKERS, Conversion, Reading, Refused, Tag
from telegrad.wire.names import attribute, bases, first_in_bases, is_exactly, namespace
from telegrad.wire.values.class_types import fields_of_dataclass

# -- members of sets and keys of dicts: only those that hash and compare without program code ----
#
# Building a set or a dict hashes its members or keys, and compares those with equal hashes. If
# Python or `dataclasses` wrote the methods for that, these are safe. A `__hash__` or an `__eq__` of
# the program's would run for any data that anyone sends.
#
#     None, numbers, text, bytes, dates, paths, ...   allowed
#     tuples, named tuples                            allowed if their items are
#     dataclasses                                     allowed with the methods that `dataclasses`
#                                                     made, if the fields they read are allowed
#     enums, objects compared by identity             allowed
#     with a `__hash__` or `__eq__` of their own      refused

# Returns the parts that are hashed and compared along with an object; or the name of code that
# would run.
_Plan: TypeAlias = Callable[[Any], Iterable[object]] | str

# Classes are compared by identity, here and below, as a metaclass may have a `__hash__`, too. The
# members of a frozenset were checked when it was built.
_QUIET: Final = frozenset(
    map(
        id,
        (
            type(None), bool, int, float, complex, str, bytes, type(...), frozenset, range,
            Decimal, UUID, PosixPath, PurePosixPath, PureWindowsPath, WindowsPath,
            dt.date, dt.time, dt.datetime, dt.timedelta, dt.timezone, zoneinfo.ZoneInfo,
        ),
    )
)  # fmt: skip
# Names that the methods of `dataclasses` use besides the fields.
_NAMED: Final = {
    "__hash__": frozenset({"hash"}),
    "__eq__": frozenset({"__class__", "NotImplemented"}),
}
# Attributes that NumPy looks up in an object which is compared with one of its scalars or dtypes.
_NUMPY: Final = (np.generic, np.dtype)
_NUMPY_ASKS: Final = (
    "__array__", "__array_interface__", "__array_priority__", "__array_struct__", "__array_ufunc__",
    "__buffer__", "__complex__", "__float__", "__getattr__", "__getitem__", "__index__", "__int__",
    "__iter__", "__len__", "dtype",
)  # fmt: skip


def code_of(values: Iterable[object]) -> str | None:
    """Returns the code of the program's that would run to hash and compare these values.

    Args:
        values: The members of a set, or the keys of a dict.

    Returns:
        A name, for instance `Point.__hash__`; None if no such code would run.

    >>> from fractions import Fraction
    >>> code_of([1, (2, Fraction(1, 2))]), code_of([1, (2, "x")])
    ('Fraction.__hash__', None)
    """
    waiting = [each for each in values if id(type(each)) not in _QUIET]
    plans: dict[int, _Plan] = {}
    kinds: list[type] = []
    while waiting:
        value = waiting.pop()
        kind = type(value)
        if id(kind) in _QUIET:
            continue
        plan = plans.get(id(kind))
        if plan is None:
            plan = plans[id(kind)] = _plan(kind)
            kinds.append(kind)
        if isinstance(plan, str):
            return plan
        waiting.extend(plan(value))
    if any(issubclass(kind, _NUMPY) for kind in kinds):
        return next(filter(None, map(_answer_to_numpy, kinds)), None)
    return None


def check_hashing(values: Sequence[object]) -> None:
    """Checks values that are about to become the members of a set or the keys of a dict.

    Raises:
        DecodeError: Code of the program's would run.
    """
    if _QUIET.issuperset(map(id, map(type, values))):
        return
    if (code := code_of(values)) is not None:
        raise DecodeError(
            f"a set or a dict whose members or keys are hashed and compared by {code}, and reading "
            "a message runs no code; have a list, or a list of pairs, sent instead"
        )


def refuse_hashing(values: Sequence[object], what: str, instead: str) -> None:
    """Checks members or keys before they are sent.

    Args:
        values: The members or keys.
        what: The type to build from them: `set`, `dict`.
        instead: A value to send instead, for the error.

    Raises:
        Refused: The receiver would refuse them.
    """
    if _QUIET.issuperset(map(id, map(type, values))):
        return
    if (code := code_of(values)) is not None:
        raise Refused(
            f"a {what} which hashes and compares by {code}, code that no receiver runs to read a"
            f" message; send {instead}, and make the {what} where it arrives"
        )


def _plan(kind: type) -> _Plan:
    if kind is tuple:
        return tuple.__iter__
    if kind is slice:
        return attrgetter("start", "stop", "step")
    if kind is types.MethodType:
        return lambda method: (method.__func__,)
    read: set[str] = set()
    for name in ("__hash__", "__eq__"):
        raw = first_in_bases(kind, name)
        if raw is None or type(raw) is types.WrapperDescriptorType or _is_known(raw):
            continue
        fields = _fields_read(kind, name, raw)
        if fields is None:
            return f"{_name(kind)}.{name}"
        read |= fields
    if (code := _looks_up_by(kind, read)) is not None:
        return code
    if issubclass(kind, tuple):
        return tuple.__iter__
    if not read:
        return lambda value: ()
    getter = attrgetter(*read)
    return (lambda value: (getter(value),)) if len(read) == 1 else getter


def _name(kind: type) -> str:
    return str(attribute(kind, "__qualname__"))


def _is_known(raw: object) -> bool:
    """Returns True for a method of telegrad's own, or of enum."""
    if type(raw) is not types.FunctionType:
        return False
    home = str(raw.__globals__.get("__name__"))
    return raw is namespace(Enum)["__hash__"] or home.partition(".")[0] == "telegrad"


def _fields_read(kind: type, name: str, raw: object) -> set[str] | None:
    """Returns the fields that a method made by `dataclasses` reads; None for other methods."""
    definer = next(base for base in bases(kind) if name in namespace(base))
    fields = fields_of_dataclass(definer)
    if fields is None or type(raw) is not types.FunctionType:
        return None
    code = raw.__code__
    if code.co_filename != "<string>" or code.co_name != name or code.co_freevars:
        return None
    if raw.__globals__.get("hash", hash) is not hash:  # it would call the module's own `hash`
        return None
    read = set(code.co_names) - _NAMED[name]
    return read if read <= set(fields) else None


def _looks_up_by(kind: type, names: Iterable[str]) -> str | None:
    """Returns the code that would run to look up these attributes, or the class, of an object."""
    if type(first_in_bases(kind, "__getattribute__")) is not types.WrapperDescriptorType:
        return f"{_name(kind)}.__getattribute__"
    if first_in_bases(kind, "__class__") is not namespace(object)["__class__"]:
        return f"{_name(kind)}.__class__"
    for name in names:
        raw = first_in_bases(kind, name)
        if raw is ... or type(raw) is types.MemberDescriptorType:
            continue
        if first_in_bases(type(raw), "__set__") is not ...:  # precedes the object's own
            return f"{_name(kind)}.{name}"
    return None


def _answer_to_numpy(kind: type) -> str | None:
    for name in _NUMPY_ASKS:
        raw = first_in_bases(kind, name)
        if type(raw) is types.FunctionType or type(raw) is property:
            return f"{_name(kind)}.{name}"
    return None


# -- the types -----------------------------------------------------------------------------------

_COMPLEX = struct.Struct("<dd")
_ZONE_KEY = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*")
# The types of factories that are sent by reference. An instance of a class with `__call__` is not
# among them, as it has state at the sender.
_FACTORIES = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType)
# The tags of dates with a time and of times, and the fields that travel before the zone.
_CLOCK = ("hour", "minute", "second", "microsecond", "fold")
_MOMENTS: dict[type, tuple[Tag, Callable[[Any], tuple[int, ...]]]] = {
    dt.time: (Tag.TIME, attrgetter(*_CLOCK)),
    dt.datetime: (Tag.DATETIME, attrgetter("year", "month", "day", *_CLOCK)),
}
_PATHS: dict[bytes, type[PurePath]] = {b"P": Path, b"p": PurePosixPath, b"w": PureWindowsPath}


def big_int(value: int) -> object:
    """Encodes an integer of any size as its two's complement, little-endian."""
    octets = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return msgpack.ExtType(Tag.BIG_INT, octets)


def integers(items: list[Any], count: int) -> list[int]:
    """Returns the items if there are `count` of them, all plain integers.

    Raises:
        DecodeError: The items are something else.
    """
    if len(items) != count or any(type(item) is not int for item in items):
        raise DecodeError(f"{count} integers were expected")
    return items


# -- leaves ------------------------------------------------------------------------------------


def _encode_path(conversion: Conversion, value: PurePath) -> object:
    kind = b"P" if isinstance(value, Path) else b"p" if isinstance(value, PurePosixPath) else b"w"
    return msgpack.ExtType(Tag.PATH, kind + str(value).encode("utf-8", "surrogatepass"))


def _decode_path(reading: Reading, payload: bytes) -> object:
    return _PATHS[payload[:1]](payload[1:].decode("utf-8", "surrogatepass"))


def _encode_zone(conversion: Conversion, value: zoneinfo.ZoneInfo) -> object:
    if value.key is None:
        raise Refused("a time zone without a key; use one of zoneinfo.ZoneInfo(name)")
    return msgpack.ExtType(Tag.ZONE, value.key.encode())


def _decode_zone(reading: Reading, payload: bytes) -> object:
    """Reads a zone from the system's own files only: the `tzdata` package would be an import."""
    key = payload.decode("ascii")
    if not _ZONE_KEY.fullmatch(key):
        raise DecodeError(f"{key[:100]!r} is not the name of a time zone")
    if not any(os.path.isfile(os.path.join(root, key)) for root in zoneinfo.TZPATH):
        raise DecodeError(f"this machine does not know the time zone {key!r}")
    return zoneinfo.ZoneInfo(key)


def _decode_complex(reading: Reading, payload: bytes) -> object:
    return complex(*_COMPLEX.unpack(payload))


def _decode_big_int(reading: Reading, payload: bytes) -> object:
    return int.from_bytes(payload, "little", signed=True)


def _decode_external(reading: Reading, payload: bytes) -> object:
    if len(payload) != 4:
        raise DecodeError(f"an external's index has 4 bytes, not {len(payload)}")
    return reading.external(int.from_bytes(payload, "big"))


LEAF_ENCODERS: dict[type, Callable[[Conversion, Any], object]] = {
    complex: lambda _, v: msgpack.ExtType(Tag.COMPLEX, _COMPLEX.pack(v.real, v.imag)),
    type(...): lambda _, v: msgpack.ExtType(Tag.ELLIPSIS, b""),
    Decimal: lambda _, v: msgpack.ExtType(Tag.DECIMAL, str(v).encode("ascii")),
    UUID: lambda _, v: msgpack.ExtType(Tag.UUID, v.bytes),
    zoneinfo.ZoneInfo: _encode_zone,
    **dict.fromkeys((PurePosixPath, PureWindowsPath, PosixPath, WindowsPath), _encode_path),
}

LEAF_DECODERS: dict[Tag, Callable[[Reading, bytes], object]] = {
    Tag.EXTERNAL: _decode_external,
    Tag.BIG_INT: _decode_big_int,
    Tag.COMPLEX: _decode_complex,
    Tag.ELLIPSIS: lambda _, payload: ...,
    Tag.DECIMAL: lambda _, payload: Decimal(payload.decode("ascii")),
    Tag.UUID: lambda _, payload: UUID(bytes=payload),
    Tag.PATH: _decode_path,
    Tag.FUNCTION: lambda reading, payload: reading.function(payload.decode()),
    Tag.ZONE: _decode_zone,
    Tag.BYTEARRAY: lambda _, payload: bytearray(payload),
}


# -- compounds ---------------------------------------------------------------------------------


def encode_mapping(conversion: Conversion, value: Mapping[Any, Any], tag: Tag) -> list[object]:
    """Encodes a mapping as keys and values in turn."""
    names = list(value)
    keys = conversion.items(names, lambda i: ".keys()")
    refuse_hashing(names, type(value).__qualname__, "list(value.items())")
    items = conversion.items(list(value.values()), lambda i: f"[{_short(names[i])}]")
    pairs = [part for pair in zip(keys, items, strict=True) for part in pair]
    return [MARKERS[tag], *pairs]


def _short(key: object) -> str:
    text = repr(key)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _decode_mapping(reading: Reading, items: list[Any]) -> dict[Any, Any]:
    if len(items) % 2:
        raise DecodeError("a dict with a key and no value")
    keys = items[::2]
    check_hashing(keys)
    pairs = zip(keys, items[1::2], strict=True)
    if len(items) <= FEW_KEYS:
        return dict(pairs)
    mapping: dict[Any, Any] = {}
    reading.allowance.fill(mapping.update, list(pairs))
    return mapping


def _encode_set(conversion: Conversion, value: set[Any] | frozenset[Any]) -> object:
    members = list(value)
    items = conversion.items(members, lambda i: "{...}")
    refuse_hashing(members, type(value).__qualname__, "list(value)")
    return [MARKERS[Tag.SET if type(value) is set else Tag.FROZENSET], *items]


def _decode_set(reading: Reading, items: list[Any]) -> set[Any]:
    check_hashing(items)
    if len(items) <= FEW_KEYS:
        return set(items)
    values: set[Any] = set()
    reading.allowance.fill(values.update, items)
    return values


def _encode_moment(conversion: Conversion, value: dt.datetime | dt.time) -> object:
    tag, fields_of = _MOMENTS[type(value)]
    return [MARKERS[tag], *fields_of(value), *conversion.items([value.tzinfo], lambda i: ".tzinfo")]


def _decode_moment(kind: Callable[..., object], count: int, items: list[Any]) -> object:
    *fields, fold = integers(items[:-1], count)
    return kind(*fields, tzinfo=_zone(items), fold=fold)


def _zone(items: list[Any]) -> dt.tzinfo | None:
    zone = items[-1]
    if zone is None or is_exactly(zone, dt.timezone, zoneinfo.ZoneInfo):
        return zone  # type: ignore[no-any-return]  # narrowed by exact type
    raise DecodeError("a value that is not a time zone in place of one")


def _encode_timezone(conversion: Conversion, value: dt.timezone) -> object:
    offset = value.utcoffset(None)
    plain = dt.timezone(offset)
    name = None if value.tzname(None) == plain.tzname(None) else value.tzname(None)
    return [MARKERS[Tag.TIMEZONE], offset.days, offset.seconds, offset.microseconds, name]


def _decode_timezone(reading: Reading, items: list[Any]) -> object:
    offset = dt.timedelta(*integers(items[:-1], 3))
    if not is_exactly(items[-1], str, type(None)):
        raise DecodeError("a time zone that is not named by a string")
    return dt.timezone(offset) if items[-1] is None else dt.timezone(offset, items[-1])


def _decode_deque(reading: Reading, items: list[Any]) -> object:
    bound, *values = items
    if bound is not None:
        integers([bound], 1)
    return deque(values, bound)


def _encode_default_dict(conversion: Conversion, value: defaultdict[Any, Any]) -> object:
    factory = value.default_factory
    if factory is not None and not isinstance(factory, _FACTORIES):
        raise Refused(
            f"a defaultdict whose factory is a {type(factory).__qualname__}; send dict(value), or"
            " give it a function or class that both ends import"
        )
    marker, *pairs = encode_mapping(conversion, value, Tag.DEFAULT_DICT)
    return [marker, *conversion.items([factory], lambda i: ".default_factory"), *pairs]


def _decode_default_dict(reading: Reading, items: list[Any]) -> object:
    factory, *pairs = items
    if factory is not None and not issubclass(type(factory), _FACTORIES):
        raise DecodeError("a defaultdict whose factory is no function")
    return defaultdict(factory, _decode_mapping(reading, pairs))


COMPOUND_ENCODERS: dict[type, Callable[[Conversion, Any], object]] = {
    tuple: lambda c, v: [MARKERS[Tag.TUPLE], *c.items(v)],
    set: _encode_set,
    frozenset: _encode_set,
    slice: lambda c, v: [
        MARKERS[Tag.SLICE],
        *c.items((v.start, v.stop, v.step), (".start", ".stop", ".step").__getitem__),
    ],
    range: lambda _, v: [MARKERS[Tag.RANGE], v.start, v.stop, v.step],
    dt.date: lambda _, v: [MARKERS[Tag.DATE], v.year, v.month, v.day],
    dt.time: _encode_moment,
    dt.datetime: _encode_moment,
    dt.timedelta: lambda _, v: [MARKERS[Tag.TIMEDELTA], v.days, v.seconds, v.microseconds],
    dt.timezone: _encode_timezone,
    OrderedDict: lambda c, v: encode_mapping(c, v, Tag.ORDERED_DICT),
    Counter: lambda c, v: encode_mapping(c, v, Tag.COUNTER),
    defaultdict: _encode_default_dict,
    deque: lambda c, v: [MARKERS[Tag.DEQUE], v.maxlen, *c.items(v)],
}

COMPOUND_DECODERS: dict[Tag, Callable[[Reading, list[Any]], object]] = {
    Tag.TUPLE: lambda _, items: tuple(items),
    Tag.SET: _decode_set,
    Tag.FROZENSET: lambda reading, items: frozenset(_decode_set(reading, items)),
    Tag.DICT: _decode_mapping,
    Tag.ORDERED_DICT: lambda reading, items: OrderedDict(_decode_mapping(reading, items)),
    Tag.COUNTER: lambda reading, items: Counter(_decode_mapping(reading, items)),
    Tag.DEFAULT_DICT: _decode_default_dict,
    Tag.DEQUE: _decode_deque,
    Tag.SLICE: lambda _, items: slice(*items),
    Tag.RANGE: lambda _, items: range(*integers(items, 3)),
    Tag.DATE: lambda _, items: dt.date(*integers(items, 3)),
    Tag.TIME: lambda _, items: _decode_moment(dt.time, 5, items),
    Tag.DATETIME: lambda _, items: _decode_moment(dt.datetime, 8, items),
    Tag.TIMEDELTA: lambda _, items: dt.timedelta(*integers(items, 3)),
    Tag.TIMEZONE: _decode_timezone,
}
