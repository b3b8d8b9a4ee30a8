"""How schedules go on, and what they refuse; torch's rates are in the golden tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from telegrad import optim, tensor


def made(lr: float = 0.2, **options: Any) -> optim.SGD:
    x, y = (tensor(1.0, requires_grad=True) for _ in range(2))
    return optim.SGD([{"params": [x]}, {"params": [y], "lr": 2 * lr}], lr=lr, **options)


def rates(scheduler: Any, steps: int) -> list[list[float]]:
    found = []
    for _ in range(steps):
        found.append(scheduler.get_last_lr())
        scheduler.step()
    return found


CASES: list[Callable[[Any], Any]] = [
    lambda o: optim.StepLR(o, 3, gamma=0.5),
    lambda o: optim.MultiStepLR(o, [5, 2]),
    lambda o: optim.ExponentialLR(o, 0.9),
    lambda o: optim.LambdaLR(o, lambda t: 1 / (1 + t)),
    lambda o: optim.LinearLR(o, start_factor=0.25, total_iters=4),
    lambda o: optim.CosineAnnealingLR(o, 6, eta_min=0.01),
    lambda o: optim.SequentialLR(
        o, [optim.LinearLR(o, start_factor=0.5), optim.CosineAnnealingLR(o, 4)], [5]
    ),
    lambda o: optim.OneCycleLR(o, 1.0, 10, pct_start=0.4, cycle_momentum=False),
]


@pytest.mark.parametrize("make", CASES)
def test_it_goes_on_where_it_was(make: Any) -> None:
    whole = rates(make(made()), 9)
    first = make(made())
    rates(first, 4)
    optimizer = made(lr=0.7)
    second = make(optimizer)
    second.load_state_dict(first.state_dict())
    assert rates(second, 5) == whole[4:]
    with pytest.raises(ValueError, match="state of 1 groups"):
        second.load_state_dict({"base_lrs": [1.0], "last_epoch": 0})


@pytest.mark.parametrize("make", CASES)
@pytest.mark.parametrize("before", [0, 3])
def test_a_group_that_was_added_later_is_scheduled_from_its_own_rate(
    make: Any, before: int
) -> None:
    def added_after(steps: int) -> tuple[Any, Any]:
        optimizer = made()
        scheduler = make(optimizer)
        rates(scheduler, steps)
        optimizer.add_param_group({"params": [tensor(1.0, requires_grad=True)], "lr": 3.0})
        return optimizer, scheduler

    _, scheduler = added_after(before)
    assert scheduler.get_last_lr()[2] == 3.0  # until the next step
    assert scheduler.base_lrs == [0.2, 0.4, 3.0]
    scheduler.step()
    whole = made()
    whole.add_param_group({"params": [tensor(1.0, requires_grad=True)], "lr": 3.0})
    all_along = make(whole)
    rates(all_along, before + 1)
    assert scheduler.get_last_lr() == all_along.get_last_lr()
    resumed = make(added_after(0)[0])
    resumed.load_state_dict(scheduler.state_dict())
    assert rates(resumed, 3) == rates(all_along, 3)


def test_a_plateau_reduces_groups_that_were_added_later() -> None:
    optimizer = made(0.5)
    scheduler = optim.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    scheduler.step(1.0)
    optimizer.add_param_group({"params": [tensor(1.0, requires_grad=True)], "lr": 3.0})
    scheduler.step(2.0)
    assert scheduler.get_last_lr() == [0.25, 0.5, 1.5]


def fails_at(t: int, base: float = 1.0) -> Callable[[int], float]:
    """A function of which the second group's rate cannot be computed at `t`."""
    calls = []

    def rate(now: int) -> float:
        calls.append(now)
        if now >= t and len(calls) % 2 == 0:
            raise ArithmeticError("no rate")
        return 1 / (1 + now)

    return rate


def test_a_step_that_fails_changes_nothing() -> None:
    """The groups before the one that failed had new rates, and the step was counted."""
    optimizer = made(momentum=0.9)
    scheduler = optim.LambdaLR(optimizer, fails_at(2))
    scheduler.step()
    before = [dict(group) for group in optimizer.param_groups]
    for _ in range(2):
        with pytest.raises(ArithmeticError):
            scheduler.step()
        assert [dict(group) for group in optimizer.param_groups] == before
        assert scheduler.last_epoch == 1
    with pytest.raises(ArithmeticError):
        scheduler.load_state_dict({"base_lrs": [7.0, 8.0], "last_epoch": 5})
    with pytest.raises(ValueError, match="last_epoch is 'x'"):
        scheduler.load_state_dict({"base_lrs": [7.0, 8.0], "last_epoch": "x"})
    assert [dict(group) for group in optimizer.param_groups] == before
    cycle = optim.OneCycleLR(optimizer, 1.0, 1, pct_start=0.0)
    cycle.step()
    before = [dict(group) for group in optimizer.param_groups]
    with pytest.raises(ValueError, match="has no step 2"):
        cycle.step()
    assert [dict(group) for group in optimizer.param_groups] == before
    assert cycle.last_epoch == 1


def test_a_scheduler_that_cannot_be_made_changes_nothing() -> None:
    optimizer = made()
    before = [dict(group) for group in optimizer.param_groups]
    with pytest.raises(ArithmeticError):
        optim.LambdaLR(optimizer, fails_at(0))
    assert [dict(group) for group in optimizer.param_groups] == before


def test_the_optimizer_steps_with_the_rate() -> None:
    x = tensor(1.0, requires_grad=True)
    optimizer = optim.SGD([x], lr=0.5)
    scheduler = optim.StepLR(optimizer, 1, gamma=0.5)
    for _ in range(2):
        optimizer.apply({x: tensor(1.0)})
        scheduler.step()
    assert x.item() == 0.25
    again = optim.SGD([x], lr=3.0)
    again.load_state_dict(optimizer.state_dict())
    assert again.param_groups[0]["lr"] == 0.125
    assert optim.ExponentialLR(again, 0.5).base_lrs == [0.5]


def test_one_cycle_turns_momentum_the_other_way() -> None:
    for optimizer in (made(momentum=0.9), optim.Adam([tensor(1.0, requires_grad=True)])):
        scheduler = optim.OneCycleLR(optimizer, 1.0, 10, anneal_strategy="linear")
        found = []
        for _ in range(10):
            group = optimizer.param_groups[0]
            found.append(group["betas"][0] if "betas" in group else group["momentum"])
            scheduler.step()  # a loop does so after the last step too
        assert found[0] == found[9] == 0.95
        assert scheduler.get_last_lr()[0] == pytest.approx(1 / 25e4)
        assert min(found) == found[2] == pytest.approx(0.85)
        with pytest.raises(ValueError, match="a cycle of 10 steps has no step 11"):
            scheduler.step()
    with pytest.raises(ValueError, match="Adagrad has no momentum to cycle"):
        optim.OneCycleLR(optim.Adagrad([tensor(1.0, requires_grad=True)]), 1.0, 10)


def test_a_plateau() -> None:
    optimizer = made(0.5)
    scheduler = optim.ReduceLROnPlateau(optimizer, factor=0.5, patience=1, cooldown=1, min_lr=0.2)
    found = []
    loss = tensor(3.0, requires_grad=True)
    metrics: list[Any] = [loss, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0]
    for metric in metrics:
        scheduler.step(metric)
        found.append(scheduler.get_last_lr()[0])
    # Two steps without progress halve it; the next is not counted, and then it takes two again.
    assert found == [0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.2, 0.2, 0.2, 0.2]
    again = optim.ReduceLROnPlateau(made(0.5), factor=0.5, patience=1)
    again.load_state_dict(scheduler.state_dict())
    assert again.state_dict() == scheduler.state_dict()
    assert again.best == 1.0


def test_messages() -> None:
    optimizer: Any = made()
    cases: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (lambda: optim.StepLR(optimizer, 0), ValueError, "step_size is positive, not 0"),
        (lambda: optim.StepLR(3, 1), TypeError, "StepLR needs an Optimizer, not 3"),  # type: ignore[arg-type]
        (lambda: optim.LinearLR(optimizer, start_factor=0), ValueError, "0 < start_factor <= 1"),
        (lambda: optim.OneCycleLR(optimizer, 1.0, 5, pct_start=2), ValueError, "0 <= pct_start"),
        (lambda: optim.SequentialLR(optimizer, [], [1, 2]), ValueError, "need -1 milestones"),
        (
            lambda: optim.SequentialLR(optimizer, [optim.StepLR(made(), 1)], []),
            ValueError,
            "belongs to another optimizer",
        ),
        (lambda: optim.ReduceLROnPlateau(optimizer, factor=1.0), ValueError, "needs factor < 1"),
    ]
    for call, error, words in cases:
        with pytest.raises(error, match=words):
            call()
