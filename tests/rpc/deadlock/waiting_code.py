"""Functions of which some wait for each other; what they share, they share by name."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from queue import SimpleQueue
from typing import Any

from telegrad import rpc
from telegrad.errors import CallTimeoutError, NotEnoughResultsError, WaitCycleError
from tests.rpc import remote_code
from tests.rpc.turns import turn


class Boxes:
    """Things handed over by name between calls of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._boxes: dict[str, SimpleQueue[Any]] = {}

    def __call__(self, name: str) -> SimpleQueue[Any]:
        with self._lock:
            return self._boxes.setdefault(name, SimpleQueue())


boxes = Boxes()


def put(name: str, value: Any) -> None:
    boxes(name).put(value)


def take(name: str) -> Any:
    return boxes(name).get(timeout=20)


def noted(name: str, func: Callable[..., Any], *args: Any) -> Any:
    """Calls a function and hands over the cycle that it ran into."""
    try:
        return func(*args)
    except (WaitCycleError, NotEnoughResultsError) as error:
        put(f"{name}-noted", error)
        raise


# -- a circle of calls: starts ─▶ passes_on on w2 ─▶ closes on w1 ─▶ the future of passes_on --------


def starts(name: str, how: str) -> str:
    future = rpc.rpc_async("w2", passes_on, (name, how))
    put(name, future)
    return future.wait()


def passes_on(name: str, how: str) -> str:
    return str(noted(name, rpc.rpc_sync, "w1", globals()[how], (name,)))


def waits(name: str) -> str:
    return str(noted(name, take(name).wait))


def waits_inside_a_callback(name: str) -> str:
    child = rpc.rpc_async("w2", remote_code.who).then(lambda _: take(name).wait())
    return str(noted(name, child.wait))


def waits_for_all(name: str) -> str:
    done = rpc.rpc_async("w2", remote_code.who)
    return str(noted(name, rpc.wait_all, [done, take(name)]))


def gathers(name: str) -> str:
    gathered = rpc.gather([("w2", remote_code.who), take(name)])
    return str(noted(name, gathered.wait))


@rpc.functions.async_execution
def gives(name: str) -> rpc.Future[str]:
    future: rpc.Future[str] = take(name)

    def note(done: rpc.Future[str]) -> str:
        return str(noted(name, done.value))

    return future.then(note)


# -- the same through what asyncio has for several, and telegrad for the first of several ------------


def follows(wait: Callable[[Any], Awaitable[Any]]) -> Callable[[str], Awaitable[Any]]:
    """A function that waits for a future in one of these ways."""

    @functools.wraps(wait)
    async def waits(name: str) -> Any:
        try:
            return await wait(await rpc.to_thread(take, name))
        except* WaitCycleError as several:
            error: BaseException = several
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            put(f"{name}-noted", error)
        raise error

    return waits


async def awaited(future: Awaitable[Any]) -> Any:
    return await future


@follows
async def awaits(future: rpc.Future[Any]) -> Any:
    return await future


@follows
async def awaits_a_thread(future: rpc.Future[Any]) -> Any:
    return await rpc.to_thread(future.wait)


@follows
async def awaits_a_group(future: rpc.Future[Any]) -> Any:
    async with asyncio.TaskGroup() as group:
        group.create_task(turn())
        for _ in range(2):
            group.create_task(awaited(future))


def waits_for_the_first_completed(name: str) -> str:
    future: rpc.Future[str] = take(name)
    completed = rpc.as_completed([rpc.rpc_async("w2", remote_code.who), future])
    return str(noted(name, lambda: [done.value() for done in completed]))


# -- alternatives that are a way out ----------------------------------------------------------------
#
# The call of `starts` owns the future: whoever gives up waiting for it has shielded it.


async def groups_with_one_that_fails(name: str) -> str:
    future = await rpc.to_thread(take, name)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(awaited(asyncio.shield(future)))
            group.create_task(awaited(rpc.rpc_async("w0", fails_later, (f"{name}-late",))))
    except* KeyError:
        pass
    return "gave up"


async def has_a_limit_in_a_task(name: str) -> str:
    future = await rpc.to_thread(take, name)

    async def limited() -> str:
        try:
            async with asyncio.timeout(WHILE):
                return str(await asyncio.shield(future))
        except TimeoutError:
            return "gave up"

    return (await asyncio.gather(limited()))[0]


# -- a knot: asks_either on w0 and w2 ─▶ either on w1, twice ─▶ any of both ───────────────────────────


def begins_a_knot(name: str) -> list[WaitCycleError]:
    futures = [rpc.rpc_async(to, asks_either, (name,)) for to in ("w0", "w2")]
    for _ in futures:
        put(name, futures)
    (first, second) = rpc.collect_all(futures).wait()
    return [first.exception(), second.exception()]  # type: ignore[list-item]


def asks_either(name: str) -> Any:
    return noted(name, rpc.rpc_sync, "w1", either, (name,))


def either(name: str) -> Any:
    return noted(name, rpc.first_n(take(name), 1).wait)


# -- waits that end by themselves -----------------------------------------------------------------

WHILE = 0.4  # eight times as long as a wait is old when it is followed


def waits_for_a_while(name: str) -> str:
    try:
        return str(noted(name, take(name).wait, WHILE))
    except CallTimeoutError:
        return "gave up"


def waits_for_one_that_fails(name: str) -> str:
    fails = rpc.rpc_async("w0", fails_later, (f"{name}-late",))
    try:
        rpc.wait_all([take(name), fails])
    except KeyError:
        return "gave up"
    return "never"


def fails_later(name: str) -> None:
    remote_code.hold(name)
    raise KeyError(name)


def starts_itself(name: str) -> str:
    future = rpc.rpc_async("w1", waits_for_the_first_of_itself, (name,), timeout=20.0)
    put(name, future)
    return future.wait()


def waits_for_the_first_of_itself(name: str) -> str:
    return str(noted(name, next, rpc.as_completed([take(name)])))


# -- circles of values ------------------------------------------------------------------------------


class Asks:
    """A value whose attribute waits for a call."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def back(self) -> str:
        return rpc.rpc_sync("w2", waits, (self.name,))


def starts_to_read(name: str, rref: rpc.RRef[Any]) -> str:
    future = rpc.rpc_async("w2", reads, (rref,), timeout=20.0)
    put(name, future)
    return future.wait()


def reads(rref: rpc.RRef[Any]) -> str:
    return str(rref.rpc_sync().back)


def make_from_itself(name: str) -> Any:
    return noted(name, take(name).to_here)


def make_by_its_own_method(name: str) -> Any:
    return noted(name, lambda rref: rref.rpc_sync().method(), take(name))


@follows
async def make_from_itself_async(rref: rpc.RRef[Any]) -> Any:
    return await rref


# -- circles through streams ------------------------------------------------------------------------


def reads_what_waits_for_it(name: str, made: str, first: int) -> list[Any]:
    """Its generator waits for this call: for a future that its caller has."""
    items = []
    with rpc.stream("w2", globals()[made], (name, first)) as stream:
        try:
            while True:
                items.append(next(stream))
        except StopIteration:
            return items
        except WaitCycleError as error:
            put(f"{name}-noted", error)
            raise


async def reads_asynchronously(name: str, made: str, first: int) -> list[Any]:
    try:
        async with rpc.stream("w2", globals()[made], (name, first)) as stream:
            return [each async for each in stream]
    except WaitCycleError as error:
        put(f"{name}-noted", error)
        raise


def yields_then_waits(name: str, first: int) -> Iterator[Any]:
    yield from range(first)
    yield noted(name, take(name).wait)


async def ayields_then_waits(name: str, first: int) -> AsyncIterator[Any]:
    for i in range(first):
        yield i
    future = await rpc.to_thread(take, name)
    try:
        yield await future
    except WaitCycleError as error:
        put(f"{name}-noted", error)
        raise


def waits_before_it_yields(name: str, first: int) -> Iterator[Any]:
    found = noted(name, take(name).wait)
    return iter([found] * first)


def has_it_read(name: str, reader: str, made: str, first: int) -> Any:
    """On w2, so that the generator there may wait for the call that reads it."""
    future = rpc.rpc_async("w1", globals()[reader], (name, made, first))
    put(name, future)
    return future.wait()


# -- streams that only seem to wait -----------------------------------------------------------------


def reads_slowly(name: str) -> list[int]:
    """Waits for items, time and again, of a generator that waits for something else."""
    with rpc.stream("w2", yields_one_at_a_time, (name,)) as stream:
        return list(stream)


def yields_one_at_a_time(name: str) -> Iterator[int]:
    for i in range(3):
        rpc.rpc_sync("w0", remote_code.hold, (f"{name}-{i}",))
        yield i


def reads_half(name: str) -> int:
    """Takes few of many items: the generator rests, and this waits for it to be allowed to go on."""
    with rpc.stream("w2", counts, (10**6,)) as stream:
        first = next(stream)
        rpc.rpc_sync("w2", remote_code.hold, (name,))
        return int(first + next(stream))


def counts(n: int) -> Iterator[int]:
    yield from range(n)
