"""Whoever hosts the coordinator is stopped for longer than the workers wait, and woken again."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from telegrad.errors import WorkerLostError
from telegrad.testing import leaks
from tests.conftest import Programs
from tests.faults import abandoned
from tests.faults.hostile import hostile_table as table
from tests.faults.hostile.hostile_job import HostileJob
from tests.faults.outcome import read_report
from tests.faults.processes import assert_nothing_stays

SCRIPT = Path(__file__).with_name("launched.py")
LIMIT = 40.0


def wait_for_files(directory: Path, *names: str) -> None:
    leaks.wait_until_gone(
        "files", lambda: [name for name in names if not (directory / name).exists()], within=LIMIT
    )


@pytest.mark.long
def test_a_launcher_that_is_stopped_and_woken_evicts_nobody(
    programs: Programs, tmp_path: Path
) -> None:
    """As by Ctrl-Z: only the launcher, which hosts the coordinator, and none of its workers."""
    run = ["telegrad", "run", "--nproc-per-node", "2"]
    launcher = programs.start([*run, SCRIPT, tmp_path], limit=LIMIT)
    wait_for_files(tmp_path, "before 0", "before 1")
    os.kill(launcher.process.pid, signal.SIGSTOP)
    try:
        wait_for_files(tmp_path, "during 0", "during 1")
    finally:
        os.kill(launcher.process.pid, signal.SIGCONT)
    output = launcher.wait()
    found = read_report(output)
    for r in (0, 1):
        for when in ("before", "during", "after"):
            assert found[f"{when} {r}"] == "worker0 worker1"
        abandoned.check_closed(found[f"late {r}"])
        assert found[f"losses {r}"] == ""
    assert "Evicted" not in output
    assert output.count("gave up this coordinator, which was stopped or cut off for too long") == 1
    assert_nothing_stays(launcher.process.pid)


def test_a_stopped_host_of_the_coordinator_is_lost_and_evicts_nobody(programs: Programs) -> None:
    """Woken, it finds that it has lost each of the others, and they go on."""
    names, others = ["host", "a", "b"], ["a", "b"]
    with HostileJob(programs, names, lost_after=2.0) as job:
        job.run(table.get_ready)
        job.strike("stopped", "host")
        job.run(abandoned.wait_until_lost)
        job.run(abandoned.wait_until_gone, "host")
        assert job.run(table.go_on, others) == dict.fromkeys(others, others)
        job.recover()
        job.run(abandoned.wait_until_known)
        job.run(abandoned.wait_until_gone, *others, on=["host"])
        for other in others:
            [failure] = job.run(abandoned.calls, other, on=["host"]).values()
            failure.check(WorkerLostError, f"worker '{other}'", "is lost")
        assert job.run(abandoned.abandoned_by, on=["host"]) == {"host": (1, 2)}
        for late in job.run(abandoned.joins_late, on=names).values():
            abandoned.check_closed(late)
        assert job.run(table.go_on, others) == dict.fromkeys(others, others)
        for lost in job.run(table.losses).values():
            assert lost == [("host", "WorkerLostError")]
        [lost] = job.run(table.losses, on=["host"]).values()
        assert sorted(lost) == [(other, "WorkerLostError") for other in others]
        job.run(table.begin_to_leave, on=names)
        for name, failure in job.run(table.has_left, on=names).items():
            assert not failure.kind, f"{name}: {failure}"
