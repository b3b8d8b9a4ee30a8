"""Before, while and after workers join, in processes without a launcher."""

from __future__ import annotations

from pathlib import Path

from telegrad.errors import (
    AlreadyInitializedError,
    AuthenticationError,
    DuplicateNameError,
    NotInitializedError,
    RendezvousError,
    RendezvousTimeoutError,
)
from tests.conftest import TOKEN, Program, Programs, unused_port
from tests.faults.outcome import Failure, read_report
from tests.faults.processes import assert_nothing_stays
from tests.faults.programs.joining import verbs
from tests.repeated import repeated

SCRIPT = Path(__file__).with_name("joining.py")
CALL_INIT = ("no agent runs in this process", "call rpc.init_rpc() first")


def start_rank(programs: Programs, script: Path, rank: int, **env: str) -> Program:
    """Starts one worker of a job, so that a test decides who comes first."""
    job = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": env["WORLD_SIZE"],
        "MASTER_ADDR": "127.0.0.1",
        "TELEGRAD_TOKEN": TOKEN,
    }
    return programs.start(["python", script], env={**job, **env}, limit=30.0)


@repeated
def test_everything_that_goes_wrong_around_joining(programs: Programs, run: int) -> None:
    env = {
        "WORLD_SIZE": "2",
        "MASTER_PORT": str(unused_port()),
        "FREE_PORT": str(unused_port()),
    }
    first = start_rank(programs, SCRIPT, 0, **env)
    first.wait_for("1/2 joined")
    second = start_rank(programs, SCRIPT, 1, **env)
    reports = [read_report(program.wait()) for program in (first, second)]
    assert_nothing_stays(first.process.pid, second.process.pid)
    for report in reports:
        assert "Traceback" not in str(report)
        check_calls_without_an_agent(report, "before")
        check_calls_without_an_agent(report, "after")
        failure_in(report, "after: by WorkerInfo").check(NotInitializedError, *CALL_INIT)
        assert report["calls"] == "worker0 worker1"
        assert report["again"] == "alone"
    for rank, report in enumerate(reports):
        failure_in(report, "second").check(
            AlreadyInitializedError,
            f"the agent 'worker{rank}' already runs in this process",
            "call rpc.shutdown() before another rpc.init_rpc()",
        )
    check_refusals(reports[1], env["MASTER_PORT"], env["FREE_PORT"])
    check_calls_without_an_agent(reports[1], "after a failed one")


def check_calls_without_an_agent(report: dict[str, object], when: str) -> None:
    for name in verbs():
        failure_in(report, f"{when}: {name}").check(NotInitializedError, *CALL_INIT)


def check_refusals(report: dict[str, object], port: str, free_port: str) -> None:
    """Each was told at once, in its own words, and left nothing behind."""
    in_use = (f"127.0.0.1:{port}", "Address already in use", "name a free one, or 0")
    taken = ("is taken by rank 0 ('worker0')", "names must differ by more than case")
    expected: dict[str, tuple[type[BaseException], tuple[str, ...]]] = {
        "wrong token": (
            AuthenticationError,
            (f"grpc://127.0.0.1:{port}", "another token", "RpcOptions.token, TELEGRAD_TOKEN"),
        ),
        "duplicate name": (DuplicateNameError, ("'worker0'", *taken)),
        "duplicate name in capitals": (DuplicateNameError, ("'WORKER0'", *taken)),
        "port in use": (OSError, in_use),
        "the coordinator's port in use": (OSError, in_use),
        "bad name": (ValueError, ("'no blanks in names' has ' '", "use letters, digits")),
        "wrong world size": (
            RendezvousError,
            ("'worker1' (rank 1) says 3, the job has 2", "start all workers with the same"),
        ),
        "nobody comes": (
            RendezvousTimeoutError,
            ("1/3 joined", "ranks 1, 2: never reached the coordinator", f":{free_port}"),
        ),
    }
    for item, (error, words) in expected.items():
        failure_in(report, item).check(error, *words)
        assert report[f"{item}, initialized"] == "False"
    for line in ("start ranks 1, 2, or wait longer with init_timeout=",):
        assert line in failure_in(report, "nobody comes").message


def failure_in(report: dict[str, object], item: str) -> Failure:
    failure = report[item]
    assert isinstance(failure, Failure), item
    return failure


WAITS = """
import logging, os
from telegrad import rpc
from tests.faults.outcome import failure_of, report
logging.basicConfig(level=logging.INFO, format="%(message)s")
options = rpc.RpcOptions(init_timeout=20.0, lost_after=2.0)
report("waited", failure_of(lambda: rpc.init_rpc(options=options)))
"""


@repeated
def test_the_coordinator_is_killed_while_others_wait(programs: Programs, run: int) -> None:
    env = {"WORLD_SIZE": "3", "MASTER_PORT": str(unused_port())}
    script = programs.script(WAITS)
    first = start_rank(programs, script, 0, **env)
    first.wait_for("1/3 joined")
    second = start_rank(programs, script, 1, **env)
    second.wait_for("2/3 joined")
    first.kill()
    failure = failure_in(read_report(second.wait()), "waited")
    assert failure.kind in {
        f"telegrad.errors:{error.__name__}" for error in (RendezvousError, RendezvousTimeoutError)
    }
    assert "coordinator" in failure.message
    assert "start it anew" in failure.message or "missing" in failure.message
    assert_nothing_stays(first.process.pid, second.process.pid)
