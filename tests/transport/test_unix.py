"""Unix sockets: their directories, their paths, and a job that opens no TCP port."""

from __future__ import annotations

import os
import signal
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from telegrad import rpc
from telegrad.errors import WorkerLostError
from telegrad.transport import GrpcTransport
from telegrad.transport.sockets.unix import (
    LONGEST_PATH,
    check_directory,
    connect,
    make_path,
    parent_of,
    path_of,
)
from telegrad.wire import Envelope
from tests.conftest import Programs
from tests.transport.workers import Floor, Worker

BIG = 3 * 2**20


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
    return floor.worker(name, transport=GrpcTransport().on_socket(f"unix://{parent}"))


def test_envelopes_and_lanes(grpc_floor: Floor, short: Path) -> None:
    alice, bob = worker(grpc_floor, "alice", short), worker(grpc_floor, "bob", short)
    alice.knows(bob)
    alice.exchange.post(bob.info, Envelope("test.message", 1, buffers=[b"x" * BIG]))
    (envelope,) = bob.recorder.wait_envelopes(1)
    assert len(envelope.buffers[0]) == BIG
    bob.post(alice, 2)
    alice.recorder.wait_envelopes(1)


def test_nobody_else_may_enter_and_the_end_removes_it(grpc_floor: Floor, short: Path) -> None:
    alice = worker(grpc_floor, "alice", short)
    path = Path(path_of(alice.endpoints[0]))
    assert path.is_socket()
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    alice.exchange.close(1.0)
    assert list(short.iterdir()) == []


def test_who_listens_at_a_port_is_reached_too(grpc_floor: Floor, short: Path) -> None:
    alice, bob = worker(grpc_floor, "alice", short), grpc_floor.worker("bob")
    alice.knows(bob).post(bob, 1)
    bob.recorder.wait_envelopes(1)
    carol = grpc_floor.worker("carol").knows(alice)
    carol.post(alice, 2)
    alice.recorder.wait_envelopes(1)


@pytest.mark.parametrize("left", ["nothing", "the directory", "the socket"])
def test_what_a_crash_left_behind_is_nobody(grpc_floor: Floor, short: Path, left: str) -> None:
    path = Path(make_path(str(short)))
    if left == "nothing":
        path.parent.rmdir()
    elif left == "the socket":
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
    gone = grpc_floor.worker("gone")
    alice = worker(grpc_floor, "alice", short)
    assert Path(path_of(alice.endpoints[0])).parent != path.parent
    alice.exchange.connect(gone.info, [f"unix://{path}"])
    alice.exchange.post(gone.info, Envelope("test.message", 1))
    assert "nobody listens" in alice.recorder.wait_lost().reason


def test_a_directory_that_others_may_use_is_not_trusted(grpc_floor: Floor, short: Path) -> None:
    alice, bob = worker(grpc_floor, "alice", short), worker(grpc_floor, "bob", short)
    directory = Path(path_of(bob.endpoints[0])).parent
    directory.chmod(0o770)
    alice.knows(bob).post(bob, 1)
    assert f"others may use {directory} (mode 0770)" in alice.recorder.wait_lost().reason
    assert not bob.recorder.envelopes


def test_a_link_to_a_directory_is_not_trusted(short: Path, tmp_path: Path) -> None:
    path = Path(make_path(str(short)))
    link = tmp_path / "link"
    link.symlink_to(path.parent)
    with pytest.raises(PermissionError, match="is no directory of this user's"):
        check_directory(str(link / "s"))
    with pytest.raises(ConnectionRefusedError):
        connect(str(path))


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


def test_a_directory_that_is_not_there(grpc_floor: Floor) -> None:
    with pytest.raises(OSError, match="cannot make a Unix socket in '/no/such'"):
        grpc_floor.worker("worker", transport=GrpcTransport().on_socket("unix:///no/such"))


PROGRAM = """
import os, sys
import numpy as np
from telegrad import rpc

def listening():
    held = {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
            if os.path.lexists(f"/proc/self/fd/{fd}")}
    rows = [line.split() for name in ("tcp", "tcp6")
            for line in open(f"/proc/self/net/{name}").read().splitlines()[1:]]
    return [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in held]

def total(array):
    return float(array.sum()), listening()

rank = int(sys.argv[1])
bind = sys.argv[2] if rank == 0 or sys.argv[3] == "both" else None
rpc.init_rpc(rank=rank, world_size=2, init_method=f"file://{sys.argv[4]}",
             options=rpc.RpcOptions(bind=bind, token="a token that only the tests use"))
print("total", rpc.rpc_sync(1 - rank, total, (np.ones(10**6),)), flush=True)
rpc.shutdown()
"""


@pytest.mark.parametrize("who", ["both", "the host"])
def test_a_job_without_any_tcp_port(
    programs: Programs, short: Path, tmp_path: Path, who: str
) -> None:
    """The coordinator and the lines to it included; who names no bind follows the coordinator."""
    script = programs.script(PROGRAM)
    ranks = [
        programs.start(
            ["python", script, str(rank), f"unix://{short}", who, tmp_path / "job"],
            env={"TMPDIR": str(short), "XDG_RUNTIME_DIR": ""},
        )
        for rank in range(2)
    ]
    for program in ranks:
        assert program.wait().splitlines()[-1] == "total (1000000.0, [])"
    assert list(short.iterdir()) == []


def test_a_killed_worker_leaves_its_socket_and_harms_nobody(
    programs: Programs, short: Path, tmp_path: Path
) -> None:
    serve = PROGRAM.replace("print(", "import signal; rank and signal.pause(); print(")
    script = programs.script(serve)
    options = rpc.RpcOptions(bind=f"unix://{short}", token="a token that only the tests use")
    place = f"file://{tmp_path / 'job'}"
    command: list[str | Path] = [
        "python",
        script,
        "1",
        f"unix://{short}",
        "both",
        str(tmp_path / "job"),
    ]
    first = programs.start(command)
    rpc.init_rpc("host", rank=0, world_size=2, init_method=place, options=options)
    os.kill(first.process.pid, signal.SIGKILL)
    with pytest.raises(WorkerLostError):
        rpc.rpc_sync(1, os.getpid)
    rpc.shutdown(graceful=False)
    assert len(list(short.iterdir())) == 1
    programs.start(command)
    agent = rpc.init_rpc("host", rank=0, world_size=2, init_method=place, options=options)
    assert len(agent.get_worker_infos()) == 2
    rpc.shutdown(graceful=False)
