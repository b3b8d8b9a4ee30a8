"""Pains of users: workers that die, come late, are slow, or cannot be reached."""

from __future__ import annotations

import os
import queue
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from telegrad import launch, rpc
from telegrad.errors import OwnerLostError, RendezvousTimeoutError, WorkerLostError
from telegrad.testing import Cluster
from telegrad.testing.leaks import wait_until_gone
from telegrad.transport import Carrier, Exchange, GrpcTransport
from tests.conftest import Programs, unused_port
from tests.pains import remote_code
from tests.pains.listeners import listeners
from tests.pains.remote_code import (
    LIMIT,
    TOKEN,
    are_held,
    ask_who,
    leave_twice,
    outcome,
    waits_in_every_way,
    who,
)
from tests.patience import with_more_time
from tests.repeated import repeated

pytestmark = pytest.mark.usefixtures("forked_processes")


@repeated
def test_pain_01_one_process_dies_and_the_rest_wait_for_ever(run: int) -> None:
    """SIGKILL in the middle of a call, a creation and a nested call, none of which has a deadline."""
    with Cluster(3, processes=True) as cluster, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(cluster.call, 0, waits_in_every_way, "worker1", "worker2")
        cluster.call(1, are_held, 3)
        cluster.kill(1)
        assert waiting.result() == [
            "WorkerLostError worker1",
            "OwnerLostError worker1",
            "WorkerLostError worker1",
        ]
        assert cluster.call(0, ask_who, "worker2") == "worker2"


@pytest.mark.usefixtures("alone")
def test_pain_02_init_fails_without_saying_who_is_missing() -> None:
    address = f"tcp://127.0.0.1:{unused_port()}"

    def wait_in_vain(limit: float) -> None:
        options = rpc.RpcOptions(init_timeout=limit)
        with pytest.raises(RendezvousTimeoutError, match="rank 1.*rank 2") as info:
            rpc.init_rpc(rank=0, world_size=3, init_method=address, options=options)
        assert [each.partition(":")[0] for each in info.value.missing] == ["rank 1", "rank 2"]

    with_more_time(wait_in_vain, 0.2, 2.0, 10.0)  # to start the coordinator and reach it


@pytest.mark.usefixtures("alone")
def test_pain_02_all_must_join_before_any_can_work() -> None:
    """With `start_when` those who are there begin; the others join later."""
    options = rpc.RpcOptions(start_when=1)
    job: dict[str, Any] = {
        "world_size": 3,
        "init_method": f"tcp://127.0.0.1:{unused_port()}",
        "options": options,
    }
    joined: queue.SimpleQueue[rpc.WorkerInfo] = queue.SimpleQueue()
    with rpc.init_rpc("first", rank=0, **job) as agent:
        assert [info.name for info in rpc.get_worker_infos()] == ["first"]
        assert agent.world_size == 3
        assert rpc.rpc_sync(0, who) == "first"
        rpc.on_join(joined.put)
        second = rpc.Agent("second", rank=1, **job)
        try:
            assert joined.get(timeout=LIMIT).name == "second"
            assert rpc.rpc_sync("second", who) == "second"
            assert second.rpc_sync("first", who) == "first"
        finally:
            second.shutdown(graceful=False)


@pytest.mark.usefixtures("alone")
def test_pain_03_probing_for_a_fast_transport_kills_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What cannot be used is skipped: here the endpoint that each worker names first is dead."""
    connect, dial = Exchange.connect, GrpcTransport.dial
    dead = f"grpc://127.0.0.1:{unused_port()}"
    dialled: list[str] = []

    def connect_at_last(self: Exchange, peer: rpc.WorkerInfo, endpoints: Sequence[str]) -> None:
        connect(self, peer, [dead, *endpoints])

    async def dial_and_tell(self: GrpcTransport, endpoint: str) -> Carrier:
        dialled.append(endpoint)
        return await dial(self, endpoint)

    monkeypatch.setattr(Exchange, "connect", connect_at_last)
    monkeypatch.setattr(GrpcTransport, "dial", dial_and_tell)
    address = f"tcp://127.0.0.1:{unused_port()}"

    def join(rank: int) -> rpc.Agent:
        return rpc.Agent(f"worker{rank}", rank=rank, world_size=2, init_method=address)

    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(join, 1)
        agents = [join(0), second.result()]
    try:
        for agent, other in zip(agents, reversed(agents), strict=True):
            assert agent.rpc_sync(other.get_worker_info(), who) == other.name
        assert dead in dialled
    finally:
        for agent in agents:
            agent.shutdown(graceful=False)


NEVER_READY = """
import sys
from telegrad import rpc
from telegrad.errors import RendezvousTimeoutError

rpc.shutdown()  # never initialised
try:
    rpc.init_rpc(
        rank=0, world_size=2, init_method=sys.argv[1], options=rpc.RpcOptions(init_timeout=0.2)
    )
except RendezvousTimeoutError:
    rpc.shutdown()  # half initialised
rpc.init_rpc()
print("ends")  # the interpreter's exit does the rest
"""


def test_pain_04_shutdown_hangs(programs: Programs) -> None:
    """Before init, after a failed one, twice, with a dead peer, at the interpreter's exit."""
    with Cluster(3) as cluster:
        cluster.kill(2)
        assert cluster.run(leave_twice) == ["left", "left"]
    script = programs.script(NEVER_READY)
    address = f"tcp://127.0.0.1:{unused_port()}"
    output = programs.run(["python", script, address], env={"TELEGRAD_TOKEN": TOKEN})
    assert output.splitlines() == ["ends"]


@pytest.mark.usefixtures("alone")
def test_pain_05_the_wrong_network_interface() -> None:
    """What is bound and what is dialled are two settings; nobody guesses by the host's name."""
    with pytest.raises(OSError, match=r"192\.0\.2\.1"):
        rpc.init_rpc(options=rpc.RpcOptions(bind="192.0.2.1"))
    options = rpc.RpcOptions(bind="127.0.0.2", advertise="127.0.0.2")
    with rpc.init_rpc(options=options), launch.LocalWorkers(1) as workers:
        assert rpc.rpc_sync(workers.names[0], ask_who, ("worker0",)) == "worker0"


@pytest.mark.usefixtures("alone")
def test_pain_06_containers_firewalls_and_many_ports() -> None:
    """One port, of the user's choice; what another worker asks rides on what was dialled from here."""
    port = unused_port()
    with rpc.init_rpc(options=rpc.RpcOptions(port=port)), launch.LocalWorkers(1) as workers:
        (name,) = workers.names
        assert rpc.rpc_sync(name, who) == name  # dialled from here; the next comes back over it
        assert rpc.rpc_sync(name, ask_who, ("worker0",)) == "worker0"
        assert port in {each.port for each in listeners()}
    wait_until_gone("ports", lambda: [each for each in listeners() if each.port == port])


@pytest.mark.usefixtures("alone")
@repeated
def test_pain_11_the_world_is_fixed(run: int) -> None:
    """Workers join a running job, one is killed, and another one takes up its name."""
    rpc.init_rpc("me")
    joined: queue.SimpleQueue[rpc.WorkerInfo] = queue.SimpleQueue()
    lost: queue.SimpleQueue[rpc.WorkerInfo] = queue.SimpleQueue()
    rpc.on_join(joined.put)
    rpc.on_loss(lambda worker, error: lost.put(worker))
    with launch.LocalWorkers(names=["ps"]):
        assert joined.get(timeout=LIMIT).name == "ps"
        first = rpc.get_worker_info("ps")
        process = rpc.rpc_sync("ps", remote_code.process_id)
        mine = rpc.remote("ps", remote_code.own_one).to_here()
        os.kill(process, 9)
        with pytest.raises(WorkerLostError):
            rpc.rpc_sync("ps", remote_code.hold)
        assert lost.get(timeout=LIMIT) == first
    with launch.LocalWorkers(names=["ps", "late"]):
        assert {joined.get(timeout=LIMIT).name for _ in range(2)} == {"ps", "late"}
        assert rpc.get_worker_info("ps").incarnation != first.incarnation
        assert rpc.rpc_sync("late", ask_who, ("ps",)) == "ps"
        with pytest.raises(OwnerLostError):  # what its predecessor held is not looked for in it
            mine.to_here()


@pytest.mark.long
def test_pain_28_slow_is_taken_for_dead() -> None:
    """A worker computes in pure Python for longer than the bound of silence, and is kept."""

    def work(lost_after: float) -> None:
        options = rpc.RpcOptions(lost_after=lost_after)
        with Cluster(2, processes=True, options=options) as cluster:
            found = cluster.call(0, busy_beside, "worker1", 4.0 * lost_after)
            assert found == ["worker1"] * 5

    with_more_time(work, 1.0, 4.0)


def busy_beside(to: str, seconds: float) -> list[str]:
    """Four threads that never wait, and a call of another one beside them."""
    busy = [rpc.rpc_async(to, remote_code.compute, (seconds,)) for _ in range(4)]
    return [outcome(wait) for wait in (lambda: rpc.rpc_sync(to, who), *(one.wait for one in busy))]


@pytest.mark.usefixtures("alone")
@repeated
def test_pain_37_a_lost_worker_is_made_again(run: int) -> None:
    """The loss is an exception of its own type, and the value is made anew where its maker lives."""
    rpc.init_rpc("me")
    with launch.LocalWorkers(names=["ps"]):
        model = rpc.remote("ps", remote_code.Ranges, (1,))
        process = rpc.rpc_sync("ps", remote_code.process_id)
        os.kill(process, 9)
        with pytest.raises(OwnerLostError) as info:
            model.to_here()
        assert info.value.worker == "ps"
    with launch.LocalWorkers(names=["ps"]):
        again = rpc.remote(info.value.worker, remote_code.Ranges, (1,))
        assert again.rpc_sync().add(np.ones(2)) == 3.0


def test_pain_27_two_servers_share_a_port_in_silence() -> None:
    """A busy port is an error that names it, also when its server would share it."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=str(port)):
            rpc.init_rpc(options=rpc.RpcOptions(port=port, token=TOKEN))
    assert not rpc.is_initialized()


@pytest.mark.usefixtures("alone")
def test_pain_27_a_proxy_of_the_shell_eats_local_traffic(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{unused_port()}")
    with rpc.init_rpc("me"), launch.LocalWorkers(1) as workers:
        assert rpc.rpc_sync(workers.names[0], ask_who, ("me",)) == "me"


def serve(name: str) -> None:
    rpc.publish(name, remote_code.Ranges(2))


def find_and_use(to: str, name: str) -> float:
    """Looks for it before it is there."""
    found = rpc.lookup(to, name, timeout=LIMIT)
    total: float = found.rpc_sync().add(np.ones(3))
    return total


def test_pain_38_ranks_in_place_of_roles() -> None:
    """A service is found by its name, by whoever comes first."""
    with Cluster(3) as cluster, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(cluster.call, 0, find_and_use, "worker1", "ranges")
        cluster.call(1, serve, "ranges")
        assert waiting.result() == 5.0
        assert cluster.call(2, find_and_use, "worker1", "ranges") == 5.0
