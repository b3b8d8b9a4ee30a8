"""Who waits for whom among trainers, whatever order arrivals, losses and deadlines come in."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telegrad.parallel.optimizer.rounds import Rounds, StepCounts

TRAINERS = ("A", "B", "C")
EVENTS = ("arrive", "withdraw", "remove", "add", "ended")
events = st.lists(st.tuples(st.sampled_from(EVENTS), st.sampled_from(TRAINERS)), max_size=40)


class Share:
    """Compared by identity, as a trainer's share is."""

    def __init__(self, trainer: str) -> None:
        self.trainer = trainer


def test_a_round_takes_one_share_of_each_in_the_order_of_the_trainers() -> None:
    rounds: Rounds[str, str] = Rounds(TRAINERS)
    for trainer in "CA":
        assert rounds.arrive(trainer, trainer.lower()) is None
        assert rounds.take() == []
    rounds.arrive("B", "b")
    assert rounds.take() == ["a", "b", "c"]
    for trainer in TRAINERS:  # of the next round, while this one is stepped
        rounds.arrive(trainer, trainer)
    assert rounds.take() == []
    rounds.ended()
    assert rounds.take() == ["A", "B", "C"]


@given(events)
def test_rounds_in_any_order(order: list[tuple[str, str]]) -> None:
    rounds: Rounds[str, Share] = Rounds(TRAINERS)
    present, stepping = list(TRAINERS), False
    waiting: dict[str, Share] = {}
    taken: set[Share] = set()
    for event, trainer in order:
        if event == "arrive":
            share = Share(trainer)
            if trainer in present:
                assert rounds.arrive(trainer, share) is waiting.get(trainer)
                waiting[trainer] = share
            else:
                with pytest.raises(KeyError):
                    rounds.arrive(trainer, share)
        elif event == "withdraw":
            late = rounds.withdraw(trainer, Share(trainer))  # one that is of another step
            assert not late
            assert rounds.withdraw(trainer, waiting.get(trainer, Share(trainer))) is (
                trainer in waiting
            )
            waiting.pop(trainer, None)
        elif event == "remove":
            assert rounds.remove(trainer) is waiting.pop(trainer, None)
            present = [each for each in present if each != trainer]
        elif event == "add":
            rounds.add(trainer)
            present += [] if trainer in present else [trainer]
        else:
            rounds.ended()
            stepping = False
        complete = bool(waiting) and set(waiting) == set(present) and not stepping
        shares = rounds.take()
        assert bool(shares) is complete
        if complete:
            assert [share.trainer for share in shares] == present
            assert shares == [waiting[each] for each in present]
            assert not taken & set(shares)
            taken |= set(shares)
            waiting, stepping = {}, True
        assert rounds.trainers == tuple(present)
        assert rounds.awaited() == tuple(each for each in present if each not in waiting)


@given(events, st.integers(0, 3))
def test_counts_in_any_order(order: list[tuple[str, str]], staleness: int) -> None:
    counts: StepCounts[str, Share] = StepCounts(TRAINERS, staleness)
    made: dict[str, int] = dict.fromkeys(TRAINERS, 0)
    waiting: dict[str, Any] = {}
    for event, trainer in order:
        if event in ("arrive", "ended") and trainer in made:
            ticket = Share(trainer)
            made[trainer] += event == "arrive"
            steps = made[trainer] if event == "arrive" else 0  # of a new copy of the optimizer
            assert counts.arrive(trainer, steps, ticket) is waiting.get(trainer)
            waiting[trainer] = ticket
        elif event == "withdraw":
            assert counts.withdraw(trainer, waiting.get(trainer, Share(trainer))) is (
                trainer in waiting
            )
            waiting.pop(trainer, None)
        elif event == "remove":
            assert counts.remove(trainer) is waiting.pop(trainer, None)
            made.pop(trainer, None)
        elif event == "add":
            expected = made.get(trainer, min(made.values(), default=0))
            assert counts.add(trainer) == expected
            made[trainer] = expected
        freed = counts.take()
        slowest = min(made.values(), default=0)
        near = {t: w for t, w in waiting.items() if made[t] - slowest <= staleness}
        assert set(freed) == set(near.values())
        waiting = {t: w for t, w in waiting.items() if t not in near}
        # Whoever waits is not the slowest: there is somebody to wait for.
        for t in waiting:
            assert (
                counts.awaited(t) == tuple(u for u in made if made[t] - made[u] > staleness) != ()
            )
