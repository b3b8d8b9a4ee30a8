"""Futures of no call, done or failed; threads that wait for them."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

from telegrad.rpc.future.future import Future


def done(value: int) -> Future[int]:
    future: Future[int] = Future()
    future.set_result(value)
    return future


def failed(error: BaseException) -> Future[int]:
    future: Future[int] = Future()
    future.set_exception(error)
    return future


def complete_by(future: Future[int], thunk: Callable[[], int]) -> None:
    """Completes a future as a reply does: a thunk makes its value once it is read."""
    assert future._try_set_thunk(thunk)


def start(func: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=func)
    thread.start()
    return thread


def objects_left_by(run: Callable[[], object], times: int) -> int:
    """Returns how many more objects the garbage collector knows after so many runs."""
    run()
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(times):
        run()
    gc.collect()
    return len(gc.get_objects()) - before
