"""Functions of which some wait for each other; what they share, they share by name."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from queue import SimpleQueue
from typing import Any

from telegrad import rpc
from telegrad.errors import CallTimeoutError, WaitCycleError
from tests.rpc import remote_code


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
    except WaitCycleError as error:
        put(f"{name}-noted", error)
        raise


# -- a circle of calls: starts ─▶ passes_on on w2 ─▶ closes on w1 ─▶ the future of passes_on --------


def starts(name: str, how: str) -> str:
    future = rpc.rpc_async("w2", passes_on, (name, how))
    put(name, future)
    return future.wait()


def passes_on(name: str, how: str) -> str:
    func: Callable[..., str] = WAYS[how]
    return str(noted(name, rpc.rpc_sync, "w1", func, (name,)))


def waits(name: str) -> str:
    return str(noted(name, take(name).wait))


def waits_for_what_follows(name: str) -> str:
    return str(noted(name, take(name).then(lambda done: done.value()).wait))


def waits_inside_a_callback(name: str) -> str:
    child = rpc.rpc_async("w2", remote_code.who).then(lambda _: take(name).wait())
    return str(noted(name, child.wait))


def waits_for_all(name: str) -> str:
    done = rpc.rpc_async("w2", remote_code.who)
    return str(noted(name, rpc.wait_all, [done, take(name)]))


def waits_for_a_collection(name: str) -> str:
    collected = rpc.collect_all([rpc.rpc_async("w2", remote_code.who), take(name)])
    return str(noted(name, collected.wait))


def gathers(name: str) -> str:
    gathered = rpc.gather([("w2", remote_code.who), take(name)])
    return str(noted(name, gathered.wait))


async def awaits(name: str) -> str:
    try:
        return str(await (await rpc.to_thread(take, name)))
    except WaitCycleError as error:
        put(f"{name}-noted", error)
        raise


async def awaits_a_thread(name: str) -> str:
    future = await rpc.to_thread(take, name)
    try:
        return str(await rpc.to_thread(future.wait))
    except WaitCycleError as error:
        put(f"{name}-noted", error)
        raise


@rpc.functions.async_execution
def gives(name: str) -> rpc.Future[str]:
    future: rpc.Future[str] = take(name)

    def note(done: rpc.Future[str]) -> str:
        return str(noted(name, done.value))

    return future.then(note)


# -- waits that end by themselves -----------------------------------------------------------------

WHILE = 1.0  # seconds: five times as long as a wait must last to be followed in the tests


def waits_for_a_while(name: str) -> str:
    try:
        return str(noted(name, take(name).wait, WHILE))
    except CallTimeoutError:
        return "gave up"


async def awaits_for_a_while(name: str) -> str:
    future = await rpc.to_thread(take, name)
    try:
        async with asyncio.timeout(WHILE):
            return str(await future)
    except TimeoutError:
        return "gave up"


async def awaits_in_a_task_for_a_while(name: str) -> str:
    future = await rpc.to_thread(take, name)
    try:
        return str(await asyncio.wait_for(future, WHILE))
    except TimeoutError:
        return "gave up"


def waits_for_one_that_fails(name: str) -> str:
    fails = rpc.rpc_async("w2", fails_later, (name,))
    try:
        rpc.wait_all([take(name), fails])
    except KeyError:
        return "gave up"
    return "never"


def fails_later(name: str) -> None:
    remote_code.hold(name)
    raise KeyError(name)


WAYS: dict[str, Callable[..., Any]] = {
    func.__name__: func
    for func in (
        waits,
        waits_for_what_follows,
        waits_inside_a_callback,
        waits_for_all,
        waits_for_a_collection,
        gathers,
        awaits,
        awaits_a_thread,
        gives,
        waits_for_a_while,
        awaits_for_a_while,
        awaits_in_a_task_for_a_while,
        waits_for_one_that_fails,
    )
}


# -- circles of values ------------------------------------------------------------------------------


class Thing:
    def method(self) -> str:
        return "done"


def make_from_itself(name: str) -> Any:
    return noted(name, take(name).to_here)


def make_by_its_own_method(name: str) -> Any:
    return noted(name, lambda rref: rref.rpc_sync().method(), take(name))


async def make_from_itself_async(name: str) -> Any:
    rref = await rpc.to_thread(take, name)
    try:
        return await rref
    except WaitCycleError as error:
        put(f"{name}-noted", error)
        raise


def chain_of_waits(path: list[str], name: str) -> str:
    """Calls along a path of workers, and holds at its end."""
    if not path:
        return remote_code.hold(name)
    return rpc.rpc_sync(path[0], chain_of_waits, (path[1:], name))


# -- circles through streams ------------------------------------------------------------------------


def reads_what_waits_for_it(name: str, made: str, first: int) -> list[Any]:
    """Its generator waits for this call: for a future that its caller has."""
    items = []
    with rpc.stream("w2", GENERATORS[made], (name, first)) as stream:
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
        async with rpc.stream("w2", GENERATORS[made], (name, first)) as stream:
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


def yields_then_calls(name: str, first: int) -> Iterator[Any]:
    """The wait is one call further away."""
    yield from range(first)
    yield noted(name, rpc.rpc_sync, "w0", waits, (f"{name}-calls",))


GENERATORS: dict[str, Callable[..., Any]] = {
    func.__name__: func
    for func in (yields_then_waits, ayields_then_waits, waits_before_it_yields, yields_then_calls)
}


READERS: dict[str, Callable[..., Any]] = {
    func.__name__: func for func in (reads_what_waits_for_it, reads_asynchronously)
}


def has_it_read(name: str, reader: str, made: str, first: int) -> Any:
    """On w2, so that the generator there may wait for the call that reads it."""
    future = rpc.rpc_async("w1", READERS[reader], (name, made, first))
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
