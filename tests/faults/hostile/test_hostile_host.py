"""Every verb in its middle while the host of the coordinator, of which none waits, is struck."""

from __future__ import annotations

import pytest

from telegrad.errors import RendezvousError
from telegrad.testing import leaks
from tests.conftest import Programs
from tests.faults import abandoned
from tests.faults.hostile import hostile_table as table
from tests.faults.hostile.hostile_job import LOST_AFTER, Fault, HostileJob
from tests.faults.hostile.hostile_row import ROLES, VICTIMS
from tests.faults.hostile.hostile_table import ROWS
from tests.faults.hostile.test_hostile_verbs import names_the_lost
from tests.faults.outcome import name_of_class
from tests.hosts.namespaces import Hosts

HOST = "witness"
OTHERS = list(VICTIMS)
OF_THE_STORE = {"store_get", "store_wait"}  # which the coordinator holds


@pytest.mark.long
@pytest.mark.parametrize("run", range(5))
@pytest.mark.parametrize("fault", LOST_AFTER)
def test_the_others_go_on_without_it(
    programs: Programs, bridge: Hosts | None, fault: Fault, run: int
) -> None:
    """Nobody is evicted, before it comes back or after; what waits is ended by the callee's loss."""
    with HostileJob(programs, ROLES, lost_after=LOST_AFTER[fault], bridge=bridge) as job:
        job.run(table.get_ready)
        job.run(table.begin)
        job.run(table.in_the_middle)
        job.strike(fault, HOST)
        job.run(abandoned.wait_until_gone, HOST)
        if fault != "killed":
            comes_back(job, fault)
        job.run(abandoned.wait_until_known)
        job.strike("killed", "callee")
        for failures in job.run(table.failures, "callee").values():
            for name, failure in failures.items():
                names_the_lost(ROWS[name], failure, "callee")
        job.run(table.release_all)
        for found in job.run(table.outcomes).values():
            for name, failure in found.items():
                if name in OF_THE_STORE:
                    assert failure.kind == name_of_class(RendezvousError), f"{name}: {failure}"
                elif "callee" not in ROWS[name].ends:
                    assert not failure.kind, f"{name}: {failure}"
        for called in job.run(table.go_on, job.living).values():
            assert called == job.living
        for lost in job.run(table.losses).values():
            assert lost == [(HOST, "WorkerLostError"), ("callee", "WorkerLostError")]
        job.run(abandoned.part)
        job.run(table.begin_to_leave)
        for name, failure in job.run(table.has_left).items():
            assert not failure.kind, f"{name}: {failure}"


def comes_back(job: HostileJob, fault: Fault) -> None:
    """Wakes it up or heals the cut once all have given up all; it has lost each of the others."""
    job.run(abandoned.wait_until_lost)
    if fault == "cut":
        leaks.wait_until_gone(
            "members", lambda: range(1, job.run(abandoned.abandoned_by, on=[HOST])[HOST][0])
        )
    job.recover()
    job.run(abandoned.wait_until_known)
    job.run(abandoned.wait_until_gone, *OTHERS, on=[HOST])
    assert job.run(abandoned.abandoned_by, on=[HOST]) == {HOST: (1, len(OTHERS))}
    leaks.wait_until_gone(
        "losses", lambda: [] if len(losses(job)) == len(OTHERS) else losses(job) or ["none"]
    )
    lost = losses(job)
    assert sorted(lost) == sorted((other, "WorkerLostError") for other in OTHERS)
    job.run(table.begin_to_leave, on=[HOST])
    [failure] = job.run(table.has_left, on=[HOST]).values()
    assert not failure.kind, failure


def losses(job: HostileJob) -> list[tuple[str, str]]:
    """Returns what `on_loss` has told on the host, where callbacks run later than waits end."""
    [told] = job.run(table.losses, on=[HOST]).values()
    return told
