"""The proof that a schedule can be run, and the ideal times of those that can."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import final

from telegrad.errors import ScheduleError
from telegrad.parallel.pipeline.schedule import Action, Kind, Schedule
from telegrad.parallel.pipeline.timeline import Costs, Span, Timeline


@final
@dataclass(frozen=True, slots=True)
class Checked:
    """What `check` found out about a schedule.

    A stage holds a micro-batch's activations from the start of its F to the end of its B, or of its
    W where the backward is cut into halves.

    Attributes:
        schedule: The schedule.
        order: All actions in one order that keeps each row's and runs nothing before its needs.
        held: The most micro-batches that each stage holds at one time.
        held_at_place: The most micro-batches that the stages of each place hold together.

    Example:
        >>> from telegrad.parallel.pipeline import make_schedule
        >>> check(make_schedule("1f1b", places=4, micro_batches=32)).held
        (4, 3, 2, 1)
    """

    schedule: Schedule
    order: tuple[Action, ...]
    held: tuple[int, ...]
    held_at_place: tuple[int, ...]

    def simulate(self, costs: Costs) -> Timeline:
        """Returns the timeline of `simulate`."""
        place_of = {action: place for place, row in enumerate(self.schedule.rows) for action in row}
        ends: dict[Action, float] = {}
        rows: list[list[Span]] = [[] for _ in self.schedule.rows]
        for action in self.order:
            place = place_of[action]
            start = rows[place][-1].end if rows[place] else 0.0
            for need in needs(action, place_of):
                away = place_of[need] != place
                start = max(start, ends[need] + (costs.transfer if away else 0.0))
            ends[action] = start + costs.of(action)
            rows[place].append(Span(action, start, ends[action]))
        return Timeline(f"{self.schedule.name}, ideal", tuple(map(tuple, rows)), costs.unit)


def check(schedule: Schedule) -> Checked:
    """Proves that a schedule ends: that no place waits for what can only come later.

    Raises:
        ScheduleError: The schedule has no or two actions of a kind for a micro-batch at a stage, or
            a stage at two places, or one row's order or several rows' orders contradict the needs.
            The message says which action of which place is wrong.

    Example:
        >>> forward, backward = Action(Kind.FORWARD, 0, 0), Action(Kind.BACKWARD, 0, 0)
        >>> check(Schedule("mine", ((backward, forward),)))
        Traceback (most recent call last):
        telegrad.errors.ScheduleError: the schedule 'mine' cannot be run: place 0 has B of ...
    """
    for problem in problems(schedule):
        raise ScheduleError(f"the schedule {schedule.name!r} cannot be run: {problem}")
    order = run_order(schedule)
    held: dict[int, int] = {}
    held_at_place = []
    for row in schedule.rows:
        by_stage, together = most_held(row)
        held |= by_stage
        held_at_place.append(together)
    return Checked(
        schedule,
        order,
        tuple(held[stage] for stage in range(schedule.stages)),
        tuple(held_at_place),
    )


def most_held(row: tuple[Action, ...]) -> tuple[dict[int, int], int]:
    """Returns the most micro-batches that each stage of a row holds, and all of them together."""
    now, most, together = Counter[int](), Counter[int](), 0
    for action in row:
        if action.kind is not Kind.INPUTS:
            now[action.stage] += 1 if action.kind is Kind.FORWARD else -1
        most[action.stage] = max(most[action.stage], now[action.stage])
        together = max(together, now.total())
    return most, together


def simulate(schedule: Schedule, costs: Costs) -> Timeline:
    """Returns the times of all actions if nothing takes time but them and the transfers.

    Each place runs its row in order; an action starts when the one before it has ended and the
    results that it needs are there.

    Args:
        schedule: A schedule; it is checked.
        costs: The times.

    Raises:
        ScheduleError: The schedule cannot be run, or a stage has no time.

    Example:
        >>> from telegrad.parallel.pipeline import make_schedule
        >>> simulate(make_schedule("gpipe", 4, 4), Costs(forward=1, backward=2)).length
        21.0
    """
    return check(schedule).simulate(costs)


def needs(action: Action, table: Container[Action]) -> list[Action]:
    """Returns the actions of a table that must have ended before an action of it can start.

    Example:
        >>> forward, inputs = Action(Kind.FORWARD, 0, 0), Action(Kind.INPUTS, 0, 0)
        >>> weights = Action(Kind.WEIGHTS, 0, 0)
        >>> needs(weights, {forward, inputs, weights}) == [inputs]
        True
    """
    stage, i = action.stage, action.micro_batch
    match action.kind:
        case Kind.FORWARD:
            wanted = [Action(Kind.FORWARD, stage - 1, i)]
        case Kind.WEIGHTS:
            wanted = [Action(Kind.INPUTS, stage, i)]
        case _:
            wanted = [
                Action(Kind.FORWARD, stage, i),
                Action(Kind.BACKWARD, stage + 1, i),
                Action(Kind.INPUTS, stage + 1, i),
            ]
    return [need for need in wanted if need in table]


def problems(schedule: Schedule) -> Iterator[str]:
    """Yields what is wrong with a table, but for circles through several places."""
    rows = schedule.rows
    for place, row in enumerate(rows):
        if not row:
            yield f"place {place} has no action; leave the place out"
        for action in row:
            if action.stage < 0 or action.micro_batch < 0:
                yield f"place {place} has {action}, and both count from 0"
    if not rows:
        yield "it has no place"
    for action, times in Counter(action for row in rows for action in row).items():
        if times > 1:
            yield f"{action} is there {times} times; leave it once"
    homes: dict[int, int] = {}
    for place, row in enumerate(rows):
        for action in row:
            home = homes.setdefault(action.stage, place)
            if home != place:
                yield (
                    f"stage {action.stage} is at place {home} and at place {place}, which has"
                    f" {action}; a stage lives at one place"
                )
    yield from incomplete(schedule)
    for place, row in enumerate(rows):
        turns = {action: turn for turn, action in enumerate(row)}
        for action in row:
            for need in needs(action, turns):
                if turns[need] > turns[action]:
                    yield f"place {place} has {action} before {need}, which it needs; swap them"


def incomplete(schedule: Schedule) -> Iterator[str]:
    """Yields the actions that a table lacks, or has beside others that do the same work."""
    table = {action for row in schedule.rows for action in row}
    for stage in range(schedule.stages):
        for i in range(schedule.micro_batches):
            there = {kind for kind in Kind if Action(kind, stage, i) in table}
            what = f"of micro-batch {i} at stage {stage}"
            halves = there & {Kind.INPUTS, Kind.WEIGHTS}
            if Kind.FORWARD not in there:
                yield f"F {what} is missing"
            if Kind.BACKWARD in there and halves:
                both = " and ".join(sorted(kind.value for kind in halves))
                yield f"B {what} is there with {both}, which does its work again; leave out one"
            if Kind.BACKWARD not in there and not halves:
                yield f"B {what} is missing; add it, or I and W"
            if len(halves) == 1:
                (lacking,) = {"I", "W"} - {kind.value for kind in halves}
                yield f"{lacking} {what} is missing, the other half of the backward is there"


def run_order(schedule: Schedule) -> tuple[Action, ...]:
    """Returns all actions in an order in which they can be run.

    Raises:
        ScheduleError: Places wait for each other.
    """
    rows = schedule.rows
    place_of = {action: place for place, row in enumerate(rows) for action in row}
    turns = [0] * len(rows)  # of each place, the actions that have run
    order: dict[Action, None] = {}
    moved = True
    while moved:
        moved = False
        blocked: dict[int, tuple[Action, Action]] = {}  # the next action, and one that it needs
        for place, row in enumerate(rows):
            for action in row[turns[place] :]:
                need = next((need for need in needs(action, place_of) if need not in order), None)
                if need is not None:
                    blocked[place] = action, need
                    break
                order[action] = None
                turns[place] += 1
                moved = True
    if blocked:
        raise ScheduleError(
            f"the schedule {schedule.name!r} cannot be run: it ends in a deadlock, in which"
            f" {circle(blocked, place_of)}; change the order of one of these rows"
        )
    return tuple(order)


def circle(blocked: dict[int, tuple[Action, Action]], place_of: dict[Action, int]) -> str:
    """Returns the words for the places that wait for each other, each for the next one."""
    seen: list[int] = []
    place = min(blocked)
    while place not in seen:
        seen.append(place)
        place = place_of[blocked[place][1]]
    return ", ".join(
        f"place {waiter} waits before {action} until place {place_of[need]} has run {need}"
        for waiter in seen[seen.index(place) :]
        for action, need in [blocked[waiter]]
    )
