"""One thread at a time reads what comes on all sockets: the leader, or the loop."""

from __future__ import annotations

import queue
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import pytest

from telegrad.testing import leaks
from telegrad.transport import LoopThread
from telegrad.transport.io.handle_set import MOST_REQUESTS, HandleSet
from tests.transport.test_direct_pump import Gate
from tests.transport.workers import SECONDS

T = TypeVar("T")

LOOP = "handles-test"


class Handle:
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


class World:
    def __init__(self) -> None:
        self.loop = LoopThread(LOOP).acquire()
        self.set = HandleSet(self.loop, 0.0)
        self.came: queue.Queue[tuple[bytes, str]] = queue.Queue()
        self.handles = [Handle(self.came) for _ in range(2)]
        for handle in self.handles:
            self.on_loop(partial(self.set.add, handle.end.fileno(), handle))
        self.gate = Gate()

    def on_loop(self, function: Callable[[], T]) -> T:
        async def call() -> T:
            return function()

        return self.loop.run(call(), SECONDS)

    def close(self) -> None:
        for handle in self.handles:
            self.on_loop(partial(self.set.remove, handle.end.fileno()))
            handle.end.close()
            handle.other.close()
        self.on_loop(self.set.close)
        self.loop.release()

    def send(self, place: int, data: bytes) -> None:
        self.handles[place].other.sendall(data)

    def next(self) -> tuple[bytes, str]:
        return self.came.get(timeout=SECONDS)

    def lead(self, name: str = "leader") -> threading.Thread:
        thread = threading.Thread(target=self.set.lead, args=(self.gate, SECONDS), name=name)
        thread.start()
        assert self.gate.driven.wait(SECONDS)
        return thread

    def take_the_lead(self) -> None:
        """Leads in this thread until something was read, and leads on after that."""
        self.set.lead(self.gate, 0)
        self.send(0, b"first")
        self.handles[0].on_read = self.gate.open
        self.set.lead(self.gate, SECONDS)
        assert self.next() == (b"first", "MainThread")


@pytest.fixture
def world() -> Iterator[World]:
    with leaks.no_leaked_descriptors():
        made = World()
        try:
            yield made
        finally:
            made.close()


def test_the_loop_reads_while_nobody_leads(world: World) -> None:
    world.send(0, b"a")
    world.send(1, b"b")
    assert sorted(world.next() for _ in range(2)) == [(b"a", LOOP), (b"b", LOOP)]


def test_the_leader_reads_them_all(world: World) -> None:
    leader = world.lead()
    world.send(0, b"a")
    assert world.next() == (b"a", "leader")
    world.send(1, b"b")
    assert world.next() == (b"b", "leader")
    world.gate.open()
    leader.join(SECONDS)
    assert not leader.is_alive()


@pytest.mark.parametrize("for_replies", [True, False], ids=["for replies", "for work"])
def test_who_waits_for_replies_leaves_requests_to_others(world: World, for_replies: bool) -> None:
    lead = world.set.lead_for if for_replies else world.set.lead
    reader = threading.Thread(target=lead, args=(world.gate, SECONDS), name="reader")
    reader.start()
    assert world.gate.driven.wait(SECONDS)
    for i in range(MOST_REQUESTS + 1):
        world.send(i % 2, b"request")
        who = "reader" if i < MOST_REQUESTS or not for_replies else LOOP
        assert world.next() == (b"request", who)
        if i == MOST_REQUESTS - 1 and for_replies:
            reader.join(SECONDS)
    assert reader.is_alive() is not for_replies
    world.gate.open()
    reader.join(SECONDS)


def test_it_leads_on_until_it_leaves(world: World) -> None:
    world.take_the_lead()
    world.send(1, b"later")
    for _ in range(3):
        world.on_loop(lambda: None)  # turns in which the loop would see it
    assert world.came.empty()
    world.set.leave()
    assert world.next() == (b"later", LOOP)


def test_it_may_look_what_is_there_and_go_on(world: World) -> None:
    world.take_the_lead()
    world.send(1, b"meanwhile")
    world.set.lead(world.gate, 0)  # the gate is open
    assert world.next() == (b"meanwhile", "MainThread")
    world.set.lead(world.gate, 0)
    assert world.came.empty()


def test_whoever_leaves_for_it_lets_another_lead(world: World) -> None:
    world.take_the_lead()
    world.gate = Gate()
    stops_it = threading.Thread(target=world.set.leave)
    stops_it.start()
    stops_it.join(SECONDS)
    leader = world.lead("the next")
    world.set.lead(Gate(), SECONDS)  # returns at once: another leads
    world.send(0, b"a")
    assert world.next() == (b"a", "the next")
    world.gate.open()
    leader.join(SECONDS)


def test_leaving_changes_nothing_while_the_leader_reads(world: World) -> None:
    leader = world.lead()
    world.set.leave()
    world.send(0, b"a")
    assert world.next() == (b"a", "leader")
    world.gate.open()
    leader.join(SECONDS)


def test_a_socket_that_is_paused_is_left_alone(world: World) -> None:
    descriptor = world.handles[0].end.fileno()
    world.set.pause(descriptor)
    world.set.pause(descriptor)
    leader = world.lead()
    world.send(0, b"mine")
    world.send(1, b"b")
    assert world.next() == (b"b", "leader")
    assert world.handles[0].end.recv(100) == b"mine"
    world.set.resume(descriptor)
    world.send(0, b"a")
    assert world.next() == (b"a", "leader")
    world.gate.open()
    leader.join(SECONDS)


def test_the_time_is_over(world: World) -> None:
    world.set.lead(world.gate, 0.001)
    world.set.leave()
    world.send(0, b"a")
    assert world.next() == (b"a", LOOP)


def test_closing_ends_the_leaders_wait(world: World) -> None:
    leader = world.lead()
    world.on_loop(world.set.close)
    leader.join(SECONDS)
    assert not leader.is_alive()
    world.set.lead(Gate(), SECONDS)  # nothing to read from: returns at once


def test_nothing_is_made_before_there_is_a_socket() -> None:
    with leaks.no_leaked_descriptors():
        loop = LoopThread(LOOP).acquire()
        handles = HandleSet(loop, 0.0)
        handles.lead(Gate(), SECONDS)
        handles.leave()
        loop.release()


def test_ctrl_c_ends_the_role_of_who_led_for_itself(world: World) -> None:
    class Interrupted(Gate):
        def is_open(self) -> bool:
            signal.raise_signal(signal.SIGINT)
            return False

    with pytest.raises(KeyboardInterrupt):
        world.set.lead_for(Interrupted(), SECONDS)
    world.send(0, b"after")
    assert world.next() == (b"after", LOOP)
