"""Every schedule can be run, holds what its paper says, and takes as long; wrong tables are named."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telegrad.errors import ScheduleError, TelegradError
from telegrad.parallel.pipeline import (
    Action,
    Checked,
    Costs,
    Kind,
    Schedule,
    check,
    make_schedule,
    simulate,
)
from tests.parallel.pipeline.tables import B, F, I, W, ends, random_table, table

# -- the schedules by name -----------------------------------------------------------------------


def of_gpipe(checked: Checked, places: int, micro_batches: int, chunks: int) -> None:
    assert checked.held == (micro_batches,) * places
    takes_fill_and_drain(checked, places, micro_batches)


def of_1f1b(checked: Checked, places: int, micro_batches: int, chunks: int) -> None:
    assert checked.held == tuple(min(places - p, micro_batches) for p in range(places))
    takes_fill_and_drain(checked, places, micro_batches)


def takes_fill_and_drain(checked: Checked, places: int, micro_batches: int) -> None:
    for forward, backward in [(1, 1), (1, 2), (3, 1)]:
        costs = Costs(forward=forward, backward=backward)
        ideal = (micro_batches + places - 1) * (forward + backward)
        assert checked.simulate(costs).length == ideal


def of_interleaved(checked: Checked, places: int, micro_batches: int, chunks: int) -> None:
    group = -(-micro_batches // max(1, micro_batches // places))
    for p, held in enumerate(checked.held_at_place):
        most = 2 * (places - p - 1) + (chunks - 1) * group + 1
        assert held == min(most, chunks * micro_batches)
    if micro_batches >= places:
        # The times of a place are those of its stages together: a stage takes 1 / k of them.
        forward, backward = chunks, 2 * chunks
        costs = Costs(forward=forward / chunks, backward=backward / chunks)
        ideal = (micro_batches + (places - 1) / chunks) * (forward + backward)
        assert checked.simulate(costs).length == pytest.approx(ideal)


def of_zb_h1(checked: Checked, places: int, micro_batches: int, chunks: int) -> None:
    assert checked.held == (min(places, micro_batches),) * places
    ideal = max(3 * micro_batches + places - 1, 2 * micro_batches + 2 * places - 1)
    assert checked.simulate(Costs()).length == ideal
    if micro_batches >= places:
        for forward, inputs, weights in [(2, 2, 1), (2, 3, 1), (3, 4, 2)]:
            costs = Costs(forward=forward, inputs=inputs, weights=weights)
            busy = micro_batches * (forward + inputs + weights)
            bubble = (places - 1) * (forward + inputs - weights)
            assert checked.simulate(costs).length == busy + bubble


def of_zb_v(checked: Checked, places: int, micro_batches: int, chunks: int) -> None:
    assert max(checked.held_at_place) <= min(2 * places, 2 * micro_batches)
    timeline = checked.simulate(Costs())
    if micro_batches >= 2 * places - 1:
        # Each place starts one tick after the one above it, and never waits again.
        for p, spans in enumerate(timeline.rows):
            assert (spans[0].start, spans[-1].end) == (p, 6 * micro_batches + p)
    for place, row in enumerate(checked.schedule.rows):
        assert {action.stage for action in row} == {place, 2 * places - 1 - place}


@pytest.mark.parametrize(
    ("name", "chunks", "expect"),
    [
        ("gpipe", 1, of_gpipe),
        ("1f1b", 1, of_1f1b),
        ("interleaved", 2, of_interleaved),
        ("interleaved", 3, of_interleaved),
        ("zb-h1", 1, of_zb_h1),
        ("zb-v", 2, of_zb_v),
    ],
)
@pytest.mark.parametrize(
    "counts",
    [[*range(1, 11), 16, 17, 32], pytest.param(range(1, 33), marks=pytest.mark.long)],
    ids=["some", "all"],
)
@pytest.mark.long
def test_a_schedule_can_be_run_in_the_memory_and_the_time_of_its_paper(
    name: str,
    chunks: int,
    expect: Callable[[Checked, int, int, int], None],
    counts: Sequence[int],
) -> None:
    for places in range(1, 9):
        for micro_batches in counts:
            checked = check(make_schedule(name, places, micro_batches, chunks * places))
            expect(checked, places, micro_batches, chunks)


def test_what_a_place_holds_is_that_of_its_stages_together() -> None:
    checked = check(table("0F0 0F1 1F0 1B0 1F1 1B1 0B0 0B1"))
    assert (checked.held, checked.held_at_place) == ((2, 1), (3,))
    checked = check(table("0F0 1F0 1I0 0I0 1W0 0W0"))
    assert (checked.held, checked.held_at_place) == ((1, 1), (2,))


# -- times -----------------------------------------------------------------------------------------


@pytest.mark.long
@given(st.randoms(use_true_random=False), st.integers(0, 3))
def test_any_table_whose_order_the_needs_allow_passes_and_has_the_least_times(
    choose: random.Random, transfer: int
) -> None:
    schedule = random_table(choose)
    times = {kind: float(choose.randint(0, 4)) for kind in Kind}
    costs = Costs(
        forward=times[F], backward=times[B], inputs=times[I], weights=times[W], transfer=transfer
    )
    timeline = simulate(schedule, costs)
    spans = {span.action: span for row in timeline.rows for span in row}
    assert {action: span.end for action, span in spans.items()} == ends(schedule, times, transfer)
    assert [[span.action for span in row] for row in timeline.rows] == [*map(list, schedule.rows)]
    assert all(span.duration == times[span.action.kind] for span in spans.values())
    order = check(schedule).order
    assert sorted(order, key=str) == sorted(spans, key=str)


def test_times_by_stage_and_of_transfers_count() -> None:
    schedule = table("F0 B0", "F0 B0")
    costs = Costs(forward=[1, 10], inputs=[2, 3], weights=[4, 5], transfer=0.5, unit="s")
    timeline = simulate(schedule, costs)
    assert [(span.start, span.end) for row in timeline.rows for span in row] == [
        (0, 1), (20, 26), (1.5, 11.5), (11.5, 19.5),
    ]  # fmt: skip
    assert (timeline.length, timeline.unit) == (26, "s")
    assert timeline.idle == pytest.approx((1 - 7 / 26, 1 - 18 / 26))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Costs(forward=-1), r"the time forward must be a number from 0 \(given: -1\)"),
        (lambda: Costs(inputs=[1, float("nan")]), r"the time inputs must be .*given: nan"),
        (lambda: Costs(transfer=float("inf")), r"the time transfer must be .*given: inf"),
        (
            lambda: simulate(make_schedule("gpipe", 3, 1), Costs(forward=[1, 1])),
            "the times of forward are given for 2 stages, and the schedule has a stage 2",
        ),
    ],
)
def test_times_that_do_not_fit_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        make()


# -- tables that cannot be run ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (table(), "it has no place"),
        (table("F0 B0", ""), "place 1 has no action; leave the place out"),
        (table("F0 B0 F2 B2"), "F of micro-batch 1 at stage 0 is missing"),
        (table("0F0 0B0 2F0 2B0"), "F of micro-batch 0 at stage 1 is missing"),
        (table("F0 F1 B0"), "B of micro-batch 1 at stage 0 is missing; add it, or I and W"),
        (table("F0 W0"), "I of micro-batch 0 at stage 0 is missing, the other half"),
        (table("F0 I0"), "W of micro-batch 0 at stage 0 is missing, the other half"),
        (table("F0 B0 W0"), "B of micro-batch 0 at stage 0 is there with W, which does its work"),
        (table("F0 I0 W0 B0"), "B of micro-batch 0 at stage 0 is there with I and W, which"),
        (table("F0 B0 F0"), "F of micro-batch 0 at stage 0 is there 2 times; leave it once"),
        (
            table("F0 B0 1F1", "F0 B0 F1 B1"),
            "F of micro-batch 1 at stage 1 is there 2 times",
        ),
        (
            table("F0 B0 1F1 1B1", "F0 B0"),
            "stage 1 is at place 0 and at place 1, which has F of micro-batch 0 at stage 1; "
            "a stage lives at one place",
        ),
        (
            table("F0 W0 I0"),
            "place 0 has W of micro-batch 0 at stage 0 before I of micro-batch 0 at stage 0, "
            "which it needs; swap them",
        ),
        (
            table("0F0 1F0 0B0 1B0"),
            "place 0 has B of micro-batch 0 at stage 0 before B of micro-batch 0 at stage 1",
        ),
        (
            Schedule("mine", ((Action(F, 0, -1), Action(B, 0, -1)),)),
            "place 0 has F of micro-batch -1 at stage 0, and both count from 0",
        ),
        (
            table("F0 B0 F1 B1", "F0 F1 B0 B1"),
            "it ends in a deadlock, in which "
            "place 0 waits before B of micro-batch 0 at stage 0 until place 1 has run "
            "B of micro-batch 0 at stage 1, "
            "place 1 waits before F of micro-batch 1 at stage 1 until place 0 has run "
            "F of micro-batch 1 at stage 0; change the order of one of these rows",
        ),
    ],
)
def test_a_table_that_cannot_be_run_is_named_with_the_place_and_the_action(
    schedule: Schedule, message: str
) -> None:
    for prove in (check, lambda wrong: simulate(wrong, Costs())):
        with pytest.raises(ScheduleError) as caught:
            prove(schedule)
        assert str(caught.value).startswith(f"the schedule 'mine' cannot be run: {message}")
        assert isinstance(caught.value, TelegradError)


def test_a_deadlock_names_the_places_of_the_circle_alone() -> None:
    schedule = table("F0 B0 F1 B1", "F0 B0 F1 B1", "F0 F1 B0 B1")
    with pytest.raises(ScheduleError) as caught:
        check(schedule)
    assert "place 0" not in str(caught.value)
    assert "place 1 waits before B of micro-batch 0" in str(caught.value)
    assert "place 2 waits before F of micro-batch 1" in str(caught.value)


@pytest.mark.long
@given(st.randoms(use_true_random=False))
def test_rows_in_any_order_pass_if_and_only_if_they_end(choose: random.Random) -> None:
    schedule = random_table(choose)
    rows = [list(row) for row in schedule.rows]
    for _ in range(choose.randint(1, 4)):
        row = choose.choice(rows)
        turn = choose.randrange(len(row))
        row.insert(choose.randrange(len(row)), row.pop(turn))
    mixed = Schedule("mine", tuple(map(tuple, rows)))
    if ends(mixed, dict.fromkeys(Kind, 1.0), 0.0) is None:
        with pytest.raises(ScheduleError, match=r"before|deadlock"):
            check(mixed)
    else:
        check(mixed)
