"""The callers of one worker: their requests that have come, and their calls that are served.

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

from typing import Generic, TypeVar, final

from telegrad.rpc.rref.numbers import NumberSet
from telegrad.types import WorkerInfo

__all__ = ["EARLY_CANCELS", "MOST_GAPS", "Caller", "Callers"]

Call = TypeVar("Call")

# Of all callers together. A request of which more than its number has come is on its way for a
# second at most, so these are more than there ever are.
EARLY_CANCELS = 1000
# Of each caller, 16 bytes each.
MOST_GAPS = 1000


@final
class Caller(Generic[Call]):
    """The requests and calls of one caller.

    Args:
        worker: The worker that calls.
        remembered: The remembered cancellations of all callers.

    Attributes:
        worker: The worker that calls.
        calls: Its calls that are served, by number; kept by the user of the table.
        numbers: The numbers of the requests that have come.
    """

    __slots__ = ("_remembered", "calls", "numbers", "worker")

    def __init__(self, worker: WorkerInfo, remembered: dict[tuple[WorkerInfo, int], bool]) -> None:
        self.worker = worker
        self.calls: dict[int, Call] = {}
        self.numbers = NumberSet()
        self._remembered = remembered

    def come(self, number: int) -> bool | None:
        """Records that a request has come.

        Returns:
            None if it was not cancelled; else True if the reason was that its time is over.
        """
        numbers, remembered = self.numbers, self._remembered
        if numbers.add(number) and numbers.runs > 2 * MOST_GAPS:
            numbers.close_gaps(MOST_GAPS)
        return remembered.pop((self.worker, number), None) if remembered else None


@final
class Callers(Generic[Call]):
    """The callers of one callee. Pure; its user has a lock."""

    def __init__(self) -> None:
        self._known: dict[WorkerInfo, Caller[Call]] = {}
        self._remembered: dict[tuple[WorkerInfo, int], bool] = {}  # the oldest first

    @property
    def remembered(self) -> dict[tuple[WorkerInfo, int], bool]:
        """The calls that will begin cancelled, oldest cancellation first; True for expired ones."""
        return dict(self._remembered)

    def of(self, worker: WorkerInfo) -> Caller[Call]:
        """Returns what is known of a caller, which is kept until the caller is lost."""
        known = self._known.get(worker)
        if known is None:
            known = self._known[worker] = Caller(worker, self._remembered)
        return known

    def find(self, worker: WorkerInfo, number: int) -> Call | None:
        """Returns a call that is served, if it is."""
        known = self._known.get(worker)
        return None if known is None else known.calls.get(number)

    def cancelled(self, worker: WorkerInfo, number: int, *, expired: bool) -> None:
        """Takes a cancellation that finds no call."""
        known = self._known.get(worker)
        if known is not None and number in known.numbers:
            return
        key, remembered = (worker, number), self._remembered
        if key not in remembered and len(remembered) >= EARLY_CANCELS:
            del remembered[next(iter(remembered))]
        remembered[key] = remembered.get(key, False) or expired

    def lose(self, worker: WorkerInfo) -> list[Call]:
        """Forgets a caller, from which nothing comes any more; returns its calls."""
        known = self._known.pop(worker, None)
        for key in [key for key in self._remembered if key[0] == worker]:
            del self._remembered[key]
        return [] if known is None else list(known.calls.values())
