"""The schedules have every action once, and refuse numbers that do not go together."""

from __future__ import annotations

import pytest

from telegrad.errors import ScheduleError, TelegradError
from telegrad.parallel.pipeline import make_schedule


def test_a_place_of_interleaved_holds_every_third_stage_and_one_of_zb_v_both_legs() -> None:
    interleaved = make_schedule("interleaved", 3, 4, stages=9)
    assert [interleaved.place_of(stage) for stage in range(9)] == [0, 1, 2] * 3
    assert [make_schedule("zb-v", 3, 4).place_of(stage) for stage in range(6)] == [0, 1, 2, 2, 1, 0]
    with pytest.raises(ValueError, match=r"'zb-v' has no stage 6 \(stages: 6\)"):
        make_schedule("zb-v", 3, 4).place_of(6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("pipedream", 2, 4), "unknown schedule 'pipedream'; write one of gpipe, 1f1b, "),
        (("gpipe", 0, 4), r"places must be at least 1 \(given: 0\)"),
        (("gpipe", 2, 0), r"micro_batches must be at least 1 \(given: 0\)"),
        (("1f1b", 2, 4, 4), r"'1f1b' takes 2 stages on 2 places \(given: 4\)"),
        (("zb-v", 2, 4, 6), r"'zb-v' takes 4 stages on 2 places \(given: 6\)"),
        (("interleaved", 2, 4, 2), r"takes 4 stages or a higher multiple on 2 places \(given: 2\)"),
        (("interleaved", 2, 4, 5), r"takes 4 stages or a higher multiple on 2 places \(given: 5\)"),
    ],
)
def test_numbers_that_do_not_go_together_are_refused(
    arguments: tuple[str, int, int], message: str
) -> None:
    with pytest.raises(ScheduleError, match=message) as caught:
        make_schedule(*arguments)
    assert isinstance(caught.value, TelegradError)


@pytest.mark.parametrize("name", ["1F1B", "GPipe", "Interleaved", "ZB-H1", "ZB-V"])
def test_names_are_those_of_torch_in_either_case(name: str) -> None:
    assert make_schedule(name, 2, 4) == make_schedule(name.lower(), 2, 4)
