"""Steps, messages and bytes of every algorithm, counted beside the formulas of the documentation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from telegrad.collectives import ReduceOp
from telegrad.collectives.algorithms import (
    chain,
    circulant,
    direct,
    dissemination,
    ring,
    star,
    tree,
)
from telegrad.collectives.algorithms.shared_exchange import CALL_BYTES
from telegrad.collectives.algorithms.shared_memory import MemoryBackend
from telegrad.collectives.link import EAGER_BYTES, Link, Steps
from telegrad.collectives.messages import Signature
from telegrad.collectives.select import select_all_gather, select_all_reduce, select_broadcast
from telegrad.collectives.shared_memory.boards import BLOCK_BYTES, STEP
from telegrad.collectives.shared_memory.residents import LEAST_BYTES
from telegrad.collectives.shared_memory.room import Room
from telegrad.types import Array
from tests.collectives.fake_link import FakeJob, rounds_of
from tests.collectives.shared_memory.test_shared_memory import make_boards, run_ranks


@dataclass
class Cost:
    """The longest chain of messages, and the most that one rank sends."""

    steps: float
    messages: float
    nbytes: float
    signals: int = 0


def depth(n: int) -> int:
    """Returns the number of messages on the longest way in a binomial tree of n places."""
    return max(place.bit_count() for place in range(1, n))


SUM = ReduceOp.SUM


def cut(array: Array, link: Link) -> list[Array]:
    return np.split(array, link.size)


COSTS: dict[str, tuple[Callable[[Link, Array], Steps[Any]], Callable[[int, int], Cost]]] = {
    "direct.all_reduce": (
        lambda link, x: direct.all_reduce(link, x, SUM),
        lambda n, b: Cost(1, n - 1, (n - 1) * b),
    ),
    "circulant.all_reduce_in_order": (
        lambda link, x: circulant.all_reduce_in_order(link, x, SUM),
        lambda n, b: Cost(rounds_of(n), rounds_of(n), (n - 1) * (b + 8)),
    ),
    "circulant.all_reduce": (
        lambda link, x: circulant.all_reduce(link, x, SUM),
        lambda n, b: Cost(2 * rounds_of(n), 2 * rounds_of(n), (n - 1) * (2 * b / n + 8)),
    ),
    "ring.all_reduce": (
        lambda link, x: ring.all_reduce(link, x, SUM),
        lambda n, b: Cost(2 * (n - 1), 2 * (n - 1), 2 * (n - 1) * b / n),
    ),
    "star.reduce": (
        lambda link, x: star.reduce(link, x, SUM, 1),
        lambda n, b: Cost(rounds_of(n), 1, b, rounds_of(n)),
    ),
    "star.reduce_in_blocks": (
        lambda link, x: star.reduce_in_blocks(link, x, SUM, 1),
        lambda n, b: Cost(2, n, b),
    ),
    "direct.reduce_scatter": (
        lambda link, x: direct.reduce_scatter(link, cut(x, link), SUM),
        lambda n, b: Cost(1, n - 1, (n - 1) * b / n),
    ),
    "tree.broadcast": (
        lambda link, x: tree.broadcast(link, x, 1),
        lambda n, b: Cost(
            rounds_of(n) + depth(n) - 1, rounds_of(n), rounds_of(n) * b, rounds_of(n)
        ),
    ),
    "chain.broadcast": (
        lambda link, x: chain.broadcast(link, x, 1),
        lambda n, b: Cost(rounds_of(n) + n - 2, chain.segments(b, n), b, rounds_of(n)),
    ),
    "direct.all_gather": (
        lambda link, x: direct.all_gather(link, x),
        lambda n, b: Cost(1, n - 1, (n - 1) * b),
    ),
    "circulant.all_gather": (
        lambda link, x: circulant.all_gather(link, x),
        lambda n, b: Cost(rounds_of(n), rounds_of(n), (n - 1) * (b + 24)),
    ),
    "dissemination.barrier": (
        lambda link, _: dissemination.barrier(link),
        lambda n, _: Cost(rounds_of(n), 0, 0, rounds_of(n)),
    ),
}


def counted(name: str, n: int, nbytes: int) -> Cost:
    job = FakeJob([np.ones(nbytes, np.int8) for _ in range(n)])
    job.run(COSTS[name][0])
    return Cost(
        job.steps,
        max(link.messages for link in job.links),
        max(link.nbytes for link in job.links),
        max(link.signals for link in job.links),
    )


@pytest.mark.parametrize("n", range(2, 17))
@pytest.mark.parametrize("name", COSTS)
def test_costs(name: str, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "STEP_BYTES", 64)
    for nbytes in (n, 100 * n):
        assert counted(name, n, nbytes) == COSTS[name][1](n, nbytes)


# -- meetings in shared memory ----------------------------------------------------------------


def in_blocks(nbytes: int, parts: int, head: int = 0) -> int:
    """Returns the blocks for parts of so many bytes each, of which the first has a head."""
    first, size = ((BLOCK_BYTES - taken) // parts // 64 * 64 for taken in (head, 0))
    return 1 + math.ceil(max(nbytes - first, 0) / size)


def asking(nbytes: int) -> int:
    """Returns the meeting in which ranks ask whether their arrays were made in shared memory."""
    return int(nbytes >= LEAST_BYTES)


MEETINGS: dict[str, tuple[Callable[[Room, Array], Steps[Any]], Callable[[int, int], int]]] = {
    "all_reduce": (
        lambda room, x: MemoryBackend(room).all_reduce(x, SUM),
        lambda n, b: asking(b) + in_blocks(b, 1) * (1 if n == 2 or b <= 2**14 else 2),
    ),
    "reduce": (
        lambda room, x: MemoryBackend(room).reduce(x, SUM, 1),
        lambda n, b: in_blocks(b, 1) * (1 if n == 2 or b <= 2**14 else 2),
    ),
    "broadcast": (
        lambda room, x: MemoryBackend(room).broadcast(x, 1),
        lambda _, b: in_blocks(b, 1),
    ),
    "all_gather": (
        lambda room, x: MemoryBackend(room).all_gather(x),
        lambda _, b: asking(b) + in_blocks(b, 1, CALL_BYTES),
    ),
    "gather": (
        lambda room, x: MemoryBackend(room).gather(x, 1),
        lambda _, b: asking(b) + in_blocks(b, 1, CALL_BYTES),
    ),
    "scatter": (
        lambda room, x: MemoryBackend(room).scatter(
            np.split(x, room.size)[0], np.split(x, room.size) if room.rank == 1 else [], 1
        ),
        lambda n, b: in_blocks(b // n, n, CALL_BYTES),
    ),
    "all_to_all": (
        lambda room, x: MemoryBackend(room).all_to_all(np.split(x, room.size)),
        lambda n, b: in_blocks(b // n, n, CALL_BYTES),
    ),
    "reduce_scatter": (
        lambda room, x: MemoryBackend(room).reduce_scatter(np.split(x, room.size), SUM),
        lambda n, b: in_blocks(b // n, n, CALL_BYTES),
    ),
}


@pytest.mark.parametrize("n", [2, 3, 5, 8])
@pytest.mark.parametrize("name", MEETINGS)
def test_meetings(name: str, n: int) -> None:
    """A rank that sends no message comes to so many meetings."""
    for nbytes in (n, 2**14 // n * n, 900_000 // n * n, 3_500_000 // n * n):
        part = (nbytes // n,)
        if name == "scatter":
            calls = [
                Signature(operation=name, shape=part, parts=(part,) * n if r == 1 else ())
                for r in range(n)
            ]
        else:
            shape = (nbytes,) if name in ("all_gather", "gather") else None
            calls = [Signature(operation=name, shape=shape, parts=(part,) * n)] * n
        boards = make_boards(n)
        arrays: list[Array] = [np.ones(nbytes, np.int8) for _ in range(n)]
        assert run_ranks(arrays, MEETINGS[name][0], nbytes, calls, boards) == [None] * n
        assert {board.words[STEP] for board in boards} == {MEETINGS[name][1](n, nbytes)}


@pytest.mark.parametrize("name", COSTS)
def test_costs_of_many_ranks(name: str) -> None:
    assert counted(name, 100, 100) == COSTS[name][1](100, 100)


@pytest.mark.parametrize("algorithm", [ring.all_reduce, circulant.all_reduce])
@pytest.mark.parametrize("n", range(2, 10))
@pytest.mark.parametrize("size", [0, 1, 7, 16])
def test_blocks_of_different_sizes(algorithm: Any, n: int, size: int) -> None:
    """A rank sends every block twice, but the one it finishes and the one that it gets last."""
    job = FakeJob([np.ones(size) for _ in range(n)])
    job.run(lambda link, x: algorithm(link, x, SUM))
    blocks = [8 * block.size for block in ring.cut_blocks(np.ones(size), n)]
    assert max(blocks) - min(blocks) <= 8
    for r, link in enumerate(job.links):
        if algorithm is ring.all_reduce:
            assert link.nbytes == 16 * size - blocks[(r + 1) % n] - blocks[(r + 2) % n]
        else:
            assert abs(link.nbytes - 2 * (n - 1) * 8 * size / n - 8 * (n - 1)) <= 8 * n
    assert sum(link.nbytes for link in job.links) == 2 * (n - 1) * 8 * size + (
        0 if algorithm is ring.all_reduce else 8 * n * (n - 1)
    )


@pytest.mark.parametrize("name", COSTS)
@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 9])
def test_no_rank_ends_or_writes_before_every_rank_has_come(name: str, n: int) -> None:
    for absent in range(n):
        arrays = [np.full(2 * n, float(r)) for r in range(n)]
        job = FakeJob(arrays, seed=absent)
        assert job.run_without(absent, COSTS[name][0]) == set()
        for r, array in enumerate(arrays):
            assert (array == r).all()


# -- the formula by which select.py chooses ---------------------------------------------------


def step(messages: int, nbytes: float, announced: bool = True) -> float:
    """Returns the time of one step in units of the work on a message at one rank."""
    trip = 2 + 2 * messages
    trips = 3 if announced and nbytes > EAGER_BYTES else 1
    return trips * trip + messages * nbytes * 4 / chain.STEP_BYTES


def halves(n: int, nbytes: float) -> float:
    return sum(step(1, (count - skip) * nbytes) for skip, count in circulant.halvings(n))


def pipelined(n: int, b: int) -> float:
    m = chain.segments(b, n)
    asking = 8 * (n - 1) if b / m > EAGER_BYTES else 0
    return (m + n - 2) * step(1, b / m, announced=False) + asking


TIMES: dict[Any, Callable[[int, int], float]] = {
    direct.all_reduce: lambda n, b: step(n - 1, b),
    circulant.all_reduce_in_order: halves,
    circulant.all_reduce: lambda n, b: 2 * halves(n, b / n),
    ring.all_reduce: lambda n, b: step(1, b / n) + (2 * n - 3) * step(1, b / n, announced=False),
    direct.all_gather: lambda n, b: step(n - 1, b),
    circulant.all_gather: halves,
    tree.broadcast: lambda n, b: rounds_of(n) * step(1, b),
    chain.broadcast: pipelined,
}
IN_ORDER = [direct.all_reduce, circulant.all_reduce_in_order]


@pytest.mark.parametrize(
    ("select", "before", "at_most"),
    [
        (select_all_reduce, direct.all_reduce, 1.1),
        (select_all_reduce, ring.all_reduce, 1.1),
        (lambda nbytes, n: select_all_gather(n), direct.all_gather, 1.2),
        (select_broadcast, tree.broadcast, 1.1),
    ],
)
def test_what_is_chosen_instead_takes_less_time(select: Any, before: Any, at_most: float) -> None:
    """By the formula, or a little more at some sizes."""
    for n in [*range(2, 70), 100, 500, 1000]:
        for nbytes in (2**k * (4 + q) for k in range(26) for q in range(4)):
            run = select(nbytes, n)
            if run is not before and (run in IN_ORDER) == (before in IN_ORDER):
                assert TIMES[run](n, nbytes) <= at_most * TIMES[before](n, nbytes), (n, nbytes)
