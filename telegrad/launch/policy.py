"""The launcher's reaction to a failed worker or a signal; pure.

running ──a worker fails, here or on another host──> 5 s ──> SIGTERM ──> 5 s ──> kill
   │
   ├──SIGINT──> SIGINT to each, once ──second SIGINT──> kill
   └──SIGTERM, SIGHUP──> SIGTERM to each ──> 5 s ──> kill
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import final

GRACE = 5.0  # enough to notice the loss of a worker, report it and clean up


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """The failure of a worker that ended by itself.

    Attributes:
        rank: The worker's rank.
        code: The worker's exit code; -n if signal n ended it.
        place: The position in the combined output at which it began to fail.
    """

    rank: int
    code: int
    place: int


@final
@dataclass(slots=True)
class Policy:
    """The state of a run. Times are seconds of any one clock.

    Signals that a method returns go to each living worker; SIGKILL goes to their children, too.

    Attributes:
        living: The ranks that have not exited.
    """

    living: set[int]
    _codes: dict[int, int] = field(init=False, default_factory=dict)
    _failures: list[WorkerFailure] = field(init=False, default_factory=list)
    _steps: list[tuple[float, int]] = field(init=False, default_factory=list)
    _told: bool = field(init=False, default=False)
    _ending: bool = field(init=False, default=False)
    _reason: int | None = field(init=False, default=None)

    def exited(self, rank: int, code: int, now: float, place: int) -> bool:
        """Records the end of a worker; returns True if it is the first failure of the run."""
        self.living.discard(rank)
        self._codes[rank] = code
        if code == 0 or self._told:
            return False
        self._failures.append(WorkerFailure(rank, code, place))
        return self._end_soon(now)

    def failed_elsewhere(self, now: float) -> bool:
        """Records that a worker of another host failed; returns True if that is news here."""
        return not self._told and self._end_soon(now)

    def signalled(self, number: int, now: float) -> list[int]:
        """Handles a signal to the launcher; returns the signals to send."""
        if self._reason is not None:
            return self._tell(signal.SIGKILL)
        self._reason = number
        if number == signal.SIGINT:
            return self._tell(signal.SIGINT)
        self._steps = [(now + GRACE, signal.SIGKILL)]
        return self._tell(signal.SIGTERM)

    def tick(self, now: float) -> list[int]:
        """Returns the signals that have become due."""
        due = [step for step in self._steps if step[0] <= now]
        self._steps = [step for step in self._steps if step[0] > now]
        return [send for _, number in due for send in self._tell(number)]

    @property
    def next_tick(self) -> float | None:
        """The time at which `tick` has something to do again; None for never."""
        return self._steps[0][0] if self._steps else None

    @property
    def culprit(self) -> WorkerFailure | None:
        """The worker that began to fail first; workers that the launcher ended do not count."""
        return min(self._failures, key=lambda failure: failure.place, default=None)

    @property
    def exit_code(self) -> int:
        """The launcher's exit code: the first failure's, else that of the signal, else 0."""
        if self.culprit is not None:
            return exit_status(self.culprit.code)
        if self._reason is not None and any(self._codes.values()):
            return exit_status(-self._reason)
        return 0

    def _end_soon(self, now: float) -> bool:
        """Schedules the end, at the first failure of the run."""
        if self._ending:
            return False
        self._ending = True
        self._steps = [(now + GRACE, signal.SIGTERM), (now + 2 * GRACE, signal.SIGKILL)]
        return True

    def _tell(self, number: int) -> list[int]:
        self._told = True
        return [number] if self.living else []


def exit_status(code: int) -> int:
    """Returns an exit code in the form that a shell uses.

    >>> exit_status(3), exit_status(-9)
    (3, 137)
    """
    return 128 - code if code < 0 else code


def describe(code: int) -> str:
    """Returns in words in which way a process ended.

    >>> describe(3), describe(-9)
    ('failed with exit code 3', 'was killed by SIGKILL')
    """
    if code >= 0:
        return f"failed with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
