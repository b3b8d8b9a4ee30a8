"""A handler of the logger `telegrad.audit` that keeps what it is given and can be waited on."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

SECONDS = 20.0  # no wait of a test takes so long unless something is wrong


class AuditLog(logging.Handler):
    """Keeps records; blocks in them while it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = threading.Condition()
        self.records: list[logging.LogRecord] = []
        self.threads: set[str] = set()
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.error: Exception | None = None

    def emit(self, record: logging.LogRecord) -> None:
        with self.changed:
            self.records.append(record)
            self.threads.add(threading.current_thread().name)
            self.changed.notify_all()
        self.may_go_on.wait(SECONDS)
        if self.error is not None:
            raise self.error

    def found(self, event: str, **fields: object) -> list[dict[str, Any]]:
        """What was recorded of an event, with these fields among others."""
        with self.changed:
            told: list[dict[str, Any]] = [each.__dict__["telegrad"] for each in self.records]
        wanted = {"event": event, **fields}.items()
        return [each for each in told if wanted <= _hashable(each).items()]

    def wait(self, event: str, count: int = 1, **fields: object) -> list[dict[str, Any]]:
        """Waits until there are so many records of that."""
        self.wait_for(lambda: len(self.found(event, **fields)) >= count)
        return self.found(event, **fields)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, SECONDS), [
                each.getMessage() for each in self.records
            ]

    def check_form(self) -> None:
        """Each is one line of JSON, and the same as a dict."""
        with self.changed:
            for each in self.records:
                line = each.getMessage()
                assert "\n" not in line
                assert json.loads(line) == each.__dict__["telegrad"]


def _hashable(told: dict[str, Any]) -> dict[str, object]:
    return {key: tuple(each) if isinstance(each, list) else each for key, each in told.items()}


@contextlib.contextmanager
def audit_log_of_all() -> Iterator[AuditLog]:
    """Listens to all audit logs of this process."""
    logger, handler = logging.getLogger("telegrad.audit"), AuditLog()
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    try:
        yield handler
        handler.check_form()
    finally:
        handler.may_go_on.set()
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate
