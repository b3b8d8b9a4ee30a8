"""Ranks that differ in one argument of a verb: an error on each, with the values of both sides.

Every verb of all ranks, each of its arguments, and each rank that may be the one that differs; over
messages, in shared memory, by a backend of the user's, and between hosts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pytest

from telegrad import collectives as dist
from telegrad.collectives import ProcessGroup, ReduceOp
from telegrad.collectives.seams import Groups
from telegrad.rpc.seams import current_agent
from telegrad.testing import Cluster
from telegrad.types import Array, Rank
from tests.collectives import remote_code
from tests.collectives.toy_backend import make_star

N = 3
# The backend of the groups, whether each runs an operation before that sets up what it keeps, and
# the last axis of arrays.
Settings: TypeAlias = tuple[Any, bool, int]
Odds: TypeAlias = Mapping[str, Rank]  # for each argument, the rank that differs in it


@dataclass(frozen=True)
class Arguments:
    """The arguments of one call, as far as its verb has them."""

    dtype: str = "float64"
    rows: int = 2  # for each rank
    width: int = 2
    depth: int = 1
    root: Rank = 0
    op: ReduceOp = ReduceOp.SUM
    splits: tuple[int, ...] = (2, 2, 2)
    label: str = "a"
    async_op: bool = False

    def array(self, times: int = 1) -> Array:
        return np.ones((times * self.rows, self.width, self.depth), self.dtype)

    def parts(self) -> list[Array]:
        return [self.array() for _ in range(N)]

    def rest(self, group: ProcessGroup) -> dict[str, Any]:
        return {"group": group, "async_op": self.async_op, "label": self.label}


def scatter(a: Arguments, group: ProcessGroup) -> object:
    parts = a.parts() if dist.get_rank() == a.root else None
    return dist.scatter(a.array(), parts, a.root, **a.rest(group))


def coalesced(a: Arguments, group: ProcessGroup) -> object:
    with dist.coalesced(group, a.async_op) as block:
        dist.all_reduce(np.ones(1), group=group)
        dist.all_reduce(a.array(), a.op, group, label=a.label)
        dist.broadcast(a.array(), a.root, group)
    return block.work if a.async_op else None


def scatter_objects(a: Arguments, group: ProcessGroup) -> object:
    objects = ["a"] * N if dist.get_rank() == a.root else None
    return dist.scatter_object_list(objects, a.root, group)


CALLS: dict[str, Callable[[Arguments, ProcessGroup], object]] = {
    "all_reduce": lambda a, group: dist.all_reduce(a.array(), a.op, **a.rest(group)),
    "reduce": lambda a, group: dist.reduce(a.array(), a.root, a.op, **a.rest(group)),
    "broadcast": lambda a, group: dist.broadcast(a.array(), a.root, **a.rest(group)),
    "all_gather": lambda a, group: dist.all_gather(a.array(), **a.rest(group)),
    "all_gather_single": lambda a, group: dist.all_gather_single(a.array(), **a.rest(group)),
    "gather": lambda a, group: dist.gather(a.array(), a.root, **a.rest(group)),
    "scatter": scatter,
    "reduce_scatter": lambda a, group: dist.reduce_scatter(a.parts(), a.op, **a.rest(group)),
    "reduce_scatter_single": lambda a, group: dist.reduce_scatter_single(
        a.array(N), a.op, split_sizes=a.splits, **a.rest(group)
    ),
    "all_to_all": lambda a, group: dist.all_to_all(a.parts(), **a.rest(group)),
    "all_to_all_single": lambda a, group: dist.all_to_all_single(
        a.array(N), a.splits, **a.rest(group)
    ),
    "barrier": lambda a, group: dist.barrier(group),
    "monitored_barrier": lambda a, group: dist.monitored_barrier(group),
    "coalesced": coalesced,
    "all_gather_object": lambda a, group: dist.all_gather_object("a", group=group),
    "gather_object": lambda a, group: dist.gather_object("a", a.root, group),
    "broadcast_object_list": lambda a, group: dist.broadcast_object_list(
        ["a"] * a.rows, a.root, group
    ),
    "scatter_object_list": scatter_objects,
}

# What one rank has instead of what all others have; and what the error says of these and of it.
OTHER: dict[str, tuple[dict[str, Any], str, str]] = {
    "dtype": ({"dtype": "float32"}, "dtype=float64", "dtype=float32"),
    "shape": ({"rows": 3}, "shape=(2, 2, ", "shape=(3, 2, "),
    "width": ({"width": 3}, ", 2, ", ", 3, "),
    "parts": ({"rows": 3}, "parts=[(2, 2, ", "parts=[(3, 2, "),
    "root": ({"root": 1}, "=0", "=1"),
    "op": ({"op": ReduceOp.MAX}, "op=SUM", "op=MAX"),
    "label": ({"label": "b"}, "for 'a'", "for 'b'"),
    "splits": ({"splits": (1, 2, 3)}, "parts=[(2, 2, ", "parts=[(1, 2, "),
    "wanted": ({}, "parts=[(2, 2, ", "(3, 2, "),
    "length": ({"rows": 3}, "shape=(2,)", "shape=(3,)"),
}
COMPARED: dict[str, str] = {
    "all_reduce": "dtype shape width op label",
    "reduce": "dtype shape root op label",
    "broadcast": "dtype shape root label",
    "all_gather": "dtype label",
    "all_gather_single": "dtype width label",
    "gather": "dtype root label",
    "scatter": "dtype shape root label",
    "reduce_scatter": "dtype parts op label",
    "reduce_scatter_single": "dtype width splits op label",
    "all_to_all": "dtype label",
    "all_to_all_single": "dtype width wanted label",
    "coalesced": "dtype shape root op label",
    "barrier": "",
    "monitored_barrier": "",
    "all_gather_object": "",
    "gather_object": "root",
    "broadcast_object_list": "root length",
    "scatter_object_list": "root",
}


def odds_of(verb: str, first: Rank) -> Odds:
    """Returns the rank that differs in each argument; the ranks take turns, from the first on."""
    return {kind: (first + i) % N for i, kind in enumerate(["operation", *COMPARED[verb].split()])}


def differ(verb: str, odds: Odds, settings: Settings) -> list[str]:
    """Makes a call for each argument, in which a rank differs; returns what this one was told."""
    backend, after, depth = settings
    r = begin()
    said = []
    for kind, odd in odds.items():
        group = dist.new_group(range(N), backend=backend)
        if after:
            dist.all_reduce(np.ones(1), group=group)
        a, called = Arguments(depth=depth, async_op=odd == 1), verb
        if r == odd and kind == "operation":
            called = other_verb(verb)
        elif r == odd:
            a = replace(a, **differences(kind, odd))
        said.append(remote_code.refusal(partial(run_to_the_end, called, a, group)))
    array = np.ones(1)
    dist.all_reduce(array)  # other groups go on
    assert array[0] == N
    return said


def differences(kind: str, odd: Rank) -> dict[str, Any]:
    if kind == "wanted":  # of the part that the next rank has for it
        return {"splits": tuple(3 if r == (odd + 1) % N else 2 for r in range(N))}
    return OTHER[kind][0]


def begin() -> int:
    current_agent().attachments[Groups].warn_after = 0.4  # ranks tell each other in half of it
    return remote_code.begin(timeout=20.0)


def other_verb(verb: str) -> str:
    return "all_reduce" if verb == "barrier" else "barrier"


def run_to_the_end(verb: str, a: Arguments, group: ProcessGroup) -> None:
    started = CALLS[verb](a, group)
    if isinstance(started, dist.Work):
        started.wait()


def check(verb: str, odds: Odds, told: Sequence[Sequence[str]]) -> None:
    """Checks what all ranks were told."""
    for r, said in enumerate(told):
        for (kind, odd), words in zip(odds.items(), said, strict=True):
            others = other_verb(verb) if kind == "operation" else verb
            usual, unusual = OTHER[kind][1:] if kind in OTHER else (f"{verb}(", f"{others}(")
            assert words.startswith("CollectiveMismatchError: "), (verb, kind, r, words)
            assert "; all ranks must call the same operations" in words
            called = dict(re.findall(r"rank (\d) \('worker\d'\) called (.*?)(?=, but |;)", words))
            assert len(called) == 2, (verb, kind, r, words)
            assert unusual in called.pop(str(odd)), (verb, kind, r, words)
            assert usual in called.popitem()[1], (verb, kind, r, words)


SETTINGS: dict[str, tuple[dict[str, Any], Settings]] = {
    "messages": ({}, (None, False, 1)),
    "long messages": ({}, (None, False, 40_000)),
    "backend of the user": ({}, (make_star, False, 1)),
    "memory, at once": ({"processes": True}, (None, False, 1)),
    "memory": ({"processes": True}, (None, True, 1)),
    "memory, long arrays": ({"processes": True}, (None, True, 40_000)),
}


def cases() -> Iterator[Any]:
    """Yields settings, and the rank that is the first to differ, with the marks of their tests."""
    for settings in SETTINGS:
        for first in range(N):
            fast = first == 0 and settings not in ("memory, at once", "memory, long arrays")
            yield pytest.param(settings, first, marks=() if fast else pytest.mark.long)


@pytest.mark.parametrize(("settings", "first"), [*cases()])
@pytest.mark.long
def test_one_rank_that_differs(settings: str, first: int) -> None:
    arguments, given = SETTINGS[settings]
    with Cluster(N, **arguments) as cluster:
        for verb in COMPARED:
            odds = odds_of(verb, first)
            check(verb, odds, cluster.run(differ, verb, odds, given))


OF_TWO = {
    "batch_isend_irecv", "irecv", "isend", "recv", "recv_object_list", "send", "send_object_list"
}  # fmt: skip
OF_GROUPS = {
    "destroy_process_group", "init_process_group", "is_initialized", "new_group", "new_subgroups",
    "new_subgroups_by_enumeration", "shrink_group", "split_group", "tune", "world_group",
}  # fmt: skip


def test_every_verb_of_all_ranks_has_a_row() -> None:
    names = {name for name in dist.__all__ if name[0].islower() and not name.startswith("get_")}
    assert names - OF_TWO - OF_GROUPS == set(CALLS) == set(COMPARED)
