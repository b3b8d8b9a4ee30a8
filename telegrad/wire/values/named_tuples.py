"""Named tuples on the wire, and what is like them: `os.stat_result`, the results of SciPy.

None of them is built by code of its class. The class may have a private name, unlike any other one
that a document names: NumPy and SciPy return objects of such classes. If no name leads to a class
that adds nothing to its fields (`shutil.disk_usage` returns one), the receiver makes such a class.

    public class, items alone          NAMED_TUPLE  class, item, item, ...
    any other                          STRUCT       class, number of items, names, value, value, ...

The values of a STRUCT are the items, then the attributes beside them. The class is a name without a
module if nobody can find it.
"""

from __future__ import annotations

import types
from collections import namedtuple
from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, TypeAlias

from telegrad.errors import DecodeError
from telegrad.wire.document import MARKERS, Conversion, Reading, Refused, Tag
from telegrad.wire.names import (
    attribute,
    bases,
    class_name,
    find_class,
    first_in_bases,
    is_computed,
    namespace,
    own_attributes,
    private_class_name,
)
from telegrad.wire.values.class_types import has_finaliser, instance_of, refuse_finaliser

MOST_NAMES = 1000  # of a class that is made here
KEPT_CLASSES = 1000  # such classes; making one takes 0.1 ms


class _Plain(NamedTuple):
    """A named tuple without anything of its own."""


_GENERATED = frozenset(vars(_Plain)) | {"__dict__", "__weakref__"}

# SciPy's dicts whose keys are attributes, too; the second is the base of the first since 1.11. No
# other class derived from dict travels: `logging.config` has some that import what they hold.
_DICTS = frozenset(
    {("scipy.optimize._optimize", "OptimizeResult"), ("scipy._lib._util", "_RichResult")}
)


def is_struct(cls: type) -> bool:
    """Returns True for a class whose objects are encoded here."""
    if issubclass(cls, tuple):
        return fields_of(cls) is not None or _is_of_c(cls)
    return _is_dict(cls)


def _is_dict(cls: type) -> bool:
    if not issubclass(cls, dict):
        return False
    for base in bases(cls):
        module, path = attribute(base, "__module__"), attribute(base, "__qualname__")
        if type(module) is type(path) is str and (module, path) in _DICTS:
            return True
    return False


def fields_of(cls: type) -> tuple[str, ...] | None:
    """Returns the field names of a named tuple's class; None if the class is none."""
    fields = first_in_bases(cls, "_fields")
    if not issubclass(cls, tuple) or type(fields) is not tuple:
        return None
    return fields if all(type(field) is str for field in fields) else None


def _is_of_c(cls: type) -> bool:
    """Returns True for a class like `os.stat_result`, whose methods are all written in C."""
    reduce = namespace(cls).get("__reduce__")
    is_own = type(reduce) is types.MethodDescriptorType and reduce.__objclass__ is cls
    return is_own and type(namespace(cls).get("n_sequence_fields")) is int


# -- encoding ------------------------------------------------------------------------------------


def encode_struct(conversion: Conversion, value: Any) -> object:
    """Encodes the items of a named tuple, in order, and the attributes beside them."""
    cls = type(value)
    refuse_finaliser(cls, "a named tuple")
    fields, items, attributes = _parts(value)
    names = [*fields, *attributes]
    values = conversion.items((*items, *attributes.values()), lambda i: f".{names[i] or i}")
    public = class_name(cls)
    if public and not attributes and not _is_of_c(cls):
        return [MARKERS[Tag.NAMED_TUPLE], public, *values]
    name = public or private_class_name(cls) or _label(cls, fields)
    return [MARKERS[Tag.STRUCT], name, len(items), names, *values]


_Parts: TypeAlias = tuple[tuple[str, ...], tuple[object, ...], dict[str, object]]


def _parts(value: Any) -> _Parts:
    """Returns the names of the items, the items, and the attributes of a named tuple.

    Private attributes that are modules are left out: SciPy keeps there the library that it used.
    """
    cls = type(value)
    if issubclass(cls, dict):
        return _parts_of_dict(value)
    if _is_of_c(cls):
        return _parts_of_c(value)
    fields, items = fields_of(cls) or (), tuple(tuple.__iter__(value))
    if len(items) != len(fields):
        raise Refused(
            f"a {cls.__qualname__} of {len(items)} items, whose class has {len(fields)} fields; "
            "send tuple(value)"
        )
    attributes = {
        name: each
        for name, each in own_attributes(value).items()
        if not name.startswith("__")
        and not isinstance(first_in_bases(cls, name), cached_property)
        and not (name.startswith("_") and isinstance(each, types.ModuleType))
    }
    return fields, items, attributes


def _parts_of_dict(value: dict[Any, object]) -> _Parts:
    if not all(type(key) is str for key in value):
        raise Refused(f"a {type(value).__qualname__} with a key that is no text; send dict(value)")
    return (), (), dict(dict.items(value))


def _parts_of_c(value: Any) -> _Parts:
    """Does the same for a tuple of a class that C defines; an item without a name has ""."""
    space = namespace(type(value))
    _, (items, attributes, *_) = space["__reduce__"](value)
    named: tuple[str, ...] = space["__match_args__"]
    return named + ("",) * (len(items) - len(named)), items, attributes


def _label(cls: type, fields: tuple[str, ...]) -> str:
    """Returns a name for a class that no name leads to, if it has nothing but its fields."""
    known = _GENERATED.union(fields)
    spaces = [namespace(base) for base in bases(cls) if base is not tuple and base is not object]
    if not _is_of_c(cls) and (own := [name for each in spaces for name in each.keys() - known]):
        raise Refused(
            f"a named tuple of {cls.__module__}.{cls.__qualname__}, a class with {min(own)!r} to "
            "which no name leads; define it at the top of a module that all workers import, under"
            " its own name, or send tuple(value)"
        )
    name = cls.__qualname__.rpartition(".")[2]
    return name if name.isidentifier() else "NamedTuple"


# -- decoding ------------------------------------------------------------------------------------


def _decode_named_tuple(reading: Reading, items: list[Any]) -> object:
    name, *values = items
    cls = find_class(name)
    fields = fields_of(cls)
    if fields is None or has_finaliser(cls):
        raise DecodeError(f"{name!r} is not a named tuple here, or has a __del__")
    if len(fields) != len(values):
        raise DecodeError(
            f"the named tuple {name!r} has {len(fields)} fields here; {len(values)} arrived"
        )
    return tuple.__new__(cls, values)


def _decode_struct(reading: Reading, parts: list[Any]) -> object:
    name, count, names, *values = parts
    if type(name) is not str or type(names) is not list or {*map(type, names)} - {str}:
        raise DecodeError("a named tuple without a name, or without names of its items")
    if type(count) is not int or not 0 <= count <= len(names) or len(names) != len(values):
        raise DecodeError(f"the named tuple {name[:100]!r} has other numbers of names and values")
    fields, items = tuple(names[:count]), values[:count]
    attributes = dict(zip(names[count:], values[count:], strict=True))
    if ":" in name:
        return _filled(name, find_class(name, private=True), fields, items, attributes)
    if len(names) > MOST_NAMES:
        raise DecodeError(f"the named tuple {name[:100]!r} has more than {MOST_NAMES} names")
    reading.allowance.kind((name, fields, bool(attributes)))
    cls = _made(name, fields, is_open=bool(attributes))
    return _with_attributes(name, tuple.__new__(cls, items), attributes)


def _filled(
    name: str, cls: Any, fields: tuple[str, ...], items: list[Any], attributes: dict[str, Any]
) -> object:
    """Builds an object of a class that this worker has."""
    if not is_struct(cls) or has_finaliser(cls):
        raise DecodeError(f"{name!r} is not a named tuple here, or has a __del__")
    if issubclass(cls, dict):
        value = dict.__new__(cls)
        dict.update(value, attributes)
        return value
    if _is_of_c(cls) and "__new__" in namespace(cls):
        space = namespace(cls)
        known = {key for key, raw in space.items() if type(raw) is types.MemberDescriptorType}
        if len(items) == space["n_sequence_fields"] and known.issuperset(attributes):
            return space["__new__"](cls, items, attributes)
    elif fields_of(cls) == fields:
        return _with_attributes(name, tuple.__new__(cls, items), attributes)
    raise DecodeError(
        f"{name!r} has other fields here than {[*fields, *attributes]}; do both ends run the same"
        " version?"
    )


def _with_attributes(name: str, value: Any, attributes: dict[str, Any]) -> object:
    """Fills the instance's dictionary; SciPy's classes show some of it by properties."""
    for each in attributes:
        raw = first_in_bases(type(value), each)
        if each.startswith("__") or (is_computed(raw) and type(raw) is not property):
            raise DecodeError(
                f"the named tuple {name!r} arrived with {each[:100]!r}, which it has not here"
            )
    return instance_of(type(value), attributes, value)


@lru_cache(KEPT_CLASSES)
def _made(name: str, fields: tuple[str, ...], *, is_open: bool) -> type:
    """Makes a class for items with these names; those that cannot be names become `_0`, `_1`, ...

    Raises:
        ValueError: The class' own name cannot be one.
    """
    cls = namedtuple(name, fields, rename=True)  # type: ignore[misc]
    return type(name, (cls,), {}) if is_open else cls


COMPOUND_DECODERS: dict[Tag, Callable[[Reading, list[Any]], object]] = {
    Tag.NAMED_TUPLE: _decode_named_tuple,
    Tag.STRUCT: _decode_struct,
}
