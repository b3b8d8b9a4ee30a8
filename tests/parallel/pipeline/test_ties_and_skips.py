"""Skip connections, tied weights, and stages that several workers share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import telegrad as tg
from telegrad import nn, optim, rpc
from telegrad.autograd import Accumulate, Function, GradientTarget, Tensor
from telegrad.errors import InvalidUseError
from telegrad.parallel import Pipeline
from telegrad.parallel.pipeline import Pop, Stash, step_run
from telegrad.parallel.pipeline.mailbox import Key, Mailboxes, PlaceMailbox
from telegrad.testing import Cluster
from tests.parallel.pipeline.models import SCHEDULES, Block, batch, close, reference

CLUSTER_SIZE = 5
LOSS = nn.functional.cross_entropy
WORKERS = [f"worker{r}" for r in range(5)]
BLOCKS = 6


class Inner(nn.Module):
    """Puts a value aside in the middle of its own forward."""

    def __init__(self, seed: int, name: str) -> None:
        super().__init__()
        self.first, self.second = Block(seed), Block(seed + 1)
        self.stash = Stash(name)

    def forward(self, x: Tensor) -> Any:
        return self.second(self.stash(self.first(x)))


def same_as_whole(model: nn.Sequential, rows: int, **options: Any) -> Pipeline:
    inputs, labels = batch(rows)
    loss, gradients = reference(model, inputs, labels)
    pipe = Pipeline.from_sequential(model, loss=LOSS, **options)
    assert pipe.step(inputs, labels) == pytest.approx(loss, rel=1e-10)
    close(pipe.gradients(), gradients)
    np.testing.assert_allclose(pipe.forward(inputs).data, model(inputs).data, rtol=1e-10)
    return pipe


def train(model: nn.Sequential, m: int, **options: Any) -> Pipeline:
    """Trains a pipeline and the unsplit model, and compares them."""
    own = optim.Adam(model.parameters(), lr=1e-2)
    pipe = same_as_whole(model, m + 4, num_microbatches=m, **options)
    assert len(pipe.parameter_rrefs()) == len(list(model.parameters()))
    optimizer = pipe.optimizer(optim.Adam, lr=1e-2, max_norm=0.5)
    for _ in range(3):
        inputs, labels = batch(m + 4)
        optimizer.zero_grad()
        loss, _ = reference(model, inputs, labels)
        assert pipe.step(inputs, labels) == pytest.approx(loss, rel=1e-9)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        own.step()
        optimizer.step()
    state = pipe.state_dict()
    close(state, model.state_dict())
    pipe.load_state_dict(state)
    assert pipe.step(inputs, labels) == pytest.approx(reference(model, inputs, labels)[0])
    return pipe


def test_skip_connections_out_of_and_into_what_is_computed_again() -> None:
    """Without a pipeline, too: the second run puts no value aside, and takes none."""
    found = []
    for run in (lambda part, h: part(h), tg.recompute):
        x = Tensor(batch(3)[0], requires_grad=True)
        h = run(nn.Sequential(Block(0), Stash("past"), Block(1)), x)
        y = run(nn.Sequential(Pop("past"), Block(2), Stash("in"), Block(3), Pop("in")), h)
        (y**2).sum().backward()
        assert x.grad is not None
        found.append([y.data, x.grad.data])
        for name in ("past", "in"):
            with pytest.raises(InvalidUseError, match="found nothing"):
                Pop(name)(x)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-12)


class Saving(nn.Module):
    """Layers that are computed again in the backward."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Any:
        return tg.recompute(self.layers, x)


class Twice(nn.Sequential):
    """Layers that run two times, one after the other."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(super().forward(x))


def skips_of_saving_layers(schedule: str) -> None:
    for recompute in ("never", "always", "except_last"):
        inside = Twice(Stash("in"), Saving(Block(1), Pop("in")))
        parts = [Block(0), inside, Saving(Stash("past"), Block(2)), Block(3)]
        model = nn.Sequential(*parts, Saving(Block(4), Pop("past")), Block(5))
        options = {"schedule": schedule, "recompute": recompute}
        workers = ["worker0", "worker1"] if schedule == "zb-v" else WORKERS[:4]
        same_as_whole(
            model, 7, workers=workers, balance=[2, 1, 1, 2], num_microbatches=3, **options
        )


@pytest.mark.few(1)
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "zb-v"])
def test_skip_connections_of_layers_that_recompute_themselves(
    cluster: Cluster, schedule: str
) -> None:
    cluster.call(0, skips_of_saving_layers, schedule)


def past_one_stage() -> None:
    model = nn.Sequential(Inner(0, "past"), Block(2), nn.Sequential(Block(3), Pop("past")))
    same_as_whole(model, 4, workers=["worker1", "worker0", "worker2"], num_microbatches=2)


def test_a_skip_connection_goes_past_the_stages_between(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, str]] = []
    put = PlaceMailbox.put

    def watched(self: PlaceMailbox, step: int, key: Key, values: Any) -> None:
        seen.append((self.me.place, key.kind) if key.name else (-1, key.kind))
        put(self, step, key, values)

    monkeypatch.setattr(PlaceMailbox, "put", watched)
    cluster.call(0, past_one_stage)
    assert set(seen) - {(-1, "F"), (-1, "B")} == {(2, "F"), (0, "B")}


def wrong_skips() -> None:
    def make(*layers: Any) -> None:
        stages = [("worker1", nn.Sequential(*layers[:2])), ("worker2", nn.Sequential(*layers[2:]))]
        Pipeline(stages, num_microbatches=1, loss=LOSS)

    a, b = Block(0), Block(1)
    with pytest.raises(ValueError, match=r"Stash\('x'\) of stage 0 has no Pop"):
        make(a, Stash("x"), b)
    with pytest.raises(ValueError, match=r"Pop\('x'\) of stage 1 has no Stash"):
        make(a, nn.ReLU(), b, Pop("x"))
    with pytest.raises(ValueError, match=r"Stash\('x'\) is there 2 times, in the stages \[0, 1\]"):
        make(a, Stash("x"), b, Stash("x"), Pop("x"))
    with pytest.raises(ValueError, match=r"Pop\('x'\) is in stage 0, before Stash\('x'\)"):
        make(a, Pop("x"), b, Stash("x"))
    with pytest.raises(InvalidUseError, match=r"run Stash\('y'\) before it"):
        Pop("y")(np.ones(2))


def test_skip_connections_that_do_not_fit(cluster: Cluster) -> None:
    cluster.call(0, wrong_skips)


# -- tied weights --------------------------------------------------------------------------------


def tied(which: set[int]) -> nn.Sequential:
    blocks = [Block(k) for k in range(BLOCKS)]
    for k in which:
        blocks[k].linear.weight = blocks[min(which)].linear.weight
    return nn.Sequential(*blocks)


def train_tied(which: set[int], workers: Sequence[Any], schedule: str) -> None:
    train(tied(which), 3, workers=workers, schedule=schedule)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("groups", [False, True], ids=["workers", "groups"])
@pytest.mark.long
def test_tied_weights_are_one_parameter(
    cluster: Cluster, schedule: str, monkeypatch: pytest.MonkeyPatch, *, groups: bool
) -> None:
    """Some blocks share a weight, in any stages; these may have several workers each."""
    monkeypatch.setattr(step_run, "BUCKET_BYTES", 200)
    places = 3 if schedule in ("interleaved", "zb-v") else 4
    worker = st.sampled_from(WORKERS)
    several = st.lists(worker, min_size=1, max_size=3, unique=True)
    workers = st.tuples(*[several] * places) if groups else st.just(WORKERS[:places])

    @given(st.sets(st.integers(0, BLOCKS - 1), min_size=2), workers)
    @example(set(range(BLOCKS)), WORKERS[:places])  # several in a stage that has copies alone
    @settings(max_examples=5, deadline=None)
    def check(which: set[int], workers: Sequence[Any]) -> None:
        cluster.call(0, train_tied, which, workers, schedule)

    check()


# -- stages of several workers -------------------------------------------------------------------


def train_shared(groups: list[int], schedule: str, m: int, recompute: str) -> None:
    names = iter(WORKERS)
    workers = [[next(names) for _ in range(size)] for size in groups]
    model = nn.Sequential(*(Block(k) for k in range(BLOCKS)))
    pipe = train(model, m, workers=workers, schedule=schedule, recompute=recompute)
    found = pipe.report()
    assert len(found.idle) == sum(groups)
    assert found.held <= found.held_by_schedule
    assert pipe.picture().count("| idle") == 2 * sum(groups)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("bucket_bytes", [200, 2**22], ids=["small", "large"])
@pytest.mark.long
def test_workers_that_share_a_stage_train_one_model(
    cluster: Cluster, schedule: str, bucket_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their gradients travel in buckets: of a bias, or of a weight alone; or of all parameters."""
    monkeypatch.setattr(step_run, "BUCKET_BYTES", bucket_bytes)

    @given(
        st.sampled_from([[2, 2], [1, 3], [3, 1], [2, 1, 2], [5]]),
        st.integers(1, 6),
        st.sampled_from(["never", "always", "except_last"]),
    )
    @settings(max_examples=4, deadline=None)
    def check(groups: list[int], m: int, recompute: str) -> None:
        cluster.call(0, train_shared, groups, schedule, m, recompute)

    check()


def twice(parameter: Tensor, target: Accumulate) -> None:
    """Doubles a gradient where the pass keeps it."""
    assert isinstance(target, GradientTarget)
    gradient = target.get(parameter)
    assert gradient is not None
    target.replace(parameter, Tensor(gradient.data * 2))


class Hooked(nn.Sequential):
    """Two blocks, of which the second has hooks on its parameters."""

    def __init__(self) -> None:
        super().__init__(Block(0), Block(1))
        for parameter in self[1].parameters():
            parameter.register_post_accumulate_hook(twice)


def with_hooks() -> None:
    pipe = Pipeline([(WORKERS[:2], Hooked)], num_microbatches=2, loss=LOSS)
    inputs, labels = batch(8)
    _, gradients = reference(nn.Sequential(Block(0), Block(1)), inputs, labels)
    pipe.step(inputs, labels)
    close(pipe.gradients(), {f"0.{k}": x * (1 + k.startswith("1")) for k, x in gradients.items()})


def test_a_gradient_stays_for_the_hooks_of_its_parameter(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_run, "BUCKET_BYTES", 200)
    cluster.call(0, with_hooks)


events: list[tuple[str, str]] = []  # with the worker of each


class Noted(Function):
    """Notes its backward."""

    @staticmethod
    def forward(ctx: Any, x: Any, name: str) -> Any:
        ctx.name = name
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        events.append((rpc.get_worker_info().name, ctx.name))
        return g, None


class Two(nn.Module):
    """Two blocks, and a note when the backward is between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block(0), Block(1)

    def forward(self, x: Tensor) -> Any:
        return self.second(Noted.apply(self.first(x), "between"))


def overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = Pipeline([(["worker0", "worker1"], Two)], num_microbatches=4, loss=LOSS)
    events.clear()
    carry = Mailboxes.carry

    def watched(self: Mailboxes, to: Any, step: int, key: Key, values: Any, *rest: Any) -> None:
        if key.name:
            events.append((rpc.get_worker_info().name, f"{len(values)} gradients"))
        carry(self, to, step, key, values, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(Mailboxes, "carry", watched)
        pipe.step(*batch(8))
    there = [what for name, what in events if name == "worker1"]
    assert there == ["between", "2 gradients", "between", "4 gradients"]


def test_gradients_travel_while_the_last_backward_goes_on(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_run, "BUCKET_BYTES", 8 * 42)  # a block
    cluster.call(0, overlap, monkeypatch)


def wrong_groups() -> None:
    with pytest.raises(ValueError, match="each once"):
        Pipeline([(["worker1", "worker1"], Block, (0,))], num_microbatches=1, loss=LOSS)
    with pytest.raises(ValueError, match="needs one worker or several"):
        Pipeline([([], Block, (0,))], num_microbatches=1, loss=LOSS)


def test_lists_of_workers_are_checked(cluster: Cluster) -> None:
    cluster.call(0, wrong_groups)
