"""telegrad's loggers: their records reach handlers from threads that may wait.

A handler may take its time, hold a lock, or call another worker to ship the record. A thread that
moves messages for all, or holds a lock of telegrad's, must not wait for it. So its records leave by
one other thread, in order; if `MOST_RECORDS` wait there, the oldest is dropped and counted.

A record that a handler itself causes is not handed to that handler: its next one would cause the
next.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from functools import partial
from typing import Final, final

from telegrad.critical import interrupts
from telegrad.transport.loop import LoopThread, on_own_loop, shared_loop_thread

_HANDLE: Final = logging.Handler.handle.__code__


def get_logger(name: str) -> logging.Logger:
    """Returns the logger of a module of telegrad's, whose records never block a thread of its."""
    logger = logging.getLogger(name)
    logger.addFilter(_Detour())
    return logger


_logger = logging.getLogger(__name__)  # used in the log's thread alone


@final
class _Detour(logging.Filter):
    """Takes the records out that must not be handled here, and sends them to the log's thread."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns True for a record that this thread may hand to all handlers itself."""
        at_work = _handlers_at_work()
        if not (at_work or interrupts() or on_own_loop()):
            return True
        record.msg, record.args = record.getMessage(), None  # its arguments are as they are now
        shared_loop_thread().log(partial(_handle, record, at_work))
        return False


def _handlers_at_work() -> list[logging.Handler]:
    """Returns the handlers that this thread is in: they have caused the record."""
    found, frame = list[logging.Handler](), sys._getframe(2)
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code is _HANDLE:
            found.append(frame.f_locals["self"])
    return found


def _handle(record: logging.LogRecord, without: Sequence[logging.Handler]) -> None:
    """Hands a record to the handlers of its logger and of those above it."""
    if dropped := shared_loop_thread().dropped_records():
        _logger.warning("%d log records were dropped: their handlers are too slow", dropped)
    logger: logging.Logger | None = logging.getLogger(record.name)
    found = 0
    while logger is not None:
        for handler in logger.handlers:
            found += 1
            if record.levelno >= handler.level and handler not in without:
                try:
                    handler.handle(record)
                except Exception:  # in the program's own handler: the next one may fare better
                    handler.handleError(record)
        logger = logger.parent if logger.propagate else None
    last = logging.lastResort
    if not found and last is not None and record.levelno >= last.level:
        last.handle(record)


get_logger(LoopThread.__module__)  # that module cannot import this one
