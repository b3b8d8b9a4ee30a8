"""What is called: the checks at the caller, and what the callee runs."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, TypeAlias, final

from telegrad.errors import DecodeError
from telegrad.rpc.functions import is_async_execution
from telegrad.rpc.future import Future
from telegrad.types import WorkerInfo
from telegrad.wire import FunctionRef

__all__ = [
    "CallMode",
    "UserCall",
    "call_name",
    "call_payload",
    "check_arguments",
    "prepare_call",
    "read_call_payload",
    "read_script",
]

Arguments: TypeAlias = Sequence[Any]
KeywordArguments: TypeAlias = Mapping[str, Any] | None


class Resolve(Protocol):
    """Finds what others may call."""

    def __call__(
        self, function: str, *, script: str = "", caller: WorkerInfo | None = None
    ) -> Callable[..., Any]:
        """Returns the function of this name."""


class CallMode(Enum):
    """How a function gives its value."""

    PLAIN = "returned by the function, in a thread of the pool"
    COROUTINE = "awaited on the user loop"
    FUTURE = "the value of the Future that the function returns"


@final
@dataclass(frozen=True, slots=True)
class UserCall:
    """A function with its arguments, ready to be run at the callee.

    Attributes:
        func: What is called.
        args: By position.
        kwargs: By name.
        mode: How it gives its value.
        name: What it is called in messages.
    """

    func: Callable[..., Any]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    mode: CallMode = CallMode.PLAIN
    name: str = "a function"

    @staticmethod
    def of(
        func: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> UserCall:
        """Makes a UserCall in the mode that the function declares."""
        return UserCall(func, args, kwargs or {}, mode_of(func), name or call_name(func))

    def __call__(self) -> Any:
        """Calls the function; what it returns depends on the mode.

        A coroutine that returns a Future, which could not travel, has the value of that.
        """
        value = self.func(*self.args, **self.kwargs)
        return _flattened(value) if self.mode is CallMode.COROUTINE else value


def call_name(func: object) -> str:
    """Returns what a function is called in messages; any object will do."""
    name = getattr(func, "__qualname__", None)
    return name if isinstance(name, str) else repr(func)


async def _flattened(coroutine: Awaitable[Any]) -> Any:
    value = await coroutine
    return await value if isinstance(value, Future) else value


def mode_of(func: Callable[..., Any]) -> CallMode:
    """Returns how a function gives its value.

    What is `async def` is a coroutine function even with the mark of `async_execution`, which
    `functools.wraps` copies from the function inside.
    """
    called = func
    if not inspect.isroutine(func) and not inspect.isclass(func):
        called = type(func).__call__  # of an object that can be called, perhaps inherited
    if inspect.iscoroutinefunction(called):
        return CallMode.COROUTINE
    return CallMode.FUTURE if is_async_execution(called) else CallMode.PLAIN


def check_arguments(args: object, kwargs: object) -> tuple[list[Any], dict[str, Any]]:
    """Returns what is sent for `args` and `kwargs`.

    Raises:
        TypeError: `args` is no tuple or list, or `kwargs` no mapping with str keys.
    """
    if not isinstance(args, tuple | list):
        raise TypeError(
            f"args must be a tuple or list of the arguments, not {type(args).__name__}; "
            "for one argument write args=(x,)"
        )
    if kwargs is None:
        return list(args), {}
    if not isinstance(kwargs, Mapping):
        raise TypeError(f"kwargs must be a dict of the keyword arguments, not {kwargs!r}")
    for key in kwargs:
        if not isinstance(key, str):
            raise TypeError(f"the keys of kwargs must be str, not {key!r}")
    return list(args), dict(kwargs)


def call_payload(
    func: Callable[..., Any], args: object, kwargs: object
) -> tuple[str, dict[str, Any]]:
    """Checks a call at the caller and returns the function's name and what is sent.

    Raises:
        TypeError: `func` is not callable, or the arguments are not of the right form.
        EncodeError: The function has no name that the callee could find it by.
    """
    if not callable(func):
        raise TypeError(f"func must be callable, not {func!r} ({type(func).__name__})")
    positional, named = check_arguments(args, kwargs)
    ref = FunctionRef.of(func)
    payload = {"func": ref.name, "args": positional, "kwargs": named}
    if ref.script:
        payload["script"] = ref.script
    return ref.name, payload


def read_call_payload(payload: object) -> tuple[str, list[Any], dict[str, Any]]:
    """Takes apart at the callee what `call_payload` made.

    Raises:
        DecodeError: It is something else.
    """
    if isinstance(payload, dict):
        name, args, kwargs = payload.get("func"), payload.get("args"), payload.get("kwargs")
        if isinstance(name, str) and isinstance(args, list) and isinstance(kwargs, dict):
            return name, args, kwargs
    raise DecodeError("the body of a call is not {func: str, args: list, kwargs: dict}")


def read_script(payload: object) -> str:
    """Returns the caller's script, named where the callee does not find the function."""
    script = payload.get("script") if isinstance(payload, dict) else None
    return script if isinstance(script, str) else ""


def prepare_call(resolve: Resolve, caller: WorkerInfo, payload: object) -> UserCall:
    """Makes at the callee what is run for what `call_payload` made.

    Args:
        resolve: Finds the function, if this caller may call it; `Agent.resolve`.
        caller: Who calls.
        payload: What arrived.

    Raises:
        DecodeError: It is something else.
        FunctionNotFoundError: There is no such function.
        CallRefusedError: The policy does not allow it.
    """
    name, args, kwargs = read_call_payload(payload)
    func = resolve(name, script=read_script(payload), caller=caller)
    return UserCall.of(func, args, kwargs, name)
