"""A load that never ends by itself, and what is left of it; both run on workers of a cluster."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from telegrad import rpc
from telegrad.errors import CallCancelledError
from telegrad.rpc.seams import current_agent
from telegrad.testing.leaks import open_descriptors, wait_until_gone
from telegrad.transport import shared_loop_thread

OTHER = "worker1"
AT_ONCE = 50
ITEMS = 500
MESSAGES = 100


@dataclass
class Sample:
    """What one process holds at one moment.

    Attributes:
        objects: Tracked by the garbage collector, by class.
        tasks: On the loop of the sockets.
        threads: Alive.
        descriptors: Open.
        resident: Bytes of memory.
    """

    objects: dict[str, int]
    tasks: int
    threads: int
    descriptors: int
    resident: int


def sample() -> Sample:
    """Looks at this process, once what was under way has ended."""
    gc.collect()
    counts = Counter(
        f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects()
    )
    loop = shared_loop_thread().loop
    ctypes.CDLL(None).malloc_trim(0)  # what is freed and merely not given back is no growth
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Sample(
        objects=dict(counts),
        tasks=len(asyncio.all_tasks(loop)),
        threads=threading.active_count(),
        descriptors=len(open_descriptors()),
        resident=pages * os.sysconf("SC_PAGE_SIZE"),
    )


def left_over() -> list[str]:
    """What this worker still has of calls and references."""
    now = rpc.statistics()
    counted = {
        "pending calls": now.pending_calls,
        "waiting calls": now.waiting_calls,
        "owned RRefs": now.owned_rrefs,
        "RRefs to others' values": now.user_rrefs,
        # Given back from time to time: that of a creation whose RRef ended first is one.
        "replies that nobody read": current_agent().calling._unread.qsize(),
    }
    return [f"{count} {what}" for what, count in counted.items() if count]


def not_receipted() -> list[str]:
    """Whether this process keeps messages that arrived; the next heartbeat tells it so.

    There may be none or thousands of them at the end of a round: a megabyte that is no growth.
    """
    kept = sum(type(each).__qualname__ == "_Posted" for each in gc.get_objects())
    return [f"{kept} messages"] if kept > MESSAGES else []


POOL = 4  # threads, for RpcOptions.num_threads
_all_are_here = threading.Barrier(POOL)


def meet() -> None:
    """Holds a thread of the pool until every other one is held here, too."""
    _all_are_here.wait(60.0)


def fill_pools() -> None:
    """Has every thread started that a pool keeps, in both processes."""
    rpc.wait_all([rpc.rpc_async(to, meet) for to in ("worker0", OTHER) for _ in range(POOL)])


def put_under_load(kind: str, operations: int, rounds: int) -> list[tuple[Sample, Sample]]:
    """Runs operations in rounds; returns what both workers held after each of them."""
    samples = []
    for _ in range(rounds):
        LOADS[kind](operations // rounds)
        wait_until_gone("what was called", left_over, within=30)
        wait_until_gone("what was called there", lambda: rpc.rpc_sync(OTHER, left_over), within=30)
        wait_until_gone("messages without a receipt", not_receipted, within=30)
        wait_until_gone(
            "messages without a receipt there",
            lambda: rpc.rpc_sync(OTHER, not_receipted),
            within=30,
        )
        samples.append((sample(), rpc.rpc_sync(OTHER, sample)))
    return samples


# -- calls ------------------------------------------------------------------------------------------


def double(value: object) -> object:
    if isinstance(value, str):
        raise KeyError(value)
    return value * 2  # type: ignore[operator]


async def double_async(value: int) -> int:
    await asyncio.sleep(0)
    return value * 2


def nested(value: int) -> int:
    return rpc.rpc_sync("worker0", triple, (value,))


def triple(value: int) -> int:
    return value * 3


def call(count: int) -> None:
    """Plain, coroutines, nested, with arrays, and some that fail."""
    array: npt.NDArray[np.float64] = np.arange(8.0)
    forms: list[tuple[Callable[..., object], object]] = [
        (double, 1),
        (double_async, 1),
        (nested, 1),
        (double, array),
        (double, "fails"),
    ]
    for _ in range(count // AT_ONCE):
        futures = [rpc.rpc_async(OTHER, *_call(forms[i % len(forms)])) for i in range(AT_ONCE)]
        done = rpc.collect_all(futures).wait()
        assert sum(future.exception() is not None for future in done) == AT_ONCE // len(forms)


def _call(form: tuple[Callable[..., object], object]) -> tuple[Callable[..., object], list[object]]:
    func, argument = form
    return func, [argument]


# -- references -------------------------------------------------------------------------------------


class Counter_:
    """Something to refer to."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, value: int) -> int:
        self.count += value
        return self.count


def use(rref: rpc.RRef[Counter_]) -> int:
    return rref.rpc_sync().add(2)


def refer(count: int) -> None:
    """Creates values there, uses them from both ends and by a method, and lets them go."""
    for _ in range(count // AT_ONCE):
        rrefs = [rpc.remote(OTHER, Counter_) for _ in range(AT_ONCE)]
        futures = [rref.rpc_async().add(1) for rref in rrefs[::5]]
        futures += [rpc.rpc_async(OTHER, use, (rref,)) for rref in rrefs[::5]]
        rpc.wait_all(futures)
        mine = rpc.RRef(Counter_())
        assert rpc.rpc_sync(OTHER, use, (mine,)) == 2


# -- cancellations ----------------------------------------------------------------------------------


async def sleep_long(value: int) -> int:
    await asyncio.sleep(600)
    return value


def cancel(count: int) -> None:
    """Cancels calls at every point of their way: some are not sent yet, some answered."""
    for _ in range(count // AT_ONCE):
        functions = [sleep_long, triple, nested]
        futures = [rpc.rpc_async(OTHER, functions[i % 3], (i,)) for i in range(AT_ONCE)]
        for future in futures:
            future.cancel()
        for future in futures:
            error = future.exception()
            if error is not None and not isinstance(error, CallCancelledError):
                raise error


# -- streams ----------------------------------------------------------------------------------------


def count_up(count: int) -> Iterator[int]:
    yield from range(count)


async def count_up_async(count: int) -> AsyncIterator[int]:
    for value in range(count):
        yield value


def stream(count: int) -> None:
    """Reads streams to their end, and of others only the half."""
    for number in range(count // ITEMS):
        func = count_up if number % 2 else count_up_async
        assert sum(1 for _ in rpc.stream(OTHER, func, (ITEMS,))) == ITEMS
        with rpc.stream(OTHER, func, (ITEMS,)) as left:
            next(iter(left))


LOADS: dict[str, Callable[[int], None]] = {
    "calls": call,
    "references": refer,
    "cancellations": cancel,
    "stream items": stream,
}
