"""User code whose errors nobody waits for: they are logged, and end nothing else.

That holds for all that it raises, SystemExit and KeyboardInterrupt included: the thread that runs
it is telegrad's, or belongs to other callbacks and calls as well. Code that somebody does wait
for (a served function, its arguments and value, `then`) fails the future of the waiter instead.
"""

from __future__ import annotations

import logging
import threading
from contextlib import AbstractContextManager
from typing import final


def is_interrupt(error: BaseException) -> bool:
    """Returns True if an error is the user's Ctrl-C: Python raises it in the main thread only."""
    return (
        isinstance(error, KeyboardInterrupt)
        and threading.current_thread() is threading.main_thread()
    )


@final
class Contained(AbstractContextManager[None]):
    """A block around user code that logs all that it raises, except Ctrl-C in the main thread.

    Args:
        logger: The logger of the module that runs it.
        text: The failed action, as a format.
        *args: The arguments of the format.
    """

    __slots__ = ("_args", "_logger", "_text")

    def __init__(self, logger: logging.Logger, text: str, *args: object) -> None:
        self._logger = logger
        self._text = text
        self._args = args

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, *_: object
    ) -> bool:
        if error is None or is_interrupt(error):
            return False
        self._logger.error(self._text, *self._args, exc_info=error)
        return True
