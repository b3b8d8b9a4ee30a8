"""Workers that end without a word, in programs: the others are told, go on and end, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from telegrad.errors import WorkerLostError
from tests.conftest import Programs
from tests.faults.outcome import SOON, Failure, read_report
from tests.faults.processes import assert_nothing_stays
from tests.repeated import repeated

SCRIPT = Path(__file__).with_name("ending.py")
LIMIT = 30.0
LEFT = "left without a graceful shutdown"
GONE = "its process is gone"


def check_survivor(report: dict[str, Any], lost: dict[str, str], living: str) -> None:
    """Checks what one of the others saw of each that ended, and that it went on and ended well."""
    for worker, reason in lost.items():
        waited: Failure = report[f"waited for {worker}"]
        waited.check(
            WorkerLostError,
            f"worker '{worker}' (incarnation",
            f"is lost: {reason}" if reason == LEFT else reason,
            f"the call of __main__:hold on '{worker}' got no answer",
            "it is not sent again",
            within=LIMIT,
        )
        assert waited.fields["worker"] == worker
        assert reason in waited.fields["reason"]
        later: Failure = report[f"called {worker} later"]
        later.check(WorkerLostError, f"the call of __main__:who on '{worker}' was not sent")
        assert worker not in report[f"left by {worker}"].split()
    assert report["calls"] == living
    shutdown: Failure = report["shutdown"]
    assert not shutdown.kind, shutdown.text
    assert shutdown.seconds < SOON


@repeated
def test_workers_that_exit_and_end_without_shutdown(programs: Programs, run: int) -> None:
    started = programs.ranks(SCRIPT, 4, env={"FAULT": "exits"}, limit=LIMIT)
    outputs = [program.wait() for program in started]
    assert_nothing_stays(*(program.process.pid for program in started))
    assert not any("Traceback" in output.split('{"item"')[-1] for output in outputs)
    for rank in (0, 3):
        lost = {"worker1": LEFT, "worker2": LEFT}
        check_survivor(read_report(outputs[rank]), lost, "worker0 worker3")


@repeated
def test_the_host_of_the_coordinator_is_killed(programs: Programs, run: int) -> None:
    started = programs.ranks(SCRIPT, 3, env={"FAULT": "killed"}, limit=LIMIT)
    started[0].wait_for('"held"')
    started[0].kill()
    for rank in (1, 2):
        output = started[rank].wait()
        check_survivor(read_report(output), {"worker0": GONE}, "worker1 worker2")
        assert "shutdown goes on without the other workers" in output
    assert_nothing_stays(*(program.process.pid for program in started))


@pytest.mark.parametrize(
    ("fault", "code", "reason", "words"),
    [
        ("fails", 1, LEFT, "rank 1 failed with exit code 1"),
        ("kills", 137, GONE, "rank 1 was killed by SIGKILL"),
    ],
)
@repeated
@pytest.mark.few(1)
def test_under_the_launcher(
    programs: Programs, fault: str, code: int, reason: str, words: str, run: int
) -> None:
    """The others get the time to be told and to end; the launcher's exit code is the culprit's."""
    launch = ["telegrad", "run", "--nproc-per-node", "3", str(SCRIPT)]
    program = programs.start(launch, env={"FAULT": fault}, limit=LIMIT)
    output = program.wait(code=code)
    pids = [int(read_report(output)[f"pid of {rank}"]) for rank in range(3)]
    assert_nothing_stays(program.process.pid, *pids)
    assert output.splitlines()[-1] == f"telegrad run: {words}"
    if fault == "fails":
        assert "[1] ValueError: not today" in output.splitlines()[-2]
    for rank in (0, 2):
        own = "\n".join(line for line in output.splitlines() if line.startswith(f"[{rank}] "))
        check_survivor(read_report(own), {"worker1": reason}, "worker0 worker2")
