"""Functions that the workers of these tests call on one another; each process has its own doors."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from telegrad import rpc
from telegrad.autograd import Function, FunctionContext, Tensor
from telegrad.nn import Parameter
from telegrad.optim import Optimizer, State
from telegrad.types import Array

LIMIT = 30.0


class Doors:
    """Where calls are held until a test opens."""

    def __init__(self) -> None:
        self.open = threading.Event()

    def begin(self) -> None:
        """Shuts the door; for a test that runs in this process."""
        self.open = threading.Event()


doors = Doors()


def hold() -> str:
    """Blocks until the door is opened, in a wait that is not telegrad's."""
    assert doors.open.wait(LIMIT), "nobody opened the door"
    return who()


def held_items() -> Iterator[str]:
    """A stream whose first item does not come."""
    yield hold()


class HeldBackwards(Function):
    """Its backward rule does not end by itself."""

    @staticmethod
    def forward(ctx: FunctionContext, x: Any) -> Any:
        return x * 1.0

    @staticmethod
    def backward(ctx: FunctionContext, gradient: Any) -> Any:
        hold()
        return gradient


def held_backwards(x: Tensor) -> Tensor:
    held: Tensor = HeldBackwards.apply(x)
    return held


class Weight:
    """A parameter, and what is computed with it."""

    def __init__(self) -> None:
        self.weight = Parameter(np.ones(3))

    def parameter(self) -> rpc.RRef[Parameter]:
        return rpc.RRef(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class HeldOptimizer(Optimizer):
    """Its steps do not end by themselves."""

    def update(self, parameter: Array, gradient: Array, state: State) -> tuple[Array, State]:
        hold()
        return parameter, state


def who() -> str:
    return rpc.get_worker_info().name


def process_id() -> int:
    return os.getpid()


def size_and_last(array: npt.NDArray[np.uint8]) -> tuple[int, int]:
    """How many there are, and the one that comes last."""
    return array.size, int(array[-1])
