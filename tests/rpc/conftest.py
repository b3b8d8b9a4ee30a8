"""Jobs of several agents: in this process over either transport, or in processes of their own."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

from telegrad import rpc
from telegrad.rendezvous import Coordinator
from telegrad.transport import (
    GrpcTransport,
    InprocNetwork,
    InprocTransport,
    Transport,
    make_token,
)
from tests.rpc import remote_code
from tests.rpc.joining import join, join_and_serve

T = TypeVar("T")


class Job:
    """Some agents and their coordinator.

    Args:
        size: How many workers.
        options: For each of them.
        transports: Makes the transports of one worker.
        processes: Whether all but rank 0 are processes of their own; over gRPC.
    """

    def __init__(
        self,
        size: int,
        options: rpc.RpcOptions,
        transports: Callable[[], Sequence[Transport]],
        *,
        processes: bool = False,
    ) -> None:
        token = make_token()
        self.coordinator = Coordinator(transports(), job="test", token=token, world_size=size)
        endpoint = self.coordinator.start()[0]
        spawn = multiprocessing.get_context("spawn")
        here = 1 if processes else size
        self.processes = [
            spawn.Process(
                target=join_and_serve, args=(rank, size, endpoint, token, options), daemon=True
            )
            for rank in range(here, size)
        ]
        for process in self.processes:
            process.start()
        with ThreadPoolExecutor(here) as pool:
            self.agents = list(
                pool.map(
                    lambda rank: join(rank, size, endpoint, token, options, transports),
                    range(here),
                )
            )

    def on(self, rank: int, func: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Runs a verb with the agent of this rank as the ambient one."""
        with rpc.use_agent(self.agents[rank]):
            return func(*args, **kwargs)

    def shutdown(self) -> None:
        threads = [
            threading.Thread(target=agent.shutdown, kwargs={"timeout": 20.0})
            for agent in self.agents
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for process in self.processes:
            process.join(20.0)
            code = process.exitcode
            process.kill()
            process.join()
            assert code == 0, f"{process.name} ended with {code}"
        self.coordinator.close()


MakeJob = Callable[..., Job]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A module whose tests use nothing but the agent of rank 0 runs over processes too."""
    if "make_job" in metafunc.fixturenames:
        places = ["inproc", "grpc"]
        if getattr(metafunc.module, "OVER_PROCESSES_TOO", False):
            places.append("processes")
        metafunc.parametrize("make_job", places, indirect=True)


@pytest.fixture
def make_job(request: pytest.FixtureRequest) -> Iterator[MakeJob]:
    """Makes jobs: `make_job(3, timeout=5.0)`; they are shut down at the end."""
    jobs: list[Job] = []
    remote_code.gates.begin()
    network = InprocNetwork()

    def transports() -> list[Transport]:
        if request.param == "inproc":
            return [InprocTransport(network)]
        return [GrpcTransport()]

    def make(size: int, **options: Any) -> Job:
        chosen = rpc.RpcOptions(**{"timeout": 20.0, "init_timeout": 20.0, **options})
        job = Job(size, chosen, transports, processes=request.param == "processes")
        jobs.append(job)
        return job

    yield make
    remote_code.gates.open_all()
    for job in jobs:
        job.shutdown()


@pytest.fixture
def job(make_job: MakeJob) -> Job:
    """Three workers: w0, w1, w2."""
    return make_job(3)
