"""Methods that were judged once and may be called: most are called again, on objects of one class.

What was judged is a function in the body of a class. It holds as long as an object's class leads to
that very function under that name, and nothing of the object's own stands before it; what is found
under the name is called unasked only where it is that function, bound to that object.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, final

from telegrad.wire.definers import is_at_home
from telegrad.wire.lookup import bases, instance_dict, is_class, namespace

__all__ = ["KnownMethods"]

_BASES = type.__dict__["__mro__"].__get__
MOST = 1000  # more are judged each time; a program has so many only if it makes classes by and by


class _Known(NamedTuple):
    function: types.FunctionType
    order: tuple[type, ...]  # of the class, with all its bases
    before: tuple[Mapping[str, Any], ...]  # the bodies that are asked before the definer's
    body: Mapping[str, Any]
    own: Callable[[object], Mapping[str, Any]] | None  # an object's own dictionary


@final
class KnownMethods:
    """The methods that one policy has judged well. From any thread."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[tuple[type, str], _Known] = {}

    def has(self, value: object, name: str) -> bool:
        """Whether what an object's class calls by a name was judged well; runs nothing of a user's."""
        cls = type(value)
        if type(cls) is not type:  # another metaclass may say what is equal to its classes
            return False
        known = self._known.get((cls, name))
        if known is None or _BASES(cls) is not known.order:
            return False
        for body in known.before:
            if name in body:
                return False
        return known.body.get(name) is known.function and (
            known.own is None or name not in known.own(value)
        )

    def is_found(self, value: object, name: str, found: object) -> bool:
        """Whether an attribute gave what was judged, bound to the object, and nothing else."""
        if type(found) is not types.MethodType or found.__self__ is not value:
            return False
        cls = type(value)
        known = self._known.get((cls, name)) if type(cls) is type else None
        return known is not None and found.__func__ is known.function

    def add(self, value: object, name: str) -> None:
        """Keeps a method that may be called on an object, if it is one that can be known again."""
        if name == "__call__" or is_class(value):
            return  # judged by what the object says of itself, or in the class that it is
        cls = type(value)
        if type(cls) is not type or "<locals>" in cls.__qualname__ or len(self._known) >= MOST:
            return
        order = bases(cls)
        before: list[Mapping[str, Any]] = []
        for base in order:
            body = namespace(base)
            if name in body:
                function = body[name]
                if type(function) is types.FunctionType and is_at_home(function, base):
                    own = instance_dict(cls)
                    known = _Known(function, order, tuple(before), body, own)
                    if own is None or name not in own(value):
                        self._known[cls, name] = known
                return
            before.append(body)
