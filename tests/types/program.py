"""A user's program: `assert_type` says what mypy finds, a mark at the end of a line what it refuses.

tests/house/test_types.py has mypy check it; it is never run.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, assert_type

import numpy as np

import telegrad as tg
from telegrad import collectives, nn, rpc
from telegrad.scipy import special


def plain(x: int, y: str = "") -> str:
    return y * x


async def coroutine(x: int) -> bytes:
    return bytes(x)


@rpc.functions.async_execution
def later(x: int) -> rpc.Future[float]:
    return rpc.Future()


def total(*numbers: int) -> int:
    return sum(numbers)


def count(n: int) -> Iterator[int]:
    yield from range(n)


async def count_async(n: int) -> AsyncIterator[int]:
    yield n


class Counter:
    def __init__(self, start: int) -> None:
        self.value = start

    def add(self, n: int) -> int:
        return self.value + n


class Model(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 1)
        self.recurrent = nn.LSTM(width, width)

    def forward(self, x: tg.Tensor, scale: float = 1.0) -> tuple[tg.Tensor, float]:
        assert_type(self.linear(x), tg.Tensor)
        assert_type(self.recurrent(x), tuple[tg.Tensor, tuple[tg.Tensor, tg.Tensor]])
        return self.linear(x) * scale, scale


def numpy_functions(t: tg.Tensor, array: np.ndarray[Any, Any]) -> None:
    assert_type(tg.numpy.tanh(t), tg.Tensor)
    assert_type(tg.numpy.add(array, t), tg.Tensor)
    assert_type(tg.numpy.sum(t, axis=0), tg.Tensor)
    assert_type(tg.numpy.greater(t, 0), tg.Tensor)
    assert_type(tg.numpy.concatenate([t, t]), tg.Tensor)
    assert_type(tg.numpy.where(t > 0, t, 0.0), tg.Tensor)
    assert_type(tg.numpy.einsum("i,i->", t, t), tg.Tensor)
    assert_type(tg.numpy.split(t, 2), list[tg.Tensor])
    assert_type(tg.numpy.modf(t), tuple[tg.Tensor, tg.Tensor])
    assert_type(tg.numpy.allclose(t, t), bool)
    assert_type(tg.numpy.linalg.norm(t), tg.Tensor)
    assert_type(tg.numpy.linalg.svd(t, full_matrices=False).S, tg.Tensor)
    assert_type(tg.numpy.fft.rfft(t), tg.Tensor)
    assert_type(special.erf(t), tg.Tensor)
    tg.numpy.tanh(t).spread()  # error: [attr-defined]


class Scaled(tg.Tensor):
    def __add__(self, other: Any) -> tg.Tensor:
        return super().__add__(other) * 2.0


def operators(t: tg.Tensor, u: Scaled) -> None:
    assert_type(t + 1, tg.Tensor)
    assert_type(1 - t, tg.Tensor)
    assert_type(t @ t, tg.Tensor)
    assert_type(u + t, tg.Tensor)
    assert_type(abs(-t), tg.Tensor)
    assert_type(divmod(t, 2), tuple[tg.Tensor, tg.Tensor])
    assert_type(t == 1, tg.Tensor)
    assert_type(~(t > 0) & (t <= 1), tg.Tensor)
    t += 1
    assert_type(t, tg.Tensor)
    u *= 2
    assert_type(u, Scaled)
    (t + 1).spread()  # error: [attr-defined]


def modules(model: Model, x: tg.Tensor) -> None:
    assert_type(model(x), tuple[tg.Tensor, float])
    assert_type(model(x, scale=2.0), tuple[tg.Tensor, float])
    assert_type(nn.Sequential(model)(x), Any)
    right: Callable[[tg.Tensor], tuple[tg.Tensor, float]] = model
    wrong: Callable[[str], object] = model  # error: [assignment]
    model(1)  # error: [arg-type]
    model()  # error: [call-arg]
    model(x, factor=2.0)  # error: [call-arg]
    right(x)
    wrong("")


def calls(agent: rpc.Agent) -> None:
    assert_type(rpc.rpc_sync("w", plain, (1, "a")), str)
    assert_type(rpc.rpc_sync("w", plain, (1,), timeout=2.0), str)
    assert_type(rpc.rpc_sync("w", plain, [1]), str)
    assert_type(rpc.rpc_sync("w", plain, (1,), {"y": "a"}), str)
    assert_type(rpc.rpc_sync("w", plain, kwargs={"x": 1}), str)
    assert_type(rpc.rpc_sync("w", coroutine, (1,)), bytes)
    assert_type(rpc.rpc_sync("w", later, (1,)), float)
    assert_type(rpc.rpc_async("w", plain, (1,)), rpc.Future[str])
    assert_type(rpc.rpc_async("w", coroutine, (1,)), rpc.Future[bytes])
    assert_type(rpc.rpc_async("w", later, (1,)), rpc.Future[float])
    assert_type(rpc.rpc_async("w", total, (1, 2, 3)), rpc.Future[int])
    assert_type(rpc.remote("w", Model, (3,)), rpc.RRef[Model])
    assert_type(rpc.remote("w", coroutine, (1,)), rpc.RRef[bytes])
    assert_type(rpc.stream("w", count, (3,)), rpc.Stream[int])
    assert_type(agent.stream("w", count_async, (3,)), rpc.Stream[int])
    assert_type(agent.rpc_sync("w", Counter(1).add, (1,)), int)
    assert_type(agent.rpc_async("w", later, (1,)), rpc.Future[float])
    assert_type(agent.remote("w", later, (1,)), rpc.RRef[float])
    assert_type(agent.get_worker_info(), rpc.WorkerInfo)
    assert_type(agent.get_worker_infos(), list[rpc.WorkerInfo])
    with agent.as_current() as current:
        assert_type(current, rpc.Agent)
    with agent.stream("w", count, (3,)) as items:
        assert_type(items, rpc.Stream[int])
    rpc.rpc_sync("w", plain, ("a",))  # error: [arg-type]
    rpc.rpc_sync("w", plain, (1, "a", 2))  # error: [arg-type]
    rpc.rpc_sync("w", plain)  # error: [arg-type]
    rpc.rpc_sync("w", plain, 1)  # error: [call-overload]
    rpc.rpc_async("w", coroutine, ("a",))  # error: [arg-type]
    rpc.rpc_async("w", later, ())  # error: [arg-type]
    rpc.remote("w", Counter, ("a",))  # error: [arg-type]
    rpc.stream("w", count, ("a",))  # error: [arg-type]
    rpc.stream("w", plain, (1,))  # error: [arg-type]
    agent.rpc_sync("w", plain, ("a",))  # error: [arg-type]
    agent.rpc_async("w", total, (1, "a"))  # error: [arg-type]
    agent.remote("w", Counter)  # error: [arg-type]


def collective(array: np.ndarray[Any, Any]) -> None:
    assert_type(collectives.all_reduce(array, async_op=True), collectives.Work[None])
    assert_type(collectives.all_gather(array, async_op=True).wait(), list[tg.types.Array])
    assert_type(collectives.all_gather_single(array), tg.types.Array)
    with collectives.coalesced(async_op=True) as block:
        part = collectives.reduce_scatter_single(array, async_op=True)
        collectives.broadcast(array, 1)
    assert_type(block.work, collectives.Work[None])
    assert_type(part.wait(), tg.types.Array)
    assert_type(collectives.shrink_group(ranks_to_exclude=[1]), collectives.ProcessGroup)
    collectives.all_reduce(array).wait()  # error: [attr-defined]
    collectives.coalesced(array)  # error: [arg-type]


def references(rref: rpc.RRef[Counter]) -> None:
    assert_type(rref.to_here(), Counter)
    assert_type(rref.local_value(), Counter)
    assert_type(rref.rpc_sync(), Counter)
    assert_type(rref.rpc_async().add(2), rpc.Future[Any])
    assert_type(rref.remote().add(2), rpc.RRef[Any])
    assert_type(rref.rpc_stream().count(2), rpc.Stream[Any])
    assert_type(rref.rpc_sync().add(1), int)
    rref.rpc_sync().add("a")  # error: [arg-type]


def many(strings: rpc.Future[str], numbers: rpc.Future[int], workers: list[str]) -> None:
    assert_type(rpc.gather([strings, strings]), rpc.Future[list[str]])
    assert_type(rpc.gather([(to, plain, (1,)) for to in workers]), rpc.Future[list[str]])
    assert_type(rpc.gather([("w", coroutine, (1,))], k=1), rpc.Future[list[bytes]])
    assert_type(rpc.gather([strings, numbers]), rpc.Future[list[Any]])
    assert_type(rpc.wait_all([strings, strings]), list[str])
    assert_type(rpc.wait_all([strings, numbers]), list[Any])
    assert_type(rpc.collect_all([numbers, numbers]), rpc.Future[list[rpc.Future[int]]])
    rpc.gather(strings)  # error: [call-overload]
    rpc.gather([1])  # error: [arg-type]
