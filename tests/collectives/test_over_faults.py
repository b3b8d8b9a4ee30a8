"""Collectives over a network that loses, repeats, reorders, delays and breaks: the same checks."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from telegrad.testing import Cluster
from tests.collectives import (
    remote_code,
    test_coalescing,
    test_objects,
    test_point_to_point,
    test_shrinking,
    test_subgroups,
)
from tests.collectives.remote_code import LARGE
from tests.collectives.test_disagreement import DISAGREEMENTS, check_disagreement
from tests.collectives.test_operations import (
    check_many_at_once,
    check_subgroups,
)
from tests.collectives.test_programs import every_verb, run_program
from tests.faults.network_plans import OPTIONS, a_bit_of_everything

LONG_SEEDS = [pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 12)]


@pytest.fixture(params=[1, *LONG_SEEDS], ids="seed{}".format)
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with Cluster(3, options=OPTIONS, faults=a_bit_of_everything(request.param, most=6)) as made:
        yield made


def test_every_operation(cluster: Cluster) -> None:
    cluster.run(run_program, every_verb(3, (0, 7, LARGE)))


def test_many_at_once(cluster: Cluster) -> None:
    check_many_at_once(cluster, 20, 10)
    check_many_at_once(cluster, 6, LARGE)


def test_groups(cluster: Cluster) -> None:
    check_subgroups(cluster)


def test_disagreement(cluster: Cluster) -> None:
    check_disagreement(cluster, *DISAGREEMENTS["both large"])


def test_groups_that_are_not_the_same(cluster: Cluster) -> None:
    for said, after in cluster.run(remote_code.forms, [[0, 1], [0, 1, 2], [0, 1, 2]]):
        assert said.startswith("CollectiveMismatchError: "), said
        assert after == "3.0"


def test_objects_of_all_ranks(cluster: Cluster) -> None:
    cluster.run(test_objects.exchange, [1, ("a", None), [b"c"]], 1)
    cluster.run(test_objects.exchange_arrays)
    for verb in [*test_objects.VERBS, "send_object_list"]:
        for said in cluster.run(test_objects.cannot_travel, verb, [1], "unknown")[:2]:
            assert said[0].startswith("EncodeError: "), said


def test_messages_of_two_ranks(cluster: Cluster) -> None:
    messages = [(0, 1, 0), (1, 2, 1), (2, 0, 0), (0, 2, 1), (1, 0, 0), (2, 1, 1), (0, 1, 0)]
    for named in ([True, True], [False, True]):
        for posts_first in (True, False):
            cluster.run(test_point_to_point.exchange, messages, named, posts_first)
    assert cluster.run(test_point_to_point.batches) == [[2.0, 1.0], [0.0, 2.0], [1.0, 0.0]]


def test_coalesced_calls(cluster: Cluster) -> None:
    sizes = [3, LARGE, 0]
    block: list[test_coalescing.Step] = [
        (verb, "SUM", "float64", 1, "plain", sizes, seed)
        for seed, verb in enumerate(
            ["all_reduce", "broadcast", "all_gather_single", "reduce_scatter_single"]
        )
    ]
    for async_op in (False, True):
        first, *others = cluster.run(test_coalescing.run_block, block, async_op)
        assert others == [first, first]


@pytest.mark.parametrize("verb", ["split_group", "new_subgroups_by_enumeration"])
def test_groups_of_groups_that_are_not_the_same(cluster: Cluster, verb: str) -> None:
    for said, total in cluster.run(test_subgroups.disagrees, verb):
        assert said.startswith("CollectiveMismatchError: rank 0 ('worker0') called new_group(")
        assert total == 3.0


def test_a_planned_departure(cluster: Cluster) -> None:
    cluster.run(remote_code.begin)
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(cluster.call, r, test_shrinking.shrinks, 1) for r in (0, 2)]
    assert [each.result() for each in calls] == test_shrinking.of(0, 2)
