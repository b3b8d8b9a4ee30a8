"""Ctrl-C in a thread that moves messages for others: put off until it waits, or is done.

A KeyboardInterrupt in the midst of handing over a reply would take it away from whoever waits for
it. Only the main thread is concerned: Python calls signal handlers there.
"""

from __future__ import annotations

import signal
import threading

# What the functions of `signal` wrap to turn numbers into enumerations. That takes fifty times as
# long, and under `asyncio.run`, whose handler refers to its main task, writes that out each time.
from _signal import getsignal as get_handler  # type: ignore[import-not-found]
from _signal import signal as set_handler
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any, TypeAlias, TypeVar, TypeVarTuple, final

__all__ = ["Shield"]

_Handler: TypeAlias = Callable[[int, FrameType | None], Any]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@final
class Shield(AbstractContextManager["Shield"]):
    """For the library: a block in which Ctrl-C waits, but for the waits inside it.

    Attributes:
        in_wait: Whether an exception came out of a wait, between two messages.
    """

    __slots__ = ("_came", "_handler", "_polling", "in_wait")

    def __init__(self) -> None:
        self.in_wait = False
        self._polling = False
        self._came = False
        self._handler: _Handler | None = None

    def __enter__(self) -> Shield:
        if threading.get_ident() == threading.main_thread().ident:
            handler = get_handler(signal.SIGINT)
            if callable(handler):
                self._handler = handler
                set_handler(signal.SIGINT, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        handler = self._handler
        if handler is None:
            return
        set_handler(signal.SIGINT, handler)
        if self._came:
            handler(signal.SIGINT, None)

    def wait(self, wait: Callable[[*Ts], T], *args: *Ts) -> T:
        """Returns `wait(*args)`; Ctrl-C ends that, or came before and does so now."""
        self._polling = True
        try:
            if self._came and self._handler is not None:
                self._came = False
                self._handler(signal.SIGINT, None)
            return wait(*args)
        except BaseException:
            self.in_wait = True
            raise
        finally:
            self._polling = False

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self._polling and self._handler is not None:
            self._handler(number, frame)
        else:
            self._came = True
