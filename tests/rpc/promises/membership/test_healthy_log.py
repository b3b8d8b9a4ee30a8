"""The log of a job in which nothing is wrong grows with its workers, not with their square."""

from __future__ import annotations

import logging
import math
from concurrent.futures import ThreadPoolExecutor

import pytest

from telegrad import rpc
from telegrad.rendezvous import join
from tests.rpc import remote_code
from tests.rpc.conftest import Job, MakeJob


def meet_all(job: Job, n: int) -> None:
    """Has each worker call each other one at the same time, so that dials cross."""

    def call(pair: tuple[int, int]) -> None:
        assert job.on(pair[0], rpc.rpc_sync, pair[1], remote_code.add, (1, 2)) == 3

    with ThreadPoolExecutor(n) as pool:
        list(pool.map(call, [(a, b) for a in range(n) for b in range(n) if a != b]))


@pytest.mark.parametrize("n", [2, 4, pytest.param(8, marks=pytest.mark.long)])
def test_a_healthy_start_logs_two_lines_a_worker(
    make_job: MakeJob, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    """Three workers logged 17 lines, among them refusals of dials that had crossed."""
    monkeypatch.setattr(join, "SAY_EVERY", math.inf)
    caplog.set_level(logging.INFO)
    job = make_job(n)
    meet_all(job, n)
    lines = [each.getMessage() for each in caplog.records if each.name.startswith("telegrad")]
    assert sum(f"{n}/{n} joined; the job has started" in line for line in lines) == n
    assert len(lines) <= 2 * n, lines
