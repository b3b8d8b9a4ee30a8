"""Functions that the tests call on other workers."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import math
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from telegrad import rpc
from telegrad.rpc.future.waits import PoolThread
from telegrad.rpc.seams import current_served_call
from tests.rpc.turns import turn
from tests.wire.samples import EXCEPTIONS, OddError

FloatArray = npt.NDArray[np.float64]


class CustomError(Exception):
    def __init__(self, message: str, *, code: int) -> None:
        super().__init__(message)
        self.code = code


def raise_sample(i: int) -> None:
    raise EXCEPTIONS[i]


def raise_with_a_reference() -> None:
    error = OddError(3, detail="d")
    error.rref = rpc.RRef([1])  # type: ignore[attr-defined]
    error.lock = threading.Lock()  # type: ignore[attr-defined]
    raise error


class Unsendable:
    pass


def calls_served() -> int:
    """How many calls this worker had answered before this one."""
    return rpc.statistics().calls_served


def add(x: int, y: int) -> int:
    return x + y


def echo(value: Any) -> Any:
    return value


def describe(*args: Any, **kwargs: Any) -> str:
    return f"{args} {sorted(kwargs.items())}"


def who() -> str:
    return rpc.get_worker_info().name


def double_in_place(array: FloatArray) -> FloatArray:
    array *= 2
    return array


def fail(message: str) -> None:
    error = CustomError(message, code=7)
    error.add_note("a note of the callee")
    raise error


def interrupt() -> None:
    raise KeyboardInterrupt


def one_then_fail(message: str) -> Iterator[int]:
    yield 1
    fail(message)


class Failing:
    """Each way to reach its value's code fails."""

    def method(self) -> None:
        fail("method")

    @property
    def attribute(self) -> int:
        fail("attribute")
        return 0

    def items(self) -> Iterator[int]:
        yield from one_then_fail("items")

    def __call__(self) -> None:
        fail("call")


def give_unsendable() -> dict[str, list[Unsendable]]:
    return {"models": [Unsendable()]}


def chain(path: list[str]) -> list[str]:
    """Calls itself along a path of workers; tells who was there."""
    me = rpc.get_worker_info().name
    if not path:
        return [me]
    return [me, *rpc.rpc_sync(path[0], chain, (path[1:],))]


async def async_who() -> str:
    await turn()
    return rpc.get_worker_info().name


async def async_chain(path: list[str]) -> list[str]:
    me = rpc.get_worker_info().name
    if not path:
        return [me]
    return [me, *await rpc.rpc_async(path[0], async_chain, (path[1:],))]


async def holds_the_user_loop(name: str) -> bool:
    return gates(name).wait(20)


async def blocks_the_user_loop(to: str) -> str:
    return rpc.rpc_sync(to, who)


async def waits_on_the_user_loop(to: str) -> str:
    future = rpc.rpc_async(to, hold, ("user-loop-wait",))
    try:
        return future.wait()
    finally:
        rpc.rpc_async(to, release, ("user-loop-wait",))


@rpc.functions.async_execution
def add_later(to: str, x: int, y: int) -> rpc.Future[int]:
    return rpc.rpc_async(to, add, (x, y)).then(lambda done: done.value() + 1)


@rpc.functions.async_execution
def fail_later() -> rpc.Future[int]:
    future: rpc.Future[int] = rpc.Future()
    future.set_exception(CustomError("later", code=2))
    return future


@rpc.functions.async_execution
def encoded_before_set_result_returns() -> rpc.Future[list[int]]:
    future: rpc.Future[list[int]] = rpc.Future()

    def complete() -> None:
        pause = threading.Event()
        while not future._callbacks:  # until the callee waits for it
            pause.wait(0.001)
        value = [1]
        future.set_result(value)
        value.append(2)

    threading.Thread(target=complete).start()
    return future


def unmarked_future() -> rpc.Future[int]:
    return rpc.Future()


class Gates:
    """Events by name, so that tests say when a function goes on; all workers are one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: dict[str, threading.Event] = {}
        self._all_open = False

    def __call__(self, name: str) -> threading.Event:
        with self._lock:
            event = self._events.setdefault(name, threading.Event())
            if self._all_open:
                event.set()
            return event

    def begin(self) -> None:
        """Forgets what earlier tests did."""
        with self._lock:
            self._events = {}
            self._all_open = False

    def open_all(self) -> None:
        """Lets everybody go who waits, or will."""
        with self._lock:
            self._all_open = True
            for event in self._events.values():
                event.set()


gates = Gates()


def hold(name: str) -> str:
    """Blocks in a wait that is not telegrad's."""
    gates(f"{name}-entered").set()
    assert gates(name).wait(30)
    return name


def release(name: str) -> None:
    gates(name).set()


def entered(name: str) -> bool:
    return gates(f"{name}-entered").wait(30)


async def hold_async(name: str) -> str:
    gates(f"{name}-entered").set()
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        gates(f"{name}-cancelled").set()
        raise
    return name


def time_left_of_nested(to: str, timeout: float) -> tuple[float, int]:
    """Calls a function that tells what deadline it sees."""
    return rpc.rpc_sync(to, time_left, (), timeout=timeout)


def time_left() -> tuple[float, int]:
    """Returns the seconds and the depth of a call that this one would make."""
    call = current_served_call()
    return (math.inf, 0) if call is None else (call.deadline - time.monotonic(), call.depth + 1)


def leaves_a_thread_behind(name: str) -> None:
    """The thread copies the Context and calls once this call is over."""
    context = contextvars.copy_context()

    def later() -> None:
        assert gates(name).wait(30)
        gates(f"{name}-saw").payload = context.run(time_left)  # type: ignore[attr-defined]
        gates(f"{name}-saw").set()

    threading.Thread(target=later, daemon=True).start()


def nested_forever(to: str, name: str) -> str:
    return rpc.rpc_sync(to, hold, (name,), timeout=60.0)


def relay_failure(to: str) -> None:
    rpc.rpc_sync(to, fail, ("relayed",))


def shuts_down_between_items() -> Iterator[int]:
    yield 0
    rpc.shutdown()


async def shuts_down_between_async_items() -> AsyncIterator[int]:
    yield 0
    rpc.shutdown()


async def shuts_down() -> None:
    rpc.shutdown()


def shuts_down_in_the_pool(graceful: bool) -> None:
    rpc.shutdown(graceful=graceful)


async def shuts_down_off_the_loop() -> None:
    await rpc.to_thread(rpc.shutdown)


async def ignores_that_it_is_cancelled(name: str) -> None:
    """Ends when its gate is opened, and not before."""
    opened = asyncio.get_running_loop().run_in_executor(None, gates(name).wait, 30)
    gates(f"{name}-entered").set()
    while not opened.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(opened)


async def holds_a_thread_of_asyncio(name: str) -> str:
    return await asyncio.to_thread(hold, name)


place: contextvars.ContextVar[str] = contextvars.ContextVar("place")


async def threads_of_asyncio() -> tuple[bool, str, str]:
    """Whether they are the pool's, what they see of this Context, and what they raise."""
    place.set("ContextVar")
    in_pool = await asyncio.to_thread(lambda: isinstance(threading.current_thread(), PoolThread))
    seen = await asyncio.to_thread(place.get)
    try:
        await asyncio.to_thread(fail, "told")
    except CustomError as error:
        return in_pool, seen, str(error)
    return in_pool, seen, ""


def runs_what_was_kept() -> None:
    gates("kept").payload()  # type: ignore[attr-defined]


def shuts_down_in_a_nested_call(to: str) -> None:
    rpc.rpc_sync(to, shuts_down_in_the_pool, (True,))


class Wordless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@dataclass(frozen=True)
class Frozen(Exception):
    code: int


def fail_wordless() -> None:
    raise Wordless(1)


def fail_frozen() -> None:
    raise Frozen(3)


def fail_with_odd_notes() -> None:
    error = CustomError("odd", code=1)
    error.__notes__ = [1, 2]  # type: ignore[list-item]
    raise error


async def async_add(x: int, y: int) -> int:
    return x + y


@rpc.expose
def apply(function: Any, value: Any) -> Any:
    return function(value)


async def hold_then_fail(name: str) -> None:
    """Fails when it is released."""
    assert await rpc.to_thread(gates(name).wait, 30)
    raise CustomError(name, code=3)


def hold_and_echo(name: str, *values: Any) -> list[Any]:
    hold(name)
    return list(values)


def total(array: FloatArray, weights: dict[str, Any], *, bias: float) -> float:
    return float(weights["scale"] * (array.sum() + weights["other"].sum()) + bias)


def fetch(rref: rpc.RRef[Any]) -> Any:
    return rref.to_here()


def fetch_sum(rref: rpc.RRef[list[int]]) -> int:
    return sum(rref.to_here())
