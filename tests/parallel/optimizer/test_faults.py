"""What ends the waits of trainers, and what a failed step says."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any
from unittest import mock

import numpy as np
import pytest

from telegrad import dist_autograd, optim, rpc
from telegrad.errors import (
    BlockingCallError,
    CallCancelledError,
    CallTimeoutError,
    WaitCycleError,
    WorkerLostError,
)
from telegrad.optim import Optimizer, State
from telegrad.parallel import (
    DistributedOptimizer,
    StepFailure,
    StepResult,
    step_failure,
)
from telegrad.parallel.optimizer import owners
from telegrad.parallel.optimizer.owners import GroupPart, OwnerOptimizer, StepRequest
from telegrad.parallel.optimizer.rounds import Rounds
from telegrad.rpc import Future
from telegrad.rpc.base.failure import describe_failure, rebuild_failure
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

CLUSTER_SIZE = 4
LONG = 40.0  # seconds for what no test waits for
TRAINERS = ("worker1", "worker2")


# -- a failed step says who stepped ----------------------------------------------------------------


class Refusing(Optimizer):
    """Never steps on the workers that are named."""

    def __init__(self, params: Any, *, workers: Sequence[str]) -> None:
        super().__init__(params)
        self.workers = workers

    def update(self, parameter: Array, gradient: Array, state: State) -> tuple[Array, State]:
        if rpc.get_worker_info().name in self.workers:
            raise ArithmeticError("this owner never steps")
        return parameter - gradient, state


def failure_of(optimizer: DistributedOptimizer, parts: Sequence[Any]) -> tuple[str, StepFailure]:
    with pytest.raises(ArithmeticError, match="never steps") as caught:
        step(optimizer, parts, XS[0], LONG)
    failure = step_failure(caught.value)
    assert failure is not None
    return "\n".join(caught.value.__notes__), failure


def partly_failed(trainers: Sequence[str] | None) -> None:
    parts = make_parts([f"worker{r}" for r in range(4)])
    options: dict[str, Any] = {"workers": ["worker1", "worker3"]}
    optimizer = DistributedOptimizer(Refusing, rrefs_of(parts), trainers=trainers, **options)
    calls = [
        rpc.rpc_async(trainer, failure_of, (optimizer, parts), timeout=LONG)
        for trainer in trainers or ["worker2"]
    ]
    for notes, failure in rpc.wait_all(calls):
        assert failure == StepFailure(("worker0", "worker2"), ("worker1", "worker3"))
        assert "of the owners worker0, worker2 stepped; worker1, worker3 did not step" in notes
        assert "worker 'worker3' failed too: ArithmeticError" in notes
    before = [array for i in range(4) for array in Part(i).data()]
    moved = [not np.array_equal(*pair) for pair in zip(values(parts), before, strict=True)]
    assert moved == [True, True, False, False] * 2


@pytest.mark.parametrize("trainers", [None, TRAINERS], ids=["asynchronous", "synchronous"])
def test_a_step_that_fails_on_some_owners_says_which_have_stepped(
    cluster: Cluster, trainers: Sequence[str] | None
) -> None:
    cluster.call(0, partly_failed, trainers)


def test_other_errors_are_of_no_step() -> None:
    assert step_failure(KeyError("lr")) is None
    assert str(StepFailure()) == "no owner stepped"
    said = str(StepFailure(("a", "b"), (), ("c",)))
    assert said == "a, b stepped; c may have stepped or not"


class Stuck(Optimizer):
    """On worker3 each update waits until it is told to go on."""

    reached, go_on = threading.Event(), threading.Event()

    def update(self, parameter: Array, gradient: Array, state: State) -> tuple[Array, State]:
        if rpc.get_worker_info().name == "worker3":
            Stuck.reached.set()
            Stuck.go_on.wait(LONG)
        return parameter - 0.1 * gradient, state


@pytest.fixture
def stuck() -> Iterator[None]:
    Stuck.reached, Stuck.go_on = threading.Event(), threading.Event()
    yield
    Stuck.go_on.set()


def has_reached() -> bool:
    return Stuck.reached.wait(LONG)


state: dict[str, Any] = {}


def begin_with_a_stuck_owner(options: dict[str, Any]) -> None:
    """Leaves a trainer, of a round two, in a step that worker3 does not end."""
    parts = make_parts(["worker0", "worker3"])
    optimizer = DistributedOptimizer(Stuck, rrefs_of(parts), **options)
    state["calls"] = [
        rpc.rpc_async(trainer, lost_owner, (optimizer, parts), timeout=LONG)
        for trainer in TRAINERS[: 2 if [*options] == ["trainers"] else 1]
    ]
    assert rpc.rpc_sync("worker3", has_reached, timeout=LONG)


def lost_owner(optimizer: DistributedOptimizer, parts: Sequence[Any]) -> list[Any]:
    """Returns what a step says during which an owner is lost, and one after that."""
    failures = []
    with pytest.raises(WorkerLostError, match="worker3") as caught:
        step(optimizer, parts, XS[0], LONG)
    failures.append(step_failure(caught.value))
    with pytest.raises(WorkerLostError, match="worker3") as caught:
        step(optimizer, parts[:1], XS[0], LONG)
    failures.append(step_failure(caught.value))
    return failures


def end_with_a_lost_owner() -> Any:
    return rpc.wait_all(state.pop("calls"))


def begin_to_ask_the_owners(verb: str) -> None:
    """Leaves a thread in the middle of what asks the owners; worker3 does not answer."""
    optimizer = DistributedOptimizer(optim.SGD, rrefs_of(make_parts(["worker0", "worker3"])), lr=1)
    arguments: list[Any] = []
    if verb == "load_state_dict":
        arguments = [optimizer.state_dict()]
    elif verb == "add_param_group":
        arguments = [{"params": rrefs_of(make_parts(["worker3"]))}]
    pool = ThreadPoolExecutor(1)
    ask = getattr(optimizer, verb)
    state["asking"] = pool.submit(copy_context().run, ask, *arguments)
    pool.shutdown(wait=False)
    assert rpc.rpc_sync("worker3", has_reached, timeout=LONG)


def answer_of_the_owners() -> None:
    state.pop("asking").result(LONG)


@pytest.mark.usefixtures("stuck")
@pytest.mark.parametrize(
    ("verb", "step_of_it"),
    [
        ("state_dict", "state"),
        ("load_state_dict", "load"),
        ("load_state_dict", "check_options"),
        ("add_param_group", "add_group"),
    ],
)
def test_an_owner_lost_that_is_asked(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, verb: str, step_of_it: str
) -> None:
    asked = getattr(OwnerOptimizer, step_of_it)

    def stuck_on_worker3(self: OwnerOptimizer, *arguments: Any) -> Any:
        if rpc.get_worker_info().name == "worker3":
            Stuck.reached.set()
            Stuck.go_on.wait(LONG)
        return asked(self, *arguments)

    monkeypatch.setattr(OwnerOptimizer, step_of_it, stuck_on_worker3)
    cluster.call(0, begin_to_ask_the_owners, verb)
    cluster.kill(3)
    with pytest.raises(WorkerLostError, match="worker3"):
        cluster.call(0, answer_of_the_owners)


@pytest.mark.usefixtures("stuck")
@pytest.mark.parametrize(
    "options",
    [{}, {"trainers": TRAINERS}, {"trainers": TRAINERS, "staleness": 3}],
    ids=["asynchronous", "synchronous", "bounded"],
)
def test_an_owner_lost_in_the_middle_of_a_step(cluster: Cluster, options: dict[str, Any]) -> None:
    cluster.call(0, begin_with_a_stuck_owner, options)
    cluster.kill(3)
    for first, second in cluster.call(0, end_with_a_lost_owner):
        assert first == StepFailure(("worker0",), (), ("worker3",))
        assert second is not None
        assert second.stepped == ("worker0",)


def measured_with_a_lost_owner() -> StepFailure | None:
    parts, optimizer = state.pop("clipped")
    before = values(parts[:1])
    with pytest.raises(WorkerLostError, match="worker3") as caught:
        step(optimizer, parts[:1], XS[0], LONG)
    close(values(parts[:1]), before)
    return step_failure(caught.value)


def make_clipped() -> None:
    parts = make_parts(["worker0", "worker3"])
    state["clipped"] = parts, DistributedOptimizer(optim.SGD, rrefs_of(parts), max_norm=1.0)


def test_nobody_steps_where_the_norm_is_not_known(cluster: Cluster) -> None:
    cluster.call(0, make_clipped)
    cluster.kill(3)
    assert cluster.call(0, measured_with_a_lost_owner) == StepFailure()


def outcome_of_a_wait(error: Exception) -> tuple[Any, Exception | None, bool]:
    call: Future[Any] = Future()
    call.set_exception(error)
    return owners._outcome(call)


@pytest.mark.parametrize("kind", [WaitCycleError, BlockingCallError])
def test_what_ends_the_wait_itself_says_nothing_of_the_owner(kind: type[Exception]) -> None:
    """The step was sent, and may yet be taken: "failed" would be wrong."""
    with pytest.raises(kind, match="this very wait"):
        outcome_of_a_wait(kind("this very wait"))
    theirs = rebuild_failure(describe_failure(kind("in the owner's step"), "worker3"))
    assert isinstance(theirs, kind)
    _, error, sent = outcome_of_a_wait(theirs)
    assert type(error) is kind
    assert sent


# -- trainers that are lost, late, or cancelled ---------------------------------------------------


def begin_rounds(options: dict[str, Any]) -> StepResult:
    """Leaves worker1 in its second step, where it waits for worker2."""
    parts = make_parts(["worker0", "worker1"])
    optimizer = DistributedOptimizer(
        optim.SGD, rrefs_of(parts), lr=0.1, trainers=list(TRAINERS), **options
    )
    state["call"] = rpc.rpc_async("worker1", three_steps, (optimizer, parts), timeout=LONG)
    return rpc.rpc_sync("worker2", step, (optimizer, parts, XS[3], LONG), timeout=LONG)


def three_steps(optimizer: DistributedOptimizer, parts: Sequence[Any]) -> list[StepResult]:
    return [step(optimizer, parts, x, LONG) for x in XS[:3]]


def end_rounds() -> list[StepResult]:
    done: list[StepResult] = state.pop("call").wait()
    return done


@pytest.mark.parametrize("options", [{}, {"max_norm": 1e9}, {"staleness": 0}])
def test_nobody_waits_for_a_trainer_that_is_lost(cluster: Cluster, options: dict[str, Any]) -> None:
    first = cluster.call(0, begin_rounds, options)
    cluster.kill(2)
    results = cluster.call(0, end_rounds)
    assert len(results) == 3
    if "staleness" not in options:
        assert first.trainers == 2
        assert [result.trainers for result in results] == [2, 1, 1]


def gives_up(optimizer: DistributedOptimizer, parts: Sequence[Any]) -> None:
    with pytest.raises(CallTimeoutError) as caught:
        step(optimizer, parts, 5 * XS[0], 0.3)
    assert "worker 'worker1' waited for worker2" in str(caught.value)
    assert caught.value.worker == "worker2"
    assert "a round waits for a step of every trainer" in "".join(caught.value.__notes__)


def late_partner() -> None:
    parts = make_parts(["worker0", "worker3"])
    optimizer = DistributedOptimizer(optim.SGD, rrefs_of(parts), lr=0.1, trainers=TRAINERS)
    rpc.rpc_sync("worker1", gives_up, (optimizer, parts), timeout=LONG)
    calls = [
        rpc.rpc_async(trainer, step, (optimizer, parts, x, LONG), timeout=LONG)
        for trainer, x in zip(TRAINERS, XS, strict=False)
    ]
    assert [result.trainers for result in rpc.wait_all(calls)] == [2, 2]
    close(values(parts), mean_steps(2, [XS[:2]], lr=0.1))


def test_the_deadline_ends_the_wait_and_takes_the_gradients_back(cluster: Cluster) -> None:
    cluster.call(0, late_partner)


@contextmanager
def arrivals() -> Iterator[threading.Semaphore]:
    """Counts the trainers that have come into a round, here where the optimizer was made."""
    arrived, arrive = threading.Semaphore(0), Rounds.arrive

    def tell(rounds: Rounds[Any, Any], trainer: object, share: object) -> object:
        answer = arrive(rounds, trainer, share)
        arrived.release()
        return answer

    with mock.patch.object(Rounds, "arrive", tell):
        yield arrived


def cancelled_partner() -> None:
    parts = make_parts(["worker0", "worker3"])
    optimizer = DistributedOptimizer(Stuck, rrefs_of(parts), trainers=TRAINERS)
    arguments = [(optimizer, parts, x, LONG) for x in XS[:2]]
    with arrivals() as arrived:
        first = rpc.rpc_async("worker1", step, arguments[0], timeout=LONG)
        assert arrived.acquire(timeout=LONG)
    second = rpc.rpc_async("worker2", step, arguments[1], timeout=LONG)  # its call completes it
    assert rpc.rpc_sync("worker3", has_reached, timeout=LONG)
    assert second.cancel()
    with pytest.raises(CallCancelledError):
        second.wait()
    assert rpc.rpc_sync("worker3", go_on)
    assert first.wait().trainers == 2
    close(values(parts[:1]), mean_steps(1, [XS[:2]], lr=0.1))


def go_on() -> bool:
    Stuck.go_on.set()
    return True


@pytest.mark.usefixtures("stuck")
def test_a_round_that_is_stepped_is_nobodys_to_cancel(cluster: Cluster) -> None:
    cluster.call(0, cancelled_partner)


def leaves_at_the_end(optimizer: DistributedOptimizer, parts: Sequence[Any]) -> None:
    try:
        Stuck.reached.set()
        step(optimizer, parts, XS[0], LONG)
    finally:
        optimizer.leave()


def cancelled_loop() -> None:
    parts = make_parts(["worker0", "worker3"])
    optimizer = DistributedOptimizer(optim.SGD, rrefs_of(parts), lr=0.1, trainers=TRAINERS)
    loop = rpc.rpc_async("worker2", leaves_at_the_end, (optimizer, parts), timeout=LONG)
    assert rpc.rpc_sync("worker2", has_reached, timeout=LONG)
    loop.cancel()
    call = rpc.rpc_async("worker1", step, (optimizer, parts, XS[1], LONG), timeout=LONG)
    assert call.wait().trainers == 1
    close(values(parts), mean_steps(2, [XS[1:2]], lr=0.1))


@pytest.mark.usefixtures("stuck")
def test_a_loop_that_is_cancelled_leaves_all_the_same(cluster: Cluster) -> None:
    cluster.call(0, cancelled_loop)


def share_an_optimizer() -> None:
    parts = make_parts(["worker1"])
    state["shared"] = parts, DistributedOptimizer(optim.SGD, rrefs_of(parts), trainers=TRAINERS)


def shared() -> Any:
    return state["shared"]


def wait_alone() -> None:
    parts, optimizer = rpc.rpc_sync("worker0", shared)
    Stuck.reached.set()
    with pytest.raises(WorkerLostError, match="worker0"):
        step(optimizer, parts, XS[0], LONG)


@pytest.mark.usefixtures("stuck")
def test_nobody_waits_where_the_worker_is_lost_that_made_the_optimizer(cluster: Cluster) -> None:
    cluster.call(0, share_an_optimizer)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            cluster.call(1, wait_alone)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert Stuck.reached.wait(LONG)
    cluster.kill(0)
    thread.join()
    state.clear()
    assert errors == []


def measured_then_released() -> None:
    part = Part(0)
    rrefs = [rpc.RRef(p) for p in part.parameters()]
    owner = OwnerOptimizer(optim.SGD, [GroupPart(0, [0, 1], rrefs)], False, [], {"lr": 1.0})
    before = part.data()
    with dist_autograd.context() as context_id:
        dist_autograd.backward(context_id, [part.w.sum() + part.b.sum()])
        request = StepRequest([(context_id, 1.0)], {0: {"lr": 1.0}}, ticket=7).plain([0])
        norm, over = owner.measure(request)
        assert norm == pytest.approx(2.0)
        assert over == []
    assert owner.step(request) == []
    after = [array - 1.0 for array in before]
    close(part.data(), after)
    # What was held is gone, and so is the context: a round without this share.
    assert owner.step(request) == [context_id]
    close(part.data(), after)


def test_a_round_is_stepped_with_what_was_measured(cluster: Cluster) -> None:
    cluster.call(0, measured_then_released)
