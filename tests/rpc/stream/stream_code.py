"""Generators that the tests read from other workers."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from telegrad import rpc
from tests.rpc import remote_code
from tests.rpc.turns import turn

FloatArray = npt.NDArray[np.float64]
gates = remote_code.gates


yielded: Counter[str] = (
    Counter()
)  # items of each generator, by its name; all workers are one process


@contextlib.contextmanager
def noted(name: str) -> Iterator[None]:
    """A `with` block around `yield`: says that it was left."""
    try:
        yield
    finally:
        gates(f"{name}-closed").set()


def closed(name: str) -> bool:
    """Waits until a generator was closed."""
    return gates(f"{name}-closed").wait(20)


def count(n: int, name: str = "") -> Iterator[int]:
    with noted(name):
        for i in range(n):
            yielded[name] += 1
            yield i


async def acount(n: int, name: str = "") -> AsyncIterator[int]:
    with noted(name):
        for i in range(n):
            await turn()
            yielded[name] += 1
            yield i


async def acount_without_waits(n: int, name: str = "") -> AsyncIterator[int]:
    with noted(name):
        for i in range(n):
            yielded[name] += 1
            yield i


def forever(name: str) -> Iterator[int]:
    return count(2**62, name)


async def aforever(name: str) -> AsyncIterator[int]:
    async for i in acount(2**62, name):
        yield i


def fails_after(n: int) -> Iterator[int]:
    yield from range(n)
    raise remote_code.CustomError("in the middle", code=n)


async def afails_after(n: int) -> AsyncIterator[int]:
    for i in range(n):
        yield i
    raise remote_code.CustomError("in the middle", code=n)


def arrays(n: int, size: int, name: str = "") -> Iterator[FloatArray]:
    """Writes into one array again and again: what travels is what it was when it was yielded."""
    array = np.empty(size)
    for i in range(n):
        array[:] = i
        yielded[name] += 1
        yield array
        array[:] = -1.0


def sizes(big: int) -> Iterator[FloatArray]:
    """Small and big ones in turn, which overtake each other on the way."""
    for i in range(20):
        yield np.full(big if i % 3 == 0 else 2, float(i))


def gives_unsendable(name: str) -> Iterator[Any]:
    with noted(name):
        yield 1
        yield remote_code.Unsendable()
        yield 3


def holds(name: str, first: int = 1) -> Iterator[int]:
    """Yields some items, then blocks outside of telegrad until its gate is open."""
    with noted(name):
        yield from range(first)
        gates(f"{name}-entered").set()
        assert gates(name).wait(30)
        yield first


async def aholds(name: str, first: int = 1) -> AsyncIterator[int]:
    with noted(name):
        for i in range(first):
            yield i
        gates(f"{name}-entered").set()
        await asyncio.Event().wait()


async def aswallows(name: str) -> AsyncIterator[int]:
    """Takes no cancellation, and goes on."""
    with noted(name):
        try:
            gates(f"{name}-entered").set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        for i in range(2**62):
            yield i


async def aholds_in_finally(name: str) -> AsyncIterator[int]:
    """Awaits while it is closed."""
    with noted(name):
        try:
            for i in range(2**62):
                yield i
        finally:
            await turn(2)


def refuses_to_close(name: str) -> Iterator[int]:
    with noted(name):
        while True:
            try:
                yielded[name] += 1
                yield 1
            except GeneratorExit:
                yielded[f"{name}-refused"] += 1
                yield 2


variable: contextvars.ContextVar[str] = contextvars.ContextVar("tests_stream", default="outside")


def sets_a_variable(n: int) -> Iterator[str]:
    """Token and reset in one Context, however many threads run it."""
    token = variable.set("inside")
    for _ in range(n):
        yield variable.get()
    variable.reset(token)
    yield variable.get()


async def asets_a_variable(n: int) -> AsyncIterator[str]:
    token = variable.set("inside")
    for _ in range(n):
        yield variable.get()
    variable.reset(token)
    yield variable.get()


class Squares:
    """An iterator that is no generator."""

    def __init__(self, n: int) -> None:
        self.left = iter(range(n))

    def __iter__(self) -> Squares:
        return self

    def __next__(self) -> int:
        return next(self.left) ** 2


class Numbers:
    """Streams that are no methods of an object."""

    @staticmethod
    def static(n: int) -> Iterator[int]:
        yield from range(n)

    @classmethod
    async def of_class(cls, n: int) -> AsyncIterator[int]:
        for i in range(n):
            yield i


def no_iterator(value: Any) -> Any:
    return value


async def no_async_generator() -> int:
    return 3


def raises_before(message: str) -> Iterator[int]:
    raise remote_code.CustomError(message, code=1)


def leaves() -> Iterator[int]:
    yield 1
    raise SystemExit(3)


async def acancels_itself() -> AsyncIterator[int]:
    yield 1
    raise asyncio.CancelledError("of its own")


def relayed(path: list[str], n: int) -> Iterator[int]:
    """Reads the stream of the next worker and yields on what it yields."""
    if not path:
        yield from range(n)
        return
    with rpc.stream(path[0], relayed, (path[1:], n)) as inner:
        yield from inner


async def arelayed(path: list[str], n: int) -> AsyncIterator[int]:
    if not path:
        for i in range(n):
            yield i
        return
    async with rpc.stream(path[0], arelayed, (path[1:], n)) as inner:
        async for each in inner:
            yield each


def relayed_forever(to: str, name: str) -> Iterator[int]:
    with noted(f"{name}-outer"), rpc.stream(to, forever, (name,)) as inner:
        yield from inner


def total(to: str, func: Callable[..., Any], n: int) -> int:
    """A served call that reads a stream."""
    with rpc.stream(to, func, (n,)) as items:
        return sum(items)


async def blocks_the_user_loop(to: str) -> int:
    return next(rpc.stream(to, holds, ("user-loop", 0)))


def time_left_in_a_stream() -> Iterator[tuple[float, int]]:
    yield remote_code.time_left()


def read_first_of(to: str, func: Callable[..., Any], name: str, timeout: float) -> list[int]:
    """Inherits the deadline of its own call."""
    return list(rpc.stream(to, func, (name,), timeout=timeout))


class Model:
    pass


def references(n: int) -> Iterator[rpc.RRef[Model]]:
    for _ in range(n):
        yield rpc.RRef(Model())


def echo_rref(rref: rpc.RRef[Any], n: int) -> Generator[rpc.RRef[Any], None, None]:
    for _ in range(n):
        yield rref


class EmptyError(Exception):
    """An error that is false, as it has no items."""

    def __len__(self) -> int:
        return 0


def refuses() -> Iterator[int]:
    """Raises before there is a generator."""
    raise EmptyError("no generator")
