"""Ranks that share memory: meetings in every order of accesses, algorithms, real processes."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import reduce
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telegrad import collectives as dist
from telegrad.arrays import shared_below, shared_empty
from telegrad.collectives import ReduceOp
from telegrad.collectives.algorithms.shared_memory import MemoryBackend
from telegrad.collectives.backends import Sharing
from telegrad.collectives.link import Backend, Link, Steps, run_here
from telegrad.collectives.messages import Signature
from telegrad.collectives.shared_memory.boards import (
    BLOCK_BYTES,
    BOARD_BYTES,
    Board,
    Boards,
    digest_of,
)
from telegrad.collectives.shared_memory.queues import QUEUE_BYTES
from telegrad.collectives.shared_memory.residents import LEAST_BYTES, ResidentPlace, Residents
from telegrad.collectives.shared_memory.room import Meeting, Room
from telegrad.errors import CollectiveMismatchError, WorkerLostError
from telegrad.rpc.seams import Spin
from telegrad.testing import Cluster
from telegrad.types import Array
from telegrad.wire import Buffer
from tests.collectives import remote_code
from tests.collectives.algorithms.test_algorithms import expected
from tests.collectives.fake_link import FakeJob, FakeLink, Paused, arrays_for
from tests.parts import needs_memory
from tests.patience import with_more_time

R = TypeVar("R")
CALL = Signature(operation="all_reduce", op="SUM", dtype="float64", shape=(3,))


# -- meetings, in every order of accesses to the memory ------------------------------------------


class Schedule:
    """Lets one of several threads run at a time; who goes on after each access is drawn.

    Args:
        draw: Returns one of the threads that can go on.
    """

    def __init__(self, draw: Callable[[list[int]], int]) -> None:
        self._draw = draw
        self._turn = threading.Condition()
        self._can: set[int] = set()
        self._now = -1
        self._left: set[int] = set()
        self.stuck = False

    def run(self, works: list[Callable[[], None]]) -> None:
        """Runs each in a thread of its own until all are done, or none can go on."""
        self._can = set(range(len(works)))
        self._left = set(self._can)
        with ThreadPoolExecutor(len(works)) as pool:
            done = [pool.submit(self._one, i, work) for i, work in enumerate(works)]
            with self._turn:
                self._next()
            for each in done:
                each.result()

    def access(self, thread: int) -> None:
        """Hands the turn on and waits for the next one."""
        with self._turn:
            self._next()
            self._await(thread)

    def sleep(self, thread: int) -> None:
        """Takes no turn until somebody wakes it."""
        with self._turn:
            self._can.discard(thread)
            self._next()
            self._await(thread)

    def wake(self, thread: int) -> None:
        with self._turn:
            if thread in self._left:
                self._can.add(thread)

    def _one(self, thread: int, work: Callable[[], None]) -> None:
        with self._turn:
            self._await(thread)
        try:
            work()
        finally:
            with self._turn:
                self._can.discard(thread)
                self._left.discard(thread)
                self._next()

    def _await(self, thread: int) -> None:
        self._turn.wait_for(lambda: self.stuck or self._now == thread)
        assert not self.stuck, "everybody sleeps, and nobody wakes anybody"

    def _next(self) -> None:
        if self._can:
            self._now = self._draw(sorted(self._can))
        else:
            self._now = -1
            self.stuck = bool(self._left)
        self._turn.notify_all()


class Words:
    """The words of a board; each access is a moment at which another rank may go on."""

    def __init__(self, words: Any, access: Callable[[], None]) -> None:
        self._words, self._access = words, access

    def __getitem__(self, place: int) -> int:
        self._access()
        return int(self._words[place])

    def __setitem__(self, place: int, value: int) -> None:
        self._access()
        self._words[place] = value


class FakeMeeting(FakeLink, Meeting):
    """An operation that sends no messages; `on_wake` wakes a sleeper."""

    def __init__(self, rank: int, size: int, wait: Callable[[], Any], call: Signature) -> None:
        super().__init__(FakeJob([np.zeros(0)] * size), rank, call)
        self._wait = wait
        self._calls = {rank: call}
        self.told = False
        self.on_wake: Callable[[int], None] = lambda _: None

    def wake(self, to: int) -> None:
        self.on_wake(to)

    def call_of(self, source: int) -> Signature:
        return self._calls[source]

    def hear(self, calls: Mapping[int, Signature | None]) -> None:
        self._calls |= {r: call for r, call in calls.items() if call is not None}

    async def until(
        self, find: Callable[[], R | None], behind: Callable[[], list[int]] | None = None
    ) -> R:
        while (found := find()) is None:
            if self.told:
                raise CollectiveMismatchError("the calls differ")
            await self._wait()
        return found

    def tell_call(self) -> None:
        self.told = True


def make_boards(n: int) -> list[Board]:
    return [Board(np.zeros(BOARD_BYTES, np.uint8).data) for _ in range(n)]


@pytest.mark.long
@given(st.integers(2, 4), st.integers(1, 4), st.integers(0, 2**32))
@settings(max_examples=150)
def test_every_order_of_accesses_ends_a_meeting(n: int, meetings: int, seed: int) -> None:
    """Nobody sleeps for ever, and nobody passes a meeting before all have come to it."""
    schedule = Schedule(random.Random(seed).choice)
    boards = make_boards(n)
    come = [0] * n

    def rank(r: int) -> Callable[[], None]:
        seen = [Board(np.zeros(BOARD_BYTES, np.uint8).data) for _ in range(n)]
        for q, each in enumerate(seen):
            each.words = Words(boards[q].words, lambda: schedule.access(r))  # type: ignore[assignment]

        async def asleep() -> None:
            schedule.sleep(r)

        meeting = FakeMeeting(r, n, asleep, CALL)
        meeting.on_wake = schedule.wake
        room = Room(meeting, Boards(r, seen), Residents(r), Spin(0.0))

        def work() -> None:
            for k in range(1, meetings + 1):
                come[r] = k
                run_here(room.meet())
                assert min(come) >= k

        return work

    schedule.run([rank(r) for r in range(n)])


@pytest.mark.parametrize("came", [True, False])
def test_a_rank_may_end_once_it_has_come_to_a_meeting(came: bool) -> None:
    """A rank that has slept too long to hear of it looks once more before it gives up."""
    boards = make_boards(2)

    async def asleep() -> None:
        if came:
            run_here(last.meet())
        raise WorkerLostError("worker 'worker1' is lost")

    def room_of(r: int) -> Room:
        return Room(FakeMeeting(r, 2, asleep, CALL), Boards(r, boards), Residents(r), Spin(0.0))

    first, last = map(room_of, range(2))
    with nullcontext() if came else pytest.raises(WorkerLostError):
        run_here(first.meet())


# -- the algorithms ------------------------------------------------------------------------------


def run_ranks(
    arrays: list[Array],
    algorithm: Callable[[Room, Array], Steps[Any]],
    seed: int,
    calls: list[Signature] | None = None,
    boards: list[Board] | None = None,
) -> list[BaseException | None]:
    """Runs an algorithm on every rank; who goes on next is drawn. Returns what each raised."""
    n, drawn = len(arrays), random.Random(seed)
    boards = boards or make_boards(n)

    async def paused() -> None:
        await Paused()

    running: dict[int, Any] = {}
    for r, array in enumerate(arrays):
        call = CALL if calls is None else calls[r]
        room = Room(FakeMeeting(r, n, paused, call), Boards(r, boards), Residents(r), Spin(0.0))
        running[r] = algorithm(room, array)
    raised: list[BaseException | None] = [None] * n
    for _ in range(100_000):
        if not running:
            return raised
        r = drawn.choice(list(running))
        try:
            running[r].send(None)
        except StopIteration:
            del running[r]
        except CollectiveMismatchError as error:
            raised[r] = error
            del running[r]
    raise AssertionError(f"ranks {list(running)} wait for each other")


SIZES = [0, 1, 7, 100, 5000]


@pytest.mark.few(2)
@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("more", [-1, 0, 1, BLOCK_BYTES // 8])
def test_arrays_of_several_blocks(n: int, more: int) -> None:
    """Lengths around the size of a block, and of two and a half."""
    for size in (BLOCK_BYTES // 8 + more, 5 * BLOCK_BYTES // 16 + more):
        arrays = arrays_for(n, size, "float64", size)
        wanted = reduce(np.add, arrays)
        run_ranks(arrays, lambda room, a: MemoryBackend(room).all_reduce(a, ReduceOp.SUM), size)
        for array in arrays:
            np.testing.assert_array_equal(array, wanted)
        run_ranks(arrays, lambda room, a: MemoryBackend(room).broadcast(a, n - 1), size)
        np.testing.assert_array_equal(arrays[0], wanted)


@pytest.mark.few(4)
@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("items", [0, 3, BLOCK_BYTES // 8])
@pytest.mark.parametrize("label", ["", "x" * 40_000, "x" * 3 * BLOCK_BYTES])
def test_calls_of_any_length_go_along(n: int, items: int, label: str) -> None:
    """A long call takes blocks of its own."""
    calls = [Signature(operation="all_gather", shape=(items + r,), label=label) for r in range(n)]
    arrays = [np.full(items + r, float(r)) for r in range(n)]
    found: dict[int, list[Array]] = {}

    async def gather(room: Room, array: Array) -> None:
        found[room.rank] = await MemoryBackend(room).all_gather(array)

    run_ranks(arrays, gather, items, calls)
    for r in range(n):
        for array, wanted in zip(found[r], arrays, strict=True):
            np.testing.assert_array_equal(array, wanted)


@given(st.integers(2, 5), st.integers(0, 2**16))
def test_calls_that_differ_end_on_every_rank(n: int, seed: int) -> None:
    calls = [CALL] * n
    calls[seed % n] = Signature(operation="all_reduce", op="SUM", dtype="float64", shape=(4,))
    arrays = arrays_for(n, 3, "float64", seed)
    raised = run_ranks(
        arrays, lambda room, a: MemoryBackend(room).all_reduce(a, ReduceOp.SUM), seed, calls
    )
    assert all(isinstance(each, CollectiveMismatchError) for each in raised)


def test_a_digest_is_the_same_in_every_process() -> None:
    """It must not depend on the seed of Python's own hashes."""
    assert digest_of(CALL) == digest_of(Signature(**{f: getattr(CALL, f) for f in CALL.__slots__}))
    with Cluster(1, processes=True) as cluster:
        assert cluster.run(digest_of, CALL) == [digest_of(CALL)]


# -- boards that go round ------------------------------------------------------------------------


class CopyingMeeting(FakeMeeting):
    """A link on which shared memory arrives as it is, or as a copy where the job says so.

    Attributes:
        patience: The number of times that it may look in vain.
    """

    patience: float = math.inf

    copies: frozenset[tuple[int, int]] = frozenset()

    def __init__(self, job: FakeJob, rank: int, call: Signature) -> None:
        FakeLink.__init__(self, job, rank, call)
        self._heard: set[int] = set()

    def send(self, to: int, data: Buffer, *, copy: bool = False) -> None:
        shared = shared_below(memoryview(data)) is not None and (self.rank, to) not in self.copies
        FakeLink.send(self, to, data if shared else bytearray(data))

    def wake(self, to: int) -> None:
        """Does nothing: whoever waits looks again without end."""

    async def signalled(self, source: int) -> None:
        await FakeLink.signalled(self, source)
        self._heard.add(source)

    async def receive(self, source: int) -> Buffer:
        data = (await self._job.take(("data", source, self.rank)))[1]
        self._heard.add(source)
        return data

    def hear(self, calls: Mapping[int, Signature | None]) -> None:
        for r, call in calls.items():
            assert call in (None, FakeLink.call_of(self, r))
            self._heard |= {r} if call is not None else set()

    def call_of(self, source: int) -> Signature:
        assert source == self._rank or source in self._heard
        return FakeLink.call_of(self, source)

    async def until(
        self, find: Callable[[], R | None], behind: Callable[[], list[int]] | None = None
    ) -> R:
        while (found := find()) is None:
            self.patience -= 1
            if self.patience > 0:
                self._job.goes_on(self.rank)
            await Paused()
        return found


async def enter(link: Link, sharing: Sharing) -> Backend:
    """Returns the backend for an operation of a fake job, once it is this one's turn."""
    assert isinstance(link, CopyingMeeting)
    sharing.queue(link)
    backend = await sharing.enter(link)
    sharing.leave(link)
    return backend


def one_host(n: int) -> Sharing:
    return Sharing([range(n)], 0.0)


@pytest.mark.long
@needs_memory
@given(st.integers(2, 4), st.sets(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=2))
def test_memory_is_used_if_every_pair_shares_it(n: int, pairs: set[tuple[int, int]]) -> None:
    copies = frozenset((a, b) for a, b in pairs if a != b and max(a, b) < n)
    job = FakeJob([np.zeros(1)] * n)
    job.links = [CopyingMeeting(job, r, CALL) for r in range(n)]

    async def shares(link: Link, _: Array) -> bool:
        assert isinstance(link, CopyingMeeting)
        link.copies = copies
        return isinstance(await enter(link, one_host(n)), MemoryBackend)

    assert job.run(shares) == [not copies] * n


# -- arrays that were made in shared memory ------------------------------------------------------

ITEMS = LEAST_BYTES // 8  # of float64, the fewest that are not copied


@given(
    st.integers(0, 15),
    st.booleans(),
    st.integers(0, 2**16 - 1),
    st.integers(0, 2**43 - 1),
)
def test_a_place_is_one_number(slot: int, new: bool, living: int, offset: int) -> None:
    place = ResidentPlace(slot, new, living, offset)
    assert ResidentPlace.of(place.note) == place
    assert place.note < 2**64


def make_arrays(kind: str, n: int, size: int) -> list[Array]:
    """Makes an array for each rank: all in shared memory, parts of it, or one of them elsewhere."""
    made = []
    for r in range(n):
        lead = 8 * r if kind == "parts" else 0
        whole: Array = shared_empty(size + lead + 5) if kind != "mixed" or r else np.empty(size + 5)
        made.append(whole[lead : lead + size])
        made[-1][...] = np.random.default_rng(r).integers(-9, 9, size) + r / 8
    return made


@pytest.mark.long
@needs_memory
@given(
    st.integers(2, 4),
    st.lists(st.sampled_from(["whole", "parts", "mixed", "again"]), min_size=1, max_size=5),
    st.sampled_from([ReduceOp.SUM, ReduceOp.AVG, ReduceOp.MAX, ReduceOp.PRODUCT]),
    st.integers(0, 2**16),
)
@settings(max_examples=25)
def test_arrays_in_shared_memory_are_reduced_where_they_are(
    n: int, kinds: list[str], op: ReduceOp, seed: int
) -> None:
    size = ITEMS + seed % 7
    job = FakeJob([np.zeros(1)] * n, seed)
    links = [CopyingMeeting(job, r, CALL) for r in range(n)]
    job.links = list(links)
    sharings = [one_host(n) for _ in range(n)]
    arrays: list[Array] = []
    for kind in kinds:
        known = kind == "again" and len(arrays) > 0
        if not known:
            arrays = make_arrays(kind, n, size)
        wanted = expected(op, [array.copy() for array in arrays])

        async def reduce_here(link: Link, _: Array, mine: list[Array] = arrays) -> None:
            backend = await enter(link, sharings[link.rank])
            await backend.all_reduce(mine[link.rank], op)

        sent = [link.nbytes for link in links]
        job.run(reduce_here)
        if known:
            assert [link.nbytes for link in links] == sent
        for array in arrays:
            np.testing.assert_array_equal(array, wanted)


@pytest.mark.few(1)
@needs_memory
@pytest.mark.parametrize("kind", ["whole", "parts", "mixed"])
@pytest.mark.parametrize("n", [2, 3])
def test_arrays_in_shared_memory_are_exchanged_where_they_are(kind: str, n: int) -> None:
    size = n * ITEMS + n
    arrays = make_arrays(kind, n, size)
    before = [array.copy() for array in arrays]
    job = FakeJob([np.zeros(1)] * n, n)
    parts = tuple((size // n,) for _ in range(n))
    for verb in ("all_gather", "all_to_all", "reduce_scatter"):
        call = Signature(operation=verb, shape=(size,), parts=parts)
        links = [CopyingMeeting(job, r, call) for r in range(n)]
        job.links = list(links)
        sharings = [one_host(n) for _ in range(n)]
        cut = [np.split(array, n) for array in arrays]

        async def run(link: Link, _: Array) -> Any:
            backend, r = await enter(link, sharings[link.rank]), link.rank  # noqa: B023
            if verb == "all_gather":  # noqa: B023
                return await backend.all_gather(arrays[r])
            if verb == "all_to_all":  # noqa: B023
                return await backend.all_to_all(cut[r], whole=arrays[r])  # noqa: B023
            return await backend.reduce_scatter(cut[r], ReduceOp.AVG, arrays[r])  # noqa: B023

        for r, found in enumerate(job.run(run)):
            mine = [each[r] for each in cut]
            if verb == "reduce_scatter":
                np.testing.assert_array_equal(found, reduce(np.add, mine) / n)
            else:
                for array, wanted in zip(
                    found, arrays if verb == "all_gather" else mine, strict=True
                ):
                    np.testing.assert_array_equal(array, wanted)
                    assert not np.shares_memory(array, wanted)
        went_round = kind != "mixed"  # the memory of each rank, once to each other one
        assert [link.nbytes > (n - 1) * (BOARD_BYTES + 8 * size) for link in links] == [
            went_round
        ] * n
        for array, each in zip(arrays, before, strict=True):
            np.testing.assert_array_equal(array, each)


@needs_memory
def test_more_memory_than_slots() -> None:
    """What finds no slot is copied."""
    job = FakeJob([np.zeros(1)] * 2)
    job.links = [CopyingMeeting(job, r, CALL) for r in range(2)]
    sharings = [one_host(2) for _ in range(2)]
    pairs = [make_arrays("whole", 2, ITEMS) for _ in range(17)]

    async def reduce_all(link: Link, _: Array) -> None:
        backend = await enter(link, sharings[link.rank])
        for pair in [*pairs, pairs[0]]:
            await backend.all_reduce(pair[link.rank], ReduceOp.MAX)

    wanted = [np.maximum(*pair) for pair in pairs]
    job.run(reduce_all)
    for pair, each in zip(pairs, wanted, strict=True):
        np.testing.assert_array_equal(pair[0], each)
        np.testing.assert_array_equal(pair[1], each)


@needs_memory
def test_memory_that_comes_as_a_copy_is_not_used() -> None:
    """Nothing is written to a copy that only its receiver sees, and it goes round once."""
    job = FakeJob([np.zeros(1)] * 2)
    links = [CopyingMeeting(job, r, CALL) for r in range(2)]
    job.links = list(links)
    sharings = [one_host(2) for _ in range(2)]
    first, second = make_arrays("whole", 2, ITEMS), make_arrays("whole", 2, ITEMS)
    wanted = 2 * (first[0] + first[1]), second[0] + second[1]

    async def reduce_copied(link: Link, _: Array) -> None:
        backend = await enter(link, sharings[link.rank])
        assert isinstance(link, CopyingMeeting)
        link.copies = frozenset({(0, 1)})
        await backend.all_reduce(first[link.rank], ReduceOp.SUM)
        link.copies = frozenset()
        await backend.all_reduce(second[link.rank], ReduceOp.SUM)
        await backend.all_reduce(first[link.rank], ReduceOp.SUM)

    job.run(reduce_copied)
    for r in range(2):
        np.testing.assert_array_equal(first[r], wanted[0])
        np.testing.assert_array_equal(second[r], wanted[1])
    assert links[0].nbytes < 2 * 8.1 * ITEMS + BOARD_BYTES + 2 * QUEUE_BYTES


def test_a_rank_that_fails_in_the_last_meeting_spoils_it() -> None:
    """Another one that comes later must not take over what the first may have changed since."""
    boards = make_boards(2)

    def room(r: int, wait: Callable[[], Any]) -> tuple[Room, FakeMeeting]:
        meeting = FakeMeeting(r, 2, wait, CALL)
        return Room(meeting, Boards(r, boards), Residents(r), Spin(0.0)), meeting

    async def interrupted() -> None:
        raise KeyboardInterrupt

    async def over() -> None:
        raise AssertionError("waits for the news of the failure, as it should")

    first, _ = room(0, interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_here(first.meet())
    second, meeting = room(1, over)
    with pytest.raises(CollectiveMismatchError):
        run_here(second.meet())
    assert meeting.told


def test_a_rank_that_fails_in_the_next_meeting_spoils_only_that() -> None:
    """A slow rank still looks at the meeting before, to which all have come."""
    boards = make_boards(2)

    async def interrupted() -> None:
        raise KeyboardInterrupt

    slow_has_come = Boards(1, boards)
    step = slow_has_come.come(digest_of(CALL))
    fast = Room(FakeMeeting(0, 2, interrupted, CALL), Boards(0, boards), Residents(0), Spin(0.0))
    run_here(fast.meet())
    with pytest.raises(KeyboardInterrupt):
        run_here(fast.meet())
    assert slow_has_come.all_here(step)
    assert slow_has_come.others_calls(step) == {digest_of(CALL)}


# -- real processes ------------------------------------------------------------------------------


@pytest.mark.long
@needs_memory
@pytest.mark.parametrize("n", [2, 3])
def test_processes_of_one_host_send_no_data(n: int) -> None:
    """They send at most a message without data to each rank that fell asleep in a meeting."""
    meetings = {3: 4, 300_000: 12 if n == 2 else 18}
    with Cluster(n, processes=True) as cluster:
        for size, most in meetings.items():
            for messages, nbytes in cluster.run(remote_code.counted_in_memory, size):
                assert messages <= most * (n - 1)
                assert nbytes == 0


@pytest.mark.long
@needs_memory
def test_processes_reduce_arrays_in_shared_memory_in_place() -> None:
    """Their memory goes round once, and is let go when they are gone."""
    with Cluster(3, processes=True) as cluster:
        cluster.run(remote_code.counted_in_memory, 3)
        before = cluster.run(remote_code.mapped_memory)
        for _ in range(8):
            assert cluster.run(remote_code.reduce_in_place, ITEMS, 3) == [0, 0, 0]
        after = cluster.run(remote_code.mapped_memory)
        # That of the last array, here and of two others, and what is not told yet.
        assert all(now <= then + 2 * 3 for now, then in zip(after, before, strict=True))


@pytest.mark.long
def test_a_rank_that_comes_late_is_waited_for_asleep() -> None:
    """It comes when the other one has told it that it waits, and wakes it with a message."""
    with Cluster(2, processes=True) as cluster, ThreadPoolExecutor(1) as pool:
        cluster.run(remote_code.counted_in_memory, 3)
        waiting = pool.submit(cluster.call, 0, remote_code.counted_barrier)
        cluster.call(0, remote_code.tells_that_it_waits)
        assert cluster.call(1, remote_code.counted_barrier) >= 1
        assert waiting.result() >= 1


@pytest.mark.long
@needs_memory
def test_a_timeout_in_a_later_meeting_names_the_rank_that_is_behind() -> None:
    with_more_time(check_behind, 0.5, 5.0)


def check_behind(limit: float) -> None:
    with Cluster(3, processes=True) as cluster:
        cluster.run(remote_code.counted_in_memory, 3)
        for words in cluster.run(remote_code.stays_behind, 1, limit):
            assert words.startswith("CallTimeoutError: "), words
            assert f"took longer than {limit:g} s: entered, but behind: rank 1 ('worker1')" in words


@pytest.mark.long
@needs_memory
def test_memory_is_freed_with_its_group() -> None:
    """A group of two has two boards; the last ones go once news of their end has come."""
    with Cluster(2, processes=True) as cluster:
        for _ in range(8):
            cluster.run(remote_code.in_a_group_for_once)
        cluster.run(remote_code.mapped_memory)  # collects garbage, which goes back with a message
        cluster.run(remote_code.in_a_group_for_once)
        assert max(cluster.run(remote_code.mapped_memory)) <= 2 * 2


@pytest.mark.long
@needs_memory
def test_memory_is_freed_whatever_kills_a_rank() -> None:
    with Cluster(3, processes=True) as cluster, ThreadPoolExecutor(3) as pool:
        running = [pool.submit(cluster.call, r, remote_code.killed_in_memory) for r in range(3)]
        for r in (0, 2):
            assert running[r].result().startswith("WorkerLostError: worker 'worker1'")
        assert running[1].exception() is not None
        cluster.kill(1)


@needs_memory
def test_the_error_of_an_operation_that_waits_for_its_turn_says_so() -> None:
    with Cluster(2, processes=True) as cluster:
        cluster.run(remote_code.counted_in_memory, 3)
        words = cluster.call(0, remote_code.waits_for_a_turn)
        assert words.startswith("CallTimeoutError: "), words
        assert "waits for its turn, since all_reduce(op=SUM" in words
        assert "is not over" in words


# -- numbers that a rank reads where others write --------------------------------------------------

FORGED: dict[str, Callable[[int], int]] = {
    "length": lambda note: note | 2**39,  # of a part: it would take as many meetings
    "offset": lambda note: note | 2**40 << 21,  # of an array
    "slot": lambda note: note & ~0x1F | 9,  # of memory that was never handed out
}


def shows_another_number(kind: str) -> str:
    """Rank 1 shows the others a wrong number when they meet."""
    arrays = [shared_empty(ITEMS) for _ in range(2)]
    for array in arrays:
        array[...] = 1.0
    if kind == "slot":
        dist.all_reduce(arrays[0])  # hands the memory out
    if dist.get_rank() == 1:
        real, forge = Boards.come, FORGED[kind]

        def come(self: Boards, digest: int, note: int = 0) -> int:
            return real(self, digest, forge(note) if note else note)

        Boards.come = come  # type: ignore[method-assign]
    if kind == "length":
        return remote_code.refusal(lambda: dist.all_gather(np.ones(3)))
    return remote_code.refusal(lambda: dist.all_reduce(arrays[0]))


@needs_memory
@pytest.mark.parametrize("kind", FORGED)
@pytest.mark.long
def test_a_wrong_number_in_shared_memory_ends_the_group(kind: str) -> None:
    words = {
        "length": "a rank shows a part of",
        "offset": "bytes at 0 of shared memory that has 0",
        "slot": "rank 1 of the group shows memory that it has not handed out",
    }
    with Cluster(2, processes=True) as cluster:
        cluster.run(remote_code.counted_in_memory, 2)
        for said in cluster.run(shows_another_number, kind):
            assert said.startswith("DecodeError: "), said
            assert words[kind] in said
