"""A wait in a served call ends with the call, whatever it is for; what it waits for is left alone."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from telegrad import rpc
from telegrad.errors import CallCancelledError, CallTimeoutError
from telegrad.rpc.base.call_record import CallRecord
from telegrad.rpc.base.served_call import ServedCall, current_served_call, enter_served_call
from telegrad.testing import leaks
from telegrad.types import WorkerInfo
from tests.rpc import remote_code
from tests.rpc.call.cancel_code import notes, shared
from tests.rpc.conftest import Job
from tests.rpc.rest import wait_until_idle

gates = remote_code.gates


served: list[ServedCall] = []  # of the calls of a test that wait


@pytest.fixture(autouse=True)
def _nothing_shared() -> None:
    notes.begin()
    shared.clear()
    served.clear()


def future_of(name: str) -> rpc.Future[Any]:
    """Returns what the call of this name waits for; all workers are one process."""
    return shared.setdefault(name, rpc.Future())


def raised(name: str) -> BaseException:
    """Waits until the call of this name has raised; returns the exception."""
    error: BaseException = notes(name).get(timeout=20)
    return error


def waits(name: str, how: str) -> Any:
    if (call := current_served_call()) is not None:
        served.append(call)
    try:
        return HOW[how](future_of(name))
    except BaseException as error:
        notes(name).put(error)
        raise


async def waits_in_a_thread(name: str, how: str) -> Any:
    run: Callable[..., Any] = rpc.to_thread if how == "wait" else asyncio.to_thread
    return await run(waits, name, "wait")


def waits_in_a_finally(name: str) -> None:
    """Is cancelled before it begins to wait."""
    gates(f"{name}-entered").set()
    try:
        while True:
            call = rpc.current_call()
            assert call is not None
            call.check()
            threading.Event().wait(0.001)
    finally:
        waits(name, "wait")


async def leaves_a_thread_behind(name: str) -> None:
    """Is cancelled, and ends, while its thread still computes; then that waits."""
    await rpc.to_thread(waits_late, name)


def waits_late(name: str) -> None:
    gates(f"{name}-entered").set()
    assert gates(f"{name}-go").wait(20)
    waits(name, "wait")


HOW: dict[str, Callable[[rpc.Future[Any]], Any]] = {
    "wait": lambda future: future.wait(),
    "wait with a limit": lambda future: future.wait(60.0),
    "wait_all": lambda future: rpc.wait_all([rpc.Future(), future]),
    "wait_all with a limit": lambda future: rpc.wait_all([future], timeout=60.0),
    "then": lambda future: future.then(lambda done: done.value()).wait(),
    "as_completed": lambda future: next(rpc.as_completed([future])),
    "first_n": lambda future: rpc.first_n([future, rpc.Future()], 1).wait(),
}


def begun(count: int) -> None:
    """Waits until so many waits of calls that w1 serves are known to those."""

    def missing() -> list[str]:
        return ["a wait"] * (count - sum(len(call.waits) for call in served))

    leaks.wait_until_gone("waits that have not begun", missing)


def ended(job: Job) -> None:
    wait_until_idle(job.agents[1])


@pytest.mark.parametrize("how", HOW)
def test_a_wait_for_a_plain_future_ends_with_its_call(job: Job, how: str) -> None:
    name = how
    call = job.on(0, rpc.rpc_async, "w1", waits, (name, how))
    begun(1)
    call.cancel()
    error = raised(name)
    assert isinstance(error, CallCancelledError)
    assert "waits was cancelled by 'w0'" in str(error)
    ended(job)
    future = future_of(name)
    assert not future.done()
    future.set_result(3)  # wakes nobody
    assert future.wait() == 3


def test_a_wait_for_a_plain_future_ends_at_the_deadline_of_its_call(
    expire: Callable[[rpc.Future[Any]], None], job: Job
) -> None:
    name = "late"
    call = job.on(0, rpc.rpc_async, "w1", waits, (name, "wait"))
    begun(1)
    expire(call)
    with pytest.raises(CallTimeoutError):
        call.wait()
    error = raised(name)
    assert isinstance(error, CallTimeoutError)
    assert "waits has no time left" in str(error)
    ended(job)


@pytest.mark.parametrize("how", ["wait", "asyncio"])
def test_a_wait_in_a_thread_of_a_coroutine_ends_with_its_call(job: Job, how: str) -> None:
    name = f"thread-{how}"
    call = job.on(0, rpc.rpc_async, "w1", waits_in_a_thread, (name, how))
    begun(1)
    call.cancel()
    assert isinstance(raised(name), CallCancelledError)
    ended(job)


def test_a_wait_that_begins_after_the_cancellation_ends_at_once(job: Job) -> None:
    name = "finally"
    call = job.on(0, rpc.rpc_async, "w1", waits_in_a_finally, (name,))
    assert gates(f"{name}-entered").wait(20)
    call.cancel()
    assert isinstance(raised(name), CallCancelledError)
    ended(job)


def test_a_wait_for_the_call_of_another_call_ends_alone(job: Job) -> None:
    """Two calls wait for one future, of a third: only the one that is cancelled hears of it."""
    name = "other"
    held = job.on(1, rpc.rpc_async, "w2", remote_code.hold, (name,))
    shared[name] = shared[f"{name}-stays"] = held
    stays = job.on(0, rpc.rpc_async, "w1", waits, (f"{name}-stays", "wait"))
    goes = job.on(0, rpc.rpc_async, "w1", waits, (name, "wait"))
    begun(2)
    goes.cancel()
    assert isinstance(raised(name), CallCancelledError)
    assert not held.done()
    gates(name).set()
    assert stays.wait() == name
    ended(job)


def test_what_is_completed_before_the_cancellation_is_returned(job: Job) -> None:
    """Any number of waits at once, cancelled and completed in any order: each ends, one way."""
    count = 50
    names = [f"race-{i}" for i in range(count)]
    calls = [job.on(0, rpc.rpc_async, "w1", waits, (name, "wait")) for name in names]
    begun(count)
    with ThreadPoolExecutor(2) as pool:
        cancels = pool.submit(lambda: [each.cancel() for each in calls])
        completes = pool.submit(
            lambda: [future_of(name).try_set_result(name) for name in reversed(names)]
        )
        cancels.result(20)
        completes.result(20)
    ended(job)


def test_a_wait_prefers_what_it_waits_for() -> None:
    """Completed and cancelled at one moment, as a nested call is by the cancellation itself."""
    worker = WorkerInfo("w0", 0, 1)
    call = ServedCall("w1", worker, 1, CallRecord("f"), math.inf, 0)
    future: rpc.Future[int] = rpc.Future()
    entered = threading.Event()

    def wait() -> int:
        enter_served_call(call)
        entered.set()
        return future.wait()

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait)
        assert entered.wait(20)
        leaks.wait_until_gone("no wait", lambda: [] if call.waits else ["the wait"])
        call.nests(future)
        call.cancel()
        with pytest.raises(CallCancelledError, match="a future was cancelled"):
            waiting.result(20)
    assert not call.waits


def test_a_thread_whose_coroutine_has_ended_waits_for_nothing(job: Job) -> None:
    name = "left behind"
    future = job.on(0, rpc.rpc_async, "w1", leaves_a_thread_behind, (name,))
    assert gates(f"{name}-entered").wait(20)
    assert future.cancel()
    wait_until_idle(job.agents[1])
    gates(f"{name}-go").set()
    assert isinstance(raised(name), CallCancelledError)
    assert not future_of(name).done()
