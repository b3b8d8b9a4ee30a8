"""The envelopes that each use of an RRef costs, exactly; the work given to pools, at most."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from telegrad import rpc
from telegrad.rpc import RRef
from telegrad.rpc.seams import reference_of
from telegrad.testing import Cluster
from tests.counting import counted
from tests.rpc.rref.programs import drained

MANY = 50


class Thing:
    def method(self) -> int:
        return 1


def number() -> int:
    return 7


def numbers() -> list[int]:
    return [7]


def owner_of(rref: RRef[Any]) -> str:
    return rref.owner_name()


def a_list() -> None:
    assert rpc.remote("worker1", numbers).to_here() == [7]


def a_list_made_before() -> None:
    made = rpc.remote("worker1", numbers)
    creation = reference_of(made).creation
    assert creation is not None
    creation.wait()
    assert made.to_here() == made.to_here() == [7]


def a_constant_made_before() -> None:
    made = rpc.remote("worker1", number)
    creation = reference_of(made).creation
    assert creation is not None
    creation.wait()
    assert made.to_here() == made.to_here() == 7


def a_method() -> None:
    thing = rpc.remote("worker1", Thing)
    assert [thing.rpc_sync().method() for _ in range(2)] == [1, 1]


def to_its_owner() -> None:
    thing = rpc.remote("worker1", Thing)
    assert rpc.rpc_sync("worker1", owner_of, (thing,)) == "worker1"


def from_its_owner() -> None:
    assert rpc.rpc_sync("worker1", owner_of, (RRef("mine"),)) == "worker0"


def to_another() -> None:
    thing = rpc.remote("worker1", Thing)
    assert rpc.rpc_sync("worker2", owner_of, (thing,)) == "worker1"


def many() -> None:
    made = [rpc.remote("worker1", number) for _ in range(MANY)]
    for each in made:
        creation = reference_of(each).creation
        assert creation is not None
        creation.wait()
    assert [each.to_here() for each in made] == [7] * MANY
    del each
    made.clear()


CREATED = {"worker0 rpc.remote": 1, "worker1 reply": 1, "worker0 rref.user_delete": 1}


# fmt: off
COUNTS = [
    (a_list,                 {**CREATED, "worker0 rref.fetch": 1, "worker1 reply": 2}),
    (a_list_made_before,     {**CREATED, "worker0 rref.fetch": 2, "worker1 reply": 3}),
    (a_constant_made_before, CREATED),
    (a_method,               {**CREATED, "worker0 rref.call": 2, "worker1 reply": 3}),
    (to_its_owner,           {**CREATED, "worker0 rpc.call": 1, "worker1 reply": 2,
                              "worker1 rref.child_accept": 1}),
    (from_its_owner,         {"worker0 rpc.call": 1, "worker1 reply": 1,
                              "worker1 rref.user_delete": 1}),
    (to_another,             {**CREATED, "worker0 rpc.call": 1, "worker2 reply": 1,
                              "worker2 rref.fork_request": 1, "worker1 rref.fork_confirm": 1,
                              "worker2 rref.child_accept": 1, "worker2 rref.user_delete": 1}),
]
# fmt: on


@pytest.mark.parametrize(("body", "envelopes"), COUNTS, ids=[body.__name__ for body, _ in COUNTS])
def test_the_envelopes_of_each_use(
    cluster: Cluster, body: Callable[[], None], envelopes: dict[str, int]
) -> None:
    cluster.call(0, body)  # workers meet, classes are known
    drained(cluster)
    with counted() as work:
        cluster.call(0, body)
        drained(cluster)
    assert work.envelopes == envelopes
    calls = sum(count for kind, count in envelopes.items() if kind.endswith("reply"))
    # Each call is served in the pool; a value of a user's class is dropped there, too.
    assert work.hops["worker1"] + work.hops["worker2"] <= 2 * calls + 3
    assert work.hops["worker0"] <= 3


def test_the_ends_of_many_travel_together(cluster: Cluster) -> None:
    cluster.call(0, many)
    drained(cluster)
    with counted() as work:
        cluster.call(0, many)
        drained(cluster)
    deletes = work.envelopes.pop("worker0 rref.user_delete")
    assert work.envelopes == {"worker0 rpc.remote": MANY, "worker1 reply": MANY}
    assert deletes <= MANY // 2  # few, as a rule; a tick may come in between


def test_what_follows_takes_a_deletion_along(cluster: Cluster) -> None:
    """No tick has to come in between; unless one does, at that very moment, and takes it."""

    def body() -> int:
        freed = 0
        for _ in range(MANY):
            made = rpc.remote("worker1", numbers)
            assert made.to_here() == [7]
            made.release()
            freed += rpc.rpc_sync("worker1", owned) == 0
        return freed

    assert cluster.call(0, body) > MANY // 2


def owned() -> int:
    return rpc.statistics().owned_rrefs


def test_the_objects_of_a_reference_that_was_read() -> None:
    """What the collector follows, at both ends; deadlines that were cancelled go later, in bulk."""

    def grown() -> Counter[str]:
        def read(count: int) -> list[RRef[int]]:
            rrefs = [rpc.remote("worker1", number) for _ in range(count)]
            rrefs[-1].to_here()  # the replies to all creations are here
            assert [rref.to_here() for rref in rrefs] == [7] * count
            return rrefs

        def objects() -> Counter[str]:
            for _ in range(2):  # with the receipts for what was sent
                rpc.rpc_sync("worker1", number)
            gc.collect()
            return Counter(type(each).__name__ for each in gc.get_objects())

        kept = read(2)
        before = objects()
        kept += read(MANY)
        return objects() - before

    at_user = {"RRef": 1, "Reference": 1, "_Fork": 1, "RRefId": 1, "ForkId": 1, "Origin": 1}
    at_owner = {"_Owned": 1, "RRefId": 1, "ForkId": 1, "Future": 1, "list": 2, "dict": 1}
    most = Counter(at_user) + Counter(at_owner)
    with Cluster(2) as cluster:
        more = cluster.call(0, grown)
    for name in ("Deadline", "tuple"):
        del more[name]
    assert {name: round(n / MANY) for name, n in more.items() if n >= MANY / 2} == most
