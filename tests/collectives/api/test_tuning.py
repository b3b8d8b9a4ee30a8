"""Thresholds that a user gives a group: tables, the ranks that must have the same, and their measuring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telegrad import collectives as dist
from telegrad import rpc
from telegrad.collectives import Thresholds
from telegrad.collectives.algorithms import circulant, direct, tree
from telegrad.collectives.api.tuning import crossing, measured
from telegrad.collectives.messages import FormMessage
from telegrad.collectives.select import (
    DEFAULT,
    select_all_gather,
    select_all_reduce,
    select_broadcast,
)
from telegrad.errors import DecodeError
from telegrad.rpc import RpcOptions
from telegrad.testing import Cluster
from telegrad.types import Array
from tests.collectives import remote_code

NAMES = [field.name for field in fields(Thresholds)]
THRESHOLDS = st.builds(Thresholds, **{name: st.integers(0, 2**62) for name in NAMES})
APART = RpcOptions(direct="tcp")  # the ranks share no memory
RING = Thresholds(direct_up_to_bytes=0)


# -- tables --------------------------------------------------------------------------------------


@given(THRESHOLDS, st.text(st.characters(codec="utf-8", exclude_characters="\r")))
def test_a_table_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, thresholds: Thresholds, note: str
) -> None:
    path = tmp_path_factory.mktemp("table") / "table.toml"
    note = "".join(c for c in note if c.isprintable())
    thresholds.save(path, note)
    assert Thresholds.load(path) == thresholds
    assert Thresholds.from_wire(thresholds.to_wire()) == thresholds


@given(THRESHOLDS, THRESHOLDS)
def test_equal_thresholds_and_no_others_have_one_digest(one: Thresholds, two: Thresholds) -> None:
    assert (one.digest == two.digest) == (one == two)
    assert (one.digest == "") == (one == DEFAULT)


def test_what_a_table_does_not_name_is_as_by_default(tmp_path: Path) -> None:
    (tmp_path / "table.toml").write_text("few_ranks = 3\n")
    assert asdict(Thresholds.load(tmp_path / "table.toml")) == {**asdict(DEFAULT), "few_ranks": 3}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("few_ranks = ", "Invalid value"),
        ("\x00", "Invalid statement"),
        ("ranks = 3", "there is no threshold 'ranks', there are direct_up_to_bytes, few_ranks"),
        ("few_ranks = -1", r"few_ranks must be from 0 to \d+ \(got -1\)"),
        ("few_ranks = 2.5", "few_ranks must be an integer, not 2.5"),
        ("few_ranks = true", "few_ranks must be an integer, not True"),
        ("[few_ranks]", "few_ranks must be an integer, not {}"),
    ],
)
def test_a_file_that_is_no_table(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "table.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=words) as raised:
        Thresholds.load(path)
    assert str(raised.value).startswith(f"'{path}' is no table of thresholds: ")
    assert "`telegrad tune` writes one" in str(raised.value)


# -- groups --------------------------------------------------------------------------------------


def sent_by(per_rank: Sequence[Thresholds | None]) -> tuple[str, int, float]:
    """Makes a group of all, each rank with thresholds of its own, and sends a small array."""
    r = remote_code.begin()
    array = np.ones(3)
    made: list[Any] = []

    def run() -> None:
        made.append(dist.new_group([1, 0, 2], thresholds=per_rank[r]))
        dist.all_reduce(array, group=made[0])

    said = remote_code.refusal(run)
    return said, made[0].statistics().messages_sent if made else 0, float(array[0])


@pytest.mark.parametrize(
    ("per_rank", "messages"),
    [([None] * 3, 2), ([RING] * 3, 4), ([None, RING, None], 4), ([DEFAULT, None, None], 2)],
)
def test_the_first_member_hands_its_thresholds_to_all(per_rank: Any, messages: int) -> None:
    """A ring of three ranks sends four messages from each, and all at once are two."""
    with Cluster(3, options=APART) as cluster:
        assert cluster.run(sent_by, per_rank) == [("nothing", messages, 3.0)] * 3


@pytest.mark.parametrize("per_rank", [[RING, None, None], [RING, DEFAULT, RING]])
def test_a_member_that_states_others_is_named(per_rank: Any) -> None:
    with Cluster(3, options=APART) as cluster:
        for said, _, _ in cluster.run(sent_by, per_rank):
            assert said.startswith("CollectiveMismatchError: "), said
            assert said.count("called new_group([1, 0, 2]) with backend=''") == 2
            assert f"and thresholds {list(RING.to_wire())}" in said
            assert f"and thresholds {list(DEFAULT.to_wire())}" in said
            assert "with the same backend and the same table of thresholds" in said


def inherits(path: str) -> list[bool]:
    """The groups made of a group have its thresholds, without being given any."""
    world = dist.init_process_group()
    mine, _ = dist.new_subgroups(1)
    made = [
        world,
        mine,
        dist.split_group(None, [[0, 1, 2]]),
        dist.shrink_group(),
        dist.new_group([2]),
    ]
    wanted = Thresholds.load(path)
    return [each is None or each.rank < 0 or each.thresholds == wanted for each in made]


def test_the_environment_names_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "table.toml"
    RING.save(path)
    monkeypatch.setenv("TELEGRAD_THRESHOLDS", str(path))
    with Cluster(3, options=APART) as cluster:
        assert cluster.run(inherits, str(path)) == [[True] * 5] * 3
    path.write_text("ranks = 3")
    with Cluster(2) as cluster:
        for said in cluster.run(begin_refused):
            assert said.startswith(f"ValueError: '{path}' is no table of thresholds"), said


def begin_refused() -> str:
    return remote_code.refusal(dist.init_process_group)


def world_with(per_rank: Sequence[Thresholds | None]) -> str:
    dist.init_process_group(thresholds=per_rank[rpc.get_worker_info().rank], timeout=20.0)
    return remote_code.refusal(lambda: dist.all_reduce(np.ones(3)))


@pytest.mark.parametrize("options", [None, APART], ids=["memory", "messages"])
def test_a_world_of_ranks_with_different_tables(options: RpcOptions | None) -> None:
    with Cluster(2, options=options) as cluster:
        for said in cluster.run(world_with, [None, RING]):
            assert said.startswith("CollectiveMismatchError: operation 1 of group 'world'"), said
            assert f"shape=(3,)) by thresholds {RING.digest};" in said
            assert (
                "rank 0 ('worker0') called all_reduce(op=SUM, dtype=float64, shape=(3,))," in said
            )
            assert "need the same table of thresholds (thresholds=, TELEGRAD_THRESHOLDS)" in said


def test_thresholds_of_a_stranger_are_refused() -> None:
    message = FormMessage(0, 1, "a", (0, 1), thresholds=(1, 2))
    assert FormMessage.from_wire(message.to_wire()) == message
    for values in [(1, 2), (-1,) * 6, (2**63,) * 6]:
        with pytest.raises(DecodeError, match="not the thresholds of a group"):
            Thresholds.from_wire(values)


def with_wrong_arguments() -> None:
    group = dist.init_process_group()
    wrong: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: dist.new_group([0, 1], thresholds=3), TypeError, "must be collectives.Thresholds"),  # type: ignore[arg-type]
        (lambda: dist.tune(longest_bytes=10), ValueError, "at least 1024"),
        (lambda: dist.tune(repeats=0), ValueError, "repeats 1"),
        (lambda: dist.tune(repeats=1.5), TypeError, "must be an integer"),  # type: ignore[arg-type]
    ]
    for call, error, words in wrong:
        with pytest.raises(error, match=words):
            call()
    if group.sharing.in_place:
        assert "no thresholds to measure" in remote_code.refusal(dist.tune)
    dist.barrier()


def test_wrong_arguments() -> None:
    for options in (None, APART):
        with Cluster(2, options=options) as cluster:
            cluster.run(with_wrong_arguments)


# -- measuring -----------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.floats(1.0, 100.0), st.floats(1.0, 100.0)), min_size=1, max_size=6),
    st.integers(0, 2**12),
)
def test_a_crossing_is_the_best_split_or_nearly(
    times: list[tuple[float, float]], default: int
) -> None:
    sizes = [2**i for i in range(len(times))]
    shorter, longer = (np.array(each) for each in zip(*times, strict=True))
    limit = crossing(sizes, shorter, longer, default)

    def cost(limit: int) -> float:
        return float(sum(np.log(t[size > limit]) for size, t in zip(sizes, times, strict=True)))

    best = min(cost(each) for each in [0, *sizes])
    assert limit == default or cost(limit) == pytest.approx(best)
    assert cost(limit) <= best + 0.2 + 1e-9


COSTS = st.tuples(st.floats(1.0, 100.0), st.floats(0.001, 1.0))  # of a run, and of a byte


@given(
    st.integers(2, 40),
    st.fixed_dictionaries(
        dict.fromkeys(["direct", "in_order", "circulant", "ring", "tree", "chain"], COSTS)
    ),
)
def test_what_is_measured_is_what_the_choice_is_best_by(
    n: int, costs: dict[str, tuple[float, float]]
) -> None:
    """Made-up machines on which each algorithm takes a + b B: no choice that is much quicker is left."""
    sizes = [2**10 * 4**i for i in range(8)]
    names = {
        direct.all_reduce: "direct",
        circulant.all_reduce_in_order: "in_order",
        circulant.all_reduce: "circulant",
        tree.broadcast: "tree",
        direct.all_gather: "direct",
        circulant.all_gather: "circulant",
    }
    choices: dict[str, Callable[..., Any]] = {
        "all_reduce": select_all_reduce,
        "broadcast": select_broadcast,
        "all_gather": lambda size, n, limits: select_all_gather(n, limits),
    }

    def seconds(verb: str, limits: Thresholds) -> Array:
        other = "ring" if verb == "all_reduce" else "chain"
        chosen = [names.get(choices[verb](size, n, limits), other) for size in sizes]
        terms = [costs[name] for name in chosen]
        return np.array([a + b * size for size, (a, b) in zip(sizes, terms, strict=True)])

    def race(verb: str, first: Thresholds, second: Thresholds) -> tuple[Array, Array]:
        return seconds(verb, first), seconds(verb, second)

    found = measured(race, sizes, n)
    for verb, name in [("all_reduce", "direct_up_to_bytes"), ("broadcast", "chain_part_bytes")]:
        mine = np.log(seconds(verb, found)).sum()
        for limit in [0, *sizes]:
            part = -(-limit // n) if name == "chain_part_bytes" else limit
            other = Thresholds(**{**asdict(found), name: part})
            assert mine <= np.log(seconds(verb, other)).sum() + 0.2 + 1e-9


def measure() -> dict[str, int]:
    dist.init_process_group(timeout=30.0)
    found = dist.tune(longest_bytes=2**12, repeats=1)
    assert dist.new_group([0, 1, 2], thresholds=found).thresholds == found
    return asdict(found)


def test_all_ranks_measure_the_same() -> None:
    with Cluster(3, options=APART) as cluster:
        first, *others = cluster.run(measure)
    assert others == [first] * 2
    assert first.keys() == set(NAMES)


def measure_refused() -> str:
    return remote_code.refusal(measure)


def test_a_rank_that_is_lost_meanwhile() -> None:
    with Cluster(3, options=APART) as cluster, ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(cluster.call, r, measure_refused) for r in (0, 2)]
        cluster.call(0, remote_code.is_forming)
        cluster.kill(1)
        for each in waiting:
            assert each.result().startswith("WorkerLostError: worker 'worker1'")
