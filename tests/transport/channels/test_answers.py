"""Replies that lie in the memory of their requests: given back as they are, or copied, never both."""

from __future__ import annotations

import gc
import os
from typing import Any

import numpy as np
import pytest

from telegrad.arrays import SharedMemory
from telegrad.errors import DecodeError
from telegrad.transport import shared_loop_thread
from telegrad.transport.channels.answers import Answering
from telegrad.transport.channels.ledger import Bounds
from telegrad.transport.channels.loans import Loans
from telegrad.transport.channels.shared_memory import SlabPool, SlabStream
from telegrad.transport.sockets.message_socket import DirectSocket
from telegrad.wire import NO_MEMORY, Envelope, Frame, Lending, Lent
from telegrad.wire.memory import bytes_of
from tests.transport.channels.test_shared_memory import (
    SIZE,
    account_of,
    beat,
    break_stream,
    filled,
    none_mapped,
)
from tests.transport.socket_pairs import unix_pair
from tests.transport.workers import Worker, run_on, wait_until


def address(buffer: Any) -> int:
    there: int = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
    return there


def arrived(worker: Worker) -> list[Any]:
    """Returns the array that came as all of one envelope, which nothing else refers to then."""
    (envelope,) = worker.recorder.wait_envelopes(1)
    run_on(shared_loop_thread(), lambda: None)  # the turn that has handed it over has ended
    (buffer,) = envelope.buffers
    worker.recorder.envelopes.clear()
    return [np.frombuffer(buffer, np.uint8)]


def answer(worker: Worker, peer: Worker, held: list[Any], call: int = 3) -> None:
    """Posts what one list holds, which is empty then, as the reply of a call is posted."""
    memory = worker.exchange.memory(peer.info).answering()
    reply = Envelope("test.message", buffers=[bytes_of(held[0], "C", memory)])
    held.clear()
    memory.settle(reply)
    worker.post(peer, call, buffers=reply.buffers)


def test_what_nobody_else_has_goes_back_as_it_is(met: tuple[Worker, Worker]) -> None:
    alice, bob = met
    books = account_of(alice, bob)
    for call in range(3, 10):
        memory = filled(alice, bob, SIZE, 7)
        where = address(memory)
        alice.post(bob, 2, buffers=[memory])
        del memory
        held = arrived(bob)
        held[0][0] = call
        answer(bob, alice, held, call)
        (back,) = arrived(alice)
        assert (address(back), back[0], back[1], back.flags.writeable) == (where, call, 7, True)
        assert (books.loans, books.out) == ({}, SIZE)
        del back
    beat(alice, bob)
    assert filled(alice, bob, SIZE, 7) is not None
    assert sum(slab.touched for slab in books.slabs.values()) == 1  # one block for all of it
    assert account_of(bob, alice).slabs == {}


def test_what_somebody_has_is_copied(met: tuple[Worker, Worker]) -> None:
    alice, bob = met
    memory = filled(alice, bob, SIZE, 7)
    alice.post(bob, 2, buffers=[memory])
    held = arrived(bob)
    kept = held[0][5:6]  # a view of one item keeps all of it
    answer(bob, alice, held)
    (back,) = arrived(alice)
    assert address(back) not in (address(memory), address(kept) - 5)
    kept[0] = 9
    assert (back == 7).all()
    books = account_of(alice, bob)
    del memory
    assert len(books.loans) == 1
    del kept
    beat(bob, alice)
    wait_until("the loan is back", lambda: books.loans == {})


def test_a_part_of_it_is_copied(met: tuple[Worker, Worker]) -> None:
    alice, bob = met
    alice.post(bob, 2, buffers=[filled(alice, bob, SIZE, 7)])
    held = [arrived(bob)[0][1:]]
    answer(bob, alice, held)
    (back,) = arrived(alice)
    assert (back.nbytes, int(back.min())) == (SIZE - 1, 7)
    beat(bob, alice)
    books = account_of(alice, bob)
    wait_until("the loan is back", lambda: books.loans == {})


def test_what_is_described_and_not_sent_is_returned(met: tuple[Worker, Worker]) -> None:
    alice, bob = met
    alice.post(bob, 2, buffers=[filled(alice, bob, SIZE, 7)])
    held = arrived(bob)
    memory = bob.exchange.memory(alice.info).answering()
    buffers = [bytes_of(held[0], "C", memory)]
    held.clear()
    memory.settle(reply := Envelope("test.message", buffers=buffers))
    books = account_of(alice, bob)
    beat(bob, alice)
    assert len(books.loans) == 1
    del memory, reply, buffers
    beat(bob, alice)
    wait_until("the loan is back", lambda: books.out == 0)


def test_a_stream_that_breaks_before_it_is_sent(met: tuple[Worker, Worker]) -> None:
    """Then it comes in pieces, from where it lies."""
    none_mapped()
    alice, bob = met
    alice.post(bob, 2, buffers=[filled(alice, bob, SIZE, 7)])
    held = arrived(bob)
    memory = bob.exchange.memory(alice.info).answering()
    reply = Envelope("test.message", buffers=[bytes_of(held[0], "C", memory)])
    held.clear()
    memory.settle(reply)
    del memory
    break_stream(bob, alice)
    bob.post(alice, 3, buffers=reply.buffers)
    (back,) = arrived(alice)
    assert (back == 7).all()
    del reply, back
    gc.collect()


def test_what_cannot_be_given_back() -> None:
    one, other = unix_pair()
    ends = DirectSocket(one), DirectSocket(other)
    stream = SlabStream(SlabPool(lambda: 0.0), ends[0])
    memory = stream.take(SIZE)
    assert memory is not None
    (lent,) = stream.lend(Envelope("test.message", buffers=[memory])).values()
    for claimed in (
        Lent(lent.loan + 1, 0, 0, SIZE),  # was never made
        Lent(lent.loan, 0, 0, SIZE - 1),
        Lent(lent.loan, 0, 0, SIZE + 1),
    ):
        envelope = Envelope("test.message", buffers=[b""], number=1)
        with pytest.raises(DecodeError, match="which was not made so"):
            stream.read(Frame([envelope], lending=Lending(lent={1: {2: claimed}})))
    envelope = Envelope("test.message", buffers=[b""], number=1)
    given = Lending(lent={1: {2: Lent(lent.loan, 0, 0, SIZE)}})
    stream.read(Frame([envelope], lending=given))
    assert address(envelope.buffers[0]) == address(memory)
    with pytest.raises(DecodeError, match="which was not made so"):  # twice
        stream.read(Frame([Envelope("test.message", buffers=[b""], number=1)], lending=given))
    with pytest.raises(DecodeError, match="is given back, and was not made"):
        stream.read(Frame(lending=Lending(returned=[lent.loan])))
    stream.close()
    for end in ends:
        end.end()


def test_a_number_that_is_used_again_for_a_smaller_slab() -> None:
    """Only a hostile peer drops a slab of which something is lent: nothing of the new one is given."""
    slabs = [SharedMemory.make(size) for size in (2**20, 2**12)]
    descriptors = [os.dup(slab.descriptor) for slab in slabs]
    loans = Loans(lambda: descriptors.pop(0), lambda lent: memoryview(b""), Bounds())
    envelope = Envelope("k", 1, buffers=[b""], number=1)
    lending = Lending([(5, 2**20)], {1: {2: Lent(1, 5, 0, 2**19)}})
    loans.take(Frame([envelope], lending=lending))
    loans.take(Frame([], lending=Lending(dropped=[5])))
    loans.take(Frame([], lending=Lending([(5, 2**12)])))
    array = np.frombuffer(envelope.buffers[0], np.uint8)
    envelope.buffers = ()
    answering = Answering(NO_MEMORY, loans)
    kept = answering.keep(array)
    assert kept is not None
    reply = Envelope("r", 1, reply=True, buffers=[kept])
    del array, kept
    answering.settle(reply)
    assert bytes(reply.buffers[0]) == bytes(2**19)
