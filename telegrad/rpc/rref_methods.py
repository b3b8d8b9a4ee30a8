"""Methods of an RRef's value: how a request names one, and how the owner finds and calls it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, final

from telegrad.rpc.rref_reference import name_of_class
from telegrad.rpc.user_call import UserCall, mode_of

if TYPE_CHECKING:
    from telegrad.rpc.rref_reference import Reference

__all__ = ["CheckFound", "Method", "RunMethod", "call_method", "find_method", "read_attribute"]

# Checks that what a value gave under a name may be called: (value, found).
CheckFound: TypeAlias = Callable[[object, object], None]
# (value, method, args, kwargs, check)
RunMethod: TypeAlias = Callable[[object, str, list[Any], dict[str, Any], CheckFound], UserCall]


@final
@dataclass(slots=True)  # frozen ones take three times as long to make
class Method:
    """One method of an RRef's value, with its arguments."""

    reference: Reference
    name: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    @property
    def label(self) -> str:
        """What it is called in messages."""
        return f"{self.reference.type_name or 'RRef'}.{self.name}"

    def payload(self) -> dict[str, object]:
        """What travels."""
        return {
            "rref": list(self.reference.rref),
            "method": self.name,
            "args": list(self.args),
            "kwargs": dict(self.kwargs),
        }


def call_method(
    value: object, method: str, args: list[Any], kwargs: dict[str, Any], check: CheckFound
) -> UserCall:
    """Returns what calls a method of a value; an attribute is read, where no arguments came.

    Raises:
        AttributeError: The value has none of this name.
        CallRefusedError: `check` refuses it.
        TypeError: It is an attribute, and there are arguments.
    """
    name, found = find_method(value, method)
    if callable(found):
        check(value, found)
        return UserCall(found, args, kwargs, mode_of(found), name)
    if method == "__call__":
        cls = type(value).__qualname__
        article = "an" if cls[:1].lower() in "aeiou" else "a"
        raise TypeError(f"{article} {cls} cannot be called; name a method: rref.rpc_sync().m(...)")
    if args or kwargs:
        raise TypeError(
            f"{name} is no method but {type(found).__name__}; an attribute is read without arguments"
        )
    return UserCall(lambda: found, name=name)


def find_method(value: object, method: str) -> tuple[str, object]:
    """Returns what a method is called in messages, and what the value gives under its name.

    Raises:
        AttributeError: The value has none of this name.
    """
    name = f"{name_of_class(type(value))}.{method}"
    return name, value if method == "__call__" else getattr(value, method)


def read_attribute(value: object, name: str) -> list[object]:
    """Returns the answer to `rref.read`."""
    found = getattr(value, name)
    return [True, None] if callable(found) else [False, found]
