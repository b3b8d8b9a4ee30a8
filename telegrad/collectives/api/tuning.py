"""The measuring of thresholds: each algorithm in a group of its own, by all ranks together.

Two algorithms that follow each other in `select` are timed on the same sizes, in turn. The
threshold between them is the one with the least total of relative times:

    bytes      1 KiB  4 KiB  16 KiB │ 64 KiB  256 KiB
    direct     0.4    0.4    0.6    │ 1.4     5.1        ms
    ring       0.7    0.7    0.8    │ 1.1     2.3
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from telegrad.collectives.api.barriers import barrier
from telegrad.collectives.api.calls import check_integer, group_of
from telegrad.collectives.api.exchanges import all_gather, broadcast
from telegrad.collectives.api.groups import destroy_process_group, new_group
from telegrad.collectives.api.reductions import all_reduce
from telegrad.collectives.groups.process_group import ProcessGroup
from telegrad.collectives.reduction import ReduceOp
from telegrad.collectives.select import DEFAULT, MOST, Thresholds
from telegrad.errors import InvalidUseError
from telegrad.types import Array

SHORTEST_BYTES: Final = 2**10
LONGEST_BYTES: Final = 2**24
GROWTH: Final = 4  # of one size beside the one before
REPEATS: Final = 7
# The gain of a threshold over the default one that is more than noise: the logarithm of a ratio of
# times, summed over the sizes. Two runs of the same algorithm differ by half of it on busy cores.
LEAST_GAIN: Final = 0.2


def tune(
    group: ProcessGroup | None = None,
    *,
    longest_bytes: int = LONGEST_BYTES,
    repeats: int = REPEATS,
) -> Thresholds:
    """Measures the thresholds of a group that sends messages; all its ranks call this.

    They are those for this number of ranks on these hosts, for `new_group(thresholds=)` or, saved
    to a file, `TELEGRAD_THRESHOLDS`. It takes some seconds, during which the ranks do nothing else.

    Args:
        group: The group; None for all workers.
        longest_bytes: The longest array that is sent. Thresholds beyond it stay as by default.
        repeats: The number of times that each algorithm runs on each size.

    Returns:
        The thresholds, equal on all ranks.

    Raises:
        TypeError: An argument is no integer.
        ValueError: `longest_bytes` is below 1 KiB, or `repeats` below 1.
        InvalidUseError: The group has one rank; or its ranks share memory, so that it sends no
            messages that could be chosen; or it has a backend of its own.
        Exception: Any error of `new_group` or `all_reduce`.

    Example:
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     collectives.init_process_group()
        ...     return collectives.tune(longest_bytes=4096, repeats=1).few_ranks
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [8, 8]
    """
    chosen = group_of(group)
    longest, count = (
        check_integer("longest_bytes", longest_bytes),
        check_integer("repeats", repeats),
    )
    if longest < SHORTEST_BYTES or count < 1:
        raise ValueError(
            f"longest_bytes must be at least {SHORTEST_BYTES}, and repeats 1 (got {longest}, "
            f"{count})"
        )
    if chosen.size == 1 or chosen.sharing.in_place or chosen.terms.maker is not None:
        raise InvalidUseError(
            f"group {chosen.name!r} has no thresholds to measure: it has one rank, or its ranks "
            "share memory, or a backend of its own; to measure messages on one host, start the "
            "workers with RpcOptions(direct='tcp'), as `telegrad tune` does"
        )
    steps = int(math.log(longest / SHORTEST_BYTES, GROWTH))
    sizes = [SHORTEST_BYTES * GROWTH**i for i in range(steps + 1)]
    return measured(partial(_race, chosen, sizes, count), sizes, chosen.size)


def measured(
    race: Callable[[str, Thresholds, Thresholds], tuple[Array, Array]],
    sizes: Sequence[int],
    n: int,
) -> Thresholds:
    """Returns the thresholds for n ranks, from races of one algorithm with another."""
    found = DEFAULT
    direct, blocks = (
        replace(DEFAULT, direct_up_to_bytes=MOST),
        replace(DEFAULT, direct_up_to_bytes=0),
    )
    if n > DEFAULT.few_ranks:
        in_order, at_once = race(
            "all_reduce",
            replace(direct, in_order_part_bytes=MOST),
            replace(direct, in_order_part_bytes=0),
        )
        circulant, ring = race(
            "all_reduce", replace(blocks, block_bytes=MOST), replace(blocks, block_bytes=0)
        )
        limit = crossing(sizes, in_order, at_once, n * found.in_order_part_bytes)
        found = replace(found, in_order_part_bytes=_part(limit, n))
        limit = crossing(sizes, circulant, ring, n * found.block_bytes)
        found = replace(found, block_bytes=_part(limit, n))
        shorter, longer = np.minimum(in_order, at_once), np.minimum(circulant, ring)
    else:
        shorter, longer = race("all_reduce", direct, blocks)
    found = replace(
        found, direct_up_to_bytes=crossing(sizes, shorter, longer, found.direct_up_to_bytes)
    )
    if n > 2:
        tree, chain = race(
            "broadcast",
            replace(DEFAULT, chain_part_bytes=MOST),
            replace(DEFAULT, chain_part_bytes=0),
        )
        limit = crossing(sizes, tree, chain, n * found.chain_part_bytes)
        found = replace(found, chain_part_bytes=_part(limit, n))
    one_step, rounds = race(
        "all_gather", replace(DEFAULT, many_ranks=MOST), replace(DEFAULT, many_ranks=0)
    )
    gain = float(np.sum(np.log(one_step) - np.log(rounds)))
    if abs(gain) > LEAST_GAIN:
        many = found.many_ranks
        found = replace(found, many_ranks=min(many, n) if gain > 0 else max(many, n + 1))
    return found


def _part(nbytes: int, n: int) -> int:
    """Returns the least number of bytes that n times is not below this one."""
    return -(-nbytes // n)


def crossing(sizes: Sequence[int], shorter: Array, longer: Array, default: int) -> int:
    """Returns the size up to which the algorithm for shorter arrays is to be used.

    Args:
        sizes: The sizes, in ascending order.
        shorter: The times of that algorithm, one for each size.
        longer: The times of the algorithm for longer arrays.
        default: The default threshold, which is kept if another one gains little.

    >>> crossing([1, 4, 16], np.array([1.0, 1.0, 4.0]), np.array([2.0, 2.0, 2.0]), 100)
    4
    >>> crossing([1, 4, 16], np.array([1.0, 1.0, 1.0]), np.array([2.0, 2.0, 2.0]), 100)
    100
    """
    logs = np.log(shorter), np.log(longer)
    costs = [logs[0][:k].sum() + logs[1][k:].sum() for k in range(len(sizes) + 1)]
    now, best = sum(size <= default for size in sizes), int(np.argmin(costs))
    if costs[now] - costs[best] <= LEAST_GAIN:
        return default
    return 0 if best == 0 else sizes[best - 1]


def _race(
    parent: ProcessGroup,
    sizes: Sequence[int],
    repeats: int,
    verb: str,
    first: Thresholds,
    second: Thresholds,
) -> tuple[Array, Array]:
    """Returns the seconds of the slowest rank, for each size, with two sets of thresholds.

    Args:
        parent: The group whose ranks run the race.
        sizes: The bytes of the arrays.
        repeats: The number of times that each algorithm runs on each size.
        verb: The verb.
        first: The thresholds of the first algorithm.
        second: The thresholds of the second algorithm.
    """
    groups = [new_group(list(parent.ranks), thresholds=each) for each in (first, second)]
    # The first run of each connects the ranks and touches the memory; it does not count.
    times = np.zeros((2, len(sizes), repeats + 1))
    for i, size in enumerate(sizes):
        array = np.zeros(size // 8)
        for j in range(repeats + 1):
            for k, group in enumerate(groups):
                barrier(group)
                began = time.perf_counter()
                _VERBS[verb](array, group)
                times[k, i, j] = time.perf_counter() - began
    all_reduce(times, ReduceOp.MAX, parent)
    for group in groups:
        destroy_process_group(group)
    medians = np.median(times[:, :, 1:], axis=2)
    return medians[0], medians[1]


_VERBS: Final[dict[str, Callable[[Array, ProcessGroup], Any]]] = {
    "all_reduce": lambda array, group: all_reduce(array, ReduceOp.SUM, group),
    "broadcast": lambda array, group: broadcast(array, group.ranks[0], group),
    "all_gather": lambda array, group: all_gather(array, group=group),
}
