"""The last step of a pipeline as it ran, in numbers and as a timeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from telegrad.parallel.pipeline.checking import Checked, needs
from telegrad.parallel.pipeline.plan import StepReport
from telegrad.parallel.pipeline.schedule import Action, Kind
from telegrad.parallel.pipeline.timeline import Costs, Span, Timeline


@final
@dataclass(frozen=True, slots=True)
class PipelineReport:
    """The last training step of a pipeline in numbers; times are in seconds.

    Attributes:
        schedule: The name of the schedule.
        length: The time from the start of the first action to the end of the last one.
        idle: The share of it in which each place ran no action.
        ideal_length: The length if nothing took time but the actions, as long as they took.
        ideal_idle: The idle shares then.
        times: The mean time of each kind of action (`F`, `B`, `I`, `W`), by stage.
        held: The most micro-batches whose activations each stage held at a time.
        held_by_schedule: The same as the schedule says.

    Example:
        >>> import numpy as np
        >>> from telegrad import nn, parallel, rpc
        >>> def mean(output):
        ...     return output.mean()
        >>> with rpc.init_rpc("a"):
        ...     stages = [("a", nn.Linear, (3, 2)), ("a", nn.Linear, (2, 1))]
        ...     pipe = parallel.Pipeline(stages, num_microbatches=4, loss=mean)
        ...     loss = pipe.step(np.ones((8, 3), np.float32))
        ...     report = pipe.report()
        ...     report.schedule, report.held, list(report.times)
        ('1f1b', (2, 1), ['F', 'B'])
    """

    schedule: str
    length: float
    idle: tuple[float, ...]
    ideal_length: float
    ideal_idle: tuple[float, ...]
    times: dict[str, tuple[float, ...]]
    held: tuple[int, ...]
    held_by_schedule: tuple[int, ...]


def measured(checked: Checked, reports: Sequence[StepReport]) -> Timeline:
    """Returns the timeline of a step as it ran, on one clock.

    Workers of one host share a clock. So each place has the clock of an earlier one if the order of
    the actions allows that; else the middle of what the order allows counts.
    """
    rows = checked.schedule.rows
    times = [np.asarray(each.times).reshape(-1, 2) for each in reports]
    starts, ends = dict[Action, float](), dict[Action, float]()
    for row, found in zip(rows, times, strict=True):
        for action, (began, ended) in zip(row, found.tolist(), strict=True):
            starts[action], ends[action] = began, ended
    place_of = {action: place for place, row in enumerate(rows) for action in row}
    offsets = [0.0] * len(rows)
    for place in range(1, len(rows)):
        offsets[place] = _offset(place, offsets[:place], place_of, starts, ends)
    spans = tuple(
        tuple(Span(action, starts[action] + offset, ends[action] + offset) for action in row)
        for row, offset in zip(rows, offsets, strict=True)
    )
    first = min(row[0].start for row in spans if row)
    moved = tuple(
        tuple(Span(each.action, each.start - first, each.end - first) for each in row)
        for row in spans
    )
    return Timeline(f"{checked.schedule.name}, as it ran", moved, "s")


def _offset(
    place: int,
    known: Sequence[float],
    place_of: Mapping[Action, int],
    starts: Mapping[Action, float],
    ends: Mapping[Action, float],
) -> float:
    """Returns the seconds to add to the times of a place, beside places that are known."""
    least, most = -np.inf, np.inf
    for action, here in place_of.items():
        for need in needs(action, place_of):
            there = place_of[need]
            if here == place and there < place:
                least = max(least, ends[need] + known[there] - starts[action])
            elif there == place and here < place:
                most = min(most, starts[action] + known[here] - ends[need])
    shared = next((offset for offset in known if least <= offset <= most), None)
    if shared is not None:
        return shared
    if not np.isfinite([least, most]).all():
        return float(min(max(0.0, least), most))
    return float((least + most) / 2)


def ideal(checked: Checked, timeline: Timeline) -> Timeline:
    """Returns the timeline if only the actions took time, as long as they took on average."""
    means = _means(checked, timeline)
    named = {Kind(letter).name.lower(): times for letter, times in means.items()}
    costs = {"backward": 0.0, **named}
    return checked.simulate(Costs(**costs, unit="s"))  # type: ignore[arg-type]


def report(checked: Checked, reports: Sequence[StepReport]) -> PipelineReport:
    """Returns the numbers of a step."""
    ran = measured(checked, reports)
    best = ideal(checked, ran)
    held = [0] * checked.schedule.stages
    for each in reports:
        for stage, n in each.held.items():
            held[stage] = max(held[stage], n)
    return PipelineReport(
        checked.schedule.name,
        ran.length,
        ran.idle,
        best.length,
        best.idle,
        {letter: tuple(times) for letter, times in _means(checked, ran).items()},
        tuple(held),
        checked.held,
    )


def _means(checked: Checked, timeline: Timeline) -> dict[str, list[float]]:
    """Returns the mean time of each kind of action at each stage; 0 where there is none."""
    found: dict[tuple[str, int], list[float]] = {}
    for row in timeline.rows:
        for span in row:
            key = span.action.kind.value, span.action.stage
            found.setdefault(key, []).append(span.duration)
    kinds = dict.fromkeys(kind for kind, _ in found)
    return {
        kind: [
            float(np.mean(found.get((kind, stage), [0.0])))
            for stage in range(checked.schedule.stages)
        ]
        for kind in kinds
    }
