"""The mark `async_execution` for functions that other workers call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["async_execution", "is_async_execution"]

F = TypeVar("F", bound="Callable[..., Any] | staticmethod[..., Any] | classmethod[Any, ..., Any]")

_MARK = "__telegrad_async_execution__"

# Flags of a code object, as the module inspect names them.
_CO_GENERATOR, _CO_COROUTINE, _CO_ASYNC_GENERATOR = 0x20, 0x80, 0x200

_STREAM = "remove @async_execution and call it with rpc.stream"
_UNMARKED = (
    (_CO_COROUTINE, "async def and needs no mark", "remove @async_execution"),
    (_CO_GENERATOR, "a generator function", _STREAM),
    (_CO_ASYNC_GENERATOR, "an async generator function", _STREAM),
)


def async_execution(func: F) -> F:
    """Marks a function whose value is a Future: the reply is sent once the Future is completed.

    No thread of the callee waits in the meantime; see docs/async-execution.md. Local calls are not
    changed. The mark may stand above or below `@staticmethod` and `@classmethod`, on methods that
    are called through an RRef, and on the `__call__` of a class. `async def` functions need no
    mark.

    Args:
        func: A function that returns a `telegrad.rpc.Future`; if it returns anything else, the
            caller gets a TypeError.

    Returns:
        The same function.

    Raises:
        TypeError: `func` is not written in Python, or is an `async def` or a generator function.

    Example:
        >>> from telegrad.rpc import Future
        >>> @async_execution
        ... def twice(x: int) -> Future[int]:
        ...     future = Future()
        ...     future.set_result(2 * x)
        ...     return future
        >>> twice(4).value()
        8
    """
    target = func.__func__ if isinstance(func, staticmethod | classmethod) else func
    code = getattr(target, "__code__", None)
    if code is None or not callable(target):
        raise TypeError(f"async_execution marks functions written in Python, not {target!r}")
    for flag, kind, advice in _UNMARKED:
        if code.co_flags & flag:
            raise TypeError(f"{target.__qualname__} is {kind}; {advice}")
    setattr(target, _MARK, True)
    return func


def is_async_execution(func: object) -> bool:
    """Returns True if a function, method or callable has the mark.

    Example:
        >>> is_async_execution(async_execution(lambda: None)), is_async_execution(print)
        (True, False)
    """
    return getattr(func, _MARK, False) is True
