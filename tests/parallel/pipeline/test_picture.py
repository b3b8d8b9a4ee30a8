"""Schedules typed out as staircases, after the figures of their papers, and timelines as SVG."""

from __future__ import annotations

import inspect
import textwrap
from xml.etree import ElementTree

import pytest

from telegrad.parallel.pipeline import (
    Action,
    Costs,
    Kind,
    Span,
    Timeline,
    as_svg,
    as_text,
    make_schedule,
    schedule,
    simulate,
)

# One tick for each action; the numbers are places, micro-batches and stages.
STAIRCASES = {
    # Huang et al. 2019, figure 2 (c).
    ("gpipe", 4, 4, 4): """
        |F0 F1 F2 F3                   B3 B2 B1 B0 |
        |   F0 F1 F2 F3             B3 B2 B1 B0    |
        |      F0 F1 F2 F3       B3 B2 B1 B0       |
        |         F0 F1 F2 F3 B3 B2 B1 B0          |
        """,
    ("gpipe", 2, 5, 2): """
        |F0 F1 F2 F3 F4       B4 B3 B2 B1 B0 |
        |   F0 F1 F2 F3 F4 B4 B3 B2 B1 B0    |
        """,
    # Narayanan et al. 2021, figure 4, above.
    ("1f1b", 4, 8, 4): """
        |F0 F1 F2 F3          B0 F4 B1 F5 B2 F6 B3 F7 B4    B5    B6    B7 |
        |   F0 F1 F2       B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5    B6    B7    |
        |      F0 F1    B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6    B7       |
        |         F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7          |
        """,
    ("1f1b", 3, 4, 3): """
        |F0 F1 F2       B0 F3 B1    B2    B3 |
        |   F0 F1    B0 F2 B1 F3 B2    B3    |
        |      F0 B0 F1 B1 F2 B2 F3 B3       |
        """,
    ("1f1b", 2, 6, 2): """
        |F0 F1    B0 F2 B1 F3 B2 F4 B3 F5 B4    B5 |
        |   F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5    |
        """,
    # Narayanan et al. 2021, figure 4, below.
    ("interleaved", 4, 8, 8): """
        |0F0 0F1 0F2 0F3 4F0 4F1 4F2 4F3 0F4 0F5 0F6 4B0 0F7 4B1         4F4 4B2 4F5 4B3 4F6 0B0 4F7 0B1 0B2 0B3     4B4     4B5     4B6     4B7 0B4 0B5 0B6 0B7 |
        |    1F0 1F1 1F2 1F3 5F0 5F1 5F2 5F3 1F4 5B0 1F5 5B1 1F6 5B2 1F7 5B3 5F4 1B0 5F5 1B1 5F6 1B2 5F7 1B3     5B4     5B5     5B6     5B7 1B4 1B5 1B6 1B7     |
        |        2F0 2F1 2F2 2F3 6F0 6F1 6F2 6B0 6F3 6B1 2F4 6B2 2F5 6B3 2F6 2B0 2F7 2B1 6F4 2B2 6F5 2B3 6F6 6B4 6F7 6B5     6B6     6B7 2B4 2B5 2B6 2B7         |
        |            3F0 3F1 3F2 3F3 7F0 7B0 7F1 7B1 7F2 7B2 7F3 7B3 3F4 3B0 3F5 3B1 3F6 3B2 3F7 3B3 7F4 7B4 7F5 7B5 7F6 7B6 7F7 7B7 3B4 3B5 3B6 3B7             |
        """,
    ("interleaved", 3, 4, 6): """
        |0F0 0F1 0F2 0F3 3F0 3F1 3F2 3F3     3B0     3B1     3B2     3B3 0B0 0B1 0B2 0B3 |
        |    1F0 1F1 1F2 1F3 4F0 4F1 4F2 4B0 4F3 4B1     4B2     4B3 1B0 1B1 1B2 1B3     |
        |        2F0 2F1 2F2 2F3 5F0 5B0 5F1 5B1 5F2 5B2 5F3 5B3 2B0 2B1 2B2 2B3         |
        """,
    ("interleaved", 2, 4, 6): """
        |0F0 0F1 2F0 2F1 4F0 4F1 0F2 4B0 0F3 4B1 2F2 2B0 2F3 2B1 4F2 0B0 4F3 0B1     4B2     4B3 2B2 2B3 0B2 0B3 |
        |    1F0 1F1 3F0 3F1 5F0 5B0 5F1 5B1 1F2 3B0 1F3 3B1 3F2 1B0 3F3 1B1 5F2 5B2 5F3 5B3 3B2 3B3 1B2 1B3     |
        """,
    # Qi et al. 2023, figure 3.
    ("zb-h1", 4, 8, 4): """
        |F0 F1 F2 F3          I0 W0 F4 I1 W1 F5 I2 W2 F6 I3 W3 F7 I4 W4 I5 W5 I6 W6 I7 W7 |
        |   F0 F1 F2       I0 F3 I1 W0 F4 I2 W1 F5 I3 W2 F6 I4 W3 F7 I5 W4 I6 W5 I7 W6 W7 |
        |      F0 F1    I0 F2 I1 F3 I2 W0 F4 I3 W1 F5 I4 W2 F6 I5 W3 F7 I6 W4 I7 W5 W6 W7 |
        |         F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 F6 I6 W3 F7 I7 W4 W5 W6 W7 |
        """,
    ("zb-h1", 3, 5, 3): """
        |F0 F1 F2       I0 W0 F3 I1 W1 F4 I2 W2 I3 W3 I4 W4 |
        |   F0 F1    I0 F2 I1 W0 F3 I2 W1 F4 I3 W2 I4 W3 W4 |
        |      F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 F4 I4 W2 W3 W4 |
        """,
    ("zb-h1", 2, 4, 2): """
        |F0 F1    I0 W0 F2 I1 W1 F3 I2 W2 I3 W3 |
        |   F0 I0 F1 I1 W0 F2 I2 W1 F3 I3 W2 W3 |
        """,
    ("zb-v", 4, 8, 8): """
        |0F0 0F1 0F2 0F3 0F4 0F5 0F6 7F0 7I0 7W0 7F1 7I1 7W1 7F2 7I2 7W2 7F3 7I3 7W3 0F7 0I0 0W0 7F4 7I4 7W4 0I1 0W1 7F5 7I5 7W5 0I2 0W2 7F6 7I6 7W6 0I3 0W3 7F7 7I7 7W7 0I4 0W4 0I5 0W5 0I6 0W6 0I7 0W7             |
        |    1F0 1F1 1F2 1F3 1F4 6F0 1F5 6F1 6I0 6W0 6F2 6I1 6W1 6F3 6I2 6W2 1F6 1I0 1W0 6F4 6I3 6W3 1F7 1I1 1W1 6F5 6I4 6W4 1I2 1W2 6F6 6I5 6W5 1I3 1W3 6F7 6I6 6W6 1I4 6I7 1I5 1W4 1I6 1W5 1I7 1W6 1W7 6W7         |
        |        2F0 2F1 2F2 5F0 2F3 5F1 2F4 5F2 5I0 5W0 5F3 5I1 5W1 2F5 2I0 2W0 5F4 5I2 5W2 2F6 2I1 2W1 5F5 5I3 5W3 2F7 2I2 2W2 5F6 5I4 5W4 2I3 2W3 5F7 5I5 5W5 2I4 5I6 2I5 5I7 2I6 2W4 2I7 2W5 2W6 5W6 2W7 5W7     |
        |            3F0 4F0 3F1 4F1 3F2 4F2 3F3 4F3 4I0 4W0 3F4 3I0 3W0 4F4 4I1 4W1 3F5 3I1 3W1 4F5 4I2 4W2 3F6 3I2 3W2 4F6 4I3 4W3 3F7 3I3 3W3 4F7 4I4 4W4 3I4 4I5 3I5 4I6 3I6 4I7 3I7 3W4 3W5 4W5 3W6 4W6 3W7 4W7 |
        """,
    ("zb-v", 3, 6, 6): """
        |0F0 0F1 0F2 0F3 0F4 5F0 5I0 5W0 5F1 5I1 5W1 5F2 5I2 5W2 0F5 0I0 0W0 5F3 5I3 5W3 0I1 0W1 5F4 5I4 5W4 0I2 0W2 5F5 5I5 5W5 0I3 0W3 0I4 0W4 0I5 0W5         |
        |    1F0 1F1 1F2 4F0 1F3 4F1 4I0 4W0 4F2 4I1 4W1 1F4 1I0 1W0 4F3 4I2 4W2 1F5 1I1 1W1 4F4 4I3 4W3 1I2 1W2 4F5 4I4 4W4 1I3 4I5 1I4 1W3 1I5 1W4 1W5 4W5     |
        |        2F0 3F0 2F1 3F1 2F2 3F2 3I0 3W0 2F3 2I0 2W0 3F3 3I1 3W1 2F4 2I1 2W1 3F4 3I2 3W2 2F5 2I2 2W2 3F5 3I3 3W3 2I3 3I4 2I4 3I5 2I5 2W3 2W4 3W4 2W5 3W5 |
        """,
    ("zb-v", 2, 4, 4): """
        |0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0F3 0I0 0W0 3F2 3I2 3W2 0I1 0W1 3F3 3I3 3W3 0I2 0W2 0I3 0W3     |
        |    1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1F3 1I1 1W1 2F3 2I2 2W2 1I2 2I3 1I3 1W2 1W3 2W3 |
        """,
}  # fmt: skip


@pytest.mark.parametrize("numbers", STAIRCASES, ids=str)
def test_a_schedule_is_the_staircase_of_its_paper(numbers: tuple[str, int, int, int]) -> None:
    lines = as_text(simulate(make_schedule(*numbers), Costs(backward=1))).splitlines()[1:]
    bare = [line[line.index("|") : line.rindex("|") + 1] for line in lines]
    assert bare == textwrap.dedent(STAIRCASES[numbers]).split("\n")[1:-1]


@pytest.mark.parametrize(
    ("rule", "numbers"),
    [
        (schedule.gpipe_ticks, ("gpipe", 4, 4)),
        (schedule.one_f_one_b_ticks, ("1f1b", 4, 6)),
        (schedule.interleaved_ticks, ("interleaved", 2, 4)),
        (schedule.zero_bubble_ticks, ("zb-h1", 4, 6)),
        (schedule.zero_bubble_v_ticks, ("zb-v", 2, 3)),
    ],
)
def test_the_docstring_of_a_rule_draws_what_it_makes(
    rule: schedule.Rule, numbers: tuple[str, int, int]
) -> None:
    lines = as_text(simulate(make_schedule(*numbers), Costs(backward=1))).splitlines()[1:]
    drawn = [line[line.index("|") + 1 : line.rindex("|")].rstrip() for line in lines]
    assert "\n".join(drawn) in inspect.getdoc(rule)  # type: ignore[operator]


def test_boxes_are_as_long_as_their_actions_and_idle_time_is_blank() -> None:
    times = Costs(forward=[1, 2], backward=[3, 2], transfer=1, unit="s")
    assert as_text(simulate(make_schedule("1f1b", 2, 2), times)) == textwrap.dedent(
        """\
        1f1b, ideal (length: 14 s)
        place 0 |F0 F1                B0------    B1------ | idle 43%
        place 1 |      F0--- B0--- F1--- B1---             | idle 43%
        """
    )


def test_a_text_cuts_the_labels_of_what_is_far_shorter_than_the_rest() -> None:
    forward, backward = Action(Kind.FORWARD, 0, 0), Action(Kind.BACKWARD, 0, 0)
    row = (Span(forward, 5.0, 5.001), Span(backward, 5.001, 7.0))
    title, line = as_text(Timeline("measured", (row,), "s")).splitlines()
    assert title == "measured (length: 2 s)"
    assert line.startswith("place 0 |FB0----")
    assert line.endswith("- | idle 0%")
    assert len(line) < 1100


def test_one_action_that_is_far_shorter_than_the_rest_does_not_stretch_the_text() -> None:
    spans = [Span(Action(Kind.FORWARD, 0, i), float(i), i + 1.0) for i in range(10)]
    short = Span(Action(Kind.BACKWARD, 0, 9), 10.0, 10.0001)
    line = as_text(Timeline("measured", ((*spans, short),), "s")).splitlines()[1]
    assert line == f"place 0 |{' '.join(f'F{i}' for i in range(10))} | idle 0%"


def test_a_timeline_without_actions_or_without_time_has_a_picture() -> None:
    empty = Timeline("nothing", ((), ()))
    at_once = simulate(make_schedule("gpipe", 2, 2), Costs(forward=0, inputs=0, weights=0))
    assert as_text(empty).splitlines()[1:] == ["place 0 || idle 0%", "place 1 || idle 0%"]
    assert as_text(at_once).count("idle 0%") == 2
    ElementTree.fromstring(as_svg([empty, at_once]))
    ElementTree.fromstring(as_svg([]))


def parts(picture: str, tag: str) -> list[ElementTree.Element]:
    return [*ElementTree.fromstring(picture).iter(f"{{http://www.w3.org/2000/svg}}{tag}")]


def test_an_svg_has_a_box_for_each_action_in_its_place_and_colour() -> None:
    timeline = simulate(make_schedule("zb-v", 3, 6), Costs(forward=2, transfer=0.5))
    picture = as_svg([timeline])
    colours = {"F": "#56b4e9", "I": "#f0e442", "W": "#8fd6b4"}
    groups = parts(picture, "g")
    assert len(groups) == 3 * 6 * 6
    by_row: dict[float, list[tuple[float, float]]] = {}
    scale = set()
    spans = [span for row in timeline.rows for span in row]
    for group, span in zip(groups, spans, strict=True):
        title, box, label = group
        x, y, width = (float(box.attrib[name]) for name in ("x", "y", "width"))
        by_row.setdefault(y, []).append((x, x + width))
        assert box.attrib["fill"] == colours[span.action.kind.value]
        assert label.text == f"{span.action.stage}{span.action.kind.value}{span.action.micro_batch}"
        assert (title.text or "").startswith(f"{span.action}, {span.start:.4g} to ")
        scale.add(round(width / span.duration))
    assert len(by_row) == 3
    assert len(scale) == 1
    idle = [text.text for text in parts(picture, "text") if (text.text or "").startswith("idle")]
    assert idle == [f"idle {share:.0%}" for share in timeline.idle]


def test_the_ideal_and_the_measured_timeline_stand_below_each_other_in_one_scale() -> None:
    ideal = simulate(make_schedule("1f1b", 2, 3), Costs(backward=2, unit="s"))
    slower = tuple(
        tuple(Span(span.action, 9 + 2 * span.start, 9 + 2 * span.end) for span in row)
        for row in ideal.rows
    )
    picture = as_svg([ideal, Timeline("as it ran <today>", slower, "s")])
    widths = [float(group[1].attrib["width"]) for group in parts(picture, "g")]
    assert [2 * width for width in widths[:12]] == pytest.approx(widths[12:], abs=0.1)
    tops = [float(group[1].attrib["y"]) for group in parts(picture, "g")]
    assert max(tops[:12]) < min(tops[12:])
    words = [text.text for text in parts(picture, "text")]
    assert "as it ran <today> (length: 24 s)" in words
    assert words[-4:] == ["F", "forward", "B", "backward"]
    whole = ElementTree.fromstring(picture)
    for box in parts(picture, "rect"):
        assert float(box.attrib.get("x", 0)) + float(box.attrib["width"]) <= float(
            whole.attrib["width"]
        )
        assert float(box.attrib.get("y", 0)) + float(box.attrib["height"]) <= float(
            whole.attrib["height"]
        )


def test_a_long_svg_is_drawn_smaller_and_leaves_out_labels_that_do_not_fit() -> None:
    picture = as_svg([simulate(make_schedule("zb-v", 8, 32), Costs())])
    assert float(ElementTree.fromstring(picture).attrib["width"]) < 4200
    assert {len(group) for group in parts(picture, "g")} == {2}
