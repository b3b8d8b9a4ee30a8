"""Tasks that await futures which other threads complete: each is woken, whatever its loop does."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from telegrad.rpc.future.future import Future
from tests.rpc.future.plain_futures import start
from tests.rpc.turns import turn


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts the calls into it from other threads."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def call_soon_threadsafe(self, *args: Any, **options: Any) -> Any:  # type: ignore[override]
        self.calls += 1
        return super().call_soon_threadsafe(*args, **options)


@pytest.fixture
def loop() -> Any:
    loop = CountingLoop()
    yield loop
    loop.close()


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
