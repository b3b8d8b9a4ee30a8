"""Sets of futures: as_completed and first_n, from threads and loops."""

from __future__ import annotations

import asyncio
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import hypothesis.strategies as st
import pytest

from telegrad.errors import BlockingCallError, CallTimeoutError, NotEnoughResultsError
from telegrad.rpc.future.future import MANY_WAKERS, Future, new_future
from telegrad.rpc.verbs import combine as future_sets
from telegrad.rpc.verbs.combine import as_completed, collect_all, first_n, wait_all
from telegrad.transport import LoopThread
from tests.repeated import on_examples
from tests.rpc.future.plain_futures import complete_by, done, failed, objects_left_by
from tests.rpc.turns import turn


def pending(count: int) -> list[Future[int]]:
    return [Future() for _ in range(count)]


# -- as_completed ------------------------------------------------------------------------------


@on_examples(st.permutations(range(6)), st.integers(0, 6))
def test_as_completed_yields_in_the_order_of_completion(order: list[int], early: int) -> None:
    futures = pending(6)
    for place in order[:early]:
        futures[place].set_result(place)
    iterator = as_completed(futures)
    for place in order[early:]:
        futures[place].set_result(place)
    found = [future.value() for future in iterator]
    # Those that were done before come first, in the order in which they were given.
    assert found == [*sorted(order[:early]), *order[early:]]


def test_as_completed_ends_for_one_that_comes_when_another_has_taken_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (future,) = pending(1)
    iterator = as_completed([future], timeout=5.0)
    taken: list[Future[int]] = []

    def waiter_after_another(*args: Any) -> Future[Any]:
        if not taken:
            future.set_result(1)
            taken.append(next(iterator))
        return new_future(*args)

    monkeypatch.setattr(future_sets, "new_future", waiter_after_another)
    assert list(iterator) == []
    assert taken == [future]


def test_as_completed_takes_failed_futures_and_none_at_all() -> None:
    (found,) = as_completed([failed(KeyError("x"))])
    assert isinstance(found.exception(), KeyError)
    assert list(as_completed([])) == []
    same = done(1)
    assert list(as_completed([same, same])) == [same, same]
    one: Any = same
    for verb in (as_completed, wait_all, collect_all):
        with pytest.raises(TypeError, match=r"several futures, not one; write \[future\]"):
            verb(one)
    wrong: list[Any] = [same, 3]
    with pytest.raises(TypeError, match="item 1"):
        as_completed(wrong)


def test_as_completed_times_out_for_all_of_them_together() -> None:
    futures = [done(1), *pending(2)]
    iterator = as_completed(futures, timeout=0.001)
    assert next(iterator).value() == 1
    for _ in range(2):
        with pytest.raises(CallTimeoutError, match=r"2 futures were not done .* they go on"):
            next(iterator)
    futures[2].set_result(2)
    assert next(iterator) is futures[2]
    with pytest.raises(ValueError, match="above 0"):
        as_completed([], timeout=0)


@pytest.mark.asyncio
async def test_async_for_times_out_and_may_be_cancelled() -> None:
    (future,) = pending(1)
    with pytest.raises(CallTimeoutError, match="1 futures were not done"):
        async for _ in as_completed([future], timeout=0.001):
            pass
    iterator = as_completed([future])
    task = asyncio.ensure_future(anext(iterator))
    await turn()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    future.set_result(3)
    assert (await anext(iterator)).value() == 3
    with pytest.raises(StopAsyncIteration):
        await anext(iterator)


def test_one_iterator_shared_by_threads_and_loops_gives_each_future_once() -> None:
    futures = pending(200)
    iterator = as_completed(futures)

    async def consume() -> list[int]:
        return [future.value() async for future in iterator]

    with ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(lambda: [f.value() for f in iterator]) for _ in range(2)]
        runs += [pool.submit(lambda: asyncio.run(consume())) for _ in range(2)]
        for place, future in enumerate(futures):
            future.set_result(place)
        found = [value for run in runs for value in run.result()]
    assert sorted(found) == list(range(200))


def test_for_on_a_loop_of_telegrads_says_to_write_async_for() -> None:
    loop = LoopThread("test-loop").acquire()
    futures = [done(1), *pending(1)]
    found: list[int] = []

    async def consume() -> None:
        found.extend(future.value() for future in as_completed(futures))

    try:
        with pytest.raises(BlockingCallError, match="async for"):
            loop.run(consume())
    finally:
        loop.release()


def test_iterators_that_were_left_leave_nothing_with_what_is_pending() -> None:
    (future,) = pending(1)
    ready = done(1)

    def poll() -> None:
        for found in as_completed([ready, future]):
            assert found is ready
            break

    assert objects_left_by(poll, 10 * MANY_WAKERS) < 5 * MANY_WAKERS
    iterator = as_completed([future])
    kept = [as_completed([future]) for _ in range(2 * MANY_WAKERS)]
    future.set_result(2)
    assert next(iterator).value() == 2
    assert [next(each).value() for each in kept] == [2] * len(kept)


def test_an_iterator_keeps_no_future_that_it_gave() -> None:
    (left,) = futures = pending(1)
    taken = done(1)
    gone = weakref.ref(taken)
    iterator = as_completed([taken, *futures])
    next(iterator)
    del taken
    gc.collect()
    assert gone() is None
    left.set_result(0)


# -- first_n -----------------------------------------------------------------------------------


@on_examples(
    st.lists(st.booleans(), max_size=7).flatmap(
        lambda good: st.tuples(
            st.just(good), st.integers(0, len(good)), st.permutations(range(len(good)))
        )
    ),
    st.integers(0, 7),
)
def test_first_n_under_every_order(case: tuple[list[bool], int, list[int]], early: int) -> None:
    good, k, order = case

    def complete(place: int) -> None:
        if good[place]:
            futures[place].set_result(place)
        else:
            futures[place].set_exception(KeyError(place))

    futures = pending(len(good))
    for place in order[:early]:
        complete(place)
    result = first_n(futures, k)
    heard = [*sorted(order[:early]), *order[early:]]
    for place in order[early:]:
        succeeded = [p for p in heard[: heard.index(place)] if good[p]]
        failures = heard.index(place) - len(succeeded)
        assert result.done() == (len(succeeded) >= k or failures > len(good) - k)
        complete(place)
    wanted = [futures[p] for p in heard if good[p]][:k]
    if len(wanted) == k:
        assert result.value() == wanted
        return
    with pytest.raises(NotEnoughResultsError) as info:
        result.value()
    needed = len(good) - k + 1
    assert [e.args[0] for e in info.value.failures] == [p for p in heard if not good[p]][:needed]


def test_first_n_names_what_failed() -> None:
    futures = [failed(ValueError("one")), done(1), failed(KeyError("two"))]
    with pytest.raises(NotEnoughResultsError) as info:
        first_n(futures, 2).wait()
    assert str(info.value) == (
        "2 of 3 failed in first_n of 3, so fewer than 2 can succeed: "
        "item 0, a future: ValueError: one; item 2, a future: KeyError: 'two'"
    )
    assert isinstance(info.value.__cause__, ValueError)


def test_first_n_refuses_counts_that_cannot_be() -> None:
    assert first_n([], 0).value() == []
    for k in (-1, 2):
        with pytest.raises(ValueError, match="k must be from 0"):
            first_n([done(1)], k)
    for wrong in (True, 1.0, None):
        with pytest.raises(TypeError, match="k must be an integer"):
            first_n([done(1)], wrong)  # type: ignore[arg-type]


def test_first_n_leaves_the_others_alone_and_forgets_them() -> None:
    slow, fast = pending(2)
    unused = weakref.ref(fast)
    result = first_n([slow, fast], 1)
    fast.set_result(1)
    assert result.value() == [fast]
    del result, fast
    gc.collect()
    assert unused() is None  # the race is over: who runs on keeps no winner alive
    assert not slow.done()
    slow.set_result(2)


def test_first_n_decodes_no_reply_to_learn_who_succeeded() -> None:
    decoded = []

    def reply() -> int:
        decoded.append(1)
        return 1

    first, second = new_future(None, "a reply"), new_future(None, "a reply")
    result = first_n([first, second], 1)
    complete_by(first, reply)
    assert result.value() == [first]
    assert not decoded
    assert first.value() == 1
    complete_by(second, reply)
