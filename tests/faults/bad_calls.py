"""Calls that cannot work, by name: each runs on worker0 and asks for something of worker1."""

from __future__ import annotations

import functools
import gc
import os
import pickle
import sys
import threading
import types
import uuid
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from telegrad import nn, rpc
from tests.faults import remote_code
from tests.faults.outcome import Failure, failure_of
from tests.faults.remote_code import echo, who

TO = "worker1"


class Unsendable:
    """Nothing says how it travels."""


class CustomError(Exception):
    def __init__(self, message: str, *, code: int) -> None:
        super().__init__(message)
        self.code = code


def fails(message: str) -> None:
    raise CustomError(message, code=7)


def fails_with_a_class_of_its_own() -> None:
    raise type("NobodyHasItError", (Exception,), {"__module__": "nowhere"})("only here")


def leaves_the_process() -> None:
    sys.exit(3)


def interrupts() -> None:
    raise KeyboardInterrupt("not the caller's")


def gives_something_unsendable() -> list[Unsendable]:
    return [Unsendable()]


async def blocks_its_loop(to: str) -> str:
    return rpc.rpc_sync(to, who)


async def waits_on_its_loop(to: str) -> str:
    name = str(uuid.uuid4())
    future = rpc.rpc_async(to, remote_code.hold, (name,))  # not done before it is waited for
    try:
        return future.wait()
    finally:
        rpc.rpc_async(to, remote_code.release, (name,))


def _private() -> str:
    return "private"


class Model:
    def forward(self, x: int) -> int:
        return x


def sync(func: Any, args: Any = (), to: Any = TO, **options: Any) -> Any:
    return rpc.rpc_sync(to, func, args, **options)


def only_here() -> Any:
    """Calls a function of a module that the callee has not imported."""
    module = types.ModuleType("only_here")
    exec("def f():\n    return 1", vars(module))
    sys.modules["only_here"] = module
    try:
        return sync(vars(module)["f"])
    finally:
        del sys.modules["only_here"]


def newer_here() -> Any:
    """Calls a function that the callee's version of a module does not have."""
    exec("def newer():\n    return 1", vars(remote_code))
    try:
        return sync(vars(remote_code)["newer"])
    finally:
        del vars(remote_code)["newer"]


def contains_itself() -> Any:
    value: list[Any] = []
    value.append(value)
    return sync(echo, (value,))


CALLS: dict[str, Callable[[], object]] = {
    # whom
    "unknown name": lambda: sync(who, to="ps"),
    "unknown rank": lambda: sync(who, to=7),
    "an older incarnation": lambda: sync(who, to=rpc.WorkerInfo("worker1", 1, 0)),
    "another incarnation": lambda: sync(who, to=rpc.WorkerInfo("worker1", 1, 2**40)),
    "to=True": lambda: sync(who, to=True),
    "to=None": lambda: sync(who, to=None),
    # in which form
    "args=(x)": lambda: sync(echo, 3),
    "args=(array)": lambda: sync(echo, np.zeros(3)),
    "args='text'": lambda: sync(echo, "text"),
    "timeout=0": lambda: sync(who, timeout=0),
    "timeout=-1": lambda: sync(who, timeout=-1),
    "timeout=nan": lambda: sync(who, timeout=float("nan")),
    "timeout=True": lambda: sync(who, timeout=True),
    "no function": lambda: sync("who"),
    # a function without a name
    "lambda": lambda: sync(lambda: 3),
    "closure": lambda: sync(_closure()),
    "partial": lambda: sync(functools.partial(echo, 3)),
    "bound method": lambda: sync(Model().forward, (3,)),
    "lambda as an argument": lambda: sync(echo, ([lambda: 3],)),
    # a function that the callee does not have
    "module not there": only_here,
    "function not there": newer_here,
    # or does not allow
    "os.system": lambda: sync(os.system, ("exit 3",)),
    "pickle.loads": lambda: sync(pickle.loads, (b"N.",)),
    "private": lambda: sync(_private),
    "rpc.shutdown": lambda: sync(rpc.shutdown),
    # values that cannot travel
    "unsendable": lambda: sync(echo, (1, {"lr": [Unsendable()]})),
    "unsendable by name": lambda: sync(echo, (), kwargs={"value": Unsendable()}),
    "lock": lambda: sync(echo, (threading.Lock(),)),
    "generator": lambda: sync(echo, ((each for each in range(3)),)),
    "objects": lambda: sync(echo, (np.array([Unsendable()]),)),
    "contains itself": contains_itself,
    "Module": lambda: sync(echo, ({"model": nn.Linear(2, 2)},)),
    "unsendable result": lambda: sync(gives_something_unsendable),
    # what the callee raises
    "exception": lambda: sync(fails, ("no such thing",)),
    "exception unknown here": lambda: sync(fails_with_a_class_of_its_own),
    "sys.exit": lambda: sync(leaves_the_process),
    "KeyboardInterrupt": lambda: sync(interrupts),
    # on a loop
    "rpc_sync in async def": lambda: sync(blocks_its_loop, ("worker0",)),
    "wait in async def": lambda: sync(waits_on_its_loop, ("worker0",)),
    # twice
    "second init_rpc": lambda: rpc.init_rpc("second"),
}


def _closure() -> Callable[[], int]:
    x = 3

    def inner() -> int:
        return x

    return inner


def attempt(name: str) -> Failure:
    """Makes one of the calls and tells what came of it."""
    return failure_of(CALLS[name])


def kept_alive_by_failures() -> list[str]:
    """Makes each call with garbage collection off; returns those whose errors keep locals alive."""

    def attempt_beside_a_local(name: str) -> weakref.ref[object]:
        local = np.zeros(3)
        attempt(name)
        return weakref.ref(local)

    gc.collect()
    gc.disable()
    try:
        return [name for name in CALLS if attempt_beside_a_local(name)() is not None]
    finally:
        gc.enable()


def too_long(name: str, timeout: float) -> Failure:
    return failure_of(lambda: sync(remote_code.hold, (name,), timeout=timeout))
