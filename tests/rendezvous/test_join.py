"""Joining a job: blocking, within a deadline, with nothing left behind on failure."""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from telegrad.errors import (
    AuthenticationError,
    DuplicateNameError,
    JoinCancelledError,
    RendezvousError,
    RendezvousTimeoutError,
    WorkerLostError,
)
from telegrad.rendezvous import (
    CallOff,
    Coordinator,
    JobAddress,
    JoinedJob,
    Member,
    join,
    join_job,
)
from telegrad.rendezvous.control import ControlLine
from telegrad.testing.leaks import wait_until_gone
from telegrad.transport import GrpcTransport, InprocNetwork, InprocTransport, SharedPort, Transport
from telegrad.types import WorkerInfo
from tests.patience import with_more_time

TOKEN = b"a token that only the tests use"


@dataclass
class Listener:
    """Records what a worker hears, and lets a test wait for it."""

    joined: list[str] = field(default_factory=list)
    lost: list[tuple[str, str]] = field(default_factory=list)
    coordinator: list[WorkerLostError] = field(default_factory=list)
    heard: threading.Event = field(default_factory=threading.Event)

    def on_member_joined(self, member: Member) -> None:
        self.joined.append(member.info.name)
        self.heard.set()

    def on_member_lost(
        self, info: WorkerInfo, reason: str, left: bool, fenced: bool = False
    ) -> None:
        self.lost.append((info.name, reason))
        self.heard.set()

    def on_coordinator_lost(self, error: WorkerLostError) -> None:
        self.coordinator.append(error)
        self.heard.set()

    def wait(self) -> None:
        assert self.heard.wait(20)
        self.heard.clear()


def join_as(
    address: JobAddress, transports: Sequence[Transport], *, name: str = "", **changed: Any
) -> JoinedJob:
    """Joins a job as the workers of these tests do, but for what is changed."""
    own = "" if address.late else f"w{address.rank}"
    given: dict[str, Any] = {
        "token": TOKEN,
        "publish": lambda *_: [],
        "listener": Listener(),
        "timeout": 20.0,
        **changed,
    }
    return join_job(address, name=name or own, transports=transports, **given)


class Job:
    """A coordinator and workers that join it, all in this process."""

    def __init__(self, kind: str = "inproc", world_size: int | None = None) -> None:
        self._network = InprocNetwork()
        self._kind = kind
        self.coordinator = Coordinator(
            self.transports(), job="test", token=TOKEN, world_size=world_size
        )
        self.endpoint = self.coordinator.start()[0]
        self.pool = ThreadPoolExecutor(8)
        self.joined: list[JoinedJob] = []

    def transports(self) -> list[Transport]:
        return [InprocTransport(self._network) if self._kind == "inproc" else GrpcTransport()]

    def join(
        self,
        rank: int,
        world_size: int = 2,
        *,
        job: str = "test",
        endpoint: str = "",
        late: bool = False,
        **changed: Any,
    ) -> JoinedJob:
        address = JobAddress(
            rank=rank,
            world_size=world_size,
            job=job,
            hosts_store=False,
            endpoint=endpoint or self.endpoint,
            late=late,
        )

        def publish(info: WorkerInfo, size: int) -> list[str]:
            return [f"x://{info.rank}/{size if late else info.incarnation}"]

        joined = join_as(address, self.transports(), **{"publish": publish, **changed})
        self.joined.append(joined)
        return joined

    def start(self, rank: int, **options: Any) -> Future[JoinedJob]:
        return self.pool.submit(self.join, rank, **options)

    def join_all(self, n: int, listeners: Sequence[Listener] = ()) -> list[JoinedJob]:
        futures = [
            self.start(r, world_size=n, listener=listeners[r] if listeners else Listener())
            for r in range(n)
        ]
        return [future.result(20) for future in futures]

    def close(self) -> None:
        for joined in self.joined:
            joined.close()
        self.coordinator.close()
        self.pool.shutdown()


@pytest.fixture(params=["inproc", "grpc"])
def job(request: pytest.FixtureRequest) -> Iterator[Job]:
    made = Job(request.param)
    yield made
    made.close()


@pytest.fixture
def quick() -> Iterator[Job]:
    made = Job("inproc")
    yield made
    made.close()


def test_all_get_the_same_members(job: Job) -> None:
    jobs = job.join_all(3)
    assert jobs[0].members == jobs[1].members == jobs[2].members
    assert [member.info.name for member in jobs[0].members] == ["w0", "w1", "w2"]
    assert [joined.info for joined in jobs] == [member.info for member in jobs[0].members]
    first, *others = sorted(joined.info.incarnation for joined in jobs)
    assert others == [first + 1, first + 2]
    assert jobs[0].members[1].endpoints == (f"x://1/{jobs[1].info.incarnation}",)
    assert jobs[0].living() == jobs[0].members
    jobs[0].store.set("k", b"v")
    assert jobs[2].store.get("k", timeout=10) == b"v"
    assert job.coordinator.statistics().members == 3


def test_shutdown_waits_for_all(job: Job) -> None:
    first, second = job.join_all(2)
    waiting = job.pool.submit(first.shutdown)
    with_more_time(lambda timeout: check_who_runs(first, timeout), 0.05, 1.0, 10.0)
    second.shutdown()
    assert waiting.result(20) is True
    assert job.coordinator.members == ()


def check_who_runs(waiting: JoinedJob, timeout: float) -> None:
    words = f"'w1' did not call shutdown within {timeout:g} s"
    with pytest.raises(RendezvousTimeoutError, match=words) as caught:
        waiting.shutdown(timeout=timeout)
    assert caught.value.missing == ("w1",)


def test_the_same_processes_may_join_again_after_shutdown(quick: Job) -> None:
    ended = [quick.pool.submit(joined.shutdown) for joined in quick.join_all(2)]
    assert [each.result(20) for each in ended] == [True, True]
    again = quick.join_all(2)
    last = max(joined.info.incarnation for joined in quick.joined[:2])
    assert sorted(joined.info.incarnation for joined in again) == [last + 1, last + 2]


def test_a_worker_joins_on_top_of_a_complete_job(job: Job) -> None:
    listener = Listener()
    first, second = job.join_all(2, [listener, Listener()])
    third = job.join(-1, 0, late=True)
    assert (third.info.name, third.info.rank, third.world_size) == ("worker2", 2, 2)
    listener.wait()
    assert listener.joined == ["worker2"]
    first.store.num_keys()  # what the coordinator posted before its answer was heard before it
    assert first.living() == third.members
    assert third.members[2].endpoints == ("x://2/2",)
    waiting = [job.pool.submit(each.shutdown) for each in (first, third)]
    second.shutdown()
    for each in waiting:
        each.result(20)


def test_nobody_joins_on_top_of_a_job_that_is_not_complete(quick: Job) -> None:
    with pytest.raises(RendezvousError, match="not complete; try again when it is"):
        quick.join(-1, 0, late=True, timeout=math.inf)


def test_a_worker_that_leaves_is_told_to_the_others(job: Job) -> None:
    listener = Listener()
    first, second = job.join_all(2, [listener, Listener()])
    second.leave("had enough")
    listener.wait()
    assert listener.lost == [("w1", "had enough")]
    assert [member.info.name for member in first.living()] == ["w0"]
    first.shutdown(timeout=20)


def test_a_worker_whose_line_closes_is_told_to_the_others(job: Job) -> None:
    listener = Listener()
    first, second = job.join_all(2, [listener, Listener()])
    waiting = job.pool.submit(first.shutdown)
    second.close()
    listener.wait()
    assert [name for name, _ in listener.lost] == ["w1"]
    assert waiting.result(20) is True


def test_the_loss_of_the_coordinator_stops_nobody(job: Job) -> None:
    listener = Listener()
    first, _ = job.join_all(2, [listener, Listener()])
    job.coordinator.close()
    listener.wait()
    assert len(listener.coordinator) == 1
    first.shutdown()  # there is nobody to wait with


def test_timeout_names_the_missing_ranks(job: Job) -> None:
    with_more_time(lambda timeout: check_missing_ranks(job, timeout), 0.3, 3.0, 12.0)


def check_missing_ranks(job: Job, timeout: float) -> None:
    with pytest.raises(RendezvousTimeoutError) as caught:
        job.join(0, world_size=3, timeout=timeout)
    assert caught.value.missing == (
        f"rank 1: never reached the coordinator at {job.endpoint}",
        f"rank 2: never reached the coordinator at {job.endpoint}",
    )
    assert "1/3 joined; missing: ranks 1, 2: never reached" in str(caught.value)
    assert job.coordinator.members == ()


def test_timeout_does_not_miss_who_was_there(quick: Job) -> None:
    with_more_time(lambda timeout: check_early_leaver(quick, timeout), 1.0, 4.0, 16.0)


def check_early_leaver(quick: Job, timeout: float) -> None:
    """Rank 1 waited for rank 2 as well, and gave up first."""
    first = quick.start(0, world_size=3, timeout=timeout)
    with pytest.raises(RendezvousTimeoutError):
        quick.join(1, world_size=3, timeout=timeout / 5)
    with pytest.raises(RendezvousTimeoutError) as caught:
        first.result(20)
    assert caught.value.missing == (f"rank 2: never reached the coordinator at {quick.endpoint}",)
    assert str(caught.value).endswith(
        f"2/3 joined; missing: {caught.value.missing[0]}; start rank 2, or wait longer with "
        "init_timeout="
    )


def seated(words: str, caplog: pytest.LogCaptureFixture) -> None:
    """Waits until a worker has logged how many have joined."""
    wait_until_gone("seats", lambda: [] if words in caplog.text else [caplog.text])


def test_all_hear_who_is_missing_whoever_gives_up_first(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The last one to give up hosts the coordinator, whose end is the end of all other waits."""
    network, size, present = InprocNetwork(), 12, range(11)
    path, given_up = str(tmp_path / "store"), {rank: CallOff() for rank in present}

    def start(rank: int) -> Future[JoinedJob]:
        address = JobAddress(rank=rank, world_size=size, hosts_store=rank == 0, file=path)
        transports, call_off = [InprocTransport(network)], given_up[rank]
        return pool.submit(join_as, address, transports, timeout=math.inf, call_off=call_off)

    caplog.set_level(logging.INFO, "telegrad.rendezvous")
    with ThreadPoolExecutor(len(present)) as pool:
        joining = [start(rank) for rank in present]
        seated("11/12 joined; waiting for rank 11", caplog)
        for rank in (3, 7, 5, 0):
            assert given_up[rank]()
            with pytest.raises(JoinCancelledError):
                joining[rank].result(20)
        for rank in (1, 2, 4, 6, 8, 9, 10):
            with pytest.raises(RendezvousTimeoutError) as caught:
                joining[rank].result(20)
            [missing] = caught.value.missing
            assert re.fullmatch(
                "rank 11: never reached the coordinator at inproc://[0-9]+", missing
            )
            assert str(caught.value) == (
                "job 'default' was not complete when its coordinator was closed ('w0' (rank 0), which "
                "hosts it, gave up: rpc.shutdown() was called): 11/12 joined; missing: "
                f"{missing}; start rank 11, or wait longer with init_timeout="
            )


def test_a_failed_join_may_be_tried_again_at_once(job: Job) -> None:
    for _ in range(3):
        with pytest.raises(RendezvousTimeoutError):
            job.join(0, timeout=0.1)
    assert len(job.join_all(2)) == 2


def test_duplicates_are_refused_at_once(quick: Job) -> None:
    quick.join_all(2)
    with pytest.raises(DuplicateNameError, match=r"another living worker is 'w1' \(rank 1\)"):
        quick.join(1, timeout=math.inf)
    quick.joined[0].leave()
    other = "W1" if quick.joined[0].info.name == "w0" else "W0"
    rank = quick.joined[0].info.rank
    with pytest.raises(DuplicateNameError, match="names must differ by more than case"):
        quick.join(rank, name=other, timeout=math.inf)


def test_a_wrong_token_is_named_to_those_who_wait(job: Job) -> None:
    with_more_time(lambda timeout: check_wrong_token(job, timeout), 0.5, 3.0, 15.0)


def check_wrong_token(job: Job, timeout: float) -> None:
    first = job.start(0, timeout=timeout)
    wait_until_gone("a member", lambda: [] if job.coordinator.members or first.done() else [first])
    with pytest.raises(AuthenticationError):
        job.join(1, token=b"not the token of this job", timeout=math.inf)
    with pytest.raises(RendezvousTimeoutError) as caught:
        first.result(20)
    [missing] = caught.value.missing
    assert missing.startswith("rank 1: refused by the coordinator: the dialler holds another token")


def test_another_job_is_refused_at_once(job: Job) -> None:
    with pytest.raises(RendezvousError, match="job") as caught:
        job.join(0, job="other", timeout=math.inf)
    assert not isinstance(caught.value, RendezvousTimeoutError)


def test_world_size_mismatch_is_refused_at_once() -> None:
    with_more_time(check_world_size_mismatch, 0.1, 2.0, 10.0)


def check_world_size_mismatch(timeout: float) -> None:
    job = Job("inproc", world_size=2)
    try:
        with pytest.raises(RendezvousError, match="world size mismatch"):
            job.join(1, world_size=3, timeout=math.inf)
        with pytest.raises(RendezvousTimeoutError) as caught:
            job.join(0, timeout=timeout)
        assert caught.value.missing == ("rank 1: refused by the coordinator: it says world size 3",)
        assert len(job.join_all(2)) == 2
    finally:
        job.close()


def test_nobody_listens(quick: Job) -> None:
    with pytest.raises(RendezvousTimeoutError) as caught:
        quick.join(1, endpoint="inproc://999", timeout=1)
    assert caught.value.missing == ("rank 0: the coordinator at inproc://999: connection refused",)
    assert "did not reach the coordinator of job 'test' within 1 s" in str(caught.value)


def test_a_coordinator_that_comes_late_is_found(port: int) -> None:
    def join(rank: int) -> JoinedJob:
        transport = SharedPort(GrpcTransport(port=port)) if rank == 0 else GrpcTransport()
        return join_as(JobAddress.at("127.0.0.1", port, rank=rank, world_size=2), [transport])

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(join, 1)
        first = join(0)
        second = waiting.result(20)
        assert first.coordinator is not None
        done = pool.submit(second.shutdown)
        first.shutdown()
        first.close()
        done.result(20)
        second.close()


def test_progress_is_logged(quick: Job, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "telegrad.rendezvous"):
        with_more_time(lambda timeout: check_progress(quick, caplog, timeout), 0.3, 3.0, 12.0)


def check_progress(quick: Job, caplog: pytest.LogCaptureFixture, timeout: float) -> None:
    with pytest.raises(RendezvousTimeoutError):
        quick.join(0, world_size=3, timeout=timeout)
    with pytest.raises(RendezvousTimeoutError):
        quick.join(1, endpoint="inproc://999", timeout=timeout)
    lines = [record.getMessage() for record in caplog.records]
    for words in (
        "1/3 joined; waiting for ranks 1, 2;",
        "waiting for the coordinator at inproc://999 (connection refused);",
    ):
        assert any(re.fullmatch(rf"{re.escape(words)} \d+ s left", line) for line in lines), lines


def test_a_long_wait_warns_again_and_again(
    quick: Job, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(join, "WARN_EVERY", 0.1)
    with caplog.at_level(logging.WARNING, "telegrad.rendezvous"):
        with_more_time(lambda timeout: check_warnings(quick, caplog, timeout), 0.5, 3.0, 12.0)


def check_warnings(quick: Job, caplog: pytest.LogCaptureFixture, timeout: float) -> None:
    for rank, endpoint, words in (
        (0, "", "1/3 joined; waiting for ranks 1, 2"),
        (1, "inproc://999", "waiting for the coordinator at"),
    ):
        caplog.clear()
        began = time.monotonic()
        with pytest.raises(RendezvousTimeoutError):
            quick.join(rank, world_size=3, endpoint=endpoint, timeout=timeout)
        most = (time.monotonic() - began) / join.WARN_EVERY
        count = sum(record.getMessage().startswith(words) for record in caplog.records)
        assert 2 <= count <= most


@pytest.mark.parametrize("timeout", [0, -1])
def test_bad_arguments(quick: Job, timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout must be above 0"):
        quick.join(0, timeout=timeout)
    with pytest.raises(ValueError, match="worker name"):
        quick.join(0, name="a b")


def test_what_publish_raises_frees_the_place(quick: Job) -> None:
    def publish(*_: object) -> list[str]:
        raise OSError("port in use")

    with pytest.raises(OSError, match="port in use"):
        quick.join(0, publish=publish)
    assert len(quick.join_all(2)) == 2


def test_garbage_is_answered_with_words() -> None:

    job = Job("inproc")
    line = ControlLine(job="test", rank=0, token=TOKEN, transports=job.transports())
    line.connect(job.endpoint, 10.0)
    for kind, body, words in [
        ("member.join", None, "body must be a dict"),
        ("member.join", {"name": "w", "rank": "x"}, "rank must be an int"),
        ("store.get", {"key": 3}, "key must be a str"),
        ("store.set", {"key": "k"}, "value must be bytes"),
        ("store.wait", {"keys": 3}, "keys must be a list"),
        ("member.reserve", {"name": 3}, "name must be a str"),
        ("store.unknown", None, "does not know 'store.unknown'"),
    ]:
        with pytest.raises((TypeError, RendezvousError), match=words):
            line.ask(kind, body, timeout=10)
    line.close()
    job.close()


def test_each_job_begins_at_incarnations_of_its_own() -> None:
    """Else a worker left over by a job would meet its namesake in the next one at the same port."""
    firsts = set()
    for _ in range(4):
        job = Job()
        firsts.add(job.join(0, 1).info.incarnation)
        job.close()
    assert len(firsts) > 1  # four of a million that are one would be a seventh of a billion billion
    for first in firsts:
        assert first % 1000 == 1  # so that a thousand follow before the next job's may begin
        assert 1000 < first < 2**30  # and what holds several of them stays short
