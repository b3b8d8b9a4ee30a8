"""A pipeline computes what the unsplit model computes, whatever the split and the schedule."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from telegrad import dist_autograd, nn, optim, rpc
from telegrad.autograd import Tensor, no_grad
from telegrad.errors import InvalidUseError
from telegrad.parallel import DistributedOptimizer, LossScale, Pipeline, RemoteModule
from telegrad.testing import Cluster, FaultPlan
from telegrad.transport.session import liveness, ticker
from telegrad.types import Array
from tests.parallel.pipeline.models import (
    SCHEDULES,
    WIDTH,
    Block,
    Case,
    batch,
    cases,
    close,
    losses,
    make_model,
    reference,
    run_case,
)

CLUSTER_SIZE = 5
LOSS = nn.functional.cross_entropy
WORKERS = [f"worker{r}" for r in range(5)]


MANY = [pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("examples", [12, pytest.param(200, marks=MANY)], ids=["some", "many"])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.long
def test_every_split_has_the_loss_and_gradients_of_the_whole(
    cluster: Cluster, schedule: str, examples: int
) -> None:
    @given(case=cases(schedule))
    @settings(max_examples=examples, deadline=None)
    def check(case: Case) -> None:
        cluster.call(0, run_case, case)

    check()


# -- training ------------------------------------------------------------------------------------


def train() -> None:
    options: dict[str, Any] = {"max_norm": 0.05, "loss_scale": LossScale(2.0**10)}
    model = make_model()
    pipe = Pipeline.from_sequential(model, WORKERS[:3], num_microbatches=4, loss=LOSS)
    optimizer = pipe.optimizer(optim.Adam, lr=1e-2, **options)
    found = losses(pipe, optimizer, 5, 10)
    inputs, labels = batch(10)
    own = optim.Adam(model.parameters(), lr=1e-2)
    expected = []
    for _ in range(5):
        expected.append(reference(model, inputs, labels)[0])
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        own.step()
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    close(pipe.state_dict(), model.state_dict())
    saved, state = optimizer.state_dict(), own.state_dict()
    assert saved["state"].keys() == state["state"].keys()
    again = Pipeline.from_sequential(make_model(), WORKERS[3:], num_microbatches=2, loss=LOSS)
    more = again.optimizer(optim.Adam, lr=1e-2, **options)
    again.load_state_dict(pipe.state_dict())
    more.load_state_dict(saved)
    np.testing.assert_allclose(losses(again, more, 3, 10), losses(pipe, optimizer, 3, 10))


def test_training_follows_the_unsplit_model_and_goes_on_from_its_state(cluster: Cluster) -> None:
    cluster.call(0, train)


def step_without_gradients() -> None:
    pipe = Pipeline.from_sequential(make_model(3), WORKERS[:2], num_microbatches=2, loss=LOSS)
    with no_grad():
        with pytest.raises(InvalidUseError, match=r"under no_grad\(\) .* write pipe\.forward"):
            pipe.step(*batch(4))
        with pytest.raises(InvalidUseError, match="under no_grad"):
            pipe.step_async(*batch(4)).wait()
        assert pipe.forward(batch(4)[0]) is not None
    pipe.step(*batch(4))


def test_a_step_under_no_grad_is_refused(cluster: Cluster) -> None:
    cluster.call(0, step_without_gradients)


def add_up() -> None:
    model = make_model(3)
    pipe = Pipeline.from_sequential(model, WORKERS[:2], num_microbatches=2, loss=LOSS)
    optimizer = pipe.optimizer(optim.SGD, lr=0.1)
    first, second = batch(4), batch(4, seed=1)
    with pytest.raises(InvalidUseError, match="no gradients wait"):
        optimizer.step()
    pipe.step(*first)
    pipe.step(*second)
    one, other = reference(model, *first)[1], reference(model, *second)[1]
    close(pipe.gradients(), {name: one[name] + other[name] for name in one})
    optimizer.step()
    with pytest.raises(InvalidUseError, match="no gradients wait"):
        pipe.gradients()


def train_without_the_first_weight(balance: Any) -> None:
    model = make_model(4)
    next(model.parameters()).requires_grad = False
    pipe = Pipeline.from_sequential(
        model, ["worker1", "worker2"], balance=balance, num_microbatches=2, loss=LOSS
    )
    optimizer = pipe.optimizer(optim.Adam, lr=0.01)
    own = optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.01)
    inputs, labels = batch(7)
    for _ in range(3):
        pipe.step(inputs, labels)
        optimizer.step()
        LOSS(model(inputs), labels).backward()
        own.step()
        own.zero_grad()
    close(pipe.state_dict(), model.state_dict())


@pytest.mark.parametrize("balance", ["parameters", "time"])
def test_parameters_that_need_no_gradient_stay(cluster: Cluster, balance: str) -> None:
    cluster.call(0, train_without_the_first_weight, balance)


def test_gradients_of_steps_add_up_until_the_optimizer_uses_them_up(cluster: Cluster) -> None:
    cluster.call(0, add_up)


def in_a_context() -> None:
    model = make_model(3)
    pipe = Pipeline.from_sequential(
        model, WORKERS[1:3], balance=[2, 1], num_microbatches=2, loss=LOSS
    )
    inputs, labels = batch(4)
    expected = reference(model, inputs, labels)[1]
    with dist_autograd.context() as context_id:
        pipe.step(inputs, labels)
        (stage,) = [rref for rref in pipe.parameter_rrefs() if rref.owner_name() == "worker2"][:1]
        other = rpc.rpc_sync("worker2", squares, (stage,))
        dist_autograd.backward(context_id, [other])
        found = pipe.gradients()
        name = next(n for n in found if n.startswith("2."))
        array = pipe.state_dict()[name]
        close(found, {**expected, name: expected[name] + 2 * array})
        optimizer = pipe.optimizer(optim.SGD, lr=1.0)
        DistributedOptimizer(optim.SGD, pipe.parameter_rrefs(), lr=0.5).step(context_id)
        optimizer.step()
        after = pipe.state_dict()[name]
    np.testing.assert_allclose(after, array - 1.5 * found[name])


@rpc.expose
def squares(parameter: rpc.RRef[Any]) -> Any:
    value = parameter.local_value()
    return (value * value).sum()


def test_inside_a_context_gradients_are_those_of_the_context(cluster: Cluster) -> None:
    cluster.call(0, in_a_context)


async def train_on_a_loop(pipe: Pipeline) -> list[float]:
    return list(await asyncio.gather(*(pipe.step_async(*batch(4, seed)) for seed in range(3))))


def asynchronous() -> None:
    model = make_model(2)
    pipe = Pipeline.from_sequential(model, WORKERS[:2], num_microbatches=2, loss=LOSS)
    found = asyncio.run(train_on_a_loop(pipe))
    assert found == pytest.approx([reference(model, *batch(4, seed))[0] for seed in range(3)])


def test_steps_may_be_awaited(cluster: Cluster) -> None:
    cluster.call(0, asynchronous)


# -- the forms of stages and arguments -----------------------------------------------------------


def forms() -> None:
    model = make_model(4)
    here = Block(2)
    same: Any = model[2]
    pipe = Pipeline(
        [
            ("worker1", Block(0)),
            ("worker2", Block, (1,)),
            rpc.RRef(here),
            RemoteModule("worker3", Block, (3,)),
        ],
        num_microbatches=3,
        loss=LOSS,
    )
    inputs, labels = batch(7)
    loss, gradients = reference(model, inputs, labels)
    assert pipe.step(inputs, labels) == pytest.approx(loss, rel=1e-10)
    close(pipe.gradients(), gradients)
    pipe.optimizer(optim.SGD, lr=0.1).step()
    assert not np.array_equal(here.linear.weight.data, same.linear.weight.data)


def test_a_stage_may_be_moved_made_or_used_where_it_is(cluster: Cluster) -> None:
    cluster.call(0, forms)


class Two(nn.Module):
    """Two inputs, two outputs, the second with a mask of the whole batch's columns."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.block = Block(seed)

    def forward(self, x: Any, y: Any, mask: Any) -> Any:
        return self.block(x) * mask, y + x, mask


class Last(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.block = Block(seed)

    def forward(self, x: Any, y: Any, mask: Any) -> Any:
        return self.block(x * mask), y


def mean_square(x: Any, y: Any, target: Any) -> Any:
    return ((x - target) * (x - target) + y * y).mean()


def several() -> None:
    stages = [("worker1", Two, (0,)), ("worker2", Two, (1,)), ("worker3", Last, (2,))]
    rng = np.random.default_rng(0)
    x, y, target = (rng.normal(size=(5, WIDTH)) for _ in range(3))
    mask = rng.integers(0, 2, WIDTH).astype(np.float64)
    pipe = Pipeline(
        stages,
        num_microbatches=2,
        loss=mean_square,
        specs=["split", "split", "replicate", lambda t, n: np.array_split(t, n)],
    )
    modules: list[Any] = [Two(0), Two(1), Last(2)]
    outputs: Any = x, y, mask
    for module in modules:
        outputs = module(*outputs)
    first, second = outputs
    loss = mean_square(first, second, target)
    loss.backward()
    assert pipe.step(x, y, mask, target) == pytest.approx(loss.item(), rel=1e-10)
    found = pipe.gradients()
    for j, module in enumerate(modules):
        for name, p in module.named_parameters():
            np.testing.assert_allclose(found[f"{j}.{name}"], p.grad.data, rtol=1e-10)
    first, second = pipe.forward(x, y, mask)
    assert first.shape == second.shape == (5, WIDTH)


def test_stages_may_have_several_inputs_and_outputs(cluster: Cluster) -> None:
    cluster.call(0, several)


# -- over a network that loses, repeats and delays messages ---------------------------------------


SEEN: list[Array] = []


class Seeing(Block):
    """Keeps the arrays that it is called with."""

    def forward(self, x: Tensor) -> Tensor:
        SEEN.append(x.data)
        return super().forward(x)


def share_inputs() -> None:
    SEEN.clear()
    pipe = Pipeline(
        [("worker0", Seeing, (0,)), ("worker1", Seeing, (1,))], num_microbatches=3, loss=LOSS
    )
    inputs, labels = batch(8)
    pipe.step(inputs, labels)
    assert sum(np.shares_memory(inputs, each) for each in SEEN) == 3
    assert len(SEEN) == 6


def test_a_stage_of_the_driver_gets_its_inputs_without_a_copy(cluster: Cluster) -> None:
    cluster.call(0, share_inputs)


BAD = FaultPlan(seed=7, drop=0.02, duplicate=0.05, reorder=0.1, kill=0.01)
LOST_AFTER = 3.0


@pytest.fixture
def quick_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has workers beat every 50 ms, and be as patient as ever.

    A message that is lost, or comes behind the next one, is missed only at the next message. Where
    nothing else is sent that is a heartbeat: with five of them in LOST_AFTER the waits for these
    were five sixths of the time.
    """
    for module in (ticker, liveness):
        monkeypatch.setattr(module, "BEATS_PER_BOUND", 60)


@pytest.mark.usefixtures("quick_beats")
def test_a_bad_network_changes_nothing() -> None:
    with Cluster(
        3, options=rpc.RpcOptions(timeout=40.0, lost_after=LOST_AFTER), faults=BAD
    ) as cluster:
        cluster.call(0, run_case, Case("1f1b", 3, [2, 3, 5], 4, 10, [(0, 9)], "never"))
