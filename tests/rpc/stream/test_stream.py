"""Streams: every form, over every transport."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from telegrad import rpc
from telegrad.errors import (
    BlockingCallError,
    CallRefusedError,
    EncodeError,
    NotInitializedError,
    RemoteError,
    UnknownWorkerError,
)
from telegrad.rpc import seams
from tests.rpc import remote_code
from tests.rpc.conftest import Job
from tests.rpc.stream import stream_code

OVER_FAULTS_TOO = True


@pytest.fixture
def job(job: Job) -> Iterator[Job]:
    """Three workers; the test runs on w0."""
    with seams.use_agent(job.agents[0]):
        yield job


EITHER: list[Callable[..., Any]] = [
    stream_code.count,
    stream_code.acount,
    stream_code.acount_without_waits,
]


@pytest.mark.few(2)
@pytest.mark.parametrize("func", EITHER)
@pytest.mark.parametrize("to", ["w0", "w1", 2])
def test_items_come_in_order(job: Job, func: Callable[..., Any], to: Any) -> None:
    assert list(rpc.stream(to, func, (200,))) == list(range(200))
    assert list(rpc.stream(to, func, (0,))) == []
    assert list(rpc.stream(to, func, (), {"n": 1})) == [0]


@pytest.mark.parametrize("func", EITHER)
def test_from_a_loop_of_the_users(job: Job, func: Callable[..., Any]) -> None:
    async def read(to: str) -> list[int]:
        async with rpc.stream(to, func, (100,)) as items:
            return [each async for each in items]

    async def main() -> list[list[int]]:
        return await asyncio.gather(*(read(f"w{i % 3}") for i in range(9)))

    assert asyncio.run(main()) == [list(range(100))] * 9


def test_an_iterator_that_is_no_generator(job: Job) -> None:
    assert list(rpc.stream("w1", stream_code.Squares, (4,))) == [0, 1, 4, 9]


@pytest.mark.parametrize("to", ["w0", "w1"])
def test_static_and_class_methods(job: Job, to: str) -> None:
    assert list(rpc.stream(to, stream_code.Numbers.static, (3,))) == [0, 1, 2]
    assert list(rpc.stream(to, stream_code.Numbers.of_class, (3,))) == [0, 1, 2]


def test_items_are_values_at_the_time_of_the_yield(job: Job) -> None:
    for to in ("w0", "w1"):
        items = list(rpc.stream(to, stream_code.arrays, (50, 10)))
        np.testing.assert_array_equal(items, [np.full(10, float(i)) for i in range(50)])
        assert all(each.flags.writeable for each in items)


def test_big_items_do_not_change_the_order(job: Job) -> None:
    big = 1 << 15  # 256 KiB: by the bulk lanes
    items = list(rpc.stream("w1", stream_code.sizes, (big,)))
    assert [each[0] for each in items] == list(range(20))
    assert [each.size for each in items] == [2 if i % 3 else big for i in range(20)]


@pytest.mark.parametrize("func", [stream_code.fails_after, stream_code.afails_after])
@pytest.mark.parametrize("n", [0, 1, 100])
def test_an_error_comes_after_the_items_before_it(
    job: Job, func: Callable[..., Any], n: int
) -> None:
    items = rpc.stream("w1", func, (n,))
    assert [next(items) for _ in range(n)] == list(range(n))
    for _ in range(2):  # and again
        with pytest.raises(remote_code.CustomError, match="in the middle") as info:
            next(items)
        assert info.value.code == n
        assert "fails_after" in (rpc.remote_traceback(info.value) or "")
    items.close()
    assert list(items) == []


def test_an_item_that_cannot_travel(job: Job) -> None:
    items = rpc.stream("w1", stream_code.gives_unsendable, ("unsendable",))
    assert next(items) == 1
    with pytest.raises(EncodeError, match="gives_unsendable"):
        next(items)


def test_an_error_that_is_false_is_one(job: Job) -> None:
    items = rpc.stream("w1", stream_code.refuses)
    for _ in range(2):
        with pytest.raises(stream_code.EmptyError, match="no generator"):
            next(items)


def test_what_is_no_stream(job: Job) -> None:
    for value in (3, [1, 2], None):
        with pytest.raises(TypeError, match="generator functions.*rpc_sync"):
            next(rpc.stream("w1", stream_code.no_iterator, (value,)))
    with pytest.raises(TypeError, match="returned coroutine"):
        next(rpc.stream("w1", stream_code.no_async_generator))  # type: ignore[arg-type]
    with pytest.raises(remote_code.CustomError, match="at once"):
        next(rpc.stream("w1", stream_code.raises_before, ("at once",)))
    with pytest.raises(TypeError, match="argument"):
        next(rpc.stream("w1", stream_code.count))  # type: ignore[arg-type]


def test_what_is_refused_before_anything_is_sent(job: Job) -> None:
    sent = rpc.statistics().calls_sent
    with pytest.raises(UnknownWorkerError):
        rpc.stream("nobody", stream_code.count, (1,))
    with pytest.raises(TypeError, match="args must be"):
        rpc.stream("w1", stream_code.count, 3)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="above 0"):
        rpc.stream("w1", stream_code.count, (1,), timeout=0)
    with pytest.raises(EncodeError, match="lambda"):
        rpc.stream("w1", lambda: iter(()))
    with pytest.raises(EncodeError, match=r"args\[0\]"):
        rpc.stream("w1", stream_code.count, (remote_code.Unsendable(),))  # type: ignore[arg-type]
    with pytest.raises(EncodeError, match="Stream does not travel"):
        rpc.rpc_sync("w1", remote_code.echo, (rpc.stream("w0", stream_code.count, (1,)),))
    assert rpc.statistics().calls_sent == sent + 1
    with pytest.raises(NotInitializedError):
        contextvars.Context().run(lambda: rpc.stream("w1", stream_code.count, (1,)))


def test_what_the_producer_refuses(job: Job) -> None:
    with pytest.raises(CallRefusedError):
        next(rpc.stream("w1", threading.enumerate))  # type: ignore[arg-type]
    assert list(rpc.stream("w1", stream_code.count, (1,))) == [0]


def test_an_exception_that_would_end_the_program(job: Job) -> None:
    for func, name in (
        (stream_code.leaves, "SystemExit"),
        (stream_code.acancels_itself, "CancelledError"),
    ):
        items: rpc.Stream[int] = rpc.stream("w1", func)
        assert next(items) == 1
        with pytest.raises(RemoteError, match=name):
            next(items)


@pytest.mark.parametrize("func", [stream_code.sets_a_variable, stream_code.asets_a_variable])
def test_a_generator_stays_in_one_context(job: Job, func: Callable[..., Any]) -> None:
    assert list(rpc.stream("w1", func, (300,))) == ["inside"] * 300 + ["outside"]


@pytest.mark.parametrize("func", [stream_code.relayed, stream_code.arelayed])
def test_streams_of_streams(job: Job, func: Callable[..., Any]) -> None:
    path = ["w2", "w0", "w1", "w2"]
    assert list(rpc.stream("w1", func, (path, 100))) == list(range(100))


def test_several_threads_share_the_items(job: Job) -> None:
    items = rpc.stream("w1", stream_code.count, (400,))
    with ThreadPoolExecutor(4) as pool:
        read = [each.result() for each in [pool.submit(list, items) for _ in range(4)]]
    assert sorted(itertools.chain(*read)) == list(range(400))
    assert all(each == sorted(each) for each in read)


def test_a_stream_is_not_read_on_a_loop_of_telegrads(job: Job) -> None:
    with pytest.raises(BlockingCallError, match="async for"):
        rpc.rpc_sync("w1", stream_code.blocks_the_user_loop, ("w1",))
    remote_code.gates.open_all()


def test_the_deadline_and_depth_in_a_stream(job: Job) -> None:
    [(left, depth)] = rpc.stream("w1", stream_code.time_left_in_a_stream, timeout=5.0)
    assert (left, depth) == (float("inf"), 1)


def test_repr(job: Job) -> None:
    items = rpc.stream("w1", stream_code.count, (3,))
    assert repr(items) == (
        "<Stream of tests.rpc.stream.stream_code:count on 'w1': open, 0 items taken>"
    )
    assert list(items) == [0, 1, 2]
    assert "ended, 3 items taken" in repr(items)
    failing = rpc.stream("w1", stream_code.fails_after, (1,))
    with pytest.raises(remote_code.CustomError):
        list(failing)
    assert "failed after 1 items" in repr(failing)
    failing.close()
    assert "closed after 1 items" in repr(failing)
