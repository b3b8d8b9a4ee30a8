"""Pools that are far too small for what waits in them; everything ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from telegrad import rpc
from telegrad.errors import PoolExhaustedError
from telegrad.rpc import seams
from telegrad.rpc.seams import WaitProbes
from telegrad.testing.leaks import wait_until_gone
from tests.rpc import remote_code, waiting_code
from tests.rpc.conftest import MakeJob
from tests.rpc.rest import refused

THREADS = 4
TRAINERS = 5


class Server:
    """A synchronous parameter server as people write it: nobody goes on before all are there."""

    def __init__(self, trainers: int) -> None:
        self.turn = threading.Condition()
        self.trainers = trainers
        self.gradients: list[remote_code.FloatArray] = []
        self.weights = np.zeros(3)
        self.step = 0

    def push(self, gradient: remote_code.FloatArray) -> remote_code.FloatArray:
        with self.turn:
            step = self.step
            self.gradients.append(gradient)
            if len(self.gradients) == self.trainers:
                self.weights = self.weights - sum(self.gradients)
                self.gradients = []
                self.step += 1
                self.turn.notify_all()
            else:
                assert self.turn.wait_for(lambda: self.step > step, timeout=30)
            return self.weights

    def push_and_look_back(self, gradient: remote_code.FloatArray, trainer: str) -> str:
        """Asks its caller for something before it waits."""
        name = rpc.rpc_sync(trainer, remote_code.who)
        self.push(gradient)
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


def test_a_synchronous_server_with_fewer_threads_than_trainers(make_job: MakeJob) -> None:
    """Its handlers wait for each other in a way that telegrad cannot see."""
    job = make_job(TRAINERS + 1, num_threads=THREADS)
    server = job.on(0, rpc.RRef, Server(TRAINERS))
    steps = 3

    def train(r: int) -> list[float]:
        with seams.use_agent(job.agents[r]):
            given: rpc.RRef[Server] = waiting_code.take(f"server-of-w{r}")
            with given:
                return [float(given.rpc_sync().push(np.ones(3))[0]) for _ in range(steps)]

    for r in range(1, TRAINERS + 1):
        job.on(0, rpc.rpc_sync, r, waiting_code.put, (f"server-of-w{r}", server))
    with ThreadPoolExecutor(TRAINERS) as trainers:
        weights = list(trainers.map(train, range(1, TRAINERS + 1)))
    assert weights == [[-TRAINERS * (step + 1.0) for step in range(steps)]] * TRAINERS
    assert job.agents[0].attachments[WaitProbes].reported == 0


def test_a_synchronous_server_whose_handlers_call_back_first(make_job: MakeJob) -> None:
    job = make_job(2, num_threads=1)
    server = job.on(0, rpc.RRef, Server(8))
    job.on(0, rpc.rpc_sync, "w1", waiting_code.put, ("the-server", server))
    with seams.use_agent(job.agents[1]):
        given: rpc.RRef[Server] = waiting_code.take("the-server")
        pushes = [given.rpc_async().push_and_look_back(np.ones(3), "w1") for _ in range(8)]
        assert rpc.wait_all(pushes) == ["w1"] * 8
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
