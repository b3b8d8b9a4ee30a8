"""Ranks with different numbers of inputs: what they compute, and what happens when one fails."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telegrad import collectives as dist
from telegrad import rpc
from telegrad.autograd import Tensor, recompute, tensor
from telegrad.errors import (
    AutogradError,
    BlockingCallError,
    CollectiveMismatchError,
    InvalidUseError,
    WorkerLostError,
)
from telegrad.nn import BatchNorm1d, Embedding, Linear, Module, Sequential
from telegrad.optim import SGD
from telegrad.parallel import DistributedDataParallel, allreduce_hook
from telegrad.parallel.join import Roll, Turn, read_roll
from telegrad.testing import Cluster
from telegrad.types import Array

N = 3
CLUSTER_SIZE = N
RATE = 0.1
X = np.random.default_rng(0).normal(size=(N, 4, 5, 4))  # by rank, step, row and column


def net() -> Module:
    rng = np.random.default_rng(0)
    f = np.float64
    return Sequential(
        Linear(4, 6, dtype=f, rng=rng), BatchNorm1d(6, dtype=f), Linear(6, 2, dtype=f, rng=rng)
    )


def loss_of(outputs: Any) -> Tensor:
    return cast("Tensor", (outputs * outputs).mean())


def state(module: Module) -> bytes:
    return b"".join(array.tobytes() for array in module.state_dict().values())


def alone(counts: Sequence[int], *, keep_divisor: bool) -> dict[str, Array]:
    """Trains one process on the gradients of all ranks that still have inputs."""
    model = net()
    optimizer = SGD(model.parameters(), lr=RATE)
    buffers = [{name: x.data.copy() for name, x in model.named_buffers()}] * N  # by rank
    for k in range(max(counts)):
        active = [r for r in range(N) if counts[r] > k]
        shared = buffers[active[0]]
        total = [np.zeros(p.shape) for p in model.parameters()]
        for r in active:
            for name, buffer in model.named_buffers():
                buffer.data = shared[name].copy()
            model.zero_grad()
            loss_of(model(tensor(X[r, k]))).backward()
            for i, p in enumerate(model.parameters()):
                assert p.grad is not None
                total[i] += p.grad.data
            buffers[r] = {name: x.data for name, x in model.named_buffers()}
        for p, gradient in zip(model.parameters(), total, strict=True):
            p.grad = Tensor(gradient / (N if keep_divisor else len(active)))
        optimizer.step()
    last = buffers[active[0]]
    return {name: last.get(name, array) for name, array in model.state_dict().items()}


def uneven(
    counts: Sequence[int], keep_divisor: bool, group: Any = None, *, run: Any = None
) -> dict[str, Array]:
    rank = dist.get_rank()
    model = DistributedDataParallel(net(), process_group=group, bucket_bytes=100)
    optimizer = SGD(model.parameters(), lr=RATE)
    with model.join(divide_by_initial_world_size=keep_divisor):
        for k in range(counts[rank]):
            optimizer.zero_grad()
            x = tensor(X[rank, k])
            loss_of(model(x) if run is None else run(model, x)).backward()
            optimizer.step()
    return model.state_dict()


COUNTS = [(1, 2, 4), (4, 1, 0), (0, 0, 3), (2, 2, 2), (0, 0, 0), (3, 0, 3)]


def all_uneven(run: Any) -> list[bytes]:
    dist.init_process_group()
    found = []
    for counts in COUNTS:
        for keep_divisor in (True, False):
            trained = uneven(counts, keep_divisor, run=run)
            if max(counts):
                expected = alone(counts, keep_divisor=keep_divisor)
                for name, array in trained.items():
                    np.testing.assert_allclose(array, expected[name], 1e-9, 1e-12, err_msg=name)
            found.append(b"".join(array.tobytes() for array in trained.values()))
    dist.barrier()  # the ranks are in step
    return found


@pytest.mark.parametrize("run", [None, recompute], ids=["run", "recomputed"])
@pytest.mark.long
def test_the_last_model_is_that_of_the_ranks_with_most_inputs(cluster: Cluster, run: Any) -> None:
    assert len({tuple(each) for each in cluster.run(all_uneven, run)}) == 1


def accumulating() -> bytes:
    """Each rank adds up another number of inputs without a message, before one that is averaged."""
    rank = dist.init_process_group().rank
    model = DistributedDataParallel(net(), broadcast_buffers=False)
    optimizer = SGD(model.parameters(), lr=RATE)
    with model.join():
        for _ in range(rank + 1):
            optimizer.zero_grad()
            with model.no_sync():
                for k in range(rank):
                    loss_of(model(tensor(X[rank, k]))).backward()
            loss_of(model(tensor(X[rank, 3]))).backward()
            optimizer.step()
    return b"".join(array.tobytes() for array in model.state_dict().values())


def test_no_sync_needs_no_turn(cluster: Cluster) -> None:
    assert len(set(cluster.run(accumulating))) == 1


class Words(Module):
    def __init__(self) -> None:
        super().__init__()
        rng = np.random.default_rng(0)
        self.table = Embedding(20, 4, sparse=True, dtype=np.float64, rng=rng)
        self.layer = Linear(4, 2, dtype=np.float64, rng=rng)

    def forward(self, words: Array) -> Tensor:
        return self.layer(self.table(words))


def words_through_a_hook() -> tuple[bytes, Array]:
    rank = dist.init_process_group().rank
    model = DistributedDataParallel(Words())
    model.register_comm_hook(None, allreduce_hook)
    optimizer = SGD(model.parameters(), lr=RATE)
    with model.join():
        for k in range(2 + rank):
            optimizer.zero_grad()
            loss_of(model(np.array([rank, k, 7]))).backward()
            optimizer.step()
    return state(model), model.state_dict()["table.weight"]


def test_rows_and_hooks_are_shadowed_too(cluster: Cluster) -> None:
    found = cluster.run(words_through_a_hook)
    assert len({each for each, _ in found}) == 1
    untouched = [r for r in range(20) if r not in {0, 1, 2, 3, 7}]
    before = Words().state_dict()["table.weight"]
    assert (found[0][1][untouched] == before[untouched]).all()
    assert (found[0][1][[0, 1, 2, 3, 7]] != before[[0, 1, 2, 3, 7]]).all()


# -- failures ----------------------------------------------------------------------------------


def raising(step: int) -> str:
    """Rank 1 raises, while rank 0 is out of inputs and rank 2 has more."""
    rank = dist.init_process_group().rank
    model = DistributedDataParallel(net())

    def train() -> None:
        with model.join():
            for k in range((1, 3, 4)[rank]):
                if rank == 1 and k == step:
                    raise ArithmeticError("no input today")
                loss_of(model(tensor(X[rank, k]))).backward()

    with pytest.raises(ArithmeticError) as caught:
        train()
    return str(caught.value)


@pytest.mark.parametrize("step", [0, 1, 2])
def test_a_block_that_raises_on_one_rank_raises_on_every(cluster: Cluster, step: int) -> None:
    for error in cluster.run(raising, step):
        assert "no input today" in error


def raising_in_backward() -> str:
    rank = dist.init_process_group().rank
    model = DistributedDataParallel(net(), bucket_bytes=1)

    def fail(_: Tensor) -> None:
        raise ArithmeticError("no gradient today")

    def train() -> None:
        with model.join():
            for k in range((1, 3, 4)[rank]):
                if rank == 1 and k == 2:
                    next(model.parameters()).register_hook(fail)
                loss_of(model(tensor(X[rank, k]))).backward()

    with pytest.raises((ArithmeticError, AutogradError)) as caught:
        train()
    return str(caught.value)


def test_a_backward_that_raises_in_a_block_raises_on_every_rank(cluster: Cluster) -> None:
    for error in cluster.run(raising_in_backward):
        assert "no gradient today" in error


def killed_in_a_block() -> str:
    """Rank 2 ends in the middle of a backward that ranks 0 and 1 shadow."""
    rank = dist.init_process_group().rank
    model = DistributedDataParallel(net(), bucket_bytes=1)
    token = np.zeros(1)

    def kill(_: Tensor) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    try:
        with model.join():
            for k in range((1, 1, 3)[rank]):
                if k == 1:
                    dist.recv(token, src=0)
                    dist.recv(token, src=1)
                    next(model.parameters()).register_hook(kill)
                loss_of(model(tensor(X[rank, k]))).backward()
            dist.send(token, dst=2)  # this rank has ended its first backward
    except WorkerLostError as error:
        return str(error)
    return "no error"


@pytest.mark.long
def test_a_process_that_is_killed_in_a_block_fails_the_others() -> None:
    with Cluster(N, processes=True) as cluster, ThreadPoolExecutor(N) as pool:
        running = [pool.submit(cluster.call, r, killed_in_a_block) for r in range(N)]
        for future in running[:2]:
            assert "worker2" in future.result()
        assert running[2].exception() is not None
        cluster.kill(2)


def different_things() -> str:
    """Rank 1 runs two backwards of one forward."""
    rank = dist.init_process_group().rank
    model = DistributedDataParallel(net())

    def train() -> None:
        with model.join():
            for k in range(2):
                outputs = model(tensor(X[rank, k]))
                loss_of(outputs).backward(retain_graph=rank == 1)
                if rank == 1:
                    loss_of(outputs).backward()

    with pytest.raises(CollectiveMismatchError) as caught:
        train()
    return str(caught.value)


def test_ranks_that_do_different_things_are_named(cluster: Cluster) -> None:
    for error in cluster.run(different_things):
        assert "rank 0 began a forward, but rank 1 began a backward" in error


def different_arguments() -> None:
    rank = dist.init_process_group().rank
    model = DistributedDataParallel(net())
    with pytest.raises(CollectiveMismatchError, match="divide_by_initial_world_size"):
        with model.join(divide_by_initial_world_size=rank != 1):
            pass


def test_arguments_that_differ_are_named(cluster: Cluster) -> None:
    cluster.run(different_arguments)


def refused() -> None:
    rank = dist.init_process_group().rank
    model = DistributedDataParallel(net())
    with model.join():
        with pytest.raises(InvalidUseError, match="inside a join"), model.join():
            pass
        with model.join(enable=False):
            pass
        loss_of(model(tensor(X[rank, 0]))).backward()
    with model.join():  # another block may follow
        loss_of(model(tensor(X[rank, 0]))).backward()


def test_a_block_inside_a_block_is_refused(cluster: Cluster) -> None:
    cluster.run(refused)


class OnTheLoop:
    def __init__(self) -> None:
        dist.init_process_group()
        self.model = DistributedDataParallel(net())

    async def train(self) -> None:
        with self.model.join():
            pass


def on_the_loop() -> None:
    there = rpc.remote(0, OnTheLoop)
    with pytest.raises(BlockingCallError, match="train in a thread"):
        there.rpc_async().train().wait()


def test_a_block_on_a_loop_is_refused() -> None:
    with Cluster(1) as cluster:
        cluster.call(0, on_the_loop)


def failing_alone() -> None:
    dist.init_process_group()
    model = DistributedDataParallel(net())
    with pytest.raises(ArithmeticError), model.join():
        raise ArithmeticError("no input today")
    with model.join():
        loss_of(model(tensor(X[0, 0]))).backward()


def test_a_group_of_one_goes_on_after_a_failure() -> None:
    with Cluster(1) as cluster:
        cluster.call(0, failing_alone)


# -- turns ---------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from(list(Turn)), min_size=1, max_size=6))
def test_a_roll_holds_the_ranks_with_inputs_or_names_two_that_differ(turns: list[Turn]) -> None:
    done = {turn for turn in turns if turn is not Turn.OUT}
    read: Callable[[], Roll] = lambda: read_roll(turns, range(len(turns)))  # noqa: E731
    if len(done) > 1:
        with pytest.raises(CollectiveMismatchError, match="began a forward"):
            read()
        return
    roll = read()
    assert roll.active == tuple(r for r, turn in enumerate(turns) if turn is not Turn.OUT)
    assert roll.turn is (done.pop() if done else Turn.OUT)
