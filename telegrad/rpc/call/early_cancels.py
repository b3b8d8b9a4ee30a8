"""Cancellations that come before their request, told apart from those that come after its reply.

A cancellation overtakes a request whose arrays are still on their way, and crosses replies. The
one is to be remembered until its request comes, the other is for nobody. Which of both it is, the
numbers tell that have come already:

    request 7 ──▶ come {7}    cancel 7: of a call that is over, forgotten
                              cancel 9: remembered {9}    request 9 ──▶ begins cancelled

No request's number is ever drawn again, and a caller's numbers rise, so those that have come are a
few runs. Where they are too many, since it calls many other workers in between, the lowest gaps are
taken as come: so a cancellation after the reply is never remembered, and one before its request is
forgotten only if thousands of calls have overtaken that.
"""

from __future__ import annotations

from typing import final

from telegrad.rpc.rref.numbers import NumberSet
from telegrad.types import WorkerInfo

__all__ = ["EARLY_CANCELS", "MOST_GAPS", "Arrivals", "EarlyCancels"]

# Of all callers together: a request of which more is known than its number is on its way for a
# second at most, so these are more than there ever are.
EARLY_CANCELS = 1000
# Of each caller, 16 bytes each.
MOST_GAPS = 1000


@final
class Arrivals:
    """The requests of one caller that have come.

    Args:
        caller: Whose.
        remembered: What is remembered of all callers.
    """

    __slots__ = ("_caller", "_remembered", "numbers")

    def __init__(self, caller: WorkerInfo, remembered: dict[tuple[WorkerInfo, int], bool]) -> None:
        self._caller = caller
        self._remembered = remembered
        self.numbers = NumberSet()

    def come(self, number: int) -> bool | None:
        """Hears that a request has come.

        Returns:
            None where it was not cancelled; else whether it was because its time is over.
        """
        numbers, remembered = self.numbers, self._remembered
        if numbers.add(number) and numbers.runs > 2 * MOST_GAPS:
            numbers.close_gaps(MOST_GAPS)
        return remembered.pop((self._caller, number), None) if remembered else None


@final
class EarlyCancels:
    """What one callee remembers of its callers. Pure; whoever uses it has a lock."""

    def __init__(self) -> None:
        self._come: dict[WorkerInfo, Arrivals] = {}
        self._remembered: dict[tuple[WorkerInfo, int], bool] = {}  # the oldest first

    @property
    def remembered(self) -> dict[tuple[WorkerInfo, int], bool]:
        """The calls that will begin cancelled, the oldest cancellation first; whether expired."""
        return dict(self._remembered)

    def of(self, caller: WorkerInfo) -> Arrivals:
        """Returns what hears of the requests of a caller, until that is lost."""
        arrivals = self._come.get(caller)
        if arrivals is None:
            arrivals = self._come[caller] = Arrivals(caller, self._remembered)
        return arrivals

    def cancelled(self, caller: WorkerInfo, number: int, *, expired: bool) -> None:
        """Hears a cancellation that finds no call."""
        come = self._come.get(caller)
        if come is not None and number in come.numbers:
            return
        key, remembered = (caller, number), self._remembered
        if key not in remembered and len(remembered) >= EARLY_CANCELS:
            del remembered[next(iter(remembered))]
        remembered[key] = remembered.get(key, False) or expired

    def lose(self, caller: WorkerInfo) -> None:
        """Forgets a caller, of which nothing comes any more."""
        self._come.pop(caller, None)
        for key in [key for key in self._remembered if key[0] == caller]:
            del self._remembered[key]
