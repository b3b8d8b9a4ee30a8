"""How functions are told apart, at the callee, by what they declare."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

import pytest

from telegrad.errors import DecodeError
from telegrad.rpc.call.user_call import CallMode, mode_of, read_arguments
from telegrad.rpc.functions import async_execution
from telegrad.rpc.future.future import Future


def plain() -> None:
    pass


async def coroutine() -> None:
    pass


async def items() -> Any:
    yield 1


@async_execution
def later() -> Future[int]:
    return Future()


@functools.wraps(later)
async def wraps_later() -> None:
    pass


@functools.wraps(plain)
def wraps_plain() -> None:
    pass


@functools.wraps(coroutine)
def wraps_coroutine() -> Any:
    return coroutine()


class WithCall:
    async def __call__(self) -> None:
        pass

    async def method(self) -> None:
        pass

    def usual(self) -> None:
        pass


def mark(func: Any) -> Any:
    func.mark = "any other"
    return func


MODES: list[tuple[Callable[..., Any], CallMode]] = [
    (plain, CallMode.PLAIN),
    (mark(lambda: None), CallMode.PLAIN),
    (wraps_plain, CallMode.PLAIN),
    (wraps_coroutine, CallMode.PLAIN),
    (items, CallMode.PLAIN),
    (len, CallMode.PLAIN),
    (WithCall, CallMode.PLAIN),
    (WithCall().usual, CallMode.PLAIN),
    (coroutine, CallMode.COROUTINE),
    (wraps_later, CallMode.COROUTINE),
    (WithCall(), CallMode.COROUTINE),
    (WithCall().method, CallMode.COROUTINE),
    (functools.partial(plain), CallMode.PLAIN),
    (later, CallMode.FUTURE),
]


@pytest.mark.parametrize(("func", "mode"), MODES)
def test_the_mode_is_what_a_function_declares(func: Callable[..., Any], mode: CallMode) -> None:
    assert mode_of(func) is mode
    assert inspect.iscoroutinefunction(func) <= (mode is CallMode.COROUTINE)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="of Python 3.12")
def test_a_function_that_is_marked_as_one_of_coroutines() -> None:
    as_coroutine: Any = vars(inspect)["markcoroutinefunction"]
    assert mode_of(as_coroutine(lambda: coroutine())) is CallMode.COROUTINE


def test_arguments_are_read_as_they_were_sent() -> None:
    good: dict[str, Any] = {"func": "m:f", "args": [1], "kwargs": {"b": 2}}
    assert read_arguments(good, "m:f") == ([1], {"b": 2})
    wrongs: list[object] = [
        None,
        [],
        {},
        {**good, "func": "m:g"},
        {**good, "args": (1,)},
        {**good, "kwargs": []},
        {"func": "m:f", "args": []},
        {"func": "m:f", "kwargs": {}},
    ]
    for wrong in wrongs:
        with pytest.raises(DecodeError, match="in this order"):
            read_arguments(wrong, "m:f")
