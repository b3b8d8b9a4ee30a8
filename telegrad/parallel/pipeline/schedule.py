"""Schedules of a pipeline as data: for each worker the actions that it runs, in order.

A micro-batch m meets each stage s two times: forward (F), after F of stage s - 1, and backward (B),
after B of stage s + 1. A backward may be cut into its two halves: the gradients of the inputs (I),
for which stage s - 1 waits, and those of the weights (W), for which nobody waits, so that W fills
gaps. A worker is called a place here; it holds one stage or several.

Every schedule is made in one way. A rule gives each action of a place a tick: the moment at which
the action would run if the pipeline had been running for ever. The row of the place is its actions
by tick. Ticks give the order alone; a place runs each action as soon as what it waits for is there.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import final

from telegrad.errors import ScheduleError


@final
class Kind(enum.Enum):
    """The work of a stage for one micro-batch; the value is the letter in tables and pictures.

    Example:
        >>> Kind("F")
        <Kind.FORWARD: 'F'>
    """

    FORWARD = "F"
    BACKWARD = "B"
    """Gradients of inputs and weights at once."""
    INPUTS = "I"
    """The first half of a backward: the gradients of the inputs."""
    WEIGHTS = "W"
    """The second half of a backward: the gradients of the weights."""

    # Actions are keys of large tables, and Enum's own hash takes half the time of a lookup.
    __hash__ = object.__hash__


@final
@dataclass(frozen=True, slots=True)
class Action:
    """One piece of work of a stage.

    Attributes:
        kind: The work.
        stage: The stage that does it, from 0.
        micro_batch: The micro-batch that it is done for, from 0.

    Example:
        >>> str(Action(Kind.FORWARD, stage=1, micro_batch=3))
        'F of micro-batch 3 at stage 1'
    """

    kind: Kind
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.kind.value} of micro-batch {self.micro_batch} at stage {self.stage}"


@final
@dataclass(frozen=True, slots=True)
class Schedule:
    """A table of actions, one row a place. `check` proves that a table can be run.

    Attributes:
        name: The name in messages and pictures.
        rows: The actions of each place, in the order in which it runs them.

    Example:
        A table of one's own: two stages, one micro-batch.

        >>> Schedule("mine", (
        ...     (Action(Kind.FORWARD, 0, 0), Action(Kind.BACKWARD, 0, 0)),
        ...     (Action(Kind.FORWARD, 1, 0), Action(Kind.BACKWARD, 1, 0)),
        ... )).stages
        2
    """

    name: str
    rows: tuple[tuple[Action, ...], ...]

    @property
    def places(self) -> int:
        """The number of workers."""
        return len(self.rows)

    @property
    def stages(self) -> int:
        """The number of stages: one more than the highest stage in the table."""
        return max((action.stage for row in self.rows for action in row), default=-1) + 1

    @property
    def micro_batches(self) -> int:
        """The number of micro-batches: one more than the highest one in the table."""
        return max((action.micro_batch for row in self.rows for action in row), default=-1) + 1

    def place_of(self, stage: int) -> int:
        """Returns the place that holds a stage.

        Raises:
            ValueError: No place has an action of this stage.
        """
        for place, row in enumerate(self.rows):
            if any(action.stage == stage for action in row):
                return place
        raise ValueError(f"the schedule {self.name!r} has no stage {stage} (stages: {self.stages})")


def make_schedule(
    name: str, places: int, micro_batches: int, stages: int | None = None
) -> Schedule:
    """Returns the schedule of a name.

    With P places and M micro-batches, and F, B, I and W the times of one place's share of the model
    for one micro-batch (of all its stages together), the ideal lengths are:

    - "gpipe": fill and drain (Huang et al. 2019, arXiv:1811.06965). Backward starts with the last
      micro-batch, whose activations need no recomputing. (M + P - 1) (F + B), and every place holds
      M micro-batches.
    - "1f1b": one forward, one backward (PipeDream-Flush; Narayanan et al. 2021, arXiv:2104.04473).
      The same length, but place p holds min(P - p, M) micro-batches at most.
    - "interleaved": 1F1B with k = stages / P stages a place; place p holds the stages p, P + p, and
      so on (same paper, section 2.2). For M >= P: (M + (P - 1) / k) (F + B). The micro-batches go
      in M // P groups of nearly equal size, so M need be no multiple of P; where it is none, the
      larger groups hold more activations than the paper's.
    - "zb-h1": zero bubble with the memory of 1F1B: W fills gaps (Qi et al. 2023, arXiv:2401.10241).
      For M >= P and F = I = W: (3 M + P - 1) F. No place holds more than min(P, M) micro-batches,
      which is as much as the first place of 1F1B.
    - "zb-v": each place holds two stages, p and 2 P - 1 - p, on the two legs of a V (same paper,
      section 6, and Qi et al. 2024, arXiv:2405.15362). For M >= 2 P - 1 and F = I = W:
      (3 M + (P - 1) / 2) F, where no place waits between its first action and its last. No place
      holds more than 2 P micro-batches of a stage, which is half the model's share in each: as much
      as 1F1B.

    Args:
        name: One of the five names, in letters of either case.
        places: The number of workers P, at least 1.
        micro_batches: The number of micro-batches M, at least 1.
        stages: The number of stages; None for P, or 2 P where a place needs two stages or more.

    Raises:
        ScheduleError: The name is unknown, or the numbers do not go together.

    Example:
        >>> schedule = make_schedule("1f1b", places=2, micro_batches=3)
        >>> for row in schedule.rows:
        ...     print(*(f"{action.kind.value}{action.micro_batch}" for action in row))
        F0 F1 B0 F2 B1 B2
        F0 B0 F1 B1 F2 B2
    """
    name = name.lower()
    if name not in RULES:
        raise ScheduleError(f"unknown schedule {name!r}; write one of {', '.join(RULES)}")
    for what, number in (("places", places), ("micro_batches", micro_batches)):
        if number < 1:
            raise ScheduleError(f"{what} must be at least 1 (given: {number})")
    rule, least = RULES[name]
    chunks, rest = divmod(places * least if stages is None else stages, places)
    if rest or chunks < least or (chunks > least and name != "interleaved"):
        more = " or a higher multiple" if name == "interleaved" else ""
        raise ScheduleError(
            f"the schedule {name!r} takes {places * least} stages{more} on {places} places"
            f" (given: {stages})"
        )
    rows = []
    for place in range(places):
        ticks = sorted(rule(place, places, micro_batches, chunks), key=operator.itemgetter(0))
        rows.append(tuple(action for _tick, action in ticks))
    return Schedule(name, tuple(rows))


# A rule gives the actions of a place with their ticks; no two of a place have the same tick.
Ticks = Iterator[tuple[int, Action]]
Rule = Callable[[int, int, int, int], Ticks]


def gpipe_ticks(place: int, places: int, micro_batches: int, chunks: int) -> Ticks:
    """Gives all forwards, then all backwards, the last micro-batch first.

    F0 F1 F2 F3                   B3 B2 B1 B0
       F0 F1 F2 F3             B3 B2 B1 B0
          F0 F1 F2 F3       B3 B2 B1 B0
             F0 F1 F2 F3 B3 B2 B1 B0
    """
    for i in range(micro_batches):
        yield i, Action(Kind.FORWARD, place, i)
        yield 2 * micro_batches - 1 - i, Action(Kind.BACKWARD, place, i)


def one_f_one_b_ticks(place: int, places: int, micro_batches: int, chunks: int) -> Ticks:
    """Gives place p the P - p forwards that fill the pipeline, then B and F by turns.

    F0 F1 F2 F3          B0 F4 B1 F5 B2    B3    B4    B5
       F0 F1 F2       B0 F3 B1 F4 B2 F5 B3    B4    B5
          F0 F1    B0 F2 B1 F3 B2 F4 B3 F5 B4    B5
             F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5
    """
    for i in range(micro_batches):
        yield 2 * i, Action(Kind.FORWARD, place, i)
        yield 2 * (i + places - place) - 1, Action(Kind.BACKWARD, place, i)


def interleaved_ticks(place: int, places: int, micro_batches: int, chunks: int) -> Ticks:
    """Gives 1F1B over the stages of a place, for a group of micro-batches at a time.

    A group of P micro-batches passes the first stages of all places, then the second ones, and so
    on; meanwhile its first micro-batch comes round to place 0 again. Two places and four stages,
    the stage before the letter:

    0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1     2B2     2B3 0B2 0B3
        1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3
    """
    groups = max(1, micro_batches // places)
    size, larger = divmod(micro_batches, groups)
    # Place p runs that many forwards before the first backward comes back to it: 2 for each place
    # behind it, and the first group's forwards of all stages of the place but the last.
    ahead = 2 * (places - place - 1) + (chunks - 1) * (size + (larger > 0))
    turn = first = 0
    for group in range(groups):
        after = first + size + (group < larger)
        for chunk in range(chunks):
            for i in range(first, after):
                yield 2 * turn, Action(Kind.FORWARD, chunk * places + place, i)
                stage = (chunks - 1 - chunk) * places + place
                yield 2 * (turn + ahead) + 1, Action(Kind.BACKWARD, stage, i)
                turn += 1
        first = after


def zero_bubble_ticks(place: int, places: int, micro_batches: int, chunks: int) -> Ticks:
    """Gives 1F1B with halved backwards: W waits until the place holds P micro-batches.

    The ticks go in cycles of three: F, I, W. A forward is one tick behind the place above, the
    gradients of the inputs are two ticks behind the place below.

    F0 F1 F2 F3          I0 W0 F4 I1 W1 F5 I2 W2 I3 W3 I4 W4 I5 W5
       F0 F1 F2       I0 F3 I1 W0 F4 I2 W1 F5 I3 W2 I4 W3 I5 W4 W5
          F0 F1    I0 F2 I1 F3 I2 W0 F4 I3 W1 F5 I4 W2 I5 W3 W4 W5
             F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 W3 W4 W5
    """
    for i in range(micro_batches):
        yield place + 3 * i, Action(Kind.FORWARD, place, i)
        yield 3 * (places + i) - 2 * (place + 1), Action(Kind.INPUTS, place, i)
        yield place + 3 * (places + i) - 1, Action(Kind.WEIGHTS, place, i)


def zero_bubble_v_ticks(place: int, places: int, micro_batches: int, chunks: int) -> Ticks:
    """Gives cycles of six ticks: F, I, W of the stage going down, then F, I, W of that coming up.

    The first forwards run before their cycle, to fill the pipeline, and the last weights' gradients
    after it, to let those of the inputs out. Two places and four stages, the stage before the
    letter:

    0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2
        1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 1W2 2W2
    """
    down, up = place, 2 * places - 1 - place
    early = 2 * places - 1 - place  # forwards before the first backward comes back to the place
    # Fewer micro-batches than fill the pipeline are the first of as many as fill it.
    full = max(micro_batches, 2 * places - 1)
    for i in range(micro_batches):
        yield 6 * i if i >= early else 6 * (i - places + place) + 4, Action(Kind.FORWARD, down, i)
        yield 6 * (i + early) + 1, Action(Kind.INPUTS, down, i)
        late = place if i >= full - places else 0
        yield 6 * (i + early + late) + 2, Action(Kind.WEIGHTS, down, i)
        yield 6 * (i + places - place - 1) + 3, Action(Kind.FORWARD, up, i)
        yield 6 * (i + places - 1) + 4, Action(Kind.INPUTS, up, i)
        late = places if i >= full - place else 0
        yield 6 * (i + places - 1 + late) + 5, Action(Kind.WEIGHTS, up, i)


# The rule of each schedule, and how many stages a place has at least.
RULES: dict[str, tuple[Rule, int]] = {
    "gpipe": (gpipe_ticks, 1),
    "1f1b": (one_f_one_b_ticks, 1),
    "interleaved": (interleaved_ticks, 2),
    "zb-h1": (zero_bubble_ticks, 1),
    "zb-v": (zero_bubble_v_ticks, 2),
}
