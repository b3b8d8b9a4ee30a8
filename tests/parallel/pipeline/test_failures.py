"""A stage that fails or is lost ends the step on all, leaves nothing, and can be replaced."""

from __future__ import annotations

import contextvars
import gc
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count as count_from
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telegrad import nn, optim, rpc
from telegrad.autograd import Function, Tensor
from telegrad.errors import (
    CallTimeoutError,
    EncodeError,
    InvalidUseError,
    PipelineError,
    WorkerLostError,
)
from telegrad.parallel import Pipeline
from telegrad.parallel.pipeline import places
from telegrad.parallel.pipeline.plan import StepOrder
from telegrad.parallel.pipeline.runner import StageRunner, StateCopy
from telegrad.parallel.pipeline.sources import MovedModule
from telegrad.rpc.seams import current_agent
from telegrad.testing import Cluster
from telegrad.testing.leaks import wait_until_gone
from telegrad.wire import encode
from tests.parallel.pipeline.models import (
    SCHEDULES,
    Block,
    batch,
    close,
    left_behind,
    losses,
    make_model,
    reference,
)

LOSS = nn.functional.cross_entropy
M = 4


OPTIONS = rpc.RpcOptions(lost_after=2.0, timeout=30.0)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(4, options=OPTIONS) as cluster:
        yield cluster


class Trap:
    """What happens in one action of one stage; set by a test, which runs in the same process."""

    def __init__(self) -> None:
        self.where: tuple[str, int, int] | None = None  # phase, stage, micro-batch
        self.reached, self.release = threading.Event(), threading.Event()
        self.raises = True
        self.counts: dict[tuple[str, int], int] = {}
        self.after = 0

    def pass_by(self, phase: str, stage: int, i: int) -> None:
        if self.where == (phase, stage, i):
            self.where = None
            if self.raises:
                raise ValueError("the trap")
            self.reached.set()
            assert self.release.wait(30)

    def next(self, phase: str, stage: int) -> int:
        """The number of this call; forwards and backwards run in the order of micro-batches."""
        i = self.counts.get((phase, stage), 0)
        self.counts[phase, stage] = i + 1
        return i


trap: list[Trap] = []


class Watch(Function):
    """Passes its input on, and looks into the trap in both directions."""

    @staticmethod
    def forward(ctx: Any, x: Any, stage: int, i: int) -> Any:
        ctx.stage, ctx.i = stage, i
        trap[-1].pass_by("forward", stage, i)
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        trap[-1].pass_by("backward", ctx.stage, ctx.i)
        return g, None, None


class Trapped(nn.Module):
    def __init__(self, stage: int) -> None:
        super().__init__()
        self.stage = stage
        self.block = Block(stage)

    def forward(self, x: Tensor) -> Any:
        y = self.block(x)
        return Watch.apply(y, self.stage, trap[-1].next("forward", self.stage) % M)


def count(schedule: str) -> int:
    """The number of stages: these schedules have two on each of the three workers."""
    return 6 if schedule in ("interleaved", "zb-v") else 3


def home(schedule: str, stage: int) -> int:
    """The rank of the worker of a stage; worker 0 drives."""
    return 1 + (5 - stage if schedule == "zb-v" and stage > 2 else stage % 3)


def make(schedule: str = "1f1b", **options: Any) -> Pipeline:
    trap.append(Trap())
    stages = [(f"worker{home(schedule, k)}", Trapped, (k,)) for k in range(count(schedule))]
    return Pipeline(stages, schedule=schedule, num_microbatches=M, loss=LOSS, **options)


def whole(schedule: str = "1f1b") -> nn.Sequential:
    return nn.Sequential(*(Trapped(k) for k in range(count(schedule))))


def expected(model: nn.Module) -> tuple[float, dict[str, Any]]:
    trap[-1].counts.clear()
    found = reference(model, *batch(9))
    trap[-1].counts.clear()
    return found


Where = tuple[str, int, int]  # phase, stage, micro-batch


def places_of(schedule: str) -> st.SearchStrategy[Where]:
    stages = st.integers(0, count(schedule) - 1)
    return st.tuples(st.sampled_from(["forward", "backward"]), stages, st.integers(0, M - 1))


def fail_at(schedule: str, where: Where) -> None:
    pipe = make(schedule)
    optimizer = pipe.optimizer(optim.SGD, lr=0.1)
    trap[-1].where = where
    with pytest.raises(PipelineError, match="the trap") as caught:
        pipe.step(*batch(9))
    phase, stage, i = where
    error = caught.value
    worker = f"worker{home(schedule, stage)}"
    assert (error.stage, error.worker, error.micro_batch) == (stage, worker, i)
    assert error.phase.startswith(phase)
    assert f"stage {stage} on worker" in str(error)
    assert f"of micro-batch {i}: ValueError" in str(error)
    assert isinstance(error.__cause__, ValueError)
    with pytest.raises(InvalidUseError, match="no gradients wait"):
        optimizer.step()
    loss, gradients = expected(whole(schedule))
    assert pipe.step(*batch(9)) == pytest.approx(loss, rel=1e-10)
    close(pipe.gradients(), gradients)
    optimizer.step()


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.long
def test_an_error_names_stage_micro_batch_and_phase_and_the_next_step_is_right(
    cluster: Cluster, schedule: str
) -> None:
    @given(places_of(schedule))
    @settings(max_examples=8, deadline=None)
    def check(where: Where) -> None:
        cluster.call(0, fail_at, schedule, where)

    check()
    for found in cluster.run(lambda: wait_until_gone("pipelines", left_behind)):
        assert found is None


def bad_loss(output: Any, target: Any) -> Any:
    raise KeyError("no such label")


class Fussy(optim.SGD):
    def update(self, *args: Any, **kwargs: Any) -> Any:
        raise ArithmeticError("no step")


def other_errors() -> None:
    trap.append(Trap())
    stages = [(f"worker{k + 1}", Trapped, (k,)) for k in range(2)]
    pipe = Pipeline(stages, num_microbatches=M, loss=bad_loss)
    with pytest.raises(PipelineError, match=r"stage 1 .* forward of micro-batch 0: KeyError"):
        pipe.step(*batch(9))
    pipe = make()
    optimizer = pipe.optimizer(Fussy, lr=0.1)
    pipe.step(*batch(9))
    with pytest.raises(PipelineError, match=r"stage 0 .* failed in the optimizer; .*no step") as e:
        optimizer.step()
    assert e.value.phase == "optimizer"
    with pytest.raises(InvalidUseError):
        optimizer.step()
    fine = pipe.optimizer(optim.SGD, lr=0.1)
    pipe.step(*batch(9))
    fine.step()


def test_errors_of_the_loss_and_of_the_optimizer(cluster: Cluster) -> None:
    cluster.call(0, other_errors)


def too_slow() -> None:
    pipe = make(timeout=2.0)
    trap[-1].where, trap[-1].raises = ("forward", 1, 2), False
    with pytest.raises(PipelineError, match="in time") as caught:
        pipe.step(*batch(9))
    trap[-1].release.set()
    assert isinstance(caught.value.__cause__, CallTimeoutError)


def test_a_stage_that_is_stuck_ends_the_step_at_its_deadline(cluster: Cluster) -> None:
    cluster.call(0, too_slow)
    trap[-1].release.set()


def interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = make()
    trap[-1].where, trap[-1].raises = ("forward", 1, 2), False

    def interrupt(*args: Any, **options: Any) -> Any:
        assert trap[-1].reached.wait(30)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(places, "as_completed", interrupt)
        with pytest.raises(KeyboardInterrupt):
            pipe.step(*batch(9))
    trap[-1].release.set()
    assert pipe.step(*batch(9)) == pytest.approx(step_after_interrupt(), rel=1e-10)


def interrupted_between_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C comes when the last stage has no order of the step yet."""
    pipe = make(timeout=5.0)
    to_wire, orders = StepOrder.to_wire, count_from(1)

    def interrupt(self: StepOrder) -> list[Any]:
        if next(orders) == 3:
            raise KeyboardInterrupt
        return to_wire(self)

    with monkeypatch.context() as patched:
        patched.setattr(StepOrder, "to_wire", interrupt)
        with pytest.raises(KeyboardInterrupt):
            pipe.step(*batch(9))
    assert pipe.step(*batch(9)) == pytest.approx(step_after_interrupt(), rel=1e-10)


def step_after_interrupt() -> float:
    return reference(nn.Sequential(*(Block(k) for k in range(3))), *batch(9))[0]


def too_large() -> None:
    pipe = make(timeout=5.0)
    inputs, _ = batch(9)
    with pytest.raises(EncodeError, match="too big"):
        pipe.step(inputs, np.zeros((9, 2**15)))
    trap[-1].counts.clear()
    assert pipe.step(*batch(9)) == pytest.approx(step_after_interrupt(), rel=1e-10)


def test_a_step_that_is_too_large_for_one_worker_ends_on_the_others() -> None:
    options = rpc.RpcOptions(limits=rpc.Limits(message_bytes=2**20))
    with Cluster(4, options=options) as cluster:
        cluster.call(0, too_large)


@pytest.mark.parametrize("work", [interrupted, interrupted_between_calls])
def test_ctrl_c_ends_the_step_on_all(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, work: Callable[..., None]
) -> None:
    cluster.call(0, work, monkeypatch)


def begun_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver gives a step up before its stage has begun, and the stage begins in the next."""
    pipe = Pipeline([("worker0", Block, (0,))], num_microbatches=M, loss=LOSS)
    run, served = StageRunner.run, count_from(1)
    called, ordered, over = (threading.Event() for _ in range(3))

    def late(self: StageRunner, given: Any) -> list[Any]:
        if next(served) > 1:
            ordered.set()
            assert over.wait(30)
            return run(self, given)
        called.set()
        assert ordered.wait(30)
        try:
            return run(self, given)
        finally:
            over.set()

    def interrupt(*args: Any, **options: Any) -> Any:
        assert called.wait(30)
        raise KeyboardInterrupt

    monkeypatch.setattr(StageRunner, "run", late)
    with monkeypatch.context() as patched:
        patched.setattr(places, "as_completed", interrupt)
        with pytest.raises(KeyboardInterrupt):
            pipe.step(*batch(9, 1))
    loss, gradients = reference(nn.Sequential(Block(0)), *batch(9))
    assert pipe.step(*batch(9)) == pytest.approx(loss, rel=1e-10)
    close(pipe.gradients(), gradients)


def test_a_stage_that_begins_late_takes_no_order_of_a_later_step(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.call(0, begun_late, monkeypatch)


# -- workers that are lost -----------------------------------------------------------------------


def error_of(work: Callable[[], object], cluster: Cluster, rank: int) -> PipelineError:
    """Loses a worker once work has reached the trap; returns the error of the work."""
    failed: list[PipelineError] = []

    def run() -> None:
        try:
            work()
        except PipelineError as error:
            failed.append(error)

    trainer = threading.Thread(target=contextvars.copy_context().run, args=(run,))
    trainer.start()
    assert trap[-1].reached.wait(30)
    cluster.kill(rank)
    trap[-1].release.set()
    trainer.join(30)
    trap[-1].counts.clear()
    (error,) = failed
    assert error.worker == f"worker{rank}"
    assert "is lost" in str(error)
    assert isinstance(error.__cause__, WorkerLostError)
    return error


def lose_at(cluster: Cluster, schedule: str, pipe: Pipeline, where: Where) -> PipelineError:
    """Loses a worker in the middle of an action; returns the error of the step."""
    trap[-1].counts.clear()
    trap[-1].where, trap[-1].raises = where, False
    rank = home(schedule, where[1])
    error = error_of(lambda: pipe.step(*batch(9)), cluster, rank)
    assert home(schedule, error.stage) == rank
    if where[:2] != ("backward", 0):  # else perhaps nobody waits for it
        assert error.micro_batch in range(M)
        assert error.phase.startswith(("forward", "backward"))
    return error


def lose(cluster: Cluster, schedule: str, where: Where) -> None:
    """Another worker takes the place of a lost one, and all go on from the last state."""
    pipe = make(schedule)
    optimizer = pipe.optimizer(optim.Adam, lr=0.01)
    losses(pipe, optimizer, 1, 9)
    pipe.state_dict()
    expected_losses = losses(pipe, optimizer, 3, 9)
    error = lose_at(cluster, schedule, pipe, where)
    with pytest.raises(PipelineError, match="lost"):
        pipe.step(*batch(9))
    pipe.replace(error.stage, "worker0")
    trap[-1].counts.clear()
    np.testing.assert_allclose(losses(pipe, optimizer, 3, 9), expected_losses, rtol=1e-12)


def lose_with_copies(cluster: Cluster, schedule: str, where: Where) -> None:
    """Neighbours' copies bring all stages to the last step of the optimizer."""
    pipe = make(schedule, keep_copies=True)
    optimizer = pipe.optimizer(optim.Adam, lr=0.01, max_norm=0.5)
    model = whole(schedule)
    own = optim.Adam(model.parameters(), lr=0.01)

    def train() -> None:
        for _ in range(3):
            loss, _ = expected(model)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            own.step()
            assert pipe.step(*batch(9)) == pytest.approx(loss, rel=1e-10)
            optimizer.step()

    train()
    pipe.replace(lose_at(cluster, schedule, pipe, where).stage, "worker0")
    train()
    close(pipe.state_dict(), model.state_dict())


def lose_in_a_copy(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the worker that is lost, not the one that has called it."""
    pipe = make("1f1b", keep_copies=True)
    optimizer = pipe.optimizer(optim.Adam, lr=0.01)
    expected = losses(pipe, optimizer, 1, 9)
    pipe.step(*batch(9))
    keep = StageRunner.keep

    def trapped(self: StageRunner, version: int, place: int, copied: Any) -> None:
        if current_agent().info.rank == 2 and place != 1:  # a neighbour's copy
            trap[-1].reached.set()
            assert trap[-1].release.wait(30)
        keep(self, version, place, copied)

    with monkeypatch.context() as patched:
        patched.setattr(StageRunner, "keep", trapped)
        error = error_of(optimizer.step, cluster, 2)
    assert (error.stage, error.phase) == (1, "copy")
    pipe.replace(1, "worker0")
    assert losses(pipe, optimizer, 1, 9) != expected


def test_a_worker_that_is_lost_with_a_copy_is_named(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.call(0, lose_in_a_copy, cluster, monkeypatch)


def test_copies_that_are_handed_out_stay_as_they_are() -> None:
    runner = StageRunner({})
    runner.keep(1, 0, StateCopy({}, []))
    found = runner.copies()
    runner.keep(2, 0, StateCopy({}, []))
    runner.keep(2, 1, StateCopy({}, []))
    assert {place: list(known) for place, known in found.items()} == {0: [1]}


def test_a_module_for_a_replacement_is_sent_without_its_state() -> None:
    """Zeros of all parameters were sent, which the state replaces that is sent next."""
    model = nn.Linear(300, 200)
    hollow = MovedModule.of(model).hollow()
    assert sum(np.asarray(each).nbytes for each in encode(hollow).externals) < 100
    made = hollow.build().state_dict()
    assert {name: (x.shape, x.dtype, bool(x.any())) for name, x in made.items()} == {
        name: (x.shape, x.dtype, False) for name, x in model.state_dict().items()
    }


def load_and_lose(cluster: Cluster) -> None:
    """A state that was loaded is not lost with a worker, though no optimizer has stepped since."""
    pipe = make("1f1b", keep_copies=True)
    optimizer = pipe.optimizer(optim.Adam, lr=0.01)
    losses(pipe, optimizer, 2, 9)
    state, of_optimizer = pipe.state_dict(), optimizer.state_dict()
    expected = losses(pipe, optimizer, 2, 9)
    pipe.load_state_dict(state)
    optimizer.load_state_dict(of_optimizer)
    cluster.kill(2)
    with pytest.raises(PipelineError, match="lost"):
        pipe.step(*batch(9))
    pipe.replace(1, "worker0")
    np.testing.assert_allclose(losses(pipe, optimizer, 2, 9), expected, rtol=1e-12)


def test_a_loaded_state_has_copies(cluster: Cluster) -> None:
    cluster.call(0, load_and_lose, cluster)


@pytest.mark.parametrize(("schedule", "stage"), [*(("1f1b", k) for k in range(3)), ("zb-v", 4)])
@pytest.mark.long
def test_copies_at_neighbours_lose_no_step(cluster: Cluster, schedule: str, stage: int) -> None:
    cluster.call(0, lose_with_copies, cluster, schedule, ("backward", stage, 1))


def lose_a_copy(cluster: Cluster, rank: int, *, keep_copies: bool) -> None:
    """Two workers share each of two stages, and these share a weight."""
    model = make_model(4)
    first, last = cast("list[Block]", [model[0], model[3]])
    last.linear.weight = first.linear.weight
    own = optim.Adam(model.parameters(), lr=0.01)
    workers = [["worker0", "worker1"], ["worker2", "worker3"]]
    pipe = Pipeline.from_sequential(
        model, workers, num_microbatches=M, loss=LOSS, keep_copies=keep_copies
    )
    optimizer = pipe.optimizer(optim.Adam, lr=0.01)

    def train() -> None:
        for _ in range(2):
            loss, _ = reference(model, *batch(9))
            own.step()
            assert pipe.step(*batch(9)) == pytest.approx(loss, rel=1e-10)
            optimizer.step()

    train()
    if not keep_copies:
        pipe.state_dict()
    cluster.kill(rank)
    with pytest.raises(PipelineError, match="is lost") as caught:
        pipe.step(*batch(9))
    assert (caught.value.stage, caught.value.worker) == (rank // 2, f"worker{rank}")
    pipe.replace(caught.value.stage, "worker0")
    train()
    close(pipe.state_dict(), model.state_dict())


@pytest.mark.few(1)
@pytest.mark.parametrize("keep_copies", [False, True], ids=["state", "copies"])
@pytest.mark.parametrize("rank", [2, 3])  # the first worker of a stage, and another one
def test_a_worker_that_shares_a_stage_is_replaced(
    cluster: Cluster, rank: int, keep_copies: bool
) -> None:
    cluster.call(0, partial(lose_a_copy, cluster, rank, keep_copies=keep_copies))


def lose_with_the_optimizer(cluster: Cluster) -> None:
    pipe = make()
    optimizer = pipe.optimizer(optim.SGD, lr=0.1)
    cluster.kill(2)
    with pytest.raises(
        PipelineError, match="stage 1 on worker 'worker2' is lost in the state"
    ) as e:
        optimizer.state_dict()
    assert (e.value.stage, e.value.worker) == (1, "worker2")


def test_the_state_of_an_optimizer_names_a_lost_stage(cluster: Cluster) -> None:
    cluster.call(0, lose_with_the_optimizer, cluster)


MANY = [pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("examples", [4, pytest.param(40, marks=MANY)], ids=["some", "many"])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.long
def test_a_lost_stage_is_replaced_and_training_goes_on(schedule: str, examples: int) -> None:
    @given(places_of(schedule))
    @settings(max_examples=examples, deadline=None)
    def check(where: Where) -> None:
        with Cluster(4, options=OPTIONS) as cluster:
            cluster.call(0, lose, cluster, schedule, where)
            for found in cluster.run(lambda: wait_until_gone("pipelines", left_behind)):
                assert found is None

    check()


def drop_while_gradients_wait() -> None:
    pipe = make()
    pipe.optimizer(optim.SGD, lr=0.1)
    pipe.step(*batch(9))


def test_a_pipeline_that_is_dropped_leaves_nothing(cluster: Cluster) -> None:
    cluster.call(0, drop_while_gradients_wait)
    gc.collect()
    for found in cluster.run(lambda: wait_until_gone("pipelines", left_behind)):
        assert found is None


def no_state() -> None:
    pipe = make()
    with pytest.raises(InvalidUseError, match="call state_dict"):
        pipe.replace(1, "worker0")


def test_without_a_state_nothing_is_replaced(cluster: Cluster) -> None:
    cluster.call(0, no_state)
