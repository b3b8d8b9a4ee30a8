"""Values to documents.

A value of lists and dicts, plain elements and externals goes to msgpack as it is, which requests a
reference for each external that it meets. Any other value is visited item by item, down to lists
and dicts of plain elements, and what msgpack does not have is replaced by its tagged form.
Externals are lifted out in first-seen order, by identity.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, TypeAlias, final

import msgpack
import numpy as np

from telegrad.arrays import is_cupy
from telegrad.errors import EncodeError
from telegrad.wire.document import MARKERS, Conversion, Refused, Tag
from telegrad.wire.exceptions import pack_exception
from telegrad.wire.external import PACKER_BYTES, describe
from telegrad.wire.names import bases, name_of
from telegrad.wire.project import Project
from telegrad.wire.registry import (
    AT_ONCE,
    PLAIN,
    RegisteredType,
    external_type,
    is_external,
    refusal_of,
    registered_type,
)
from telegrad.wire.values import array_types, builtin_types, class_types, named_tuples

# -- advice for values of classes that the codec does not know -----------------------------------

# By the module's first part and the class' name: types that users often try to send first.
_KNOWN = {
    ("builtins", "memoryview"): "send bytes(view)",
    ("pandas", "DataFrame"): "send df.to_dict('list')",
    ("pandas", "Series"): "send series.to_numpy()",
    ("pandas", "Index"): "send index.to_numpy()",
    ("pandas", "Timestamp"): "send timestamp.to_pydatetime()",
    ("PIL", "Image"): "send numpy.asarray(image)",
}


def advice_for(kind: type) -> str:
    """Returns advice for a value of this class, which cannot travel as it is.

    Args:
        kind: The class; a user cannot make a dataclass of a class that is not their own.

    Returns:
        Words that follow the name of the class.
    """
    name = kind.__qualname__
    known = _KNOWN.get((kind.__module__.partition(".")[0], name))
    register = f"rpc.register_type({name}, encode=..., decode=...)"
    if known is not None:
        return known if kind.__module__ == "builtins" else f"{known}, or register it: {register}"
    if kind.__module__ == "builtins":
        return "send what it holds as lists, dicts, numbers, text or arrays"
    if _is_derived_from_builtin(kind) or not Project().has(kind.__module__):
        return f"register it, in a module that both ends import: {register}"
    return f"make it a dataclass, or register it: {register}"


def _is_derived_from_builtin(kind: type) -> bool:
    return any(base.__module__ == "builtins" for base in bases(kind) if base is not object)


# -- the encoder ---------------------------------------------------------------------------------

MAX_DEPTH = 128  # levels of containers; Python's own recursion limit is never near
MAX_REFERENCES = 1024  # references to externals to remember: 0.1 us in place of 0.6
MAX_NESTING = 8  # exceptions in the arguments, or among the causes, of exceptions
_NOTHING = msgpack.packb(None)  # the value of many calls

_Encoder: TypeAlias = Callable[[Conversion, Any], object]

_STR = frozenset({str})
_LEAVES: dict[type, _Encoder] = builtin_types.LEAF_ENCODERS | array_types.LEAF_ENCODERS


@final
@dataclass(slots=True)  # frozen ones take three times as long to make
class Encoded:
    """An encoded value.

    Attributes:
        document: One msgpack document.
        externals: The objects lifted out of it, in first-seen order, each object once.
    """

    document: bytes
    externals: list[object]


def encode(value: object, *, name: str | None = "value", nesting: int = 0) -> Encoded:
    r"""Encodes a value.

    Args:
        value: Any value that the codec knows; the module's tables list the types.
        name: The name of `value` in the path of an error, `value[0]`. None for the body of a
            message, a dict whose keys are such names themselves: `{"args": ...}` gives `args[0]`.
        nesting: The number of exceptions that it is inside of.

    Returns:
        The document and its externals.

    Raises:
        EncodeError: Something in it cannot travel; `path` is its place.

    Example:
        >>> encode({"lr": 0.1}).document
        b'\x81\xa2lr\xcb?\xb9\x99\x99\x99\x99\x99\x9a'
    """
    if value is None:
        return Encoded(_NOTHING, [])
    try:
        encoder = _ValueEncoder(nesting, is_body=name is None)
        if _goes_whole(value):
            try:
                return encoder.packed(value)
            except Refused:  # the slow way finds the place
                encoder = _ValueEncoder(nesting, is_body=name is None)
        return encoder.packed(encoder.convert(value))
    except Refused as refused:
        path = _path(refused.steps, name)
        raise EncodeError(f"{path} cannot travel: {refused}", path=path) from refused.__cause__
    except (ValueError, OverflowError) as error:
        path = name or "value"
        raise EncodeError(f"{path} cannot travel: {error}", path=path) from error


def encode_exception(error: BaseException) -> dict[str, object]:
    """Turns an exception into plain values, for the body of a message.

    Arguments that cannot travel are sent as text; such attributes are not sent at all.

    Returns:
        The values for `decode_exception`.
    """
    return pack_exception(error, _part)


def _goes_whole(value: Any) -> bool:
    """Returns True if msgpack packs a value as it is: lists and dicts of plain ones and externals.

    A value that contains itself, or is nested too deep, is none.
    """
    waiting = [(value, 0)]
    while waiting:
        each, depth = waiting.pop()
        if type(each) in AT_ONCE:
            continue
        values: Iterable[Any] = each
        if type(each) is dict and _STR.issuperset(map(type, each)):
            values = each.values()
        elif type(each) is not list:
            return False
        if AT_ONCE.issuperset(map(type, values)):
            continue
        if depth >= MAX_DEPTH:
            return False
        waiting += zip(values, itertools.repeat(depth + 1), strict=False)
    return True


def _path(steps: list[str], name: str | None) -> str:
    outwards = list(reversed(steps))
    if outwards and name is None:
        key = outwards[0].removeprefix("['").removesuffix("']")
        if key.isidentifier():
            return "".join([key, *outwards[1:]])
    return "".join([name or "value", *outwards])


@lru_cache(MAX_REFERENCES)
def _reference(index: int) -> object:
    return msgpack.ExtType(Tag.EXTERNAL, index.to_bytes(4, "big"))


@final
class _ValueEncoder:
    """One document in the making."""

    __slots__ = ("_indexes", "_is_body", "_nesting", "_open", "externals")

    def __init__(self, nesting: int, *, is_body: bool = False) -> None:
        self._nesting = nesting
        self._is_body = is_body  # True if its contents are arguments
        self.externals: list[object] = []
        self._indexes: dict[int, int] = {}  # of the externals, by the id of each object
        self._open: set[int] = set()

    def convert(self, value: Any) -> object:
        """Returns the packable form of a value."""
        kind = type(value)
        if kind in PLAIN or (kind in _WHOLE and _WHOLE[kind](value)):
            return value
        if kind in _LEAVES:
            return _LEAVES[kind](self, value)
        if kind in _COMPOUNDS:
            return self._inside(value, _COMPOUNDS[kind])
        if is_external(kind):
            return self.lift(value)
        return self._convert_other(value, kind)

    def items(
        self, values: Iterable[Any], step: Callable[[int], str] = "[{}]".format
    ) -> list[object]:
        """Converts several values; `step` returns the path's step for an index."""
        converted: list[object] = []
        try:
            for value in values:
                plain = type(value) in PLAIN  # most are: a call for each takes twice as long
                converted.append(value if plain else self.convert(value))
        except Refused as refused:
            refused.steps.append(step(len(converted)))
            raise
        return converted

    def packed(self, value: object) -> Encoded:
        """Packs a value that msgpack has; assumes first that all strings are valid text."""
        try:
            document = msgpack.Packer(default=self.lift, buf_size=PACKER_BYTES).pack(value)
        except UnicodeEncodeError:
            packer = msgpack.Packer(default=self.lift, unicode_errors="surrogatepass")
            document = packer.pack(value)
        return Encoded(document, self.externals)

    def lift(self, value: Any) -> object:
        """Puts an object beside the document, once, and returns the reference to it.

        Args:
            value: An external; or an integer beyond 64 bits, which stays in the document.
        """
        if type(value) is int:
            return builtin_types.big_int(value)
        array_types.check_dtype(value)
        index = self._indexes.setdefault(id(value), len(self.externals))
        if index == len(self.externals):
            self.externals.append(value)  # keeps it alive, so that its id stays unique
        return _reference(index)

    def _inside(self, value: Any, encoder: _Encoder) -> object:
        key = id(value)
        if key in self._open:
            raise Refused(
                f"a {type(value).__qualname__} that contains itself; containers travel as copies,"
                " so break the cycle or keep the object where it is and send an RRef"
            )
        if len(self._open) >= MAX_DEPTH:
            raise Refused(f"containers nested deeper than {MAX_DEPTH}")
        self._open.add(key)
        try:
            return encoder(self, value)
        finally:
            self._open.discard(key)

    def _convert_other(self, value: Any, kind: type) -> object:
        if (registered := registered_type(kind)) is not None:
            return self._inside(value, lambda _, value: self._registered(registered, value))
        if (refusal := refusal_of(kind, as_argument=self._is_body)) is not None:
            raise Refused(refusal)
        if (words := array_types.refusal_of(value)) is not None:
            raise Refused(words)
        if external_type(kind) is not None or is_cupy(value):
            return self.lift(value)
        if isinstance(value, BaseException):
            plain = pack_exception(value, _part, self._nesting)
            return [MARKERS[Tag.EXCEPTION], self.convert(plain)]
        return self._inside(value, _encoder_of(value, kind))

    def _registered(self, registered: RegisteredType, value: object) -> object:
        try:
            plain = registered.encode(value)
        except Exception as error:
            raise Refused(
                f"the registered encode of {registered.name} failed: {error!r}"
            ) from error
        return [MARKERS[Tag.REGISTERED], registered.name, self.convert(plain)]


def _part(value: object, nesting: int) -> object:
    """Encodes a part of an exception by itself; None if it cannot travel."""
    if nesting > MAX_NESTING and type(value) not in PLAIN:
        return None
    try:
        encoded = encode(value, nesting=nesting)
        if any(not isinstance(each, np.ndarray) for each in encoded.externals):
            return None  # RRefs and Tensors travel only where interceptors see them
        metadata, buffers = describe(encoded.externals)
    except (EncodeError, RecursionError):
        return None
    return [encoded.document, metadata, [bytes(buffer) for buffer in buffers]]


def _encoder_of(value: object, kind: type) -> _Encoder:
    """Chooses an encoder by the kind of class, not by the class itself."""
    if isinstance(value, Enum):
        return class_types.encode_enum
    if isinstance(value, np.generic):
        return array_types.encode_scalar
    if isinstance(value, np.dtype):
        return array_types.encode_dtype_value
    if named_tuples.is_struct(kind):
        return named_tuples.encode_struct
    if dataclasses.is_dataclass(kind):
        return class_types.encode_dataclass
    if array_types.is_sparse(value):
        return array_types.encode_sparse
    if callable(value):
        return _encode_function
    if isinstance(value, Iterator | AsyncIterator):
        raise Refused(
            f"a value of type {kind.__qualname__}; send a list of its items, or have them sent one"
            " by one: rpc.stream(to, func, args)"
        )
    if isinstance(value, Coroutine):
        raise Refused(f"a value of type {kind.__qualname__}; make what returns it async def")
    raise Refused(f"a value of type {kind.__module__}.{kind.__qualname__}; {advice_for(kind)}")


def _encode_function(conversion: Conversion, value: Any) -> object:
    try:
        return msgpack.ExtType(Tag.FUNCTION, name_of(value).encode())
    except EncodeError as error:
        raise Refused(str(error)) from error


def _convert_dict(conversion: Conversion, value: dict[Any, Any]) -> object:
    names = list(value)
    if not _STR.issuperset(map(type, names)):
        return builtin_types.encode_mapping(conversion, value, Tag.DICT)
    items = conversion.items(value.values(), lambda i: f"[{names[i]!r}]")
    return dict(zip(names, items, strict=True))


# Returns True for a container that msgpack packs as it is; any other is one of the compounds.
_WHOLE: dict[type, Callable[[Any], bool]] = {
    list: lambda value: PLAIN.issuperset(map(type, value)),
    dict: lambda value: (
        _STR.issuperset(map(type, value)) and PLAIN.issuperset(map(type, value.values()))
    ),
}
_COMPOUNDS: dict[type, _Encoder] = builtin_types.COMPOUND_ENCODERS | {
    list: lambda conversion, value: conversion.items(value),
    dict: _convert_dict,
}
