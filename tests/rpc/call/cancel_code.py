"""Functions that the tests of cancellation and retries call on other workers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt

from telegrad import rpc
from telegrad.errors import CallCancelledError
from telegrad.rpc.seams import current_served_call
from tests.rpc.remote_code import gates, hold, who

FloatArray = npt.NDArray[np.float64]


class Notes:
    """What functions write down, by name; all workers are one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: dict[str, SimpleQueue[Any]] = {}

    def begin(self) -> None:
        with self._lock:
            self._queues = {}

    def __call__(self, name: str) -> SimpleQueue[Any]:
        with self._lock:
            return self._queues.setdefault(name, SimpleQueue())


notes = Notes()


def number_of_this_call() -> int:
    """Returns the number by which its caller knows it; the next call of that worker has the next."""
    served = current_served_call()
    assert served is not None
    return served.number


def here() -> rpc.CurrentCall:
    call = rpc.current_call()
    assert call is not None
    return call


def run_until_cancelled(name: str) -> str:
    """A long computation that looks now and then whether it is wanted."""
    gates(f"{name}-entered").set()
    call, pause = here(), threading.Event()
    while not call.cancelled:
        pause.wait(0.001)
    gates(f"{name}-cancelled").set()
    return "for nobody"


def check_until_it_raises(name: str) -> str:
    gates(f"{name}-entered").set()
    pause = threading.Event()
    try:
        while True:
            here().check()
            pause.wait(0.001)
    except Exception as error:
        notes(name).put(error)
        raise


async def awaits_forever(name: str) -> None:
    gates(f"{name}-entered").set()
    try:
        await asyncio.Event().wait()
    finally:
        gates(f"{name}-cancelled").set()


async def takes_no_cancellation(name: str) -> str:
    gates(f"{name}-entered").set()
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        notes(name).put(here().cancelled)
    return "for nobody"


def nested_in_a_thread(to: str, name: str) -> str:
    try:
        return rpc.rpc_sync(to, run_until_cancelled, (name,))
    except Exception as error:
        notes(name).put(error)
        raise


async def nested_in_a_coroutine(to: str, name: str) -> None:
    try:
        await rpc.rpc_async(to, awaits_forever, (name,))
    except BaseException as error:
        notes(name).put(error)
        raise


async def nested_before_the_await(to: str, name: str, then: bool) -> None:
    """Awaits the nested call once that was cancelled, or what follows from it."""
    nested = rpc.rpc_async(to, awaits_forever, (name,))
    awaited = nested.then(lambda done: done.value()) if then else nested
    failed = gates(f"{name}-failed")
    awaited.then(lambda _: failed.set())  # in a thread: this one is the loop's
    assert failed.wait(20)
    try:
        await awaited
    except BaseException as error:
        notes(name).put(error)
        raise


@rpc.functions.async_execution
def nested_in_a_future(to: str, name: str) -> rpc.Future[str]:
    def written(done: rpc.Future[str]) -> str:
        notes(name).put(done.exception())
        return done.value()

    return rpc.rpc_async(to, run_until_cancelled, (name,)).then(written)


def calls_when_cancelled(to: str, name: str) -> None:
    run_until_cancelled(name)
    try:
        rpc.rpc_sync(to, who)
    except CallCancelledError as error:
        notes(name).put(error)


def leaves_a_call_behind(to: str, name: str) -> None:
    rpc.rpc_async(to, hold, (name,)).then(lambda done: notes(name).put(done.exception()))


def counts_what_it_has_called(to: str) -> list[int]:
    served = current_served_call()
    assert served is not None
    future = rpc.rpc_async(to, hold, ("counted",))
    before = len(served.nested)
    gates("counted").set()
    future.wait()
    return [before, len(served.nested)]


shared: dict[str, rpc.Future[str]] = {}


@rpc.functions.async_execution
def waits_with_the_others(name: str) -> rpc.Future[str]:
    """Calls that wait for one and the same future, as a server that collects a batch has them."""
    future = shared.setdefault(name, rpc.Future())
    notes(name).put("waits")
    return future


def describe() -> tuple[str, str, bool, float, str]:
    call = here()
    call.check()
    return call.caller.name, call.function, call.cancelled, call.remaining, repr(call)


async def describe_from_everywhere() -> list[tuple[str, str]]:
    def look() -> tuple[str, str]:
        return here().caller.name, here().function

    return [
        look(),
        await rpc.to_thread(look),
        await asyncio.to_thread(look),
        await asyncio.create_task(in_a_task(look)),
    ]


async def in_a_task(look: Callable[[], tuple[str, str]]) -> tuple[str, str]:
    return look()


async def thread_of_a_cancelled_coroutine(name: str) -> None:
    await rpc.to_thread(run_until_cancelled_looking_anew, name)


def run_until_cancelled_looking_anew(name: str) -> None:
    gates(f"{name}-entered").set()
    pause = threading.Event()
    while not here().cancelled:
        pause.wait(0.001)
    gates(f"{name}-cancelled").set()


class Model:
    def run(self, name: str) -> str:
        return run_until_cancelled(name)


class Slow:
    """A value whose attribute takes long to read."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def value(self) -> str:
        return run_until_cancelled(self._name)


# -- retries


@rpc.idempotent
def who_again() -> str:
    return who()


@rpc.idempotent
def runs_again(name: str) -> str:
    return run_until_cancelled(name)


@rpc.idempotent
def hold_again(name: str) -> str:
    """Waits for its gate, which is opened between two attempts."""
    notes(name).put(who())
    gates(f"{name}-entered").set()
    assert gates(name).wait(30)
    return name


@rpc.idempotent
async def hold_again_async(name: str) -> str:
    notes(name).put(who())
    gates(f"{name}-entered").set()
    await rpc.to_thread(gates(name).wait, 30)  # which, unlike asyncio's, holds up no shutdown
    return name


@rpc.idempotent
@rpc.functions.async_execution
def hold_again_later(name: str) -> rpc.Future[str]:
    notes(name).put(who())
    gates(f"{name}-entered").set()
    future: rpc.Future[str] = rpc.Future()

    def answer() -> None:
        gates(name).wait(30)
        future.set_result(name)

    threading.Thread(target=answer, daemon=True).start()
    return future


@rpc.idempotent
def total_again(name: str, array: FloatArray, factor: rpc.RRef[float]) -> float:
    gates(f"{name}-entered").set()
    assert gates(name).wait(30)
    return float(array.sum()) * factor.to_here()


@rpc.idempotent
def fail_again(name: str, error: BaseException) -> None:
    notes(name).put("ran")
    raise error


@rpc.idempotent
def relay_again(to: str, name: str) -> str:
    notes(name).put("ran")
    return rpc.rpc_sync(to, hold, (name,))


def retries_for_another(to: str, name: str) -> str:
    return rpc.rpc_sync(to, hold_again, (name,), retry=1)


class Marked:
    @rpc.idempotent
    @staticmethod
    def above() -> int:
        return 1

    @staticmethod
    @rpc.idempotent
    def below() -> int:
        return 2

    @rpc.idempotent
    @classmethod
    def of_the_class(cls) -> int:
        return 3


@rpc.idempotent
def run_until_cancelled_again(name: str) -> str:
    return run_until_cancelled(name)
