"""The pass protocol alone, over a million random programs in random orders of all that happens.

Each seed is a program and an order of messages, graph steps, late calls and faults; the kinds of
faults, and what is checked, are those of test_pass_protocol.py, which runs a few of them each time.
"""

from __future__ import annotations

import pytest

from tests.dist_autograd.test_pass_protocol import run_programs

# So many in each kind; a schedule without faults is the longest, and says the most.
SCHEDULES = {"none": 300_000, "loss": 300_000, "error": 250_000, "deadline": 150_000}
PARTS = 10  # of each kind, which processes share
FIRST = 20_000_000  # seeds below are those of the short tests


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", SCHEDULES)
def test_a_million_schedules(kind: str, part: int) -> None:
    count = SCHEDULES[kind] // PARTS
    successes = run_programs(count, kind, first=FIRST + part * count)
    assert successes == count if kind == "none" else 0 < successes < count


def test_it_is_a_million() -> None:
    assert sum(SCHEDULES.values()) == 1_000_000
