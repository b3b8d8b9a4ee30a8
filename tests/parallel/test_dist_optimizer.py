"""Parameters are stepped where they live, by several trainers at once."""

from __future__ import annotations

import threading
from typing import Any, cast

import numpy as np
import pytest

from telegrad import dist_autograd, rpc
from telegrad.autograd import Tensor, tensor
from telegrad.errors import ContextError, WorkerLostError
from telegrad.nn import Linear, Module, Parameter, Sequential
from telegrad.optim import SGD, Optimizer, State
from telegrad.parallel import DistributedOptimizer, parameter_rrefs
from telegrad.testing import Cluster
from telegrad.types import Array
from tests.parallel.trained_parts import close

X = np.random.default_rng(0).normal(size=(6, 4))


class Head(Module):
    """A linear layer that is the same wherever it is made."""

    def __init__(self, seed: int, n: int = 4) -> None:
        super().__init__()
        self.linear = Linear(n, n, dtype=np.float64, rng=np.random.default_rng(seed))
        self.unused = Parameter(np.ones(n))

    def forward(self, x: Tensor) -> Tensor:
        return cast("Tensor", np.tanh(self.linear(x)))

    def values(self) -> list[Array]:
        return [parameter.data for parameter in self.parameters()]


# -- one trainer ---------------------------------------------------------------------------------


def momentum_steps() -> None:
    stem = Head(1)
    heads = [rpc.remote(f"worker{r}", Head, (r + 1,)) for r in (1, 2)]
    rrefs = [*parameter_rrefs(stem), *(p for head in heads for p in parameter_rrefs(head))]
    assert {rref.owner_name() for rref in rrefs} == {"worker0", "worker1", "worker2"}
    optimizer = DistributedOptimizer(SGD, rrefs, lr=0.1, momentum=0.9)
    for _ in range(5):
        with dist_autograd.context() as context_id:
            x = stem(tensor(X))
            for head in heads:
                x = head.rpc_sync().forward(x)
            dist_autograd.backward(context_id, [(x * x).sum()])
            optimizer.step(context_id)
    local = [Head(seed) for seed in (1, 2, 3)]
    whole = Sequential(*local)
    local_optimizer = SGD(
        [p for part in local for p in part.linear.parameters()], lr=0.1, momentum=0.9
    )
    for _ in range(5):
        local_optimizer.zero_grad()
        y = whole(tensor(X))
        (y * y).sum().backward()
        local_optimizer.step()
    close(stem.values(), local[0].values())
    for head, part in zip(heads, local[1:], strict=True):
        close(head.rpc_sync().values(), part.values())
    assert all(parameter.grad is None for parameter in stem.parameters())


def test_steps_equal_those_of_one_worker(cluster: Cluster) -> None:
    cluster.call(0, momentum_steps)


def rrefs_of_modules() -> None:
    here, there = Head(1), rpc.remote("worker1", Head, (1,))
    rrefs = parameter_rrefs(here)
    for rref, parameter in zip(rrefs, here.parameters(), strict=True):
        assert rref.local_value() is parameter
    assert all(rref.owner_name() == "worker1" for rref in parameter_rrefs(there))
    assert len(parameter_rrefs(rpc.RRef(here))) == len(rrefs)
    with pytest.raises(TypeError, match="a Module or an RRef of one"):
        parameter_rrefs([here])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="is to list, not to a Module"):
        parameter_rrefs(rpc.remote("worker1", list))


def test_parameter_rrefs(cluster: Cluster) -> None:
    cluster.call(0, rrefs_of_modules)


# -- bad input and faults ------------------------------------------------------------------------


class Refusing(Optimizer):
    def update(self, parameter: Array, gradient: Array, state: State) -> tuple[Array, State]:
        raise ArithmeticError("this optimizer never steps")


def bad_input() -> None:
    rrefs = parameter_rrefs(rpc.remote("worker1", Head, (1,)))
    for args, error, words in (
        ((Head, rrefs), TypeError, "must be a subclass of telegrad.optim.Optimizer"),
        ((SGD, []), ValueError, "at least one parameter"),
        ((SGD, rrefs[0]), TypeError, r"write \[rref\]"),
        ((SGD, [Head(1)]), TypeError, r"params_rref\[0\] must be an RRef"),
    ):
        with pytest.raises(error, match=words):
            DistributedOptimizer(*args)
    with pytest.raises(ValueError, match="lr"):
        DistributedOptimizer(SGD, rrefs, lr=-1.0)
    with pytest.raises(TypeError, match="not of a parameter"):
        DistributedOptimizer(SGD, [rpc.RRef("no parameter")], lr=0.1)
    optimizer = DistributedOptimizer(SGD, rrefs, lr=0.1)
    with dist_autograd.context() as context_id:
        optimizer.step(context_id)  # no gradients: nothing is stepped
    with pytest.raises(ContextError, match="released"):
        optimizer.step(context_id)


def test_bad_input(cluster: Cluster) -> None:
    cluster.call(0, bad_input)


def failing_owners() -> None:
    heads = [rpc.remote(f"worker{r}", Head, (r,)) for r in (1, 2)]
    rrefs = [p for head in heads for p in parameter_rrefs(head)]
    optimizer = DistributedOptimizer(Refusing, rrefs)
    with dist_autograd.context() as context_id:
        x = tensor(X)
        for head in heads:
            x = head.rpc_sync().forward(x)
        dist_autograd.backward(context_id, [x.sum()])
        with pytest.raises(ArithmeticError, match="never steps") as caught:
            optimizer.step(context_id)
        notes = "\n".join(caught.value.__notes__)
        assert "worker 'worker1'" in notes
        assert "worker 'worker2' failed too: ArithmeticError" in notes


def test_the_first_error_is_raised_with_the_others_as_notes(cluster: Cluster) -> None:
    cluster.call(0, failing_owners)


# -- several trainers, one shared head -----------------------------------------------------------


class CubeHead:
    """sum(w ** 3 * x), whose gradient 3 * w ** 2 * x shows at which w it was taken."""

    def __init__(self, n: int) -> None:
        self.weight = Parameter(np.full(n, 2.0))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        w = self.weight * 1.0  # the one read of the parameter
        return (w * w * w * x).sum(), w.detach()

    def parameters(self) -> list[rpc.RRef[Parameter]]:
        return [rpc.RRef(self.weight)]

    def gradient(self, context_id: int) -> Array:
        return dist_autograd.get_gradients(context_id)[self.weight].data

    def value(self) -> Array:
        return self.weight.data


def train_on_shared_head(head: rpc.RRef[Any], steps: int, seed: int) -> Array:
    """Returns the sum of what it stepped by."""
    rng = np.random.default_rng(seed)
    optimizer = DistributedOptimizer(SGD, head.rpc_sync().parameters(), lr=1e-4)
    total = np.zeros(4)
    for _ in range(steps):
        x = tensor(rng.uniform(0.1, 1.0, size=4), requires_grad=True)
        with dist_autograd.context() as context_id:
            loss, w = head.rpc_sync().forward(x)
            dist_autograd.backward(context_id, [loss])
            gradient = head.rpc_sync().gradient(context_id)
            np.testing.assert_allclose(gradient, 3 * w.data**2 * x.data, rtol=1e-12)
            of_x = dist_autograd.get_gradients(context_id)[x].data
            np.testing.assert_allclose(of_x, w.data**3, rtol=1e-12)
            optimizer.step(context_id)
        total += gradient
    return total


def two_trainers(cluster: Cluster, steps: int) -> None:
    head = cluster.call(0, make_shared_head)
    results: dict[int, Any] = {}

    def run(rank: int) -> None:
        try:
            results[rank] = cluster.call(rank, train_from, rank, steps)
        except BaseException as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results.values():
        if isinstance(result, BaseException):
            raise result
    # No update was lost: the head went down by all that both stepped by.
    expected = 2.0 - 1e-4 * (results[1] + results[2])
    np.testing.assert_allclose(head.value(), expected, rtol=1e-9)
    cluster.call(0, forget_shared_head)


shared: list[CubeHead] = []


def make_shared_head() -> CubeHead:
    shared.append(CubeHead(4))
    return shared[0]


def forget_shared_head() -> None:
    shared.clear()


def shared_head() -> rpc.RRef[CubeHead]:
    return rpc.RRef(shared[0])


def train_from(rank: int, steps: int) -> Array:
    return train_on_shared_head(rpc.rpc_sync("worker0", shared_head), steps, rank)


@pytest.mark.long
@pytest.mark.timeout(200)
def test_two_trainers_share_a_head_for_a_thousand_steps_each() -> None:
    with Cluster(3, limit=180.0) as cluster:
        two_trainers(cluster, 1000)


def test_an_owner_lost_between_steps(cluster: Cluster) -> None:
    reached, go_on = threading.Event(), threading.Event()
    failures: list[BaseException] = []

    def train() -> None:
        optimizer = DistributedOptimizer(
            SGD, parameter_rrefs(rpc.remote("worker1", Head, (1,))), lr=0.1
        )
        reached.set()
        go_on.wait(30)
        with dist_autograd.context() as context_id, pytest.raises(WorkerLostError, match="worker1"):
            optimizer.step(context_id)

    def run() -> None:
        try:
            cluster.call(0, train)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert reached.wait(20)
    cluster.kill(1)
    go_on.set()
    thread.join()
    assert failures == []
