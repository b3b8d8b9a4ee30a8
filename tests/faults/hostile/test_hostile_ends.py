"""Workers that are killed, stopped or cut off while the others join, and while they shut down."""

from __future__ import annotations

import pytest

from telegrad.errors import EvictedError, RendezvousError
from telegrad.testing import leaks
from tests.conftest import Programs
from tests.faults.hostile import hostile_table as table
from tests.faults.hostile.hostile_job import LOST_AFTER, Fault, HostileJob
from tests.faults.hostile.hostile_row import ROLES
from tests.hosts.namespaces import Hosts


@pytest.mark.long
@pytest.mark.parametrize("run", range(5))
@pytest.mark.parametrize("fault", LOST_AFTER)
@pytest.mark.parametrize("victim", ["owner", "callee"])
def test_a_worker_lost_while_others_shut_down(
    programs: Programs, bridge: Hosts | None, fault: Fault, victim: str, run: int
) -> None:
    """The owner waits in `shutdown` as the others do; the callee has not called it."""
    leaving = ["witness", "caller", "owner"]
    with HostileJob(programs, ROLES, lost_after=LOST_AFTER[fault], bridge=bridge) as job:
        job.run(table.meet)
        job.run(table.begin_to_leave, on=leaving)
        job.run(table.wait_in_shutdown, len(leaving), on=["witness"])
        job.strike(fault, victim)
        if victim == "owner":
            job.run(table.dropped, victim, on=["callee"])
            job.run(table.begin_to_leave, on=["callee"])
        for name, failure in job.run(table.has_left).items():
            assert not failure.kind, f"{name}: {failure}"
        if fault != "killed":
            job.recover()
            if victim == "callee":
                job.run(table.begin_to_leave, on=[victim])
            (failure,) = job.run(table.has_left, on=[victim]).values()
            assert not failure.kind, f"{victim}: {failure}"


@pytest.mark.long
@pytest.mark.parametrize("run", range(5))
@pytest.mark.parametrize("fault", LOST_AFTER)
def test_a_worker_lost_while_others_join(
    programs: Programs, bridge: Hosts | None, fault: Fault, run: int
) -> None:
    """The owner has joined and waits for the callee; another one takes its place."""
    lost_after = LOST_AFTER[fault]
    with HostileJob(programs, ROLES, lost_after=lost_after, bridge=bridge, join=False) as job:
        job.begin("join", ["witness", "caller", "owner"])
        job.wait_for("witness", "3/4 joined; waiting for rank 2")
        job.strike(fault, "owner")
        leaks.wait_until_gone("the owner", lambda: [] if one_less(job) else ["owner"])
        if fault != "killed":
            job.recover()
            check_refused(job.refusal("owner"), fault)
        job.replace("owner")
        job.join(["callee", "owner"])
        job.end(["witness", "caller"])
        assert [*job.run(table.meet).values()] == [list(ROLES)] * len(ROLES)


def one_less(job: HostileJob) -> bool:
    """Tells whether the coordinator has said so after all three had come."""
    _, _, later = job.output("witness").rpartition("3/4 joined")
    return "2/4 joined; waiting for ranks 2, 3" in later


def check_refused(error: BaseException, fault: Fault) -> None:
    """Who was cut off has given up the coordinator itself, and is no member that could be told."""
    if fault == "cut" and type(error) is RendezvousError:
        assert "the coordinator is lost (silent" in str(error)
    else:
        assert type(error) is EvictedError, error
        assert "gave up 'owner'" in str(error)
