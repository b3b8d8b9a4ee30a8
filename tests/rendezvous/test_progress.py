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


def test_missing_with_last_errors() -> None:
    progress = JoinProgress(1, (0,), 3, {2: "has another token"})
    assert progress.missing_with_errors("grpc://a:1") == (
        "rank 1: never reached the coordinator at grpc://a:1",
        "rank 2: has another token",
    )
