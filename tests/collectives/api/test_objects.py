"""Collectives of Python objects: copies that arrive whole, and errors on every rank."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telegrad import collectives as dist
from telegrad import rpc
from telegrad.testing import Cluster
from tests.collectives import remote_code
from tests.collectives.remote_code import LARGE, refusal

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner),
    max_leaves=6,
)


def exchange(objects: list[Any], root: int) -> None:
    """Runs each verb with these objects, one for each rank."""
    r = remote_code.begin()
    n = dist.get_world_size()
    assert dist.all_gather_object(objects[r]) == objects
    assert dist.gather_object(objects[r], root) == (objects if r == root else None)
    assert dist.scatter_object_list(objects if r == root else None, root) == objects[r]
    listed = list(objects) if r == root else [None] * n
    dist.broadcast_object_list(listed, root)
    assert listed == objects
    received: list[Any] = [None, None]
    if r == root:
        sources = [dist.recv_object_list(received, tag=3) for _ in range(n - 1)]
        assert sorted(sources) == [q for q in range(n) if q != r]
    else:
        dist.send_object_list([r, objects[r]], root, tag=3)


@pytest.mark.long
@pytest.mark.parametrize("n", [1, 3])
def test_objects(n: int) -> None:
    with Cluster(n) as cluster:

        @settings(max_examples=20)
        @given(st.lists(PLAIN, min_size=n, max_size=n), st.integers(0, n - 1))
        def check(objects: list[Any], root: int) -> None:
            cluster.run(exchange, objects, root)

        check()


def exchange_named_tuples() -> None:
    r = remote_code.begin()
    own: list[Any] = [
        np.linalg.svd(np.eye(2) * (r + 1)),
        np.unique_counts(np.array([r, 1])),
        os.stat("."),
    ]
    gathered = dist.all_gather_object(own)
    assert [each[0].S[0] for each in gathered] == [1.0, 2.0]
    assert [list(map(type, each)) for each in gathered] == [list(map(type, own))] * 2
    assert [each[2].st_mtime_ns for each in gathered] == [own[2].st_mtime_ns] * 2


def test_named_tuples_of_libraries() -> None:
    with Cluster(2) as cluster:
        cluster.run(exchange_named_tuples)


def exchange_arrays() -> None:
    r = remote_code.begin()
    for size in (3, LARGE):
        own = {"array": np.full(size, float(r))}
        gathered = dist.all_gather_object(own)
        own["array"][...] = np.nan
        assert [each["array"][0] for each in gathered] == [0.0, 1.0, 2.0]
        gathered[r]["array"][...] = np.nan
        listed = [np.full(size, 5.0) if r == 1 else None]
        dist.broadcast_object_list(listed, 1)
        assert listed[0] is not None
        listed[0] += r
        dist.barrier()
        assert listed[0][-1] == 5.0 + r


def test_nobody_shares_memory_with_another_rank_or_with_its_own_argument() -> None:
    with Cluster(3) as cluster:
        cluster.run(exchange_arrays)


@pytest.mark.long
def test_between_processes() -> None:
    with Cluster(3, processes=True) as cluster:
        cluster.run(exchange, [1, ("a", None), [b"c"]], 1)


class Unknown:
    """Nobody has registered it."""


class Unwilling:
    """Its encoder raises."""


def _refuse(_: Unwilling) -> dict[str, Any]:
    raise LookupError("not today")


rpc.register_type(Unwilling, encode=_refuse, decode=lambda _: Unwilling())


def cannot_travel(verb: str, culprits: list[int], kind: str) -> list[str]:
    """The objects of some ranks cannot travel; then those of the next call can."""
    r = remote_code.begin(timeout=20.0)
    bad: Callable[[], object] = {
        "unknown": Unknown,
        "unwilling": Unwilling,
        "rref": lambda: rpc.RRef([1]),
    }[kind]

    def call(obj: object) -> Any:
        listed = [obj]
        if verb == "all_gather_object":
            return dist.all_gather_object(obj)
        if verb == "gather_object":
            return dist.gather_object(obj, 2)
        if verb == "broadcast_object_list":
            dist.broadcast_object_list(listed, 1)
            return listed[0]
        if verb == "scatter_object_list":
            return dist.scatter_object_list([obj] * 3 if r == 1 else None, 1)
        if r == 1:
            dist.send_object_list(listed, 0)
        elif r == 0:
            dist.recv_object_list(listed, 1)
        return listed[0]

    said = refusal(lambda: call(bad() if r in culprits else 1))
    right = [1, 1, 1] if verb == "all_gather_object" or (verb == "gather_object" and r == 2) else 1
    assert call(1) == (None if verb == "gather_object" and r != 2 else right), "the group goes on"
    dist.barrier()
    return [said]


VERBS = ["all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"]


@pytest.mark.few(2)
@pytest.mark.parametrize("culprits", [[1], [0, 1, 2]], ids=["one rank", "all ranks"])
@pytest.mark.parametrize("verb", [*VERBS, "send_object_list"])
def test_an_object_that_cannot_travel_is_an_error_on_every_rank_and_the_group_goes_on(
    verb: str, culprits: list[int]
) -> None:
    with Cluster(3) as cluster:
        for r, (said,) in enumerate(cluster.run(cannot_travel, verb, culprits, "unknown")):
            if verb == "send_object_list" and r == 2:
                assert said == "nothing"
                continue
            assert said.startswith("EncodeError: "), said
            assert ": obj" in said
            assert "Unknown" in said
            if culprits == [1]:
                assert "rank 1 ('worker1'): obj" in said


def with_wrong_arguments() -> None:
    r = remote_code.begin()
    verbs: Any = dist
    wrong: list[tuple[Any, type[Exception], str]] = [
        (lambda: verbs.broadcast_object_list((1,)), TypeError, "list of objects, not tuple"),
        (lambda: verbs.broadcast_object_list([1], 2), ValueError, "src 2 is no member"),
        (lambda: verbs.gather_object(1, 2), ValueError, "dst 2 is no member"),
        (lambda: verbs.scatter_object_list(None, r), TypeError, "not NoneType"),
        (lambda: verbs.scatter_object_list([1], r), ValueError, "each of the 2 ranks.*got 1"),
        (lambda: verbs.scatter_object_list([1, 2], 1 - r), ValueError, "the source, alone"),
        (lambda: verbs.send_object_list([1], r), ValueError, "is this one"),
        (lambda: verbs.recv_object_list(None), TypeError, "not NoneType"),
    ]
    for call, error, words in wrong:
        with pytest.raises(error, match=words):
            call()
    assert dist.all_gather_object(r) == [0, 1]


def test_wrong_arguments() -> None:
    with Cluster(2) as cluster:
        cluster.run(with_wrong_arguments)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("unwilling", "not today"),
        ("rref", "rank 1 ('worker1'): obj cannot travel: it holds an RRef"),
    ],
)
def test_why_an_object_cannot_travel(kind: str, words: str) -> None:
    with Cluster(3) as cluster:
        for (said,) in cluster.run(cannot_travel, "all_gather_object", [1], kind):
            assert words in said


def sends_to_an_array() -> str:
    if remote_code.begin(timeout=20.0):
        return refusal(lambda: dist.recv(np.zeros(1), 0))
    said = refusal(lambda: dist.send_object_list(["a"], 1))
    return refusal(dist.barrier) if said == "nothing" else said


def test_an_object_for_a_rank_that_receives_an_array() -> None:
    with Cluster(2) as cluster:
        for said in cluster.run(sends_to_an_array):
            assert said.startswith("CollectiveMismatchError: "), said
            assert "send_object_list(shape=(1,))" in said
            assert "recv(dtype=float64, shape=(1,))" in said


class Fragile:
    """Rank 1 cannot build it."""


def _build(_: dict[str, Any]) -> Fragile:
    if dist.get_rank() == 1:
        raise LookupError("broken")
    return Fragile()


rpc.register_type(Fragile, encode=lambda _: {}, decode=_build)


def cannot_be_built() -> tuple[str, list[int]]:
    r = remote_code.begin(timeout=20.0)
    said = refusal(lambda: dist.all_gather_object(Fragile() if r == 0 else r))
    return said, dist.all_gather_object(r)


def test_an_object_that_one_rank_cannot_build_is_an_error_there_alone() -> None:
    with Cluster(3) as cluster:
        found = cluster.run(cannot_be_built)
    assert [said == "nothing" for said, _ in found] == [True, False, True]
    assert found[1][0].startswith("DecodeError"), found[1][0]
    assert [gathered for _, gathered in found] == [[0, 1, 2]] * 3
