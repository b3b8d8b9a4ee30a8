"""A job of two workers in processes of their own, and what is seen of the one that is attacked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from telegrad import rpc
from telegrad.testing import Cluster
from telegrad.types import WorkerInfo
from tests.break_in import remote_code
from tests.break_in.members import enlisted
from tests.faults.remote_code import process_id

TOKEN = "a token that only the tests use"
LIMITS = rpc.Limits(served_calls_per_peer=500, document_bytes=2_600_000)
# What the victim may take for one attack, besides what its row says: an interpreter's noise, what
# gRPC keeps for later, and the honest calls meanwhile.
NOISE_BYTES = 32 * 2**20


@dataclass
class Victim:
    """Worker 1 of a job; worker 0 is honest.

    Attributes:
        cluster: The job.
        pid: Of the victim.
        port: Where it listens.
        job: The job's name.
        coordinator: Where that listens.
        canary: A file that must not be there.
        allowed: Bytes that the attack may cost it, besides noise.
    """

    cluster: Cluster
    pid: int
    port: int
    job: str
    coordinator: str
    canary: Path
    allowed: int = 0

    def enlists(self, name: str) -> AbstractContextManager[WorkerInfo]:
        """Has the coordinator take one more member."""
        return enlisted(self.coordinator, self.job, TOKEN.encode(), name)

    def members(self) -> list[WorkerInfo]:
        """Whom the victim takes for living members."""
        found: list[WorkerInfo] = self.cluster.call(1, remote_code.members)
        return found

    def told(self, event: str, count: int = 1, **fields: object) -> list[dict[str, Any]]:
        """Waits for records in the victim's audit log."""
        found: list[dict[str, Any]] = self.cluster.call(
            1, remote_code.audit_records, event, count, fields
        )
        return found

    def forget_peak(self) -> int:
        """Begins to measure anew; returns the resident bytes."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")
        return self._status("VmRSS")

    def peak(self) -> int:
        """The most resident bytes since then."""
        return self._status("VmHWM")

    def _status(self, name: str) -> int:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith(name)).split()[1])

    def serves(self) -> bool:
        """Whether honest peers are answered, at once."""
        return self.cluster.run(remote_code.ask_the_other) == ["worker1", "worker0"]


@contextmanager
def job_of_two(directory: Path, **options: Any) -> Iterator[Victim]:
    canary = directory / "sang"
    os.environ["CANARY"] = str(canary)
    both = rpc.RpcOptions(token=TOKEN, timeout=20.0, limits=LIMITS, callables="project", **options)
    try:
        with Cluster(2, processes=True, options=both) as cluster:
            cluster.run(remote_code.ask_the_other)
            cluster.call(1, remote_code.listen_to_audit)
            _, pid = cluster.run(process_id)
            port = cluster.call(1, remote_code.grpc_port)
            name, coordinator = cluster.call(1, remote_code.job_name_and_coordinator)
            yield Victim(cluster, pid, port, name, coordinator, canary)
            for rank in (0, 1):  # an orderly end would wait for offenders that only went away
                cluster.kill(rank)
    finally:
        os.environ.pop("CANARY", None)


@contextmanager
def attacked(job: Victim) -> Iterator[Victim]:
    """The victim of one attack, which serves honest peers before and after, and has not sung."""
    job.cluster.call(1, remote_code.forget_audit)
    job.allowed = 0
    before = job.forget_peak()
    yield job
    assert job.serves()
    assert job.cluster.run(process_id)[1] == job.pid
    assert not job.canary.exists()
    assert job.peak() - before < NOISE_BYTES + job.allowed


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    with job_of_two(tmp_path_factory.mktemp("canary")) as job:
        yield job


@pytest.fixture
def victim(job: Victim) -> Iterator[Victim]:
    with attacked(job):
        yield job


@pytest.fixture
def encrypted_victim(tmp_path: Path) -> Iterator[Victim]:
    """A victim that other machines could reach, so that it speaks TLS."""
    options = {"bind": "0.0.0.0", "advertise": "127.0.0.1"}
    with job_of_two(tmp_path, **options) as job, attacked(job):
        yield job
