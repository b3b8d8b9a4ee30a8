"""Whoever has the role reads what comes on all sockets."""

from __future__ import annotations

import asyncio
import math
import os
import queue
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import pytest

from telegrad.testing import leaks
from telegrad.transport import LoopThread
from telegrad.transport.io import burst as burst_module
from telegrad.transport.io import socket_reader as reader_module
from telegrad.transport.io.burst import BURSTS
from telegrad.transport.io.loop_watch import MOST_REQUESTS
from telegrad.transport.io.socket_reader import SocketReader, Stay
from telegrad.transport.io.spin import Spin
from tests.transport.io.test_socket_pump import Gate
from tests.transport.workers import SECONDS, run_on, settled

T = TypeVar("T")

LOOP = "reader-test"


class Socket:
    """One socket; what it brings, and in which thread."""

    def __init__(self, came: queue.Queue[tuple[bytes, str]]) -> None:
        self.end, self.other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.end.setblocking(False)
        self.came = came
        self.on_read: Callable[[], None] = lambda: None

    def read(self) -> int:
        try:
            data = self.end.recv(100)
        except BlockingIOError:
            return 0
        self.on_read()
        self.came.put((data, threading.current_thread().name))
        return int(data.startswith(b"request"))

    def resume(self) -> None:
        raise AssertionError("nothing is written here")


class World:
    def __init__(self) -> None:
        self.loop = LoopThread(LOOP).acquire()
        self.reader = SocketReader(self.loop, 0.0)
        self.came: queue.Queue[tuple[bytes, str]] = queue.Queue()
        self.sockets = [Socket(self.came) for _ in range(2)]
        for socket_ in self.sockets:
            self.on_loop(partial(self.reader.add, socket_.end.fileno(), socket_))
        self.gate = Gate()

    def on_loop(self, function: Callable[[], T]) -> T:
        return run_on(self.loop, function)

    def close(self) -> None:
        for socket_ in self.sockets:
            self.on_loop(partial(self.reader.remove, socket_.end.fileno()))
            socket_.end.close()
            socket_.other.close()
        self.on_loop(self.reader.close)
        self.loop.release()

    def send(self, place: int, data: bytes) -> None:
        self.sockets[place].other.sendall(data)

    def next(self) -> tuple[bytes, str]:
        return self.came.get(timeout=SECONDS)

    def begin(self, kind: str, gate: Gate | None = None) -> threading.Thread:
        """Starts a thread that waits, or an idle one that watches, until the gate opens."""
        gate = gate or self.gate
        target: Callable[[], None] = partial(self.reader.watch_idle, gate)
        if kind != "idle":
            target = partial(self.reader.wait, gate, SECONDS)
        thread = threading.Thread(target=target, name=kind)
        thread.start()
        assert gate.driven.wait(SECONDS)
        return thread


@pytest.fixture
def world() -> Iterator[World]:
    with leaks.no_leaked_descriptors():
        made = World()
        try:
            yield made
        finally:
            made.close()


@pytest.fixture
def in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts all that is posted as posted in a row, however long it takes."""
    monkeypatch.setattr(burst_module, "BURST_SECONDS", math.inf)


def ended(thread: threading.Thread) -> bool:
    thread.join(SECONDS)
    return not thread.is_alive()


def test_the_loop_reads_while_nobody_else_does(world: World) -> None:
    world.send(0, b"a")
    world.send(1, b"b")
    assert sorted(world.next() for _ in range(2)) == [(b"a", LOOP), (b"b", LOOP)]


@pytest.mark.parametrize("kind", ["waiting", "idle"])
def test_a_thread_reads_them_all(world: World, kind: str) -> None:
    thread = world.begin(kind)
    world.send(0, b"a")
    assert world.next() == (b"a", kind)
    world.send(1, b"b")
    assert world.next() == (b"b", kind)
    world.gate.open()
    assert ended(thread)
    world.send(1, b"c")
    assert world.next() == (b"c", LOOP)


def test_a_thread_that_waits_takes_the_role_from_an_idle_one(world: World) -> None:
    idle, waiting = Gate(), Gate()
    threads = [world.begin("idle", idle), world.begin("waiting", waiting)]
    world.send(0, b"a")
    assert world.next() == (b"a", "waiting")
    waiting.open()
    assert ended(threads[1])
    world.send(0, b"b")
    assert world.next() == (b"b", "idle")
    idle.open()
    assert ended(threads[0])


@pytest.mark.parametrize("kind", ["waiting", "idle"])
def test_a_tick_takes_the_role_from_a_thread_that_does_not_come_to_read(
    world: World, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler or finaliser has interrupted its poll, and waits for a reply that comes here."""
    stuck, goes_on = threading.Event(), threading.Event()
    poll = Spin.poll

    def interrupted(spin: Spin, *args: Any) -> Any:
        if threading.current_thread().name == kind and not stuck.is_set():
            stuck.set()
            goes_on.wait(SECONDS)
        return poll(spin, *args)

    monkeypatch.setattr(Spin, "poll", interrupted)
    thread = world.begin(kind)
    assert stuck.wait(SECONDS)
    world.send(0, b"a")
    for _ in range(2):
        world.on_loop(world.reader.tick)
    assert world.next() == (b"a", LOOP)
    goes_on.set()
    world.gate.open()
    assert ended(thread)
    world.send(1, b"b")
    assert world.next() == (b"b", LOOP)


@pytest.mark.parametrize("kind", ["waiting", "idle"])
def test_who_waits_for_replies_leaves_requests_to_others(world: World, kind: str) -> None:
    thread = world.begin(kind)
    leaves = kind == "waiting"
    for i in range(MOST_REQUESTS + 1):
        world.send(i % 2, b"request")
        who = kind if i < MOST_REQUESTS or not leaves else LOOP
        assert world.next() == (b"request", who)
        if i == MOST_REQUESTS - 1 and leaves:
            assert ended(thread)
    assert thread.is_alive() is not leaves
    world.gate.open()
    assert ended(thread)


def test_a_second_thread_that_waits_does_not_read(world: World) -> None:
    first = world.begin("first")
    world.reader.wait(Gate(), SECONDS)  # returns at once
    world.send(0, b"a")
    assert world.next() == (b"a", "first")
    world.gate.open()
    assert ended(first)


def test_the_time_is_over(world: World) -> None:
    world.reader.wait(world.gate, 0.001)
    assert world.gate.wake is None
    world.send(0, b"a")
    assert world.next() == (b"a", LOOP)


def test_a_handler_s_wait_inside_a_wait_reads_for_both(world: World) -> None:
    inner = Gate()
    took: list[bytes] = []

    def handler(*_: object) -> None:
        if not inner.driven.is_set():
            world.reader.wait(inner, SECONDS)

    def interrupt() -> None:
        assert world.gate.driven.wait(SECONDS)
        os.kill(os.getpid(), signal.SIGUSR1)
        while not inner.driven.wait(0.1):  # Python saw it just before it slept
            os.kill(os.getpid(), signal.SIGUSR1)
        world.sockets[0].on_read = world.gate.open  # the outer reply comes first
        world.send(0, b"outer")
        took.append(world.next()[0])
        world.sockets[0].on_read = inner.open
        world.send(0, b"inner")
        took.append(world.next()[0])

    before = signal.signal(signal.SIGUSR1, handler)
    thread = threading.Thread(target=interrupt)
    try:
        thread.start()
        world.reader.wait(world.gate, SECONDS)
        assert ended(thread)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert took == [b"outer", b"inner"]
    world.send(0, b"after")
    assert world.next() == (b"after", LOOP)


@pytest.mark.parametrize("kind", ["waiting", "idle"])
def test_closing_ends_all_waits(world: World, kind: str) -> None:
    thread = world.begin(kind)
    world.on_loop(world.reader.close)
    assert ended(thread)
    world.reader.wait(Gate(), SECONDS)  # nothing to read from: these return at once
    world.reader.watch_idle(Gate())


# -- a thread that stays -------------------------------------------------------------------------

ME = threading.current_thread().name


def run_in_thread(function: Callable[[], object]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    assert ended(thread)


@pytest.fixture
def staying(world: World, monkeypatch: pytest.MonkeyPatch) -> Stay:
    """The waits of this thread, which has the role, and all of whose work counts as short."""
    monkeypatch.setattr(reader_module, "SHORT_SECONDS", math.inf)
    monkeypatch.setattr(reader_module, "LOOK_SECONDS", 0.0)
    stay = Stay(world.reader)
    for _ in range(2):
        opened = Gate()
        opened.open()
        stay.wait(opened, SECONDS)
    return stay


def test_who_stays_reads_when_it_looks(world: World, staying: Stay) -> None:
    for i in range(2 * MOST_REQUESTS):
        world.send(i % 2, b"request")
        staying.look()
        assert world.next() == (b"request", ME)
    staying.end()
    world.send(0, b"a")
    assert world.next() == (b"a", LOOP)
    staying.look()
    world.send(0, b"b")
    staying.look()
    assert world.next() == (b"b", ME)
    staying.end()


def test_who_waits_takes_the_role_from_who_stays(world: World, staying: Stay) -> None:
    thread = world.begin("waiting")
    staying.look()
    world.send(0, b"a")
    assert world.next() == (b"a", "waiting")
    world.gate.open()
    assert ended(thread)
    world.send(0, b"b")
    assert world.next() == (b"b", LOOP)
    staying.end()


@pytest.mark.parametrize("kind", ["waits", "looks"])
def test_who_stays_leaves_the_role_to_who_began_to_wait_meanwhile(
    world: World, staying: Stay, kind: str
) -> None:
    """The other thread sleeps at its gate, and nothing else would read for it."""
    gate = Gate()

    def other_begins() -> None:
        run_in_thread(lambda: world.reader.wait(Gate(), SECONDS))
        world.sockets[0].on_read = lambda: None
        gate.open()

    world.sockets[0].on_read = other_begins
    world.send(0, b"a")
    if kind == "waits":
        staying.wait(gate, SECONDS)
    else:
        staying.look()
    assert world.next() == (b"a", ME)
    for _ in range(2):
        world.send(0, b"b")
        assert world.next() == (b"b", LOOP)
        staying.look()
    world.on_loop(world.reader.tick)  # so long ago that it may wait a while longer
    staying.look()
    world.send(0, b"c")
    staying.look()
    assert world.next() == (b"c", ME)
    staying.end()


def test_who_only_looks_at_it_does_not_keep_the_role_of_another(
    world: World, staying: Stay
) -> None:
    other = Stay(world.reader)
    run_in_thread(other.look)
    world.send(0, b"a")
    for _ in range(2):  # this thread is at work
        run_in_thread(other.look)
        world.on_loop(world.reader.tick)
    assert world.next() == (b"a", LOOP)
    staying.end()


def test_who_stays_reads_no_more_often_than_it_has_to(
    world: World, staying: Stay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "LOOK_SECONDS", math.inf)
    world.send(0, b"a")
    staying.look()
    assert world.came.empty()
    monkeypatch.setattr(reader_module, "LOOK_SECONDS", 0.0)
    staying.look()
    assert world.next() == (b"a", ME)
    staying.end()


def test_who_stays_does_not_keep_what_comes_for_long(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "SHORT_SECONDS", math.inf)
    monkeypatch.setattr(reader_module, "LOOK_SECONDS", 0.0)
    stay = Stay(world.reader)
    for _ in range(3):
        stay.look()
    world.send(0, b"a")
    for _ in range(2):  # this thread is at work, and does not look
        world.on_loop(world.reader.tick)
    assert world.next() == (b"a", LOOP)
    stay.end()


def test_who_works_for_long_between_two_waits_does_not_stay(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "SHORT_SECONDS", 0.0)
    monkeypatch.setattr(reader_module, "LOOK_SECONDS", 0.0)
    stay = Stay(world.reader)
    for _ in range(5):
        stay.look()
        world.send(0, b"a")
        assert world.next() == (b"a", LOOP)


def test_a_wait_in_two_parts_does_not_count_as_short_work(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    stay = Stay(world.reader)
    for _ in range(3):  # long and short work take turns
        for limit in (0.0, math.inf):
            monkeypatch.setattr(reader_module, "SHORT_SECONDS", limit)
            gate = Gate()
            stay.wait(gate, 0.0)
            monkeypatch.setattr(reader_module, "SHORT_SECONDS", math.inf)
            gate.open()
            stay.wait(gate, SECONDS)
            world.send(0, b"a")
            assert world.next() == (b"a", LOOP)


def test_closing_ends_a_stay(world: World, staying: Stay) -> None:
    world.on_loop(world.reader.close)
    staying.look()
    staying.wait(Gate(), SECONDS)  # returns at once
    staying.end()


def test_nothing_is_made_before_there_is_a_socket() -> None:
    with leaks.no_leaked_descriptors():
        loop = LoopThread(LOOP).acquire()
        reader = SocketReader(loop, 0.0)
        reader.wait(Gate(), SECONDS)
        reader.watch_idle(Gate())
        loop.release()


def test_ctrl_c_ends_the_role_of_who_waits(world: World) -> None:
    class Interrupted(threading.Event):
        def set(self) -> None:
            signal.raise_signal(signal.SIGINT)

    gate = Gate()
    gate.driven = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        world.reader.wait(gate, SECONDS)
    world.send(0, b"after")
    assert world.next() == (b"after", LOOP)


def burst(world: World, written: Callable[[], None]) -> None:
    """Posts until something waits to be written together."""
    for _ in range(BURSTS):
        world.reader.bursts.takes(written)


@pytest.mark.usefixtures("in_a_row")
def test_the_first_of_a_burst_are_written_by_who_posts_them(world: World) -> None:
    later = [world.reader.bursts.takes(lambda: None) for _ in range(BURSTS + 1)]
    assert later == [False] * (BURSTS - 1) + [True, True]


def test_what_comes_one_by_one_is_no_burst(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(burst_module, "BURST_SECONDS", -1.0)
    assert not any(world.reader.bursts.takes(lambda: None) for _ in range(100))


@pytest.mark.usefixtures("in_a_row")
@pytest.mark.parametrize("kind", ["waiting", "idle"])
def test_a_burst_is_written_by_who_comes_to_wait(world: World, kind: str) -> None:
    held, written = threading.Event(), threading.Event()
    world.loop.call_soon(held.wait, SECONDS)  # so that it does not
    burst(world, written.set)
    assert not written.is_set()
    thread = world.begin(kind)
    assert written.wait(SECONDS)
    held.set()
    world.gate.open()
    assert ended(thread)


@pytest.mark.usefixtures("in_a_row")
def test_the_loop_writes_a_burst_if_its_thread_does_something_else(world: World) -> None:
    for _ in range(3):
        written = threading.Event()
        burst(world, written.set)
        assert written.wait(SECONDS)


@pytest.mark.usefixtures("in_a_row")
def test_an_own_loop_that_awaits_writes_a_burst_in_its_next_turn(world: World) -> None:
    held, written = threading.Event(), threading.Event()
    world.loop.call_soon(held.wait, SECONDS)

    async def run() -> None:
        burst(world, written.set)
        end = world.reader.await_on(asyncio.get_running_loop())
        assert end is not None
        await settled()
        assert written.is_set()
        end()

    asyncio.run(run())
    held.set()
