"""Asks a cluster for what its users rely on, in one process and in many, by one suite."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from telegrad import rpc
from telegrad.errors import NotInitializedError, WorkerLostError
from telegrad.rendezvous import JoinedJob
from telegrad.rpc.seams import current_agent
from telegrad.testing import Cluster, FaultPlan, faulty_network
from tests.testing import late_module
from tests.transport.workers import Authority


def my_rank() -> int:
    return rpc.get_worker_info().rank


def process_id() -> int:
    return os.getpid()


def square(x: float) -> float:
    return x * x


def ask_next(x: float) -> float:
    """Calls the next worker, which squares."""
    n = len(rpc.get_worker_infos())
    return rpc.rpc_sync((my_rank() + 1) % n, square, (x,))


async def ask_next_async(x: float) -> float:
    """The same without blocking."""
    return await rpc.rpc_async((my_rank() + 1) % 2, square, (x,))


def scale(array: np.ndarray[tuple[int], np.dtype[np.float64]], factor: float) -> object:
    return array * factor


def fail_on_one() -> None:
    if my_rank() == 1:
        raise ValueError("one is not prime")


RELEASE = threading.Event()
STARTED = threading.Event()


def wait_for_release() -> None:
    STARTED.set()
    RELEASE.wait()


def calls_waiting() -> bool:
    """Returns whether `wait_for_release` was called here."""
    return STARTED.wait(10.0)


def wait_for_worker1() -> str:
    """Returns the reason that the call to worker1 ended with."""
    try:
        rpc.rpc_sync("worker1", wait_for_release, timeout=30.0)
    except WorkerLostError as error:
        return error.worker
    return "it answered"


@pytest.fixture(scope="module", autouse=True)
def two_processes() -> Iterator[Cluster]:
    """Two processes for all tests, of which none ends one."""
    with Cluster(2, processes=True) as made:
        yield made


@pytest.fixture(params=["agents", "processes"])
def cluster(request: pytest.FixtureRequest, two_processes: Cluster) -> Iterator[Cluster]:
    if request.param == "processes":
        yield two_processes
        return
    with Cluster(2) as made:
        yield made


def test_a_function_sees_its_own_worker(cluster: Cluster) -> None:
    assert cluster.run(ask_next, 3.0) == [9.0, 9.0]
    assert cluster.run(my_rank) == [0, 1]
    assert cluster.call(1, my_rank) == 1


def test_async_functions_run_too(cluster: Cluster) -> None:
    assert cluster.run(ask_next_async, 3.0) == [9.0, 9.0]  # type: ignore[comparison-overlap]


def test_arrays_go_in_and_out(cluster: Cluster) -> None:
    assert np.array_equal(cluster.call(0, scale, np.arange(3.0), 2.0), [0.0, 2.0, 4.0])  # type: ignore[arg-type]


def test_arguments_may_be_of_classes_that_only_the_functions_module_imports(
    cluster: Cluster,
) -> None:
    assert cluster.call(1, late_module.rate_of, late_module.Settings(0.5)) == 0.5


def test_an_exception_says_whose_it_is(cluster: Cluster) -> None:
    with pytest.raises(ValueError, match="one is not prime") as caught:
        cluster.run(fail_on_one)
    assert "raised on worker1 of the cluster" in caught.value.__notes__


@pytest.mark.long
@pytest.mark.parametrize("processes", [False, True], ids=["agents", "processes"])
def test_a_killed_worker_is_lost_to_the_others(processes: bool) -> None:
    RELEASE.clear()
    STARTED.clear()
    result: list[str] = []
    with Cluster(3, processes=processes) as cluster:
        asking = threading.Thread(target=lambda: result.append(cluster.call(0, wait_for_worker1)))
        asking.start()
        assert cluster.call(1, calls_waiting)
        cluster.kill(1)
        asking.join()
        RELEASE.set()  # in one process the killed worker's thread is still there
        assert result == ["worker1"]
        assert cluster.living == [0, 2]
        assert cluster.run(my_rank) == [0, 2]


def test_killed_workers_are_not_called() -> None:
    with Cluster(2) as cluster:
        cluster.kill(1)
        with pytest.raises(ValueError, match="no worker of rank 1 lives"):
            cluster.call(1, my_rank)


def test_a_function_that_never_ends_is_named() -> None:
    with pytest.raises(TimeoutError, match="wait_for_release still runs on worker0 after 0.2 s"):
        with Cluster(1, processes=True, limit=0.2) as cluster:
            cluster.call(0, wait_for_release)


def test_processes_are_processes(cluster: Cluster) -> None:
    found = set(cluster.run(process_id))
    assert found == {os.getpid()} or (len(found) == 2 and os.getpid() not in found)


def seed_of_my_network() -> int:
    return faulty_network().plan.seed


@pytest.mark.long
@pytest.mark.parametrize("processes", [False, True], ids=["agents", "processes"])
def test_a_worker_finds_its_faulty_network(processes: bool) -> None:
    with Cluster(2, processes=processes, faults=FaultPlan(seed=5)) as cluster:
        assert cluster.run(seed_of_my_network) == [5, 5]
        assert cluster.run(ask_next, 3.0) == [9.0, 9.0]
        if processes:
            with pytest.raises(RuntimeError, match="testing.faulty_network"):
                _ = cluster.network
        else:
            assert cluster.network.statistics().messages > 0


def test_a_sound_network_is_no_faulty_one() -> None:
    with Cluster(1) as cluster:
        with pytest.raises(RuntimeError, match="faults=..."):
            _ = cluster.network
        with pytest.raises(NotInitializedError, match="FaultyNetwork does not run"):
            cluster.call(0, seed_of_my_network)


def test_an_error_over_a_faulty_network_says_the_seed() -> None:
    with Cluster(2, faults=FaultPlan(seed=77)) as cluster:
        with pytest.raises(ValueError) as caught:
            cluster.run(fail_on_one)
        assert "FaultPlan(seed=77)" in caught.value.__notes__[-1]


@pytest.mark.long
def test_a_cluster_of_none_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one worker"):
        Cluster(0)


@pytest.mark.parametrize(
    "faults",
    [None, FaultPlan(delay=0.05)],
    ids=["sound", "faulty"],
)
@pytest.mark.long  # tests/launch/test_certs.py has a whole job with certificates in make test
def test_processes_with_certificates(tmp_path: Path, faults: FaultPlan | None) -> None:
    """Also over a faulty network they show and demand what the options say."""
    names = ("coordinator", "worker0", "worker1")
    options = rpc.RpcOptions(tls=Authority(tmp_path).options(*names), timeout=30.0)
    with Cluster(2, processes=True, options=options, faults=faults) as cluster:
        assert cluster.run(ask_next, 3.0) == [9.0, 9.0]
        assert cluster.call(0, coordinator_endpoint).startswith("grpcs://")


def coordinator_endpoint() -> str:
    return current_agent().attachments[JoinedJob].coordinator_endpoint
