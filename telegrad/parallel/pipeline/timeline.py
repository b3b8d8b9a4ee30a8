"""Timelines, which say when each place of a pipeline runs each of its actions; their pictures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final
from xml.sax.saxutils import escape

from telegrad.errors import ScheduleError
from telegrad.parallel.pipeline.schedule import Action, Kind


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


# -- pictures: as text, and as an SVG document ----------------------------------------------------

# The longest row of a text, in characters, and of an SVG, in pixels. Longer ones are drawn smaller;
# a label that does not fit into its box is cut off in a text and left out of an SVG.
TEXT_WIDTH = 1000
SVG_WIDTH = 4000

# Colours that people with any colour vision tell apart (Okabe and Ito), behind black letters.
COLOURS = {
    Kind.FORWARD: "#56b4e9",
    Kind.BACKWARD: "#e69f00",
    Kind.INPUTS: "#f0e442",
    Kind.WEIGHTS: "#8fd6b4",
}
# Sizes in pixels.
LEFT, RIGHT = 72, 72
ROW, BOX, BASELINE = 26, 22, 15
PANEL_HEAD, PANEL_GAP = 30, 16
LEGEND_ENTRY = 200
LETTER, BOX_MARGIN = 8, 6

WORDS = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.INPUTS: "gradients of the inputs",
    Kind.WEIGHTS: "gradients of the weights",
}


def as_text(timeline: Timeline) -> str:
    """Returns one line a place: a letter and a micro-batch for each action, and the share of idle.

    The stage stands before the letter where a place has several. An action that takes longer than
    its label is drawn out by dashes.

    Example:
        >>> from telegrad.parallel.pipeline import Costs, make_schedule, simulate
        >>> timeline = simulate(make_schedule("1f1b", 2, 2), Costs(forward=1, backward=2))
        >>> print(as_text(timeline), end="")
        1f1b, ideal (length: 9)
        place 0 |F0 F1       B0---    B1--- | idle 33%
        place 1 |   F0 B0--- F1 B1---       | idle 33%
    """
    labels = labels_of(timeline)
    scale = scale_of([timeline], 1 + max(map(len, labels.values()), default=0), TEXT_WIDTH)
    lines = [title_of(timeline)]
    for name, row, idle in zip(names_of(timeline), timeline.rows, timeline.idle, strict=True):
        cells = [" "] * round(timeline.length * scale)
        for span in row:
            left = round((span.start - timeline.start) * scale)
            right = round((span.end - timeline.start) * scale)
            box = f"{labels[span.action].ljust(right - left - 1, '-')} "
            cells[left:right] = box[: right - left]
        lines.append(f"{name} |{''.join(cells)}| idle {idle:.0%}")
    return "".join(f"{line}\n" for line in lines)


def as_svg(timelines: Sequence[Timeline]) -> str:
    """Returns an SVG document with one panel a timeline, one below the other.

    A panel has a row a place, with a box for each action and the share of idle time at the end.
    Letter and colour say the kind of an action; whoever points at a box sees its times. Panels
    whose times have the same unit have the same scale.

    Args:
        timelines: The timelines from top to bottom, at least one.

    Example:
        >>> from telegrad.parallel.pipeline import Costs, make_schedule, simulate
        >>> picture = as_svg([simulate(make_schedule("gpipe", 2, 2), Costs())])
        >>> picture.count("<rect"), picture.splitlines()[-1]
        (13, '</svg>')
    """
    body: list[str] = []
    top = right = 0
    for timeline in timelines:
        same = [other for other in timelines if other.unit == timeline.unit]
        longest = max(len(text) for other in same for text in labels_of(other).values())
        scale = scale_of(same, BOX_MARGIN + LETTER * longest, SVG_WIDTH)
        body += panel(timeline, top, scale)
        top += PANEL_HEAD + ROW * len(timeline.rows) + PANEL_GAP
        right = max(right, LEFT + round(timeline.length * scale) + RIGHT)
    used = {span.action.kind for timeline in timelines for row in timeline.rows for span in row}
    kinds = [kind for kind in Kind if kind in used]
    body += legend(kinds, top)
    right = max(right, LEFT + LEGEND_ENTRY * len(kinds))
    size = f'width="{right}" height="{top + ROW + PANEL_GAP}"'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">'
    )
    return "\n".join([head, f'<rect {size} fill="white"/>', *body, "</svg>", ""])


def panel(timeline: Timeline, top: int, scale: float) -> Iterator[str]:
    """Yields the elements of one timeline, whose panel begins `top` pixels down."""
    labels = labels_of(timeline)
    end = LEFT + timeline.length * scale
    yield text(LEFT, top + PANEL_HEAD - 10, title_of(timeline), 'font-weight="bold"')
    rows = zip(names_of(timeline), timeline.rows, timeline.idle, strict=True)
    for place, (name, row, idle) in enumerate(rows):
        y = top + PANEL_HEAD + place * ROW
        yield text(LEFT - 8, y + BASELINE, name, 'text-anchor="end"')
        yield rect(LEFT, y, end - LEFT, "#eeeeee")
        for span in row:
            x, width = LEFT + (span.start - timeline.start) * scale, span.duration * scale
            times = f"{amount(span.start, timeline.unit)} to {amount(span.end, timeline.unit)}"
            label = labels[span.action]
            yield f"<g><title>{escape(f'{span.action}, {times}')}</title>"
            yield rect(x, y, width, COLOURS[span.action.kind], 'stroke="white"')
            if width >= LETTER * len(label):
                yield text(x + width / 2, y + BASELINE, label, 'text-anchor="middle"')
            yield "</g>"
        yield text(end + 8, y + BASELINE, f"idle {idle:.0%}")


def legend(kinds: Sequence[Kind], top: int) -> Iterator[str]:
    """Yields the elements that explain the letters and colours of some kinds."""
    for number, kind in enumerate(kinds):
        x = LEFT + number * LEGEND_ENTRY
        yield rect(x, top, BOX, COLOURS[kind])
        yield text(x + BOX / 2, top + BASELINE, kind.value, 'text-anchor="middle"')
        yield text(x + BOX + 8, top + BASELINE, WORDS[kind])


def rect(x: float, y: float, width: float, fill: str, more: str = "") -> str:
    """Returns a box of a row."""
    return f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{BOX}" fill="{fill}" {more}/>'


def text(x: float, y: float, words: str, more: str = "") -> str:
    """Returns a line of text."""
    return f'<text x="{x:.2f}" y="{y}" {more}>{escape(words)}</text>'


def labels_of(timeline: Timeline) -> dict[Action, str]:
    """Returns the labels of all actions, with the stage where the place has several."""
    labels = {}
    for row in timeline.rows:
        several = len({span.action.stage for span in row}) > 1
        for span in row:
            action = span.action
            stage = action.stage if several else ""
            labels[action] = f"{stage}{action.kind.value}{action.micro_batch}"
    return labels


def names_of(timeline: Timeline) -> list[str]:
    """Returns the names of the rows, all equally long."""
    last = len(timeline.rows) - 1
    return [f"place {place:<{len(str(last))}}" for place in range(last + 1)]


def title_of(timeline: Timeline) -> str:
    """Returns the line above the rows."""
    return f"{timeline.name} (length: {amount(timeline.length, timeline.unit)})"


def amount(time: float, unit: str) -> str:
    """Returns a time in words."""
    return f"{time:.4g} {unit}".rstrip()


def scale_of(timelines: Sequence[Timeline], box: int, most: int) -> float:
    """Returns the width of one unit of time: a short action gets `box`, the longest row `most`.

    Nine of ten actions are at least as long as a short one. The shortest would be a bad measure: a
    measured timeline may have an action of microseconds among those of seconds.
    """
    spans = (span for each in timelines for row in each.rows for span in row)
    times = sorted(span.duration for span in spans if span.duration > 0)
    short = times[len(times) // 10] if times else 1.0
    return min(box / short, most / max([*(each.length for each in timelines), short]))
