"""The place of a call that takes long: its callee is asked shortly before its time is over.

The answer stands in the message of the CallTimeoutError:

    not here     the request, or the reply, is still on the way
    queued       no thread of the pool has taken it yet
    running      for so many seconds, and the calls of its own that are not answered
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from telegrad.wire import escaped

WHERE: Final = "rpc.where"  # the call whose time is nearly over; answered with the value of `tell`
# The time of the question before the end: an answer takes a millisecond if the callee has time.
ASK_SECONDS: Final = 0.25
ASK_SHARE: Final = 0.25  # of a shorter time

NOT_HERE, QUEUED, RUNNING = 0, 1, 2
MOST_NAMED = 3  # calls that it waits for
MOST_TEXT = 160  # characters of each


def tell(came: float | None, began: float | None, calls: Sequence[str]) -> list[object]:
    """Returns a callee's answer about a call.

    Args:
        came: The time of its arrival, on the clock of `time.monotonic`; None for one that is not
            served.
        began: The time at which its function was called; None before.
        calls: The calls that it has made and that are not answered, in words.
    """
    if came is None:
        return [NOT_HERE, 0.0, []]
    now = time.monotonic()
    if began is None:
        return [QUEUED, now - came, []]
    return [RUNNING, now - began, [each[:MOST_TEXT] for each in calls[: MOST_NAMED + 1]]]


def words(said: object, since: float = 0.0) -> str:
    """Returns a callee's answer in words; empty where it said nothing that is understood.

    Args:
        said: The value of `tell` there.
        since: The seconds since then.

    >>> words([NOT_HERE, 0.0, []])
    'it is not there: its arguments, or its reply, are on the way'
    >>> words([QUEUED, 1.25, []])
    'it has waited there for a thread of the pool for 1.2 s'
    >>> words([RUNNING, 2.75, []], 0.25)
    'it has run there for 3.0 s'
    >>> words([RUNNING, 3.0, ["the call of load on 'worker2'"]])
    "it has run there for 3.0 s, and waits itself for the call of load on 'worker2'"
    >>> words("nonsense")
    ''
    """
    if not isinstance(said, list) or len(said) != 3:
        return ""
    where, seconds, calls = said
    if not isinstance(seconds, float) or not isinstance(calls, list):
        return ""
    if where == NOT_HERE:
        return "it is not there: its arguments, or its reply, are on the way"
    lasts = f"{seconds + since:.1f} s"
    if where == QUEUED:
        return f"it has waited there for a thread of the pool for {lasts}"
    if where != RUNNING:
        return ""
    names = [escaped(str(each)[:MOST_TEXT]) for each in calls[:MOST_NAMED]]
    names += ["others"] * (len(calls) > MOST_NAMED)
    waits = f", and waits itself for {' and '.join(names)}" if names else ""
    return f"it has run there for {lasts}{waits}"
