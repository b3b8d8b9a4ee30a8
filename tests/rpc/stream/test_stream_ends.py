"""How far a stream runs ahead, and all the ways in which it may end, from either side."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from telegrad import rpc
from telegrad.errors import (
    CallCancelledError,
    CallTimeoutError,
    DecodeError,
    NotInitializedError,
    WorkerLostError,
)
from telegrad.rpc import seams
from telegrad.rpc.future import unread
from telegrad.rpc.seams import new_future
from telegrad.rpc.stream import reading
from telegrad.rpc.stream.messages import ITEM, MORE
from telegrad.rpc.stream.protocol import WINDOW_BYTES, WINDOW_ITEMS
from telegrad.rpc.stream.reading import StreamReader, StreamReaders
from telegrad.rpc.stream.serving import StreamProducers
from telegrad.testing import leaks
from telegrad.wire import Envelope
from tests.counting import counted
from tests.patience import with_more_time
from tests.rpc import remote_code
from tests.rpc.conftest import Job, MakeJob
from tests.rpc.future.plain_futures import start
from tests.rpc.rest import refused
from tests.rpc.stream import stream_code
from tests.rpc.turns import turn

FOREVER: list[Callable[..., Any]] = [stream_code.forever, stream_code.aforever]
HOLDS: list[Callable[..., Any]] = [stream_code.holds, stream_code.aholds]

yielded = stream_code.yielded
closed = stream_code.closed
gates = remote_code.gates


@pytest.fixture
def job(job: Job) -> Iterator[Job]:
    """Three workers; the test runs on w0, and leaves no end of a stream, nor a call."""
    with seams.use_agent(job.agents[0]):
        yield job
    leaks.wait_until_gone("streams", lambda: left(job))


@pytest.fixture(autouse=True)
def _counts(monkeypatch: pytest.MonkeyPatch) -> None:
    yielded.clear()
    monkeypatch.setattr(unread, "LOOK_SECONDS", 0.05)


def wait_for(what: str, holds: Callable[[], bool]) -> None:
    leaks.wait_until_gone(what, lambda: [] if holds() else [what])


def rests(job: Job, rank: int) -> Callable[[], bool]:
    return lambda: job.agents[rank].attachments[StreamProducers].resting == 1


def left(job: Job) -> list[str]:
    """Ends of streams and calls, on all workers."""
    found = []
    for agent in job.agents:
        if not agent.life.ended:
            ends = len(agent.attachments[StreamReaders]), len(agent.attachments[StreamProducers])
            calls = agent.waits_for()
            if any((*ends, calls)) or not agent.drain(time.monotonic()):
                found.append(f"{agent.info.name}: {ends} ends, {calls}")
    return found


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> list[StreamReader]:
    """What reads each stream that the test opens."""
    opened, open_stream = list[StreamReader](), StreamReaders.open

    def noted(*args: Any, **options: Any) -> StreamReader:
        opened.append(open_stream(*args, **options))
        return opened[-1]

    monkeypatch.setattr(StreamReaders, "open", noted)
    return opened


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Is set when a reader begins to wait for an item."""
    begun = threading.Event()

    def noted(*args: Any) -> rpc.Future[Any]:
        begun.set()
        return new_future(*args)

    monkeypatch.setattr(reading, "new_future", noted)
    return begun


# Back-pressure ------------------------------------------------------------------------------------


@pytest.mark.parametrize("func", FOREVER)
def test_a_generator_rests_when_it_is_ahead(
    make_job: MakeJob, most_threads: Callable[[int], None], func: Callable[..., Any]
) -> None:
    most_threads(1)
    job = make_job(3, num_threads=1)
    with seams.use_agent(job.agents[0]), rpc.stream("w1", func, ("ahead",)) as items:
        wait_for("rest", rests(job, 1))
        assert yielded["ahead"] == WINDOW_ITEMS
        leaks.wait_until_gone("thread", lambda: refused(job.agents[2], job.agents[1]))
        read = [next(items) for _ in range(WINDOW_ITEMS // 2 - 1)]
        assert yielded["ahead"] == WINDOW_ITEMS
        read.append(next(items))
        wait_for("items", lambda: yielded["ahead"] >= WINDOW_ITEMS + WINDOW_ITEMS // 2)
        wait_for("rest", rests(job, 1))
        assert yielded["ahead"] == WINDOW_ITEMS + WINDOW_ITEMS // 2
        assert read == list(range(WINDOW_ITEMS // 2))
    assert closed("ahead")
    leaks.wait_until_gone("streams", lambda: left(job))


def test_big_items_are_fewer_ahead(job: Job) -> None:
    size = WINDOW_BYTES // 4
    arguments = (10, size // 8, "big")
    with rpc.stream("w1", stream_code.arrays, arguments) as items:
        wait_for("rest", rests(job, 1))
        assert yielded["big"] == 4
        assert next(items)[0] == 0
        assert yielded["big"] == 4
        assert next(items)[0] == 1
        wait_for("items", lambda: yielded["big"] >= 6)
        assert [each[0] for each in items] == list(range(2, 10))
    one = rpc.stream("w1", stream_code.arrays, (3, 2 * WINDOW_BYTES // 8, "huge"))
    wait_for("rest", rests(job, 1))
    assert yielded["huge"] == 1  # an item that is larger comes alone
    assert [each[0] for each in one] == [0, 1, 2]


def test_what_a_stream_costs(job: Job) -> None:
    """One request, one reply, one message each half window."""
    consumer, producer = job.agents[0], job.agents[1]
    n = 10 * WINDOW_ITEMS
    rpc.rpc_sync("w1", remote_code.who)
    with counted() as work:
        assert sum(rpc.stream("w1", stream_code.count, (n,))) == n * (n - 1) // 2
    sent = Counter[str]()
    for name, count in work.envelopes.items():
        sent[name.partition(" ")[0]] += count
    assert 1 < sent[consumer.info.name] <= 1 + n // (WINDOW_ITEMS // 2)
    assert sent[producer.info.name] == n + 1


# Leaving early ------------------------------------------------------------------------------------


@pytest.mark.parametrize("func", [*FOREVER, stream_code.aholds_in_finally])
def test_closing_runs_the_finally_blocks(job: Job, func: Callable[..., Any]) -> None:
    with rpc.stream("w1", func, ("left",)) as items:
        for each in items:
            if each == 40:
                break
    assert list(items) == []
    items.close()
    assert not items.cancel()
    assert closed("left")
    leaks.wait_until_gone("streams", lambda: left(job))


@pytest.mark.parametrize("func", FOREVER)
def test_leaving_an_async_block(job: Job, func: Callable[..., Any]) -> None:
    async def main() -> None:
        async with rpc.stream("w1", func, ("left",)) as items:
            async for each in items:
                if each == 40:
                    break
        assert [each async for each in items] == []
        await items.aclose()

    asyncio.run(main())
    assert closed("left")


@pytest.mark.parametrize("func", FOREVER)
def test_one_that_nobody_holds_any_more(job: Job, func: Callable[..., Any]) -> None:
    for each in rpc.stream("w1", func, ("garbage",)):
        if each == 3:
            break
    gc.collect()
    assert closed("garbage")


@pytest.mark.parametrize("func", HOLDS)
def test_cancelling_wakes_who_reads(
    job: Job, func: Callable[..., Any], waits: threading.Event
) -> None:
    with ThreadPoolExecutor(1) as pool:
        items = rpc.stream("w1", func, ("held", 2))
        assert [next(items), next(items)] == [0, 1]
        waits.clear()
        reads = pool.submit(next, items)
        assert waits.wait(20)
        assert items.cancel()
        with pytest.raises(CallCancelledError, match=r"holds on 'w1' was cancelled"):
            reads.result()
        with pytest.raises(CallCancelledError):
            next(items)
        assert not items.cancel()
    gates("held").set()
    assert closed("held")


def test_a_task_that_is_cancelled_loses_no_item(job: Job, waits: threading.Event) -> None:
    async def main() -> list[int]:
        async with rpc.stream("w1", stream_code.holds, ("task", 1)) as items:
            first = await anext(items)
            waiting = asyncio.ensure_future(anext(items))
            waits.clear()
            await turn()  # the task runs as far as it can
            assert waits.is_set()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            gates("task").set()
            return [first, *[each async for each in items]]

    assert asyncio.run(main()) == [0, 1]


def test_cancelling_before_it_has_begun(job: Job) -> None:
    for _ in range(20):
        items = rpc.stream("w1", stream_code.forever, ("early",))
        assert items.cancel()
        with pytest.raises(CallCancelledError):
            next(items)


def test_a_generator_that_takes_no_cancellation(job: Job) -> None:
    items = rpc.stream("w1", stream_code.aswallows, ("swallows",))
    assert gates("swallows-entered").wait(20)
    items.close()
    assert closed("swallows")


def test_a_generator_that_refuses_to_close(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    with rpc.stream("w1", stream_code.refuses_to_close, ("stubborn",)) as items:
        assert next(items) == 1
    wait_for("items", lambda: yielded["stubborn-refused"] >= 1)
    leaks.wait_until_gone("streams", lambda: left(job))
    wait_for("the log", lambda: "closing the generator" in caplog.text)
    assert "ignored GeneratorExit" in caplog.text


def test_a_closed_outer_stream_closes_the_inner_one(job: Job) -> None:
    with rpc.stream("w1", stream_code.relayed_forever, ("w2", "inner")) as items:
        assert [next(items) for _ in range(3)] == [0, 1, 2]
    assert closed("inner-outer")
    assert closed("inner")


# Deadlines ----------------------------------------------------------------------------------------


def first_two(items: rpc.Stream[int]) -> list[int]:
    """Reads two items, which a busy machine may keep for longer than the limit."""
    try:
        return [next(items), next(items)]
    except CallTimeoutError as error:
        raise AssertionError(f"{error}") from error


@pytest.mark.parametrize("func", HOLDS)
def test_the_time_for_the_next_item(job: Job, func: Callable[..., Any]) -> None:
    def read(limit: float) -> CallTimeoutError:
        items = rpc.stream("w1", func, ("late", 2), timeout=limit)
        assert first_two(items) == [0, 1]
        for _ in range(2):
            with pytest.raises(
                CallTimeoutError, match=rf"next item of .*within {limit:.3g} s"
            ) as info:
                next(items)
        return info.value

    error = with_more_time(read, 0.2, 5.0)
    assert (error.worker, error.phase) == ("w1", "waiting for the next item")
    assert error.function.endswith("holds")
    if func is stream_code.holds:
        assert not gates("late-closed").is_set()
        gates("late").set()
    assert closed("late")


@pytest.mark.parametrize("func", HOLDS)
def test_what_a_served_call_has_left_bounds_all_of_it(job: Job, func: Callable[..., Any]) -> None:
    with pytest.raises(CallTimeoutError):
        rpc.rpc_sync("w1", stream_code.read_first_of, ("w2", func, "bound", 60.0), timeout=0.5)
    gates("bound").set()
    leaks.wait_until_gone("streams", lambda: left(job))
    if gates("bound-entered").is_set():  # else the time was over before
        assert closed("bound")


def test_the_time_counts_for_each_reader_since_the_last_item(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer, limit = job.agents[0], 61.5
    timers: list[Callable[[], None]] = []
    others = consumer.deadlines.after

    def after(delay: float, callback: Callable[[], None]) -> Any:
        if not limit - 1.0 < delay <= limit:  # the agent has more to do than this
            return others(delay, callback)
        timers.append(callback)
        return SimpleNamespace(cancel=lambda: None)

    monkeypatch.setattr(consumer.deadlines, "after", after)
    items = rpc.stream("w1", stream_code.holds, ("spared", 1), timeout=limit)
    assert next(items) == 0
    over, before = len(timers), list(timers)
    read: list[int] = []
    thread = start(lambda: read.extend(items))
    leaks.wait_until_gone("timers", lambda: [] if len(timers) > over else ["none is set"])
    for timer in before:
        timer()  # of a reader that has got its item
    gates("spared").set()
    thread.join(20)
    assert read == [1]
    for timer in timers:
        timer()  # nobody waits
    assert list(items) == []


# Losses and the end of agents ---------------------------------------------------------------------


@pytest.mark.parametrize("func", FOREVER)
def test_a_lost_producer_after_what_has_come(job: Job, func: Callable[..., Any]) -> None:
    items = rpc.stream("w1", func, ("lost",))
    wait_for("rest", rests(job, 1))
    assert [next(items) for _ in range(3)] == [0, 1, 2]
    job.agents[1].shutdown(graceful=False)
    read: list[int] = []
    with pytest.raises(WorkerLostError) as info:
        read.extend(items)
    assert info.value.worker == "w1"
    with pytest.raises(WorkerLostError):
        next(items)
    assert read == list(range(3, 3 + len(read)))
    assert closed("lost")  # there, too


@pytest.mark.parametrize("read", [0, 2])
def test_a_producer_that_is_lost_when_its_end_has_overtaken_items(
    job: Job, monkeypatch: pytest.MonkeyPatch, waits: threading.Event, read: int
) -> None:
    """Big items take longer than the reply: they may still be on their way."""
    producer = job.agents[1]
    post = producer.messages.post_envelope

    def never_arrives(to: rpc.WorkerInfo, envelope: Envelope) -> None:
        if numbers.pop() < 2:
            post(to, envelope)

    numbers = list(reversed(range(5)))
    ended, lost, lose = threading.Event(), threading.Event(), StreamReader.lose

    def noted(reader: StreamReader, error: WorkerLostError) -> None:
        lose(reader, error)
        lost.set()

    def noted_start(reader: StreamReader, reply: rpc.Future[Any]) -> None:
        start(reader, reply)
        reply.add_done_callback(lambda _: ended.set())

    start = StreamReader.start
    monkeypatch.setattr(StreamReader, "start", noted_start)
    monkeypatch.setattr(StreamReader, "lose", noted)
    monkeypatch.setattr(producer.messages, "post_envelope", never_arrives)
    with ThreadPoolExecutor(1) as pool:
        items = rpc.stream("w1", stream_code.count, (5,), timeout=math.inf)
        assert ended.wait(20)
        assert [next(items) for _ in range(read)] == list(range(read))
        waits.clear()
        if read:
            reads = pool.submit(next, items)
            assert waits.wait(20)
        producer.shutdown(graceful=False)
        if read:
            with pytest.raises(WorkerLostError):
                reads.result(20)
        else:
            assert lost.wait(20)
            assert [next(items), next(items)] == [0, 1]
        with pytest.raises(WorkerLostError):
            next(items)


@pytest.mark.parametrize("func", FOREVER)
def test_a_lost_consumer(job: Job, func: Callable[..., Any]) -> None:
    with seams.use_agent(job.agents[1]):
        items = rpc.stream("w2", func, ("orphan",))
        assert next(items) == 0
        job.agents[1].shutdown(graceful=False)
        with pytest.raises((NotInitializedError, WorkerLostError)):
            list(items)
    assert closed("orphan")


@pytest.mark.parametrize("func", FOREVER)
def test_a_shutdown_ends_what_is_not_read(make_job: MakeJob, func: Callable[..., Any]) -> None:
    job = make_job(2)
    with seams.use_agent(job.agents[0]):
        items = rpc.stream("w1", func, ("open",))
        assert next(items) == 0
        job.shutdown()  # would last for ever
        with pytest.raises(NotInitializedError, match=r"not read to its end before rpc.shutdown"):
            next(items)
    assert closed("open")


def test_a_shutdown_serves_on(make_job: MakeJob) -> None:
    """A call that is served in a worker's shutdown() reads its stream to the end."""
    job = make_job(3)
    ending = threading.Thread(target=job.agents[1].shutdown, kwargs={"timeout": 20.0})
    with seams.use_agent(job.agents[0]):
        items = rpc.stream("w1", stream_code.relayed, (["w2"], 2 * WINDOW_ITEMS))
        assert next(items) == 0
        ending.start()
        wait_for("shutdown", lambda: "shutting down" in repr(job.agents[1]))
        assert list(items) == list(range(1, 2 * WINDOW_ITEMS))
        assert rpc.rpc_sync("w1", stream_code.total, ("w2", stream_code.count, 100)) == 4950
    job.shutdown()
    ending.join()


# References and garbage ---------------------------------------------------------------------------


def test_references_in_items(job: Job) -> None:
    producer, consumer = job.agents[1], job.agents[0]
    read = list(rpc.stream("w1", stream_code.references, (20,)))
    assert producer.statistics().owned_rrefs == 20
    assert all(each.owner_name() == "w1" for each in read)
    del read
    wait_for("references", lambda: not producer.statistics().owned_rrefs)
    mine = rpc.RRef("mine")
    assert [each.to_here() for each in rpc.stream("w1", stream_code.echo_rref, (mine, 3))] == [
        "mine"
    ] * 3
    del mine
    wait_for("references", lambda: not consumer.statistics().owned_rrefs)


@pytest.mark.parametrize("read", [0, 5])
def test_references_in_items_that_nobody_reads(job: Job, read: int) -> None:
    producer, consumer = job.agents[1], job.agents[0]
    for _ in range(10):
        with rpc.stream("w1", stream_code.references, (10**6,)) as items:
            wait_for("rest", rests(job, 1))
            kept = [next(items) for _ in range(read)]
            assert len(kept) == read
        del kept
        leaks.wait_until_gone("streams", lambda: left(job))
    del items
    wait_for("references", lambda: not producer.statistics().owned_rrefs)
    assert not consumer.statistics().user_rrefs


def test_garbage(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    """Messages that no stream here has caused are logged, and change nothing."""
    stranger, consumer, producer = job.agents[2], job.agents[0], job.agents[1]
    with rpc.stream("w1", stream_code.forever, ("calm",)) as items:
        wait_for("rest", rests(job, 1))
        stranger.messages.post(producer.info, MORE, [1, 10**6])  # of another one's stream
        stranger.messages.post(producer.info, MORE, "nonsense")
        stranger.messages.post(consumer.info, ITEM, 5)
        consumer.messages.post(producer.info, MORE, [1, 10**6])  # more than were sent
        wait_for("the log", lambda: caplog.text.count("is garbage") == 3)
        assert yielded["calm"] == WINDOW_ITEMS
        assert [next(items) for _ in range(100)] == list(range(100))


def test_items_beyond_the_window_end_the_stream(job: Job, readers: list[StreamReader]) -> None:
    items = rpc.stream("w1", stream_code.holds, ("beyond", 1))
    assert next(items) == 0
    with pytest.raises(DecodeError):
        readers[0].arrive(WINDOW_ITEMS, 1, Envelope(ITEM))
    with pytest.raises(DecodeError, match="was not expected"):
        next(items)
    gates("beyond").set()
    assert closed("beyond")


def test_an_item_that_is_garbage_before_the_verb_returns(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = StreamReader.start

    def late(reader: StreamReader, reply: rpc.Future[Any]) -> None:
        with pytest.raises(DecodeError):
            reader.arrive(WINDOW_ITEMS, 1, Envelope(ITEM))
        start(reader, reply)

    monkeypatch.setattr(StreamReader, "start", late)
    with pytest.raises(DecodeError, match="was not expected"):
        list(rpc.stream("w1", stream_code.forever, ("early",)))


def test_items_that_come_when_it_was_given_up_are_no_garbage(
    job: Job, readers: list[StreamReader]
) -> None:
    closed = rpc.stream("w1", stream_code.holds, ("late", 1))
    closed.close()
    assert not readers[0].arrive(1, 1, Envelope(ITEM))
    cancelled = rpc.stream("w1", stream_code.holds, ("late", 1))
    cancelled.cancel()
    assert not readers[1].arrive(1, 1, Envelope(ITEM))
    expired = rpc.stream("w1", stream_code.holds, ("late", 0), timeout=0.01)
    with pytest.raises(CallTimeoutError):
        next(expired)
    assert not readers[2].arrive(0, 1, Envelope(ITEM))
    gates("late").set()


def test_nobody_is_warned_of_streams_that_end_early(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    for func in FOREVER:
        rpc.stream("w1", func, ("quiet",)).close()
        rpc.stream("w1", func, ("quiet",)).cancel()
        next(rpc.stream("w1", func, ("quiet",)))
    with rpc.stream("w1", stream_code.fails_after, (0,)):
        pass
    gc.collect()
    leaks.wait_until_gone("streams", lambda: left(job))
    job.shutdown()
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []
