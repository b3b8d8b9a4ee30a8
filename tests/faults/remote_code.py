"""Functions that the workers of these tests call on one another; each process has its own gates."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from telegrad import dist_autograd, rpc
from telegrad.autograd import Tensor, tensor
from tests.faults.outcome import Failure, failure_of

LIMIT = 40.0

_gates: dict[str, threading.Event] = {}
_gates_lock = threading.Lock()


def gate(name: str) -> threading.Event:
    with _gates_lock:
        return _gates.setdefault(name, threading.Event())


def hold(name: str) -> str:
    """Blocks until it is released, in a wait that is not telegrad's."""
    gate(f"{name} entered").set()
    assert gate(name).wait(LIMIT), f"nobody released {name!r}"
    return name


def release(name: str) -> None:
    gate(name).set()


def entered(name: str) -> None:
    """Returns when somebody is held here."""
    assert gate(f"{name} entered").wait(LIMIT), f"nobody is held at {name!r}"


def process_id() -> int:
    return os.getpid()


def who() -> str:
    return rpc.get_worker_info().name


def echo(value: Any) -> Any:
    return value


def add(x: int, y: int) -> int:
    return x + y


def double(x: Tensor) -> Tensor:
    return x * 2.0


def vector() -> Tensor:
    return tensor(np.arange(3.0), requires_grad=True)


def call_everybody() -> list[str]:
    """Calls each living worker, this one included."""
    return [rpc.rpc_sync(info, who, timeout=20.0) for info in rpc.get_worker_infos()]


def gradient_over(to: str) -> list[float]:
    """Takes a gradient through a worker: a whole context, from the first call to its end."""
    x = vector()
    with dist_autograd.context() as context_id:
        loss = rpc.rpc_sync(to, double, (x,)).sum()
        dist_autograd.backward(context_id, [loss], timeout=20.0)
        return [float(each) for each in dist_autograd.get_gradients(context_id)[x].data]


def waits_for(to: str, name: str) -> Failure:
    """Waits without a deadline for a function that somebody else must end."""
    return failure_of(lambda: rpc.rpc_sync(to, hold, (name,), timeout=math.inf))


def in_background(name: str, func: Callable[..., Failure], *args: Any) -> None:
    """Keeps what a function finds until `found` asks for it."""

    def run() -> None:
        _found[name] = func(*args)
        gate(f"{name} found").set()

    threading.Thread(target=run, daemon=True).start()


def found(name: str) -> Failure:
    assert gate(f"{name} found").wait(LIMIT), f"{name!r} still waits"
    return _found[name]


_found: dict[str, Failure] = {}


def leave() -> float:
    """Shuts down together with the others; returns the seconds that it took."""
    return failure_of(rpc.shutdown).seconds


def calls_lost(to: str) -> Failure:
    return failure_of(lambda: rpc.rpc_sync(to, who))


def leaves_with_a_call_in_flight(to: str, name: str) -> Failure:
    """Begins to shut down while a call is not answered yet; returns how the call ended."""
    future = rpc.rpc_async(to, hold, (name,), timeout=math.inf)
    release("leaving")
    rpc.shutdown()
    return failure_of(future.wait)
