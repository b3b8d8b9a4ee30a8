"""Events of a pass: each is handled once, alone, by a thread that brings one; none waits."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from telegrad.dist_autograd.desk import EventQueue

THREADS = 4


class Performed:
    """What a queue has performed, in order."""

    def __init__(self) -> None:
        self.actions: list[object] = []
        self.queue: EventQueue[object] = EventQueue(self.actions.extend, self.failed)

    def event(
        self, action: object, count: int = 1, raises: bool = False, appends: bool = False
    ) -> list[object]:
        if appends:
            self.queue.handle(lambda: [f"after {action}"])
        if raises:
            raise ValueError(f"event {action}")
        return [action] * count

    def failed(self, error: BaseException) -> Sequence[object]:
        return [str(error)]


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.booleans())))
def test_events_lead_to_actions_in_order(events: list[tuple[int, bool, bool]]) -> None:
    performed, expected = Performed(), list[object]()
    for i, (count, raises, appends) in enumerate(events):
        assert performed.queue.handle(partial(performed.event, i, count, raises, appends))
        expected += [f"event {i}"] if raises else [i] * count
        expected += [f"after {i}"] if appends else []
    assert performed.actions == expected


def test_a_thread_leaves_its_event_to_the_one_that_handles() -> None:
    performed, entered, left = Performed(), threading.Event(), threading.Event()

    def slow() -> list[str]:
        entered.set()
        assert left.wait(20.0)
        return ["slow"]

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(performed.queue.handle, slow)
        assert entered.wait(20.0)
        assert not performed.queue.handle(lambda: ["left behind"])
        left.set()
        assert first.result(20.0)
    assert performed.actions == ["slow", "left behind"]


def test_threads_that_bring_events_at_once_lose_none() -> None:
    performed, start = Performed(), threading.Barrier(THREADS)

    def bring(thread: int) -> None:
        start.wait(20.0)
        for number in range(500):
            performed.queue.handle(partial(performed.event, (thread, number)))

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(bring, range(THREADS)))
    assert len(performed.actions) == THREADS * 500
    for thread in range(THREADS):
        own = [each for each in performed.actions if each[0] == thread]  # type: ignore[index]
        assert own == [(thread, number) for number in range(500)]
