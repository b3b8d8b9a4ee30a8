"""Critical sections and roles: where code of others may interrupt telegrad in a thread.

Python runs code of others at any point of a thread: finalisers, by the cyclic collector, handlers
of signals and of log records, trace functions. A thread that is interrupted while it holds a lock
must not wait for that lock again, nor for a thread that waits for it. So each lock of telegrad is
taken inside the thread's section, and verbs ask for it:

    with critical.section, self._lock:
        ...

    in a section     a verb that returns at once puts its work off (`transport.loop.put_off`);
                     a verb that blocks raises BlockingCallError
    in a role        the thread reads sockets for all, or a lane: only a verb that blocks raises

`docs/architecture.md` lists the locks and what may run under them.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from typing import Final, Protocol, cast, final

INTERRUPTING: Final = "code that interrupts telegrad (a finaliser, a signal or log handler)"


class Mark(AbstractContextManager[bool], Protocol):
    """A mark that a thread sets on itself, any number of times."""

    def _is_owned(self) -> bool:
        """Returns True if the calling thread has set it."""

    def acquire(self) -> bool:
        """Sets it once more."""

    def release(self) -> None:
        """Takes back what was set last."""


@final
class _Critical(threading.local):
    """The marks of one thread: locks that no other thread ever takes, and that count their depth.

    Such a lock calls no Python function. A class of ours around each lock would call two, and a
    Ctrl-C between two of its steps would leave the mark behind.

    Attributes:
        section: Held while this thread holds a lock of telegrad's.
        role: Held while this thread moves messages for all.
    """

    def __init__(self) -> None:
        self.section = cast("Mark", threading.RLock())
        self.role = cast("Mark", threading.RLock())


critical: Final = _Critical()


def in_section() -> bool:
    """Returns True if the calling code has interrupted a critical section of this thread."""
    return critical.section._is_owned()


def interrupts() -> bool:
    """Returns True if the calling code has interrupted telegrad where it must not wait."""
    return critical.section._is_owned() or critical.role._is_owned()
