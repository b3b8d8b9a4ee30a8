"""Functions that the workers of these tests call on one another; each process has its own doors."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from telegrad import collectives as dist
from telegrad import rpc
from telegrad.autograd import Function, FunctionContext, Tensor
from telegrad.nn import Parameter
from telegrad.optim import Optimizer, State
from telegrad.types import Array

LIMIT = 30.0
TOKEN = "a token that only the tests use"


class Doors:
    """Where calls are held, counted as they come, until a test opens."""

    def __init__(self) -> None:
        self.arrived = threading.Semaphore(0)
        self.open = threading.Event()

    def begin(self) -> None:
        """Shuts the door and forgets who came; for a test that runs in this process."""
        self.arrived = threading.Semaphore(0)
        self.open = threading.Event()


doors = Doors()


def hold() -> str:
    """Blocks until the door is opened, in a wait that is not telegrad's."""
    doors.arrived.release()
    assert doors.open.wait(LIMIT), "nobody opened the door"
    return who()


def held_items() -> Iterator[str]:
    """A stream whose first item does not come."""
    yield hold()


class HeldBackwards(Function):
    """Its backward rule does not end by itself."""

    @staticmethod
    def forward(ctx: FunctionContext, x: Any) -> Any:
        return x * 1.0

    @staticmethod
    def backward(ctx: FunctionContext, gradient: Any) -> Any:
        hold()
        return gradient


def held_backwards(x: Tensor) -> Tensor:
    held: Tensor = HeldBackwards.apply(x)
    return held


class Weight:
    """A parameter, and what is computed with it."""

    def __init__(self) -> None:
        self.weight = Parameter(np.ones(3))

    def parameter(self) -> rpc.RRef[Parameter]:
        return rpc.RRef(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class HeldOptimizer(Optimizer):
    """Its steps do not end by themselves."""

    def update(self, parameter: Array, gradient: Array, state: State) -> tuple[Array, State]:
        hold()
        return parameter, state


def are_held(n: int) -> None:
    """Returns when n more calls are held here."""
    for _ in range(n):
        assert doors.arrived.acquire(timeout=LIMIT), f"no {n} calls are held here"


def who() -> str:
    return rpc.get_worker_info().name


def ask_who(to: str) -> str:
    return rpc.rpc_sync(to, who)


def echo(value: Any) -> Any:
    return value


def outcome(wait: Callable[[], object]) -> str:
    """The class of what a wait raises, and the worker that it names; else the value."""
    try:
        return str(wait())
    except Exception as error:
        return f"{type(error).__name__} {getattr(error, 'worker', '')}".strip()


async def around_softly(left: int, size: int) -> int:
    """Calls the next worker, which calls the next one, and so on, with coroutines: no thread waits."""
    if left == 0:
        return 0
    here = rpc.get_worker_info().rank
    return 1 + await rpc.rpc_async((here + 1) % size, around_softly, (left - 1, size))


def compute(seconds: float) -> str:
    """Computes in pure Python and gives nobody else a longer turn than the interpreter makes it."""
    end = time.monotonic() + seconds
    x = 1
    while time.monotonic() < end:
        for _ in range(1000):
            x = (x * 31 + 7) % 1_000_003
    return who()


def call_and_reduce(rounds: int) -> float:
    """Calls the next worker, and reduces with all, by turns."""
    me = rpc.get_worker_info()
    size = len(rpc.get_worker_infos())
    total = np.zeros(3)
    for _ in range(rounds):
        ahead = rpc.rpc_async((me.rank + 1) % size, np.ones, (3,))
        total += 1.0
        dist.all_reduce(total)
        total -= ahead.wait() * (size - 1)
    dist.barrier()
    return float(total.sum())


def raise_it(number: int) -> None:
    """Raises a class of its own package, with what only the callee knows."""
    try:
        raise KeyError(number)
    except KeyError as cause:
        raise AbsurdError("straße C:\\new", number) from cause


class AbsurdError(ValueError):
    """Has attributes and more than one argument."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number


kept: list[rpc.RRef[Any]] = []


def keeps(rref: rpc.RRef[Any]) -> None:
    """Holds a reference of somebody else's for good."""
    kept.append(rref)


def owned_by_me() -> int:
    return rpc.statistics().owned_rrefs


def own_one() -> rpc.RRef[list[int]]:
    """Hands out a reference to what lives here."""
    return rpc.RRef([1, 2, 3])


def process_id() -> int:
    return os.getpid()


def size_and_last(array: npt.NDArray[np.uint8]) -> tuple[int, int]:
    """How many there are, and the one that comes last."""
    return array.size, int(array[-1])
