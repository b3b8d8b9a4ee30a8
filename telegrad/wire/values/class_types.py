"""Enums and dataclasses on the wire.

They are rebuilt from classes that are already imported, without running `__init__`,
`__post_init__`, `__new__`, `__setattr__` or `__setstate__` of theirs. All facts that matter are
read from namespaces, since metaclasses and descriptors are code of the program's, too. A class with
a `__del__` is refused: a document that is abandoned in the middle would run it.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from enum import Enum, EnumType, Flag, IntFlag
from functools import cached_property
from itertools import chain
from typing import Any

from telegrad.errors import DecodeError
from telegrad.wire.document import MARKERS, Conversion, Reading, Refused, Tag
from telegrad.wire.names import (
    bases,
    class_name,
    find_class,
    first_in_bases,
    is_computed,
    namespace,
    own_attributes,
    own_dict,
)
from telegrad.wire.registry import registered_type_by_name

# A class keeps every combination of its flags for good, at 0.5 KB each. All those of sixteen flags.
MOST_COMBINATIONS = 2**16


def _named(cls: type, what: str, instead: str) -> str:
    name = class_name(cls)
    if name is not None:
        return name
    raise Refused(
        f"{what} of {cls.__module__}.{cls.__qualname__}, a class that has no public name of"
        " its own; define it at the top of a module that all workers import, under a name"
        f" without a leading underscore, or send {instead}"
    )


def has_finaliser(cls: type) -> bool:
    """Returns True if code runs when an object of a class is dropped."""
    return first_in_bases(cls, "__del__") is not ...


def refuse_finaliser(cls: type, what: str) -> None:
    """Raises Refused if code runs when an object of a class is dropped."""
    if has_finaliser(cls):
        raise Refused(
            f"{what} of {cls.__module__}.{cls.__qualname__}, whose __del__ would run for every "
            "copy; keep the object where it is and send an RRef, or register the class:"
            f" rpc.register_type({cls.__qualname__}, encode=..., decode=...)"
        )


# -- enums -------------------------------------------------------------------------------------


def encode_enum(conversion: Conversion, value: Enum) -> object:
    """Encodes a member by its name; a combination of flags by its value."""
    name = _named(type(value), "an enum member", "its name or its value")
    if value._name_ in type(value).__members__:
        return [MARKERS[Tag.ENUM], name, value._name_]
    return [MARKERS[Tag.FLAG], name, conversion.convert(value._value_)]


def _enum_class(name: object) -> type[Enum]:
    cls = find_class(name)
    if not issubclass(cls, Enum) or type(cls) is not EnumType:
        raise DecodeError(f"{name!r} is not an enum")
    return cls


def _decode_enum(reading: Reading, items: list[Any]) -> object:
    name, member = items
    cls = _enum_class(name)
    if type(member) is not str:
        raise DecodeError(f"a member of the enum {name!r} that is not named by a string")
    found = namespace(cls)["_member_map_"].get(member)
    if found is None:
        raise DecodeError(f"the enum {name!r} has no member {member[:100]!r} here")
    return found


def _decode_flag(reading: Reading, items: list[Any]) -> object:
    name, value = items
    cls = _enum_class(name)
    if not issubclass(cls, Flag) or type(value) is not int:
        raise DecodeError(f"the enum {name!r} has no member of such a value here")
    if hook := _hook_of(cls):
        raise DecodeError(
            f"the flag {name!r} makes combinations its own way ({hook}); send members"
        )
    known = namespace(cls)["_value2member_map_"]
    if (found := known.get(value)) is not None:
        return found
    if len(known) >= MOST_COMBINATIONS:
        raise DecodeError(f"the flag {name!r} has {MOST_COMBINATIONS} combinations here already")
    return EnumType.__call__(cls, value)


# The attributes that enum uses of a class to make a combination.
_HOOKS = (
    "_missing_",
    "_iter_member_",
    "_iter_member_by_value_",
    "_numeric_repr_",
    "__setattr__",
    "__getattribute__",
    "__getattr__",
    "__eq__",
    "__hash__",
    "__class__",
    "__del__",
)
_THEIR_OWN = (IntFlag, Flag, *(base for base in bases(IntFlag) if base is not IntFlag))


def _hook_of(cls: type[Enum]) -> str:
    """Returns the code of its own that a flag class would run to look up or make members."""
    member_type = namespace(cls)["_member_type_"]
    if member_type is not int and member_type is not object:
        return "its members are no plain integers"
    usual = [{id(space[name]) for space in map(namespace, _THEIR_OWN) if name in space}
             for name in _HOOKS]  # fmt: skip
    for name, known in zip(_HOOKS, usual, strict=True):
        found = first_in_bases(cls, name)
        if name == "_iter_member_" and type(found) is types.MethodType:
            found = found.__func__  # enum's own, for members that are not in order
            known = {id(namespace(Flag)["_iter_member_by_def_"].__func__)}
        if found is not ... and id(found) not in known:
            return name
    return ""


# -- dataclasses -------------------------------------------------------------------------------


def instance_of(cls: type, values: dict[str, Any], instance: Any = None) -> Any:
    """Fills an instance without running any code that the class defines.

    A slot is filled by its own descriptor; all other values go into the instance's dictionary.
    """
    if instance is None:
        instance = object.__new__(cls)
    slots = slots_of(cls)
    rest = {name: value for name, value in values.items() if name not in slots}
    if rest:
        own = own_dict(instance)
        if own is None:
            raise DecodeError(
                f"a {type(instance).__qualname__} has no place for {min(rest)[:100]!r}"
            )
        own.update(rest)
    for name, value in values.items():
        if name in slots:
            slots[name].__set__(instance, value)
    return instance


def slots_of(cls: type) -> dict[str, types.MemberDescriptorType]:
    """Returns the slots of a class and its bases, and the C fields of a builtin one, by name."""
    spaces = (namespace(base).items() for base in reversed(bases(cls)))
    return {
        name: raw
        for name, raw in chain.from_iterable(spaces)
        if type(raw) is types.MemberDescriptorType
    }


def fields_of_dataclass(cls: type) -> tuple[str, ...] | None:
    """Returns the fields of a class that is a dataclass itself, not just derived from one."""
    found = namespace(cls).get("__dataclass_fields__")
    if type(found) is not dict:
        return None
    bare: Any = types.SimpleNamespace(
        __dataclass_fields__=found
    )  # the class may have a lookup of its own
    return tuple(field.name for field in dataclasses.fields(bare))


def encode_dataclass(conversion: Conversion, value: Any) -> object:
    """Encodes every field, and the other entries of the instance's dictionary."""
    cls = type(value)
    names = fields_of_dataclass(cls)
    if names is None:
        raise Refused(
            f"a {cls.__qualname__}, which is derived from a dataclass and is none itself; decorate"
            " it with @dataclass"
        )
    if not _has_plain_layout(cls):
        raise Refused(f"a {cls.__qualname__}, a dataclass derived from a builtin type")
    refuse_finaliser(cls, "a dataclass")
    name = _named(cls, "a dataclass", "vars(value), a dict of its fields")
    attributes = own_attributes(value)
    slots = slots_of(cls)
    values: dict[str, object] = {}
    for field in names:
        if field in attributes:
            values[field] = attributes.pop(field)
            continue
        try:
            values[field] = slots[field].__get__(value) if field in slots else _default(cls, field)
        except (KeyError, AttributeError):
            raise Refused(f"a {cls.__qualname__} whose field {field!r} was never set") from None
    values |= {
        key: each
        for key, each in attributes.items()
        if not isinstance(first_in_bases(cls, key), cached_property)
    }
    keys = list(values)
    converted = conversion.items(values.values(), lambda i: f".{keys[i]}")
    pairs = [part for pair in zip(keys, converted, strict=True) for part in pair]
    return [MARKERS[Tag.DATACLASS], name, *pairs]


def _default(cls: type, field: str) -> object:
    """Returns the class attribute for a field that the instance has not set, which is its default.

    Raises:
        KeyError: The class has none, or a descriptor, whose code would have to run.
    """
    raw = first_in_bases(cls, field)
    if raw is ... or is_computed(raw):
        raise KeyError(field)
    return raw


def _has_plain_layout(cls: type) -> bool:
    try:
        object.__new__(cls)
    except TypeError:
        return False
    return True


def _decode_dataclass(reading: Reading, items: list[Any]) -> object:
    name, *pairs = items
    cls = find_class(name)
    fields = fields_of_dataclass(cls)
    if fields is None or registered_type_by_name(name) is not None:
        raise DecodeError(f"{name!r} is not a dataclass here")
    if has_finaliser(cls):
        raise DecodeError(f"the dataclass {name!r} has a __del__ here, which would run")
    if len(pairs) % 2 or any(type(key) is not str for key in pairs[::2]):
        raise DecodeError(f"the dataclass {name!r} has a field without a name or a value")
    values = dict(zip(pairs[::2], pairs[1::2], strict=True))
    if missing := [field for field in fields if field not in values]:
        raise DecodeError(
            f"the dataclass {name!r} arrived without {missing}; do both ends run the same version?"
        )
    for extra in values.keys() - set(fields):
        if extra.startswith("__") or first_in_bases(cls, extra) is not ...:
            raise DecodeError(
                f"the dataclass {name!r} arrived with the field {extra[:100]!r}, which it has not "
                "here"
            )
    return instance_of(cls, values)


COMPOUND_DECODERS: dict[Tag, Callable[[Reading, list[Any]], object]] = {
    Tag.ENUM: _decode_enum,
    Tag.FLAG: _decode_flag,
    Tag.DATACLASS: _decode_dataclass,
}
