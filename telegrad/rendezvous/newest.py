"""Tables of what happened, that do not grow with the age of a job."""

from __future__ import annotations

from typing import TypeVar

__all__ = ["MOST_LOST", "keep_newest"]

K = TypeVar("K")
V = TypeVar("V")

# So many lost workers are remembered one by one, at some 100 bytes each. What was sent to or of one
# of them has long arrived, or is lost itself, when so many others were lost after it.
MOST_LOST = 4096


def keep_newest(table: dict[K, V], most: int = MOST_LOST) -> None:
    """For the library: takes out of a table what was entered first, until it is short enough.

    Not safe in two threads at once: under the lock of the table.

    Example:
        >>> table = {"a": 1, "b": 2, "c": 3}
        >>> keep_newest(table, 2)
        >>> table
        {'b': 2, 'c': 3}
    """
    while len(table) > most:
        del table[next(iter(table))]
