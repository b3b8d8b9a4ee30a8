"""How many streams may prove nothing yet, who goes when they are too many, and other bounds."""

from __future__ import annotations

from contextlib import ExitStack
from unittest.mock import Mock

import pytest

from telegrad.errors import DecodeError
from telegrad.transport import Carrier, ConnectionLimits
from telegrad.transport.security.handshake import DialHandshake, Identity, Reason
from telegrad.transport.session.accept import Unproved
from telegrad.transport.session.liveness import IDLE_FRAMES_PER_TICK, MOST_IDLE_FRAMES, IdleFrames
from telegrad.transport.session.session import Session
from telegrad.types import WorkerInfo
from telegrad.wire import Envelope, Frame
from tests.loops import on_loop
from tests.transport.promises.hand_made import until_closed
from tests.transport.promises.test_strangers import told
from tests.transport.workers import TOKEN, Floor


def named(description: str) -> Mock:
    """Returns a carrier that is nothing but an address."""
    return Mock(Carrier, description=description)


def test_the_oldest_of_the_address_with_most_is_cut_off() -> None:
    unproved = Unproved(4)
    with ExitStack() as stack:
        many = [named(f"grpc ipv4:10.0.0.9:{4000 + i}") for i in range(5)]
        one = named("grpc ipv4:10.0.0.1:4000")
        for carrier in (one, *many[:3]):
            stack.enter_context(unproved.held(carrier))
            assert unproved.too_many() is None
        for carrier, oldest in zip(many[3:], many, strict=False):
            stack.enter_context(unproved.held(carrier))
            assert unproved.too_many() is oldest
            assert unproved.too_many() is None
            assert "oldest of 5 streams" in (unproved.why_cut(oldest) or "")
        assert unproved.why_cut(one) is None
    assert unproved.why_cut(many[0]) is None  # nothing is kept of those that are over


def test_the_port_is_no_part_of_an_address() -> None:
    unproved = Unproved(2)
    v6 = [named(f"grpcs ipv6:[fe80::1]:{port}") for port in (1, 22)]
    with unproved.held(named("local /run/x/s")), unproved.held(v6[0]), unproved.held(v6[1]):
        assert unproved.too_many() is v6[0]


def test_who_has_proved_itself_makes_room_for_nobody() -> None:
    unproved = Unproved(1)
    waits, stranger, next_one = (named(f"grpc ipv4:10.0.0.9:{port}") for port in (1, 2, 3))
    with unproved.held(waits):
        unproved.proved(waits)
        with unproved.held(stranger):
            assert unproved.too_many() is None
            with unproved.held(next_one):
                assert unproved.too_many() is stranger


def test_there_is_always_room_for_one_more(floor: Floor) -> None:
    """Silent strangers make room for whoever comes, and the last of them stay."""
    host = floor.worker("host", limits=ConnectionLimits(unproved=3))

    async def dial() -> list[Carrier]:
        return [await floor.transport().dial(host.endpoints[0]) for _ in range(3)]

    async def end(carriers: list[Carrier]) -> None:
        assert await until_closed(carriers[0]) == []
        for carrier in carriers[1:]:
            await carrier.close()

    silent = on_loop(dial)
    friend = floor.worker("friend").knows(host)
    friend.send(host, 1)
    on_loop(lambda: end(silent))


def test_as_many_connections_as_there_may_be(floor: Floor) -> None:
    host = floor.worker("host", limits=ConnectionLimits(connections=2))
    friends = [floor.worker(f"friend{i}").knows(host) for i in range(2)]
    for friend in friends:
        friend.post(host, 1)
    host.recorder.wait_envelopes(2)

    async def talk() -> list[bytes]:
        carrier = await floor.transport().dial(host.endpoints[0])
        shake = DialHandshake(Identity("job", WorkerInfo("third", 9, 9)), TOKEN)
        await carrier.send(shake.hello())
        shake.takes_answer(await carrier.receive())
        await carrier.send(shake.prove(0, resumes=False))
        return await until_closed(carrier)

    (answer,) = on_loop(talk)
    reason, words = told(answer)
    assert reason is Reason.NOT_ADMITTED
    assert words.endswith("has 2 connections, as many as it takes")
    friends[0].exchange.close(5.0)  # who has left makes room
    host.recorder.wait_lost()
    third = floor.worker("third").knows(host)
    third.send(host, 3)


def test_frames_that_bring_nothing_new() -> None:
    idle = IdleFrames()
    for news in range(10):
        for _ in range(MOST_IDLE_FRAMES):
            idle.take(news)
    for _ in range(MOST_IDLE_FRAMES):
        idle.tick()
        for _ in range(IDLE_FRAMES_PER_TICK):
            idle.take(9)
    idle.take(9)
    with pytest.raises(DecodeError, match="a flood"):
        idle.take(9)


def test_a_flood_that_is_slow() -> None:
    """A peer on a busy machine cannot write a thousand frames between two ticks."""
    idle, most = IdleFrames(), MOST_IDLE_FRAMES
    for _ in range(most - IDLE_FRAMES_PER_TICK):
        idle.tick()
        for _ in range(IDLE_FRAMES_PER_TICK + 1):
            idle.take(0)
    idle.tick()
    with pytest.raises(DecodeError, match="a flood"):
        for _ in range(2 * IDLE_FRAMES_PER_TICK):
            idle.take(0)


def test_what_is_new_in_a_frame() -> None:
    a, b = Session(), Session()
    a.connection_made(0)
    b.connection_made(0)
    seen = [b.news]

    def brings(frame: Frame) -> bool:
        b.received(frame)
        seen.append(b.news)
        return seen[-1] != seen[-2]

    assert not brings(Frame())
    a.post(Envelope("test.message", 1))
    first = a.next_write()
    assert brings(first)
    assert not brings(first)
    announced = Frame([Envelope("test.message", 2, number=2)], awaited={2: {0: 5}})
    assert brings(announced)
    assert not brings(announced)
    b.post(Envelope("test.message", 3))
    b.next_write()
    assert brings(Frame(receipt=1))
    assert not brings(Frame(receipt=1))


def test_replies_that_nobody_reads_are_counted() -> None:
    session = Session()
    session.connection_made(0)
    for call in range(4):
        session.post(Envelope("test.message", call, reply=call % 2 == 0))
    assert session.replies_unread == 2
    session.next_write()
    session.received(Frame(receipt=1))
    assert session.replies_unread == 1
    session.received(Frame(receipt=4))
    assert session.replies_unread == 0
