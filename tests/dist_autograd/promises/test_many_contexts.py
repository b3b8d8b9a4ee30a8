"""Ten thousand contexts leave nothing on any worker; calls of many contexts that are served as one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from telegrad import dist_autograd, rpc
from telegrad.autograd import Tensor, tensor
from telegrad.dist_autograd.seams import Container
from telegrad.errors import ContextMismatchError
from telegrad.rpc import seams
from telegrad.rpc.seams import current_agent
from telegrad.testing import Cluster
from telegrad.testing.leaks import wait_until_gone
from tests.soak import load
from tests.soak.test_soak import (
    AROUND,
    MOST_RESIDENT,
    ROUNDS,
    grown,
    one_arena,  # noqa: F401 - a fixture
    resident_growth,
)

WORKERS = 3
THREADS = TASKS = 4  # of each worker
CONTEXTS = 10_000
LIMIT_SECONDS = 1500.0

# -- memory ----------------------------------------------------------------------------------------


class Layer:
    """Owns a leaf; its callers use it in ever new contexts."""

    def __init__(self) -> None:
        self.weight = tensor(np.full(8, 0.5), requires_grad=True)

    def forward(self, x: Tensor, following: rpc.RRef[Layer] | None) -> Tensor:
        y = x * self.weight
        return y if following is None else following.rpc_sync().forward(y, None)

    def gradient(self, context_id: int) -> Any:
        return dist_autograd.get_gradients(context_id)[self.weight].data


class BrokenOffError(Exception):
    """Leaves a context in the middle."""


def one_context(n: int, layers: list[rpc.RRef[Layer]]) -> None:
    """Through both other workers; every few contexts end without backward, or by an error."""
    x = tensor(np.ones(8), requires_grad=True)
    try:
        with dist_autograd.context() as context_id:
            y = layers[0].rpc_sync().forward(x, layers[1])
            if n % 7 == 3:
                raise BrokenOffError
            if n % 5 == 2:
                return
            dist_autograd.backward(context_id, [(x * y).sum()])
            found = layers[n % 2].rpc_sync().gradient(context_id)
            np.testing.assert_array_equal(found, np.full(8, 0.5))
    except BrokenOffError:
        assert n % 7 == 3


def left_over() -> list[str]:
    """What this worker still has of contexts, calls and references but those to the layers."""
    contexts = len(current_agent().attachments[Container])
    left = [each for each in load.left_over() if "RRefs" not in each]
    return [*left, f"{contexts} contexts"] if contexts else left


def fill_pools() -> None:
    rpc.wait_all([rpc.rpc_async(r, load.meet) for r in range(WORKERS) for _ in range(load.POOL)])


def one_round(contexts: int) -> Any:
    """Opens contexts one after the other; returns what each worker holds after that, a Sample."""
    layers = [rpc.remote(r, Layer) for r in (1, 2)]
    for n in range(contexts):
        one_context(n, layers)
    for what in (left_over, load.not_receipted):
        for r in range(WORKERS):
            wait_until_gone(f"what worker{r} has", _asking(r, what), within=60)
    return tuple(rpc.rpc_sync(r, load.sample) for r in range(WORKERS))


def _asking(rank: int, what: Callable[[], list[str]]) -> Callable[[], list[str]]:
    here = rank == rpc.get_worker_info().rank  # a call to ask would itself be under way
    return what if here else lambda: rpc.rpc_sync(rank, what)


@pytest.mark.long
@pytest.mark.usefixtures("one_arena")
@pytest.mark.timeout(LIMIT_SECONDS + 60)
def test_ten_thousand_contexts_leave_memory_flat_on_every_worker() -> None:
    """As tests/soak: looks at the second half, and at up to two more where memory has grown."""
    options = rpc.RpcOptions(timeout=120.0, num_threads=load.POOL, lost_after=20.0)
    with Cluster(WORKERS, processes=True, limit=LIMIT_SECONDS, options=options) as cluster:
        cluster.call(0, fill_pools)
        each = CONTEXTS // ROUNDS
        rounds = [cluster.call(0, one_round, each) for _ in range(ROUNDS)]
        for _ in range(2):
            if all(resident_growth(rounds, r) < MOST_RESIDENT for r in range(WORKERS)):
                break
            more = [cluster.call(0, one_round, each) for _ in range(ROUNDS // 2)]
            rounds = rounds[ROUNDS // 2 :] + more
    for r in range(WORKERS):
        samples = [held[r] for held in rounds]
        first, late = samples[: ROUNDS // 2 + 1], samples[-AROUND:]
        for what in ("tasks", "threads", "descriptors"):
            now = min(getattr(held, what) for held in late)
            assert now <= max(getattr(held, what) for held in first), f"worker{r}: {what}"
        assert grown(samples[ROUNDS // 2], samples[-1]) == {}, f"worker{r}"
        resident = [held.resident for held in samples]
        assert resident_growth(rounds, r) < MOST_RESIDENT, f"worker{r}: {resident}"


# -- a function that serves callers of several contexts at once -------------------------------------


class Batcher:
    """Gathers the calls of so many callers, then computes for all of them at once."""

    def __init__(self, size: int, how: str) -> None:
        self.weight = tensor(np.arange(1.0, 4.0), requires_grad=True)
        self._size = size
        self._how = how
        self._lock = threading.Lock()  # guards the two below
        self._given: list[Tensor] = []
        self._answers: list[rpc.Future[Tensor]] = []

    @rpc.functions.async_execution
    def push(self, x: Tensor) -> rpc.Future[Tensor]:
        answer: rpc.Future[Tensor] = rpc.Future()
        with self._lock:
            self._given.append(x)
            self._answers.append(answer)
            if len(self._given) < self._size:
                return answer
            given, self._given = self._given, []
            answers, self._answers = self._answers, []
        for each, value in zip(answers, getattr(self, self._how)(given), strict=True):
            each.set_result(value)
        return answer

    def one_by_one(self, given: list[Tensor]) -> list[Tensor]:
        """A graph for each caller: each context has its own."""
        return [x * self.weight for x in given]

    def stacked(self, given: list[Tensor]) -> list[Tensor]:
        """One graph for all callers."""
        found = np.stack(given) * self.weight
        return [found[i] for i in range(len(given))]

    def by_others(self, given: list[Tensor]) -> list[Tensor]:
        """Calls a third worker for all of them in the context of the last one."""
        return [rpc.rpc_sync(2, times, (x, self.weight)) for x in given]

    def gradient(self, context_id: int) -> Any:
        found = dist_autograd.get_gradients(context_id).get(self.weight)
        return None if found is None else found.data


def times(x: Tensor, weight: Tensor) -> Tensor:
    return x * weight


def calls_of_contexts(how: str, callers: int) -> None:
    """Each caller has its own input, thread and context; all are served at once."""
    batcher = rpc.remote(1, Batcher, (callers, how))
    agent = current_agent()
    all_have_answers = threading.Barrier(callers)

    def step(i: int) -> bool:
        x = tensor(np.full(3, float(i + 1)), requires_grad=True)
        with seams.use_agent(agent), dist_autograd.context() as context_id:
            y: Tensor = batcher.rpc_async().push(x).wait()
            all_have_answers.wait(20.0)
            try:
                dist_autograd.backward(context_id, [(y * y).sum()])
            except ContextMismatchError as error:
                words = str(error)
                assert (
                    "receive it inside the context that backward runs in, or detach() it" in words
                )
                assert dist_autograd.get_gradients(context_id) == {}
                assert batcher.rpc_sync().gradient(context_id) is None
                return False
            weight = np.arange(1.0, 4.0)
            (of_x,) = dist_autograd.get_gradients(context_id).values()
            np.testing.assert_allclose(of_x.data, 2.0 * x.data * weight**2)
            of_weight = batcher.rpc_sync().gradient(context_id)
            np.testing.assert_allclose(of_weight, 2.0 * x.data**2 * weight)
            return True

    with ThreadPoolExecutor(callers) as pool:
        right = list(pool.map(step, range(callers)))
    if how == "one_by_one":
        assert right == [True] * callers
    else:
        assert right.count(False) >= callers - 1


@pytest.mark.parametrize("how", ["one_by_one", "stacked", "by_others"])
def test_a_batch_of_several_contexts_is_right_or_says_what_to_write(
    cluster: Cluster, how: str
) -> None:
    """Never a wrong gradient: a graph that is one for all contexts is refused in each of them."""
    cluster.call(0, calls_of_contexts, how, 3)


# -- contexts of many threads and tasks at once, on the same workers ---------------------------------


class Scaled:
    """On each worker; passes of all contexts go through its one leaf."""

    def __init__(self, rank: int) -> None:
        self.weight = tensor(np.arange(1.0, 4.0) + rank, requires_grad=True)

    def forward(self, x: Tensor, following: list[rpc.RRef[Scaled]]) -> Tensor:
        y: Any = np.tanh(x * self.weight)
        return following[0].rpc_sync().forward(y, following[1:]) if following else y

    async def forward_softly(self, x: Tensor, following: list[rpc.RRef[Scaled]]) -> Tensor:
        y: Any = np.tanh(x * self.weight)
        if following:
            y = await following[0].rpc_async().forward_softly(y, following[1:])
        found: Tensor = y
        return found

    def gradient(self, context_id: int) -> Any:
        return dist_autograd.get_gradients(context_id)[self.weight].data


def way(start: int, workers: int) -> list[int]:
    """All workers, once around and back to the first of them."""
    return [(start + i) % workers for i in range(workers + 1)]


def input_of(who: int, number: int) -> Tensor:
    return tensor(np.linspace(0.1, 0.3, 3) * (1 + who % 7) + 0.01 * number, requires_grad=True)


def check(ranks: list[int], x: Tensor, found: dict[int, Any], of_x: Any) -> None:
    """Compares with the same in one process."""
    local, z = {rank: Scaled(rank) for rank in ranks}, tensor(x.data, requires_grad=True)
    y: Any = z
    for rank in ranks:
        y = local[rank].forward(y, [])
    (y * y).sum().backward()
    assert z.grad is not None
    np.testing.assert_allclose(of_x, z.grad.data, rtol=1e-10)
    for rank, gradient in found.items():
        expected = local[rank].weight.grad
        assert expected is not None
        np.testing.assert_allclose(gradient, expected.data, rtol=1e-10)


def in_threads(layers: list[rpc.RRef[Scaled]], own: int, each: int) -> None:
    agent, ranks = current_agent(), way(own, len(layers))

    def steps(who: int) -> None:
        first, *others = [layers[rank] for rank in ranks]
        for number in range(each):
            x = input_of(who, number)
            with seams.use_agent(agent), dist_autograd.context() as context_id:
                y = first.rpc_sync().forward(x, others)
                dist_autograd.backward(context_id, [(y * y).sum()])
                found = {rank: layers[rank].rpc_sync().gradient(context_id) for rank in ranks}
                of_x = dist_autograd.get_gradients(context_id)[x].data
            check(ranks, x, found, of_x)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(steps, range(THREADS)))


async def in_tasks(layers: list[rpc.RRef[Scaled]], own: int, each: int) -> None:
    ranks = way(own, len(layers))

    async def steps(who: int) -> None:
        first, *others = [layers[rank] for rank in ranks]
        for number in range(each):
            x = input_of(who, number)
            async with dist_autograd.context() as context_id:
                y = await first.rpc_async().forward_softly(x, others)
                await rpc.to_thread(dist_autograd.backward, context_id, [(y * y).sum()])
                found = {
                    rank: await layers[rank].rpc_async().gradient(context_id) for rank in ranks
                }
                of_x = dist_autograd.get_gradients(context_id)[x].data
            check(ranks, x, found, of_x)

    await asyncio.gather(*(steps(THREADS + who) for who in range(TASKS)))


def threads_and_tasks(each: int) -> None:
    """Each worker has threads, and tasks on its user loop; all of them go through all workers."""
    workers = range(WORKERS)
    layers = [rpc.remote(rank, Scaled, (rank,)) for rank in workers]
    calls: list[rpc.Future[None]] = []
    for rank in workers:
        calls.append(rpc.rpc_async(rank, in_threads, (layers, rank, each)))
        calls.append(rpc.rpc_async(rank, in_tasks, (layers, rank, each)))
    rpc.wait_all(calls)
    for rank in workers:  # releases are on their way
        rpc.rpc_sync(rank, wait_until_released)


def wait_until_released() -> None:
    container = current_agent().attachments[Container]
    wait_until_gone("contexts", lambda: range(len(container)), 20.0)


@pytest.mark.long
@pytest.mark.parametrize(
    "each", [2, pytest.param(25, marks=[pytest.mark.long, pytest.mark.timeout(300)])]
)
def test_contexts_of_threads_and_tasks_do_not_mix(each: int) -> None:
    with Cluster(WORKERS, limit=250.0) as cluster:
        cluster.call(0, threads_and_tasks, each)
