"""How long a worker may be silent before it is lost, as docs/membership.md has it, and stalls."""

from __future__ import annotations

import re
import threading
import time
from types import TracebackType

from tests.faults.outcome import Failure

__all__ = ["Stalls", "check_silence"]

# A question is asked every fifth of the bound, and looked after about as often as every twentieth.
LONGEST = 1.3
LAG_COUNTS = 3  # as transport/session/liveness.py says
ROUNDED = 0.05  # seconds: the words have one digit after the point
PULSE = 0.05
SLACK = 2.0  # seconds; measured are 0.1 s at most on two busy cores
# Time in which a judge stood still does not count for it, and what it then has to read comes first.
STALL_COUNTS = 3


class Stalls:
    """Measures while it stands how long the machine kept a thread waiting that could have run."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._measure, name="stalls")

    def __enter__(self) -> Stalls:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ends.set()
        self._thread.join()

    def _measure(self) -> None:
        ended = False
        while not ended:
            began = time.monotonic()
            ended = self._ends.wait(PULSE)
            self.seconds += max(0.0, time.monotonic() - began - PULSE)


def check_silence(failure: Failure, lost_after: float, stalls: Stalls) -> None:
    """Checks that a worker was given up when it had been silent for the bound, and not much later.

    The reason says how long it was silent for whoever gave it up first. Other survivors have heard
    a little more or less of it, and are told at once.

    Args:
        failure: What a survivor was told.
        lost_after: The bound.
        stalls: Of the time from the fault to the loss.
    """
    reason, last_seen = failure.fields["reason"], failure.fields["last_seen"]
    silent = re.search(r"silent for ([0-9.]+) s", reason)
    assert silent, failure
    lag = re.search(r"loop ([0-9.]+) s late", reason)
    late = LAG_COUNTS * (float(lag[1]) + ROUNDED) if lag else 0.0
    longest = LONGEST * lost_after + min(late, lost_after) + SLACK + STALL_COUNTS * stalls.seconds
    allowed = f"allowed are {lost_after:g} to {longest:.1f} s (stalls: {stalls.seconds:.2f} s)"
    assert lost_after - ROUNDED <= float(silent[1]) <= longest, f"{allowed}: {failure}"
    assert last_seen <= longest, f"{allowed}, not {last_seen:.1f}: {failure}"
