"""Running a coroutine on the loop thread of this process."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from telegrad.transport import shared_loop_thread

T = TypeVar("T")

SECONDS = 30.0  # longer than anything there takes


def on_loop(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Runs a coroutine function on the loop thread, which owns every gRPC object."""
    loop = shared_loop_thread().acquire()
    try:
        return loop.run(work(), SECONDS)
    finally:
        loop.release()
