"""Workers that can only connect out: who calls whom, references, groups, late ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import pytest

from telegrad import collectives as dist
from telegrad import rpc
from telegrad.errors import UnreachableWorkerError
from telegrad.rendezvous import Coordinator, JobAddress, join_job
from telegrad.rpc import seams
from telegrad.testing import leaks
from telegrad.transport import (
    GrpcTransport,
    InprocNetwork,
    InprocTransport,
    Transport,
    make_token,
)
from tests.repeated import TRANSPORTS
from tests.rpc import remote_code
from tests.rpc.agent.joining import join

T = TypeVar("T")
HOST, FIRST, SECOND = 0, 1, 2  # of whom the first listens, and the others do not


class Job:
    """Workers of which some do not listen."""

    def __init__(self, kind: str, listens: tuple[bool, ...]) -> None:
        self._kind, self._network = kind, InprocNetwork()
        self.size = len(listens)
        self._token = make_token()
        self.coordinator = Coordinator(self._transports(), job="test", token=self._token)
        self._endpoint = self.coordinator.start()[0]
        with ThreadPoolExecutor(self.size) as pool:
            self.agents = list(pool.map(self.join, range(self.size), listens))

    def _transports(self) -> list[Transport]:
        return [InprocTransport(self._network) if self._kind == "inproc" else GrpcTransport()]

    def join(self, rank: int, listens: bool, *, late: bool = False) -> seams.AgentCore:
        options = rpc.RpcOptions(timeout=20.0, init_timeout=40.0, port=0 if listens else None)
        return join(
            rank, self.size, self._endpoint, self._token, options, self._transports, late=late
        )

    def on(self, rank: int, func: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        with seams.use_agent(self.agents[rank]):
            return func(*args, **kwargs)

    def close(self) -> None:
        with ThreadPoolExecutor(len(self.agents)) as pool:
            for ended in [pool.submit(agent.shutdown, timeout=20.0) for agent in self.agents]:
                ended.result()
        self.coordinator.close()


@pytest.fixture(params=TRANSPORTS)
def job(request: pytest.FixtureRequest) -> Iterator[Job]:
    """w0 listens, w1 and w2 do not."""
    made = Job(request.param, (True, False, False))
    yield made
    made.close()


def out_of_reach(callee: str, caller: str) -> str:
    return rf"worker '{callee}' .* cannot be reached: .* nor does this worker, '{caller}'"


def test_everybody_calls_who_listens_and_is_called_by_it(job: Job) -> None:
    for rank in (FIRST, SECOND):
        assert job.on(rank, rpc.rpc_sync, HOST, remote_code.who) == "w0"
        assert job.on(HOST, rpc.rpc_sync, rank, remote_code.who) == f"w{rank}"
    assert job.on(FIRST, rpc.rpc_sync, HOST, remote_code.chain, (["w2", "w0", "w1"],))


def test_two_that_do_not_listen_hear_so_at_once(job: Job) -> None:
    with pytest.raises(UnreachableWorkerError, match=out_of_reach("w2", "w1")):
        job.on(FIRST, rpc.rpc_sync, "w2", remote_code.who)
    future = job.on(SECOND, rpc.rpc_async, "w1", remote_code.who)
    assert future.done()
    with pytest.raises(UnreachableWorkerError, match=out_of_reach("w1", "w2")):
        future.wait()
    with pytest.raises(UnreachableWorkerError):
        job.on(SECOND, rpc.remote, "w1", list).to_here()
    assert [info.name for info in job.on(FIRST, rpc.get_worker_infos)] == ["w0", "w1", "w2"]


@rpc.idempotent
def may_run_twice() -> None:
    pass


def test_a_retry_does_not_wait_for_what_will_not_come(job: Job) -> None:
    with pytest.raises(UnreachableWorkerError):
        job.on(FIRST, rpc.rpc_sync, "w2", may_run_twice, retry=2)


def make_list() -> rpc.RRef[list[int]]:
    return rpc.RRef([1, 2, 3])


def takes_a_reference(rref: rpc.RRef[list[int]]) -> str:
    return repr(rref)


def test_a_reference_whose_owner_is_out_of_reach(job: Job) -> None:
    """w0 passes one of w1's on to w2, which can neither be called with it nor use it."""
    rref = job.on(HOST, rpc.rpc_sync, "w1", make_list)
    assert job.on(HOST, rref.to_here) == [1, 2, 3]
    with pytest.raises(UnreachableWorkerError, match=out_of_reach("w1", "w2")):
        job.on(HOST, rpc.rpc_sync, "w2", takes_a_reference, (rref,))
    held = job.on(SECOND, rpc.rpc_sync, "w0", keep_of, (rref.owner_name(),))
    with pytest.raises(UnreachableWorkerError, match=out_of_reach("w1", "w2")):
        job.on(SECOND, held.to_here)
    with pytest.raises(UnreachableWorkerError):
        job.on(SECOND, rpc.rpc_sync, "w0", takes_a_reference, (held,))
    owner = job.agents[FIRST]
    assert job.on(HOST, rref.to_here) == [1, 2, 3]  # of use there as before
    job.on(SECOND, held.release)
    job.on(HOST, rref.release)
    leaks.wait_until_gone("values", lambda: ["a value"] if owner.statistics().owned_rrefs else [])


def keep_of(owner: str) -> rpc.RRef[list[int]]:
    return rpc.rpc_sync(owner, make_list)


def joins_a_group() -> str:
    """Reduces over all workers; returns how that ended."""
    array = np.ones(4)
    try:
        dist.init_process_group(timeout=20.0)
        dist.all_reduce(array)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return str(array[0])


def test_a_group_over_two_of_them_ends_with_the_same_error_on_all(job: Job) -> None:
    with ThreadPoolExecutor(3) as pool:
        words = list(pool.map(lambda rank: job.on(rank, joins_a_group), range(3)))
    assert all("cannot be reached" in each for each in words), words
    assert any(each.startswith("UnreachableWorkerError") for each in words), words


@pytest.mark.parametrize("kind", TRANSPORTS)
def test_a_group_over_one_of_them_works(kind: str) -> None:
    job = Job(kind, (True, True, False))
    with ThreadPoolExecutor(3) as pool:
        words = list(pool.map(lambda rank: job.on(rank, joins_a_group), range(3)))
    assert words == ["3.0"] * 3
    job.close()


@pytest.mark.parametrize("kind", TRANSPORTS)
@pytest.mark.parametrize("listens", [True, False])
def test_who_comes_late(kind: str, listens: bool) -> None:
    job = Job(kind, (True, False))
    job.agents.append(job.join(2, listens, late=True))
    late = 2
    assert job.on(late, rpc.rpc_sync, "w0", remote_code.who) == "w0"
    assert job.on(HOST, rpc.rpc_sync, "w2", remote_code.who) == "w2"
    if listens:
        assert job.on(late, rpc.rpc_sync, "w1", remote_code.who) == "w1"
        assert job.on(FIRST, rpc.rpc_sync, "w2", remote_code.who) == "w2"
    else:
        with pytest.raises(UnreachableWorkerError):
            job.on(late, rpc.rpc_sync, "w1", remote_code.who)
    job.close()


def test_who_hosts_the_coordinator_has_to_listen() -> None:
    address = JobAddress(host="x", port=1, rank=0, world_size=2, job="j", hosts_store=True)
    with pytest.raises(ValueError, match="and so it has to listen; leave port=None"):
        join_job(
            address,
            name="w0",
            token=None,
            transports=[],
            publish=lambda *_: [],
            listener=None,  # type: ignore[arg-type]
            listens=False,
        )
