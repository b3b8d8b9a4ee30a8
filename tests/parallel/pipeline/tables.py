"""Tables of one's own, and a reference for their times that shares no code with telegrad's."""

from __future__ import annotations

import random
from collections.abc import Iterator

from telegrad.parallel.pipeline import Action, Kind, Schedule

F, B, I, W = Kind("F"), Kind("B"), Kind("I"), Kind("W")  # noqa: E741


def table(*rows: str) -> Schedule:
    """Reads rows like "F0 B0", of one stage a place, or "0F0 1F0", with the stage first."""
    return Schedule(
        "mine",
        tuple(tuple(action(word, place) for word in row.split()) for place, row in enumerate(rows)),
    )


def action(word: str, place: int) -> Action:
    stage, kind, i = word.partition(next(letter for letter in word if letter.isalpha()))
    return Action(Kind(kind), int(stage or place), int(i))


def waits_for(action: Action, rows: tuple[tuple[Action, ...], ...]) -> Iterator[Action]:
    """The actions of a whole table whose results an action takes."""
    for row in rows:
        for other in row:
            if other.micro_batch != action.micro_batch:
                continue
            step = (action.kind.value, other.kind.value, other.stage - action.stage)
            if step in {("F", "F", -1), ("W", "I", 0)} or (
                action.kind in {B, I} and step[1:] in {("F", 0), ("B", 1), ("I", 1)}
            ):
                yield other


def ends(
    schedule: Schedule, times: dict[Kind, float], transfer: float
) -> dict[Action, float] | None:
    """The ends of all actions, or None where some never start: the lower bounds, until they hold."""
    found: dict[Action, float] = {}
    place_of = {action: place for place, row in enumerate(schedule.rows) for action in row}
    before = {
        action: [*waits_for(action, schedule.rows), *row[max(0, turn - 1) : turn]]
        for row in schedule.rows
        for turn, action in enumerate(row)
    }
    for _ in place_of:
        for action, waited in before.items():
            if action not in found and all(other in found for other in waited):
                found[action] = times[action.kind] + max(
                    (
                        found[other] + transfer * (place_of[other] != place_of[action])
                        for other in waited
                    ),
                    default=0.0,
                )
    return found if len(found) == len(place_of) else None


def random_table(choose: random.Random) -> Schedule:
    """A table that can be run: any order that the needs allow, of stages at any places."""
    stages, micro_batches = choose.randint(1, 5), choose.randint(1, 4)
    home = [choose.randrange(stages) for _ in range(stages)]
    places = sorted(set(home))
    whole = tuple(
        Action(kind, stage, i)
        for stage in range(stages)
        for i in range(micro_batches)
        for kind in choose.choice([(F, B), (F, I, W)])
    )
    before = {action: list(waits_for(action, (whole,))) for action in whole}
    left, done = list(whole), list[Action]()
    while left:
        ready = [action for action in left if all(need in done for need in before[action])]
        done.append(choose.choice(ready))
        left.remove(done[-1])
    return Schedule(
        "mine",
        tuple(tuple(action for action in done if home[action.stage] == place) for place in places),
    )
