"""Links that are slow or lossy, which is not the same as cut: nobody is given up for them."""

from __future__ import annotations

import pytest

from tests.conftest import Programs
from tests.faults.hostile.hostile_job import HostileJob
from tests.hosts import traffic
from tests.hosts.conftest import MakeHosts
from tests.hosts.links.test_partitions import (
    MIB,
    PATIENT,
    SHORT,
    begin,
    ended_well,
    progress,
)

pytestmark = pytest.mark.long

NAMES = ("worker0", "worker1", "worker2")


@pytest.mark.parametrize("kind", ["push", "fetch"])
@pytest.mark.parametrize(("rate", "nbytes"), [("20mbit", 32 * MIB), ("8mbit", 12 * MIB)])
def test_an_array_that_takes_several_times_lost_after(
    make_hosts: MakeHosts, programs: Programs, kind: str, rate: str, nbytes: int
) -> None:
    """It takes six times as long; small calls beside it are answered before it is there."""
    hosts = make_hosts(2)
    with HostileJob(programs, NAMES[:2], lost_after=SHORT, bridge=hosts, options={}) as job:
        job.run(traffic.meet)
        hosts.limit(1, rate)
        job.run(traffic.begin, [kind, "calls"], "worker1", nbytes, on=["worker0"])
        small, large = "worker0 calls worker1", f"worker0 {kind} worker1"
        found = progress(job, 5, {small: 0})
        found = job.run(traffic.rounds, on=["worker0"])["worker0"]
        assert found[large] == 0, found
        progress(job, 1, {large: 0})
        hosts.unlimit(1)
        ended_well(job)
        assert not any(job.run(traffic.losses).values())


def test_a_reduction_over_one_slow_link(make_hosts: MakeHosts, programs: Programs) -> None:
    hosts = make_hosts(3)
    with HostileJob(programs, NAMES, lost_after=SHORT, bridge=hosts, options={}) as job:
        job.run(traffic.meet)
        hosts.limit(2, "20mbit")
        assert set(job.run(traffic.reduces_over_all, 8 * MIB).values()) == {3.0}
        assert not any(job.run(traffic.losses).values())


def test_a_link_that_loses_one_packet_in_twenty(make_hosts: MakeHosts, programs: Programs) -> None:
    hosts = make_hosts(2)
    with HostileJob(programs, NAMES[:2], lost_after=PATIENT, bridge=hosts, options={}) as job:
        hosts.lose(1, 0.05)
        progress(job, 3, begin(job, [NAMES[:2]], MIB))
        ended_well(job)
        assert not any(job.run(traffic.losses).values())


def test_a_link_that_becomes_very_slow_for_longer_than_lost_after(
    make_hosts: MakeHosts, programs: Programs
) -> None:
    """At 512 kbit/s what is under way moves on all the same, and that is life enough."""
    hosts = make_hosts(2)
    with HostileJob(programs, NAMES[:2], lost_after=2 * SHORT, bridge=hosts, options={}) as job:
        job.run(traffic.meet)
        hosts.limit(1, "20mbit")
        job.run(traffic.begin, ["push", "calls"], "worker1", 4 * MIB, on=["worker0"])
        progress(job, 1, {"worker0 push worker1": 0})
        hosts.limit(1, "512kbit")
        calls = "worker0 calls worker1"
        progress(job, 12, progress(job, 0, {calls: 0}))
        hosts.unlimit(1)
        progress(job, 2, progress(job, 0, {calls: 0, "worker0 push worker1": 0}))
        ended_well(job)
        assert not any(job.run(traffic.losses).values())
