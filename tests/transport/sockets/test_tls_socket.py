"""Sockets of which two threads use one at once, under TLS and without: bytes arrive whole."""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
import ssl
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telegrad.testing import leaks
from telegrad.transport import CarrierClosedError
from telegrad.transport.sockets.message_buffer import ROOM
from telegrad.transport.sockets.message_socket import (
    TOGETHER,
    ByteSocket,
    DirectSocket,
)
from telegrad.transport.sockets.tls_socket import TlsSocket
from tests.transport.channels.test_lanes import MIB
from tests.transport.socket_pairs import (
    MemoryTls,
    certificate,
    header_of,
    memory_pair,
    tcp_pair,
    tls_pair,
)
from tests.transport.workers import SECONDS, meanwhile, pattern

RECORD = 16 * 1024  # bytes of a record of TLS, at most
MOST_TURNS = 200  # single bytes would be filled a million times
SIZES = st.one_of(
    st.integers(1, 100),
    st.integers(RECORD - 30, RECORD + 30),
    st.integers(ROOM - 12, ROOM + 12),
    st.integers(1, 300_000),
)
KINDS = pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])


def byte_pair(*, tls: bool) -> tuple[ByteSocket, ByteSocket]:
    if tls:
        return tls_pair()
    pair = tcp_pair()
    for end in pair:
        end.setblocking(False)
    return pair


@contextlib.contextmanager
def direct_pair(*, tls: bool) -> Iterator[tuple[DirectSocket, DirectSocket]]:
    with leaks.no_leaked_descriptors():
        pair = tuple(map(DirectSocket, byte_pair(tls=tls)))
        yield pair[0], pair[1]
        for end in pair:
            end.end()


def wait_readable(end: ByteSocket) -> None:
    assert select.select([end.fileno()], [], [], SECONDS)[0], "nothing came"


def receive_all(end: ByteSocket, size: int) -> bytes:
    """Receives so many bytes, as someone does who polls only when there is nothing."""
    got = bytearray()
    place = memoryview(bytearray(100_000))
    while len(got) < size:
        try:
            came = end.recv_into(place[: size - len(got)])
        except BlockingIOError:
            wait_readable(end)
            continue
        assert came, "it ended"
        got += place[:came]
    return bytes(got)


def send_whole(end: ByteSocket, data: bytes) -> None:
    """Sends bytes, those for which there is no room once more."""
    left = memoryview(data)
    while left:
        try:
            left = left[end.send(left) :]
        except BlockingIOError:
            assert select.select([], [end.fileno()], [], SECONDS)[1], "there is no room"


# -- one socket under TLS ----------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(st.lists(SIZES, min_size=1, max_size=6), st.lists(SIZES, min_size=1, max_size=6))
def test_both_ends_send_and_receive_at_once(there: list[int], back: list[int]) -> None:
    """Four threads: each end sends in one, and receives in the other."""
    ends = tls_pair(room=100_000)
    sent = [b"".join(pattern(size, i) for i, size in enumerate(sizes)) for sizes in (there, back)]

    def send(end: TlsSocket, data: bytes, sizes: list[int]) -> None:
        for size in sizes:
            send_whole(end, data[:size])
            data = data[size:]

    sending = [
        meanwhile(lambda i=i: send(ends[i], sent[i], (there, back)[i]))  # type: ignore[misc]
        for i in (0, 1)
    ]
    receiving = [
        meanwhile(lambda i=i: receive_all(ends[1 - i], len(sent[i])))  # type: ignore[misc]
        for i in (0, 1)
    ]
    for each in sending:
        each.result(SECONDS)
    assert [each.result(SECONDS) for each in receiving] == sent
    for end in ends:
        end.close()


def test_what_finds_no_room_goes_on_when_it_is_given_again() -> None:
    here, there = tls_pair(room=100_000)
    data = pattern(MIB)
    with pytest.raises(BlockingIOError):
        here.send(data)
    receiving = meanwhile(lambda: receive_all(there, len(data)))
    sent = None
    while sent is None:
        try:
            sent = here.send(bytearray(data))  # the same bytes; they may be somewhere else
        except BlockingIOError:
            assert select.select([], [here.fileno()], [], SECONDS)[1]
    assert sent == len(data)
    assert receiving.result(SECONDS) == data
    here.close()
    there.close()


def test_one_that_has_no_room_receives_meanwhile() -> None:
    """Two that send to each other more than there is room for, with no thread beside."""
    ends = tls_pair(room=100_000)
    data = [pattern(MIB, 0), pattern(MIB, 1)]
    got, left = [bytearray(), bytearray()], [True, True]
    place = memoryview(bytearray(ROOM))
    while any(left) or any(len(each) < MIB for each in got):
        for i, end in enumerate(ends):
            with contextlib.suppress(BlockingIOError):
                if left[i]:
                    end.send(data[i])
                    left[i] = False
            with contextlib.suppress(BlockingIOError):
                got[i] += place[: end.recv_into(place)]
    assert got == [data[1], data[0]]
    for end in ends:
        end.close()


def test_held_tells_of_what_no_poll_tells_of() -> None:
    here, there = tls_pair()
    here.send(b"0123456789")
    wait_readable(there)
    assert there.held() == 0
    assert there.recv_into(memoryview(bytearray(4))) == 4
    assert there.held() == 6
    assert not select.select([there.fileno()], [], [], 0)[0]
    assert there.recv_into(memoryview(bytearray(9))) == 6
    assert there.held() == 0
    here.close()
    there.close()


def test_a_handshake_tells_which_certificate_was_shown() -> None:
    here, there = tls_pair()
    assert here.binding == there.binding == certificate().binding
    assert here.peer_names is there.peer_names is None
    here.close()
    there.close()


@pytest.mark.parametrize("at", ["before", "in the middle", "after"])
def test_nothing_plain_leaves_whenever_it_is_shut_down(at: str) -> None:
    """`SSLSocket.shutdown` would go on without TLS, and send what follows as it is."""
    if at == "after":
        end, client = memory_pair()
        wire = client.wire
    else:
        wire, accepted = tcp_pair()
        end = TlsSocket(accepted, certificate().listening, shown=certificate().binding)
    if at == "in the middle":
        wire.sendall(MemoryTls(wire).hello())
        wait_readable(end)
        with contextlib.suppress(ssl.SSLWantReadError):
            end.shake_hands()
    end.shutdown(socket.SHUT_RDWR)
    for _ in range(3):
        with pytest.raises(OSError):
            end.send(b"a secret of nobody else's")
    came = b""
    while block := wire.recv(100_000):
        came += block
    assert b"a secret" not in came
    end.close()
    wire.close()


# -- messages ----------------------------------------------------------------------------------


@pytest.mark.long
@KINDS
@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(SIZES, max_size=8))
def test_messages_of_every_size_come_in_order(tls: bool, sizes: list[int]) -> None:
    with direct_pair(tls=tls) as (here, there):
        sent = [pattern(size, i) for i, size in enumerate(sizes)]

        def send() -> None:
            for message in sent:
                whole = here.put(message)
                while not whole:
                    select.select([], [here.fileno()], [], SECONDS)
                    whole = here.flush()

        sending, got = meanwhile(send), list[bytes]()
        while len(got) < len(sent):  # polls only when it is told that nothing was read
            message = there.take()
            if message is not None:
                got.append(message)
            elif not there.holds_more:
                assert select.select([there.fileno()], [], [], SECONDS)[0], "a message is forgotten"
        sending.result(SECONDS)
        assert got == sent


@pytest.mark.parametrize("big", [ROOM, 2 * ROOM, 3 * RECORD, 5 * RECORD - 4, MIB])
def test_a_message_in_the_last_record_of_a_big_one_is_not_forgotten(big: int) -> None:
    """It is decrypted with the end of that one, and no poll tells of it."""
    below, client = memory_pair()
    there = DirectSocket(below)
    first, second = pattern(big), b"the next one"
    stream = header_of(first) + first + header_of(second) + second
    sending = meanwhile(lambda: client.wire.sendall(client.encrypted(stream)))
    assert next_message(there) == first
    sending.result(SECONDS)
    assert there.holds_more or select.select([there.fileno()], [], [], SECONDS)[0]
    assert next_message(there) == second
    assert not there.holds_more
    there.end()
    client.wire.close()


def next_message(end: DirectSocket) -> bytes:
    """Waits for a message, as someone does who polls only when there is nothing."""
    while (message := end.take()) is None:
        assert select.select([end.fileno()], [], [], SECONDS)[0], "nothing came"
    return message


# -- the bytes of a lane -----------------------------------------------------------------------


def fill_by(end: DirectSocket, size: int, portions: list[int]) -> bytes:
    """Fills places of these sizes by turns; after MOST_TURNS one place takes all that is left."""
    got, turns = bytearray(), itertools.islice(itertools.cycle(portions), MOST_TURNS)
    while left := size - len(got):
        place = memoryview(bytearray(min(left, next(turns, left))))
        end.fill(place)
        got += place
    return bytes(got)


@pytest.mark.long
@KINDS
@settings(max_examples=30, deadline=None)
@given(
    parts=st.lists(st.lists(SIZES, max_size=4), min_size=1, max_size=4),
    portions=st.lists(SIZES, min_size=1, max_size=6),
)
def test_bytes_of_any_parts_fill_any_places(
    tls: bool, parts: list[list[int]], portions: list[int]
) -> None:
    with direct_pair(tls=tls) as (here, there):
        sent = [
            [pattern(size, 7 * i + j) for j, size in enumerate(each)]
            for i, each in enumerate(parts)
        ]

        def send() -> None:
            for each in sent:
                here.send_all(*each)

        sending = meanwhile(send)
        got = fill_by(there, sum(map(sum, parts)), portions)
        sending.result(SECONDS)
        assert got == b"".join(b"".join(each) for each in sent)


@KINDS
@settings(max_examples=30, deadline=None)
@given(message=SIZES, behind=st.integers(0, 3 * ROOM), portions=st.lists(SIZES, min_size=1))
def test_what_was_read_behind_a_message_fills_first(
    tls: bool, message: int, behind: int, portions: list[int]
) -> None:
    """The last message of a handshake, and the bytes of a lane that came together with it."""
    with direct_pair(tls=tls) as (here, there):
        first, rest = pattern(message, 1), pattern(behind, 2)
        sending = meanwhile(lambda: here.send_all(header_of(first) + first + rest))
        assert next_message(there) == first
        got = fill_by(there, behind, portions)
        sending.result(SECONDS)
        assert got == rest


@KINDS
@pytest.mark.parametrize("who", ["itself", "the other end"])
def test_an_end_wakes_who_sends_and_who_receives(tls: bool, who: str) -> None:
    with direct_pair(tls=tls) as (here, there):
        sending = meanwhile(lambda: here.send_all(bytes(64 * MIB)))
        receiving = meanwhile(lambda: here.fill(memoryview(bytearray(10))))
        there.fill(memoryview(bytearray(1)))  # they have begun
        (here if who == "itself" else there).end()
        for waiting in (sending, receiving):
            with pytest.raises(CarrierClosedError):
                waiting.result(SECONDS)


@KINDS
def test_after_the_end_nothing_is_sent_and_nothing_comes(tls: bool) -> None:
    with direct_pair(tls=tls) as (here, there):
        here.send_all(b"0123456789")
        there.fill(memoryview(bytearray(3)))
        there.end()
        with pytest.raises(CarrierClosedError, match="the socket is closed"):
            there.fill(memoryview(bytearray(3)))
        with pytest.raises(CarrierClosedError, match="the socket is closed"):
            there.send_all(b"0")
        with pytest.raises(CarrierClosedError):
            while True:
                here.send_all(bytes(TOGETHER))
        with pytest.raises(CarrierClosedError):
            here.fill(memoryview(bytearray(1)))


@KINDS
def test_a_place_that_is_not_filled_is_an_error(tls: bool) -> None:
    with direct_pair(tls=tls) as (here, there):
        here.send_all(b"01234")
        here.end()
        with pytest.raises(CarrierClosedError):
            there.fill(memoryview(bytearray(10)))
