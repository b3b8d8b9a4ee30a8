"""Stand-ins for an RRef's value: its methods run, and its attributes are read, on the owner.

    rref.rpc_sync().m(x)       the method's value          rref.rpc_sync().a      the attribute
    rref.rpc_async().m(x)      a Future of it              rref.rpc_async().a()   a Future of it
    rref.remote().m(x)         an RRef to it               rref.remote().a()      an RRef to it

The value's class, if it is imported here, tells if a name is a method. If it is not imported, or
does not have the name (an attribute of the instance), `rpc_sync()` asks the owner. That answers
with the attribute, or that the name is a method, which the RRef then remembers. The other two may
not wait, so the name alone sends nothing: `()` behind it reads an attribute as it calls a method,
in one message.
"""

from __future__ import annotations

import functools
import inspect
import sys
import time
import types
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, final

from telegrad.rpc.base.frames import cut_own_frames
from telegrad.rpc.base.limits import seconds
from telegrad.rpc.future.future import wait_or_cancel
from telegrad.rpc.rref.calls import Method, RRefCalls
from telegrad.transport import barred, refuse_to_block

if TYPE_CHECKING:
    from telegrad.rpc.rref.table import Reference

# -- attributes that an RRef does not pass on, and the advice in their place ---------------------


class NoSpecialMethods:
    """The base of the stand-ins: `proxy["a"]`, `len(proxy)` and the like are refused in words.

    Python looks such methods up in the class of the stand-in, which never hears of most of them.
    """

    __slots__ = ()

    def __getitem__(self, key: object) -> NoReturn:
        raise _special("[...]", "a .get(...) that the value has")

    def __setitem__(self, key: object, value: object) -> NoReturn:
        raise _special("[...] = ...")

    def __delitem__(self, key: object) -> NoReturn:
        raise _special("del [...]")

    def __contains__(self, key: object) -> NoReturn:
        raise _special("`in`")

    def __len__(self) -> NoReturn:
        raise _special("len()", "an attribute such as .size or .shape")

    def __iter__(self) -> NoReturn:
        raise _special("iteration", "rref.rpc_stream() with a generator method")

    def __bool__(self) -> bool:
        """Returns True, as for any object: the stand-in does not ask for the value."""
        return True

    def __setattr__(self, name: str, value: object) -> None:
        if not name.startswith("_"):
            raise AttributeError(
                f"{name!r} is not set through an RRef; call a method of your own that sets it"
            )
        object.__setattr__(self, name, value)


def not_here(name: str) -> str:
    """Returns the message that an RRef has no such attribute, and how to get the value's.

    >>> not_here("append")
    "an RRef has no attribute 'append'; of its value: write rref.rpc_sync().append(...)"
    """
    words = f"an RRef has no attribute {name!r}"
    if name.startswith("_"):
        return words
    return f"{words}; of its value: write rref.rpc_sync().{name}(...)"


def _special(what: str, instead: str = "") -> TypeError:
    return TypeError(
        f"special methods are not had through an RRef ({what}); use "
        f"{f'{instead}, ' if instead else ''}a method of your own, a function that is called at "
        "the owner with the RRef and takes its local_value(), or to_here() for a copy"
    )


# ------------------------------------------------------------------------------------------------

R = TypeVar("R")

# Attributes of a class that are methods for sure. For all others the owner is asked: a descriptor
# may be a `functools.cached_property`, whose name stands for its value.
_METHODS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.WrapperDescriptorType,
    functools.partialmethod,
)

# The least timeout of a call after the question for its method has used that up: above 0.
LEAST_SECONDS = 1e-3


Run = Callable[[str, tuple[Any, ...], dict[str, Any], float], R]


@final
class UncalledMethod(Generic[R]):
    """The method `proxy.m` before it is called: nothing was sent yet.

    Args:
        name: The name of the method, which `public` has let pass.
        spent: Seconds that the question for the method took; the first call has as much less.
    """

    __slots__ = ("_name", "_reference", "_run", "_spent")

    def __init__(self, reference: Reference, name: str, run: Run[R], spent: float = 0.0) -> None:
        self._reference = reference
        self._name = name
        self._run = run
        self._spent = spent

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        """Calls the method on the owner; reads an attribute there, which takes no arguments."""
        spent, self._spent = self._spent, 0.0
        try:
            return self._run(self._name, args, kwargs, spent)
        except BaseException as error:
            cut_own_frames(error)
            raise

    def __repr__(self) -> str:
        reference = self._reference
        return (
            f"<method {reference.type_name or 'RRef'}.{self._name} at {reference.owner.name!r}, "
            "not called; write (...) behind it, and () behind an attribute>"
        )


class MethodProxy(NoSpecialMethods, Generic[R]):
    """A stand-in: `proxy.m(x)` begins to run `value.m(x)` on the owner, and returns at once.

    Args:
        timeout: Seconds for each call; None for the default.
        begin: Begins to run a method, with that timeout; returns a Future, an RRef or a Stream.
    """

    __slots__ = ("_begin", "_calls", "_reference", "_timeout")

    _begin: Callable[[Method, float | None], R]
    _calls: RRefCalls
    _reference: Reference
    _timeout: float | None

    def __init__(
        self,
        calls: RRefCalls,
        reference: Reference,
        timeout: float | None,
        begin: Callable[[Method, float | None], R],
    ) -> None:
        if timeout is not None:
            seconds(timeout, 0.0)  # refuses 0, negatives and bools before any call
        put = object.__setattr__  # past our own
        put(self, "_calls", calls)
        put(self, "_reference", reference)
        put(self, "_timeout", timeout)
        put(self, "_begin", begin)

    def __getattr__(self, name: str) -> Callable[..., R]:
        return UncalledMethod(self._reference, public(name), self._run)

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        """Calls the value itself."""
        try:
            return self._run("__call__", args, kwargs)
        except BaseException as error:
            cut_own_frames(error)
            raise

    def _run(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], spent: float = 0.0
    ) -> R:
        timeout = self._timeout
        if spent:  # the owner was asked for the method first
            timeout = max(self._calls.limit(timeout) - spent, LEAST_SECONDS)
        return self._begin(Method(self._reference, name, args, kwargs), timeout)


@final
class SyncProxy(MethodProxy[Any]):
    """A stand-in: `proxy.m(x)` returns the result of `value.m(x)`; `proxy.a` the attribute."""

    __slots__ = ()

    def __init__(self, calls: RRefCalls, reference: Reference, timeout: float | None) -> None:
        super().__init__(calls, reference, timeout, partial(_call_and_wait, calls))

    def __getattr__(self, name: str) -> Any:
        reference, spent = self._reference, 0.0
        if name not in reference.methods:
            if not _has_method(reference.type_name, public(name)):
                _check_may_block(name)
                began = time.monotonic()
                try:
                    asked = self._calls.read(reference, name, self._timeout)
                    is_method, value = wait_or_cancel(asked)
                except BaseException as error:
                    cut_own_frames(error)
                    raise
                if not is_method:
                    return value
                spent = time.monotonic() - began
            reference.methods |= {name}
        return UncalledMethod(reference, name, self._run, spent)


def _call_and_wait(calls: RRefCalls, method: Method, timeout: float | None) -> Any:
    _check_may_block(method.name)
    return wait_or_cancel(calls.call(method, timeout))


def _check_may_block(name: str) -> None:
    if barred():
        refuse_to_block(
            f"rpc_sync().{name}",
            f"write `await rref.rpc_async().{name}(...)` in an async def function, with () "
            "for an attribute too",
        )


def public(name: str) -> str:
    """Returns a name if it is public.

    Raises:
        AttributeError: The name begins with an underscore. So no probe for `__array__` and its like
            becomes a message.
    """
    if name.startswith("_"):
        raise AttributeError(
            f"{name!r} begins with an underscore and is not had through an RRef; "
            "give it a public name"
        )
    return name


def _has_method(type_name: str, name: str) -> bool:
    """Returns True if a class of this name is imported here and defines a method of that name."""
    cls = _class_here(type_name)
    spaces = () if cls is None else map(vars, cls.__mro__)
    found = next((space[name] for space in spaces if name in space), None)
    if isinstance(found, staticmethod | classmethod):
        found = found.__func__  # which may be a property, for all that its name says
    return isinstance(found, _METHODS)


def _class_here(type_name: str) -> type | None:
    parts = type_name.split(".")
    if len(parts) == 1:
        parts = ["builtins", *parts]
    for end in range(len(parts) - 1, 0, -1):
        found: object = sys.modules.get(".".join(parts[:end]))
        if found is not None:
            for part in parts[end:]:
                found = inspect.getattr_static(found, part, None)
            return found if isinstance(found, type) else None
    return None
