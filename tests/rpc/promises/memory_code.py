"""The program of workers of which one may have only so much memory (`ulimit -v`)."""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from telegrad import collectives, rpc
from telegrad.errors import PoolExhaustedError

MIB = 2**20
SPARE = 48 * MIB  # that the limited worker has for messages, beside the arrays that fail
LARGE = 192 * MIB  # more than the C library ever keeps for later


def limit() -> None:
    """Lets this process have no more memory than it has, but for SPARE."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + SPARE,) * 2)


def limit_threads() -> None:
    """Lets this process start no further thread: one takes more memory than it may have."""
    limit()
    threading.stack_size(2 * SPARE)


def echo(value: Any) -> Any:
    return value


def make(size: int) -> np.ndarray[Any, Any]:
    return np.zeros(size, np.uint8)


def items() -> Iterator[np.ndarray[Any, Any]]:
    yield make(1)
    yield make(LARGE)


def numbers(count: int) -> Iterator[int]:
    yield from range(count)


def warm_up(to: str) -> None:
    """Starts the threads that large arrays take, and opens their lanes."""
    rpc.rpc_sync(to, echo, (make(MIB),))


def send(to: str, size: int) -> int:
    return len(rpc.rpc_sync(to, echo, (make(size),)))


def fetch(to: str, size: int) -> int:
    return len(rpc.rpc_sync(to, make, (size,)))


def read(to: str) -> list[int]:
    """Returns the sizes of the items that came before the error of the stream, which it raises."""
    return [len(each) for each in rpc.stream(to, items, ())]


def join() -> None:
    collectives.init_process_group()


def broadcast(size: int) -> str:
    """Returns the size of an array of rank 0 as it came, or the error, in a group of its own."""
    group = collectives.new_group([0, 1])
    values: list[Any] = [make(size) if group.rank == 0 else None]
    try:
        collectives.broadcast_object_list(values, 0, group)
        collectives.barrier(group)  # the sender may be through before the receiver has failed
    except MemoryError as error:
        return str(error)
    return str(len(values[0]))


def nest(to: str) -> str:
    """Returns the error of a call of a worker whose one thread waits for it, and starts no other."""
    try:
        rpc.rpc_sync(to, limit_and_ask, ("worker0", to))
    except PoolExhaustedError as error:
        return f"{error} after which it said {rpc.rpc_sync(to, echo, ('yes',))}"
    return ""


def limit_and_ask(back: str, to: str) -> None:
    limit_threads()
    rpc.rpc_sync(back, ask, (to,))


def ask(to: str) -> None:
    rpc.rpc_sync(to, echo, (1,))
