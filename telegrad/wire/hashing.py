"""What sets and dicts of a document may hold: nothing that hashes or compares by code of the program's.

Building a set or a dict hashes its members or keys, and compares those whose hashes are the same. Both
is data where Python, or `dataclasses`, wrote how; whoever wrote a `__hash__` or an `__eq__` would have
it run for what anyone sends.

    None, numbers, text, bytes, dates, paths, ...   may be there
    tuples, named tuples                            if what is in them may
    dataclasses                                     with the methods that `dataclasses` made, if the
                                                    fields that these read may
    enums, objects told apart by identity           may be there
    with a `__hash__` or `__eq__` of their own      refused
"""

from __future__ import annotations

import datetime as dt
import types
import zoneinfo
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from enum import Enum
from operator import attrgetter
from pathlib import PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any, Final, TypeAlias
from uuid import UUID

import numpy as np

from telegrad.errors import DecodeError
from telegrad.wire.class_types import fields_of_dataclass
from telegrad.wire.conversion import Refused
from telegrad.wire.lookup import attribute, bases, first_in_bases, namespace

__all__ = ["check_hashing", "code_of", "refuse_hashing"]

# What else is hashed and compared along with an object of some class; or the name of what would run.
_Plan: TypeAlias = Callable[[Any], Iterable[object]] | str

# Classes by identity, here and below: a metaclass may have a `__hash__`, too. A frozenset has been
# through here itself.
_QUIET: Final = frozenset(
    map(
        id,
        (
            type(None), bool, int, float, complex, str, bytes, type(...), frozenset, range,
            Decimal, UUID, PosixPath, PurePosixPath, PureWindowsPath, WindowsPath, zoneinfo.ZoneInfo,
            dt.date, dt.time, dt.datetime, dt.timedelta, dt.timezone,
        ),
    )
)  # fmt: skip
# Beside the fields, what the methods that `dataclasses` writes name.
_NAMED: Final = {
    "__hash__": frozenset({"hash"}),
    "__eq__": frozenset({"__class__", "NotImplemented"}),
}
# What NumPy looks for in whatever one of its scalars or dtypes is compared with.
_NUMPY: Final = (np.generic, np.dtype)
_NUMPY_ASKS: Final = (
    "__array__", "__array_interface__", "__array_priority__", "__array_struct__", "__array_ufunc__",
    "__buffer__", "__complex__", "__float__", "__getattr__", "__getitem__", "__index__", "__int__",
    "__iter__", "__len__", "dtype",
)  # fmt: skip


def code_of(values: Iterable[object]) -> str | None:
    """Returns what of the program's would run where these are hashed and compared.

    Args:
        values: The members of a set, or the keys of a dict.

    Returns:
        A name, for instance `Point.__hash__`; None where nothing would.

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
    """Checks what is about to become the members of a set or the keys of a dict.

    Raises:
        DecodeError: Code of the program's would run.
    """
    if _QUIET.issuperset(map(id, map(type, values))):
        return
    if (code := code_of(values)) is not None:
        raise DecodeError(
            f"a set or a dict whose members or keys are hashed and compared by {code}, and reading a"
            " message runs no code; have a list, or a list of pairs, sent instead"
        )


def refuse_hashing(values: Sequence[object], what: str, instead: str) -> None:
    """Checks the same before it is sent.

    Args:
        values: The members or keys.
        what: They are: `set`, `dict`.
        instead: What to send.

    Raises:
        Refused: The receiver would refuse it.
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
        return _itself
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
        return _nothing
    getter = attrgetter(*read)
    return (lambda value: (getter(value),)) if len(read) == 1 else getter


def _name(kind: type) -> str:
    return str(attribute(kind, "__qualname__"))


def _itself(value: tuple[Any, ...]) -> tuple[Any, ...]:
    return value


def _nothing(value: object) -> tuple[()]:
    del value
    return ()


def _is_known(raw: object) -> bool:
    """Whether it is a method of the library's own, or of enum."""
    if type(raw) is not types.FunctionType:
        return False
    home = str(raw.__globals__.get("__name__"))
    return raw is namespace(Enum)["__hash__"] or home.partition(".")[0] == "telegrad"


def _fields_read(kind: type, name: str, raw: object) -> set[str] | None:
    """Returns which fields a method reads that `dataclasses` has made; None if it has not."""
    definer = next(base for base in bases(kind) if name in namespace(base))
    fields = fields_of_dataclass(definer)
    if fields is None or type(raw) is not types.FunctionType:
        return None
    code = raw.__code__
    if code.co_filename != "<string>" or code.co_name != name or code.co_freevars:
        return None
    if raw.__globals__.get("hash", hash) is not hash:  # it would call that of its module
        return None
    read = set(code.co_names) - _NAMED[name]
    return read if read <= set(fields) else None


def _looks_up_by(kind: type, names: Iterable[str]) -> str | None:
    """Returns what runs where these attributes, or the class, of an object are looked up."""
    if type(first_in_bases(kind, "__getattribute__")) is not types.WrapperDescriptorType:
        return f"{_name(kind)}.__getattribute__"
    if first_in_bases(kind, "__class__") is not namespace(object)["__class__"]:
        return f"{_name(kind)}.__class__"
    for name in names:
        raw = first_in_bases(kind, name)
        if raw is ... or type(raw) is types.MemberDescriptorType:
            continue
        if first_in_bases(type(raw), "__set__") is not ...:  # goes before the object's own
            return f"{_name(kind)}.{name}"
    return None


def _answer_to_numpy(kind: type) -> str | None:
    for name in _NUMPY_ASKS:
        raw = first_in_bases(kind, name)
        if type(raw) is types.FunctionType or type(raw) is property:
            return f"{_name(kind)}.{name}"
    return None
