"""Pools that are far too small for what waits in them; everything ends."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from telegrad import rpc
from telegrad.errors import PoolExhaustedError
from telegrad.rpc import seams
from telegrad.rpc.seams import WaitProbes
from telegrad.testing.leaks import wait_until_gone
from tests.rpc import remote_code
from tests.rpc.conftest import MakeJob
from tests.rpc.deadlock import waiting_code
from tests.rpc.rest import refused

THREADS = 4


class Server:
    """A synchronous server as people write it: nobody goes on before all are there."""

    def __init__(self, trainers: int) -> None:
        self.all_here = threading.Barrier(trainers)

    def look_back_and_meet(self, trainer: str) -> str:
        """Asks its caller for something before it waits."""
        name = rpc.rpc_sync(trainer, remote_code.who)
        self.all_here.wait(30)
        return name


@pytest.mark.parametrize(
    ("count", "depth"), [(24, 10), pytest.param(64, 20, marks=pytest.mark.long)]
)
def test_many_chains_of_nested_calls_in_pools_of_4(
    make_job: MakeJob, count: int, depth: int
) -> None:
    # Not about liveness: 1,280 threads leave the loop little time where the machine has none.
    job = make_job(2, num_threads=THREADS, timeout=50.0, lost_after=50.0)
    path = ["w1", "w0"] * (depth // 2)
    with seams.use_agent(job.agents[0]):
        chains = [rpc.rpc_async("w0", remote_code.chain, (path,)) for _ in range(count)]
        assert rpc.wait_all(chains) == [["w0", *path]] * count
    assert [agent.attachments[WaitProbes].reported for agent in job.agents] == [0, 0]


def test_a_synchronous_server_whose_handlers_call_back_first(make_job: MakeJob) -> None:
    """They wait for each other in a way that telegrad cannot see, with one thread for all."""
    job = make_job(2, num_threads=1)
    server = job.on(0, rpc.RRef, Server(8))
    job.on(0, rpc.rpc_sync, "w1", waiting_code.put, ("the-server", server))
    with seams.use_agent(job.agents[1]):
        given: rpc.RRef[Server] = waiting_code.take("the-server")
        met = [given.rpc_async().look_back_and_meet("w1") for _ in range(8)]
        assert rpc.wait_all(met) == ["w1"] * 8
        given.release()


def test_a_recursion_without_an_end_is_an_error(
    make_job: MakeJob, most_threads: Callable[[int], None]
) -> None:
    """Each call waits for the next one; nothing waits for a thread until the deadline."""
    most_threads(10)
    job = make_job(2, num_threads=2)
    with pytest.raises(PoolExhaustedError, match="takes no further nested call"):
        job.on(0, rpc.rpc_sync, "w1", remote_code.chain, (["w0", "w1"] * 100,))
    wait_until_gone("threads", lambda: refused(*job.agents))  # they end when they have answered
