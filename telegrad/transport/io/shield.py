"""Putting handlers of signals off in a thread that moves messages for others.

Such a handler may raise: the one of Ctrl-C does, and so does an alarm's that ends a slow call. In
the midst of handing over a reply that would take it away from the thread that waits for it, and in
the midst of a message it would end the stream. So handlers run where the thread waits, or when it
is done. Only the main thread is concerned: Python calls handlers there.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from _signal import getsignal as get_handler  # type: ignore[import-not-found]
from _signal import signal as set_handler
from collections.abc import Callable
from contextlib import AbstractContextManager
from threading import get_ident
from types import FrameType
from typing import Any, Final, TypeAlias, TypeVar, TypeVarTuple, final

# The signals for which programs have handlers. Python does not say which signals have one, and a
# look at all 64 takes 3 us. `_signal` has the functions that `signal` wraps to turn numbers into
# enumerations. The wrappers take fifty times as long, and under `asyncio.run`, whose handler refers
# to its main task, write that task out each time.
SIGNALS: Final = tuple(
    int(each)
    for each in (
        signal.SIGINT,
        signal.SIGALRM,
        signal.SIGTERM,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGHUP,
        signal.SIGPROF,
        signal.SIGVTALRM,
    )
)

MAIN = {threading.main_thread().ident}  # the thread in which Python calls handlers


def _begin_in_child() -> None:
    MAIN.clear()
    MAIN.add(get_ident())  # the thread that has forked is the only one


os.register_at_fork(after_in_child=_begin_in_child)

_Handler: TypeAlias = Callable[[int, FrameType | None], Any]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@final
class Shield(AbstractContextManager["Shield"]):
    """A block in which handlers of signals wait, except for the waits inside it; for the library.

    Attributes:
        polling: True while it waits: any other code that runs in this thread is a signal handler.
    """

    polling = False
    _handlers: dict[int, _Handler] | None = None  # those that it has put off, in the main thread
    _came: list[int] | None = None  # the signals that came

    def __enter__(self) -> Shield:
        if get_ident() in MAIN:
            self._handlers = handlers = {}
            try:
                for number in SIGNALS:
                    if callable(handler := get_handler(number)):
                        handlers[number] = handler
                        set_handler(number, self._hear)
            except BaseException:  # of a handler that is not put off yet
                self.__exit__()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        if (handlers := self._handlers) is None:
            return
        try:
            hear = self._hear
            for number, handler in handlers.items():
                if get_handler(number) == hear:  # else the program has set another one meanwhile
                    set_handler(number, handler)
        except BaseException:  # of a handler that has its place again
            self.__exit__()
            raise
        finally:
            if self._came:
                self._make_up()

    def wait(self, wait: Callable[[*Ts], T], *args: *Ts) -> T:
        """Returns `wait(*args)`; a handler may end that wait, also for a signal before it."""
        self.polling = True
        try:
            if self._came:
                self._make_up()
            return wait(*args)
        finally:
            self.polling = False

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.polling and self._handlers is not None:
            self._handlers[number](number, frame)
        elif self._came is None:
            self._came = [number]
        elif number not in self._came:  # Python, too, tells once of signals that come at once
            self._came.append(number)

    def _make_up(self) -> None:
        """Calls the handlers of the signals that came, in their order; all, also if one raises."""
        assert self._handlers is not None
        if not self._came:
            return
        number = self._came.pop(0)
        try:
            self._handlers[number](number, sys._getframe())
        finally:
            self._make_up()
