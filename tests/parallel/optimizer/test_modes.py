"""Several trainers: in rounds, without waiting, and within bounds."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from telegrad import dist_autograd, optim, rpc
from telegrad.errors import CallTimeoutError, ContextError
from telegrad.optim import Optimizer, State
from telegrad.parallel import DistributedOptimizer, LossScale
from telegrad.testing import Cluster
from telegrad.types import Array
from tests.parallel.optimizer.trained_parts import (
    XS,
    Part,
    close,
    make_parts,
    mean_steps,
    rrefs_of,
    step,
    values,
)
from tests.patience import with_more_time

OWNERS = ("worker0", "worker1")
TRAINERS = ("worker1", "worker2")
LONG = 40.0  # seconds for what no test waits for


def train(
    optimizer: DistributedOptimizer, parts: Sequence[Any], xs: Array, timeout: float = LONG
) -> list[Any]:
    """A trainer's loop; returns what its steps came to."""
    try:
        return steps(optimizer, parts, xs, timeout)
    finally:
        optimizer.leave()


def steps(
    optimizer: DistributedOptimizer, parts: Sequence[Any], xs: Array, timeout: float
) -> list[Any]:
    return [step(optimizer, parts, x, timeout) for x in xs]


def train_all(optimizer: DistributedOptimizer, parts: Sequence[Any], xs: dict[str, Any]) -> Any:
    calls = [
        rpc.rpc_async(worker, train, (optimizer, parts, each), timeout=LONG)
        for worker, each in xs.items()
    ]
    return rpc.wait_all(calls)


# -- synchronous ----------------------------------------------------------------------------------


def rounds(options: dict[str, Any]) -> None:
    parts = make_parts(OWNERS)
    optimizer = DistributedOptimizer(
        optim.SGD, rrefs_of(parts), lr=0.1, momentum=0.9, trainers=TRAINERS, **options
    )
    assert optimizer.mode == "synchronous"
    results = train_all(optimizer, parts, {"worker1": XS[:5], "worker2": XS[5:10]})
    assert [(result.trainers, result.uneven) for result in results[0]] == [(2, False)] * 5
    # The mean of the trainers' losses, in one program.
    together = list(zip(XS[:5], XS[5:10], strict=True))
    close(values(parts), mean_steps(2, together, lr=0.1, momentum=0.9))


@pytest.mark.few(1)
@pytest.mark.parametrize("options", [{}, {"max_norm": 1e9}, {"loss_scale": LossScale(2.0**10)}])
def test_a_round_steps_once_with_the_mean_of_all_trainers(
    cluster: Cluster, options: dict[str, Any]
) -> None:
    cluster.call(0, rounds, options)


def unused_part() -> None:
    parts = make_parts(OWNERS)
    optimizer = DistributedOptimizer(optim.SGD, rrefs_of(parts), lr=0.1, trainers=TRAINERS)
    calls = [
        rpc.rpc_async("worker1", train, (optimizer, parts[:1], XS[:1]), timeout=LONG),
        rpc.rpc_async("worker2", train, (optimizer, parts[1:], XS[1:2]), timeout=LONG),
    ]
    rpc.wait_all(calls)
    own = [Part(i) for i in range(2)]
    for part, there, x in zip(own, parts, XS, strict=False):
        w, b = part.data()  # each goes down by half of its gradient
        close(there.rpc_sync().data(), [w - 0.1 * w * x, b - 0.1 * b * x[:1]])


def test_a_part_that_one_trainer_alone_has_used_has_its_share_of_the_mean(
    cluster: Cluster,
) -> None:
    cluster.call(0, unused_part)


def rates_of_the_first() -> None:
    parts = make_parts(["worker0"])
    optimizer = DistributedOptimizer(optim.SGD, rrefs_of(parts), lr=0.1, trainers=TRAINERS)
    calls = [
        rpc.rpc_async(worker, step_with_rate, (optimizer, parts, rate), timeout=LONG)
        for worker, rate in (("worker2", 0.5), ("worker1", 0.01))
    ]
    rpc.wait_all(calls)
    w = Part(0).data()[0]
    close([parts[0].rpc_sync().data()[0]], [w - 0.01 * 2 * w * XS[0]])


def step_with_rate(optimizer: DistributedOptimizer, parts: Sequence[Any], rate: float) -> None:
    scheduler = optim.LambdaLR(optimizer, lambda t: rate / 0.1)
    assert scheduler.get_last_lr() == [pytest.approx(rate)]
    step(optimizer, parts, XS[0], LONG)


def test_a_round_is_stepped_with_the_rates_of_the_first_trainer(cluster: Cluster) -> None:
    cluster.call(0, rates_of_the_first)


def voted_round() -> None:
    parts = make_parts(OWNERS)
    optimizer = DistributedOptimizer(
        optim.SGD, rrefs_of(parts), lr=0.1, trainers=TRAINERS, loss_scale=LossScale(8.0)
    )
    bad = XS[:3].copy()
    bad[1, 1] = np.inf  # of one trainer, in the second round
    with np.errstate(all="ignore"):
        calls = [
            rpc.rpc_async(worker, scales_after, (optimizer, parts, xs), timeout=LONG)
            for worker, xs in (("worker1", bad), ("worker2", XS[3:6]))
        ]
        results = rpc.wait_all(calls)
    assert results == [([True, False, True], 4.0)] * 2
    assert all(np.isfinite(value).all() for value in values(parts))


def scales_after(optimizer: DistributedOptimizer, parts: Sequence[Any], xs: Array) -> Any:
    with np.errstate(all="ignore"):
        results = train(optimizer, parts, xs)
    assert optimizer.loss_scale is not None
    return [result.stepped for result in results], optimizer.loss_scale.value


def test_an_overflow_of_one_trainer_is_a_round_without_a_step(cluster: Cluster) -> None:
    cluster.call(0, voted_round)


def strangers() -> None:
    parts = make_parts(OWNERS)
    optimizer = DistributedOptimizer(optim.SGD, rrefs_of(parts), lr=0.1, trainers=["worker2"])
    with pytest.raises(
        ValueError, match=r"'worker0' is not one of the optimizer's trainers \(worker2\)"
    ):
        step(optimizer, parts, XS[0])
    rpc.rpc_sync("worker2", leave, (optimizer,))
    optimizer.join()
    assert step(optimizer, parts, XS[0]).trainers == 1
    with dist_autograd.context() as context_id:
        pass
    with pytest.raises(ContextError, match="released"):
        optimizer.step(context_id)


def bounded_stranger() -> None:
    parts = make_parts(OWNERS)
    optimizer = DistributedOptimizer(
        optim.SGD, rrefs_of(parts), lr=0.1, trainers=["worker2"], staleness=0
    )
    rpc.rpc_sync("worker2", steps, (optimizer, parts, XS[:2], LONG))
    before = values(parts)
    with pytest.raises(ValueError, match="'worker0' is not one of the optimizer's trainers"):
        step(optimizer, parts, XS[0])
    close(values(parts), before)  # nothing was stepped
    optimizer.join()  # as if it had made two steps
    with pytest.raises(CallTimeoutError):
        step(optimizer, parts, XS[0], 0.3)
    rpc.rpc_sync("worker2", leave, (optimizer,))
    step(optimizer, parts, XS[0])


def test_who_is_no_trainer_steps_nothing_in_bounded_mode_either(cluster: Cluster) -> None:
    cluster.call(0, bounded_stranger)


def leave(optimizer: DistributedOptimizer) -> None:
    optimizer.leave()


def test_who_is_no_trainer_is_refused_until_it_joins(cluster: Cluster) -> None:
    cluster.call(0, strangers)


def bad_modes() -> None:
    rrefs = rrefs_of(make_parts(["worker1"]))
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"staleness": 1}, ValueError, "staleness=1 needs trainers"),
        ({"staleness": -1, "trainers": ["worker1"]}, ValueError, "a number of steps, from 0"),
        ({"trainers": []}, ValueError, "at least one"),
        ({"trainers": ["worker1", 1]}, ValueError, "each once"),
        ({"trainers": "worker1"}, TypeError, r"write \['worker1'\]"),
        ({"trainers": ["worker9"]}, LookupError, "worker9"),
        ({"max_norm": -1.0}, ValueError, "max_norm must not be negative"),
    ]
    for options, error, words in cases:
        with pytest.raises(error, match=words):
            DistributedOptimizer(optim.SGD, rrefs, **options)


def test_bad_modes_are_told_of(cluster: Cluster) -> None:
    cluster.call(0, bad_modes)


# -- asynchronous ---------------------------------------------------------------------------------


class Meeting(Optimizer):
    """Each update waits until another one is under way too."""

    def update(self, parameter: Array, gradient: Array, state: State) -> tuple[Array, State]:
        Meeting.barrier.wait()
        return parameter - gradient, state

    barrier = threading.Barrier(2)


def step_one(optimizer: DistributedOptimizer, part: Any, of_w: bool) -> None:
    """Steps one of both parameters of a part."""
    with dist_autograd.context() as context_id:
        loss = part.rpc_sync(LONG).forward_one(of_w)
        dist_autograd.backward(context_id, [loss])
        optimizer.step(context_id, LONG)


class Halves(Part):
    def forward_one(self, of_w: bool) -> Any:
        return self.w.sum() if of_w else self.b.sum()


def two_at_once() -> None:
    Meeting.barrier = threading.Barrier(2, timeout=30)
    part = rpc.remote("worker0", Halves, (0,))
    optimizer = DistributedOptimizer(Meeting, rrefs_of([part]))
    rpc.wait_all(
        [
            rpc.rpc_async(worker, step_one, (optimizer, part, of_w), timeout=LONG)
            for worker, of_w in (("worker1", True), ("worker2", False))
        ]
    )
    w, b = Part(0).data()
    close(values([part]), [w - 1, b - 1])


def test_steps_of_two_parameters_of_one_owner_go_on_at_once(cluster: Cluster) -> None:
    cluster.call(0, two_at_once)


def hogwild(steps: int) -> None:
    part = rpc.remote("worker0", Halves, (0,))
    optimizer = DistributedOptimizer(optim.SGD, rrefs_of([part]), lr=2.0**-10, momentum=0.0)
    rpc.wait_all(
        [
            rpc.rpc_async(worker, many_steps, (optimizer, part, steps), timeout=LONG)
            for worker in TRAINERS
        ]
    )
    w, b = Part(0).data()
    close(values([part]), [w - 2 * steps * 2.0**-10, b - 2 * steps * 2.0**-10])


def many_steps(optimizer: DistributedOptimizer, part: Any, steps: int) -> None:
    for _ in range(steps):
        with dist_autograd.context() as context_id:
            loss = part.rpc_sync().forward_one(True) + part.rpc_sync().forward_one(False)
            dist_autograd.backward(context_id, [loss])
            optimizer.step(context_id)


def test_no_step_of_two_trainers_is_lost(cluster: Cluster) -> None:
    cluster.call(0, hogwild, 25)


# -- bounded staleness ----------------------------------------------------------------------------


def bounded(limit: float) -> None:
    part = rpc.remote("worker0", Halves, (0,))
    optimizer = DistributedOptimizer(
        optim.SGD, rrefs_of([part]), lr=2.0**-10, trainers=TRAINERS, staleness=1
    )
    assert optimizer.mode == "bounded"
    # One trainer alone makes two steps and waits, since it is more than one ahead.
    error, worker = rpc.rpc_sync(
        "worker1", steps_until_late, (optimizer, part, limit), timeout=LONG
    )
    assert "worker 'worker1' waited for worker2" in error
    assert "step 2 of this worker was made" in error
    assert worker == "worker2"
    w = Part(0).data()[0]
    close([values([part])[0]], [w - 2 * 2.0**-10])
    # Then the other one makes three, and the first can make two more: 4, 3.
    rpc.wait_all(
        [
            rpc.rpc_async("worker2", some_steps, (optimizer, part, 3), timeout=LONG),
            rpc.rpc_async("worker1", more_steps, (2,), timeout=LONG),
        ]
    )
    close([values([part])[0]], [w - 7 * 2.0**-10])


kept: list[Any] = []


def steps_until_late(optimizer: DistributedOptimizer, part: Any, limit: float) -> tuple[str, str]:
    kept[:] = [optimizer, part]
    some_steps(optimizer, part, 1)
    with pytest.raises(CallTimeoutError) as caught:
        some_steps(optimizer, part, 1, limit)
    return "\n".join([str(caught.value), *caught.value.__notes__]), caught.value.worker


def more_steps(n: int) -> None:
    optimizer, part = kept
    kept.clear()
    some_steps(optimizer, part, n)


def some_steps(optimizer: DistributedOptimizer, part: Any, n: int, timeout: float = LONG) -> None:
    for _ in range(n):
        with dist_autograd.context() as context_id:
            dist_autograd.backward(context_id, [part.rpc_sync().forward_one(True)])
            optimizer.step(context_id, timeout)


def test_a_trainer_that_is_too_far_ahead_waits_for_the_slowest(cluster: Cluster) -> None:
    with_more_time(lambda limit: cluster.call(0, bounded, limit), 0.5, 5.0)
