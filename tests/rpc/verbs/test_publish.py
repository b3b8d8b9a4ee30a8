"""Objects that are found by a name."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from telegrad import rpc
from telegrad.errors import (
    BlockingCallError,
    CallTimeoutError,
    DuplicateNameError,
    NotInitializedError,
    OwnerLostError,
    UnknownWorkerError,
    WorkerLostError,
)
from telegrad.rpc import RRef, seams
from telegrad.rpc.seams import current_agent
from telegrad.rpc.verbs.publish import _Published
from telegrad.testing import Cluster
from telegrad.testing.leaks import wait_until_gone
from tests.rpc.conftest import Job
from tests.rpc.verbs.publish_code import Board, publish_board

OVER_FAULTS_TOO = True


def look_up(to: str, name: str) -> RRef[Any]:
    return rpc.lookup(to, name)


async def look_up_on_the_user_loop(to: str, name: str) -> tuple[str, str]:
    try:
        rpc.lookup(to, name)
    except BlockingCallError as error:
        said = str(error)
    found = await rpc.to_thread(rpc.lookup, to, name)
    return said, await found.rpc_async().where()


def published(job: Job, rank: int) -> _Published:
    return job.agents[rank].attachments[_Published]


def counted(agent: seams.AgentCore) -> int:
    statistics = agent.statistics()
    return statistics.owned_rrefs + statistics.user_rrefs


def test_what_is_published_is_found_by_everyone(job: Job) -> None:
    board = Board()
    job.on(0, rpc.publish, "board", board)
    for rank, to in ((1, "w0"), (2, 0), (0, "w0"), (1, job.agents[0].info)):
        found = job.on(rank, rpc.lookup, to, "board")
        assert found.owner_name() == "w0"
        assert job.on(rank, found.rpc_sync().where) == "w0"
        job.on(rank, found.rpc_sync().write, f"from {rank}")
    assert board.lines == ["from 1", "from 2", "from 0", "from 1"]
    own = job.on(0, rpc.lookup, "w0", "board")
    assert own.is_owner()
    assert own.local_value() is board


def test_a_lookup_waits_until_it_is_published(job: Job) -> None:
    """Without a thread, and each is answered once."""
    found: list[str] = []

    def wait() -> None:
        rref = job.on(1, rpc.lookup, "w0", "late")
        found.append(job.on(1, rref.to_here))

    threads = [threading.Thread(target=wait) for _ in range(5)]
    for thread in threads:
        thread.start()
    wait_until_gone("wait for lookups", lambda: [5] * (5 - published(job, 0).waiting))
    assert not found
    job.on(0, rpc.publish, "late", "a value")
    for thread in threads:
        thread.join()
    assert found == ["a value"] * 5
    assert published(job, 0).waiting == 0


def test_a_lookup_gives_up_and_leaves_nothing(job: Job) -> None:
    job.on(0, rpc.publish, "other", 1)
    with pytest.raises(CallTimeoutError) as caught:
        job.on(1, rpc.lookup, "w0", "never", timeout=0.1)
    assert str(caught.value) == (
        "nothing was published as 'never' on 'w0' within 0.1 s (published: 'other'); publish it "
        "there first: rpc.publish('never', ...)"
    )
    assert (caught.value.worker, caught.value.phase) == ("w0", "waiting for the name")
    names = published(job, 0)  # the lookup may come there when it was given up here
    wait_until_gone("lookups", lambda: ["one"] * names.waiting)
    job.on(0, rpc.publish, "never", 1)
    assert job.on(1, lambda: rpc.lookup("w0", "never").to_here()) == 1


def test_a_lookup_of_nobody_who_answers_ends_all_the_same(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[_Published.__module__], "ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(_Published, "_tell_names", lambda *_: None)
    with pytest.raises(CallTimeoutError, match="rpc.lookup of 'never' on 'w0' took longer than"):
        job.on(1, rpc.lookup, "w0", "never", timeout=0.1)


def test_a_name_is_published_once(job: Job) -> None:
    job.on(0, rpc.publish, "x", 1)
    with pytest.raises(DuplicateNameError, match=r"'x' on worker 'w0' already.*unpublish"):
        job.on(0, rpc.publish, "x", 2)
    job.on(1, rpc.publish, "x", 3)  # each worker has names of its own
    first = job.on(2, rpc.lookup, "w0", "x")
    assert job.on(2, lambda: rpc.lookup("w1", "x").to_here()) == 3
    job.on(0, rpc.unpublish, "x")
    with pytest.raises(LookupError, match=r"nothing is published as 'x'.*published: nothing"):
        job.on(0, rpc.unpublish, "x")
    job.on(0, rpc.publish, "x", 4)
    assert job.on(2, first.to_here) == 1
    assert job.on(2, lambda: rpc.lookup("w0", "x").to_here()) == 4


def test_an_rref_is_published_as_what_it_refers_to(job: Job) -> None:
    def publish() -> None:
        rpc.publish("theirs", rpc.remote("w1", Board))
        rpc.publish("mine", RRef(np.arange(3)))

    job.on(0, publish)
    theirs = job.on(2, rpc.lookup, "w0", "theirs")
    assert theirs.owner_name() == "w1"
    assert job.on(2, theirs.rpc_sync().where) == "w1"
    np.testing.assert_array_equal(job.on(2, lambda: rpc.lookup(0, "mine").to_here()), [0, 1, 2])


@pytest.mark.parametrize("owner", ["w0", "w1"])
def test_what_becomes_of_the_published_rref_is_nothing_to_the_name(job: Job, owner: str) -> None:
    def publish() -> None:
        with rpc.remote(owner, Board) as board:
            rpc.publish("board", board)

    job.on(0, publish)
    found = job.on(2, rpc.lookup, "w0", "board")
    assert job.on(2, found.rpc_sync().where) == owner
    with pytest.raises(DuplicateNameError):
        job.on(0, rpc.publish, "board", found_again := job.on(0, rpc.lookup, "w0", "board"))
    found_again.release()
    assert job.on(1, lambda: rpc.lookup("w0", "board").rpc_sync().where()) == owner
    job.on(0, rpc.unpublish, "board")
    assert job.on(2, found.rpc_sync().where) == owner
    found.release()
    wait_until_gone("values and forks", lambda: [each for each in job.agents if counted(each)])


def test_published_through_a_call_and_found_in_one(job: Job) -> None:
    job.on(0, rpc.rpc_sync, "w1", publish_board, ("board",))
    found = job.on(0, rpc.rpc_sync, "w2", look_up, ("w1", "board"))
    assert job.on(0, found.rpc_sync().where) == "w1"
    said, where = job.on(0, rpc.rpc_sync, "w2", look_up_on_the_user_loop, ("w1", "board"))
    assert "await rpc.to_thread(rpc.lookup" in said
    assert where == "w1"


@pytest.mark.parametrize(
    ("name", "error", "match"),
    [("", ValueError, "1 to 200"), ("x" * 201, ValueError, "not 201"), (3, TypeError, "not by 3")],
)
def test_names_that_cannot_be(job: Job, name: Any, error: type[Exception], match: str) -> None:
    for verb in (lambda: rpc.publish(name, 1), lambda: rpc.lookup("w0", name)):
        with pytest.raises(error, match=match):
            job.on(0, verb)
    with pytest.raises(error, match=match):
        job.on(0, rpc.unpublish, name)


def test_what_cannot_be_published(job: Job) -> None:
    released = job.on(0, lambda: RRef(1))
    released.release()
    with pytest.raises(RuntimeError, match="released"):
        job.on(0, rpc.publish, "x", released)
    foreign = job.on(1, lambda: RRef(1))
    with pytest.raises(RuntimeError, match="belongs to the agent 'w1'"):
        job.on(0, rpc.publish, "x", foreign)
    with pytest.raises(LookupError, match="published: nothing"):
        job.on(0, rpc.unpublish, "x")


def test_nobody_to_ask(job: Job) -> None:
    with pytest.raises(UnknownWorkerError):
        job.on(0, rpc.lookup, "nobody", "x")
    for verb in (
        lambda: rpc.publish("x", 1),
        lambda: rpc.unpublish("x"),
        lambda: rpc.lookup(0, "x"),
    ):
        with pytest.raises(NotInitializedError):
            verb()


@pytest.mark.parametrize("dies", [1, 2])
def test_a_lookup_ends_with_either_of_its_workers(dies: int) -> None:
    options = rpc.RpcOptions(timeout=20.0)
    with Cluster(3, options=options) as cluster, ThreadPoolExecutor(1) as pool:
        cluster.call(0, lambda: rpc.publish("theirs", rpc.remote("worker1", Board)))
        names = cluster.call(1, current_agent).attachments[_Published]
        lookup = pool.submit(cluster.call, 2, rpc.lookup, "worker1", "never")
        wait_until_gone("wait", lambda: [1] * (1 - names.waiting))
        cluster.kill(dies)
        with pytest.raises(WorkerLostError):
            lookup.result(20)
        if dies == 2:
            wait_until_gone("lookups", lambda: [1] * names.waiting)
        else:
            with pytest.raises(OwnerLostError):
                cluster.call(2, rpc.lookup, "worker0", "theirs")
