"""What is said while a job assembles: progress lines and the words of the time-out; pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import final

from telegrad.rendezvous.membership import StartWhen

__all__ = ["JoinProgress"]

SHOWN_RANKS = 8


@final
@dataclass(frozen=True, slots=True)
class JoinProgress:
    """How far a job has come, as one waiting worker knows it.

    Attributes:
        version: Later progress has a higher one.
        joined: The ranks that are there.
        world_size: How many there will be.
        errors: What was last seen of ranks that are not there.
        names: Of those who are there.
        start_when: Whom this worker waits for: so many, or these names; None for all ranks.
    """

    version: int
    joined: tuple[int, ...]
    world_size: int
    errors: dict[int, str] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    start_when: StartWhen = None

    @property
    def missing(self) -> tuple[int, ...]:
        """The ranks that are not there."""
        there = set(self.joined)
        return tuple(r for r in range(self.world_size) if r not in there)

    @property
    def missing_names(self) -> tuple[str, ...]:
        """The names that this worker waits for and that are not there."""
        wanted = self.start_when if isinstance(self.start_when, tuple) else ()
        return tuple(name for name in wanted if name not in self.names)

    @property
    def wanted(self) -> str:
        """Who has to come, in words; empty when nobody has.

        >>> JoinProgress(1, (0, 2), 5, start_when=3).wanted
        'any 1 of ranks 1, 3, 4'
        >>> JoinProgress(1, (0,), 5, names=("w0",), start_when=("ps", "w0")).wanted
        "worker 'ps'"
        """
        if isinstance(self.start_when, tuple):
            return ", ".join(f"worker {name!r}" for name in self.missing_names)
        if self.start_when is None:
            return name_ranks(self.missing) if self.missing else ""
        lacking = self.start_when - len(self.joined)
        return f"any {lacking} of {name_ranks(self.missing)}" if lacking > 0 else ""

    def line(self, seconds_left: float) -> str:
        """Returns one line for the log.

        >>> JoinProgress(1, (0, 2), 3).line(290.4)
        '2/3 joined; waiting for rank 1; 290 s left'
        """
        head = f"{len(self.joined)}/{self.world_size} joined"
        if not self.wanted:
            return f"{head}; {time_left(seconds_left)}"
        return f"{head}; waiting for {self.wanted}; {time_left(seconds_left)}"

    def missing_with_errors(self, endpoint: str) -> tuple[str, ...]:
        """Returns each missing rank, or name, with what is known of it.

        >>> JoinProgress(1, (0,), 2).missing_with_errors("grpc://10.0.0.1:29500")
        ('rank 1: never reached the coordinator at grpc://10.0.0.1:29500',)
        """
        unseen = f"never reached the coordinator at {endpoint}"
        if not isinstance(self.start_when, tuple):
            return tuple(f"rank {r}: {self.errors.get(r, unseen)}" for r in self.missing)
        # What is known is known by rank; which of them would have had the name is not.
        known = tuple(f"rank {r}: {self.errors[r]}" for r in self.missing if r in self.errors)
        return (*(f"worker {name!r}: {unseen}" for name in self.missing_names), *known)


def name_ranks(ranks: tuple[int, ...]) -> str:
    """Names ranks, the first few of many.

    >>> name_ranks((1,)), name_ranks((1, 4))
    ('rank 1', 'ranks 1, 4')
    """
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    named = ", ".join(map(str, ranks[:SHOWN_RANKS]))
    more = len(ranks) - SHOWN_RANKS
    return f"ranks {named}" + (f" and {more} more" if more > 0 else "")


def time_left(seconds: float) -> str:
    """Says how long a wait may still last.

    >>> time_left(290.4), time_left(float("inf"))
    ('290 s left', 'no time limit')
    """
    return "no time limit" if math.isinf(seconds) else f"{max(0.0, seconds):.0f} s left"


def rounded(seconds: float) -> str:
    """Returns seconds for a message, without the digits that only a clock has.

    >>> rounded(0.999944), rounded(1234.4), rounded(0.05)
    ('1', '1234', '0.05')
    """
    return f"{seconds:.0f}" if seconds >= 100 else f"{seconds:.3g}"


def unreached_line(endpoint: str, problem: str, seconds: float) -> str:
    """Returns the progress line of a worker that cannot reach its coordinator yet."""
    return f"waiting for the coordinator at {endpoint} ({problem}); {time_left(seconds)}"


def unwritten_line(path: str, seconds: float) -> str:
    """Returns the progress line of a worker that does not know yet where its coordinator is."""
    return f"waiting for rank 0 to write {path!r}; {time_left(seconds)}"
