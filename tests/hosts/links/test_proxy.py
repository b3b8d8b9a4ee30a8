"""Connections that are slow, stand still, or break at any byte, between two workers of one machine.

Whoever dials the other passes a proxy: each is told to the other under an address that is the proxy's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from telegrad.testing import leaks
from tests.conftest import Programs, unused_port
from tests.faults.hostile.hostile_job import HostileJob
from tests.faults.silence import Stalls
from tests.hosts import traffic
from tests.hosts.links.tcp_proxy import Behaviour, TcpProxy, in_front_of
from tests.hosts.links.test_partitions import (
    LOOK,
    MIB,
    PATIENT,
    SHORT,
    begin,
    check_all_lost,
    ended_well,
    progress,
)

NAMES: tuple[str, str] = ("worker0", "worker1")
PAIR = [NAMES]


class Proxied:
    """A job of two, and the proxies in front of both."""

    def __init__(self, job: HostileJob, proxies: list[TcpProxy], behaviour: Behaviour) -> None:
        self.job, self.proxies, self.behaviour = job, proxies, behaviour

    @property
    def resets(self) -> int:
        return sum(proxy.resets for proxy in self.proxies)


@contextlib.contextmanager
def proxied(
    programs: Programs, behaviour: Behaviour, *, seed: int = 0, lost_after: float = PATIENT
) -> Iterator[Proxied]:
    """Starts two workers, each behind a proxy; the coordinator is behind that of the first."""
    ports = [unused_port(), unused_port()]
    inside: dict[str, Any] = {"bind": "127.0.0.1", "advertise": "127.0.0.2", "direct": "tcp"}
    options = {NAMES[0]: inside, NAMES[1]: {**inside, "port": ports[1]}}
    with contextlib.ExitStack() as stack:
        proxies = [stack.enter_context(in_front_of(port, behaviour, seed=seed)) for port in ports]
        job = stack.enter_context(
            HostileJob(
                programs,
                NAMES,
                lost_after=lost_after,
                options=options,
                host="127.0.0.2",
                port=ports[0],
            )
        )
        yield Proxied(job, proxies, behaviour)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 11))]
)
@pytest.mark.long
def test_connections_that_are_reset_at_any_byte(programs: Programs, seed: int) -> None:
    """Nothing is lost and nothing is done twice; the seed says after how many bytes each breaks."""
    with proxied(programs, Behaviour(), seed=seed) as made:
        before = begin(made.job, PAIR, MIB)
        made.behaviour.resets = 12
        for proxy in made.proxies:
            proxy.reset_all()
        leaks.wait_until_gone("resets", lambda: range(12 - made.resets), within=40.0)
        progress(made.job, 2, progress(made.job, 0, before))
        ended_well(made.job)
        assert not any(made.job.run(traffic.losses).values())


@pytest.mark.long
@pytest.mark.parametrize(
    "behaviour",
    [
        pytest.param(Behaviour(delay=0.05), id="100 ms there and back"),
        pytest.param(Behaviour(rate=MIB), id="1 MiB a second"),
        pytest.param(Behaviour(delay=0.05, resets=20), id="100 ms, and resets"),
    ],
)
def test_slow_connections(programs: Programs, behaviour: Behaviour) -> None:
    with proxied(programs, behaviour) as made:
        progress(made.job, 3, begin(made.job, PAIR, MIB))
        ended_well(made.job)
        assert not any(made.job.run(traffic.losses).values())


@pytest.mark.long
@pytest.mark.parametrize("half_open", [False, True])
def test_connections_that_stand_still_for_a_while(programs: Programs, half_open: bool) -> None:
    """Or are reset, and those dialled in their place are accepted, and nothing comes through."""
    with proxied(programs, Behaviour()) as made:
        before = begin(made.job, PAIR, MIB)
        made.behaviour.stalled = True
        if half_open:
            accepted = sum(proxy.accepted for proxy in made.proxies)
            for proxy in made.proxies:
                proxy.reset_all()
            leaks.wait_until_gone(
                "dials", lambda: range(accepted + 4 - sum(each.accepted for each in made.proxies))
            )
        made.job.run(traffic.wait_for_stall, [*before], LOOK)
        made.behaviour.stalled = False
        progress(made.job, 2, progress(made.job, 0, before))
        ended_well(made.job)
        assert not any(made.job.run(traffic.losses).values())


@pytest.mark.long
@pytest.mark.parametrize("half_open", [False, True])
def test_connections_that_stand_still_for_long(programs: Programs, half_open: bool) -> None:
    """Both lose each other within the bound: an open connection is no sign of life."""
    with proxied(programs, Behaviour(), lost_after=SHORT) as made, Stalls() as stalls:
        begin(made.job, PAIR, MIB)
        made.behaviour.stalled = True
        if half_open:
            for proxy in made.proxies:
                proxy.reset_all()
        for name, peer in (NAMES, NAMES[::-1]):
            check_all_lost(made.job, name, peer, stalls)
