"""A timeline: when each place of a pipeline runs each of its actions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from telegrad.errors import ScheduleError
from telegrad.parallel.pipeline.schedule import Action, Kind

__all__ = ["Costs", "Span", "Timeline"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The times that actions take, in any unit: one number for all stages, or one for each stage.

    Attributes:
        forward: The time of F.
        inputs: The time of I.
        weights: The time of W.
        backward: The time of B; None for that of I and W together.
        transfer: The time from the end of an action until another place has its result.
        unit: The unit in pictures.

    Raises:
        ScheduleError: A time is negative or not finite.

    Example:
        >>> Costs(forward=[1, 2]).of(Action(Kind.FORWARD, stage=1, micro_batch=0))
        2
    """

    forward: float | Sequence[float] = 1.0
    inputs: float | Sequence[float] = 1.0
    weights: float | Sequence[float] = 1.0
    backward: float | Sequence[float] | None = None
    transfer: float = 0.0
    unit: str = ""

    def __post_init__(self) -> None:
        for name in ("forward", "inputs", "weights", "backward", "transfer"):
            times = getattr(self, name)
            for time in times if isinstance(times, Sequence) else [times]:
                if time is not None and not 0 <= time < math.inf:
                    raise ScheduleError(f"the time {name} must be a number from 0 (given: {time})")

    def of(self, action: Action) -> float:
        """Returns the time of an action.

        Raises:
            ScheduleError: The times are given for fewer stages.
        """
        if action.kind is Kind.BACKWARD and self.backward is None:
            return sum(
                self.of(Action(half, action.stage, action.micro_batch))
                for half in (Kind.INPUTS, Kind.WEIGHTS)
            )
        times: float | Sequence[float] = getattr(self, action.kind.name.lower())
        if not isinstance(times, Sequence):
            return times
        if action.stage >= len(times):
            raise ScheduleError(
                f"the times of {action.kind.name.lower()} are given for {len(times)} stages, and"
                f" the schedule has a stage {action.stage}; give one time for each stage"
            )
        return times[action.stage]


@final
@dataclass(frozen=True, slots=True)
class Span:
    """An action with the times at which it started and ended.

    Example:
        >>> Span(Action(Kind.FORWARD, 0, 0), start=1.0, end=3.0).duration
        2.0
    """

    action: Action
    start: float
    end: float

    @property
    def duration(self) -> float:
        """The time from start to end."""
        return self.end - self.start


@final
@dataclass(frozen=True, slots=True)
class Timeline:
    """The spans of a schedule, ideal or measured.

    Attributes:
        name: The title in pictures.
        rows: The spans of each place in the order of time; no two of a place overlap.
        unit: The unit of the times, "s" where they are measured.

    Example:
        >>> span = Span(Action(Kind.FORWARD, 0, 0), start=1.0, end=3.0)
        >>> timeline = Timeline("half a step", ((span,), (Span(span.action, 3.0, 5.0),)))
        >>> timeline.length, timeline.idle
        (4.0, (0.5, 0.5))
    """

    name: str
    rows: tuple[tuple[Span, ...], ...]
    unit: str = ""

    @property
    def start(self) -> float:
        """The start of the first action."""
        return min((row[0].start for row in self.rows if row), default=0.0)

    @property
    def length(self) -> float:
        """The time from the start of the first action to the end of the last one."""
        return max((row[-1].end for row in self.rows if row), default=0.0) - self.start

    @property
    def idle(self) -> tuple[float, ...]:
        """The share of the length, from 0 to 1, in which each place runs no action."""
        busy = [sum(span.duration for span in row) for row in self.rows]
        return tuple(max(0.0, 1 - time / self.length) if self.length else 0.0 for time in busy)
