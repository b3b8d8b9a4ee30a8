"""The pool's table: under every order of events the counts are right, and no work stays without a thread."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from enum import Enum, auto

from hypothesis import strategies as st

from telegrad.rpc.pool.roster import (
    NESTED_SHARE,
    OTHERS,
    QUICK_SECONDS,
    TURN_SECONDS,
    TURNS,
    Do,
    Rest,
    ThreadRoster,
    Todo,
    Work,
)
from tests.repeated import on_examples

OUTSIDE = 1000  # a thread that is none of the pool's


class State(Enum):
    STARTING = auto()
    RESTING = auto()
    WATCHING = auto()
    WORKING = auto()
    WAITING = auto()  # for telegrad


class Pool:
    """Threads that do what the roster says, one step at a time; each step is one of theirs."""

    def __init__(self, num_threads: int, max_threads: int) -> None:
        self.roster = ThreadRoster(num_threads, max_threads)
        self.num_threads, self.max_threads = num_threads, max_threads
        self.nested: set[int] = set()  # work that others wait for, not taken yet
        self.now = 0.0
        self.threads: dict[int, State] = {}
        self.tokens = 0
        self.due: list[tuple[Callable[[int], Todo], int]] = []  # looks, each with what was taken
        self.entered = 0
        self.taken: list[int] = []
        self.took: dict[int, tuple[float, int]] = {}  # when a thread took work, and what all had
        self._drawn = 0

    def act(self, todo: Todo, *, stalled: bool = False) -> None:
        if Do.START in todo and not stalled:
            assert self.roster.threads - self.roster.blocked <= self.num_threads, "more at once"
        for do in todo:
            if do is Do.WAKE:
                self.tokens += 1
            elif do is Do.START:
                assert self.roster.threads <= self.max_threads or self.nested
                assert self.roster.idle <= self.roster.waiting - self.roster.left, "one too many"
                self._drawn += 1
                self.threads[self._drawn] = State.STARTING
            elif do in (Do.TICK, Do.LOOK):
                event = self.roster.tick if do is Do.TICK else self.roster.look
                assert event not in [due for due, _ in self.due], "one look at a time"
                self.due.append((event, self.roster.taken))

    def those(self, state: State) -> list[int]:
        return [thread for thread, now in self.threads.items() if now is state]

    def enter(self, *, nested: bool, thread: int = OUTSIDE) -> None:
        self.entered += 1
        if nested:
            self.nested.add(self.entered)
        work: Work = (contextvars.Context(), int, (self.entered,))
        left, comes = self.roster.left, self.comes_back()
        own = self.threads.get(thread) is State.WATCHING and self.roster.gate.shut
        todo = self.roster.enter(work, nested=nested, thread=thread, now=self.now)
        assert not own or (todo == () and not self.roster.gate.shut), "a thread does what it reads"
        assert self.roster.left == left or comes, "left to nobody"
        self.act(todo)

    def comes_back(self) -> bool:
        """Whether a thread works, or is on its way to work; it looks for more after that."""
        on_its_way = self.roster.waiting - self.roster.left
        return bool(self.those(State.WORKING)) or on_its_way > 0

    def rest(self, thread: int) -> None:
        watches = self.roster.begin_watch(thread)
        self.threads[thread] = State.WATCHING if watches else State.RESTING

    def take_or_rest(self, thread: int) -> None:
        if (work := self.roster.take(self.now)) is not None:
            self.work(thread, work)
        else:
            self.rest(thread)

    def work(self, thread: int, work: Work | None) -> None:
        assert work is not None
        self.taken.append(work[2][0])
        self.took[thread] = self.now, len(self.taken)
        self.nested.discard(work[2][0])
        self.threads[thread] = State.WORKING

    def finish(self, thread: int) -> None:
        began, count = self.took[thread]
        too_many = self.roster.threads - self.roster.blocked > self.num_threads
        rest = self.roster.rest(self.now - began, len(self.taken) - count)
        if rest is Rest.IDLE and self.roster.left and not too_many:
            assert len(self.those(State.WORKING)) > 1, "work is left to nobody"
        if rest is Rest.NOT:
            self.work(thread, self.roster.take(self.now))
        elif rest is Rest.OVER:
            assert self.roster.waiting <= self.roster.idle or len(self.threads) > self.max_threads
            del self.threads[thread]
        else:
            self.rest(thread)

    def steps(self) -> list[Callable[[], None]]:
        """Returns what can happen now without anybody's doing."""
        steps: list[Callable[[], None]] = []
        for thread, state in self.threads.items():
            if state is State.STARTING:
                steps.append(lambda thread=thread: self.rest(thread))  # type: ignore[misc]
            elif state is State.WATCHING and not self.roster.gate.shut:
                steps.append(lambda thread=thread: self.called(thread))  # type: ignore[misc]
            elif state is State.RESTING and self.tokens:
                steps.append(lambda thread=thread: self.woken(thread))  # type: ignore[misc]
        if self.due:
            steps.append(self.look)
        return steps

    def called(self, thread: int) -> None:
        assert self.roster.end_watch()
        self.take_or_rest(thread)

    def woken(self, thread: int) -> None:
        self.tokens -= 1
        self.take_or_rest(thread)

    def look(self) -> None:
        event, taken = self.due.pop(0)
        self.now += QUICK_SECONDS
        todo = event(taken)
        if event == self.roster.look:
            assert (Do.LOOK in todo) is (self.roster.left > 0), "looks for nothing"
        self.act(todo, stalled=event == self.roster.tick)

    def check(self) -> None:
        roster, states = self.roster, list(self.threads.values())
        assert roster.threads == len(states)
        assert roster.blocked == states.count(State.WAITING)
        idle = (State.STARTING, State.RESTING, State.WATCHING)
        assert roster.idle == sum(state in idle for state in states)
        assert states.count(State.WATCHING) <= 1
        assert roster.waiting == self.entered - len(self.taken)
        assert 0 <= roster.left <= roster.waiting
        assert not roster.left or any(event == roster.look for event, _ in self.due), "forgotten"
        full = roster.threads - roster.blocked >= self.num_threads
        at_limit = roster.threads >= self.max_threads
        assert roster.waiting - roster.left <= roster.idle or full or at_limit, "one too few"
        assert len(set(self.taken)) == len(self.taken)


def after(events: list[tuple[int, int]], num_threads: int, max_threads: int) -> Pool:
    """Returns a pool after some events; each is a kind, and which thread or step it concerns."""
    pool = Pool(num_threads, max_threads)
    for kind, which in events:
        pool.now += QUICK_SECONDS / (4, 16, 64)[which % 3]
        watching, working = pool.those(State.WATCHING), pool.those(State.WORKING)
        waiting, steps = pool.those(State.WAITING), pool.steps()
        if kind <= 2:
            pool.enter(nested=kind > 0)
        elif kind == 3 and watching:
            pool.enter(nested=False, thread=watching[0])
        elif kind == 4 and working:
            pool.finish(working[which % len(working)])
        elif kind == 5 and working:
            thread = working[which % len(working)]
            pool.threads[thread] = State.WAITING
            pool.act(pool.roster.begin_wait())
        elif kind == 6 and waiting:
            pool.roster.end_wait()
            pool.threads[waiting[which % len(waiting)]] = State.WORKING
        elif kind == 13:
            pool.tokens += 1  # that of work which was withdrawn
        elif kind >= 7 and steps:
            steps[which % len(steps)]()
        pool.check()
    return pool


EVENTS = st.lists(st.tuples(st.integers(0, 13), st.integers(0, 50)), min_size=30, max_size=90)


@on_examples(EVENTS, st.integers(1, 4), few=150)
def test_all_work_gets_a_thread_though_no_other_ends(
    events: list[tuple[int, int]], num_threads: int
) -> None:
    pool = after(events, num_threads, 1000)
    for _ in range(2000):
        if not (steps := pool.steps()):
            break
        steps[0]()
        pool.check()
    assert sorted(pool.taken) == list(range(1, pool.entered + 1))


@on_examples(EVENTS, st.integers(1, 3), few=150)
def test_the_limits_hold_and_all_work_is_done_as_threads_go_on(
    events: list[tuple[int, int]], max_threads: int
) -> None:
    pool = after(events, 1, max_threads)
    for turn in range(5000):
        assert pool.roster.threads <= NESTED_SHARE * max_threads
        waiting, working = pool.those(State.WAITING), pool.those(State.WORKING)
        if waiting:
            pool.roster.end_wait()
            pool.threads[waiting[0]] = State.WORKING
        elif working and turn % 3 == 0:
            pool.finish(working[0])
        elif steps := pool.steps():
            steps[turn % len(steps)]()
        elif not working:
            break
        pool.check()
    assert sorted(pool.taken) == list(range(1, pool.entered + 1))


@on_examples(st.lists(st.booleans(), max_size=60))
def test_roots_come_after_nested_work_and_are_not_forgotten(nested: list[bool]) -> None:
    roster = ThreadRoster(1, 100)
    for number, each in enumerate(nested):
        work: Work = (contextvars.Context(), int, (number, each))
        roster.enter(work, nested=each, thread=OUTSIDE, now=0.0)
    order = []
    while (taken := roster.take(0.0)) is not None:
        order.append(taken[2])
        roster.idle += 1
    for kind in (True, False):
        numbers = [number for number, each in order if each is kind]
        assert numbers == sorted(numbers)
    kinds = [each for _, each in order]
    for place, each in enumerate(kinds):
        turn = kinds[max(0, place - TURNS) : place] == [True] * TURNS
        assert each is (False if turn and False in kinds[place:] else True in kinds[place:])


def test_work_is_not_left_to_threads_that_rest_already() -> None:
    """Two threads are one too many, so that the one rests and the other ends, and work is left."""
    pool = Pool(1, 100)
    for thread in (1, 2):
        pool.enter(nested=True)
        pool.rest(thread)
        pool.woken(thread)
        pool.threads[thread] = State.WAITING
        pool.act(pool.roster.begin_wait())
    for thread in (1, 2):
        pool.roster.end_wait()
        pool.threads[thread] = State.WORKING
    pool.enter(nested=True)
    assert pool.roster.left == 1
    pool.finish(1)
    pool.finish(2)
    assert not pool.comes_back()
    pool.enter(nested=True)  # checks that it is not left as well
    assert pool.tokens == 1
    pool.check()


def filled(left: int) -> Pool:
    """A pool with a thread at work, and so much work that was left to it."""
    pool = Pool(4, 100)
    pool.enter(nested=True)
    pool.rest(1)
    pool.woken(1)
    for _ in range(left):
        pool.enter(nested=True)
    assert (pool.roster.left, pool.tokens) == (left, 0)
    return pool


def test_looks_in_a_row_wake_one_thread_more_and_then_twice_as_many() -> None:
    roster = filled(20).roster

    def woken() -> int:
        return roster.look(roster.taken).count(Do.WAKE)

    assert [woken() for _ in range(3)] == [1, 2, 4]
    assert roster.look(roster.taken - 5) == (Do.LOOK,)  # one more than the four woken took work
    assert [woken() for _ in range(5)] == [1, 2, 4, 6, 0]


def test_the_takes_of_the_threads_that_a_look_woke_are_no_progress() -> None:
    roster = filled(20).roster
    woken: list[int] = []
    for _ in range(4):
        before = roster.taken - (woken[-1] if woken else 0)
        woken.append(roster.look(before).count(Do.WAKE))
        for _ in range(woken[-1]):
            assert roster.take(0.0) is not None
    assert woken == [1, 2, 4, 8]


def test_a_thread_rests_while_others_take_work_as_quickly() -> None:
    for others, seconds, rests in (
        (OTHERS, OTHERS * TURN_SECONDS / 2, True),
        (3 * OTHERS, 3 * OTHERS * TURN_SECONDS / 2, True),
        (OTHERS, OTHERS * TURN_SECONDS, False),
        (OTHERS - 1, 0.0, False),
    ):
        pool = filled(20)
        pool.look()
        (second,) = [thread for thread in pool.threads if thread != 1]
        pool.rest(second)
        pool.woken(second)
        assert pool.roster.rest(seconds, others) is (Rest.IDLE if rests else Rest.NOT)


def test_threads_that_run_side_by_side_do_not_rest() -> None:
    """Others took as much in that time, all together; each of them needs as long as this one."""
    pool = filled(60)
    for _ in range(2):
        pool.look()
    more = [thread for thread in pool.threads if thread != 1]
    for thread in more:
        pool.rest(thread)
        pool.woken(thread)
    assert len(more) == 3
    others = 2 * OTHERS
    assert pool.roster.rest(others * TURN_SECONDS / 2, others) is Rest.NOT


def test_the_last_thread_that_runs_takes_what_is_left() -> None:
    pool = filled(20)
    assert pool.roster.rest(0.0, 100) is Rest.NOT
