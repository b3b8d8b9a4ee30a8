"""async_execution in all of its forms, and mixed with async def."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from telegrad import rpc
from telegrad.errors import CallTimeoutError, EncodeError
from telegrad.rpc import seams
from telegrad.rpc.future.future import Future
from tests.rpc.conftest import Job, MakeJob
from tests.rpc.rest import wait_until_idle
from tests.rpc.verbs import form_code
from tests.rpc.verbs.form_code import Machine, Promise, Promises

ALL = ["w0", "w1", "w2"]
PATH = ["w2", "w0", "w1", "w1", "w2", "w0"]

# What is called with what, and what comes back; all by name, from w0 on w1.
FORMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Any]] = {
    "function": (form_code.sum_over, ("w2", 1, 2), 3),
    "by way of itself": (form_code.sum_over, ("w1", 1, 2), 3),
    "by way of the caller": (form_code.sum_over, ("w0", 1, 2), 3),
    "chained": (form_code.chained, ("w2", 1), 300),
    "nested, mixed with async def": (form_code.nested_mixed, (PATH,), ["w1", *PATH]),
    "of a gather": (form_code.gathered, (ALL,), ALL),
    "of to_thread": (form_code.in_a_thread, (1,), 2),
    "static method": (Promises.static, ("w2", 1), 2),
    "static method, marked above": (Promises.static_above, ("w2", 1), 2),
    "class method": (Promises.of_class, ("w2", 1), "Promises 2"),
    "class method, marked above": (Promises.of_class_above, ("w2", 1), "Promises 2"),
    "async def that returns a Future": (
        form_code.coroutine_that_returns_a_future,
        ("w2", 1),
        2,
    ),
    "async def that awaits marked ones": (form_code.awaits_a_marked_function, ("w2", 1), 4),
    "async def around a marked one": (
        form_code.coroutine_around_a_marked_function,
        ("w2", 1, 2),
        1003,
    ),
}


@pytest.fixture
def job(job: Job) -> Iterator[Job]:
    """Three workers; the test runs on w0."""
    with seams.use_agent(job.agents[0]):
        yield job


def test_every_form_of_a_function(job: Job) -> None:
    for form, (func, args, expected) in FORMS.items():
        assert rpc.rpc_sync("w1", func, args) == expected, form
        assert rpc.rpc_async("w1", func, args).wait() == expected, form
        assert rpc.remote("w1", func, args).to_here() == expected, form
        assert rpc.gather([("w1", func, args)] * 2).wait() == [expected] * 2, form


@pytest.mark.parametrize("owner", ["w1", "w0"], ids=["other", "self"])
def test_methods_through_every_stand_in_of_an_rref(job: Job, owner: str) -> None:
    rref: Any = rpc.remote(owner, Promises, ("w2",))
    calls: list[tuple[str, tuple[Any, ...], Any]] = [
        ("bound", (1,), 2),
        ("static", ("w2", 1), 2),
        ("of_class", ("w2", 1), "Promises 2"),
    ]
    for name, args, expected in calls:
        assert getattr(rref.rpc_sync(), name)(*args) == expected, name
        assert getattr(rref.rpc_async(), name)(*args).wait() == expected, name
        assert getattr(rref.remote(), name)(*args).to_here() == expected, name
    promise: Any = rpc.remote(owner, Promise)
    assert promise.rpc_sync()("w2") == "w2"
    assert promise.rpc_async()("w2").wait() == "w2"
    assert promise.remote()("w2").to_here() == "w2"


def test_an_rref_as_the_value(job: Job) -> None:
    given: Any = rpc.rpc_sync("w1", form_code.gives_an_rref, ("w2",))
    assert given.owner_name() == "w2"
    assert given.rpc_sync().add(1) == 8
    inner: Any = rpc.remote("w1", form_code.gives_an_rref, ("w2",)).to_here()
    assert inner.owner_name() == "w2"


def test_no_thread_waits_for_what_is_promised(make_job: MakeJob) -> None:
    job = make_job(2, num_threads=1)
    with seams.use_agent(job.agents[0]):
        rref: Any = rpc.remote("w1", Promises, ("w0",))
        waiting = [rref.rpc_async().wait() for _ in range(50)]
        rref.rpc_sync().say(7)
        assert rpc.wait_all(waiting) == [7] * 50
        assert rref.rpc_sync().wait() == 7  # done when it is returned


def test_errors_before_and_after_the_first_yield_keep_their_class(job: Job) -> None:
    rref: Any = rpc.remote("w1", Promises, ("w2",))
    failing: list[tuple[Callable[[], Any], str]] = [
        (lambda: rpc.rpc_async("w1", form_code.raises_before), "before the first yield"),
        (lambda: rpc.rpc_async("w1", form_code.raises_after, ("w2",)), "after the first"),
        (lambda: rref.rpc_async().fail(), "in a method"),
    ]
    for call, words in failing:
        with pytest.raises(KeyError, match=words) as info:
            call().wait()
        assert "KeyError" in (rpc.remote_traceback(info.value) or "")
    for func, args in ((form_code.raises_before, []), (form_code.raises_after, ["w2"])):
        with pytest.raises(KeyError, match="the first yield"):
            rpc.remote("w1", func, args).to_here()


def test_a_wrong_return_type_is_named_at_the_caller(job: Job) -> None:
    rref: Any = rpc.remote("w1", Promises, ("w2",))
    words = r"marked async_execution and must return a telegrad\.rpc\.Future, not "
    for call, what in (
        (lambda: rpc.rpc_async("w1", form_code.returns, (3,)), "3 \\(int\\)"),
        (lambda: rpc.rpc_async("w1", form_code.returns_nothing), "None"),
        (lambda: rref.rpc_async().wrong(), "3"),
    ):
        with pytest.raises(TypeError, match=words + what):
            call().wait()
    with pytest.raises(TypeError, match=words):
        rpc.remote("w1", form_code.returns, (3,)).to_here()
    with pytest.raises(EncodeError, match="a Future does not travel"):
        rpc.rpc_sync("w1", form_code.future_of_a_future)
    with pytest.raises(EncodeError, match=r"args\[0\].* a Future does not travel; wait\(\) for"):
        rpc.rpc_sync("w1", form_code.returns, (rpc.Future(),))


def test_a_coroutine_in_the_place_of_a_future_is_closed(job: Job) -> None:
    """It said on the callee's stderr that nobody had awaited it."""
    with pytest.raises(TypeError, match="must return .*coroutine"):
        rpc.rpc_sync("w1", form_code.returns_a_coroutine)
    assert rpc.rpc_sync("w1", form_code.coroutines_closed) == 1


def test_what_is_never_answered_leaves_nothing_with_the_callee(make_job: MakeJob) -> None:
    job = make_job(2)
    with seams.use_agent(job.agents[0]):
        with pytest.raises(CallTimeoutError, match="never on 'w1' took longer than"):
            rpc.rpc_sync("w1", form_code.never, timeout=0.2)
        cancelled = rpc.rpc_async("w1", form_code.never)
        assert cancelled.cancel()
        wait_until_idle(job.agents[1])
        assert rpc.rpc_sync("w1", form_code.where) == "w1"


# -- the mark ----------------------------------------------------------------------------------


def test_the_mark_returns_what_it_was_given() -> None:
    def func() -> Future[int]:
        return Future()

    assert rpc.functions.async_execution(func) is func
    static = staticmethod(func)
    assert rpc.functions.async_execution(static) is static


async def coroutine() -> int:
    return 1


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (3, "marks functions written in Python, not 3"),
        (Machine, "marks functions written in Python, not <class"),
        (operator.add, "marks functions written in Python"),
        (functools.partial(form_code.plain, 1), "marks functions written in Python"),
        (coroutine, "coroutine is async def and needs no mark; remove @async_execution"),
        (staticmethod(coroutine), "needs no mark"),
        (form_code.count_up, r"is a generator function; .* rpc\.stream"),
        (form_code.count_up_later, r"is an async generator function; .* rpc\.stream"),
    ],
)
def test_what_cannot_be_marked(wrong: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        rpc.functions.async_execution(wrong)
