"""Short messages of two ranks of a host: queues in every order of accesses, real processes."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from telegrad import collectives as dist
from telegrad.collectives.link import run_here
from telegrad.collectives.messages import ANY
from telegrad.collectives.shared_memory.boards import BOARD_BYTES, LISTENS, WORD, Board
from telegrad.collectives.shared_memory.queues import (
    HEAD_BYTES,
    LENGTH_BYTES,
    QUEUE_BYTES,
    RING_BYTES,
    SHORT_BYTES,
    TAKEN,
    WRITTEN,
    Queue,
    Queues,
)
from telegrad.testing import Cluster
from tests.collectives import remote_code
from tests.collectives.api.test_point_to_point import exchange
from tests.collectives.remote_code import refusal
from tests.collectives.shared_memory.test_shared_memory import Schedule, Words
from tests.parts import needs_memory

# -- one queue -----------------------------------------------------------------------------------


@given(st.lists(st.one_of(st.none(), st.integers(0, SHORT_BYTES)), max_size=60))
def test_a_queue_keeps_order_and_bytes(steps: list[int | None]) -> None:
    """None takes a message, a number puts one of that length; the ring is passed many times."""
    memory = memoryview(bytearray(QUEUE_BYTES))
    sender, receiver = Queue(memory), Queue(memory)
    put: deque[bytes] = deque()
    for k, size in enumerate(steps):
        if size is None:
            assert receiver.empty is (not put)
            if put:
                assert receiver.take() == put.popleft()
        elif sender.fits(size):
            put.append(bytes([k]) * size)
            sender.put(put[-1])
    while put:
        assert receiver.take() == put.popleft()
    assert receiver.empty
    assert sender.fits(SHORT_BYTES)


# -- many queues, in every order of accesses to the memory ---------------------------------------


class WatchedMemory:
    """The memory of a queue; each access to its words is a moment at which another may go on."""

    def __init__(self, memory: memoryview, access: Callable[[], None]) -> None:
        self._memory, self._access = memory, access

    def __getitem__(self, part: slice) -> Any:
        return self._memory[part] if part.start else WatchedMemory(self._memory[part], self._access)

    def cast(self, kind: Any) -> Words:
        return Words(self._memory.cast(kind), self._access)


def watched(memory: Any, access: Callable[[], None]) -> Board:
    """Returns a view of a board."""
    board = Board(memory)
    plain = board.queue
    board.words = Words(board.words, access)  # type: ignore[assignment]
    board.queue = lambda to, size: WatchedMemory(plain(to, size), access)  # type: ignore[assignment, method-assign, return-value]
    return board


@pytest.mark.long
@given(st.integers(2, 3), st.lists(st.integers(1, 99), min_size=1, max_size=3), st.data())
@settings(max_examples=300)
def test_every_order_of_accesses_brings_all_messages(
    n: int, sizes: list[int], data: st.DataObject
) -> None:
    """All ranks but 0 send to rank 0, which may open its queues late; nobody sleeps for ever."""
    opened = data.draw(st.integers(1, 2))
    schedule = Schedule(random.Random(data.draw(st.integers(0, 2**32))).choice)
    memories = [np.zeros(BOARD_BYTES + n * QUEUE_BYTES, np.uint8).data for _ in range(n)]
    Board(memories[0]).words[LISTENS] = 1
    arrived: list[tuple[int, int]] = []

    def boards_of(r: int) -> list[Board]:
        return [watched(each, lambda: schedule.access(r)) for each in memories]

    def sender(r: int) -> Callable[[], None]:
        queues = Queues(0.0)

        def work() -> None:
            queues.open(r, range(n), boards_of(r))
            for size in sizes:
                if not queues.fits(0, size):  # a message
                    arrived.append((r, size))
                    schedule.wake(0)
                elif queues.put(0, bytes(size)):
                    schedule.wake(0)

        return work

    def receiver() -> None:
        queues = Queues(0.0)

        def collect() -> None:
            found = queues.take()
            arrived.extend((r, len(each)) for r, each in found if isinstance(each, bytearray))

        for k in range(1, len(sizes) * (n - 1) + 1):

            def there(k: int = k) -> bool:
                return len(arrived) >= k

            async def until(there: Callable[[], bool] = there) -> None:
                while not there():
                    schedule.sleep(0)
                    collect()

            if k == opened:
                queues.open(0, range(n), boards_of(0))
            run_here(queues.wait(ANY, there, collect, until, short=True))

    schedule.run([receiver, *(sender(r) for r in range(1, n))])
    for r in range(1, n):
        assert sorted(size for source, size in arrived if source == r) == sorted(sizes)


def test_the_queues_of_a_rank_open_together() -> None:
    """Another thread may look at them meanwhile, for a message that it waits for."""
    boards = [Board(np.zeros(BOARD_BYTES + 3 * QUEUE_BYTES, np.uint8).data) for _ in range(3)]
    plain, queues, seen = boards[0].queue, Queues(0.0), list[bool]()

    def watched_queue(to: int, size: int) -> memoryview:
        seen.extend(queues.fits(r, 1) for r in (1, 2))
        return plain(to, size)

    boards[0].queue = watched_queue  # type: ignore[method-assign]
    queues.open(0, range(3), boards)
    assert seen == [False] * 4
    assert all(queues.fits(r, 1) for r in (1, 2))


# -- real processes ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def processes() -> Iterator[Cluster]:
    """Three processes that share memory."""
    with Cluster(3, processes=True) as cluster:
        cluster.run(remote_code.counted_in_memory, 3)
        yield cluster


PAIRS = [(a, b) for a in range(3) for b in range(3) if a != b]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.sampled_from(PAIRS), st.sampled_from([0, 0, 0, 1])), max_size=16),
    st.lists(st.booleans(), min_size=2, max_size=2),
    st.booleans(),
)
def test_messages_of_processes_from_any_rank(
    processes: Cluster, messages: list[Any], named: list[bool], posts_first: bool
) -> None:
    """Short ones go through memory or as messages, long ones as messages."""
    processes.run(exchange, [(*pair, tag) for pair, tag in messages], named, posts_first)


def sends_sizes(sizes: list[int], sends_first: bool) -> None:
    """Ranks 0 and 1 send each other arrays of these sizes, with one tag, in one order."""
    r = dist.get_rank()
    if r < 2:
        arrays = [np.full(size, 10 * k + r) for k, size in enumerate(sizes)]
        works = [dist.isend(each, 1 - r) for each in arrays] if sends_first else []
        for k, size in enumerate(sizes):
            if not sends_first and r == 0:
                dist.send(arrays[k], 1)
            received = np.zeros(size, int)
            dist.recv(received, 1 - r)
            assert (received == 10 * k + 1 - r).all()
            if not sends_first and r == 1:
                dist.send(arrays[k], 0)
        for work in works:
            work.wait()
    dist.barrier()


SIZES = [0, 1, 500, SHORT_BYTES // 8 - 20, SHORT_BYTES // 8, 9000, remote_code.LARGE]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(SIZES), max_size=12), st.booleans())
def test_short_and_long_messages_of_a_pair_keep_their_order(
    processes: Cluster, sizes: list[int], sends_first: bool
) -> None:
    processes.run(sends_sizes, sizes, sends_first)


def counts_messages() -> int:
    """Rank 0 sends to rank 1 before that looks; returns the messages that it took."""
    r, before = dist.get_rank(), dist.world_group().statistics().messages_sent
    for _ in range(50):
        if r == 0:
            dist.send(np.arange(3), 1)
            dist.send_object_list([{"k": np.arange(3)}], 1)
    sent = dist.world_group().statistics().messages_sent - before
    dist.barrier()
    for _ in range(50):
        if r == 1:
            array, objects = np.zeros(3, int), [None]
            dist.recv(array)
            dist.recv_object_list(objects, 0)
            assert array.tolist() == [0, 1, 2]
            np.testing.assert_equal(objects, [{"k": np.arange(3)}])
    dist.barrier()
    return sent


@needs_memory
def test_a_rank_that_does_not_sleep_gets_no_messages(processes: Cluster) -> None:
    assert processes.run(counts_messages) == [0, 0, 0]


def test_a_receiver_that_sleeps_is_woken(processes: Cluster) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(processes.call, 1, receives_one)
        processes.call(1, remote_code.tells_that_it_waits)
        processes.call(0, sends_one)
        assert waiting.result() == [0.0, 1.0, 2.0]


def receives_one() -> list[float]:
    array = np.zeros(3)
    dist.recv(array, 0)
    return [*array]


def sends_one() -> None:
    dist.send(np.arange(3.0), 1)


def differs(source: int | None) -> list[str]:
    """Rank 0 sends what does not fit before rank 1 receives."""
    r = remote_code.begin()
    dist.barrier()
    if r == 0:
        dist.send(np.zeros(4), 1)
    dist.barrier()
    said = [refusal(lambda: dist.recv(np.zeros(3), source))] if r == 1 else []
    return [*said, refusal(dist.barrier)]


@pytest.mark.parametrize("source", [0, None])
@pytest.mark.long
def test_a_short_message_that_does_not_fit(source: int | None) -> None:
    with Cluster(2, processes=True) as cluster:
        for said in [each for found in cluster.run(differs, source) for each in found]:
            assert said.startswith("CollectiveMismatchError: "), said
            assert "rank 0 ('worker0') called send(" in said
            assert "but rank 1 ('worker1') called recv(dtype=float64, shape=(3,))" in said


# -- numbers that a rank reads where others write --------------------------------------------------

NUMBERS = st.one_of(st.integers(0, RING_BYTES + 9), st.integers(0, 2**64 - 1), st.just(2**40))


@pytest.mark.long
@given(NUMBERS, NUMBERS, st.lists(NUMBERS, max_size=3), st.integers(0, SHORT_BYTES))
def test_whatever_others_write_a_rank_takes_no_more_than_a_ring(
    written: int, taken: int, lengths: list[int], size: int
) -> None:
    """A count of 2**40 kept a receiver busy with so many empty messages."""
    boards = [Board(np.zeros(BOARD_BYTES + 2 * QUEUE_BYTES, np.uint8).data) for _ in range(2)]
    queues = Queues(0.0)
    queues.open(0, range(2), boards)
    theirs, own = boards[1].queue(0, QUEUE_BYTES), boards[0].queue(1, QUEUE_BYTES)
    theirs[: 2 * WORD].cast("Q")[WRITTEN] = written
    own[TAKEN * WORD :][:WORD].cast("Q")[0] = taken
    for k, length in enumerate(lengths):
        theirs[HEAD_BYTES + LENGTH_BYTES * k :][:LENGTH_BYTES] = length.to_bytes(8, "little")
    found = queues.take()
    messages = [each for _, each in found if isinstance(each, bytearray)]
    assert [r for r, _ in found] == [1] * len(found)
    assert len(messages) >= len(found) - 1  # the last one may be an error
    assert sum(len(each) + LENGTH_BYTES for each in messages) <= RING_BYTES
    assert queues.take() == []
    if queues.fits(1, size):
        queues.put(1, bytes(size))
        assert own[: WORD * (WRITTEN + 1)].cast("Q")[WRITTEN] == size + LENGTH_BYTES


def sets_the_count(count: int) -> None:
    """Writes another count into the queue for rank 0."""
    queue, _ = dist.world_group().sharing.queues._to[0]
    queue._words[WRITTEN] = count


def receives_in_vain() -> list[str]:
    other = 1 - dist.get_rank()
    return [refusal(lambda: dist.recv(np.zeros(3), other, timeout=6.0)), refusal(dist.barrier)]


@needs_memory
@pytest.mark.parametrize("count", [1, 2**40, 2**64 - 8])
@pytest.mark.long
def test_a_wrong_count_in_shared_memory_ends_the_group(count: int) -> None:
    with Cluster(2, processes=True) as cluster:
        cluster.run(remote_code.counted_in_memory, 2)
        cluster.call(1, sets_the_count, count)
        for said in [each for found in cluster.run(receives_in_vain) for each in found]:
            assert said.startswith("DecodeError: "), said
            assert "memory shared with rank 1 ('worker1') has a message of" in said
