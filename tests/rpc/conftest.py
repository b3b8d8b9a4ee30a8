"""Jobs of several agents in this process, over the in-process transport and over gRPC."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

from telegrad import rpc
from telegrad.distributed import make_agent
from telegrad.rendezvous import Coordinator, JobAddress
from telegrad.transport import (
    GrpcTransport,
    InprocNetwork,
    InprocTransport,
    Transport,
    make_token,
)
from tests.rpc import remote_code

T = TypeVar("T")


class Job:
    """Some agents and their coordinator."""

    def __init__(
        self, size: int, options: rpc.RpcOptions, transports: Callable[[], Sequence[Transport]]
    ) -> None:
        token = make_token()
        self.coordinator = Coordinator(transports(), job="test", token=token, world_size=size)
        endpoint = self.coordinator.start()[0]

        def join(rank: int) -> rpc.Agent:
            address = JobAddress(
                host="test",
                port=0,
                rank=rank,
                world_size=size,
                job="test",
                hosts_store=False,
                endpoint=endpoint,
            )
            return make_agent(
                address,
                name=f"w{rank}",
                options=options,
                token=token,
                transports=transports(),
                control_transports=transports(),
            )

        with ThreadPoolExecutor(size) as pool:
            self.agents = list(pool.map(join, range(size)))

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
        self.coordinator.close()


MakeJob = Callable[..., Job]


@pytest.fixture(params=["inproc", "grpc"])
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
        job = Job(size, chosen, transports)
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
