"""What the tests of RRefs call, and how they look at what is left."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from telegrad import rpc
from telegrad.errors import (
    BlockingCallError,
)
from telegrad.rpc import RRef
from telegrad.rpc.rref.table import RRefRegistry
from telegrad.rpc.seams import current_agent
from telegrad.rpc.stream.reading import StreamReaders
from telegrad.rpc.stream.serving import StreamProducers
from telegrad.testing import Cluster
from telegrad.testing.leaks import wait_until_gone

N = 3

gates: dict[str, threading.Event] = {}


class GateError(Exception):
    """Raised by a creation; known to both ends."""


class Model:
    def __init__(self, size: int) -> None:
        self.weights = np.zeros(size)
        self.steps = 0

    def step(self, rate: float, *, times: int = 1) -> int:
        self.weights -= rate * times
        self.steps += times
        return self.steps

    def read(self) -> np.ndarray[Any, Any]:
        return self.weights

    def me(self) -> str:
        return rpc.get_worker_info().name

    def part(self) -> RRef[np.ndarray[Any, Any]]:
        return RRef(self.weights)

    def _secret(self) -> None: ...


def make_slowly(gate: str, value: Any) -> Any:
    gates[gate].wait(30)
    if value is None:
        raise GateError("the gate is shut")
    return value


async def make_soon(value: int) -> int:
    await asyncio.sleep(0)
    return value


def fail() -> None:
    raise GateError("no value here")


def read_value(rref: RRef[Any]) -> Any:
    return rref.to_here()


def tell_owner(rref: RRef[Any]) -> tuple[bool, str, str]:
    return rref.is_owner(), rref.owner_name(), rpc.get_worker_info().name


def same_object(first: RRef[Any], others: dict[str, list[RRef[Any]]]) -> bool:
    return all(other is first for other in others["again"])


def hand_on(rref: RRef[Any], path: list[str]) -> Any:
    if not path:
        return rref.to_here()
    return rpc.rpc_sync(path[0], hand_on, (rref, path[1:]))


def give_back(rref: Any) -> Any:
    return rref


def make_rref(value: Any) -> RRef[Any]:
    return RRef(value)


async def block_the_loop(rref: RRef[Any]) -> str:
    try:
        rref.to_here()
    except BlockingCallError as error:
        return str(error)
    return "did not raise"


async def await_it(rref: RRef[Any]) -> Any:
    return await rref


def registry(cluster: Cluster, r: int) -> RRefRegistry:
    return cluster.call(r, lambda: current_agent().attachments[RRefRegistry])


def drained(cluster: Cluster) -> None:
    """Waits until no worker owns or uses anything."""
    registries = [registry(cluster, r) for r in cluster.living]

    def left() -> list[str]:
        gc.collect()  # each time: a thread that just ends may still hold a frame
        return [
            f"{each.me.name}: {each.counts()} owned, used"
            for each in registries
            if any(each.counts())
        ]

    wait_until_gone("RRefs", left)


def closed(cluster: Cluster) -> None:
    """Waits until no worker owns or uses anything, and none has an end of a stream."""

    def left() -> list[str]:
        found = []
        for r in cluster.living:
            agent = cluster.call(r, current_agent)
            ends = len(agent.attachments[StreamReaders]), len(agent.attachments[StreamProducers])
            found += [f"worker{r}: {ends}"] * any(ends)
        return found

    wait_until_gone("streams", left)
    drained(cluster)


def confirmed(rref: RRef[Any]) -> None:
    """Waits until the owner's answer to the creation is here; that to a fetch may come before it."""
    wait_until_gone("creations", lambda: [] if rref.confirmed_by_owner() else [rref])


def on(cluster: Cluster, r: int, body: Callable[..., Any], *args: Any) -> Any:
    return cluster.call(r, body, *args)
