"""Who was turned away at a port of this process, in words for people."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Final, final

__all__ = ["Refusals", "refusals"]

AUDIT: Final = "telegrad.audit"
REFUSED: Final = "connection.refused"
MOST = 16  # told apart: strangers choose what they say


@final
class Refusals(logging.Handler):
    """Hears from the audit log who was turned away; made by `refusals`."""

    def __init__(self, say: Callable[[str], object]) -> None:
        super().__init__(logging.WARNING)
        self._say = say
        self._words: dict[str, None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Takes a record."""
        told = getattr(record, "telegrad", {})
        if told.get("event") == REFUSED and len(self._words) < MOST:
            who = str(told.get("peer", "a stranger")).rpartition(".")[2]
            address = str(told.get("address", "?")).rpartition(" ")[2]
            family, _, place = address.partition(":")
            if family in ("ipv4", "ipv6"):  # each dial leaves from another port
                address = place.rpartition(":")[0]
            words = f"{who} from {address} ({told.get('words', '')})"
            if words not in self._words:
                self._words[words] = None
                self._say(words)

    def found(self) -> list[str]:
        """Returns what was heard, each once."""
        return list(self._words)


def _keep_quiet(words: str) -> None:
    return None


@contextlib.contextmanager
def refusals(say: Callable[[str], object] = _keep_quiet) -> Iterator[Refusals]:
    """Hears, inside the block, who is turned away by this process.

    Args:
        say: Is told at once, of each once; in a thread of the audit log's.
    """
    logger, handler = logging.getLogger(AUDIT), Refusals(say)
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
