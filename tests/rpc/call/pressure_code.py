"""Functions that the tests of back-pressure call on other workers."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

from telegrad import rpc
from tests.rpc import remote_code

Bytes = npt.NDArray[np.uint8]
gates = remote_code.gates

MIB = 2**20


class Meter:
    """Writes down what a worker held while it served; all workers are one process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.order: list[int] = []
        self.inside = 0
        self.most_inside = 0
        self.most_bytes = 0
        self.batch: list[rpc.Future[int]] = []
        self.kept: list[rpc.RRef[Store]] = []
        self.came = threading.Condition(self.lock)

    def begin(self) -> None:
        self.__init__()  # type: ignore[misc]

    def enter(self, number: int) -> None:
        held = rpc.statistics().admitted_bytes
        with self.lock:
            self.order.append(number)
            self.inside += 1
            self.most_inside = max(self.most_inside, self.inside)
            self.most_bytes = max(self.most_bytes, held)
            self.came.notify_all()

    def leave(self) -> None:
        with self.lock:
            self.inside -= 1


meter = Meter()


def megabytes(count: float, number: int = 0) -> Bytes:
    return np.full(int(count * MIB), number, dtype=np.uint8)


def push(array: Bytes, gate: str = "") -> int:
    """Takes an array, and holds it until a gate is open."""
    meter.enter(int(array[0]))
    if gate:
        assert gates(gate).wait(30)
    meter.leave()
    return int(array.sum(dtype=np.int64))


def swap(array: Bytes) -> Bytes:
    return array + 1


def fail_with(array: Bytes) -> None:
    raise remote_code.CustomError(f"refused {array.nbytes} bytes", code=1)


def relay(array: Bytes, path: list[str]) -> int:
    """Keeps what it was admitted with while it calls the next worker with as much."""
    if not path:
        return int(array.nbytes)
    nested = rpc.rpc_async(path[0], relay, (array, path[1:]))
    answered = threading.Event()
    nested.add_done_callback(lambda _: answered.set())
    assert answered.wait(30)  # which telegrad does not see
    return int(array.nbytes) + nested.value()


@rpc.functions.async_execution
def push_to_batch(array: Bytes, size: int) -> rpc.Future[int]:
    """Answered when the whole batch is there."""
    future: rpc.Future[int] = rpc.Future()
    with meter.lock:
        meter.batch.append(future)
        full = meter.batch if len(meter.batch) == size else []
    for each in full:
        each.set_result(len(full))
    return future


async def async_push_to_batch(array: Bytes, size: int) -> int:
    return await push_to_batch(array, size)


def waiting_push_to_batch(array: Bytes, size: int) -> int:
    return push_to_batch(array, size).wait()


def unseen_push_to_batch(array: Bytes, size: int) -> int:
    """Waits in a way that telegrad cannot see."""
    with meter.came:
        meter.order.append(int(array[0]))
        meter.came.notify_all()
        assert meter.came.wait_for(lambda: len(meter.order) >= size, 30)
    return size


class Store:
    def __init__(self, array: Bytes) -> None:
        self.array = array

    def add(self, array: Bytes) -> int:
        self.array = self.array + array
        return int(self.array[0])


def keep(rref: rpc.RRef[Store]) -> None:
    meter.kept.append(rref)
