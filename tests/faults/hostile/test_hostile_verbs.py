"""Every verb of the library in its middle while a worker that it concerns is killed, stopped, cut off.

One job proves one fault on one side for all verbs: all of them wait at once, and each says itself
that it does before the fault comes.
"""

from __future__ import annotations

import asyncio
import time

import pytest

from telegrad.errors import CallCancelledError, EvictedError, WorkerLostError
from telegrad.testing import held_references, leaks
from tests.conftest import Programs
from tests.faults.hostile import hostile_table as table
from tests.faults.hostile.hostile_job import LOST_AFTER, Fault, HostileJob
from tests.faults.hostile.hostile_row import ROLES, VICTIMS, Row
from tests.faults.hostile.hostile_table import ROWS
from tests.faults.outcome import Failure, name_of_class
from tests.faults.silence import Stalls, check_silence
from tests.hosts.namespaces import Hosts

AT_ONCE = 20.0

# A job that is cut runs in network namespaces, with interpreters that are executed: 4 s.
QUICK = [("killed", "caller"), ("killed", "callee"), ("stopped", "callee")]
EACH = [(fault, victim) for fault in LOST_AFTER for victim in VICTIMS]
RUNS = 5  # in `make test-long`
CASES = [
    *(pytest.param(*case, 0, id=" ".join(case)) for case in QUICK),
    *(
        pytest.param(*case, run, id=f"{' '.join(case)}, run {run}", marks=pytest.mark.long)
        for run in range(1, RUNS + 1)
        for case in EACH
    ),
]


@pytest.mark.parametrize(("fault", "victim", "run"), CASES)
@pytest.mark.few(1)
def test_every_verb(
    programs: Programs, bridge: Hosts | None, fault: Fault, victim: str, run: int
) -> None:
    with HostileJob(programs, ROLES, lost_after=LOST_AFTER[fault], bridge=bridge) as job:
        job.run(table.get_ready)
        job.run(table.begin)
        job.run(table.in_the_middle)
        job.strike(fault, victim)
        struck = time.monotonic()
        with Stalls() as stalls:
            told = job.run(table.failures, victim)
        for failures in told.values():
            for name, failure in failures.items():
                names_the_lost(ROWS[name], failure, victim)
                if fault != "killed" and "last_seen" in failure.fields:
                    check_silence(failure, LOST_AFTER[fault], stalls)
        job.run(table.told_that_nobody_waits, victim)
        assert fault != "killed" or time.monotonic() - struck < AT_ONCE
        if fault != "killed":
            job.run(table.dropped, victim)  # what recovers before that has lost its peers alone
            job.recover()
            comes_back(job, fault, victim)
        job.run(table.release_all)
        for found in job.run(table.outcomes).values():
            for name, failure in found.items():
                if victim not in ROWS[name].ends:
                    assert not failure.kind, f"{name} is none of {victim!r}'s: {failure}"
        goes_on(job, victim)


def names_the_lost(row: Row, failure: Failure, victim: str) -> None:
    """Checks what a survivor was told."""
    expected = row.ends[victim]
    assert failure.kind == name_of_class(expected), f"{row.name} {expected.__name__}: {failure}"
    assert f"'{victim}'" in failure.text, f"{row.name} does not name {victim!r}: {failure}"
    if issubclass(expected, WorkerLostError):
        assert failure.fields["worker"] == victim, f"{row.name}: {failure}"


def comes_back(job: HostileJob, fault: Fault, victim: str) -> None:
    """Checks what the victim is told: in its waits, in those of calls that it serves, and later."""
    waited, nested = job.run(table.told_that_it_was_given_up, on=[victim])[victim]
    for name, failure in waited.items():
        row = ROWS[name]
        may_be = {row.given_up} | (set(row.cut_off) if fault == "cut" else set())
        # Or another worker, that had not given it up yet, told it of its loss for a third one. Or
        # one that had given it up said so before the coordinator had evicted it.
        told = failure.kind == kind_of(WorkerLostError) and (
            failure.fields["worker"] == victim or failure.fields["reason"].startswith("fenced: ")
        )
        assert told or failure.kind in map(kind_of, may_be), f"{name} {may_be}: {failure}"
    for name, failure in nested.items():
        # Or it was told first that the caller is lost, and that nobody waits for its value.
        ends = set(ROWS[name].ends.values()) if fault == "cut" else set()
        told_there = {EvictedError, CallCancelledError, asyncio.CancelledError, *ends}
        assert failure.kind in map(kind_of, told_there), f"{name} in a served call: {failure}"
    again, called = job.run(table.calls_again, on=[victim])[victim]
    for name, failure in again.items():
        assert failure.kind == kind_of(ROWS[name].refused), f"{name} again: {failure}"
    for name, failure in called.items():
        assert failure.kind == kind_of(EvictedError), f"a call of {name}: {failure}"
        assert f"gave up '{victim}'" in failure.message
    lost = job.run(table.losses, on=[victim])[victim]
    assert lost.count((victim, "EvictedError")) == 1, lost


def kind_of(error: type[BaseException] | None) -> str:
    return "" if error is None else name_of_class(error)


def goes_on(job: HostileJob, victim: str) -> None:
    """Checks that the others work together, hold nothing of the victim, and end."""
    for name, lost in job.run(table.losses).items():
        assert lost == [(victim, "WorkerLostError")], f"{name} was told {lost}"
    for called in job.run(table.go_on, job.living).values():
        assert called == job.living

    def held() -> list[str]:
        return [
            f"{name}: {count} {kind}"
            for name, counts in job.run(held_references).items()
            for kind, count in counts.items()
            if count and kind in ("pending calls", "autograd contexts")
        ]

    leaks.wait_until_gone("references", held)
    job.run(table.begin_to_leave)
    for name, failure in job.run(table.has_left).items():
        assert not failure.kind, f"{name}: {failure}"
