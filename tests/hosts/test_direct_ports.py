"""Calls and arrays between hosts over direct ports, and over gRPC where these are out of reach."""

from __future__ import annotations

import numpy as np
import pytest

from telegrad import rpc
from telegrad.rpc.seams import current_agent
from telegrad.testing import leaks
from telegrad.types import Array
from tests.conftest import Programs
from tests.faults.hostile.hostile_job import HostileJob
from tests.faults.remote_code import LIMIT
from tests.hosts import traffic
from tests.hosts.conftest import MakeHosts
from tests.hosts.links.test_partitions import MIB, PATIENT, begin, ended_well, progress

NAMES = ("worker0", "worker1")
DIRECT_PORT = 29600


def doubled(array: Array) -> Array:
    return 2 * array


def echo(to: str, nbytes: int) -> bool:
    array = np.arange(nbytes // 8)
    return bool((rpc.rpc_sync(to, doubled, (array,)) == 2 * array).all())


def transports() -> list[str]:
    """Returns the schemes of the streams that are up."""
    carriers = [each.stream.carrier for each in traffic.connections().values() if each.stream]
    schemes = [each.description.partition(" ")[0].partition(":")[0] for each in carriers]
    pairs = zip(schemes, carriers, strict=True)
    return sorted(scheme.removesuffix("s") + "s" * bool(each.binding) for scheme, each in pairs)


def wait_for_transport(scheme: str) -> int:
    """Waits until the one stream is over such a transport; returns the lanes so far."""
    leaks.wait_until_gone(
        "other transport", lambda: [] if transports() == [scheme] else transports(), LIMIT
    )
    return current_agent().exchange.statistics().lanes


def decisions() -> list[str]:
    """Returns why streams stay on gRPC; empty while a socket is still being dialled."""
    known = traffic.connections().values()
    return [each.direct.kept for each in known if each.direct.kept]


def wait_for_decision() -> str:
    """Waits until the one stream is found to stay on gRPC; returns why."""
    leaks.wait_until_gone("attempt", lambda: [] if decisions() else ["dialling"], LIMIT)
    return decisions()[0]


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["tcps", pytest.param("tcp", marks=pytest.mark.long)])
def test_they_are_used_where_nothing_is_said(
    make_hosts: MakeHosts, programs: Programs, scheme: str
) -> None:
    """Encrypted where there is a token, and not in an insecure job."""
    hosts = make_hosts(2)
    options: dict[str, dict[str, object]] | None = {} if scheme == "tcps" else None
    with HostileJob(programs, NAMES, lost_after=PATIENT, bridge=hosts, options=options) as job:
        job.run(traffic.meet)
        assert set(job.run(wait_for_transport, scheme).values()) == {0}
        assert job.run(echo, "worker1", 4 * MIB, on=["worker0"]) == {"worker0": True}
        assert job.run(echo, "worker0", 4 * MIB, on=["worker1"]) == {"worker1": True}
        assert set(job.run(wait_for_transport, scheme).values()) == {1}


@pytest.mark.long
@pytest.mark.parametrize("off", ["worker0", "worker1"])
def test_where_one_has_none_calls_go_over_grpc(
    make_hosts: MakeHosts, programs: Programs, off: str
) -> None:
    hosts = make_hosts(2)
    options = {off: {"direct": False}}
    with HostileJob(programs, NAMES, lost_after=PATIENT, bridge=hosts, options=options) as job:
        before = begin(job, [("worker0", "worker1")], 4 * MIB)
        progress(job, 2, before)
        assert set(job.run(transports)["worker0"]) == {"grpcs"}
        ended_well(job)


@pytest.mark.long
def test_a_firewall_before_them_delays_nothing(make_hosts: MakeHosts, programs: Programs) -> None:
    """It drops what it does not let in, without a word, and arrays are there before that is known."""
    hosts = make_hosts(2)
    for r in range(2):
        hosts.let_nothing_in(r, DIRECT_PORT)
    options = {name: {"direct": f"{DIRECT_PORT}"} for name in NAMES}
    with HostileJob(programs, NAMES, lost_after=PATIENT, bridge=hosts, options=options) as job:
        job.run(decisions)  # imports what they call
        assert job.run(echo, "worker1", 4 * MIB, on=["worker0"]) == {"worker0": True}
        assert job.run(echo, "worker0", 4 * MIB, on=["worker1"]) == {"worker1": True}
        assert not any(job.run(decisions).values())
        job.run(wait_for_transport, "grpcs")
        dialler = "worker0" if _dials(job, "worker0") else "worker1"
        [why] = job.run(wait_for_decision, on=[dialler]).values()
        assert f":{DIRECT_PORT} cannot be reached: does not answer" in why
        job.wait_for(dialler, "stay on gRPC: tcps://")
        job.run(wait_for_transport, "grpcs")
        assert job.run(echo, "worker1", 4 * MIB, on=["worker0"]) == {"worker0": True}


def dialled() -> bool:
    """Returns whether this worker has dialled its one stream."""
    [carriers] = traffic.connections().values()
    assert carriers.stream is not None
    return carriers.stream.dialled


def _dials(job: HostileJob, name: str) -> bool:
    return job.run(dialled, on=[name])[name]


@pytest.mark.long
def test_who_does_not_listen_uses_those_of_others(
    make_hosts: MakeHosts, programs: Programs
) -> None:
    hosts = make_hosts(2)
    hosts.let_nothing_in(1)
    options = {"worker1": {"port": None}}
    with HostileJob(programs, NAMES, lost_after=PATIENT, bridge=hosts, options=options) as job:
        job.run(transports)  # imports what they call
        job.run(wait_for_transport, "tcps")
        assert all(job.run(echo, "worker1", 4 * MIB, on=["worker0"]).values())
        assert set(job.run(wait_for_transport, "tcps").values()) == {1}
