"""asyncio's own functions on futures of telegrad: values, callbacks, removal and cancellation."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from telegrad import collectives, rpc
from telegrad.errors import CallCancelledError
from telegrad.rpc import seams
from telegrad.testing import Cluster
from tests.rpc import remote_code
from tests.rpc.call import cancel_code
from tests.rpc.conftest import Job
from tests.rpc.future.plain_futures import failed, start
from tests.rpc.rest import wait_until_idle
from tests.rpc.turns import turn

SECONDS = 30.0  # no wait of these tests takes so long

Way = Callable[[Any], Awaitable[Any]]  # mypy: a Future of telegrad's is none of asyncio's classes


async def _await(future: Any) -> Any:
    return await future


async def _wait(future: Any) -> Any:
    done, pending = await asyncio.wait([future])
    assert not pending
    (only,) = done
    return only.value()


async def _wait_for_the_first(future: Any) -> Any:
    other: Any = rpc.Future()
    done, pending = await asyncio.wait([other, future], return_when=asyncio.FIRST_COMPLETED)
    assert pending == {other}
    (only,) = done
    return only.value()


async def _gather(future: Any) -> Any:
    return (await asyncio.gather(future, asyncio.sleep(0)))[0]


async def _as_completed(future: Any) -> Any:
    (only,) = asyncio.as_completed([future], timeout=SECONDS)
    return await only


async def _task_group(future: Any) -> Any:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(_await(future))
    return task.result()


async def _timeout(future: Any) -> Any:
    async with asyncio.timeout(SECONDS):
        return await future


WAYS: dict[str, Way] = {
    "await": _await,
    "wait": _wait,
    "wait for the first": _wait_for_the_first,
    "wait_for": lambda future: asyncio.wait_for(future, SECONDS),
    "gather": _gather,
    "shield": asyncio.shield,
    "as_completed": _as_completed,
    "ensure_future": asyncio.ensure_future,
    "wrap_future": asyncio.wrap_future,
    "TaskGroup": _task_group,
    "timeout": _timeout,
}
# As asyncio has it, these leave a future alone when the task that waits is cancelled.
SPARE = {"wait", "wait for the first", "shield", "as_completed"}


def test_they_wait_for_a_future_that_another_thread_completes(subtests: pytest.Subtests) -> None:
    async def main(way: Way) -> int:
        future: rpc.Future[int] = rpc.Future()
        waits = asyncio.create_task(_await(way(future)))
        await turn(5)
        assert not waits.done()
        thread = start(lambda: future.set_result(3))
        found: int = await asyncio.wait_for(waits, SECONDS)
        thread.join()
        return found

    for name, way in WAYS.items():
        with subtests.test(name):
            assert asyncio.run(main(way)) == 3


def test_they_raise_the_error_of_a_future(subtests: pytest.Subtests) -> None:
    async def main(way: Way, future: rpc.Future[int]) -> None:
        await way(future)

    for name, way in WAYS.items():
        with subtests.test(name):
            error = KeyError("lr")
            future = failed(error)
            for _ in range(2):
                with pytest.raises((KeyError, ExceptionGroup)) as raised:
                    asyncio.run(main(way, future))
                found = raised.value
                if isinstance(found, ExceptionGroup):
                    (found,) = found.exceptions
                assert repr(found) == repr(error)


def test_an_error_that_they_raised_is_kept_without_frames() -> None:
    future: rpc.Future[int] = rpc.Future()
    future.try_set_exception(KeyError("lr"))

    async def main() -> None:
        awaited: Any = future
        found = await asyncio.gather(awaited, asyncio.shield(awaited), return_exceptions=True)
        first, second = found
        assert first is not second
        with suppress(KeyError):
            await asyncio.gather(awaited)

    asyncio.run(main())
    kept = future.exception()
    assert kept is not None
    assert kept.__traceback__ is None


def test_a_cancelled_wait_cancels_the_call(job: Job, subtests: pytest.Subtests) -> None:
    """All but what only looks on, as asyncio has it; the coroutine at the callee ends."""

    async def main(way: Way, name: str, future: Any) -> None:
        waits = asyncio.create_task(_await(way(future)))
        await asyncio.to_thread(remote_code.gates(f"{name}-entered").wait, SECONDS)
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits

    for name, way in WAYS.items():
        with subtests.test(name), seams.use_agent(job.agents[0]):
            future = rpc.rpc_async("w1", cancel_code.awaits_forever, (name,))
            asyncio.run(main(way, name, future))
            assert future.cancelled() == (name not in SPARE)
            if name in SPARE:
                assert not future.done()
                future.cancel()
            with pytest.raises(CallCancelledError):
                future.wait()
            assert remote_code.gates(f"{name}-cancelled").wait(SECONDS)
    wait_until_idle(job.agents[1])


async def _as_completed_of_telegrads(future: Any) -> Any:
    return [each.value() async for each in rpc.as_completed([future])]


# The table of docs/cancellation.md: whether the call goes on.
MADE_OF_CALLS: dict[str, tuple[Way, bool]] = {
    "then": (lambda future: future.then(lambda done: done.value()), True),
    "collect_all": (lambda future: rpc.collect_all([future]), True),
    "first_n": (lambda future: rpc.first_n([future, rpc.Future()], 1), True),
    "rpc.as_completed": (_as_completed_of_telegrads, True),
    "rpc.gather": (lambda future: rpc.gather([future]), False),
}


@pytest.mark.parametrize("what", MADE_OF_CALLS)
def test_a_cancelled_wait_for_what_is_made_of_calls(job: Job, what: str) -> None:
    way, goes_on = MADE_OF_CALLS[what]

    async def main(future: Any) -> None:
        waits = asyncio.create_task(_await(way(future)))
        await asyncio.to_thread(remote_code.gates(f"{what}-entered").wait, SECONDS)
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits

    with seams.use_agent(job.agents[0]):
        future = rpc.rpc_async("w1", remote_code.hold, (what,))
        asyncio.run(main(future))
        assert future.cancelled() != goes_on
        remote_code.release(what)
        if goes_on:
            assert future.wait(SECONDS) == what


def test_a_cancelled_wait_for_a_reference_leaves_its_creation_alone(job: Job) -> None:
    async def main(rref: Any) -> None:
        waits = asyncio.create_task(_await(rref))
        await asyncio.to_thread(remote_code.gates("rref-entered").wait, SECONDS)
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        remote_code.release("rref")
        assert await rref == "rref"

    with seams.use_agent(job.agents[0]):
        asyncio.run(main(rpc.remote("w1", remote_code.hold, ("rref",))))


def test_who_else_awaits_a_cancelled_future_is_told_and_not_cancelled_itself() -> None:
    async def main() -> None:
        future: rpc.Future[int] = rpc.Future()
        first, second = (asyncio.create_task(_await(future)) for _ in range(2))
        await turn(2)
        first.cancel()
        words = r"a task that awaited it was cancelled.*asyncio\.shield"
        with pytest.raises(CallCancelledError, match=words):
            await second
        with pytest.raises(asyncio.CancelledError):
            await first

    asyncio.run(main())


def test_a_done_callback_runs_on_the_loop_that_added_it() -> None:
    async def main() -> None:
        future: rpc.Future[int] = rpc.Future()
        came = asyncio.Event()
        ran: list[tuple[int, rpc.Future[int]]] = []

        def note(done: rpc.Future[int]) -> None:
            ran.append((threading.get_ident(), done))
            came.set()  # which no other thread may do

        future.add_done_callback(note)
        await asyncio.to_thread(future.set_result, 1)
        await asyncio.wait_for(came.wait(), SECONDS)
        assert ran == [(threading.get_ident(), future)]

    asyncio.run(main())


def test_a_done_callback_is_removed(subtests: pytest.Subtests) -> None:
    def check() -> rpc.Future[int]:
        future: rpc.Future[int] = rpc.Future()
        heard: list[str] = []

        def note(_: rpc.Future[int]) -> None:
            heard.append("removed")

        future.add_done_callback(note)
        future.add_done_callback(lambda _: heard.append("kept"))
        future.add_done_callback(note)
        assert future.remove_done_callback(note) == 2
        assert future.remove_done_callback(note) == 0
        future.set_result(1)
        assert future.remove_done_callback(note) == 0
        kept.append(heard)
        return future

    async def on_a_loop() -> None:
        check()
        assert not kept[-1]  # in a later turn
        await turn(3)

    kept: list[list[str]] = []
    with subtests.test("without a loop"):
        check()
        assert kept.pop() == ["kept"]
    with subtests.test("on a loop"):
        asyncio.run(on_a_loop())
        assert kept.pop() == ["kept"]


def test_a_done_callback_of_a_closed_loop_holds_nobody_up() -> None:
    future: rpc.Future[int] = rpc.Future()
    heard: list[str] = []

    async def main() -> None:
        future.add_done_callback(lambda _: heard.append("closed"))

    asyncio.run(main())
    future.add_done_callback(lambda _: heard.append("no loop"))
    future.set_result(1)
    assert heard == ["no loop"]


def test_without_a_loop_that_runs_it_becomes_a_task() -> None:
    async def later() -> rpc.Future[int]:
        future: rpc.Future[int] = rpc.Future()
        start(lambda: future.set_result(3)).join()
        return future

    loop = asyncio.new_event_loop()
    try:
        future: Any = loop.run_until_complete(later())
        assert loop.run_until_complete(future) == 3
    finally:
        loop.close()
    with pytest.raises(RuntimeError, match="no running event loop"):
        future.get_loop()


def test_the_result_of_a_cancelled_future_is_asyncios_error() -> None:
    future: rpc.Future[int] = rpc.Future()
    assert not future.cancelled()
    assert future.cancel("not needed")
    assert future.cancelled()
    with pytest.raises(asyncio.CancelledError, match="not needed"):
        future.result()
    with pytest.raises(CallCancelledError, match="not needed"):
        future.value()


def test_a_cancelled_wait_leaves_an_operation_of_all_ranks_alone() -> None:
    def step() -> bool:
        collectives.init_process_group()
        x = np.array([1.0])
        if collectives.get_rank() == 0:

            async def gives_up() -> None:
                waits = asyncio.create_task(_await(work))
                await turn(2)
                waits.cancel()
                with suppress(asyncio.CancelledError):
                    await waits

            work = collectives.all_reduce(x, async_op=True)
            asyncio.run(gives_up())
            first.set()
        else:
            assert first.wait(SECONDS)
            work = collectives.all_reduce(x, async_op=True)
        work.wait(SECONDS)
        return bool(x[0] == 2.0)

    first = threading.Event()
    with Cluster(2) as cluster:
        assert cluster.run(step) == [True, True]
