"""What 100,000 operations of each kind leave behind: nothing, in either of two processes.

Threads, tasks and descriptors may not be more at the end than they were at any time in the first
half; the pools are filled before it. Memory is judged in the long runs alone, by two numbers of the
second half: objects that the garbage collector tracks, class by class, of which there may be no
more; and the resident memory of the process, of which there may be less than 1 MiB more. What is
kept for every operation shows in the first number from 20 operations on, and in the second one,
where it is no object of Python's, from 20 bytes for each.
"""

from __future__ import annotations

import pytest

from telegrad import rpc
from telegrad.rpc.pool.deadlines import COMPACT_FROM
from telegrad.testing import Cluster
from tests.soak import load
from tests.soak.load import Sample

OPERATIONS = 100_000
ROUNDS = 20
AROUND = 4  # rounds of which the least resident memory counts: allocators have their ups and downs
LIMIT_SECONDS = 900.0
MOST_RESIDENT = 2**20
# Of objects of one class: a call of the sampling itself may just be under way, or not.
SLACK = 20
# Deadlines that were cancelled stay in their heap, each in a tuple, until there are so many of them.
DEADLINES = ("telegrad.rpc.pool.deadlines.Deadline", "builtins.tuple")
MOST_DEADLINES = 3 * COMPACT_FROM


def grown(before: Sample, after: Sample) -> dict[str, int]:
    """Returns the classes of which there are more."""
    more = {name: after.objects[name] - before.objects.get(name, 0) for name in after.objects}
    for name in DEADLINES:
        more[name] = more.get(name, 0) - MOST_DEADLINES
    return {name: count for name, count in more.items() if count > SLACK}


@pytest.fixture
def one_arena(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the workers' memory in one place.

    glibc gives threads arenas of their own, each with its own holes: where threads come and go it
    takes 300,000 calls until resident memory stands still, though nothing is kept.
    """
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")


@pytest.mark.long
@pytest.mark.usefixtures("one_arena")
@pytest.mark.timeout(LIMIT_SECONDS + 60)
@pytest.mark.parametrize("kind", sorted(load.LOADS))
def test_the_second_half_of_100000_operations_leaves_nothing(kind: str) -> None:
    check(kind, OPERATIONS, ROUNDS, LIMIT_SECONDS)


@pytest.mark.parametrize(
    "kind",
    [
        *("calls", "stream items"),
        *(pytest.param(kind, marks=pytest.mark.long) for kind in ("cancellations", "references")),
    ],
)
def test_a_few_thousand_operations_leave_nothing_running(kind: str) -> None:
    """The same load, short enough for every run; what is bounded is not full yet, and still grows."""
    check(kind, 2000, 8, 45.0, memory=False)


def check(kind: str, operations: int, rounds: int, limit: float, *, memory: bool = True) -> None:
    """Looks at the second half of the operations, and at up to two more where memory has grown.

    A burst may take memory that is not given back; a leak takes it in every half.
    """
    options = rpc.RpcOptions(timeout=120.0, num_threads=load.POOL, lost_after=20.0)
    with Cluster(2, processes=True, limit=limit, options=options) as cluster:
        cluster.call(0, load.fill_pools)
        found = cluster.call(0, load.put_under_load, kind, operations, rounds)
        for _ in range(2 if memory else 0):
            if all(resident_growth(found, worker) < MOST_RESIDENT for worker in (0, 1)):
                break
            more = cluster.call(0, load.put_under_load, kind, operations // 2, rounds // 2)
            found = found[rounds // 2 :] + more
    for worker in (0, 1):
        samples = [each[worker] for each in found]
        half, last = samples[rounds // 2], samples[-1]
        told = f"worker{worker} after {operations} {kind}"
        first, late = samples[: rounds // 2 + 1], samples[-AROUND:]
        for what in ("tasks", "threads", "descriptors"):  # one may just come or go
            now = min(getattr(each, what) for each in late)
            assert now <= max(getattr(each, what) for each in first), f"{told}: {what}"
        if memory:
            assert grown(half, last) == {}, told
            resident = [each.resident for each in samples]
            assert resident_growth(found, worker) < MOST_RESIDENT, f"{told}: {resident}"


def resident_growth(rounds: list[tuple[Sample, Sample]], worker: int) -> float:
    """Returns by how many bytes a process has grown in the second half of its rounds."""
    resident = [each[worker].resident for each in rounds]
    middle, around = ROUNDS // 2, AROUND // 2
    before = min(resident[middle - around : middle + around])
    share = (ROUNDS - middle - around) / middle  # of the half, between the rounds looked at
    return (min(resident[-AROUND:]) - before) / share
