"""Tasks that await futures which other threads complete: woken together, and none forgotten."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from telegrad.rpc import seams
from telegrad.rpc.future.future import Future
from telegrad.rpc.future.waits import LoopWakers, _LoopWaker
from tests.rpc.plain_futures import start
from tests.rpc.turns import turn


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts the calls into it from other threads."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def call_soon_threadsafe(self, *args: Any, **options: Any) -> Any:  # type: ignore[override]
        self.calls += 1
        return super().call_soon_threadsafe(*args, **options)


class Agent:
    """As much of an agent as a task that awaits asks for."""

    def __init__(self) -> None:
        self.life, self.pool, self.attachments = seams.Life("w0"), self, seams.Attachments("w0")
        self.attachments.attach(LoopWakers())

    def submit(self, run: Callable[[], None]) -> None:
        run()


@pytest.fixture
def loop() -> Any:
    agent: Any = Agent()
    loop = CountingLoop()
    with seams.use_agent(agent):
        yield loop
    loop.close()


def test_what_is_completed_together_wakes_the_loop_once(loop: CountingLoop) -> None:
    futures: list[Future[int]] = [Future() for _ in range(100)]

    def complete() -> None:
        for i, future in enumerate(futures):
            future.set_result(i)

    async def value(future: Future[int]) -> int:
        return await future

    async def wait() -> list[int]:
        tasks = [asyncio.ensure_future(value(future)) for future in futures]
        await turn()
        start(complete).join()  # this loop does nothing meanwhile
        return await asyncio.gather(*tasks)

    assert loop.run_until_complete(wait()) == list(range(100))
    assert loop.calls == 1


def test_without_an_agent_each_task_is_woken_by_itself() -> None:
    futures: list[Future[int]] = [Future() for _ in range(20)]

    async def wait() -> list[int]:
        tasks = [asyncio.ensure_future(value(future)) for future in futures]
        await turn()
        start(complete)
        return await asyncio.gather(*tasks)

    def complete() -> None:
        for future in futures:
            future.set_result(1)

    async def value(future: Future[int]) -> int:
        return await future

    assert asyncio.run(wait()) == [1] * 20


def test_what_is_completed_on_the_loop_itself_takes_no_call_into_it(loop: CountingLoop) -> None:
    futures: list[Future[int]] = [Future() for _ in range(3)]

    async def value(future: Future[int]) -> int:
        return await future

    async def wait() -> list[int]:
        tasks = [asyncio.ensure_future(value(future)) for future in futures]
        await turn()
        tasks[0].cancel()
        for i, future in enumerate(futures):
            future.set_result(i)
        return await asyncio.gather(*tasks[1:])

    assert loop.run_until_complete(wait()) == [1, 2]
    assert loop.calls == 0


def test_each_of_many_loops_is_woken() -> None:
    futures: list[Future[int]] = [Future() for _ in range(200)]
    seen: list[list[int]] = []

    async def total(own: list[Future[int]]) -> list[int]:
        return [await future for future in own]

    threads = [start(lambda i=i: seen.append(asyncio.run(total(futures[i::4])))) for i in range(4)]  # type: ignore[misc]
    for i, future in enumerate(futures):
        future.set_result(i)
    for thread in threads:
        thread.join()
    assert sorted(seen) == sorted(list(range(i, 200, 4)) for i in range(4))


def test_a_task_that_gave_up_is_not_woken(loop: CountingLoop) -> None:
    future: Future[int] = Future()

    async def value() -> int:
        return await future

    async def run() -> None:
        task = asyncio.ensure_future(value())
        await turn()
        future.set_result(3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    loop.run_until_complete(run())
    assert future.wait() == 3


def test_a_closed_loop_keeps_nobody_from_completing_a_future() -> None:
    future: Future[int] = Future()
    loop = asyncio.new_event_loop()

    async def wait() -> None:
        asyncio.ensure_future(value())  # noqa: RUF006
        await turn()

    async def value() -> int:
        return await future

    loop.run_until_complete(wait())
    loop.set_exception_handler(lambda *_: None)  # the task is destroyed with the loop
    loop.close()
    future.set_result(1)
    assert future.wait() == 1


def test_a_loop_that_rests_wakes_them_when_it_runs_again(loop: CountingLoop) -> None:
    first: Future[int] = Future()
    second: Future[int] = Future()

    async def value(future: Future[int]) -> int:
        return await future

    tasks = [loop.create_task(value(each)) for each in (first, second)]
    loop.run_until_complete(turn())
    first.set_result(1)
    second.set_result(2)
    assert loop.calls == 1
    assert loop.run_until_complete(asyncio.gather(*tasks)) == [1, 2]


class Interrupted:
    """What a task awaits; the user's Ctrl-C comes when it is woken for the first time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.woken = 0

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self.loop

    def done(self) -> bool:
        return False

    def set_result(self, value: None) -> None:
        self.woken += 1
        if self.woken == 1:
            raise KeyboardInterrupt


def test_an_interrupt_while_tasks_are_woken_forgets_none(loop: CountingLoop) -> None:
    waker: Any = _LoopWaker()
    first, second = Interrupted(loop), Interrupted(loop)
    second.woken = 1
    waker.wake(first)
    waker.wake(second)
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(turn())
    loop.run_until_complete(turn())
    assert (first.woken, second.woken) == (2, 2)


def test_an_interrupt_before_the_loop_was_called_leaves_others_their_turn(
    loop: CountingLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    waker: Any = _LoopWaker()
    first, second = Interrupted(loop), Interrupted(loop)
    first.woken = second.woken = 1

    def interrupt(function: Callable[[], None]) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(loop, "call_soon_threadsafe", interrupt)
        waker.wake(first)
    waker.wake(second)
    loop.run_until_complete(turn())
    assert (first.woken, second.woken) == (2, 2)


def test_no_loop_is_kept_alive() -> None:
    wakers, loop = LoopWakers(), asyncio.new_event_loop()
    arrived = loop.create_future()
    wakers.wake(arrived)
    loop.run_until_complete(arrived)
    loop.close()
    gone = weakref.ref(loop)
    del loop, arrived
    gc.collect()
    assert gone() is None


def test_from_many_threads_at_once() -> None:
    futures: list[Future[int]] = [Future() for _ in range(400)]
    begin = threading.Barrier(5)

    def complete(own: list[Future[int]]) -> None:
        begin.wait(20)
        for future in own:
            future.set_result(1)

    async def value(future: Future[int]) -> int:
        return await future

    async def wait() -> int:
        tasks = [asyncio.ensure_future(value(future)) for future in futures]
        await turn()
        begin.wait(20)
        return sum(await asyncio.gather(*tasks))

    threads = [start(lambda i=i: complete(futures[i::4])) for i in range(4)]  # type: ignore[misc]
    assert asyncio.run(wait()) == 400
    for thread in threads:
        thread.join()
