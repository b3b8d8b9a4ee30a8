"""What is said while a job assembles: progress lines and the words of the time-out; pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import final

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
    """

    version: int
    joined: tuple[int, ...]
    world_size: int
    errors: dict[int, str] = field(default_factory=dict)

    @property
    def missing(self) -> tuple[int, ...]:
        """The ranks that are not there."""
        there = set(self.joined)
        return tuple(r for r in range(self.world_size) if r not in there)

    def line(self, seconds_left: float) -> str:
        """Returns one line for the log.

        >>> JoinProgress(1, (0, 2), 3).line(290.4)
        '2/3 joined; waiting for rank 1; 290 s left'
        """
        head = f"{len(self.joined)}/{self.world_size} joined"
        if not self.missing:
            return f"{head}; {time_left(seconds_left)}"
        return f"{head}; waiting for {name_ranks(self.missing)}; {time_left(seconds_left)}"

    def missing_with_errors(self, endpoint: str) -> tuple[str, ...]:
        """Returns each missing rank with what is known of it.

        >>> JoinProgress(1, (0,), 2).missing_with_errors("grpc://10.0.0.1:29500")
        ('rank 1: never reached the coordinator at grpc://10.0.0.1:29500',)
        """
        unseen = f"never reached the coordinator at {endpoint}"
        return tuple(f"rank {r}: {self.errors.get(r, unseen)}" for r in self.missing)


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


def unreached_line(endpoint: str, problem: str, seconds: float) -> str:
    """Returns the progress line of a worker that cannot reach its coordinator yet."""
    return f"waiting for the coordinator at {endpoint} ({problem}); {time_left(seconds)}"


def unwritten_line(path: str, seconds: float) -> str:
    """Returns the progress line of a worker that does not know yet where its coordinator is."""
    return f"waiting for rank 0 to write {path!r}; {time_left(seconds)}"
