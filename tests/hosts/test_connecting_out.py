"""A host behind a firewall that lets nothing in: with `port=None`, and without it."""

from __future__ import annotations

import pytest

from telegrad.errors import UnreachableWorkerError, WorkerLostError
from tests.conftest import Programs
from tests.faults.hostile.hostile_job import HostileJob
from tests.faults.outcome import name_of_class
from tests.hosts import traffic
from tests.hosts.conftest import MakeHosts
from tests.hosts.links.test_partitions import LOOK, MIB, PATIENT, begin, ended_well, progress

NAMES = ("worker0", "worker1", "worker2")
OUT = {"port": None}


@pytest.mark.long
@pytest.mark.parametrize("size", [2, 3])
def test_it_is_called_over_the_connections_that_it_has_opened(
    make_hosts: MakeHosts, programs: Programs, size: int
) -> None:
    """Every kind of traffic, from either side, also arrays, whose lanes it opens."""
    hosts = make_hosts(size)
    hosts.let_nothing_in(1)
    options = {"worker1": OUT}
    with HostileJob(
        programs, NAMES[:size], lost_after=PATIENT, bridge=hosts, options=options
    ) as job:
        listening = [name for name in NAMES[:size] if name != "worker1"]
        pairs = [(name, "worker1") for name in listening]
        if size == 3:
            pairs += [("worker0", "worker2")]
        begin(job, pairs, 4 * MIB)
        ended_well(job)
        for name in listening:
            [failure] = job.run(traffic.calls, name, on=["worker1"]).values()
            assert failure.value == repr(name), failure


@pytest.mark.long
@pytest.mark.parametrize("firewall", [True, False])
def test_after_a_cut_it_connects_again(
    make_hosts: MakeHosts, programs: Programs, firewall: bool
) -> None:
    """The cut lasts until its connections have been given up, and new ones are dialled in vain."""
    hosts = make_hosts(2)
    if firewall:
        hosts.let_nothing_in(1)
    options = {"worker1": OUT} if firewall else {}
    with HostileJob(programs, NAMES[:2], lost_after=PATIENT, bridge=hosts, options=options) as job:
        before = begin(job, [("worker0", "worker1")], 4 * MIB)
        hosts.cut(1)
        job.run(traffic.wait_for_stall, [*before], LOOK)
        hosts.end_connections(1)
        hosts.heal(1)
        progress(job, 2, progress(job, 0, before))
        ended_well(job)
        assert not any(job.run(traffic.losses).values())


@pytest.mark.long
def test_two_of_them_are_told_that_they_cannot_call_each_other(
    make_hosts: MakeHosts, programs: Programs
) -> None:
    hosts = make_hosts(3)
    for r in (1, 2):
        hosts.let_nothing_in(r)
    options = {"worker1": OUT, "worker2": OUT}
    with HostileJob(programs, NAMES, lost_after=PATIENT, bridge=hosts, options=options) as job:
        job.run(traffic.losses)  # now all have imported what the others call there
        flows = {f"worker0 {kind} {to}": 0 for to in NAMES[1:] for kind in ("calls", "push")}
        for to in NAMES[1:]:
            job.run(traffic.begin, ["calls", "push"], to, MIB, on=["worker0"])
        progress(job, 2, flows)
        for caller, callee in (("worker1", "worker2"), ("worker2", "worker1")):
            [failure] = job.run(traffic.calls, callee, on=[caller]).values()
            failure.check(UnreachableWorkerError, f"nor does this worker, '{caller}'")
        ended_well(job)


@pytest.mark.long
@pytest.mark.parametrize("lost_after", [3.0, 10.0])  # shorter and longer than one dial
def test_without_being_told_it_is_lost_to_who_calls_it_first_and_the_error_says_what_to_do(
    make_hosts: MakeHosts, programs: Programs, lost_after: float
) -> None:
    """Where it has called the other one before, there is a connection, and all is well."""
    hosts = make_hosts(3)
    hosts.let_nothing_in(1)
    with HostileJob(programs, NAMES, lost_after=lost_after, bridge=hosts, options={}) as job:
        job.run(traffic.losses)  # now all have imported what the others call there
        [failure] = job.run(traffic.calls, "worker0", on=["worker1"]).values()
        assert failure.value == "'worker0'", failure
        [failure] = job.run(traffic.calls, "worker1", on=["worker0"]).values()
        assert failure.value == "'worker1'", failure
        [failure] = job.run(traffic.calls, "worker1", on=["worker2"]).values()
        assert failure.kind == name_of_class(WorkerLostError), failure
        for words in (
            "never connected; ",
            f"grpcs://{hosts.address(1)}:",
            "RpcOptions(port=None)",
        ):
            assert words in failure.message, failure
        for name in ("worker0", "worker2"):  # they go on with each other
            peer = "worker2" if name == "worker0" else "worker0"
            job.run(traffic.begin, ["calls", "push", "fetch"], peer, MIB, on=[name])
        progress(job, 2, {"worker0 calls worker2": 0, "worker2 calls worker0": 0})
        ended_well(job)
