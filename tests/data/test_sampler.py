"""All ranks together draw each sample; a resumed epoch goes on where it was left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telegrad.checkpoint import load_checkpoint, save_checkpoint
from telegrad.data import DistributedSampler

LENGTHS = st.integers(0, 40)
RANKS = st.integers(1, 9)


def ranks(length: int, n: int, **options: Any) -> list[DistributedSampler]:
    return [DistributedSampler(length, n, r, **options) for r in range(n)]


@given(LENGTHS, RANKS, st.booleans(), st.booleans(), st.integers(0, 3), st.integers(0, 3))
def test_all_ranks_together_draw_the_data_set(
    length: int, n: int, shuffle: bool, drop_last: bool, seed: int, epoch: int
) -> None:
    samplers = ranks(length, n, shuffle=shuffle, drop_last=drop_last, seed=seed)
    drawn = []
    for sampler in samplers:
        sampler.set_epoch(epoch)
        drawn.append(list(sampler))
        assert len(drawn[-1]) == len(sampler)
    assert len({len(each) for each in drawn}) == 1
    counts = Counter(index for each in drawn for index in each)
    total = sum(counts.values())
    if drop_last:
        assert set(counts.values()) <= {1}
        assert length - total < n
    else:
        assert set(counts) == set(range(length))
        assert 0 <= total - length < n  # only the padding is drawn again
        if total:
            assert max(counts.values()) - min(counts.values()) <= 1


@given(LENGTHS, RANKS, st.integers(0, 5), st.integers(0, 5))
def test_the_order_depends_on_seed_and_epoch_alone(
    length: int, n: int, seed: int, epoch: int
) -> None:
    def whole(n: int) -> list[int]:
        samplers = ranks(length, n, seed=seed)
        for sampler in samplers:
            sampler.set_epoch(epoch)
        steps = zip(*samplers, strict=True)
        return [index for step in steps for index in step][:length]

    assert whole(n) == whole(1)


def test_epochs_and_seeds_differ() -> None:
    orders = []
    for seed in range(3):
        sampler = DistributedSampler(50, 1, 0, seed=seed)
        for epoch in range(3):
            sampler.set_epoch(epoch)
            orders.append(tuple(sampler))
    assert len(set(orders)) == 9  # seed + epoch would give five
    assert list(DistributedSampler(5, 1, 0, shuffle=False)) == [0, 1, 2, 3, 4]


@given(LENGTHS, RANKS, st.booleans(), st.booleans(), st.data())
def test_a_resumed_epoch_has_the_samples_that_were_left(
    length: int, n: int, shuffle: bool, drop_last: bool, data: st.DataObject
) -> None:
    samplers = ranks(length, n, shuffle=shuffle, drop_last=drop_last)
    done = data.draw(st.integers(0, len(samplers[0])))
    states = []
    for sampler in samplers:
        sampler.set_epoch(4)
        iterator = iter(sampler)
        used = [next(iterator) for _ in range(done)]
        states.append(sampler.state_dict())
        resumed = ranks(length, n, shuffle=shuffle, drop_last=drop_last)[len(states) - 1]
        resumed.load_state_dict(states[-1])
        assert resumed.epoch == 4
        resumed.set_epoch(4)
        assert used + list(resumed) == list(sampler)
        assert list(resumed) == list(sampler)  # the next iteration is a whole epoch
    assert all(state == states[0] for state in states)


@given(LENGTHS, RANKS, RANKS, st.data())
def test_a_resumed_epoch_may_have_another_number_of_ranks(
    length: int, before: int, after: int, data: st.DataObject
) -> None:
    samplers = ranks(length, before)
    done = data.draw(st.integers(0, len(samplers[0])))
    used: set[int] = set()
    for sampler in samplers:
        iterator = iter(sampler)
        used |= {next(iterator) for _ in range(done)}
    counts: Counter[int] = Counter()
    lengths = set()
    for sampler in ranks(length, after):
        sampler.load_state_dict(samplers[0].state_dict())
        rest = list(sampler)
        counts.update(rest)
        lengths.add(len(rest))
    assert len(lengths) == 1
    assert used | set(counts) == set(range(length))
    assert sum(counts.values()) - (length - len(used)) < after


def test_another_epoch_begins_at_the_start() -> None:
    sampler = DistributedSampler(10, 2, 1)
    sampler.load_state_dict(sampler.state_dict() | {"epoch": 3, "drawn": 6})
    sampler.set_epoch(4)
    assert len(list(sampler)) == 5
    assert sampler.state_dict()["drawn"] == 10
    sampler.set_epoch(5)
    assert sampler.state_dict()["drawn"] == 0


def test_a_data_set_gives_its_length() -> None:
    assert sorted(DistributedSampler("abc", 1, 0)) == [0, 1, 2]
    assert sorted(DistributedSampler(np.zeros((3, 2)), 1, 0)) == [0, 1, 2]
    assert repr(DistributedSampler([1, 2], 2, 1)) == (
        "DistributedSampler(2 samples, rank 1 of 2, epoch 0)"
    )


def test_its_state_is_part_of_a_checkpoint(tmp_path: Path) -> None:
    sampler = DistributedSampler(10, 2, 0)
    next(iter(sampler))
    save_checkpoint({"sampler": sampler}, tmp_path / "state.safetensors")
    resumed = DistributedSampler(10, 2, 0)
    resumed.load_state_dict(load_checkpoint(tmp_path / "state.safetensors")["sampler"])
    assert len(list(resumed)) == 4


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: DistributedSampler(cast("int", 1.5), 2, 0), TypeError, "data set with a length"),
        (lambda: DistributedSampler(True, 2, 0), TypeError, "data set with a length.*not bool"),
        (lambda: DistributedSampler(-1, 2, 0), ValueError, "length .* must be at least 0, not -1"),
        (lambda: DistributedSampler(3, 0, 0), ValueError, "num_replicas must be at least 1, not 0"),
        (lambda: DistributedSampler(3, 2, 2), ValueError, "rank 2 is none of 2 ranks"),
        (lambda: DistributedSampler(3, 2, -1), ValueError, "rank must be at least 0, not -1"),
        (lambda: DistributedSampler(3, 2, 0, seed=-1), ValueError, "seed must be at least 0"),
        (lambda: DistributedSampler(3, 2, cast("int", "0")), TypeError, "rank must be an integer"),
        (lambda: DistributedSampler(3, 2, 0).set_epoch(-1), ValueError, "epoch must be at least 0"),
    ],
)
def test_wrong_arguments_are_refused(
    make: Callable[[], object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        make()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"length": 11}, "with length 11, and this one has 10"),
        ({"seed": 1}, "with seed 1, and this one has 0"),
        ({"shuffle": False}, "with shuffle False, and this one has True"),
        ({"drawn": -1}, "drawn must be at least 0"),
        ({"epoch": "x"}, "epoch must be an integer, not 'x'"),
        ({"drawn": None}, "drawn must be an integer, not None"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(change: dict[str, Any], words: str) -> None:
    sampler = DistributedSampler(10, 2, 0)
    with pytest.raises(ValueError, match=words):
        sampler.load_state_dict(sampler.state_dict() | change)
    with pytest.raises(ValueError, match="lacks epoch, drawn, length, seed, shuffle"):
        sampler.load_state_dict({})
    with pytest.raises(TypeError, match=r"loads the dict of a state_dict\(\), not 5"):
        sampler.load_state_dict(5)  # type: ignore[arg-type]
    assert list(sampler) == list(DistributedSampler(10, 2, 0))
