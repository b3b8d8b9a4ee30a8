"""`init_method="file:///path"`: in threads, in processes, with what an earlier job has left."""

from __future__ import annotations

import os
import socket
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from telegrad.errors import DuplicateNameError, RendezvousError, RendezvousTimeoutError
from telegrad.rendezvous import Coordinator, JoinedJob, parse_init_method
from telegrad.rendezvous.control import ControlLine
from telegrad.rendezvous.endpoint_source import Published
from telegrad.rendezvous.file import EndpointFile, published_text
from telegrad.transport import ConnectionLimits, Credentials, Exchange, GrpcTransport, Identity
from telegrad.types import WorkerInfo
from tests.conftest import Programs
from tests.patience import with_more_time
from tests.rendezvous.test_join import TOKEN, join_as
from tests.transport.workers import Recorder

LIMITS = ConnectionLimits()
PROGRAM = """
import sys
from telegrad import rpc

def double(x):
    return 2 * x

if __name__ == "__main__":
    rank = int(sys.argv[2])
    with rpc.init_rpc(f"w{rank}", rank=rank, world_size=2, init_method=sys.argv[1]):
        print("value", rpc.rpc_sync(1 - rank, double, (21,)))
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "job"


def join(
    path: Path,
    rank: int,
    world_size: int = 2,
    *,
    timeout: float = 20.0,
    job: str = "default",
    limits: ConnectionLimits = LIMITS,
) -> JoinedJob:
    address = parse_init_method(f"file://{path}?job={job}", rank=rank, world_size=world_size)
    return join_as(address, [GrpcTransport()], timeout=timeout, limits=limits)


def assemble(path: Path, pool: ThreadPoolExecutor, early: Future[JoinedJob] | None = None) -> None:
    """Lets both ranks join, rank 1 perhaps long before, and ends the job in order."""
    other = early or pool.submit(join, path, 1)
    first = join(path, 0)
    second = other.result(20)
    assert [member.info.name for member in first.members] == ["w0", "w1"]
    done = pool.submit(second.shutdown)
    first.shutdown()
    first.close()
    done.result(20)
    second.close()


def dead_endpoint() -> str:
    """An address at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"grpc://127.0.0.1:{probe.getsockname()[1]}"


def leave_stale(path: Path, endpoint: str) -> None:
    path.write_text(published_text(Published(endpoint, "process 1 on h at noon")))


def test_rank_0_says_where_it_is_and_takes_it_back(path: Path) -> None:
    path.touch()  # an empty file is one that nobody wrote yet
    with ThreadPoolExecutor(1) as pool:
        assemble(path, pool)
    assert not list(path.parent.iterdir())


def test_processes_meet(programs: Programs, path: Path) -> None:
    script = programs.script(PROGRAM)
    late = programs.start(["python", script, f"file://{path}", "1"])
    leave_stale(path, dead_endpoint())
    first = programs.start(["python", script, f"file://{path}", "0"])
    assert "value 42" in first.wait()
    assert "value 42" in late.wait()
    assert not path.exists()


@pytest.mark.parametrize("kind", ["nobody", "another job", "another token", "no telegrad"])
def test_a_stale_file_misleads_nobody(path: Path, kind: str) -> None:
    job = "other" if kind == "another job" else "default"
    token = b"the token of somebody else" if kind == "another token" else TOKEN
    coordinator = Coordinator([GrpcTransport()], job=job, token=token)
    endpoint = coordinator.start()[0]
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(2) as pool:
        if kind == "nobody":
            coordinator.close()
        elif kind == "no telegrad":
            endpoint = f"grpc://127.0.0.1:{server.getsockname()[1]}"
        leave_stale(path, endpoint)
        waiting = pool.submit(join, path, 1)
        if kind == "no telegrad":
            server.accept()[0].close()
            server.close()  # or the next to dial waits until it gives up
        assemble(path, pool, waiting)
    coordinator.close()


def test_a_worker_at_the_stale_address_is_no_coordinator(path: Path) -> None:
    """The kernel may give the port of a coordinator that is gone to an agent of the same job."""
    with ThreadPoolExecutor(2) as pool:
        identity = Identity("default", WorkerInfo("me", 0, 1))
        worker = Exchange(
            Credentials(identity=identity, token=TOKEN),
            transports=[GrpcTransport()],
            receiver=Recorder(),
        )
        leave_stale(path, worker.start()[0])

        def check(timeout: float) -> None:
            with pytest.raises(RendezvousTimeoutError, match="dialled, but me listens there now"):
                join(path, 1, timeout=timeout)

        with_more_time(check, 0.3, 3.0, 12.0)
        worker.close(1.0)
        assemble(path, pool)


def test_the_error_says_what_was_read_and_the_remedy(path: Path) -> None:
    with pytest.raises(RendezvousTimeoutError) as caught:
        join(path, 1, timeout=0.2)
    assert str(caught.value) == (
        f"'w1' (rank 1) did not reach the coordinator of job 'default' within 0.2 s; rank 0 has not "
        f"written {str(path)!r}; start it, and check that all workers see the same file"
    )
    assert caught.value.missing == (f"rank 0: has not written {str(path)!r}",)
    endpoint = dead_endpoint()
    leave_stale(path, endpoint)

    def check(timeout: float) -> None:
        with pytest.raises(RendezvousTimeoutError) as caught:
            join(path, 1, timeout=timeout)
        assert (
            f"{str(path)!r} says {endpoint} (written by process 1 on h at noon), last error there: "
            "connection refused; if an earlier job has left it, start rank 0 of this one, which "
            "writes it anew"
        ) in str(caught.value)

    with_more_time(check, 0.2, 3.0, 12.0)


def test_an_address_that_other_hosts_do_not_reach_is_told(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0, on another host, waits in vain as well, and takes the file away when it gives up."""
    endpoint = dead_endpoint()
    found = [Published(endpoint, "process 1 on h at noon")]
    monkeypatch.setattr(EndpointFile, "read", lambda _: found.pop() if found else None)
    with pytest.raises(RendezvousTimeoutError) as caught:
        join(path, 1, timeout=1.0)
    assert not found
    assert f"{str(path)!r} says {endpoint} (written by process 1 on h at noon)" in str(caught.value)
    assert "127.0.0.1 leads nowhere from other hosts than that of rank 0" in str(caught.value)
    assert "say RpcOptions(bind=...) with another address of it on rank 0" in str(caught.value)


def test_an_earlier_job_that_still_runs_is_named(path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(join, path, 1)
        first, second = join(path, 0), waiting.result(20)
        with pytest.raises(
            DuplicateNameError, match=r"another living worker is 'w1' \(rank 1\)"
        ) as caught:
            join(path, 1)
        assert "if it is of an earlier job that still runs" in caught.value.__notes__[0]
        second.close()
        first.close()


def test_bad_places(path: Path, tmp_path: Path) -> None:
    for rank in (0, 1):
        with pytest.raises(RendezvousError, match=r"there is no directory '.*no/where' here; make"):
            join(tmp_path / "no" / "where" / "job", rank)
        with pytest.raises(RendezvousError, match="it is no regular file"):
            join(tmp_path, rank)
    path.write_text("my diary")
    for rank in (0, 1):
        with pytest.raises(RendezvousError, match="something else than what rank 0 writes"):
            join(path, rank)
    assert path.read_text() == "my diary"


def test_a_file_that_may_not_be_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", refuse)  # the user that runs the tests may be root
    with pytest.raises(RendezvousError, match="Permission denied; name a path that rank 0 may wr"):
        join(path, 0)
    assert not list(path.parent.iterdir())


def test_only_a_file_of_ones_own_is_believed(path: Path, tmp_path: Path) -> None:
    """Another user's file could lead the job to that user's coordinator.

    A file store opens its file by the same function; its tests have more kinds of files.
    """
    file = EndpointFile(str(path))
    file.publish("grpc://a:1")
    assert file.read() is not None
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(RendezvousError, match="it is a symbolic link; name a file"):
        EndpointFile(str(link)).read()
    path.chmod(0o620)
    with pytest.raises(RendezvousError, match=r"it may be written by others \(mode 0620\)"):
        file.read()


def test_nobody_takes_away_the_file_of_a_newer_job(path: Path) -> None:
    old, new = EndpointFile(str(path)), EndpointFile(str(path))
    old.publish("grpc://a:1")
    new.publish("grpc://b:2")
    old.withdraw()
    found = new.read()
    assert found is not None
    assert found.endpoint == "grpc://b:2"
    new.withdraw()
    assert not list(path.parent.iterdir())


def test_a_worker_has_two_lines_to_the_coordinator_that_another_hosts(tmp_path: Path) -> None:
    """One that was cut off asks on a second line, while the first one is not given up yet."""
    joined = join(tmp_path / "init", 0, world_size=1, limits=ConnectionLimits(connections=1))
    with ExitStack() as stack:
        stack.callback(joined.close)
        lines = [
            stack.enter_context(
                closing(
                    ControlLine(job="default", rank=r, token=TOKEN, transports=[GrpcTransport()])
                )
            )
            for r in (1, 2)
        ]
        lines[0].connect(joined.coordinator_endpoint, 20.0)
        with pytest.raises(RendezvousError, match="has 2 connections, as many as it takes"):
            lines[1].connect(joined.coordinator_endpoint, 20.0)
