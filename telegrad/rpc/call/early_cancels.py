"""Cancellations that come before their request, told apart from those that come after its reply.

A cancellation overtakes a request whose arrays are still on their way, and crosses replies. In the
first case it is remembered until its request comes; in the second it is ignored. The numbers that
have come already tell the two apart:

    request 7 ──▶ come {7}    cancel 7: of a call that is over, forgotten
                              cancel 9: remembered {9}    request 9 ──▶ begins cancelled

No request's number is ever drawn again, and a caller's numbers rise, so those that have come are a
few runs. Where the runs are too many, since the caller calls many other workers in between, the
lowest gaps count as come. So a cancellation after the reply is never remembered, and one before its
request is forgotten only if thousands of calls have overtaken that request.
"""

from __future__ import annotations

from typing import final

from telegrad.rpc.rref.numbers import NumberSet
from telegrad.types import WorkerInfo

__all__ = ["EARLY_CANCELS", "MOST_GAPS", "Arrivals", "EarlyCancels"]

# Of all callers together. A request of which more than its number has come is on its way for a
# second at most, so these are more than there ever are.
EARLY_CANCELS = 1000
# Of each caller, 16 bytes each.
MOST_GAPS = 1000


@final
class Arrivals:
    """The requests of one caller that have come.

    Args:
        caller: The caller.
        remembered: The remembered cancellations of all callers.
    """

    __slots__ = ("_caller", "_remembered", "numbers")

    def __init__(self, caller: WorkerInfo, remembered: dict[tuple[WorkerInfo, int], bool]) -> None:
        self._caller = caller
        self._remembered = remembered
        self.numbers = NumberSet()

    def come(self, number: int) -> bool | None:
        """Records that a request has come.

        Returns:
            None if it was not cancelled; else True if the reason was that its time is over.
        """
        numbers, remembered = self.numbers, self._remembered
        if numbers.add(number) and numbers.runs > 2 * MOST_GAPS:
            numbers.close_gaps(MOST_GAPS)
        return remembered.pop((self._caller, number), None) if remembered else None


@final
class EarlyCancels:
    """The early cancellations of one callee's callers. Pure; its user has a lock."""

    def __init__(self) -> None:
        self._come: dict[WorkerInfo, Arrivals] = {}
        self._remembered: dict[tuple[WorkerInfo, int], bool] = {}  # the oldest first

    @property
    def remembered(self) -> dict[tuple[WorkerInfo, int], bool]:
        """The calls that will begin cancelled, oldest cancellation first; True for expired ones."""
        return dict(self._remembered)

    def of(self, caller: WorkerInfo) -> Arrivals:
        """Returns the record of a caller's requests, which is kept until the caller is lost."""
        arrivals = self._come.get(caller)
        if arrivals is None:
            arrivals = self._come[caller] = Arrivals(caller, self._remembered)
        return arrivals

    def cancelled(self, caller: WorkerInfo, number: int, *, expired: bool) -> None:
        """Takes a cancellation that finds no call."""
        come = self._come.get(caller)
        if come is not None and number in come.numbers:
            return
        key, remembered = (caller, number), self._remembered
        if key not in remembered and len(remembered) >= EARLY_CANCELS:
            del remembered[next(iter(remembered))]
        remembered[key] = remembered.get(key, False) or expired

    def lose(self, caller: WorkerInfo) -> None:
        """Forgets a caller, from which nothing comes any more."""
        self._come.pop(caller, None)
        for key in [key for key in self._remembered if key[0] == caller]:
            del self._remembered[key]
