"""The end of a pass: what hooks leave for it is done before the pass is over, nobody waiting."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from telegrad import dist_autograd, rpc
from telegrad.autograd import Completion, GradientTarget, PassEnd, Tensor, tensor
from telegrad.errors import CallTimeoutError, WorkerLostError
from telegrad.rpc import Future
from telegrad.rpc.seams import current_agent
from telegrad.testing import Cluster
from tests.patience import with_more_time


class Doubling(PassEnd):
    """Doubles the gradient of one leaf when it is let."""

    def __init__(self, leaf: Tensor) -> None:
        self.leaf = leaf
        self.target: GradientTarget | None = None
        self.finishing = threading.Event()
        self.abandoned = threading.Event()
        self.cause: BaseException | None = None
        self.done: Future[None] = Future()
        leaf.register_post_accumulate_hook(self.hook)

    def hook(self, _: Tensor, target: Any) -> None:
        target.at_end(self)
        self.target = target

    def finish(self) -> Completion:
        self.finishing.set()
        return self.done

    def complete(self) -> None:
        assert self.target is not None
        gradient = self.target.get(self.leaf)
        assert gradient is not None
        self.target.replace(self.leaf, gradient * 2.0)
        self.done.set_result(None)

    def abandon(self, cause: BaseException) -> None:
        self.cause = cause
        self.abandoned.set()


class Head:
    """Lives on another worker, with a leaf whose gradient is doubled at the end of the pass."""

    def __init__(self) -> None:
        self.weight = tensor(3.0, requires_grad=True)
        self.end = Doubling(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight

    def doubled(self, x: Tensor) -> Tensor:
        return x * 2.0

    def let(self) -> None:
        assert self.end.finishing.wait(20.0)
        self.end.complete()

    def gradient(self, context_id: int) -> float | None:
        found = dist_autograd.get_gradients(context_id).get(self.weight)
        return None if found is None else float(found.item())

    def cause(self) -> str:
        assert self.end.abandoned.wait(20.0)
        return type(self.end.cause).__name__


def started(context_id: int, loss: Tensor) -> Future[None]:
    """Runs a backward in a thread of the pool."""
    future: Future[None] = Future()

    def run() -> None:
        try:
            dist_autograd.backward(context_id, [loss])
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(None)

    current_agent().pool.submit(run)
    return future


def here() -> None:
    x = tensor(2.0, requires_grad=True)
    end = Doubling(x)
    with dist_autograd.context() as context_id:
        ended = started(context_id, x * 3.0)
        assert end.finishing.wait(20.0)
        assert not ended.done()
        assert not dist_autograd.get_gradients(context_id)
        end.complete()
        ended.wait(20.0)
        assert dist_autograd.get_gradients(context_id)[x].item() == 6.0
    assert x.grad is None
    assert not end.abandoned.is_set()


def test_backward_returns_when_the_ends_here_are_done(cluster: Cluster) -> None:
    cluster.call(0, here)


def there() -> None:
    x = tensor(2.0, requires_grad=True)
    head = rpc.remote("worker1", Head)
    with dist_autograd.context() as context_id:
        ended = started(context_id, head.rpc_sync().forward(x))
        head.rpc_sync().let()
        ended.wait(20.0)
        assert head.rpc_sync().gradient(context_id) == 4.0
        assert dist_autograd.get_gradients(context_id)[x].item() == 3.0


def test_the_pass_is_over_when_the_ends_on_every_worker_are_done(cluster: Cluster) -> None:
    cluster.call(0, there)


def failing_end() -> None:
    x = tensor(2.0, requires_grad=True)
    end = Doubling(x)
    head = rpc.remote("worker1", Head)
    with dist_autograd.context() as context_id:
        ended = started(context_id, head.rpc_sync().forward(x))
        head.rpc_sync().let()
        assert end.finishing.wait(20.0)
        end.done.set_exception(ArithmeticError("no average"))
        with pytest.raises(ArithmeticError, match="no average"):
            ended.wait(20.0)
        assert not dist_autograd.get_gradients(context_id)
        assert head.rpc_sync().gradient(context_id) is None
        assert isinstance(end.cause, ArithmeticError)
        assert head.rpc_sync().cause() == "ArithmeticError"


def test_an_end_that_fails_takes_the_gradients_of_the_pass_away(cluster: Cluster) -> None:
    cluster.call(0, failing_end)


def raising_end() -> None:
    x = tensor(2.0, requires_grad=True)
    end = Doubling(x)

    def finish() -> Completion:
        raise ArithmeticError("cannot finish")

    end.finish = finish  # type: ignore[method-assign]
    with dist_autograd.context() as context_id:
        with pytest.raises(ArithmeticError, match="cannot finish"):
            dist_autograd.backward(context_id, [x * 3.0])
        assert not dist_autograd.get_gradients(context_id)
        assert isinstance(end.cause, ArithmeticError)


def test_an_end_that_cannot_finish_fails_the_pass(cluster: Cluster) -> None:
    cluster.call(0, raising_end)


class Clumsy(Doubling):
    """Raises when it is to give up."""

    def abandon(self, cause: BaseException) -> None:
        super().abandon(cause)
        raise LookupError("nothing to give up")


class ClumsyHead(Head):
    def __init__(self) -> None:
        super().__init__()
        self.end = Clumsy(self.weight)


def clumsy_ends() -> None:
    x = tensor(2.0, requires_grad=True)
    end = Clumsy(x)
    head = rpc.remote("worker1", ClumsyHead)
    with dist_autograd.context() as context_id:
        ended = started(context_id, head.rpc_sync().forward(x))
        assert end.finishing.wait(20.0)
        end.done.set_exception(ArithmeticError("no average"))
        with pytest.raises(ArithmeticError, match="no average") as caught:
            ended.wait(20.0)
        assert "Clumsy.abandon raised LookupError('nothing to give up')" in caught.value.__notes__
        assert head.rpc_sync().cause() == "ArithmeticError"
        assert not dist_autograd.get_gradients(context_id)
        assert head.rpc_sync().gradient(context_id) is None


def test_an_end_that_raises_when_it_is_abandoned_holds_up_nobody(cluster: Cluster) -> None:
    cluster.call(0, clumsy_ends)


def late_end(timeout: float) -> None:
    x = tensor(2.0, requires_grad=True)
    end = Doubling(x)
    with dist_autograd.context() as context_id:
        with pytest.raises(
            CallTimeoutError, match="while worker 'worker0' waited for the end of the pass"
        ):
            dist_autograd.backward(context_id, [x * 3.0], timeout=timeout)
        assert isinstance(end.cause, CallTimeoutError)
        assert not dist_autograd.get_gradients(context_id)
        end.done.set_result(None)  # too late: changes nothing
        assert not dist_autograd.get_gradients(context_id)


def test_an_end_that_takes_too_long_is_abandoned(cluster: Cluster) -> None:
    with_more_time(lambda timeout: cluster.call(0, late_end, timeout), 0.05, 2.0, 12.0)


def late_hook(timeout: float) -> None:
    x = tensor(2.0, requires_grad=True)
    end = Doubling(x)

    def outlast_the_pass(*_: object) -> None:
        assert end.abandoned.wait(20.0)

    x.register_post_accumulate_hook(outlast_the_pass)
    with dist_autograd.context() as context_id:
        loss = rpc.rpc_sync("worker1", double, (x,)) * x
        with pytest.raises(CallTimeoutError):
            dist_autograd.backward(context_id, [loss], timeout=timeout)
    assert end.target is not None, "the pass was over before it had come there"


def double(x: Tensor) -> Tensor:
    return x * 2.0


def test_a_pass_that_ends_late_while_its_caller_computes_fails_no_other_work(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Another thread aborts it then, which also raised the error, and a log told of that."""
    with Cluster(2) as cluster:
        with_more_time(lambda timeout: cluster.call(0, late_hook, timeout), 0.3, 2.0, 12.0)
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


def begin_then_wait(loss: Tensor, end: Doubling, context_id: int) -> Future[None]:
    ended = started(context_id, loss)
    assert end.finishing.wait(20.0)
    return ended


def test_a_loss_is_heard_while_an_end_is_awaited(cluster: Cluster) -> None:
    lost = threading.Event()

    def program() -> None:
        x = tensor(2.0, requires_grad=True)
        end = Doubling(x)
        head = rpc.remote("worker2", Head)
        with dist_autograd.context() as context_id:
            ended = begin_then_wait(head.rpc_sync().forward(x), end, context_id)
            lost.set()
            with pytest.raises(WorkerLostError, match="worker2"):
                ended.wait(40.0)
            assert isinstance(end.cause, WorkerLostError)
            assert not dist_autograd.get_gradients(context_id)

    def kill() -> None:
        lost.wait(30.0)
        cluster.kill(2)

    thread = threading.Thread(target=kill)
    thread.start()
    cluster.call(0, program)
    thread.join()


def gradients_kept_apart() -> None:
    x = tensor(2.0, requires_grad=True)
    found: list[list[float]] = []

    def hook(leaf: Tensor, target: Any) -> None:
        kept = [each.get(leaf) for each in target.earlier()]
        found.append([gradient.item() for gradient in kept if gradient is not None])
        for each in target.earlier():
            each.replace(leaf, None)

    x.register_post_accumulate_hook(hook)
    with dist_autograd.context() as context_id:
        for factor in (3.0, 4.0):
            dist_autograd.backward(context_id, [x * factor])
        assert dist_autograd.get_gradients(context_id)[x].item() == 4.0
    with dist_autograd.context() as context_id:
        dist_autograd.backward(context_id, [x * 5.0])
    assert found == [[], [3.0], []]


def test_a_target_knows_the_earlier_passes_of_its_context(cluster: Cluster) -> None:
    cluster.call(0, gradients_kept_apart)
