"""A loop of the user's reads while its coroutines await replies; else telegrad's threads do."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from telegrad.testing import leaks
from tests.transport.test_direct_pump import Ends
from tests.transport.workers import SECONDS

OWN = "pump-test"


@pytest.fixture
def ends() -> Iterator[Ends]:
    with leaks.no_leaked_descriptors():
        made = Ends()
        try:
            yield made
        finally:
            made.close()


async def came(ends: Ends) -> tuple[bytes, str]:
    """Returns the next message and the thread that read it, while this loop runs."""
    message, thread = await asyncio.to_thread(ends.frames.came.get, timeout=SECONDS)
    return message, thread.name


def begin(ends: Ends) -> Callable[[], None]:
    end = ends.pump.drive_on(asyncio.get_running_loop())
    assert end is not None
    return end


def test_it_reads_from_begin_to_end(ends: Ends) -> None:
    async def run() -> None:
        end = begin(ends)
        ends.send(b"a")
        assert await came(ends) == (b"a", "MainThread")
        end()
        await asyncio.sleep(0)
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


def test_one_loop_at_a_time(ends: Ends) -> None:
    async def run() -> None:
        end = begin(ends)

        def other() -> None:
            async def ask() -> None:
                assert ends.pump.drive_on(asyncio.get_running_loop()) is None

            asyncio.run(ask())

        await asyncio.to_thread(other)
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
            ends.on_loop(ends.pump.tick)
        assert ends.frames.came.get(timeout=SECONDS)[1].name == OWN
        end()

    asyncio.run(run())


def test_a_thread_that_waits_reads_in_its_place(ends: Ends) -> None:
    ends.frames.on_take = lambda message: ends.gate.open()

    async def run() -> None:
        end = begin(ends)
        driver = threading.Thread(target=ends.pump.drive, args=(ends.gate, SECONDS), name="driver")
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


def test_a_stream_that_ends_lets_go_of_the_loop(ends: Ends) -> None:
    async def run() -> None:
        end = begin(ends)
        await asyncio.to_thread(ends.on_loop, lambda: ends.pump.let_go(None))
        assert ends.pump.drive_on(asyncio.get_running_loop()) is None
        end()
        one, other = socket.socketpair()  # perhaps with the same numbers
        with one, other:
            asyncio.get_running_loop().add_reader(one.fileno(), lambda: None)
            asyncio.get_running_loop().remove_reader(one.fileno())

    asyncio.run(run())
