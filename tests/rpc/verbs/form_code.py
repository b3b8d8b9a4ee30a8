"""What may be called, and in which ways, for the tests of the forms of a call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

from telegrad import rpc
from tests.rpc.turns import turn

ran: list[str] = []  # which generators began to run in this process


def what_ran() -> list[str]:
    return ran


def where() -> str:
    return rpc.get_worker_info().name


def plain(x: int, y: int = 1, *, times: int = 1) -> int:
    return (x + y) * times


async def coroutine(x: int, y: int = 1, *, times: int = 1) -> int:
    await turn()
    return (x + y) * times


def count_up(n: int) -> Iterator[int]:
    ran.append("count_up")
    yield from range(n)


async def count_up_later(n: int) -> AsyncIterator[int]:
    ran.append("count_up_later")
    for each in range(n):
        yield each


def makes_a_coroutine(x: int) -> Coroutine[Any, Any, int]:
    return coroutine(x)


def decorated(func: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **kwargs)

    return wrapper


@decorated
def wrapped(x: int) -> int:
    return x + 1


@dataclass
class Point:
    """A class whose objects travel."""

    x: int
    y: int = 0

    @staticmethod
    def static(x: int) -> int:
        return x + 1

    @classmethod
    def build(cls, x: int) -> Point:
        return cls(x, x)

    @classmethod
    async def build_later(cls, x: int) -> Point:
        return cls(x, x)

    @staticmethod
    async def static_later(x: int) -> int:
        return x + 1

    def norm(self) -> int:
        return self.x + self.y

    async def moved_later(self, by: int, *, times: int = 1) -> Point:
        self.x += by * times
        return self


@dataclass
class Place(Point):
    """A class that inherits the methods, with what cannot travel."""

    kept: object = None

    def norm(self) -> int:
        return -super().norm()


class Outer:
    class Inner:
        @staticmethod
        def deep(x: int) -> int:
            return -x


class Machine:
    """A class whose objects stay where they are."""

    def __init__(self, start: int) -> None:
        self.value = start

    def __call__(self, x: int) -> int:
        return self.value + x

    def add(self, x: int, *, times: int = 1) -> int:
        self.value += x * times
        return self.value

    async def add_later(self, x: int) -> int:
        await turn()
        return self.add(x)

    @staticmethod
    def static(x: int) -> int:
        return x + 1

    @classmethod
    def kind(cls) -> str:
        return cls.__name__

    def itself(self) -> Machine:
        return self


class LaterBase:
    async def __call__(self, x: int) -> int:
        await turn()
        return x * 10


class Later(LaterBase):
    """Called on the user loop, by a method that it inherits."""


# -- async_execution ---------------------------------------------------------------------------


def done(value: Any) -> rpc.Future[Any]:
    future: rpc.Future[Any] = rpc.Future()
    future.set_result(value)
    return future


@rpc.functions.async_execution
def sum_over(to: str, x: int, y: int) -> rpc.Future[int]:
    return rpc.rpc_async(to, plain, (x, y))


@rpc.functions.async_execution
def chained(to: str, x: int) -> rpc.Future[int]:
    first = rpc.rpc_async(to, plain, (x,))
    second = first.then(lambda done: rpc.rpc_async(to, plain, (done.value(),)))
    return second.then(lambda done: done.value() * 100)


async def nested_coroutine(path: list[str]) -> list[str]:
    """Goes on with `nested_mixed`, which goes on with this: one, then the other."""
    me = where()
    return [me, *await rpc.rpc_async(path[0], nested_mixed, (path[1:],))] if path else [me]


@rpc.functions.async_execution
def nested_mixed(path: list[str]) -> rpc.Future[list[str]]:
    me = where()
    if not path:
        return done([me])
    rest = rpc.rpc_async(path[0], nested_coroutine, (path[1:],))
    return rest.then(lambda rest: [me, *rest.value()])


@rpc.functions.async_execution
def gives_an_rref(to: str) -> rpc.Future[rpc.RRef[Machine]]:
    made = rpc.remote(to, Machine, (7,))
    return rpc.rpc_async(to, where).then(lambda _: made)


@rpc.functions.async_execution
def gathered(workers: list[str]) -> rpc.Future[list[str]]:
    return rpc.gather([(to, where) for to in workers])


@rpc.functions.async_execution
def in_a_thread(x: int) -> Any:
    return rpc.to_thread(plain, x)


@rpc.functions.async_execution
def raises_before() -> rpc.Future[int]:
    raise KeyError("before the first yield")


@rpc.functions.async_execution
def raises_after(to: str) -> rpc.Future[int]:
    def explode(_: object) -> int:
        raise KeyError("after the first yield")

    return rpc.rpc_async(to, where).then(explode)


@rpc.functions.async_execution
def returns(value: Any) -> rpc.Future[Any]:
    return value  # type: ignore[no-any-return]


@rpc.functions.async_execution
def returns_nothing() -> rpc.Future[Any]:
    return None  # type: ignore[return-value]


@rpc.functions.async_execution
def future_of_a_future() -> rpc.Future[Any]:
    return done(done(3))


@rpc.functions.async_execution
def never() -> rpc.Future[int]:
    return rpc.Future()


async def coroutine_that_returns_a_future(to: str, x: int) -> rpc.Future[int]:
    return rpc.rpc_async(to, plain, (x,))


async def awaits_a_marked_function(to: str, x: int) -> int:
    return await sum_over(to, x, 1) + await rpc.rpc_async(to, sum_over, (where(), x, 1))


@functools.wraps(sum_over, assigned=())  # the mark with the rest of its __dict__
async def coroutine_around_a_marked_function(to: str, x: int, y: int) -> int:
    return await sum_over(to, x, y) + 1000


class Promises:
    """Marked methods of every kind, and marks on both sides of the other decorators."""

    def __init__(self, to: str) -> None:
        self.to = to
        self.answer: rpc.Future[int] = rpc.Future()

    @staticmethod
    @rpc.functions.async_execution
    def static(to: str, x: int) -> rpc.Future[int]:
        return rpc.rpc_async(to, plain, (x,))

    @rpc.functions.async_execution
    @staticmethod
    def static_above(to: str, x: int) -> rpc.Future[int]:
        return rpc.rpc_async(to, plain, (x,))

    @classmethod
    @rpc.functions.async_execution
    def of_class(cls, to: str, x: int) -> rpc.Future[str]:
        return rpc.rpc_async(to, plain, (x,)).then(lambda done: f"{cls.__name__} {done.value()}")

    @rpc.functions.async_execution
    @classmethod
    def of_class_above(cls, to: str, x: int) -> rpc.Future[str]:
        return rpc.rpc_async(to, plain, (x,)).then(lambda done: f"{cls.__name__} {done.value()}")

    @rpc.functions.async_execution
    def bound(self, x: int) -> rpc.Future[int]:
        return rpc.rpc_async(self.to, plain, (x,))

    @rpc.functions.async_execution
    def wait(self) -> rpc.Future[int]:
        return self.answer

    def say(self, x: int) -> None:
        self.answer.set_result(x)

    @rpc.functions.async_execution
    def fail(self) -> rpc.Future[int]:
        raise KeyError("in a method")

    @rpc.functions.async_execution
    def wrong(self) -> rpc.Future[int]:
        return 3  # type: ignore[return-value]


class Promise:
    """An object that is called and answers later."""

    @rpc.functions.async_execution
    def __call__(self, to: str) -> rpc.Future[str]:
        return rpc.rpc_async(to, where)


@dataclass(frozen=True)
class Threshold:
    """A dataclass whose objects can be called."""

    least: int

    def __call__(self, x: int) -> bool:
        return x >= self.least


def passes(check: Callable[[int], bool], x: int) -> bool:
    return check(x)


class Kept:
    """The coroutine that was returned last."""

    coroutine: Coroutine[Any, Any, int] | None = None


async def never_awaited() -> int:
    return 1


@rpc.functions.async_execution
def returns_a_coroutine() -> Any:
    made = never_awaited()
    Kept.coroutine = made
    return made


def coroutines_closed() -> int:
    assert Kept.coroutine is not None
    state = inspect.getcoroutinestate(Kept.coroutine)
    Kept.coroutine = None
    return int(state == inspect.CORO_CLOSED)
