"""Jobs of several agents: in this process over either transport, or in processes of their own."""

from __future__ import annotations

import dataclasses
import logging
import pickle
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import pytest

from telegrad import rpc
from telegrad.errors import DuplicateNameError
from telegrad.rendezvous import Coordinator
from telegrad.rpc import seams
from telegrad.rpc.call import delivery
from telegrad.rpc.call.pending_call import PendingCall
from telegrad.rpc.pool.deadlines import Deadline, Deadlines
from telegrad.rpc.pool.pool import Pool
from telegrad.testing import FaultPlan, FaultyNetwork, FaultyTransport, leaks
from telegrad.testing.fork_server import ForkedProcess
from telegrad.transport import (
    GrpcTransport,
    InprocNetwork,
    InprocTransport,
    LoopThread,
    Transport,
    make_token,
)
from tests.rpc import remote_code
from tests.rpc.agent.joining import SERVE, join
from tests.rpc.membership_world import World

logger = logging.getLogger(__name__)

T = TypeVar("T")

# What the network does in the places "with faults". What is lost at the end of all messages is
# missed at the next heartbeat, of which there are five in `lost_after`.
FAULTS = FaultPlan(drop=0.03, delay=0.1, duplicate=0.03, reorder=0.03, kill=0.05, most=6)
LOST_AFTER_FAULTS = 3.0
# A call that is due sooner has a deadline of its own from the beginning.
ALL_SECONDS = 1000.0
THE_END = "the end of a module"  # a gate


class Job:
    """Some agents and their coordinator.

    Args:
        size: How many workers.
        options: For each of them.
        transports: Makes the transports of one worker.
        processes: Whether all but rank 0 are processes of their own; over gRPC.
        gate: Where those wait before they shut down.
    """

    def __init__(
        self,
        size: int,
        options: rpc.RpcOptions,
        transports: Callable[[], Sequence[Transport]],
        *,
        processes: bool = False,
        gate: str | None = None,
    ) -> None:
        token = make_token()
        self.coordinator = Coordinator(
            transports(),
            job="test",
            token=token,
            world_size=size,
            lost_after=options.lost_after,
        )
        endpoint = self.coordinator.start()[0]
        here = 1 if processes else size
        self.processes = [
            _start(rank, size, endpoint, token, options, gate) for rank in range(here, size)
        ]
        self._join: Callable[[int], seams.AgentCore] = lambda rank: join(
            rank, size, endpoint, token, options, transports
        )
        with ThreadPoolExecutor(here) as pool:
            self.agents = list(pool.map(self._join, range(here)))

    def on(self, rank: int, func: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Runs a verb with the agent of this rank as the ambient one."""
        with seams.use_agent(self.agents[rank]):
            return func(*args, **kwargs)

    def rejoin(self, rank: int) -> seams.AgentCore:
        """Starts another incarnation of a worker that is gone."""
        self.agents[rank] = self._join(rank)
        return self.agents[rank]

    def visit(self) -> None:
        """Has another w0 join, which all others know when this returns."""

        def wait_for_the_name() -> list[str]:
            try:
                self.rejoin(0)
            except DuplicateNameError as error:  # the last one is still on its way out
                return [str(error)]
            return []

        leaks.wait_until_gone("workers", wait_for_the_name)
        for rank in range(1, len(self.processes) + 1):
            self.on(0, rpc.rpc_sync, rank, remote_code.who)  # who is called knows its caller

    def leave(self) -> None:
        """Ends w0 alone."""
        self.agents[0].shutdown(graceful=False)

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
            try:
                code = process.wait(20.0)
            finally:
                process.kill()
                process.wait()
            assert code == 0, f"{process.args!r} ended with {code}"
        self.coordinator.close()


def _start(*arguments: Any) -> ForkedProcess:
    """Starts a worker that joins and serves in a process of its own."""
    process = ForkedProcess([sys.executable, "-c", SERVE], stdin=subprocess.PIPE)
    assert process.stdin is not None
    with process.stdin as pipe:
        pipe.write(pickle.dumps(arguments))
    return process


MakeJob = Callable[..., Job]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Chooses the places in which a module's tests run: one of them in `make test`, all in the long run.

    What a transport promises is tested once, by the conformance suite of tests/transport; a verb
    is tested over one of them. In the long run a module whose tests use nothing but the agent of
    rank 0 runs over processes too, and one whose tests neither count messages nor look at the
    clock over a network that loses messages.
    """
    if "make_job" in metafunc.fixturenames:
        places = ["grpc"]
        if getattr(metafunc.module, "OVER_PROCESSES_TOO", False):
            places.append("processes")
        if getattr(metafunc.module, "OVER_FAULTS_TOO", False):
            places += ["inproc with faults", "grpc with faults"]
        longer = [pytest.param(place, marks=pytest.mark.long) for place in places]
        metafunc.parametrize("make_job", ["inproc", *longer], indirect=True)


@pytest.fixture(scope="module", autouse=True)
def processes(request: pytest.FixtureRequest) -> Iterator[Job | None]:
    """The job that the tests of a module over processes visit, if any of them runs now."""
    chosen = [
        getattr(item, "callspec", None)
        for item in request.session.items
        if item.path == request.path
    ]
    if not any(each and each.params.get("make_job") == "processes" for each in chosen):
        yield None
        return
    job = Job(3, options_of_job(), lambda: [GrpcTransport()], processes=True, gate=THE_END)
    job.leave()
    yield job
    job.visit()
    for rank in (1, 2):
        job.on(0, rpc.rpc_sync, rank, remote_code.release, (THE_END,))
    job.shutdown()


class Times:
    """Has the last moments of calls come when a test wants them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._due: list[partial[None]] = []
        at = Deadlines.at

        def noted(deadlines: Deadlines, when: float, callback: Callable[[], None]) -> Deadline:
            if isinstance(callback, partial):
                self._due.append(callback)
            return at(deadlines, when, callback)

        monkeypatch.setattr(Deadlines, "at", noted)
        monkeypatch.setattr(delivery, "SOON_SECONDS", ALL_SECONDS)

    def next(self, future: rpc.Future[Any]) -> PendingCall:
        """Does what is due next for the call of a future; returns the call."""
        for place, each in enumerate(self._due):
            if [call.future for call in each.args] == [future]:
                del self._due[place]
                each()
                call: PendingCall = each.args[0]
                return call
        raise AssertionError(f"nothing is due for {future}")


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Times:
    """The last moments of all calls, before any is made."""
    return Times(monkeypatch)


@pytest.fixture
def expire(times: Times) -> Callable[[rpc.Future[Any]], None]:
    """Ends a call as its deadline does, when the test wants it; before any is made."""

    def expire(future: rpc.Future[Any]) -> None:
        while not future.done():  # before the last moment the callee is asked where the call is
            times.next(future)

    return expire


@pytest.fixture
def most_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Says from how many threads on the pools of the agents that are made then refuse root calls."""
    return lambda count: monkeypatch.setattr(Pool.__init__, "__defaults__", (count,))


def options_of_job(**options: Any) -> rpc.RpcOptions:
    return rpc.RpcOptions(**{"timeout": 20.0, "init_timeout": 40.0, **options})


@pytest.fixture
def make_job(request: pytest.FixtureRequest, processes: Job | None) -> Iterator[MakeJob]:
    """Makes jobs: `make_job(3, timeout=5.0)`; they are shut down at the end."""
    ends: list[Callable[[], None]] = []
    remote_code.gates.begin()
    network = InprocNetwork()
    place, _, faults = request.param.partition(" with ")
    seed = zlib.crc32(request.node.nodeid.encode())  # of the test alone: the same at every run
    faulty = FaultyNetwork(dataclasses.replace(FAULTS, seed=seed))
    if faults:
        logger.warning("over %r", faulty)  # shown with a failure

    def transports() -> list[Transport]:
        inner = InprocTransport(network) if place == "inproc" else GrpcTransport()
        return [FaultyTransport(inner, faulty) if faults else inner]

    def make(size: int, **options: Any) -> Job:
        if processes is not None and place == "processes" and size == 3 and not options:
            processes.visit()
            ends.append(processes.leave)
            return processes
        if faults:
            options = {"lost_after": LOST_AFTER_FAULTS, **options}
        job = Job(size, options_of_job(**options), transports, processes=place == "processes")
        ends.append(job.shutdown)
        return job

    yield make
    remote_code.gates.open_all()
    for end in ends:
        end()


@pytest.fixture
def job(make_job: MakeJob) -> Job:
    """Three workers: w0, w1, w2."""
    return make_job(3)


@pytest.fixture
def worlds() -> Iterator[list[World]]:
    """Takes the jobs of a test whose workers come and go one by one; they are closed after it."""
    made: list[World] = []
    remote_code.gates.begin()
    yield made
    remote_code.gates.open_all()
    for world in made:
        world.close()


@pytest.fixture
def deadlines() -> Iterator[Deadlines]:
    """The moments of a loop thread of the test's own."""
    loop = LoopThread("test-loop").acquire()
    deadlines = Deadlines(loop)
    yield deadlines
    deadlines.close()
    loop.release()
