"""A pipeline tells how its last step ran: in numbers, as text and as SVG."""

from __future__ import annotations

import threading
import xml.etree.ElementTree as ET
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telegrad import nn
from telegrad.errors import InvalidUseError
from telegrad.parallel import Pipeline
from telegrad.parallel.pipeline import Costs, check, make_schedule, pipeline, simulate
from telegrad.parallel.pipeline.checking import needs
from telegrad.parallel.pipeline.mailbox import Key, Mailboxes
from telegrad.parallel.pipeline.plan import StepReport
from telegrad.parallel.pipeline.report import measured
from telegrad.testing import Cluster
from tests.parallel.pipeline.models import SCHEDULES, Block, batch, make_model


def step(name: str) -> None:
    workers = ["worker0", "worker1", "worker2"]
    pipe = Pipeline.from_sequential(
        make_model(), workers, schedule=name, num_microbatches=5, loss=nn.functional.cross_entropy
    )
    with pytest.raises(InvalidUseError, match="no training step yet"):
        pipe.report()
    pipe.forward(batch(8)[0])
    pipe.step(*batch(8))
    found = pipe.report()
    assert found.schedule == name
    assert found.held == found.held_by_schedule
    assert 0 < found.ideal_length <= found.length
    assert all(0 <= share < 1 for share in (*found.idle, *found.ideal_idle))
    halves = name.startswith("zb")
    assert list(found.times) == (["F", "I", "W"] if halves else ["F", "B"])
    text = pipe.picture()
    assert [line[:7] for line in text.splitlines() if line.startswith("place")] == [
        f"place {place}" for place in range(3)
    ] * 2
    root = ET.fromstring(pipe.picture(svg=True))
    assert root.tag.endswith("svg")


@pytest.mark.few(1)
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_step_tells_its_times_and_what_it_held(name: str) -> None:
    with Cluster(3) as cluster:
        cluster.call(0, step, name)


@pytest.mark.long
@given(
    st.sampled_from(SCHEDULES),
    st.integers(1, 4),
    st.integers(1, 6),
    st.lists(st.floats(-1e6, 1e6), min_size=4, max_size=4),
)
def test_clocks_of_different_hosts_do_not_change_the_order(
    name: str, places: int, micro_batches: int, offsets: list[float]
) -> None:
    checked = check(make_schedule(name, places, micro_batches))
    true = simulate(checked.schedule, Costs(transfer=0.5))
    reports = []
    for place, row in enumerate(true.rows):
        times = np.array([[each.start, each.end] for each in row])
        moved = times + (offsets[place] if place else 0.0)
        reports.append(StepReport(times=moved))
    found = measured(checked, reports)
    ends = {each.action: each.end for row in found.rows for each in row}
    for row in found.rows:
        assert all(a.end <= b.start + 1e-6 for a, b in pairwise(row))
        for span in row:
            for need in needs(span.action, ends):
                assert ends[need] <= span.start + 1e-6


begun = threading.Event()


class Begins(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block(1)

    def forward(self, x: Any) -> Any:
        begun.set()
        return self.block(x)


def slow_to_hand_over(monkeypatch: pytest.MonkeyPatch) -> None:
    carry, seen = Mailboxes.carry, list[StepReport]()

    def slow(self: Mailboxes, to: Any, step: int, key: Key, *rest: Any) -> None:
        carry(self, to, step, key, *rest)
        assert key.kind != "F" or begun.wait(30)

    def watched(checked: Any, reports: list[StepReport]) -> Any:
        seen.extend(reports)
        return measured(checked, reports)

    monkeypatch.setattr(Mailboxes, "carry", slow)
    monkeypatch.setattr(pipeline, "measured", watched)
    stages: list[Any] = [("worker0", Block, (0,)), ("worker1", Begins)]
    pipe = Pipeline(stages, num_microbatches=2, loss=nn.functional.cross_entropy)
    pipe.step(*batch(4))
    pipe.picture()
    rows = pipe.schedule.rows
    times = {
        action: (began, ended)
        for row, each in zip(rows, seen, strict=True)
        for action, (began, ended) in zip(row, np.asarray(each.times), strict=True)
    }
    for action, (began, _) in times.items():
        assert all(times[need][1] <= began for need in needs(action, times))


def test_an_action_ends_before_another_one_begins_with_its_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Cluster(2) as cluster:
        cluster.call(0, slow_to_hand_over, monkeypatch)
