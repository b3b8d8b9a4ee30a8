"""Functions that run beside their caller, in a thread, with futures of their values."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

from telegrad import rpc
from telegrad.rpc import Future
from telegrad.rpc.seams import find_agent

P = ParamSpec("P")
T = TypeVar("T")


def fork(func: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Runs a function in another thread: in the agent's pool, or a new one where no agent runs.

    The thread has a copy of the caller's Context, and so its autograd mode and its context of
    distributed autograd. The operations that the function records belong to the caller's graph.
    NumPy computes at the same time in both threads where it releases the interpreter's lock.

    Args:
        func: A function, or another callable.
        *args: The arguments for the function.
        **kwargs: The keyword arguments for the function.

    Returns:
        The future of its value, or of the error that it raised.

    Raises:
        TypeError: `func` is not callable.

    Example:
        >>> import telegrad as tg
        >>> from telegrad import parallel
        >>> x = tg.tensor(3.0, requires_grad=True)
        >>> square = parallel.fork(lambda: x * x)
        >>> (parallel.wait(square) + x).backward()
        >>> x.grad.item()
        7.0
    """
    if find_agent() is not None:
        return cast("Future[T]", rpc.to_thread(func, *args, **kwargs))
    if not callable(func):
        raise TypeError(f"fork takes a function, not {func!r}")
    future: Future[T] = Future()

    def run() -> None:
        try:
            value = func(*args, **kwargs)
        except BaseException as error:  # around the user's function
            future.set_exception(error)
        else:
            future.set_result(value)

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(run,), name="telegrad-fork", daemon=True).start()
    return future


def wait(future: Future[T]) -> T:
    """Waits for a function that `fork` runs; the same as `future.wait()`.

    Args:
        future: The future.

    Returns:
        The value of the function.

    Raises:
        Exception: The error that the function raised.
        BlockingCallError: On an event loop that telegrad runs; write `await future`.

    Example:
        >>> from telegrad import parallel
        >>> parallel.wait(parallel.fork(divmod, 17, 5))
        (3, 2)
    """
    return future.wait()
