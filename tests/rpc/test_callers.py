"""Cancellations under every order of requests and replies: which of them are remembered."""

from __future__ import annotations

import random

from hypothesis import strategies as st

from telegrad.rpc.call import callers
from telegrad.rpc.call.callers import EARLY_CANCELS, MOST_GAPS, Callers
from telegrad.rpc.rref.numbers import NumberSet
from telegrad.types import WorkerInfo
from tests.repeated import on_examples

CALLERS = [WorkerInfo(f"w{r}", r, 100 + r) for r in range(3)]


@on_examples(st.randoms(use_true_random=True), st.integers(1, 60))
def test_only_what_has_not_come_is_remembered(chance: random.Random, count: int) -> None:
    """Each call comes once; it may be cancelled any number of times, before and after that."""
    early = Callers[object]()
    numbers = chance.sample(range(3 * count), count)  # the others are of calls to other workers
    events = [("come", caller, n) for caller in CALLERS for n in numbers]
    events += [
        (chance.choice(["cancel", "expire"]), chance.choice(CALLERS), chance.choice(numbers))
        for _ in range(2 * count)
    ]
    chance.shuffle(events)
    come: set[tuple[WorkerInfo, int]] = set()
    told: dict[tuple[WorkerInfo, int], bool] = {}
    for what, caller, number in events:
        key = (caller, number)
        if what == "come":
            assert early.of(caller).come(number) == told.pop(key, None)
            come.add(key)
        else:
            early.cancelled(caller, number, expired=what == "expire")
            if key not in come:
                told[key] = told.get(key, False) or what == "expire"
        assert early.remembered == told
    assert early.remembered == {}


@on_examples(st.randoms(use_true_random=True))
def test_what_has_come_is_known_however_many_gaps_there_are(chance: random.Random) -> None:
    """Then the lowest gaps are given up: never what came, and of what did not, the oldest."""
    most = 8
    early = Callers[object]()
    numbers = list(range(0, 1000, 2))
    for i in range(0, len(numbers), 5):  # overtaken by a few
        numbers[i : i + 5] = chance.sample(numbers[i : i + 5], len(numbers[i : i + 5]))
    kept = callers.MOST_GAPS
    callers.MOST_GAPS = most
    try:
        for place, number in enumerate(numbers):
            early.of(CALLERS[0]).come(number)
            early.cancelled(CALLERS[0], chance.choice(numbers[: place + 1]), expired=False)
            assert early.remembered == {}
            assert early.of(CALLERS[0]).numbers.runs <= 2 * most
        early.cancelled(CALLERS[0], 999, expired=False)
        early.cancelled(CALLERS[0], 2 * most + 1, expired=False)
    finally:
        callers.MOST_GAPS = kept
    assert early.remembered == {(CALLERS[0], 999): False}


def test_a_lost_caller_leaves_nothing() -> None:
    early = Callers[object]()
    for caller in CALLERS:
        for number in range(EARLY_CANCELS):
            early.of(caller).come(2 * number)
            early.cancelled(caller, 2 * number + 1, expired=True)
    assert len(early.remembered) == EARLY_CANCELS
    assert early.of(CALLERS[0]).numbers.runs == EARLY_CANCELS <= 2 * MOST_GAPS
    for caller in CALLERS:
        early.lose(caller)
    assert early.remembered == {}
    assert not any(early.of(caller).numbers.runs for caller in CALLERS)


def test_the_oldest_of_what_is_remembered_goes_first() -> None:
    early, caller = Callers[object](), CALLERS[0]
    for number in range(EARLY_CANCELS + 1):
        early.cancelled(caller, number, expired=False)
        early.cancelled(caller, number, expired=True)
    assert list(early.remembered) == [(caller, 1 + n) for n in range(EARLY_CANCELS)]
    assert all(early.remembered.values())


@on_examples(st.randoms(use_true_random=True), st.integers(0, 80), st.integers(1, 10))
def test_closing_gaps_only_adds(chance: random.Random, count: int, most: int) -> None:
    numbers = NumberSet()
    added = chance.sample(range(200), count)
    for number in added:
        before = numbers.runs
        assert numbers.add(number) == (numbers.runs > before)
    runs = numbers.runs
    numbers.close_gaps(most)
    assert numbers.runs == min(runs, most)
    assert all(number in numbers for number in added)
    found = [number for number in range(201) if number in numbers]
    assert not found or (found[0], found[-1]) == (min(added), max(added))
    before = numbers.runs
    for number in found:
        numbers.add(number)
    assert numbers.runs == before
