"""Unix sockets: their directories, their paths, and a job that opens no TCP port."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from telegrad import rpc
from telegrad.errors import WorkerLostError
from telegrad.rendezvous import JobAddress, JobPort
from telegrad.transport import GrpcTransport, LocalTransport, find_local
from telegrad.transport.sockets.unix_path import (
    LONGEST_PATH,
    check_directory,
    make_path,
    parent_of,
)
from telegrad.wire import Envelope
from tests.conftest import Programs
from tests.transport.workers import SECONDS, Floor, Worker


@pytest.fixture
def short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory whose path leaves room for a socket's, whatever pytest calls its own."""
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    path = Path("/tmp") / f"telegrad-test-{os.getpid()}"
    path.mkdir(mode=0o700)
    yield path
    for left in path.iterdir():
        (left / "s").unlink(missing_ok=True)
        left.rmdir()
    path.rmdir()


def worker(floor: Floor, name: str, parent: Path) -> Worker:
    return floor.worker(name, transport=LocalTransport(f"unix://{parent}"))


def socket_of(worker: Worker) -> Path:
    (endpoint,) = worker.endpoints
    return Path("/" + endpoint.removeprefix("local://").partition("/")[2])


@pytest.mark.parametrize("left", ["nothing", "the directory", "the socket"])
def test_what_a_crash_left_behind_is_nobody(local: Floor, short: Path, left: str) -> None:
    path = Path(make_path(str(short)))
    if left == "nothing":
        path.parent.rmdir()
    elif left == "the socket":
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
    gone = local.worker("gone")
    alice = worker(local, "alice", short)
    assert socket_of(alice).parent != path.parent
    host = gone.endpoints[0].removeprefix("local://").partition("/")[0]
    alice.exchange.connect(gone.info, [f"local://{host}{path}"])
    alice.exchange.post(gone.info, Envelope("test.message", 1))
    assert "nobody listens" in alice.recorder.wait_lost().reason


def test_a_link_to_a_directory_is_not_trusted(short: Path, tmp_path: Path) -> None:
    path = Path(make_path(str(short)))
    link = tmp_path / "link"
    link.symlink_to(path.parent)
    with pytest.raises(PermissionError, match="is no directory of this user's"):
        check_directory(str(link / "s"))


def test_a_path_that_is_too_long_is_told_in_words(tmp_path: Path) -> None:
    words = f"and the system takes {LONGEST_PATH}; name a shorter directory"
    with pytest.raises(ValueError, match=words):
        parent_of(f"unix:///{'d' * LONGEST_PATH}")
    longest = "/" + "d" * (LONGEST_PATH - len("//telegrad-12345678/s"))
    assert parent_of(f"unix://{longest}") == longest


@pytest.mark.parametrize("bind", ["unix:/tmp", "unix://tmp", "unix://", "tcp:///tmp"])
def test_what_names_no_directory_is_refused(bind: str) -> None:
    with pytest.raises(ValueError, match="write 'unix', or 'unix:///directory'"):
        parent_of(bind)


def test_a_directory_that_is_not_there(local: Floor) -> None:
    with pytest.raises(OSError, match="cannot make a Unix socket in '/no/such'"):
        worker(local, "worker", Path("/no/such"))


def job_port(rank: int, bind: str | None, *, port: int = 0) -> JobPort:
    """The port of rank 0, which hosts the coordinator, or of another rank, which finds it."""
    address = JobAddress(
        host="127.0.0.1", port=port, rank=rank, world_size=2, job="job", hosts_store=rank == 0
    )
    return JobPort(address, GrpcTransport, bind=bind, local=find_local(None))


def control(floor: Floor, name: str, port: JobPort) -> Worker:
    return floor.worker(name, transport=port.transport)


def test_a_coordinator_with_a_port_dials_a_line_without_one(local: Floor) -> None:
    """As that of `telegrad run` does when a connection broke: so it learns who is gone."""
    coordinator = control(local, "coordinator", job_port(0, None))
    port = job_port(1, "unix")
    port.found(coordinator.endpoints[0])
    line = control(local, "line", port)
    assert [each.partition("://")[0] for each in coordinator.endpoints] == ["grpc"]
    assert [each.partition("://")[0] for each in line.endpoints] == ["local"]
    coordinator.knows(line).post(line, 1)
    line.recorder.wait_envelopes(1)


@pytest.mark.parametrize(("bind", "scheme"), [(None, "local"), ("127.0.0.1", "grpc")])
def test_who_names_no_address_follows_a_coordinator_without_a_port(
    local: Floor, bind: str | None, scheme: str
) -> None:
    coordinator = control(local, "coordinator", job_port(0, "unix"))
    (endpoint,) = coordinator.endpoints
    assert endpoint.startswith("local://")
    port = job_port(1, bind)
    port.found(endpoint)
    line = control(local, "line", port)
    assert [each.partition("://")[0] for each in line.endpoints] == [scheme]
    assert line.exchange.introduce(endpoint, timeout=SECONDS) == coordinator.info


LISTENING = """
import os, sys
import numpy as np
from telegrad import rpc
from telegrad.launch import LocalWorkers

def listening():
    held = {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
            if os.path.lexists(f"/proc/self/fd/{fd}")}
    rows = [line.split() for name in ("tcp", "tcp6")
            for line in open(f"/proc/self/net/{name}").read().splitlines()[1:]]
    return sum(row[3] == "0A" and f"socket:[{row[9]}]" in held for row in rows)

def total(array):
    return float(array.sum()), listening()

def total_at(name):
    return rpc.rpc_sync(name, total, (np.ones(3),))
"""

PROGRAM = (
    LISTENING
    + """
rank, world_size, place, *binds = sys.argv[1:]
bind = binds[int(rank)] or None
rpc.init_rpc(rank=int(rank), world_size=int(world_size), init_method=f"file://{place}",
             options=rpc.RpcOptions(bind=bind, token="a token that only the tests use"))
for other in range(int(world_size)):
    print("total", rpc.rpc_sync(other, total, (np.ones(10**6),)), flush=True)
rpc.shutdown()
"""
)


@pytest.mark.long
@pytest.mark.parametrize("binds", [("unix", ""), ("unix", "127.0.0.1")])
def test_a_job_without_any_tcp_port(
    programs: Programs, short: Path, tmp_path: Path, binds: tuple[str, str]
) -> None:
    """Nor has the coordinator one. Who names no address follows it; who has a port calls as well."""
    script = programs.script(PROGRAM)
    named = [f"unix://{short}" if bind == "unix" else bind for bind in binds]
    ranks = [
        programs.start(
            ["python", script, str(rank), "2", tmp_path / "job", *named],
            env={"TMPDIR": str(short), "XDG_RUNTIME_DIR": ""},
        )
        for rank in range(2)
    ]
    ports = [0, 2 if binds[1] == "127.0.0.1" else 0]  # gRPC's, and a direct one
    for program in ranks:
        assert program.wait().splitlines() == [f"total (1000000.0, {each})" for each in ports]
    assert list(short.iterdir()) == []


LAUNCHED = (
    LISTENING
    + """
with rpc.init_rpc(options=rpc.RpcOptions(bind="unix")) as agent:
    other = 1 - agent.get_worker_info().rank
    print(rpc.rpc_sync(other, total, (np.ones(10**6),)), flush=True)
"""
)


@pytest.mark.long
def test_workers_of_a_launcher_need_no_port(programs: Programs) -> None:
    """The launcher has one, for the coordinator, and reaches them all the same."""
    script = programs.script(LAUNCHED)
    output = programs.run(["telegrad", "run", "--nproc-per-node", "2", script])
    assert sorted(output.splitlines()) == [f"[{rank}] (1000000.0, 0)" for rank in range(2)]


INVITING = (
    LISTENING
    + """
options = rpc.RpcOptions(bind="unix", token="a token that only the tests use")
if __name__ == "__main__":
    with rpc.init_rpc("me", options=options), LocalWorkers(2) as workers:
        for name in workers.names:
            print(rpc.rpc_sync(name, total, (np.ones(10**6),)), flush=True)
        first, second = workers.names
        print(rpc.rpc_sync(first, total_at, (second,)), flush=True)
        print(listening())
"""
)


@pytest.mark.long
def test_local_workers_need_no_port(programs: Programs) -> None:
    """They find the coordinator at the endpoint in their invitation, which is of this host."""
    output = programs.run(["python", programs.script(INVITING)], preload=[])
    assert output.splitlines() == ["(1000000.0, 0)", "(1000000.0, 0)", "(3.0, 0)", "0"]


def test_several_agents_of_one_process(short: Path, tmp_path: Path) -> None:
    options = rpc.RpcOptions(bind=f"unix://{short}", token="a token that only the tests use")

    def run(rank: int) -> list[str]:
        place = f"file://{tmp_path / 'job'}?rank={rank}&world_size=3"
        with rpc.Agent(f"agent{rank}", init_method=place, options=options) as agent:
            return [agent.rpc_sync(other, who) for other in range(3)]

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(run, range(3))) == 3 * [["agent0", "agent1", "agent2"]]
    assert list(short.iterdir()) == []


def who() -> str:
    return rpc.get_worker_info().name


def test_a_killed_worker_leaves_its_sockets_and_harms_nobody(
    programs: Programs, short: Path, tmp_path: Path
) -> None:
    serve = PROGRAM.replace("for other in", "import signal; signal.pause()\nfor other in")
    script, bind, place = programs.script(serve), f"unix://{short}", tmp_path / "job"
    options = rpc.RpcOptions(bind=bind, token="a token that only the tests use")
    command: list[str | Path] = ["python", script, "1", "2", place, "", bind]

    def joined() -> rpc.Agent:
        return rpc.init_rpc(
            "host", rank=0, world_size=2, init_method=f"file://{place}", options=options
        )

    first = programs.start(command)
    joined()
    os.kill(first.process.pid, signal.SIGKILL)
    with pytest.raises(WorkerLostError):
        rpc.rpc_sync(1, os.getpid)
    rpc.shutdown(graceful=False)
    assert len(list(short.iterdir())) == 2  # one for other workers, one for the coordinator
    programs.start(command)
    assert len(joined().get_worker_infos()) == 2
    rpc.shutdown(graceful=False)
