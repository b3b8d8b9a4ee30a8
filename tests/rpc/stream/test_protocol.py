"""The pure ends of a stream, under every order of what travels between them."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import hypothesis.strategies as st
import pytest

from telegrad.errors import DecodeError
from telegrad.rpc.stream.protocol import WINDOW_BYTES, WINDOW_ITEMS, Sender, StreamReceiver
from tests.repeated import on_examples


@dataclass
class Pair:
    """Both ends and what is on its way between them."""

    sizes: list[int]
    items: int
    size: int
    sender: Sender = field(init=False)
    receiver: StreamReceiver[int] = field(init=False)
    to_consumer: list[tuple[int, int] | None] = field(default_factory=list)  # None: the end
    to_producer: list[int] = field(default_factory=list)
    read: list[int] = field(default_factory=list)
    ended: bool = False

    def __post_init__(self) -> None:
        self.sender = Sender(self.items, self.size)
        self.receiver = StreamReceiver(self.items, self.size)

    def produce(self) -> None:
        sent = self.sender.sent
        if sent < len(self.sizes):
            if self.sender.has_room:
                number = self.sender.send(self.sizes[sent])
                self.to_consumer.append((number, self.sizes[sent]))
        elif not self.ended:
            self.ended = True
            self.to_consumer.append(None)

    def deliver(self, place: int) -> None:
        message = self.to_consumer.pop(place % len(self.to_consumer))
        if message is None:
            self.receiver.end(len(self.sizes))
        else:
            number, size = message
            self.receiver.arrive(number, size, number)

    def take(self) -> None:
        item = self.receiver.take()
        if item is not None:
            self.read.append(item)
        taken = self.receiver.ask_for_more()
        if taken is not None:
            self.to_producer.append(taken)

    def tell(self, place: int) -> None:
        self.sender.more(self.to_producer.pop(place % len(self.to_producer)))

    def ahead(self) -> tuple[int, int]:
        """What was sent and is not taken: items, and bytes without the last item."""
        left = self.sizes[len(self.read) : self.sender.sent]
        return len(left), sum(left[:-1])


STEPS = st.lists(st.tuples(st.sampled_from("pdtm"), st.integers(0, 40)), max_size=300)
SIZES = st.lists(st.integers(0, 30), max_size=60)


@on_examples(SIZES, st.integers(1, 5), st.integers(1, 40), STEPS, few=60, many=500)
def test_under_every_order(
    sizes: list[int], items: int, size: int, steps: list[tuple[str, int]]
) -> None:
    pair = Pair(sizes, items, size)

    def step(kind: str, place: int) -> None:
        if kind == "p":
            pair.produce()
        elif kind == "d" and pair.to_consumer:
            pair.deliver(place)
        elif kind == "t":
            pair.take()
        elif kind == "m" and pair.to_producer:
            pair.tell(place)
        count, before_last = pair.ahead()
        assert count <= items  # T2
        assert before_last < size
        assert pair.read == list(range(len(pair.read)))  # T1

    for kind, place in steps:
        step(kind, place)
    # T3: whatever has happened, as long as everybody goes on, all of it is read.
    for _ in range(len(sizes) + 2):
        while pair.to_consumer:
            step("d", 0)
        while pair.receiver.has_next:
            step("t", 0)
        while pair.to_producer:
            step("m", 0)
        for _ in range(items):
            step("p", 0)
    assert pair.read == list(range(len(sizes)))
    assert pair.receiver.is_over
    assert pair.receiver.take() is None


@on_examples(st.lists(st.integers(0, 30), min_size=1, max_size=30), st.randoms())
def test_a_stream_that_breaks_gives_what_is_in_order(sizes: list[int], random: Random) -> None:
    receiver: StreamReceiver[int] = StreamReceiver(len(sizes), 10**6)
    arrived = [i for i in range(len(sizes)) if random.random() < 0.6]
    random.shuffle(arrived)
    for i in arrived:
        receiver.arrive(i, sizes[i], i)
    left = receiver.break_off()
    read = []
    while not receiver.is_over:
        item = receiver.take()
        assert item is not None
        read.append(item)
    assert read == list(range(len(read)))
    assert len(read) not in arrived
    assert sorted(read + left) == sorted(arrived)


def test_room() -> None:
    sender = Sender(items=3, size=10)
    assert [sender.send(1), sender.send(2)] == [0, 1]
    assert (sender.sent, sender.has_room) == (2, True)
    sender.send(0)
    assert (sender.sent, sender.has_room) == (3, False)  # three items
    sender.more(2)
    sender.more(1)  # an old one
    assert (sender.sent, sender.has_room) == (3, True)
    sender.send(10)
    assert (sender.sent, sender.has_room) == (4, False)  # ten bytes
    sender.unsend()
    assert (sender.sent, sender.has_room) == (3, True)
    with pytest.raises(DecodeError, match="4 items of a stream were taken, but 3 were sent"):
        sender.more(4)


def test_asking_for_more_once_half_was_taken() -> None:
    receiver: StreamReceiver[str] = StreamReceiver(items=4, size=100)
    for i in range(4):
        receiver.arrive(i, 1, "x")
    said = []
    for _ in range(4):
        receiver.take()
        said.append(receiver.ask_for_more())
    assert said == [None, 2, None, 4]
    receiver.arrive(4, 50, "half of the bytes")
    receiver.take()
    assert receiver.ask_for_more() == 5
    receiver.arrive(5, 50, "the last")
    receiver.end(6)
    receiver.take()
    assert receiver.ask_for_more() is None  # nobody wants to know


@pytest.mark.parametrize("number", [0, 1, 3, 6])
def test_an_item_that_was_not_to_come(number: int) -> None:
    receiver: StreamReceiver[str] = StreamReceiver(items=4, size=100)
    for i in (0, 1, 2, 3):
        receiver.arrive(i, 1, "x")
    assert not receiver.is_whole
    assert [receiver.take(), receiver.take(), receiver.ask_for_more()] == ["x", "x", 2]
    with pytest.raises(DecodeError, match="was not expected"):
        receiver.arrive(number, 1, "again, or beyond what there is room for")
    receiver.end(5)
    with pytest.raises(DecodeError):
        receiver.arrive(5, 1, "after the end")
    assert not receiver.is_whole
    receiver.arrive(4, 1, "x")
    assert receiver.is_whole


def test_an_end_before_items_that_came() -> None:
    receiver: StreamReceiver[str] = StreamReceiver()
    receiver.arrive(0, 1, "x")
    receiver.arrive(1, 1, "x")
    with pytest.raises(DecodeError, match="a stream ended after 1 items, but later ones were sent"):
        receiver.end(1)
    receiver.take()
    with pytest.raises(DecodeError):
        receiver.end(0)


def test_closing_gives_back_what_was_not_taken() -> None:
    receiver: StreamReceiver[str] = StreamReceiver()
    for i, item in enumerate("abc"):
        receiver.arrive(i, 1, item)
    assert receiver.take() == "a"
    assert receiver.close() == ["b", "c"]
    assert (receiver.is_over, receiver.taken) == (True, 1)


def test_the_window() -> None:
    """What docs/streams.md says of it."""
    assert (WINDOW_ITEMS, WINDOW_BYTES) == (32, 8 * 2**20)
