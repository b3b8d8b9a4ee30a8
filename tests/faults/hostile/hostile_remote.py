"""What the workers of the hostile cases call on one another: it stops in the middle and says so."""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from telegrad import rpc
from telegrad.autograd import Gradient, Tensor
from telegrad.nn import Linear
from telegrad.optim import SGD
from tests.faults.outcome import Failure, name_of_class
from tests.faults.remote_code import LIMIT, gate

LOOK = 0.02  # seconds between two looks at whether a held call is still wanted

_nested: dict[str, Failure] = {}


def hold(name: str) -> str:
    """Blocks until it is released; notes it when nobody wants its value any more.

    It goes on then, as a thread does: another worker may still wait for the same value, and would
    have it too early.
    """
    call = rpc.current_call()
    released = gate(name)
    gate(f"{name} entered").set()
    for _ in range(int(LIMIT / LOOK)):
        if released.wait(LOOK):
            return name
        if call is not None and call.cancelled:
            gate(f"{name} cancelled").set()
    raise AssertionError(f"nobody released {name!r}")


@contextmanager
def noted(name: str) -> Iterator[None]:
    """Keeps how a wait inside a served call ended: if its worker is given up nobody else hears."""
    try:
        yield
    except BaseException as error:
        _nested[name] = Failure(name_of_class(type(error)), str(error), [], {}, 0.0)
        gate(f"{name} nested").set()
        raise


def nested_failure(name: str) -> Failure:
    assert gate(f"{name} nested").wait(LIMIT), f"{name!r} still waits"
    return _nested[name]


# -- functions of every kind that wait for the owner -----------------------------------------------


def relay(name: str) -> str:
    """A plain function that waits in a call."""
    with noted(name):
        return rpc.rpc_sync("owner", hold, (name,), timeout=math.inf)


async def relay_on_the_loop(name: str) -> str:
    with noted(name):
        return await rpc.rpc_async("owner", hold, (name,), timeout=math.inf)


async def relay_in_a_thread(name: str) -> str:
    return await rpc.to_thread(relay, name)


@rpc.functions.async_execution
def relay_by_future(name: str) -> rpc.Future[str]:
    return rpc.rpc_async("owner", hold, (name,), timeout=math.inf)


def fetches(rref: rpc.RRef[Any], name: str) -> str:
    """Waits for the value of an argument, which lives on another worker."""
    gate(f"{name} fetching").set()
    with noted(name):
        return str(rref.to_here(timeout=math.inf))


def calls_method(rref: rpc.RRef[Held], name: str) -> str:
    gate(f"{name} fetching").set()
    with noted(name):
        return rref.rpc_sync(timeout=math.inf).hold(name)


def local(rref: rpc.RRef[Any], name: str) -> str:
    """Waits at the owner for a value that is being made."""
    gate(f"{name} fetching").set()
    return str(rref.local_value())


def keeps(rrefs: list[rpc.RRef[Any]], name: str) -> None:
    """Takes references that its caller hands on."""
    _kept[name] = rrefs
    gate(f"{name} kept").set()


def kept(name: str) -> rpc.RRef[Any]:
    name, _, _ = name.partition(" ")
    assert gate(f"{name} kept").wait(LIMIT), f"{name!r} was not handed on"
    return _kept[name][0]


_kept: dict[str, list[rpc.RRef[Any]]] = {}


# -- objects ---------------------------------------------------------------------------------------


class Held:
    """Its method and its property stop in the middle."""

    def __init__(self, name: str) -> None:
        self._name = name

    def hold(self, name: str) -> str:
        return hold(name)

    @property
    def held(self) -> str:
        return hold(self._name)


class HeldModule(Linear):
    """A module that stops in the middle of one of its methods, or while it is made."""

    def __init__(self, where: str, name: str) -> None:
        super().__init__(2, 2)
        self._where, self._held = where, name
        self._stop("__init__")

    def _stop(self, where: str) -> None:
        if where == self._where:
            hold(self._held)


def _stopping(where: str) -> Callable[..., Any]:
    """Returns a method of `Linear` that stops first, if it is the one to stop in."""
    method = getattr(Linear, where)

    @functools.wraps(method)
    def stopping(module: HeldModule, *args: Any, **kwargs: Any) -> Any:
        module._stop(where)
        return method(module, *args, **kwargs)

    return stopping


for _where in (
    *("forward", "parameters", "state_dict", "state_shapes", "load_state_dict"),
    *("train", "to", "zero_grad", "requires_grad_"),
):
    setattr(HeldModule, _where, _stopping(_where))


class HeldOptimizer(SGD):
    """An optimizer that stops in the middle: while it is made, or of a step."""

    def __init__(self, params: Any, where: str, name: str) -> None:
        super().__init__(params, lr=0.1)
        self._where, self._held = where, name
        self._stop("__init__")

    def _stop(self, where: str) -> None:
        if where == self._where:
            hold(self._held)

    def apply(
        self, gradients: Mapping[Tensor, Gradient], *, skip: Any = False, scale: Any = 1.0
    ) -> None:
        self._stop("apply")
        super().apply(gradients, skip=skip, scale=scale)


# -- streams ---------------------------------------------------------------------------------------


def one_and_no_more(name: str) -> Iterator[int]:
    """Yields once; the second item does not come."""
    yield 1
    hold(name)
    yield 2


async def one_and_no_more_on_the_loop(name: str) -> AsyncIterator[int]:
    yield 1
    gate(f"{name} entered").set()
    try:
        while not gate(name).is_set():  # noqa: ASYNC110 - another thread sets it
            await asyncio.sleep(LOOK)
    except BaseException:
        gate(f"{name} cancelled").set()
        raise
    yield 2


def without_end(name: str) -> Iterator[Any]:
    """Yields until nobody takes more: it rests there, and is closed there."""
    gate(f"{name} entered").set()
    try:
        while True:
            yield np.zeros(1000)
    finally:
        gate(f"{name} cancelled").set()
