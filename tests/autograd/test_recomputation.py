"""recompute: the same values and gradients as without it, computed again, with less memory."""

from __future__ import annotations

import contextvars
import gc
import sys
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import telegrad as tg
from telegrad import nn
from telegrad.autograd import (
    Function,
    GraphTask,
    Tensor,
    current_generator,
    gradcheck,
    no_grad,
    once,
    recomputation,
    tensor,
)
from telegrad.autograd.graph import call_node
from telegrad.autograd.graph.operation import Operation
from telegrad.autograd.seams import edge_of
from telegrad.errors import AutogradError
from tests.autograd.threads import in_threads

RNG = np.random.default_rng(3)
W, X = RNG.normal(size=(4, 4)), RNG.normal(size=(3, 4))


class Cube(Function):
    """A user's function among the others."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (x,) = ctx.saved_values
        return gradient * 3 * x**2


def plainly(function: Any, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def nested(run: Any, w: Any, x: Any) -> Any:
    """Two outputs in a dict, a part within a part, a closed-over weight, dropped items."""

    def inner(h: Any) -> Any:
        mask = current_generator().random(h.shape) < 0.5
        return np.tanh(h @ w) * mask, Cube.apply(h)

    def outer(tree: dict[str, Any], factor: float) -> dict[str, Any]:
        h = np.sin(tree["x"] @ w) * factor
        first, second = run(inner, h)
        return {"y": first * h, "z": run(inner, second)[0] + h}

    out = run(outer, {"x": x}, factor=1.5)
    return (out["y"] ** 2).sum() + out["z"].sum()


def leaves() -> tuple[Tensor, Tensor]:
    return tensor(W, requires_grad=True), tensor(X, requires_grad=True)


def same(found: Any, expected: Any) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.data, other.data, rtol=1e-12)


def test_values_gradients_and_random_numbers_are_those_without_it() -> None:
    results = []
    for run in (plainly, tg.recompute):
        w, x = leaves()
        tg.manual_seed(5)
        value = nested(run, w, x)
        value.backward()
        results.append([value, w.grad, x.grad, tensor(current_generator().random())])
    same(*results)


def test_it_can_be_differentiated_again() -> None:
    results = []
    for run in (plainly, tg.recompute):
        w, x = leaves()
        tg.manual_seed(5)
        first = tg.grad(nested(run, w, x), [w, x], create_graph=True)
        results.append(tg.grad((first[0] ** 2).sum() + (first[1] ** 3).sum(), [w, x]))
    same(*results)


OPERATIONS = ["matmul", "tanh", "mask", "cube", "scale", "count"]
PROGRAMS = st.recursive(
    st.sampled_from(OPERATIONS),
    lambda parts: st.lists(parts, min_size=1, max_size=3).map(tuple),
    max_leaves=10,
)


def compiled(run: Any, program: Any, w: Any, counts: list[float]) -> Any:
    """The function of a program: an operation, or a tuple of programs that `run` calls in turn."""
    if isinstance(program, tuple):
        parts = [compiled(run, each, w, counts) for each in program]

        def sequence(h: Any) -> Any:
            for part in parts:
                h = run(part, h)
            return h

        return sequence

    def count_call() -> Any:
        counts.append(current_generator().random())
        return np.exp(w / len(counts)).mean() * counts[-1]

    return {
        "matmul": lambda h: h @ w,
        "tanh": np.tanh,
        "mask": lambda h: h * (current_generator().random(h.shape) < 0.5),
        "cube": lambda h: Cube.apply(np.sin(h)),
        "scale": lambda h: h * 1.5 + h,
        "count": lambda h: h * once(count_call),
    }[program]


@pytest.mark.long
@given(PROGRAMS, st.booleans())
def test_parts_within_parts_to_any_depth(program: Any, leaf: bool) -> None:
    """Whichever part a backward meets first, at whichever depth, and whatever a part counts."""
    results = []
    for run in (plainly, tg.recompute):
        w = tensor(W, requires_grad=True)
        x = tensor(X, requires_grad=leaf)
        tg.manual_seed(5)
        counts: list[float] = []
        value = (run(compiled(run, program, w, counts), x) ** 2).sum() * (w**2).sum()
        leaves = [w, x] if leaf else [w]
        first = tg.grad(value, leaves, create_graph=True)
        second = tg.grad(sum((each**2).sum() for each in first), leaves, allow_unused=True)
        found = [value, *first, *(each for each in second if each is not None)]
        results.append([*found, tensor(counts), tensor(current_generator().random())])
    same(*results)


def test_a_part_within_a_part_runs_three_times_and_no_more() -> None:
    calls: list[str] = []

    def inner(h: Any) -> Any:
        calls.append("inner")
        return np.exp(h) * h

    def outer(h: Any) -> Any:
        calls.append("outer")
        return tg.recompute(inner, h * 2)

    y = tg.recompute(outer, tensor(X, requires_grad=True)).sum()
    y.backward(retain_graph=True)
    assert calls == ["outer", "inner"] * 2 + ["inner"]
    y.backward()
    assert len(calls) == 5
    with pytest.raises(AutogradError, match="freed by an earlier backward"):
        y.backward()


def test_the_arrays_may_be_of_each_library(xp: Any) -> None:
    w, x = (tensor(xp.asarray(a), requires_grad=True) for a in (W, X[0]))
    assert gradcheck(lambda x, w: tg.recompute(lambda x: np.tanh(w @ x) * x, x).sum(), [x, w])


def test_the_forward_keeps_no_values_in_between() -> None:
    made: list[weakref.ref[Any]] = []

    def part(h: Any) -> Any:
        for _ in range(3):
            h = np.tanh(h * 1.5)
            made.append(weakref.ref(h.data))
        return h

    x = tensor(X, requires_grad=True)
    for run, kept in ((plainly, 3), (tg.recompute, 1)):
        made.clear()
        result = run(part, x)
        assert sum(each() is not None for each in made) == kept
        del result


def test_parts_within_parts_keep_their_arguments_alone_and_no_longer_than_needed() -> None:
    alive: list[weakref.ref[Any]] = []
    most = [0]

    def inner(h: Any) -> Any:
        for _ in range(4):
            h = np.tanh(h * 1.5)
            alive.append(weakref.ref(h.data))
            most[0] = max(most[0], sum(each() is not None for each in alive))
        return h

    def outer(h: Any) -> Any:
        for _ in range(4):
            h = tg.recompute(inner, h)
        return h

    y = tensor(X, requires_grad=True)
    for _ in range(4):
        y = tg.recompute(outer, y)
    y.sum().backward()
    assert most[0] <= 4 + 4 + 4 + 1  # arguments of outer parts and of inner ones, values of one
    assert [each() is not None for each in alive].count(True) == 1  # the result


def test_the_tree_of_arguments_may_change_in_between() -> None:
    x = tensor(X, requires_grad=True)
    tree: dict[str, Any] = {"x": x, "factors": [2.0, 3.0]}
    y = tg.recompute(lambda tree: np.exp(tree["x"]) * tree["factors"][0], tree)
    tree.clear()
    y.sum().backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.data, np.exp(X) * 2.0)


def test_it_runs_twice_and_no_more() -> None:
    calls: list[int] = []

    def part(h: Any) -> Any:
        calls.append(1)
        return np.exp(h) * h

    x = tensor(X, requires_grad=True)
    y = tg.recompute(part, x).sum()
    assert len(calls) == 1
    y.backward(retain_graph=True)
    assert len(calls) == 2
    y.backward()
    assert len(calls) == 2
    with pytest.raises(AutogradError, match="freed by an earlier backward"):
        y.backward()


def test_only_what_a_gradient_reaches_is_computed_again() -> None:
    calls: list[int] = []

    def part(h: Any) -> Any:
        calls.append(1)
        return np.exp(h)

    x = tensor(X, requires_grad=True)
    y, _ = tg.recompute(part, x), tg.recompute(part, x * 2)
    y.sum().backward()
    assert len(calls) == 3


def test_without_recording_it_is_a_call() -> None:
    with no_grad():
        result: Any = tg.recompute(np.exp, tensor(X, requires_grad=True))
        assert not result.requires_grad
    assert tg.recompute(lambda: 5) == 5


def test_a_graph_of_it_is_freed_without_the_garbage_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        for backward in (False, True):
            w, x = leaves()
            value = nested(tg.recompute, w, x)
            nodes = [weakref.ref(node) for node in reachable(value)]
            if backward:
                value.backward()
            del value
            w.grad = x.grad = None
            assert not [each() for each in nodes if each() is not None]
    finally:
        gc.enable()


def reachable(value: Tensor) -> frozenset[Any]:
    edge = edge_of(value)
    assert edge is not None
    return frozenset(GraphTask([(edge, value.data)], accumulate=lambda *_: None).reachable)


def test_backwards_of_two_threads_through_one_part() -> None:
    w, x = leaves()
    calls: list[int] = []

    def part(h: Any) -> Any:
        calls.append(1)
        return np.tanh(h @ w)

    y = tg.recompute(part, x)
    same(*in_threads(*[lambda: tg.grad(y.sum(), [w, x], retain_graph=True)] * 2))
    assert len(calls) == 2


def at_line(number: int, start: Callable[[], Any], run: Callable[[], Any]) -> Any:
    """The result of `run`; `start` is called at its line of that number, of those that recompute."""
    lines = count(1)

    def trace(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in {recomputation.__file__, call_node.__file__}:
            return None
        if event == "line" and next(lines) == number:
            start()
        return trace

    sys.settrace(trace)
    try:
        return run()
    finally:
        sys.settrace(None)


@pytest.mark.long
def test_another_threads_backward_that_begins_at_any_line_of_one() -> None:
    """A part within a part: one thread may meet a node that the other one has just moved."""

    def inner(h: Any) -> Any:
        return tg.recompute(lambda h: np.exp(h) * h, h)

    with ThreadPoolExecutor(1) as pool:
        for number in count(1):
            x = tensor(X, requires_grad=True)
            backward = partial(tg.grad, tg.recompute(inner, x).sum(), x, retain_graph=True)
            others: list[Future[Any]] = []

            def start(backward: Any = backward, others: list[Future[Any]] = others) -> None:
                others.append(pool.submit(backward))
                wait(others, 0.003)  # no longer, as it may need what this thread holds

            found = at_line(number, start, backward)
            if not others:
                break
            same(others[0].result(), found)
    assert number > 100


def test_arguments_and_parameters_may_not_change_in_between() -> None:
    w, x = leaves()
    h = x * 1.0
    y = tg.recompute(lambda h: np.tanh(h @ w), h).sum()
    with no_grad():
        h += 1.0
    with pytest.raises(AutogradError, match=r"an argument of shape \(3, 4\) that 'recompute'"):
        y.backward()
    y = tg.recompute(lambda h: np.tanh(h @ w), x).sum()
    w.data = w.data + 1.0
    with pytest.raises(AutogradError, match="before the optimizer's step"):
        y.backward()
    y = tg.recompute(lambda h: np.tanh(h @ w), x).sum()
    with no_grad():
        w += 1.0
    with pytest.raises(AutogradError, match="a parameter of shape"):
        y.backward()


def test_a_function_that_does_something_else_the_second_time() -> None:
    x = tensor(X, requires_grad=True)
    functions = iter([np.sin, np.cos])
    y = tg.recompute(lambda h: next(functions)(h) * 2, x).sum()
    with pytest.raises(AutogradError, match="operation 0 was 'sin' and is now 'cos'"):
        y.backward()
    rounds = iter([1, 2])

    def again(h: Any) -> Any:
        for _ in range(next(rounds)):
            h = np.exp(h)
        return h

    y = tg.recompute(again, x).sum()
    with pytest.raises(AutogradError, match="did not do the same again"):
        y.backward()


def test_a_backward_inside_through_what_was_just_computed() -> None:
    x = tensor(X, requires_grad=True)

    def penalty(h: Any) -> Any:
        (slope,) = tg.grad(np.exp(h).sum(), h, create_graph=True)
        return slope

    with pytest.raises(AutogradError, match=r"call recompute\(\) inside"):
        tg.recompute(penalty, x)


def test_a_function_that_counts_more_often_the_second_time() -> None:
    rounds = iter([0, 1])

    def part(h: Any) -> Any:
        for _ in range(next(rounds)):
            once(lambda: None)
        return np.exp(h)

    y = tg.recompute(part, tensor(X, requires_grad=True)).sum()
    with pytest.raises(AutogradError, match="more often than in its first run"):
        y.backward()


def test_a_task_that_goes_on_after_either_run_counts_by_itself() -> None:
    contexts: list[contextvars.Context] = []

    def part(h: Any) -> Any:
        contexts.append(contextvars.copy_context())
        return np.exp(h)

    tg.recompute(part, tensor(X, requires_grad=True)).sum().backward()
    assert [each.run(once, lambda: "called") for each in contexts] == ["called", "called"]


@pytest.mark.parametrize("momentum", [0.1, None])
def test_running_statistics_move_once(momentum: float | None) -> None:
    def nested(depth: int, module: Any) -> Any:
        return (lambda x: tg.recompute(nested(depth - 1, module), x)) if depth else module

    states = []
    for depth in range(4):
        rng = np.random.default_rng(0)
        norms = [nn.BatchNorm1d(4, momentum=momentum, dtype=np.float64) for _ in range(2)]
        model = nn.Sequential(norms[0], nn.Linear(4, 4, rng=rng), nn.Tanh(), norms[1])
        for seed in range(3):
            x = np.random.default_rng(seed).normal(size=(5, 4)) + 2.0
            (nested(depth, model)(x) ** 3).sum().backward()
        assert norms[0].num_batches_tracked is not None
        assert norms[0].num_batches_tracked.item() == 3
        states.append(model.state_dict())
    for state in states[1:]:
        for name, array in states[0].items():
            np.testing.assert_array_equal(state[name], array, err_msg=name)


def test_a_mask_of_a_generator_of_ones_own_is_the_same_again() -> None:
    results = []
    for run in (plainly, tg.recompute):
        own = np.random.default_rng(1)
        w, x = leaves()
        drop = nn.Dropout(0.5, rng=own)
        y = run(nn.Sequential(drop, nn.Tanh(), drop), x @ w)
        y.sum().backward()
        results.append([y, w.grad, x.grad, tensor(own.random())])
    same(*results)


def test_modules_and_hooks() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    gradients = []
    for run in (plainly, tg.recompute):
        model.zero_grad()
        x = tensor(X, requires_grad=True)
        seen: list[Any] = []

        def part(h: Any, seen: list[Any] = seen) -> Any:
            middle = model(h)
            middle.register_hook(lambda g: seen.append(1))
            return middle * 2

        run(part, x).sum().backward()
        assert seen == [1]  # that of the first run alone
        gradients.append([x.grad, *(p.grad for p in model.parameters())])
    same(*gradients)


def test_an_operation_of_several_outputs() -> None:
    parts = Operation(
        "parts",
        lambda x: (x * x, x * x * x),
        "x",
        outputs="a b",
        x=lambda g, x: (
            (0.0 if g[0] is None else 2 * g[0] * x) + (0.0 if g[1] is None else 3 * g[1] * x * x)
        ),
    )
    x = tensor([2.0], requires_grad=True)
    a, b = tg.recompute(parts, x)
    (a * b).sum().backward()
    assert x.grad is not None
    assert x.grad.data.tolist() == [5 * 2.0**4]


def test_a_context_that_goes_on_after_it_is_none_of_it() -> None:
    contexts: list[contextvars.Context] = []

    def part(h: Any) -> Any:
        contexts.append(contextvars.copy_context())
        return np.exp(h)

    x = tensor([0.0], requires_grad=True)
    y = tg.recompute(part, x)
    z = contexts[0].run(lambda: (x * x + y).sum())
    z.backward()
    assert x.grad is not None
    assert x.grad.data.tolist() == [1.0]
