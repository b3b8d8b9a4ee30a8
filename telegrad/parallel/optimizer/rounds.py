"""Waiting among the trainers of one optimizer: two pure tables, values in, values out.

    Rounds          A ─ arrives ───────┐                     synchronous
                    B ─ arrives ────┐  │
                    C ─ arrives ──▶ taken [A B C] ─ step ─▶ ended; all go on

    StepCounts      A 4 ─ waits        (staleness 1)         bounded staleness
                    B 3 ─ goes on
                    C 2 ─ computes     C 3 ─▶ A goes on

Nobody waits for a trainer that was removed (lost, or done). For any order of events, a waiting
trainer goes on once all remaining trainers have come as far as the rule demands.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar, final

T = TypeVar("T", bound=Hashable)  # a trainer
W = TypeVar("W")  # the share or ticket that it leaves while it waits


class _Waiting(Generic[T, W]):
    """The trainers that take part, with their counts of steps, and what they left to wait."""

    def __init__(self, trainers: Iterable[T]) -> None:
        self._counts: dict[T, int] = dict.fromkeys(trainers, 0)
        self._waiting: dict[T, W] = {}

    @property
    def trainers(self) -> tuple[T, ...]:
        """The trainers that take part."""
        return tuple(self._counts)

    def remove(self, trainer: T) -> W | None:
        """Removes a trainer; returns what it left if it waited."""
        self._counts.pop(trainer, None)
        return self._waiting.pop(trainer, None)

    def withdraw(self, trainer: T, left: W) -> bool:
        """Withdraws what a trainer left. False if that was taken or replaced."""
        waits = self._waiting.get(trainer) is left
        if waits:
            del self._waiting[trainer]
        return waits

    def _leave(self, trainer: T, left: W) -> W | None:
        replaced = self._waiting.pop(trainer, None)
        self._waiting[trainer] = left
        return replaced


@final
class Rounds(_Waiting[T, W]):
    """Rounds with one share of every trainer each; one round at a time is stepped.

    Args:
        trainers: The trainers that take part; the shares of a round are in this order.
    """

    def __init__(self, trainers: Iterable[T]) -> None:
        super().__init__(trainers)
        self._stepping = False

    def add(self, trainer: T) -> None:
        """Adds a trainer, from the next round that is not complete."""
        self._counts[trainer] = 0

    def arrive(self, trainer: T, share: W) -> W | None:
        """Takes a share for the round; returns an earlier share of the trainer that this replaces.

        Raises:
            KeyError: The trainer does not take part.
        """
        if trainer not in self._counts:
            raise KeyError(trainer)
        return self._leave(trainer, share)

    def awaited(self) -> tuple[T, ...]:
        """Returns the trainers whose share of the next round is missing."""
        return tuple(each for each in self._counts if each not in self._waiting)

    def take(self) -> list[W]:
        """Returns the shares of a complete round, to be stepped; else nothing.

        No other round is taken until `ended` is called.
        """
        if self._stepping or not self._waiting or self._waiting.keys() != self._counts.keys():
            return []
        self._stepping = True
        shares = [self._waiting[trainer] for trainer in self._counts]
        self._waiting.clear()
        return shares

    def ended(self) -> None:
        """Records that the round that was taken has been stepped, or has failed."""
        self._stepping = False


@final
class StepCounts(_Waiting[T, W]):
    """The step counts of all trainers, and the waits of those that are too far ahead.

    The rule is that of Ho et al., "More effective distributed ML via a stale synchronous parallel
    parameter server" (2013): when the forward of step `t` begins, all steps below `t - staleness`
    of all trainers are in place.

    Args:
        trainers: The trainers that take part.
        staleness: The steps that a trainer may be ahead of the slowest without waiting.
    """

    def __init__(self, trainers: Iterable[T], staleness: int) -> None:
        super().__init__(trainers)
        self._staleness = staleness

    def add(self, trainer: T) -> int:
        """Adds a trainer at the count of the slowest one; returns that count."""
        if trainer not in self._counts:
            self._counts[trainer] = min(self._counts.values(), default=0)
        return self._counts[trainer]

    def arrive(self, trainer: T, steps: int, ticket: W) -> W | None:
        """Records a trainer's number of steps; returns its earlier ticket, if this replaces one.

        Raises:
            KeyError: The trainer does not take part.
        """
        self._counts[trainer] = max(self._counts[trainer], steps)
        return self._leave(trainer, ticket)

    def awaited(self, trainer: T) -> tuple[T, ...]:
        """Returns the trainers that are so far behind that `trainer` must wait for them."""
        most = self._counts.get(trainer, 0) - self._staleness
        return tuple(each for each, count in self._counts.items() if count < most)

    def take(self) -> list[W]:
        """Returns the tickets of the trainers that may go on."""
        slowest = min(self._counts.values(), default=0)
        near = [t for t in self._waiting if self._counts[t] - slowest <= self._staleness]
        return [self._waiting.pop(trainer) for trainer in near]
