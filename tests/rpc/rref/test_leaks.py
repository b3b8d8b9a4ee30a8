"""The log of RRefs that are alive when all workers have called shutdown."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from telegrad import rpc
from telegrad.rpc import RRef
from telegrad.rpc.rref import leaks as rref_leaks
from telegrad.rpc.rref.leaks import MOST_TOLD
from telegrad.rpc.seams import current_agent, reference_of
from telegrad.testing import Cluster
from telegrad.testing.leaks import wait_until_gone
from tests.rpc.rref.programs import Model, give_back, make_rref, on, registry

LOGGER = "telegrad.rpc.rref.leaks"
kept: dict[Any, Any] = {}


class Holder:
    def __init__(self, rref: RRef[Any]) -> None:
        self.rref = rref
        self.other: RRef[Any] | None = None

    def hold(self, other: RRef[Any]) -> None:
        self.other = other

    def let_go(self) -> None:
        self.other = None


def keep(name: str, rref: RRef[Any]) -> None:
    kept[name, rpc.get_worker_info().name] = rref


@pytest.fixture(autouse=True)
def _nothing_kept(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.INFO, LOGGER)
    kept.clear()
    yield
    kept.clear()


def told_by(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == LOGGER and record.levelno == logging.INFO
    ]


def test_what_others_still_hold_is_told_once_with_where_it_came_from(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def body() -> None:
        rref = rpc.remote("worker1", Model, (4,))
        rref.rpc_sync().me()
        kept["here"] = rref
        rpc.rpc_sync("worker2", keep, ("there", rref))
        kept["value"] = rpc.rpc_sync("worker1", make_rref, ("text",))
        rpc.rpc_sync("worker1", publish_list, ("board",))
        kept["found"] = rpc.lookup("worker1", "board")

    with Cluster(3) as cluster:
        on(cluster, 0, body)
    (told,) = told_by(caplog)
    assert "worker 'worker1' ends while others still hold RRefs to 3 of its values" in told
    assert "release() them" in told
    here = rf"'worker0' \(from {re.escape(__file__)}:\d+\)"
    assert re.search(r"Model, created by 'worker0', held by '", told)
    assert len(re.findall(here, told)) == 2
    assert "'worker2' (from an argument of a call)" in told
    assert re.search(r"str, created by 'worker1', held by 'worker0' \(from the value of", told)
    assert "programs:make_rref)" in told
    assert re.search(rf"list, created by 'worker1', held by {here}", told)


def publish_list(name: str) -> None:
    rpc.publish(name, [1, 2])


def test_what_is_no_leak(caplog: pytest.LogCaptureFixture) -> None:
    """An owner's own references, names, garbage that nobody has collected, what was released."""

    def body() -> None:
        mine = RRef("mine")
        kept["own"] = mine
        assert rpc.rpc_sync("worker1", give_back, (mine,)).is_owner()
        kept["made here"] = rpc.remote("worker0", Model, (4,))
        kept["released"] = rpc.remote("worker1", Model, (4,))
        kept["released"].release()
        cycle: list[Any] = [rpc.remote("worker1", Model, (4,))]
        cycle.append(cycle)
        rpc.publish("mine", mine)
        with rpc.remote("worker1", Model, (4,)) as inside:
            assert inside.rpc_sync().me() == "worker1"
        for _ in range(20):
            rpc.remote("worker1", Model, (4,))
        kept["unread"] = rpc.rpc_async("worker1", make_rref, ("never decoded",))

    with Cluster(2) as cluster:
        on(cluster, 0, body)
    assert told_by(caplog) == []


def test_a_circle_through_two_workers_is_told_and_may_be_broken(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counting frees no such circle: each value keeps the other."""

    def body(breaks: bool) -> None:
        first = rpc.remote("worker1", Holder, (RRef("start"),))
        second = rpc.remote("worker2", Holder, (first,))
        first.rpc_sync().hold(second)
        if breaks:
            first.rpc_sync().let_go()

    with Cluster(3) as cluster:
        on(cluster, 0, body, False)
    told = "\n".join(told_by(caplog))
    # Once one end has left, the other is free.
    assert re.search("Holder, created by 'worker0', held by 'worker[12]'", told)
    caplog.clear()
    monkeypatch.setattr(rref_leaks, "SETTLE_SECONDS", 20.0)  # less is enough, mostly
    with Cluster(3) as cluster:
        on(cluster, 0, body, True)  # each value is freed by a message that is on its way
    assert told_by(caplog) == []


def test_many_are_counted_and_some_named(caplog: pytest.LogCaptureFixture) -> None:
    def body() -> None:
        kept["all"] = [rpc.remote("worker1", Model, (4,)) for _ in range(MOST_TOLD + 5)]

    with Cluster(2) as cluster:
        on(cluster, 0, body)
    (told,) = told_by(caplog)
    assert f"RRefs to {MOST_TOLD + 5} of its values" in told
    assert told.count("Model") == MOST_TOLD
    assert told.endswith("and 5 more")


def test_a_worker_that_died_with_references_holds_nothing_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def body() -> None:
        kept["one"] = rpc.rpc_sync("worker0", make_rref, ("kept",))
        kept["two"] = rpc.rpc_sync("worker0", make_rref, ("kept",))

    with Cluster(3) as cluster:
        on(cluster, 1, body)
        on(cluster, 2, body)
        cluster.kill(1)
    (told,) = told_by(caplog)
    assert "worker 'worker0'" in told
    assert "worker1" not in told


def test_leaving_at_once_tells_nothing(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(2)
    on(cluster, 0, lambda: kept.update(one=rpc.remote("worker1", Model, (4,))))
    cluster.close(graceful=False)
    assert told_by(caplog) == []


def test_who_lies_about_holding_is_not_heard(caplog: pytest.LogCaptureFixture) -> None:
    with Cluster(2) as cluster:
        secret = on(cluster, 1, lambda: RRef("secret"))

        def lie() -> None:
            agent, peer = current_agent(), rpc.get_worker_info("worker1")
            agent.messages.post(peer, "rref.held", [list(reference_of(secret).rref), "a lie"])
            agent.messages.post(peer, "rref.held", "garbage")
            assert rpc.rpc_sync("worker1", give_back, (1,)) == 1

        on(cluster, 0, lie)
    assert told_by(caplog) == []
    words = "is not [RRef, where it came from]"
    wait_until_gone("log", lambda: [] if words in caplog.text else ["no line"])


def test_a_holder_that_hangs_holds_the_owner_up_for_a_bounded_time() -> None:
    """It counts as holding until the owner's patience ends; the rest of the shutdown goes on."""
    with Cluster(2) as cluster:
        on(cluster, 0, lambda: kept.update(one=rpc.rpc_sync("worker1", make_rref, ("kept",))))
        owner = registry(cluster, 1)
        waited = threading.Thread(
            target=lambda: owner.wait_until(lambda: not owner.owners.holders(), 0.05)
        )
        waited.start()
        waited.join(20.0)
        assert not waited.is_alive()
        assert owner.counts() == (1, 0)
