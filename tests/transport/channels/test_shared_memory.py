"""Buffers in memory that both ends share: who has it, how long, and what hostile ends can do."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import pytest

from telegrad.arrays import SharedMemory, shared_empty
from telegrad.errors import DecodeError
from telegrad.transport.channels.handles import MOST_HANDLES
from telegrad.transport.channels.ledger import Account, Bounds
from telegrad.transport.channels.loans import MOST_SLABS, Loans
from telegrad.transport.channels.shared_memory import SlabPool, SlabStream
from telegrad.transport.sockets.message_socket import MOST_DESCRIPTORS, DirectSocket
from telegrad.wire import LENT_BYTES, Envelope, Frame, Lending, Lent
from tests.repeated import TRANSPORTS
from tests.transport.socket_pairs import unix_pair
from tests.transport.workers import Floor, ManualClock, Worker, at_once, floor_of, wait_until

SIZE = 2**20


def meet(alice: Worker, bob: Worker) -> None:
    """Has a stream come up: only then is it known whether its ends share memory."""
    alice.send(bob, 1)
    bob.recorder.envelopes.clear()


def filled(worker: Worker, peer: Worker, size: int, value: int) -> memoryview:
    """Returns shared memory with something in it."""
    memory = worker.exchange.memory(peer.info).take(size)
    assert memory is not None
    assert (memory.nbytes, memory.readonly) == (size, False)
    np.frombuffer(memory, np.uint8)[:] = value
    return memory


def account_of(worker: Worker, peer: Worker) -> Account[SharedMemory]:
    stream = worker.connection(peer.info).stream
    assert stream is not None
    assert stream.slabs is not None
    return stream.slabs._account


def beat(worker: Worker, peer: Worker) -> None:
    """Has a frame go there, with whatever waits for one."""
    worker.post(peer, 99)
    wait_until("an envelope", lambda: 99 in peer.recorder.calls())
    peer.recorder.envelopes[:] = [each for each in peer.recorder.envelopes if each[1].call != 99]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def mappings() -> int:
    with open("/proc/self/maps") as lines:
        return sum("memfd:telegrad" in line for line in lines)


def none_mapped() -> None:
    """Waits until no memory is shared."""
    gc.collect()
    wait_until("no memory is mapped", lambda: mappings() == 0)


# -- the ordinary way ----------------------------------------------------------------------------


def test_a_buffer_arrives_where_it_was_written(met: tuple[Worker, Worker]) -> None:
    alice, bob = met
    memory = filled(alice, bob, SIZE, 7)
    envelope = alice.send(bob, 2, buffers=[memory.toreadonly(), b"small"])
    got, small = envelope.buffers
    assert isinstance(got, memoryview)
    assert not got.readonly
    array = np.frombuffer(got, np.uint8)
    assert array.shape == (SIZE,)
    assert (array == 7).all()
    assert bytes(small) == b"small"
    memory[0] = 9  # of this process, as of another: these are the same bytes
    assert got[0] == 9
    sent, received = alice.exchange.statistics(), bob.exchange.statistics()
    assert (sent.slab_bytes_sent, received.slab_bytes_received) == (SIZE, SIZE)
    assert (sent.chunks_sent, sent.lanes) == (0, 0)
    assert sent.bytes_sent - SIZE < 1000


def test_it_is_lent_until_the_last_view_of_it_is_freed(met: tuple[Worker, Worker]) -> None:
    alice, bob = met
    envelope = alice.send(bob, 2, buffers=[filled(alice, bob, SIZE, 7)])
    array = np.ndarray((SIZE // 8,), np.float64, envelope.buffers[0])
    slice_of_it: Any = array[3:].reshape(1, -1)[:, ::2].data
    bob.recorder.envelopes.clear()
    del envelope, array
    books = account_of(alice, bob)
    beat(bob, alice)
    assert books.out == SIZE  # the receipt has come: what is left is the loan
    del slice_of_it
    beat(bob, alice)
    wait_until("the loan is back", lambda: books.out == 0)
    assert books.loans == {}


def test_the_same_block_goes_again_and_again(met: tuple[Worker, Worker]) -> None:
    alice, bob = met
    books = account_of(alice, bob)
    before = 0, 0
    for call in range(2, 202):
        alice.post(bob, call, buffers=[filled(alice, bob, 70_000, call % 250)])
        (envelope,) = bob.recorder.wait_envelopes(1)
        assert bytes(memoryview(envelope.buffers[0])[:3]) == bytes([call % 250] * 3)
        del envelope
        bob.recorder.envelopes.clear()
        beat(bob, alice)
        if call == 10:
            before = descriptors(), mappings()
    assert descriptors() <= before[0]  # gRPC may close some of an earlier test meanwhile
    assert mappings() == before[1]
    assert len(books.slabs) == 1


def test_many_threads_at_once(met: tuple[Worker, Worker]) -> None:
    """Whatever is read was written for this envelope: no block is in two hands."""
    alice, bob = met
    count, wrong = 60, []

    def check(peer: object, envelope: Envelope) -> None:
        if envelope.buffers:
            got = np.frombuffer(envelope.buffers[0], np.uint8)
            if got[0] != envelope.call % 251 or (got != got[0]).any():
                wrong.append(envelope.call)
            got[:] = 255
        envelope.buffers = ()

    bob.recorder.react = check

    def send(first: int) -> None:
        for call in range(first, first + count):
            memory = alice.exchange.memory(bob.info).take(66_000 * (1 + call % 5))
            assert memory is not None
            np.frombuffer(memory, np.uint8)[:] = call % 251
            alice.post(bob, call, buffers=[memory])

    at_once(*(partial(send, 1000 * k) for k in range(1, 5)))
    bob.recorder.wait_envelopes(4 * count)
    assert wrong == []


def test_what_is_small_or_elsewhere_gets_none(met: tuple[Worker, Worker]) -> None:
    alice, bob = met
    assert alice.exchange.memory(bob.info).take(LENT_BYTES) is None
    assert alice.exchange.memory(alice.info).take(SIZE) is None
    assert alice.exchange.memory(bob.info).take(Bounds().lent + 1) is None


@pytest.mark.parametrize("kind", TRANSPORTS)
def test_other_transports_share_nothing(kind: str) -> None:
    with floor_of(kind) as floor:
        alice, bob = floor.pair()
        meet(alice, bob)
        memory = alice.exchange.memory(bob.info).take(SIZE)
        alice.send(bob, 2, buffers=[bytes(SIZE) if memory is None else memory])
        assert alice.exchange.statistics().slab_bytes_sent == 0


def test_memory_is_lent_once(met: tuple[Worker, Worker]) -> None:
    """The peer may write there: a second envelope gets a copy, in pieces."""
    alice, bob = met
    memory = filled(alice, bob, SIZE, 7)
    alice.post(bob, 2, buffers=[memory])
    alice.post(bob, 3, buffers=[memory])
    first, second = sorted(bob.recorder.wait_envelopes(2), key=lambda each: each.call)
    first.buffers[0][0] = 9  # type: ignore[index]
    assert memory[0] == 9
    assert second.buffers[0][0] == 7
    assert alice.exchange.statistics().slab_bytes_sent == SIZE


def test_a_part_of_it_goes_in_pieces(met: tuple[Worker, Worker]) -> None:
    alice, bob = met
    memory = filled(alice, bob, SIZE, 7)
    envelope = alice.send(bob, 2, buffers=[memory[1:]])
    assert bytes(envelope.buffers[0]) == b"\7" * (SIZE - 1)
    assert alice.exchange.statistics().slab_bytes_sent == 0


def test_beside_pieces_of_the_same_envelope(local: Floor) -> None:
    with pools(bounds=Bounds(lent=2 * SIZE)):  # no room for what is big
        alice, bob = local.pair()
    meet(alice, bob)
    memory, big = filled(alice, bob, SIZE, 7), os.urandom(3 * SIZE)
    envelope = alice.send(bob, 2, document=big, buffers=[big[1:], memory, b""])
    assert envelope.document == big
    assert [bytes(each) for each in envelope.buffers] == [big[1:], b"\7" * SIZE, b""]
    assert alice.exchange.statistics().slab_bytes_sent == SIZE


# -- bounds --------------------------------------------------------------------------------------


@contextlib.contextmanager
def pools(**options: Any) -> Iterator[None]:
    """Gives the workers that are made meanwhile pools with another clock or other bounds."""

    def make(clock: Callable[[], float]) -> SlabPool:
        return SlabPool(**{"clock": clock, **options})

    with mock.patch("telegrad.transport.session.exchange.SlabPool", make):
        yield


def test_a_receiver_that_keeps_all_arrays(local: Floor) -> None:
    """Beyond half the bound it gets what has to be copied, beyond the bound pieces."""
    with pools(bounds=Bounds(lent=10 * SIZE)):
        alice, bob = local.pair()
    meet(alice, bob)
    for call in range(2, 22):
        memory = alice.exchange.memory(bob.info).take(SIZE)
        if memory is None:
            alice.post(bob, call, buffers=[bytes([call]) * SIZE])
        else:
            memory[:] = bytes([call]) * SIZE
            alice.post(bob, call, buffers=[memory])
        del memory
        bob.recorder.wait_envelopes(call - 1)
        beat(bob, alice)
    for envelope in bob.recorder.wait_envelopes(20):
        assert bytes(envelope.buffers[0]) == bytes([envelope.call]) * SIZE
    views = [memoryview(each.buffers[0]) for each in bob.recorder.wait_envelopes(20)]
    assert [view.readonly for view in views].count(True) == 5
    assert alice.exchange.statistics().slab_bytes_sent == 10 * SIZE
    assert alice.exchange.statistics().chunks_sent == 10


def test_much_is_given_back_at_once(
    met: tuple[Worker, Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that only sends gets it back, and its receipts, though nothing goes the other way."""
    monkeypatch.setattr("telegrad.transport.channels.loans.RETURN_BYTES", 4 * SIZE)
    alice, bob = met
    bob.recorder.react = lambda peer, envelope: bob.recorder.envelopes.clear()
    books, most = account_of(alice, bob), 0
    for call in range(2, 60):
        alice.post(bob, call, buffers=[filled(alice, bob, SIZE, 7)])
        wait_until("most of it is back", lambda: books.out <= 8 * SIZE)
        most = max(most, books.out)
    assert SIZE <= most <= 9 * SIZE


# -- ends ----------------------------------------------------------------------------------------


def break_stream(worker: Worker, peer: Worker) -> None:
    stream = worker.connection(peer.info).stream
    assert stream is not None
    below = stream.carrier.direct
    assert isinstance(below, DirectSocket)
    with (
        contextlib.suppress(OSError),  # the other end was first
        socket.socket(fileno=os.dup(below.fileno())) as same,
    ):
        same.shutdown(socket.SHUT_RDWR)


def test_a_stream_that_breaks_takes_its_slabs_along(met: tuple[Worker, Worker]) -> None:
    """What was lent stays with who has it; what was not handed over comes all the same."""
    alice, bob = met
    envelope = alice.send(bob, 2, buffers=[filled(alice, bob, SIZE, 7)])
    old = account_of(alice, bob)
    waiting = filled(alice, bob, SIZE, 8)
    break_stream(alice, bob)
    alice.send(bob, 3, buffers=[waiting])
    assert account_of(alice, bob) is not old
    assert (old.open, old.slabs) == (False, {})
    first, second = bob.recorder.wait_envelopes(2)
    assert bytes(first.buffers[0]) == b"\7" * SIZE
    assert bytes(second.buffers[0]) == b"\10" * SIZE
    alice.post(bob, 4, buffers=[filled(alice, bob, SIZE, 9)])
    assert bytes(bob.recorder.wait_envelopes(3)[2].buffers[0]) == b"\11" * SIZE
    del envelope


def test_breaks_at_any_moment(met: tuple[Worker, Worker]) -> None:
    """Streams end while memory is written, lent, moved and read; each envelope comes once."""
    alice, bob = met
    for call in range(2, 202):
        memory = alice.exchange.memory(bob.info).take(70_000)
        buffer = bytearray(70_000) if memory is None else memory
        buffer[:] = bytes([call]) * 70_000
        alice.post(bob, call, buffers=[buffer])
        if call % 7 == 0:
            with contextlib.suppress(AssertionError):  # it is being dialled
                break_stream(alice if call % 2 else bob, bob if call % 2 else alice)
    got = bob.recorder.wait_envelopes(200)
    assert sorted(each.call for each in got) == list(range(2, 202))
    for envelope in got:
        assert bytes(envelope.buffers[0]) == bytes([envelope.call]) * 70_000
        np.frombuffer(envelope.buffers[0], np.uint8)[:] = 0


@pytest.mark.parametrize("who", ["sender", "receiver"])
def test_a_lost_end_leaves_nothing(local: Floor, who: str) -> None:
    none_mapped()
    alice, bob = local.pair()
    meet(alice, bob)
    before = descriptors()
    envelope = alice.send(bob, 2, buffers=[filled(alice, bob, SIZE, 7)])
    books = account_of(alice, bob)
    local.kill(alice if who == "sender" else bob)
    (bob if who == "sender" else alice).recorder.wait_lost()
    assert (books.open, books.slabs) == (False, {})
    assert bytes(envelope.buffers[0]) == b"\7" * SIZE  # the array of a lost sender lives on
    envelope.buffers = ()
    none_mapped()
    assert descriptors() <= before


def test_a_closed_exchange_leaves_nothing() -> None:
    none_mapped()
    before = descriptors()
    with floor_of("local") as floor:
        alice, bob = floor.pair()
        meet(alice, bob)
        alice.send(bob, 2, buffers=[filled(alice, bob, SIZE, 7), filled(alice, bob, 40 * SIZE, 7)])
        assert mappings() == 4
    bob.recorder.envelopes.clear()
    none_mapped()
    assert descriptors() <= before + 2


def test_idle_memory_goes_at_both_ends(local: Floor) -> None:
    none_mapped()
    clock = ManualClock()
    with pools(clock=clock):
        alice, bob = local.pair()
    meet(alice, bob)
    alice.send(bob, 2, buffers=[filled(alice, bob, SIZE, 7)])
    bob.recorder.envelopes.clear()
    books = account_of(alice, bob)
    beat(bob, alice)
    wait_until("the loan is back", lambda: books.out == 0)
    clock.now += 1e12
    wait_until("idle memory is gone", lambda: books.slabs == {})
    beat(alice, bob)
    none_mapped()


# -- arrays that were made in shared memory ------------------------------------------------------


def lent(worker: Worker, peer: Worker, call: int, array: Any) -> None:
    worker.post(peer, call, buffers=[array.reshape(-1).view(np.uint8).data])


def arrays(worker: Worker, count: int) -> list[Any]:
    got = worker.recorder.wait_envelopes(count)
    return [np.frombuffer(each.buffers[0], float) for each in sorted(got, key=lambda e: e.call)]


def test_a_shared_array_is_the_same_at_both_ends(met: tuple[Worker, Worker]) -> None:
    none_mapped()
    alice, bob = met
    array = shared_empty((100, 1000))
    array[:] = 1
    lent(alice, bob, 2, array)
    lent(alice, bob, 3, array[50:])
    whole, half = arrays(bob, 2)
    array[50, 0] = 5
    assert (whole[50_000], half[0]) == (5, 5)
    half[1] = 6
    assert array[50, 1] == 6
    assert mappings() == 2  # one at each end
    assert alice.exchange.statistics().chunks_sent == 0
    del whole, half
    bob.recorder.envelopes.clear()
    beat(bob, alice)
    lent(alice, bob, 4, array)
    assert arrays(bob, 1)[0][50_000] == 5
    del array
    bob.recorder.envelopes.clear()
    beat(bob, alice)  # who gives it back
    beat(alice, bob)  # who tells that it is gone
    none_mapped()


def test_a_shared_array_outlives_its_stream(met: tuple[Worker, Worker]) -> None:
    alice, bob = met
    array = shared_empty(100_000)
    lent(alice, bob, 2, array)
    (first,) = arrays(bob, 1)
    break_stream(alice, bob)
    beat(alice, bob)
    lent(alice, bob, 3, array)
    _, second = arrays(bob, 2)
    array[7] = 7
    assert (first[7], second[7]) == (7, 7)


def test_many_shared_arrays_go_some_other_way(met: tuple[Worker, Worker]) -> None:
    alice, bob = met
    kept = [shared_empty(10_000) for _ in range(MOST_HANDLES + 3)]
    for k, array in enumerate(kept):
        array[:] = k
        lent(alice, bob, k, array)
    assert [got[-1] for got in arrays(bob, len(kept))] == list(range(len(kept)))
    assert alice.exchange.statistics().chunks_sent == 3


# -- hostile ends --------------------------------------------------------------------------------


class Wire:
    """The receiving end of a stream without one: frames as values, descriptors from a list."""

    def __init__(self) -> None:
        self.queue: list[int] = []
        self.loans = Loans(
            lambda: self.queue.pop(0) if self.queue else None,
            lambda lent: memoryview(b""),
            Bounds(),
        )

    def take(self, lent: dict[int, Lent] | None = None, **said: Any) -> Envelope:
        envelope = Envelope("test.message", buffers=[b""] * 3, number=1)
        lending = Lending(lent={1: lent} if lent else {}, **said)
        self.loans.take(Frame([envelope], lending=lending))
        return envelope


@pytest.fixture
def wire() -> Iterator[Wire]:
    none_mapped()
    before = descriptors()
    wire = Wire()
    yield wire
    del wire.loans
    gc.collect()
    assert wire.queue == []
    assert descriptors() <= before


def sealed(size: int, seals: int | None = None) -> int:
    if seals is None:
        return SharedMemory.make(size).take_descriptor()
    descriptor = os.memfd_create("telegrad", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def test_what_is_said_of_memory_is_checked(wire: Wire) -> None:
    wire.queue.append(sealed(SIZE))
    envelope = wire.take({2: Lent(1, 5, 0, 100)}, slabs=[(5, SIZE)])
    assert memoryview(envelope.buffers[0]).nbytes == 100
    for lent, words in [
        (Lent(2, 6, 0, 100), "slab 6 was never named"),
        (Lent(2, 5, SIZE - 99, 100), "loan 2 of 100 bytes at 1048477"),
        (Lent(2, 5, 2**63, 100), "loan 2 of 100"),
        (Lent(2, 5, 0, SIZE + 1), "loan 2 of"),
        (Lent(1, 5, 0, 100), "loan 1 of"),
    ]:
        with pytest.raises(DecodeError, match=words):
            wire.take({2: lent})
    with pytest.raises(DecodeError, match="slab 7 is dropped"):
        wire.take(dropped=[7])
    wire.take(dropped=[5])
    with pytest.raises(DecodeError, match="slab 5 was never named"):
        wire.take({2: Lent(3, 5, 0, 100)})
    assert bytes(envelope.buffers[0]) == bytes(100)


SHRINK, GROW, SEAL = fcntl.F_SEAL_SHRINK, fcntl.F_SEAL_GROW, fcntl.F_SEAL_SEAL


@pytest.mark.parametrize(
    "make",
    [
        lambda: sealed(SIZE, SHRINK | GROW),
        lambda: sealed(SIZE, GROW | SEAL),
        lambda: sealed(SIZE, SHRINK | GROW | SEAL | fcntl.F_SEAL_WRITE),
        lambda: sealed(2 * SIZE),
        lambda: sealed(SIZE // 2),
        lambda: os.open("/proc/self/maps", os.O_RDONLY),
        lambda: socket.socket().detach(),
    ],
    ids=["may be sealed", "may shrink", "read-only", "longer", "shorter", "file", "socket"],
)
def test_a_descriptor_of_something_else(wire: Wire, make: Callable[[], int]) -> None:
    wire.queue.append(make())
    with pytest.raises(DecodeError, match="slab 1 of 1048576 bytes is none"):
        wire.take(slabs=[(1, SIZE)])


def test_slabs_without_descriptors_or_too_many(wire: Wire) -> None:
    with pytest.raises(DecodeError, match="without its descriptor"):
        wire.take(slabs=[(1, SIZE)])
    for number in range(1, MOST_SLABS + 1):
        wire.queue.append(sealed(SIZE))
        wire.take(slabs=[(number, SIZE)])
    wire.queue.append(sealed(SIZE))
    with pytest.raises(DecodeError, match="more than"):
        wire.take(slabs=[(MOST_SLABS + 1, SIZE)])
    for number in (0, 1):
        wire.queue.append(sealed(SIZE))
        with pytest.raises(DecodeError, match="once more"):
            wire.take(slabs=[(number, SIZE)])


def test_what_was_not_lent_cannot_be_given_back() -> None:
    one, other = unix_pair()
    ends = DirectSocket(one), DirectSocket(other)
    stream = SlabStream(SlabPool(lambda: 0.0), ends[0])
    with pytest.raises(DecodeError, match="loan 1 is given back"):
        stream.read(Frame(lending=Lending(returned=[1])))
    stream.close()
    for end in ends:
        end.end()


def test_descriptors_are_there_before_their_message() -> None:
    before = descriptors()
    one, other = map(DirectSocket, unix_pair())
    memory = [SharedMemory.make(4096) for _ in range(3)]
    one.put(b"first")
    for each in memory[:2]:
        one.attach(each.take_descriptor())
    one.put(b"second")
    one.attach(memory[2].take_descriptor())
    one.put(b"third" * 50_000)
    assert other.take() == b"first"
    assert other.take() == b"second"
    got = [other.descriptor(), other.descriptor()]
    assert all(got)
    while other.take() is None:
        one.flush()
    got.append(other.descriptor())
    assert other.descriptor() is None
    for each, found in zip(memory, got, strict=True):
        assert found is not None
        SharedMemory.of(found, 4096)[:5] = b"hello"
        assert each[:5] == b"hello"
        assert not os.get_inheritable(found)
        os.close(found)
    one.end()
    other.end()
    del memory, each
    assert descriptors() <= before


@pytest.mark.parametrize("asked", [True, False])
def test_a_flood_of_descriptors_ends_the_stream(asked: bool) -> None:
    """More than any message asks for; none of them stays open, nor of those that were cut off."""
    before = descriptors()
    ends = unix_pair()
    one, other = map(DirectSocket, ends)
    null = os.open("/dev/null", os.O_RDONLY)
    rights = [null] * (MOST_DESCRIPTORS // 2 + 1 if asked else MOST_DESCRIPTORS + 1)
    for _ in range(2):
        beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, np.array(rights, np.int32).tobytes())]
        ends[0].sendmsg([b"\0\0\0\1x"], beside)
    with pytest.raises((DecodeError, ConnectionError), match="descriptors"):
        while other.take() is not None:
            pass
    one.end()
    other.end()
    os.close(null)
    assert descriptors() <= before


def test_a_stream_without_slabs_takes_none(met: tuple[Worker, Worker]) -> None:
    alice, bob = met
    for worker, peer in ((alice, bob), (bob, alice)):
        stream = worker.connection(peer.info).stream
        assert stream is not None
        if worker is bob:
            stream.slabs = None
    alice.post(bob, 2, buffers=[filled(alice, bob, SIZE, 7)])
    error = bob.recorder.wait_lost()
    assert "speaks of shared memory on a stream that has none" in str(error)
