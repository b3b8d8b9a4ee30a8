"""`parallel.fork`: threads that have their caller's Context, with an agent and without one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import telegrad as tg
from telegrad import dist_autograd, parallel, rpc
from telegrad.autograd import is_grad_enabled, no_grad
from telegrad.testing import Cluster


@pytest.fixture(params=["agent", "no agent"])
def _job(request: pytest.FixtureRequest) -> Iterator[None]:
    with rpc.init_rpc("me") if request.param == "agent" else nullcontext():
        yield


def branch(x: Any, depth: int) -> Any:
    """Computes in two threads at each level, which wait for one another."""
    if not depth:
        return np.sin(x)
    other = parallel.fork(branch, x, depth - 1)
    return branch(x * 2.0, depth - 1) * parallel.wait(other)


def alone(x: Any, depth: int) -> Any:
    return alone(x * 2.0, depth - 1) * alone(x, depth - 1) if depth else np.sin(x)


@pytest.mark.usefixtures("_job")
@pytest.mark.parametrize("depth", [1, 4])
def test_gradients_are_those_of_one_thread(depth: int) -> None:
    x = tg.tensor([0.3, 0.5], requires_grad=True)
    assert tg.gradcheck(lambda x: branch(x, depth), x)
    y = tg.tensor([0.3, 0.5], requires_grad=True)
    branch(x, depth).sum().backward()
    alone(y, depth).sum().backward()
    assert x.grad is not None
    assert y.grad is not None
    np.testing.assert_array_equal(x.grad.data, y.grad.data)


@given(values=st.lists(st.integers(), max_size=8), wrong=st.sets(st.integers(0, 7)))
def test_each_future_has_its_value_or_its_error(values: list[int], wrong: set[int]) -> None:
    def compute(i: int, *, value: int) -> tuple[int, int]:
        if i in wrong:
            raise ValueError(value)
        return value, threading.get_ident()

    futures = [parallel.fork(compute, i, value=value) for i, value in enumerate(values)]
    for i, (future, value) in enumerate(zip(futures, values, strict=True)):
        if i in wrong:
            with pytest.raises(ValueError, match=str(value)):
                parallel.wait(future)
        else:
            found, thread = parallel.wait(future)
            assert found == value
            assert thread != threading.get_ident()


@pytest.mark.usefixtures("_job")
def test_the_function_has_the_mode_of_its_caller() -> None:
    assert parallel.fork(is_grad_enabled).wait()
    with no_grad():
        assert not parallel.fork(is_grad_enabled).wait()
        assert not parallel.fork(parallel.fork, is_grad_enabled).wait().wait()


@pytest.mark.usefixtures("_job")
def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(TypeError, match="takes a function, not 3"):
        parallel.fork(3)  # type: ignore[arg-type]


def square(x: Any) -> Any:
    return x * x


def test_a_call_to_another_worker_belongs_to_the_context_of_the_caller() -> None:
    def step() -> float:
        x = tg.tensor(3.0, requires_grad=True)
        with dist_autograd.context() as context:
            there = parallel.fork(rpc.rpc_sync, "worker1", square, (x,))
            dist_autograd.backward(context, [parallel.wait(there)])
            return float(dist_autograd.get_gradients(context)[x].item())

    with Cluster(2) as cluster:
        assert cluster.call(0, step) == 6.0
