"""Ctrl-C in a thread that moves messages for others: put off until it waits, or is done.

A KeyboardInterrupt in the midst of handing over a reply would take it away from whoever waits for
it. Only the main thread is concerned: Python calls signal handlers there.
"""

from __future__ import annotations

import select
import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any, TypeAlias, final

__all__ = ["Shield"]

_Handler: TypeAlias = Callable[[int, FrameType | None], Any]


@final
class Shield(AbstractContextManager["Shield"]):
    """A block in which Ctrl-C waits, but for the polls inside it.

    Attributes:
        in_poll: Whether an exception came out of a poll, between two messages.
    """

    __slots__ = ("_came", "_handler", "_polling", "in_poll")

    def __init__(self) -> None:
        self.in_poll = False
        self._polling = False
        self._came = False
        self._handler: _Handler | None = None

    def __enter__(self) -> Shield:
        if threading.current_thread() is threading.main_thread():
            handler = signal.getsignal(signal.SIGINT)
            if callable(handler):
                self._handler = handler
                signal.signal(signal.SIGINT, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        handler = self._handler
        if handler is None:
            return
        signal.signal(signal.SIGINT, handler)
        if self._came:
            handler(signal.SIGINT, None)

    def poll(self, poll: select.poll, milliseconds: int) -> list[tuple[int, int]]:
        """Polls; Ctrl-C ends that, or came before and does so now."""
        self._polling = True
        try:
            if self._came and self._handler is not None:
                self._came = False
                self._handler(signal.SIGINT, None)
            return poll.poll(milliseconds)
        except BaseException:
            self.in_poll = True
            raise
        finally:
            self._polling = False

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self._polling and self._handler is not None:
            self._handler(number, frame)
        else:
            self._came = True
