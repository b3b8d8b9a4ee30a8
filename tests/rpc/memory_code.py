"""The program of workers of which one may have only so much memory (`ulimit -v`)."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from telegrad import collectives, rpc

MIB = 2**20
SPARE = 48 * MIB  # that the limited worker has for messages, beside the arrays that fail
LARGE = 192 * MIB  # more than the C library ever keeps for later


def limit() -> None:
    """Lets this process have no more memory than it has, but for SPARE."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + SPARE,) * 2)


def echo(value: Any) -> Any:
    return value


def make(size: int) -> np.ndarray[Any, Any]:
    return np.zeros(size, np.uint8)


def items() -> Iterator[np.ndarray[Any, Any]]:
    yield make(1)
    yield make(LARGE)


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
