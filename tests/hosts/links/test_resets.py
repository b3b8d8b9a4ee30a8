"""Connections that are all reset every 50 ms, gRPC's and direct ones, under numbered calls.

Both workers stand behind proxies in front of both of their ports. A handshake over gRPC and the move
to a direct socket take a part of the 50 ms, so that resets come in the middle of moves, too.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from tests.conftest import Programs, unused_port
from tests.faults.hostile.hostile_job import HostileJob
from tests.hosts import traffic
from tests.hosts.links import numbered
from tests.hosts.links.tcp_proxy import Behaviour, TcpProxy, in_front_of
from tests.hosts.links.test_partitions import PATIENT

NAMES = ("worker0", "worker1")
MANY = 20_000
PAUSE = 0.05  # seconds between resets


@contextlib.contextmanager
def resetting(proxies: Sequence[TcpProxy]) -> Iterator[None]:
    """Resets all connections again and again."""
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(PAUSE):
            for proxy in proxies:
                proxy.reset_all()

    thread = threading.Thread(target=run, name="resets")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.long
@pytest.mark.parametrize(
    ("count", "for_ever"),
    [
        pytest.param(2_000, True, id="a few calls"),
        pytest.param(MANY, True, id="moves for ever", marks=pytest.mark.long),
        pytest.param(MANY, False, id="five breaks at most", marks=pytest.mark.long),
    ],
)
def test_each_numbered_call_runs_once(programs: Programs, count: int, for_ever: bool) -> None:
    """There and back; a part goes over direct sockets, of which many break."""
    ports = [unused_port() for _ in range(4)]
    inside = {"bind": "127.0.0.1", "advertise": "127.0.0.2", "apart": True}
    options = {
        NAMES[0]: {**inside, "direct": f"{ports[2]}-{ports[2]}"},
        NAMES[1]: {**inside, "port": ports[1], "direct": f"{ports[3]}-{ports[3]}"},
    }
    with contextlib.ExitStack() as stack:
        proxies = [stack.enter_context(in_front_of(port, Behaviour())) for port in ports]
        job = stack.enter_context(
            HostileJob(
                programs,
                NAMES,
                lost_after=PATIENT,
                options=options,
                host="127.0.0.2",
                port=ports[0],
                join=False,
            )
        )
        job.run(numbered.count_moves, for_ever)
        job.join(NAMES)
        job.run(traffic.meet)
        with resetting(proxies):
            for name, to, some in ((*NAMES, count), (*NAMES[::-1], count // 10)):
                job.start(name, numbered.flood, to, f"to {to}", some)
            ended = [job.answer(name) for name in NAMES]
        for name, some in zip(NAMES, (count // 10, count), strict=True):
            [found] = job.run(numbered.ran_times, f"to {name}", some, on=[name]).values()
            assert not found, f"these calls did not run once on {name}: {found}"
        assert [failures for failures, _ in ended] == [[], []]
        assert all(before["tcp"] for _, before in ended), ended
        if count == MANY and for_ever:  # else all five may come before a break
            moves = sum((Counter(each) for each in job.run(numbered.moves).values()), Counter())
            assert moves["broke"], f"no move of {moves} broke in its middle"
        assert not any(job.run(traffic.losses).values())
