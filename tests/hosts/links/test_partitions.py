"""Networks that are cut in the middle of everything, for less time than `lost_after` and for more."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from telegrad.errors import OwnerLostError, WorkerLostError
from telegrad.testing import leaks
from tests.conftest import Programs
from tests.faults.hostile import hostile_table as table
from tests.faults.hostile.hostile_job import HostileJob
from tests.faults.outcome import Failure, name_of_class
from tests.faults.silence import Stalls, check_silence
from tests.hosts import traffic
from tests.hosts.conftest import MakeHosts
from tests.hosts.namespaces import Hosts
from tests.hosts.traffic import KINDS

pytestmark = pytest.mark.long

NAMES = ("worker0", "worker1", "worker2")  # worker0 hosts the coordinator
MIB = 2**20
PATIENT, SHORT = 60.0, 2.0  # lost_after: longer than the cut by far, or much shorter
LOOK = 1.0  # seconds without a round that make a stall

Cut = Callable[[Hosts, int, int], None]


def blackholes(hosts: Hosts, r: int, s: int) -> None:
    hosts.blackhole(r, s)
    hosts.blackhole(s, r)


def heal_blackholes(hosts: Hosts, r: int, s: int) -> None:
    hosts.heal_blackhole(r, s)
    hosts.heal_blackhole(s, r)


CUTS: dict[str, tuple[Cut, Cut]] = {
    "link down": (lambda hosts, r, _: hosts.cut(r), lambda hosts, r, _: hosts.heal(r)),
    "blackholes": (blackholes, heal_blackholes),
    "blackhole there": (Hosts.blackhole, Hosts.heal_blackhole),
    "blackhole back": (
        lambda hosts, r, s: hosts.blackhole(s, r),
        lambda hosts, r, s: hosts.heal_blackhole(s, r),
    ),
}


def begin(job: HostileJob, pairs: list[tuple[str, str]], nbytes: int) -> dict[str, int]:
    """Begins every kind of traffic between pairs; returns the rounds when each has had two."""
    job.run(traffic.meet)
    for source, to in pairs:
        job.run(traffic.begin, [*KINDS], to, nbytes, on=[source])
        job.run(traffic.begin, ["reduce"], source, nbytes, on=[to])
    begun = {f"{source} {kind} {to}": 0 for source, to in pairs for kind in KINDS}
    return progress(job, 2, begun)


def progress(job: HostileJob, more: int, than: dict[str, int]) -> dict[str, int]:
    """Waits until each flow has had so many more rounds; returns the rounds."""
    found = job.run(traffic.wait_for_rounds, more, than)
    return {key: n for each in found.values() for key, n in each.items() if key in than}


def ended_well(job: HostileJob) -> None:
    """Ends all flows; each has checked that nothing was lost and nothing done twice."""
    for found in job.run(traffic.end).values():
        for key, failure in found.items():
            assert not failure.kind, f"{key}: {failure}"


@pytest.mark.parametrize("kind", CUTS)
@pytest.mark.parametrize("size", [2, 3], ids=["two hosts", "three hosts"])
@pytest.mark.parametrize("victim", [0, 1], ids=["coordinator's", "another"])
def test_after_a_short_cut_all_goes_on_and_nothing_is_lost_or_doubled(
    make_hosts: MakeHosts, programs: Programs, kind: str, size: int, victim: int
) -> None:
    cut, heal = CUTS[kind]
    hosts = make_hosts(size)
    pairs = (
        [("worker0", "worker1")] if size == 2 else [("worker0", "worker1"), ("worker1", "worker2")]
    )
    nbytes = 64 * MIB if size == 2 else 8 * MIB
    with HostileJob(programs, NAMES[:size], lost_after=PATIENT, bridge=hosts, options={}) as job:
        before = begin(job, pairs, nbytes)
        cut(hosts, victim, 1 - victim)
        stalled = [key for key in before if key.startswith("worker0 ")]
        job.run(traffic.wait_for_stall, stalled, LOOK)
        if size == 3 and (victim == 0 or kind != "link down"):  # the other pair is not concerned
            others = {key: n for key, n in before.items() if key.startswith("worker1 ")}
            progress(job, 2, progress(job, 0, others))
        heal(hosts, victim, 1 - victim)
        progress(job, 2, progress(job, 0, before))
        ended_well(job)
        assert not any(job.run(traffic.losses).values())


def check_lost(failure: Failure, peer: str) -> None:
    """Checks that an error says who is lost, by its type, its words and its attribute."""
    classes = [name_of_class(WorkerLostError), name_of_class(OwnerLostError)]
    assert failure.kind in classes, failure
    assert failure.fields["worker"] == peer, failure
    assert f"'{peer}'" in failure.message, failure


def check_all_lost(job: HostileJob, on: str, peer: str, stalls: Stalls) -> None:
    """Checks that all flows between two have failed on one of them, and how soon they knew."""
    for key, failure in job.run(traffic.failures, peer, on=[on])[on].items():
        check_lost(failure, peer)
        reason = failure.fields["reason"]
        assert failure.fields["reason"], key
        if "silent" in reason:  # else the other one, or the coordinator, knew it first
            check_silence(failure, SHORT, stalls)


@pytest.mark.parametrize("kind", list(CUTS)[1:])
@pytest.mark.parametrize("size", [2, 3], ids=["two hosts", "three hosts"])
def test_two_that_are_cut_off_for_long_lose_each_other(
    make_hosts: MakeHosts, programs: Programs, kind: str, size: int
) -> None:
    """With three hosts the third one, which has the coordinator, goes on with both."""
    cut, heal = CUTS[kind]
    hosts = make_hosts(size)
    first, second = size - 2, size - 1
    one, other = NAMES[first], NAMES[second]
    pairs = [(one, other)] + [("worker0", name) for name in NAMES[1:size] if size == 3]
    with (
        HostileJob(programs, NAMES[:size], lost_after=SHORT, bridge=hosts, options={}) as job,
        Stalls() as stalls,
    ):
        begin(job, pairs, 8 * MIB)
        cut(hosts, first, second)
        check_all_lost(job, one, other, stalls)
        check_all_lost(job, other, one, stalls)
        heal(hosts, first, second)
        for source, to in ((one, other), (other, one)):
            [failure] = job.run(traffic.calls, to, on=[source]).values()
            assert failure.kind == name_of_class(WorkerLostError), failure
        if size == 3:
            third = {f"worker0 {kind} {name}": 0 for name in (one, other) for kind in KINDS}
            progress(job, 2, progress(job, 0, third))
            for found in job.run(traffic.end).values():
                for key, failure in found.items():
                    assert bool(failure.kind) == ("worker0" not in key), f"{key}: {failure}"
            assert job.run(table.go_on, ["worker0", one], on=["worker0", one])
        for name, peer in ((one, other), (other, one)):
            told = job.run(traffic.losses, on=[name])[name]
            assert told == [(peer, "WorkerLostError")], told


@pytest.mark.parametrize("kind", ["blackholes", "blackhole there", "blackhole back"])
@pytest.mark.parametrize("victim", [0, 2], ids=["coordinator's", "another"])
def test_a_host_that_is_cut_off_from_all_is_lost_and_the_others_go_on(
    make_hosts: MakeHosts, programs: Programs, kind: str, victim: int
) -> None:
    """It loses them, too. It is evicted when it is back; whose coordinator it is, nobody can."""
    cut, heal = CUTS[kind]
    hosts = make_hosts(3)
    others = [r for r in range(3) if r != victim]
    one, other, lost = NAMES[others[0]], NAMES[others[1]], NAMES[victim]
    with (
        HostileJob(programs, NAMES, lost_after=SHORT, bridge=hosts, options={}) as job,
        Stalls() as stalls,
    ):
        begin(job, [(one, other), (one, lost), (lost, other)], 8 * MIB)
        for r in others:
            cut(hosts, victim, r)
        check_all_lost(job, one, lost, stalls)
        check_all_lost(job, other, lost, stalls)
        between = {f"{one} {each} {other}": 0 for each in KINDS}
        progress(job, 2, progress(job, 0, between))
        leaks.wait_until_gone(
            "flows", lambda: [] if all_failed(job, lost) else [f"of {lost}"], within=40.0
        )
        if victim == 0:  # one that had not, when it is reached again, would be evicted by it
            for failure in job.run(traffic.loss_of_coordinator, on=[one, other]).values():
                assert "the coordinator is lost" in failure.message, failure
        else:  # a coordinator that had not would be the one that was given up
            job.run(traffic.wait_until_dropped, lost, on=[NAMES[0]])
        for r in others:
            heal(hosts, victim, r)
        if victim != 0:
            evicted = job.run(traffic.wait_until_evicted, on=[lost])[lost]
            assert f"gave up '{lost}'" in evicted.message, evicted
        progress(job, 2, progress(job, 0, between))
        for name in (one, other):
            told = job.run(traffic.losses, on=[name])[name]
            assert told == [(lost, "WorkerLostError")], told
        job.living = [one, other]
        for name, found in job.run(traffic.end).items():
            for key, failure in found.items():
                assert bool(failure.kind) == (lost in key), f"{name}: {key}: {failure}"
        job.run(table.go_on, [one, other])


def all_failed(job: HostileJob, name: str) -> bool:
    """Tells whether all that a worker has begun has failed."""
    for peer in NAMES:
        if peer != name:
            job.run(traffic.failures, peer, on=[name])
    return True
