"""Every form of what is called, in every way to call it, to every form of a name."""

from __future__ import annotations

import functools
import math
import operator
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from telegrad import rpc
from telegrad.errors import (
    CallRefusedError,
    DecodeError,
    EncodeError,
    RemoteError,
    UnknownWorkerError,
)
from telegrad.rpc import seams
from telegrad.types import WorkerInfo
from tests.rpc.conftest import Job, MakeJob
from tests.rpc.verbs import form_code
from tests.rpc.verbs.form_code import Later, Machine, Outer, Place, Point, Threshold

OVER_PROCESSES_TOO = True

A, B = np.arange(4.0), np.ones(4)

# What is called, with what, and what comes back.
FORMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], Any]] = {
    "function": (form_code.plain, (1,), {}, 2),
    "function, keywords": (form_code.plain, (1,), {"y": 2, "times": 3}, 9),
    "function with a decorator": (form_code.wrapped, (1,), {}, 2),
    "async def": (form_code.coroutine, (1,), {"y": 2, "times": 3}, 9),
    "operator": (operator.add, (2, 3), {}, 5),
    "operator on an array": (operator.matmul, (A, B), {}, np.float64(6.0)),
    "ufunc": (np.add, (A, 1.0), {}, A + 1.0),
    "ufunc, keywords": (np.add, (A, 1.0), {"dtype": np.float32}, (A + 1.0).astype(np.float32)),
    "NumPy function": (np.concatenate, ([A, B],), {}, np.concatenate([A, B])),
    "NumPy function with a dtype": (np.zeros, ((2,), np.int8), {}, np.zeros(2, np.int8)),
    "NumPy linalg": (np.linalg.norm, (B,), {}, np.float64(2.0)),
    "NumPy fft": (np.fft.fft, (B,), {}, np.fft.fft(B)),
    "NumPy scalar type": (np.float32, (1.5,), {}, np.float32(1.5)),
    "builtin": (len, ([1, 2],), {}, 2),
    "math": (math.sqrt, (4.0,), {}, 2.0),
    "class": (Point, (1, 2), {}, Point(1, 2)),
    "class, keywords": (Point, (1,), {"y": 5}, Point(1, 5)),
    "class of Python": (complex, (1,), {"imag": 2}, 1 + 2j),
    "static method": (Point.static, (1,), {}, 2),
    "class method": (Point.build, (3,), {}, Point(3, 3)),
    "async static method": (Point.static_later, (1,), {}, 2),
    "async class method": (Point.build_later, (3,), {}, Point(3, 3)),
    "method of its class": (Point.norm, (Point(1, 2),), {}, 3),
    "bound method of a dataclass": (Point(1, 2).norm, (), {}, 3),
    "bound method with arguments": (Point(1, 2).moved_later, (3,), {"times": 2}, Point(7, 2)),
    "bound method, overridden": (Place(1, 2).norm, (), {}, -3),
    "bound method, inherited": (Place(1, 2).moved_later, (3,), {}, Place(4, 2)),
    "method of a class in a class": (Outer.Inner.deep, (4,), {}, -4),
    "async_execution": (form_code.sum_over, ("w2", 1, 2), {}, 3),
    "object that can be called, as an argument": (form_code.passes, (Threshold(1), 2), {}, True),
}


def check(form: str, found: Any, expected: Any) -> None:
    assert type(found) is type(expected), form
    if isinstance(expected, np.ndarray):
        np.testing.assert_array_equal(found, expected, form, strict=True)
    else:
        assert found == expected, form


@pytest.mark.parametrize("to", ["w1", "w0"], ids=["other", "self"])
def test_every_form_of_what_is_called(job: Job, to: str) -> None:
    with seams.use_agent(job.agents[0]):
        for form, (func, args, kwargs, expected) in FORMS.items():
            check(form, rpc.rpc_sync(to, func, args, kwargs), expected)
            check(form, rpc.rpc_async(to, func, list(args), kwargs or None).wait(), expected)
            check(form, rpc.remote(to, func, args, kwargs).to_here(), expected)
            check(form, rpc.gather([(to, func, args, kwargs)]).wait()[0], expected)


@pytest.mark.parametrize("rank", [1, 0], ids=["other", "self"])
def test_every_form_of_a_name(job: Job, rank: int) -> None:
    with seams.use_agent(job.agents[0]):
        info = rpc.get_worker_info(f"w{rank}")
        names: list[Any] = [f"w{rank}", rank, np.int64(rank), info, WorkerInfo(*vars_of(info))]
        for to in names:
            assert rpc.rpc_sync(to, form_code.where) == f"w{rank}"
            assert rpc.rpc_async(to, form_code.where).wait() == f"w{rank}"
            assert rpc.remote(to, form_code.where).owner() == info
        wrong: list[tuple[Any, type[Exception], str]] = [
            (True, TypeError, "to must be"),
            (1.0, TypeError, "to must be"),
            (None, TypeError, "to must be"),
            ("W1", UnknownWorkerError, "no worker 'W1'.*'w0'"),
            (3, UnknownWorkerError, "no worker 3"),
            (-1, UnknownWorkerError, "no worker -1"),
            (WorkerInfo("w1", 1, info.incarnation + 12345), UnknownWorkerError, "no worker"),
        ]
        for to, error, words in wrong:
            for verb in (rpc.rpc_sync, rpc.rpc_async, rpc.remote):
                with pytest.raises(error, match=words):
                    verb(to, form_code.where)


def vars_of(info: WorkerInfo) -> tuple[str, int, int]:
    return info.name, info.rank, info.incarnation


@pytest.mark.parametrize("to", ["w1", "w0"], ids=["other", "self"])
def test_methods_of_an_object_through_its_rref(job: Job, to: str) -> None:
    with seams.use_agent(job.agents[0]):
        machine: Any = rpc.remote(to, Machine, (5,))
        assert machine.rpc_sync().add(1) == 6
        assert machine.rpc_sync().add(1, times=4) == 10
        assert machine.rpc_async().add_later(1).wait() == 11
        assert machine.remote().add(1).to_here() == 12
        assert machine.rpc_sync().static(1) == 2
        assert machine.rpc_sync().kind() == "Machine"
        assert machine.rpc_sync()(8) == 20  # the object itself
        assert machine.rpc_async()(8).wait() == 20
        assert machine.remote()(8).to_here() == 20
        same = machine.remote().itself()
        assert same.rpc_sync().add(1) == 13
        later: Any = rpc.remote(to, Later)
        assert later.rpc_sync()(2) == 20
        function: Any = rpc.RRef(form_code.plain)
        assert function.rpc_sync()(1) == 2
        total: Any = rpc.remote(to, np.ones, ((3,),))
        assert total.rpc_sync().sum() == 3.0
        kind: Any = rpc.RRef(Point)
        assert kind.rpc_sync()(1, 2) == Point(1, 2)
        assert kind.rpc_sync().build(3) == Point(3, 3)


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "lambda": (lambda: 1, EncodeError, "is a lambda"),
    "partial": (functools.partial(form_code.plain, 1), EncodeError, "with args and kwargs"),
    "bound method": (Machine(1).add, EncodeError, r"rref\.rpc_sync\(\)\.add\(\.\.\.\)"),
    "bound method of what cannot travel": (
        Place(1, kept=Machine(1)).norm,
        EncodeError,
        r"args\[0\]\.kept",
    ),
    "object": (
        Machine(1),
        EncodeError,
        r"of type Machine.*Machine, \.\.\.\).*rref\.rpc_sync\(\)\(",
    ),
    "dataclass that can be called": (Threshold(1), EncodeError, r"rref\.rpc_sync\(\)\(\.\.\.\)"),
    "object of C": (operator.itemgetter(0), EncodeError, "of type itemgetter.*or send a function"),
    "method of a ufunc": (np.add.reduce, EncodeError, "in C, of a ufunc.*function of your own"),
    "method of a class in C": (dict.fromkeys, EncodeError, "in C, of dict.*function of your own"),
    "method of a text": (",".join, EncodeError, "in C, of a str.*function of your own"),
    "not callable": (3, TypeError, "func must be callable, not 3"),
}


def test_a_form_that_cannot_be_is_refused_before_anything_is_sent(job: Job) -> None:
    with seams.use_agent(job.agents[0]):
        sent = rpc.statistics().calls_sent
        for func, error, words in REFUSED.values():
            for verb in (rpc.rpc_sync, rpc.rpc_async, rpc.remote):
                with pytest.raises(error, match=words):
                    verb("w1", func)
        assert rpc.statistics().calls_sent == sent


def test_a_bound_method_is_no_argument(job: Job) -> None:
    words = r"args\[0\].*the object among its arguments"
    with seams.use_agent(job.agents[0]), pytest.raises(EncodeError, match=words):
        rpc.rpc_sync("w1", form_code.wrapped, (Point(1, 2).norm,))


def test_generators_are_refused_with_a_hint_at_streams_and_do_not_run(job: Job) -> None:
    with seams.use_agent(job.agents[0]):
        for func in (form_code.count_up, form_code.count_up_later):
            words = rf"{func.__name__} .*generator.*rpc\.stream\(to, func"
            with pytest.raises(EncodeError, match=words):
                rpc.rpc_sync("w1", func, (3,))
            with pytest.raises(EncodeError, match=words):
                rpc.rpc_async("w1", func, (3,)).wait()
        assert rpc.rpc_sync("w1", form_code.what_ran) == []


def test_a_coroutine_that_was_not_awaited_is_refused_with_advice(job: Job) -> None:
    with (
        seams.use_agent(job.agents[0]),
        pytest.raises(EncodeError, match="type coroutine; make what returns it async def"),
    ):
        rpc.rpc_sync("w1", form_code.makes_a_coroutine, (1,))


def test_functions_of_the_standard_library_are_the_callees_to_allow(make_job: MakeJob) -> None:
    job = make_job(2)
    foreign: list[tuple[Any, tuple[Any, ...], str]] = [
        (time.monotonic, (), r"'time\.monotonic'"),
        (math.factorial, (3,), r"'math\.factorial'"),
        (pow, (2, 3), r"'builtins\.pow'"),
        (max, (2, 3), r"write a function of your own that uses it.*'builtins\.max'"),
        (operator.mul, (2, 3), r"'operator\.mul'"),
        (print, ("x",), r"'builtins\.print'"),
        (str.upper, ("x",), r"'builtins\.str\.upper'"),
    ]
    with seams.use_agent(job.agents[0]):
        for func, args, words in foreign:
            with pytest.raises(CallRefusedError, match=words):
                rpc.rpc_sync("w1", func, args)
        with pytest.raises(DecodeError, match="'builtins:print'"):  # as any function that is sent
            rpc.rpc_sync("w1", bool, (print,))
    allowing = make_job(2, callables=["math.*"])
    with seams.use_agent(allowing.agents[0]):
        assert rpc.rpc_sync("w1", math.factorial, (4,)) == 24


def test_wrong_arguments_are_an_error_of_the_function(job: Job) -> None:
    """Those of `async def` were raised where the task was to be made, and nothing was answered."""
    with seams.use_agent(job.agents[0]):
        for func in (form_code.plain, form_code.coroutine, form_code.sum_over, Point):
            with pytest.raises(TypeError, match="argument") as info:
                rpc.rpc_sync("w1", func, [1, 2, 3, 4, 5, 6, 7])  # type: ignore[arg-type]
            assert not isinstance(info.value, RemoteError)
