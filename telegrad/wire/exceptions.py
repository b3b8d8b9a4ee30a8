"""Exceptions on the wire: their description at one end, and their reconstruction at the other.

Message, arguments, attributes that can be encoded, notes and cause travel. Unlike anywhere else,
the parts are documents of their own: if a part cannot be written (an RRef), or not be read at the
other end, only that part is missing, and a note names it. Otherwise it would hide the exception.
The class must already be imported, and none of its code runs; without such a class, a RemoteError
has the same content.
"""

from __future__ import annotations

import builtins
import re
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from telegrad.errors import DecodeError, RemoteError
from telegrad.wire.names import (
    class_name,
    find_class,
    is_exactly,
    namespace,
    own_attributes,
    wire_module,
)
from telegrad.wire.values.class_types import has_finaliser, instance_of, slots_of

MAX_CAUSES = 8  # exceptions in a chain of causes; deeper ones are left out
MAX_TEXT = 64 * 2**10  # characters of a message, of a note, or of an argument in words
MAX_NOTES = 1000  # of one exception; the last of them says how many were left out

# Encodes a part by itself, below so many exceptions, or returns None if it cannot travel; and the
# reverse.
PackPart: TypeAlias = Callable[[object, int], object]
UnpackPart: TypeAlias = Callable[[object], object]

# By identity, here and below: a metaclass may define how its classes are hashed and compared.
_LAYOUT = type.__dict__["__base__"].__get__
_BUILTIN = frozenset(
    id(each)
    for each in vars(builtins).values()
    if isinstance(each, type) and issubclass(each, BaseException)
)
# Types that a constructor in C may get: of any other object it may request a number or a hash.
_PLAIN = frozenset(map(id, (type(None), bool, int, float, str, bytes)))
_METHODS = frozenset(vars(BaseException))  # an attribute must not stand in the place of one
_LEFT_OUT = frozenset({"args", "obj"})  # args are sent separately; obj is any user object


def pack_exception(error: BaseException, pack_part: PackPart, depth: int = 0) -> dict[str, object]:
    """Turns an exception into plain values; never fails, whatever the exception contains.

    Args:
        error: The exception.
        pack_part: Encodes an argument or an attribute.
        depth: The exceptions above this one: those that it is a cause of, and those that it is an
            argument of. Both count, since `raise New(error) from error` doubles the ways down.
    """
    cls = type(error)
    name = class_name(cls) or f"{wire_module(cls.__module__)}:{cls.__qualname__}"
    cause = error.__cause__ if depth < MAX_CAUSES else None
    notes = [note for note in _sequence(getattr(error, "__notes__", None)) if isinstance(note, str)]
    attributes, left_out = _pack_attributes(error, pack_part, depth)
    return {
        "type": name,
        "message": _words(str, error),
        "args": [[_words(repr, each), pack_part(each, depth + 1)] for each in error.args],
        "attributes": attributes,
        "notes": [note[:MAX_TEXT] for note in _bounded(notes + left_out)],
        "cause": None if cause is None else pack_exception(cause, pack_part, depth + 1),
    }


def _sequence(notes: object) -> Sequence[object]:
    return notes if is_exactly(notes, list, tuple) else ()  # type: ignore[return-value]


def _bounded(notes: list[str]) -> list[str]:
    if len(notes) <= MAX_NOTES:
        return notes
    kept = notes[: MAX_NOTES - 1]
    return [*kept, f"{len(notes) - len(kept)} more notes, which were left out"]


def _words(into: Callable[[object], str], value: object) -> str:
    try:
        return into(value)[:MAX_TEXT]
    except Exception as error:  # the user's __str__ or __repr__
        return f"<{type(value).__qualname__} whose {into.__name__}() raised {type(error).__name__}>"


def _pack_attributes(
    error: BaseException, pack_part: PackPart, depth: int
) -> tuple[dict[str, object], list[str]]:
    """Returns the attributes that can be encoded, and a note on the others, if there are any."""
    values = {name: each for name, each in own_attributes(error).items() if type(name) is str}
    for name, member in _members(type(error)).items():
        try:
            value = member.__get__(error)
        except AttributeError:
            continue
        if value is not None or member.__objclass__.__module__ != "builtins":
            values[name] = value  # an unset field of a builtin reads as None
    parts = {
        name: pack_part(value, depth + 1)
        for name, value in values.items()
        if not name.startswith("__")
    }
    left = [
        f".{name} ({type(values[name]).__qualname__})"
        for name, part in parts.items()
        if part is None
    ]
    note = [f"attributes that do not travel in an exception: {', '.join(left)}"] if left else []
    return {name: part for name, part in parts.items() if part is not None}, note


def _members(cls: type) -> dict[str, types.MemberDescriptorType]:
    """Returns the slots of a class, and the fields of the builtin exception below it."""
    return {
        name: member
        for name, member in slots_of(cls).items()
        if not name.startswith("__") and name not in _LEFT_OUT
    }


def unpack_exception(plain: object, unpack_part: UnpackPart, depth: int = 0) -> BaseException:
    """Rebuilds an exception, of its own class if that is imported here, else as a RemoteError.

    A class that is no `Exception` (SystemExit, KeyboardInterrupt, CancelledError) becomes a
    RemoteError,
    too: it would end or confuse the program instead of the call.

    Raises:
        DecodeError: `plain` is not an output of `pack_exception`.
    """
    fields = _checked(plain, depth)
    error: BaseException
    try:
        error = _rebuilt(fields, unpack_part)
    except DecodeError as reason:
        name = fields["type"]
        words = f"{re.split('[:.]', name)[-1]}: {fields['message']}".removesuffix(": ")
        error = RemoteError(words, type_name=name)
        add_note(error, f"it is a RemoteError here: {reason}")
    if fields["notes"]:
        add_note(error, *_bounded(fields["notes"]))
    if fields["cause"] is not None:
        cause = unpack_exception(fields["cause"], unpack_part, depth + 1)
        namespace(BaseException)["__cause__"].__set__(error, cause)
    return error


def add_note(error: BaseException, *notes: str) -> None:
    """Adds notes without running code of the exception's class."""
    all_notes = [*_sequence(own_attributes(error).get("__notes__")), *notes]
    instance_of(type(error), {"__notes__": all_notes}, error)


def _checked(plain: Any, depth: int) -> Mapping[str, Any]:
    kinds: dict[str, Any] = {
        "type": str,
        "message": str,
        "args": list,
        "attributes": dict,
        "notes": list,
        "cause": dict,
    }
    if type(plain) is not dict or plain.keys() != kinds.keys() or depth > MAX_CAUSES:
        raise DecodeError("not the description of an exception")
    if wrong := [
        key
        for key, kind in kinds.items()
        if type(plain[key]) is not kind and not (key == "cause" and plain[key] is None)
    ]:
        raise DecodeError(f"the description of an exception with a wrong {wrong[0]}")
    pairs = all(type(each) is list and len(each) == 2 for each in plain["args"])
    if not pairs or not all(type(note) is str for note in plain["notes"]):
        raise DecodeError("the description of an exception with wrong args or notes")
    return plain


def builtin_base(cls: type[BaseException]) -> Any:
    """Returns the builtin class that lays out the objects of an exception's class.

    It alone can make them. Of several builtin bases it need not be the first: of
    `class Late(ValueError, TimeoutError)` it is TimeoutError, which has fields in C.
    """
    base: type = cls
    while id(base) not in _BUILTIN:
        base = _LAYOUT(base)
    return base


def _rebuilt(fields: Mapping[str, Any], unpack_part: UnpackPart) -> BaseException:
    """Returns the exception as an object of its own class.

    Raises:
        DecodeError: That is impossible, for the reason in its message.
    """
    cls: Any = find_class(fields["type"])
    if not issubclass(cls, Exception) or has_finaliser(cls):
        raise DecodeError("its class is no Exception, or has a __del__")
    args = tuple(_argument(words, part, unpack_part) for words, part in fields["args"])
    builtin = builtin_base(cls)
    group = issubclass(builtin, BaseExceptionGroup)
    if group and not _are_of_a_group(args):
        raise DecodeError("the exceptions of the group did not arrive whole")
    try:
        plain = group or _PLAIN.issuperset(map(id, map(type, args)))
        error: BaseException = builtin.__new__(cls, *(args if plain else ()))
    except Exception as failed:
        raise DecodeError(f"{builtin.__name__} does not take its arguments") from failed
    if type(error) is not cls:
        raise DecodeError("its class is one of several for other arguments")
    _set(namespace(BaseException)["args"], error, args)
    _fill(error, fields["attributes"], unpack_part)
    return error


def _are_of_a_group(args: tuple[Any, ...]) -> bool:
    """Returns True for a message and exceptions: a group takes these without running code."""
    if len(args) != 2 or type(args[0]) is not str or not is_exactly(args[1], list, tuple):
        return False
    return all(issubclass(type(each), BaseException) for each in args[1])


def _argument(words: object, part: object, unpack_part: UnpackPart) -> object:
    try:
        return words if part is None else unpack_part(part)
    except DecodeError:
        return words


def _fill(error: BaseException, parts: Mapping[str, object], unpack_part: UnpackPart) -> None:
    members = _members(type(error))
    unread: list[str] = []
    for name, part in parts.items():
        try:
            value = unpack_part(part)
        except DecodeError:
            unread.append(f".{name}")
            continue
        if name in members:
            _set(members[name], error, value)
        elif type(name) is str and not name.startswith("__") and name not in _METHODS:
            instance_of(type(error), {name: value}, error)
    if unread:
        words = f"attributes that this worker could not read: {', '.join(unread)}"
        add_note(error, words[:MAX_TEXT])


def _set(descriptor: Any, error: BaseException, value: object) -> None:
    try:
        descriptor.__set__(error, value)
    except (AttributeError, TypeError):
        return  # read-only, as the fields of an ExceptionGroup are: __new__ has set it
