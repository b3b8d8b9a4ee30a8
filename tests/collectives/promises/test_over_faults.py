"""Collectives over a network that loses, repeats, reorders, delays and breaks: the same checks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from telegrad.testing import Cluster
from tests.collectives.api import test_point_to_point
from tests.collectives.api.test_operations import (
    check_many_at_once,
    check_subgroups,
)
from tests.collectives.groups import test_subgroups
from tests.collectives.promises.test_disagreement import DISAGREEMENTS, check_disagreement
from tests.collectives.promises.test_programs import every_verb, run_program
from tests.collectives.remote_code import LARGE
from tests.faults.network.network_plans import OPTIONS, a_bit_of_everything

LONG_SEEDS = [pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 12)]


@pytest.fixture(params=[1, *LONG_SEEDS], ids="seed{}".format)
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with Cluster(3, options=OPTIONS, faults=a_bit_of_everything(request.param, most=6)) as made:
        yield made


@pytest.mark.long
def test_every_operation(cluster: Cluster) -> None:
    cluster.run(run_program, every_verb(3, (0, 7, LARGE)))


def test_many_at_once(cluster: Cluster) -> None:
    check_many_at_once(cluster, 20, 10)
    check_many_at_once(cluster, 6, LARGE)


def test_groups(cluster: Cluster) -> None:
    check_subgroups(cluster)


def test_disagreement(cluster: Cluster) -> None:
    check_disagreement(cluster, *DISAGREEMENTS["both large"])


def test_messages_of_two_ranks(cluster: Cluster) -> None:
    messages = [(0, 1, 0), (1, 2, 1), (2, 0, 0), (0, 2, 1), (1, 0, 0), (2, 1, 1), (0, 1, 0)]
    for named in ([True, True], [False, True]):
        for posts_first in (True, False):
            cluster.run(test_point_to_point.exchange, messages, named, posts_first)
    assert cluster.run(test_point_to_point.batches) == [[2.0, 1.0], [0.0, 2.0], [1.0, 0.0]]


def test_groups_that_are_not_the_same(cluster: Cluster) -> None:
    for said, total in cluster.run(test_subgroups.disagrees):
        assert said.startswith("CollectiveMismatchError: rank 0 ('worker0') called new_group(")
        assert total == 3.0
