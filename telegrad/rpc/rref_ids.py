"""Names of RRefs and of their forks, and a compact set of the numbers seen so far."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, NamedTuple

__all__ = ["ForkId", "NumberSet", "RRefId", "fork_id", "rref_id"]


class RRefId(NamedTuple):
    """Names one value at its owner; never used twice in a job.

    Attributes:
        owner: The incarnation of the worker that holds the value.
        creator: The incarnation of the worker that asked for it; the owner itself for `RRef(value)`.
        number: Counts the RRefs that this creator made at this owner, from 0.
    """

    owner: int
    creator: int
    number: int


class ForkId(NamedTuple):
    """Names one user's reference to an RRef; never used twice in a job.

    Attributes:
        owner: The incarnation of the RRef's owner.
        parent: The incarnation of the worker that made the fork: it sent the RRef, or created it.
        child: The incarnation of the worker that holds the fork.
        number: Counts the forks with these three incarnations, from 0. Counted so, the numbers
            that an owner or a child sees are consecutive, and `NumberSet` keeps them in one run.
    """

    owner: int
    parent: int
    child: int
    number: int


# What `RRefId(*numbers)` makes, in a third of its time: each reference takes seven on its way.
rref_id: Final[Callable[[Iterable[int]], RRefId]] = partial(tuple.__new__, RRefId)
fork_id: Final[Callable[[Iterable[int]], ForkId]] = partial(tuple.__new__, ForkId)


class NumberSet:
    """A set of natural numbers that only grows, kept as runs: its size is the number of gaps.

    Examples:
        >>> seen = NumberSet()
        >>> [seen.add(number) for number in (0, 1, 3, 2)]
        [True, False, True, False]
        >>> 2 in seen, 4 in seen, seen.runs
        (True, False, 1)
    """

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []  # one past the last number of the run

    @property
    def runs(self) -> int:
        """How many runs of consecutive numbers there are."""
        return len(self._starts)

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._starts, number) - 1
        return at >= 0 and number < self._ends[at]

    def take(self, number: int) -> bool:
        """Adds a number; tells whether it was not there."""
        ends = self._ends
        if ends and number == ends[-1]:  # most come in order
            ends[-1] = number + 1
            return True
        if number in self:
            return False
        self.add(number)
        return True

    def add(self, number: int) -> bool:
        """Adds a number, if it is not there already; tells whether there is one run more for it."""
        ends = self._ends
        if ends and number == ends[-1]:  # most come in order
            ends[-1] = number + 1
            return False
        if not ends or number > ends[-1]:
            self._starts.append(number)
            ends.append(number + 1)
            return True
        if number in self:
            return False
        at = bisect_right(self._starts, number)
        joins_left = at > 0 and self._ends[at - 1] == number
        joins_right = at < len(self._starts) and self._starts[at] == number + 1
        if joins_left and joins_right:
            self._ends[at - 1] = self._ends[at]
            del self._starts[at], self._ends[at]
        elif joins_left:
            self._ends[at - 1] = number + 1
        elif joins_right:
            self._starts[at] = number
        else:
            self._starts.insert(at, number)
            self._ends.insert(at, number + 1)
            return True
        return False

    def close_gaps(self, most: int) -> None:
        """Adds the lowest numbers that are missing, until no more than `most` runs are left."""
        closed = len(self._starts) - most
        if closed > 0:
            del self._starts[1 : closed + 1], self._ends[:closed]
