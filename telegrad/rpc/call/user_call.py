"""The called function: the checks at the caller, and the object that the callee runs."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from enum import Enum
from functools import partial
from types import FunctionType, MethodType
from typing import Any, TypeAlias, TypeGuard, final

from telegrad.errors import DecodeError, EncodeError
from telegrad.rpc.base.ambient import find_agent
from telegrad.rpc.base.served_call import ServedCall
from telegrad.rpc.call.bare_calls import (
    ARGUMENTS,
    BARE_END,
    KEPT_BYTES,
    KNOWN,
    bare_call,
    called_by,
    know,
)
from telegrad.rpc.functions import is_async_execution
from telegrad.rpc.future.future import Future
from telegrad.rpc.policy.bounds import check_call
from telegrad.types import WorkerInfo
from telegrad.wire import Encoded, FunctionRef, escaped, names, read_head, register_refusal

NO_CALL = "the body of a call is not {func: str, args: list, kwargs: dict}, in this order"


# `CallablePolicy.resolve`.
Resolve: TypeAlias = Callable[..., Callable[..., Any]]


class CallMode(Enum):
    """For the library: the way in which a function gives its value."""

    PLAIN = "returned by the function, in a thread of the pool"
    COROUTINE = "awaited on the user loop"
    FUTURE = "the value of the Future that the function returns"


@final
@dataclass(slots=True)  # frozen ones take three times as long to make
class UserCall:
    """For the library: a function with its arguments, ready to be run at the callee.

    Attributes:
        func: The function.
        args: The arguments by position.
        kwargs: The arguments by name.
        mode: The way in which it gives its value.
        name: Its name in messages.
    """

    func: Callable[..., Any]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    mode: CallMode = CallMode.PLAIN
    name: str = "a function"

    def __call__(self) -> Any:
        """Calls the function; the mode tells what it returns.

        A coroutine that returns a Future, which could not travel, gives the value of that Future.
        """
        value = self.func(*self.args, **self.kwargs)
        return _flattened(value) if self.mode is CallMode.COROUTINE else value

    def future_of(self, value: object) -> Future[Any]:
        """Returns the value of a function that must return a Future.

        Raises:
            TypeError: The value is no Future.
        """
        if not isinstance(value, Future):
            if isinstance(value, Coroutine):
                value.close()  # or its end would say on stderr that nobody awaited it
            raise TypeError(
                f"{self.name} is marked async_execution and must return a telegrad.rpc.Future, "
                f"not {value!r} ({type(value).__name__}); remove the mark or return a Future"
            )
        return value


# Makes the UserCall of a request whose arguments were decoded.
Prepare: TypeAlias = Callable[[WorkerInfo, object], UserCall]
# Makes that function before the arguments are decoded, from the document of the request; or the
# UserCall itself, if it has no arguments; or raises the reason why this caller may not call it.
# It sets the name of the function in the call's record first.
Admit: TypeAlias = Callable[[ServedCall, bytes], Prepare | UserCall]


def call_name(func: object) -> str:
    """Returns the name of a function in messages; any object will do."""
    name = getattr(func, "__qualname__", None)
    return name if isinstance(name, str) else repr(func)


def plain_function(func: Callable[..., Any]) -> FunctionType | None:
    """Returns the Python function that runs when an object is called; None where none does."""
    if type(func) is FunctionType:  # nearly always, and asked for each call that is served
        return func
    if type(func) is MethodType and type(func.__func__) is FunctionType:
        return func.__func__
    inside = func.__init__ if isinstance(func, type) else func  # type: ignore[misc]
    if not inspect.isroutine(inside):
        inside = type(inside).__call__
    inside = getattr(inside, "__func__", inside)
    return inside if isinstance(inside, FunctionType) else None


async def _flattened(coroutine: Awaitable[Any]) -> Any:
    value = await coroutine
    return await value if isinstance(value, Future) else value


def mode_of(func: Callable[..., Any]) -> CallMode:
    """Returns the way in which a function gives its value.

    An `async def` is a coroutine function even with the mark of `async_execution`, which
    `functools.wraps` copies from the function inside.
    """
    plain = func.__func__ if type(func) is MethodType else func
    if type(plain) is FunctionType:
        if plain.__code__.co_flags & inspect.CO_COROUTINE:
            return CallMode.COROUTINE
        if not plain.__dict__:  # no mark of any kind
            return CallMode.PLAIN
    called = func
    if not inspect.isroutine(func) and not inspect.isclass(func):
        called = type(func).__call__  # of a callable object, perhaps inherited
    if inspect.iscoroutinefunction(called):
        return CallMode.COROUTINE
    return CallMode.FUTURE if is_async_execution(called) else CallMode.PLAIN


def check_arguments(args: object, kwargs: object) -> tuple[list[Any], dict[str, Any]]:
    """Returns the arguments to send for `args` and `kwargs`; None means that there are none.

    Raises:
        TypeError: `args` is no tuple or list, or `kwargs` no mapping with str keys.
    """
    args = () if args is None else args
    if not isinstance(args, (tuple, list)):  # a union of both is made anew each time
        raise TypeError(
            f"args must be a tuple or list of the arguments, not {type(args).__name__}; "
            "for one argument write args=(x,)"
        )
    if kwargs is None:
        return list(args), {}
    if type(kwargs) is not dict and not isinstance(kwargs, Mapping):
        raise TypeError(f"kwargs must be a dict of the keyword arguments, not {kwargs!r}")
    for key in kwargs:
        if not isinstance(key, str):
            raise TypeError(f"the keys of kwargs must be str, not {key!r}")
    return list(args), dict(kwargs)


def call_payload(
    func: Callable[..., Any], args: object, kwargs: object
) -> tuple[str, dict[str, Any]]:
    """Checks a call at the caller and returns the function's name and the payload.

    For a bound method of a dataclass instance, that is the function in its class, with the instance
    as the first argument.

    Raises:
        TypeError: `func` is not callable, or the arguments are not of the right form.
        EncodeError: The function has no name by which the callee could find it.
    """
    if not callable(func):
        raise TypeError(f"func must be callable, not {func!r} ({type(func).__name__})")
    positional, named = check_arguments(args, kwargs)
    if type(func) is not FunctionType:
        if _is_of_value(func):
            positional.insert(0, func.__self__)
            func = func.__func__
        _refuse_object(func)
    name, script = FunctionRef.of(func)
    if script:
        _refuse_what_stays_here(name)
        return name, {"func": name, "script": script, ARGUMENTS: positional, "kwargs": named}
    return name, {"func": name, ARGUMENTS: positional, "kwargs": named}


def call_message(
    func: Callable[..., Any], args: object, kwargs: object
) -> tuple[str, dict[str, Any] | Encoded]:
    """Does what `call_payload` does; for a plain function without arguments, encodes it once.

    Raises:
        TypeError: `func` or the arguments are invalid; see `call_payload`.
        EncodeError: The function has no name by which the callee could find it.
    """
    bare = kwargs is None and (args is None or (type(args) is tuple and not args))
    if bare and type(func) is FunctionType:
        if (known := KNOWN.get(func)) is not None:
            home, message = known
            kept = sys.modules.get(func.__module__) is home
            if kept and home.__dict__.get(func.__qualname__) is func:
                return message
        ref = FunctionRef.of(func)
        if ref.script:
            _refuse_what_stays_here(ref.name)
        message = ref.name, bare_call(ref)
        if not ref.name.startswith("__main__:"):
            know(func, message)
        return message
    return call_payload(func, args, kwargs)


def _is_of_value(func: Callable[..., Any]) -> TypeGuard[MethodType]:
    """Returns True for a method of a dataclass instance, which travels as the first argument."""
    return type(func) is MethodType and is_dataclass(type(func.__self__))


def _refuse_object(func: Callable[..., Any]) -> None:
    """Refuses a callable object without a name; as an argument it may well travel."""
    named = getattr(func, "__qualname__", None) or getattr(func, "__name__", None)
    if isinstance(func, MethodType | partial) or isinstance(named, str):
        return
    kind = type(func).__qualname__
    raise EncodeError(
        f"func is an object of type {kind}, and has no name by which the callee could find it; "
        f"keep the object on one worker, rref = rpc.remote(to, {kind}, ...), and call "
        "rref.rpc_sync()(...); or send a function, and the object among its arguments"
    )


@final
class MainStaysHere:
    """A mark on an agent whose local workers cannot import this `__main__`."""


def _refuse_what_stays_here(name: str) -> None:
    """Refuses a function of `__main__` if the program has local workers that cannot import it."""
    agent = find_agent()
    if agent is not None and agent.attachments.find(MainStaysHere) is not None:
        raise names.main_stays_error(name.partition(":")[2])


def admit_function(
    resolve: Resolve, call: ServedCall, head: Mapping[str, object]
) -> tuple[str, Callable[..., Any]]:
    """Finds at the callee the function that `call_payload` names, before arguments are decoded.

    Args:
        resolve: Finds the function, if this caller may call it; `CallablePolicy.resolve`.
        call: The call, whose record gets the function's name.
        head: The part of the payload before the arguments.

    Returns:
        The function's name, and the function.

    Raises:
        DecodeError: The payload names no function.
        FunctionNotFoundError: There is no such function.
        CallRefusedError: The policy does not allow it.
    """
    name, script = head.get("func"), head.get("script", "")
    if type(name) is not str or type(script) is not str:
        raise DecodeError(NO_CALL)
    call.record.function = escaped(name, most=names.MAX_NAME_LENGTH)
    return name, resolve(name, script=script, caller=call.caller)


def name_call(call: ServedCall, document: bytes) -> None:
    """Names a call that will not be admitted by what its document says, if that can be read."""
    with contextlib.suppress(DecodeError):
        head = read_head(document, ARGUMENTS)
        name, method = head.get("func"), head.get("method")
        if not isinstance(name, str):
            name = f"RRef.{method}" if isinstance(method, str) else call.kind
        call.record.function = escaped(name, most=names.MAX_NAME_LENGTH)


def read_arguments(payload: object, name: str) -> tuple[list[Any], dict[str, Any]]:
    """Returns the arguments that `call_payload` sent, once its function was admitted.

    Raises:
        DecodeError: The payload is something else, or names another function than at its beginning.
        CallRefusedError: It calls a listed function that would keep this worker busy for minutes.
    """
    # A document may have a key twice. The function that was admitted is that of the head.
    if type(payload) is dict and payload.get("func") == name:
        args, kwargs = payload.get(ARGUMENTS), payload.get("kwargs")
        if type(args) is list and type(kwargs) is dict:
            check_call(name, args, kwargs)
            return args, kwargs
    raise DecodeError(NO_CALL)


def admit_call(resolve: Resolve, call: ServedCall, document: bytes) -> Prepare | UserCall:
    """Returns the function that makes the UserCall of a `call_payload` from its arguments.

    For a call without arguments returns the UserCall itself.

    Raises:
        DecodeError: The document is something else.
        FunctionNotFoundError: There is no such function.
        CallRefusedError: The policy does not allow it.
    """
    bare = len(document) <= KEPT_BYTES and document.endswith(BARE_END)
    if bare and (ref := called_by(document)) is not None:
        name, script = ref
        call.record.function = name
        func = resolve(name, script=script, caller=call.caller)
        return UserCall(func, (), {}, mode_of(func), name)
    name, func = admit_function(resolve, call, read_head(document, ARGUMENTS))

    def prepare(caller: WorkerInfo, payload: object) -> UserCall:
        del caller
        args, kwargs = read_arguments(payload, name)
        return UserCall(func, args, kwargs, mode_of(func), name)

    return prepare


register_refusal(
    Future,
    "a Future does not travel; mark the function that returns it with "
    "rpc.functions.async_execution, and its value is the reply",
    as_argument="a Future does not travel; wait() for it, or await it, and send its value",
)
