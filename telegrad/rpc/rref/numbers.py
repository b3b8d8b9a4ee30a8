"""Compact sets of the numbers that peers have used for references and calls. Pure."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final, final


@final
class NumberSet:
    """A set of natural numbers that only grows, stored as runs of consecutive numbers.

    Its memory grows with the number of gaps.

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
        """The number of runs of consecutive numbers."""
        return len(self._starts)

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._starts, number) - 1
        return at >= 0 and number < self._ends[at]

    def add(self, number: int) -> bool:
        """Adds a number if it is missing; returns True if that made one run more."""
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
        """Adds the lowest missing numbers until at most `most` runs are left."""
        closed = len(self._starts) - most
        if closed > 0:
            del self._starts[1 : closed + 1], self._ends[:closed]


# Limits of what is kept by the word of one peer; honest ones stay far below. A peer has references
# by way of so many others, and so many gaps in its numbers: a gap is a message that never arrived.
MOST_OTHERS: Final = 4096
MOST_GAPS: Final = 20_000


@final
class SeenNumbers:
    """The numbers that peers have used, for each peer and one other worker, in bounded memory.

    A peer that uses numbers with too many gaps finds the gaps closed: it can use them no more.
    """

    def __init__(self) -> None:
        self._of: dict[int, dict[int, NumberSet]] = {}
        self._runs: dict[int, int] = {}  # at most so many; runs that were joined count, too

    def take(self, peer: int, other: int, number: int) -> bool:
        """Adds a number; returns True if it is new and the peer has not named too many."""
        sets = self._of.get(peer)
        if sets is None:
            sets = self._of[peer] = {}
        numbers = sets.get(other)
        if numbers is None:
            if len(sets) >= MOST_OTHERS:
                return False
            numbers = sets[other] = NumberSet()
        if number in numbers:
            return False
        if numbers.add(number):
            self._note_run(peer, sets)
        return True

    def contains(self, peer: int, other: int, number: int) -> bool:
        """Returns True if the number was added."""
        numbers = self._of.get(peer, {}).get(other)
        return numbers is not None and number in numbers

    def forget(self, peer: int) -> None:
        """Forgets a peer that sends nothing more."""
        self._of.pop(peer, None)
        self._runs.pop(peer, None)

    def _note_run(self, peer: int, sets: dict[int, NumberSet]) -> None:
        self._runs[peer] = self._runs.get(peer, 0) + 1
        if self._runs[peer] > MOST_OTHERS + MOST_GAPS:
            if sum(numbers.runs for numbers in sets.values()) > MOST_OTHERS + MOST_GAPS:
                # A number in a closed gap counts as used: so nothing is ever counted twice (G3).
                for numbers in sets.values():
                    numbers.close_gaps(1)
            self._runs[peer] = sum(numbers.runs for numbers in sets.values())
