"""The words while a job assembles."""

from __future__ import annotations

import math

from telegrad.rendezvous import JoinProgress


def test_line() -> None:
    progress = JoinProgress(1, (0, 2), 3)
    assert progress.line(290.2) == "2/3 joined; waiting for rank 1; 290 s left"
    assert progress.line(math.inf) == "2/3 joined; waiting for rank 1; no time limit"
    assert JoinProgress(1, (0, 1), 2).line(5) == "2/2 joined; 5 s left"


def test_many_missing_ranks_are_counted() -> None:
    line = JoinProgress(1, (0,), 100).line(5)
    assert line == "1/100 joined; waiting for ranks 1, 2, 3, 4, 5, 6, 7, 8 and 91 more; 5 s left"


def test_who_gave_up_is_missing_only_if_nobody_else_is() -> None:
    gave_up = {1: "w1", 2: "ps"}
    for size, start_when, wanted in [
        (4, None, "rank 3"),
        (3, None, "ranks 1, 2"),
        (5, 4, "any 1 of ranks 3, 4"),
        (5, 3, "any 2 of ranks 1, 2, 3, 4"),
        (5, ("ps", "w4"), "worker 'w4'"),
        (5, ("ps", "w0"), "worker 'ps'"),
    ]:
        progress = JoinProgress(1, (0,), size, {}, ("w0",), start_when, gave_up)
        assert progress.with_all_who_came.wanted == wanted, (size, start_when)


def test_the_missing_are_one_line() -> None:
    """Whatever their errors say, and however many there are."""
    errors = dict.fromkeys(range(1, 500), f"the\nsame {'long ' * 100}error")
    errors |= {r: f"error {r} of {'many ' * 100}" for r in range(500, 1000)}
    progress = JoinProgress(1, (0,), 1000, errors)
    line = progress.missing_in_words("grpc://a:1")
    assert line.startswith("ranks 1, 2, 3, 4, 5, 6, 7, 8 and 491 more: the same long long")
    assert line.endswith("; and 493 more")
    assert "\n" not in line
    assert len(line) < 4000
    assert len(progress.missing_with_errors("grpc://a:1")) == 999
