"""Errors that a GPU finds in its data, and that the host raises when it waits for the GPU anyway.

    GPU    writes two numbers to a place in host memory, if something is wrong
    host   reads the places after each wait, which costs no further one, and raises

Each pair of numbers is read and cleared while a GPU may write its second one. That one is then
lost, or reported by itself at the next wait; the first error is raised in any case.

The places belong to the process, as the GPU's memory does: the code that waits need not be the code
that has started the work.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from typing import Any, Final, TypeAlias, final

import numpy as np

from telegrad.arrays.device import device_of
from telegrad.types import Array

Check: TypeAlias = Callable[[tuple[int, int], int], None]
"""A function that raises the error of two reported numbers, given the number that was allowed."""


@final
class _Places:
    """The places by kind of array, device, check and allowed number; each is allocated once."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._found: dict[tuple[type, str, Check, int], tuple[Array, Array]] = {}

    def of(self, like: Array, check: Check, allowed: int) -> Array:
        """Returns two integers of pinned memory as an array of the GPU of another array."""
        device = device_of(like)
        with self._lock:
            key = type(like), device, check, allowed
            if key not in self._found:
                self._found[key] = _pinned_pair(int(device.partition(":")[2]))
            return self._found[key][1]

    def take(self) -> tuple[str, Check, int, tuple[int, int]] | None:
        """Returns the numbers of one place that has some, and sets them to zero."""
        with self._lock:
            for (_, device, check, allowed), (here, _) in self._found.items():
                if here.any():
                    low, high = here.tolist()
                    here[...] = 0
                    return device, check, allowed, (low, high)
        return None

    def __bool__(self) -> bool:
        return bool(self._found)


_PLACES: Final = _Places()


def _pinned_pair(number: int) -> tuple[Array, Array]:
    # A GPU reads and writes pinned memory at the address that it has on the host.
    cupy: Any = importlib.import_module("cupy")
    with cupy.cuda.Device(number):
        memory = cupy.cuda.alloc_pinned_memory(16)
        here: Array = np.frombuffer(memory, np.int64, 2)
        here[...] = 0
        unowned = cupy.cuda.UnownedMemory(memory.ptr, 16, memory, number)
        there: Array = cupy.ndarray((2,), np.int64, cupy.cuda.MemoryPointer(unowned, 0))
    return here, there


def report_ends(values: Array, check: Check, allowed: int) -> None:
    """Makes the host call `check((low, high), allowed)` after a later wait if one of both is not 0.

    This does not wait. An error of earlier work that has arrived is raised here.

    Args:
        values: Integers on a GPU, at least one; `low` is the smallest and `high` the largest.
        check: A function that raises if `low` and `high` are wrong.
        allowed: The second argument of `check`.
    """
    raise_reported()
    cupy: Any = importlib.import_module("cupy")
    ends = cupy.stack((values.min(), values.max()))
    cupy.copyto(_PLACES.of(values, check, allowed), ends, where=ends != 0)


def report_place(like: Array, check: Check, allowed: int) -> Array:
    """Returns two integers, `low` and `high`, into which a kernel on the GPU of `like` writes.

    The host calls `check((low, high), allowed)` after a later wait if one of both is not 0. An
    error of earlier work that has arrived is raised here.
    """
    raise_reported()
    return _PLACES.of(like, check, allowed)


def raise_reported() -> None:
    """Raises the error that GPUs have reported, if there is one. Call it after a wait.

    Raises:
        Exception: The error of `check`, with a note that names the GPU.
    """
    found = _PLACES.take() if _PLACES else None
    if found is None:
        return
    device, check, allowed, ends = found
    try:
        check(ends, allowed)
    except Exception as error:
        error.add_note(f"found by {device} in work that was started before this call")
        raise
