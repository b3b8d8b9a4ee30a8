"""The requests of one end of a line that have no reply yet, by their numbers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Generic, TypeVar, final

R = TypeVar("R")


@final
class Requests(Generic[R]):
    """A table of requests, each of which ends once: who removes it has it alone.

    Each method is atomic. An owner that keeps more about a request, and changes it together with
    this table, holds a lock of its own.

    Attributes:
        draw: Returns a number that no other request has.
        add: Enters a request by its number.
        find: Returns the request of a number; None if it has ended.
        end: Removes and returns the request of a number; a second argument is the value to return
            if it has ended before.

    >>> requests = Requests[str]()
    >>> number = requests.draw()
    >>> requests.add(number, "a question")
    >>> requests.end(number, None), requests.end(number, None)
    ('a question', None)
    """

    def __init__(self) -> None:
        self._open: dict[int, R] = {}
        # As the methods of a dict: they are on the way of each call.
        self.draw = itertools.count(1).__next__
        self.add = self._open.__setitem__
        self.find = self._open.get
        self.end = self._open.pop

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[R]:
        return iter(list(self._open.values()))

    def end_all(self) -> list[R]:
        """Removes and returns all requests, the oldest first."""
        return [each for n in list(self._open) if (each := self._open.pop(n, None)) is not None]
