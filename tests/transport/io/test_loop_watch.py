"""A loop of the user's reads while its coroutines await replies; else telegrad's threads do."""

from __future__ import annotations

import asyncio
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from telegrad.testing import leaks
from telegrad.transport.io import loop_watch
from telegrad.transport.io.loop_watch import MOST_REQUESTS
from tests.transport.io.test_socket_pump import Ends
from tests.transport.workers import SECONDS, settled

OWN = "pump-test"


def made(spin: float) -> Iterator[Ends]:
    with leaks.no_leaked_descriptors():
        ends = Ends(spin)
        try:
            yield ends
        finally:
            ends.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    yield from made(0.0)


@pytest.fixture
def looking(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ends]:
    """Ends whose waits are all short: seconds are much for what is sent in the same process.

    Nobody else wants the processor, whatever runs beside these tests.
    """
    monkeypatch.setattr(loop_watch, "WANTED_SECONDS", SECONDS)
    yield from made(SECONDS)


class Sleeps(asyncio.SelectorEventLoop):
    """Counts its turns, and the times when it slept rather than look.

    Attributes:
        turns: With either.
        slept: How often.
        on_sleep: What it does before it sleeps.
    """

    def __init__(self) -> None:
        self.turns = self.slept = 0
        self.on_sleep: Callable[[], None] = lambda: None
        selector = selectors.DefaultSelector()
        super().__init__(selector)
        self._select = selector.select
        selector.select = self._count  # type: ignore[method-assign]

    def _count(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.turns += 1
        if timeout is None or timeout > 0:
            self.slept += 1
            self.on_sleep()
        return self._select(timeout)


async def sleeps_once(loop: Sleeps, looking: Ends) -> None:
    """Checks that the loop sleeps, and only once, until a message wakes it."""
    loop.slept = 0
    loop.on_sleep = lambda: looking.send(b"b")  # what wakes it
    arrived = loop.create_future()
    looking.frames.on_take = lambda _: arrived.set_result(None)
    await arrived
    assert loop.slept == 1
    loop.on_sleep = lambda: None


def run_counting(run: Callable[[Sleeps], Coroutine[Any, Any, None]]) -> None:
    """Runs a coroutine on a loop that counts."""
    loop = Sleeps()
    try:
        loop.run_until_complete(asyncio.wait_for(run(loop), SECONDS))
    finally:
        loop.close()


async def came(ends: Ends) -> tuple[bytes, str]:
    """Returns the next message and the thread that read it, while this loop runs."""
    message, thread = await asyncio.to_thread(ends.frames.came.get, timeout=SECONDS)
    return message, thread.name


def begin(ends: Ends) -> Callable[[], None]:
    end = ends.reader.await_on(asyncio.get_running_loop())
    assert end is not None
    return end


def test_it_reads_from_begin_to_end(ends: Ends) -> None:
    async def run() -> None:
        end = begin(ends)
        ends.send(b"a")
        assert await came(ends) == (b"a", "MainThread")
        end()
        await settled()
        ends.send(b"b")
        assert await came(ends) == (b"b", OWN)

    asyncio.run(run())
    assert all(ends.frames.handing)


def test_it_reads_for_several(ends: Ends) -> None:
    async def run() -> None:
        first, second = begin(ends), begin(ends)
        first()
        ends.send(b"a")
        assert await came(ends) == (b"a", "MainThread")
        second()
        third = begin(ends)  # before the loop has stopped watching
        ends.send(b"b")
        assert await came(ends) == (b"b", "MainThread")
        third()

    asyncio.run(run())
    ends.send(b"c")
    assert ends.frames.came.get(timeout=SECONDS)[1].name == OWN


def check_leaving(ends: Ends) -> None:
    async def run() -> None:
        end = begin(ends)
        for _ in range(MOST_REQUESTS):
            ends.send(b"request")
            assert await came(ends) == (b"request", "MainThread")
        for _ in range(2):
            ends.send(b"request")
            assert await came(ends) == (b"request", OWN)
        another = begin(ends)
        ends.send(b"reply")
        assert await came(ends) == (b"reply", "MainThread")
        end()
        another()

    asyncio.run(run())


def test_it_leaves_requests_to_others_until_the_next_reply_is_awaited(ends: Ends) -> None:
    check_leaving(ends)


def test_it_leaves_them_to_others_where_it_looks(looking: Ends) -> None:
    check_leaving(looking)


def test_a_thread_that_holds_its_own_loop_up_reads_on(ends: Ends) -> None:
    """While it blocks nobody else would: its loop has the socket."""

    async def run() -> None:
        end = begin(ends)
        ends.frames.on_take = lambda message: ends.gate.open() if message == b"mine" else None
        for _ in range(MOST_REQUESTS + 1):
            ends.send(b"request")
        ends.send(b"mine")
        ends.reader.wait(ends.gate, SECONDS)
        assert not ends.gate.shut
        end()

    asyncio.run(run())
    readers = {ends.frames.came.get(timeout=SECONDS)[1].name for _ in range(MOST_REQUESTS + 2)}
    assert readers == {"MainThread"}


def test_the_loop_that_began_last_reads(ends: Ends) -> None:
    async def run() -> None:
        end = begin(ends)

        async def ask() -> None:
            ended = begin(ends)
            ends.send(b"a")
            message, thread = await asyncio.to_thread(ends.frames.came.get, timeout=SECONDS)
            assert (message, thread) == (b"a", threading.current_thread())
            ended()

        await asyncio.to_thread(asyncio.run, ask())
        ends.send(b"b")
        assert await came(ends) == (b"b", "MainThread")
        end()

    asyncio.run(run())


def test_a_loop_that_ended_in_the_midst_is_replaced(ends: Ends) -> None:
    async def leave() -> None:
        begin(ends)

    async def run() -> None:
        end = begin(ends)
        ends.send(b"a")
        assert await came(ends) == (b"a", "MainThread")
        end()

    asyncio.run(leave())
    ends.on_loop(ends.reader.tick)
    asyncio.run(run())
    ends.send(b"b")
    assert ends.frames.came.get(timeout=SECONDS)[1].name == OWN


def test_a_coroutine_may_end_after_its_loop(ends: Ends) -> None:
    loop = asyncio.new_event_loop()

    async def run() -> Callable[[], None]:
        return begin(ends)

    end = loop.run_until_complete(run())
    loop.close()
    end()
    ends.send(b"a")
    assert ends.frames.came.get(timeout=SECONDS)[1].name == OWN


def test_a_loop_that_is_kept_busy_is_given_up(ends: Ends) -> None:
    async def run() -> None:
        end = begin(ends)
        ends.send(b"a")
        while ends.frames.came.empty():  # user code that blocks its loop
            ends.on_loop(ends.reader.tick)
        assert ends.frames.came.get(timeout=SECONDS)[1].name == OWN
        end()

    asyncio.run(run())


def test_a_thread_that_waits_reads_in_its_place(ends: Ends) -> None:
    ends.frames.on_take = lambda message: ends.gate.open()

    async def run() -> None:
        end = begin(ends)
        driver = threading.Thread(target=ends.reader.wait, args=(ends.gate, SECONDS), name="driver")
        driver.start()
        await asyncio.to_thread(ends.gate.driven.wait, SECONDS)
        ends.send(b"a")
        message, _ = await came(ends)
        assert message == b"a"
        await asyncio.to_thread(driver.join, SECONDS)
        ends.send(b"b")
        assert await came(ends) == (b"b", "MainThread")
        end()

    asyncio.run(run())


def test_a_reader_that_is_closed_lets_go_of_the_loop(ends: Ends) -> None:
    async def run() -> None:
        end = begin(ends)
        await asyncio.to_thread(ends.on_loop, ends.reader.close)
        assert ends.reader.await_on(asyncio.get_running_loop()) is None
        end()
        one, other = socket.socketpair()  # perhaps with the same numbers
        with one, other:
            asyncio.get_running_loop().add_reader(one.fileno(), lambda: None)
            asyncio.get_running_loop().remove_reader(one.fileno())

    asyncio.run(run())


async def taken(ends: Ends, message: bytes) -> None:
    """Awaits a message on this loop, as a coroutine awaits a reply."""
    arrived = asyncio.get_running_loop().create_future()
    ends.frames.on_take = lambda _: arrived.set_result(None)
    end = begin(ends)
    asyncio.get_running_loop().call_soon(ends.send, message)
    try:
        await arrived
    finally:
        end()


def test_it_looks_once_a_wait_was_short(looking: Ends) -> None:
    async def run(loop: Sleeps) -> None:
        await taken(looking, b"a")
        loop.turns = loop.slept = 0
        for _ in range(10):
            await taken(looking, b"b")
        assert not loop.slept
        assert loop.turns <= 10 * 4  # sent, looked at, read, gone on

    run_counting(run)


def test_it_looks_for_nothing_while_nothing_is_awaited(looking: Ends) -> None:
    async def run(loop: Sleeps) -> None:
        await taken(looking, b"a")
        await taken(looking, b"b")
        loop.turns = loop.slept = 0
        await asyncio.sleep(0.01)
        assert loop.slept
        assert loop.turns < 10

    run_counting(run)


def test_other_callbacks_have_their_turn_while_it_looks(looking: Ends) -> None:
    async def run(loop: Sleeps) -> None:
        await taken(looking, b"a")
        end = begin(looking)
        one, other = socket.socketpair()
        with one, other:
            loop.slept = 0
            one.setblocking(False)
            loop.call_later(0.001, other.send, b"x")
            assert await loop.sock_recv(one, 1) == b"x"
            assert not loop.slept  # a timer and a socket, in turns of their own
        end()

    run_counting(run)


def test_it_sleeps_when_the_window_is_over(looking: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(loop: Sleeps) -> None:
        await taken(looking, b"a")
        now = time.monotonic
        end = begin(looking)
        await settled()
        with monkeypatch.context() as patch:
            later = SimpleNamespace(monotonic=lambda: now() + SECONDS)
            patch.setattr(loop_watch, "time", later)
            await sleeps_once(loop, looking)
        end()

    run_counting(run)


def test_it_sleeps_once_others_want_the_processor(
    looking: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_watch, "WANTED_SECONDS", 0.0)  # as if they always did

    async def run(loop: Sleeps) -> None:
        await taken(looking, b"a")
        end = begin(looking)
        await sleeps_once(loop, looking)
        end()

    run_counting(run)


def test_it_never_looks_where_nobody_may(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    monkeypatch.setattr(os, "sched_yield", lambda: looked.append(1))

    async def run(loop: Sleeps) -> None:
        loop.on_sleep = lambda: ends.send(b"a")
        for _ in range(3):
            end = begin(ends)
            arrived = loop.create_future()
            ends.frames.on_take = lambda _: arrived.set_result(None)  # noqa: B023
            await arrived
            end()
        assert loop.slept == 3

    run_counting(run)
    assert not looked


def test_a_reader_that_is_closed_while_the_loop_looks_ends_that(looking: Ends) -> None:
    async def run(loop: Sleeps) -> None:
        await taken(looking, b"a")
        end = begin(looking)
        await asyncio.to_thread(looking.on_loop, looking.reader.close)
        await settled()
        loop.turns = loop.slept = 0
        await asyncio.sleep(0.01)
        assert loop.slept
        assert loop.turns < 10
        end()

    run_counting(run)


def test_a_loop_that_ended_while_it_looked_is_replaced(looking: Ends) -> None:
    async def leave(loop: Sleeps) -> None:
        await taken(looking, b"a")
        begin(looking)

    async def run(loop: Sleeps) -> None:
        for _ in range(2):
            await taken(looking, b"a")

    run_counting(leave)
    looking.on_loop(looking.reader.tick)
    run_counting(run)
    looking.frames.on_take = lambda _: None
    while not looking.frames.came.empty():
        looking.frames.came.get()
    looking.send(b"b")
    assert looking.frames.came.get(timeout=SECONDS)[1].name == OWN
