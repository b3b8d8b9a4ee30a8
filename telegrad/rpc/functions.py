"""Marks on functions that are called from other workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["async_execution", "is_async_execution"]

F = TypeVar("F", bound="Callable[..., Any] | staticmethod[..., Any] | classmethod[Any, ..., Any]")

_MARK = "__telegrad_async_execution__"


def async_execution(func: F) -> F:
    """Marks a function whose value is a Future: the reply is sent when that is completed.

    No thread of the callee waits meanwhile. A local call is not changed. The mark may stand above
    or below `@staticmethod` and `@classmethod`. `async def` functions need none.

    Args:
        func: Returns a `telegrad.rpc.Future`; anything else is a TypeError at the caller.

    Returns:
        The same function.

    Raises:
        TypeError: It is no function, or one that is `async def`.

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
    if not callable(target):
        raise TypeError(f"async_execution marks functions, not {target!r}")
    if getattr(getattr(target, "__code__", None), "co_flags", 0) & _CO_COROUTINE:
        raise TypeError(
            f"{target.__qualname__} is async def and needs no mark; remove @async_execution"
        )
    setattr(target, _MARK, True)
    return func


def is_async_execution(func: object) -> bool:
    """Tells whether a function, method or callable carries the mark."""
    return getattr(func, _MARK, False) is True


_CO_COROUTINE = 0x80  # inspect.CO_COROUTINE, without importing inspect
