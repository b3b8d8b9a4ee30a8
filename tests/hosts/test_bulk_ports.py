"""Big arrays between hosts over ports of their own, which break when the network does."""

from __future__ import annotations

import numpy as np
import pytest

from telegrad import rpc
from telegrad.rpc.seams import current_agent
from telegrad.types import Array
from tests.conftest import Programs
from tests.faults.hostile_job import HostileJob
from tests.hosts import traffic
from tests.hosts.conftest import MakeHosts
from tests.hosts.test_partitions import LOOK, MIB, PATIENT, begin, ended_well, progress

NAMES = ("worker0", "worker1")
OPEN = {name: {"bulk_port": 0} for name in NAMES}


def doubled(array: Array) -> Array:
    return 2 * array


def echo(to: str, nbytes: int) -> bool:
    array = np.arange(nbytes // 8)
    return bool((rpc.rpc_sync(to, doubled, (array,)) == 2 * array).all())


def sockets_and_lanes() -> tuple[int, int, bool]:
    """Returns the lanes over sockets, the lanes of any kind so far, and whether they are sealed.

    The bytes of a lane over a socket are sealed where its stream has a secret.
    """
    exchange = current_agent().exchange
    streams = [each.stream for each in exchange._peers.known.values()]
    sockets = sum(stream is not None and stream.lanes.by_socket for stream in streams)
    secret = all(stream is not None and stream.lanes.way.secret for stream in streams)
    return sockets, exchange.statistics().lanes, secret


@pytest.mark.long
def test_they_are_used_and_encrypted(make_hosts: MakeHosts, programs: Programs) -> None:
    hosts = make_hosts(2)
    with HostileJob(programs, NAMES, lost_after=PATIENT, bridge=hosts, options=OPEN) as job:
        job.run(sockets_and_lanes)  # imports what they call
        assert job.run(echo, "worker1", 4 * MIB, on=["worker0"]) == {"worker0": True}
        assert job.run(echo, "worker0", 4 * MIB, on=["worker1"]) == {"worker1": True}
        assert set(job.run(sockets_and_lanes).values()) == {(1, 1, True)}


@pytest.mark.long
def test_what_a_cut_breaks_goes_on_when_it_heals(make_hosts: MakeHosts, programs: Programs) -> None:
    hosts = make_hosts(2)
    with HostileJob(programs, NAMES, lost_after=PATIENT, bridge=hosts, options=OPEN) as job:
        before = begin(job, [("worker0", "worker1")], 4 * MIB)
        hosts.cut(1)
        job.run(traffic.wait_for_stall, [*before], LOOK)
        hosts.end_connections(1)
        hosts.heal(1)
        progress(job, 2, progress(job, 0, before))
        ended_well(job)
        assert not any(job.run(traffic.losses).values())


@pytest.mark.long
def test_who_does_not_listen_uses_those_of_others(
    make_hosts: MakeHosts, programs: Programs
) -> None:
    hosts = make_hosts(2)
    hosts.let_nothing_in(1)
    options = {"worker0": {"bulk_port": 0}, "worker1": {"bulk_port": 0, "listen": False}}
    with HostileJob(programs, NAMES, lost_after=PATIENT, bridge=hosts, options=options) as job:
        job.run(sockets_and_lanes)
        assert all(job.run(echo, "worker1", 4 * MIB, on=["worker0"]).values())
        assert set(job.run(sockets_and_lanes).values()) == {(1, 1, True)}
