"""What runs over a faulty network: each worker runs the same, and its result is a plain value."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, cast

import numpy as np

from telegrad import collectives as dist
from telegrad import dist_autograd, nn, optim, rpc
from telegrad.autograd import Tensor, tensor
from telegrad.collectives import ReduceOp
from telegrad.collectives.seams import Groups
from telegrad.parallel import DistributedDataParallel
from telegrad.rpc import seams
from telegrad.rpc.seams import current_agent
from telegrad.types import Array
from tests.faults.outcome import Failure, failure_of
from tests.faults.remote_code import add, echo

CALLS = 30
MIB = 2**20


def rank_and_size() -> tuple[int, int]:
    return rpc.get_worker_info().rank, len(rpc.get_worker_infos())


def others() -> list[int]:
    r, n = rank_and_size()
    return [(r + step) % n for step in range(1, n)]


# -- calls -------------------------------------------------------------------------------------


def calls() -> list[int]:
    """Calls one after the other, then all at once."""
    one_by_one = [rpc.rpc_sync(to, add, (i, to)) for i in range(CALLS) for to in others()]
    at_once = [rpc.rpc_async(to, add, (i, to)) for i in range(CALLS) for to in others()]
    return one_by_one + rpc.wait_all(at_once)


class Counter:
    """Counts how often it was asked, under a lock of its owner's making: one call at a time."""

    def __init__(self) -> None:
        self.count = 0

    async def increment(self) -> int:
        self.count += 1
        return self.count


def each_call_runs_once() -> list[int]:
    """Has a counter on another worker count; a call that ran twice would be seen."""
    counter = rpc.remote(others()[0], Counter)
    counts = rpc.wait_all([counter.rpc_async().increment() for _ in range(CALLS)])
    return sorted(counts)


def around(hops: int) -> list[int]:
    """Calls the next worker, which calls the next; returns the ranks on the way."""
    r, n = rank_and_size()
    return [r] if hops == 0 else [r, *rpc.rpc_sync((r + 1) % n, around, (hops - 1,))]


def nested_calls() -> list[list[int]]:
    return [around(hops) for hops in range(8)]


def fail(words: str) -> None:
    raise ValueError(words)


def failing_calls() -> list[str]:
    found = []
    for to in others():
        try:
            rpc.rpc_sync(to, fail, (f"told to {to}",))
        except ValueError as error:
            found.append(str(error))
    return found


def big_arrays() -> list[float]:
    """Sends arrays through another worker and back; returns their sums once they are compared."""
    sums = []
    for to in others():
        for size in (100, 300_000, 3 * MIB):
            array = np.arange(size, dtype=np.uint8)
            back = rpc.rpc_sync(to, echo, (array,))
            assert np.array_equal(back, array)
            sums.append(float(back.sum(dtype=np.int64)))
    return sums


# -- references --------------------------------------------------------------------------------


class Shelf:
    """Keeps what others hand to it."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def keep(self, value: Any) -> int:
        self.kept.append(value)
        return len(self.kept)

    def fetch_all(self) -> list[Any]:
        return [reference.to_here() for reference in self.kept]


def references() -> list[Any]:
    """Makes values here and there, hands references on, and fetches them by way of a third."""
    r, n = rank_and_size()
    shelves = [rpc.remote(to, Shelf) for to in others()]
    found: list[Any] = []
    for step, shelf in enumerate(shelves):
        for i in range(5):
            value = rpc.remote((r + step + 2) % n, add, (i, 10 * r))
            found.append(shelf.rpc_sync().keep(value))
        found.append(shelf.rpc_sync().keep(rpc.RRef([r, step])))
        found.append(shelf.rpc_sync().fetch_all())
    return found


# -- gradients ---------------------------------------------------------------------------------


def weights(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).normal(size=shape)


class Layer:
    """A weight that is the same wherever it is made."""

    def __init__(self, seed: int) -> None:
        self.weight = tensor(weights(seed, 4, 4), requires_grad=True)

    def forward(self, x: Tensor) -> Tensor:
        return cast("Tensor", np.tanh(x @ self.weight))

    def gradient(self, context_id: int) -> list[list[float]]:
        found: list[list[float]] = dist_autograd.get_gradients(context_id)[
            self.weight
        ].data.tolist()
        return found


def one_backward(round_: int) -> list[Any]:
    """Takes gradients through a layer on each worker, this one included."""
    r, n = rank_and_size()
    layers = [rpc.remote(to, Layer, (10 * r + to + round_,)) for to in range(n)]
    x = tensor(weights(99 + round_, 3, 4), requires_grad=True)
    with dist_autograd.context() as context_id:
        y = x
        for layer in layers:
            y = layer.rpc_sync().forward(y)
        unused = layers[others()[0]].rpc_sync().forward(x)
        dist_autograd.backward(context_id, [(y * y).sum()])
        found = [layer.rpc_sync().gradient(context_id) for layer in layers]
        found.append(dist_autograd.get_gradients(context_id)[x].data.tolist())
        assert unused.shape == (3, 4)
    return found


def gradients() -> list[Any]:
    return [one_backward(round_) for round_ in range(3)]


def gradients_in_threads() -> list[Any]:
    """Several contexts at once."""
    with ThreadPoolExecutor(3) as pool:
        agent = current_agent()
        return list(pool.map(partial(_with_agent, agent), range(3)))


def _with_agent(agent: seams.AgentCore, round_: int) -> list[Any]:
    with seams.use_agent(agent):
        return one_backward(round_)


# -- collectives -------------------------------------------------------------------------------


def begin() -> tuple[int, int]:
    """Makes the group of all, unless an earlier program has; returns rank and size."""
    if current_agent().attachments[Groups].world is None:
        dist.init_process_group(timeout=30.0)
    return dist.get_rank(), dist.get_world_size()


def collective_operations() -> list[bytes]:
    """Every operation, with arrays that go at once, that have to ask, and in a ring."""
    r, n = begin()
    found = []
    for size in (3, 20_000, 200_000):
        base = weights(size, size)
        for op in (ReduceOp.SUM, ReduceOp.MAX):
            array = base * (r + 1)
            dist.all_reduce(array, op)
            found.append(array)
        array = base + r
        dist.broadcast(array, n - 1)
        found += [array, *dist.all_gather(base[: size // (r + 1)] + r)]
        dist.barrier()
        found.append(pass_round(base * r))
    return [each.tobytes() for each in found]


def meet() -> None:
    begin()
    dist.barrier()


def all_reduce_fails() -> Failure:
    return failure_of(lambda: dist.all_reduce(np.ones(200_000)))


def all_reduce_among(ranks: list[int]) -> float:
    """Sums ones in a new group; returns how many they were."""
    array = np.ones(3)
    dist.all_reduce(array, group=dist.new_group(ranks))
    return float(array[0])


def pass_round(array: Array) -> Array:
    """Sends to the right and receives from the left."""
    r, n = rank_and_size()
    received = np.empty_like(array)
    if r % 2 == 0:
        dist.send(array, (r + 1) % n)
    dist.recv(received, (r - 1) % n)
    if r % 2 == 1:
        dist.send(array, (r + 1) % n)
    return received


class Net(nn.Module):
    """Two layers that are the same wherever they are made."""

    def __init__(self) -> None:
        super().__init__()
        rng = np.random.default_rng(0)
        self.first = nn.Linear(20, 300, rng=rng)
        self.second = nn.Linear(300, 3, rng=rng)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(cast("Tensor", np.tanh(self.first(x))))


def data_parallel() -> list[bytes]:
    """Trains a copy of a model on each worker, each on its own data."""
    r, _ = begin()
    model = DistributedDataParallel(Net(), bucket_bytes=4096)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        x = tensor(weights(10 * step + r, 8, 20).astype(np.float32))
        (model(x) * model(x)).mean().backward()
        optimizer.step()
    return [each.data.tobytes() for each in model.parameters()]


PROGRAMS: dict[str, Callable[[], list[Any]]] = {
    each.__name__: each
    for each in (
        calls,
        each_call_runs_once,
        nested_calls,
        failing_calls,
        big_arrays,
        references,
        gradients,
        gradients_in_threads,
        collective_operations,
        data_parallel,
    )
}
