"""Backward as users see it: what it gives, what it frees, what it refuses."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telegrad.arrays import is_array
from telegrad.autograd import (
    Function,
    FunctionContext,
    GradientTarget,
    GraphTask,
    LocalGradients,
    PassEnd,
    Tensor,
    backward,
    enable_grad,
    grad,
    gradcheck,
    gradgradcheck,
    is_grad_enabled,
    no_grad,
    tensor,
)
from telegrad.autograd.seams import graph_root, replace_data
from telegrad.errors import AutogradError
from tests.autograd.threads import in_threads
from tests.autograd.versions import version_of
from tests.gpu.comparison import close_on, of


def leaf(*values: float) -> Any:
    return tensor(list(values), requires_grad=True)


def leaf_on(xp: Any, *values: float) -> Any:
    """A leaf of a library's array."""
    return tensor(xp.asarray(np.array(values)), requires_grad=True)


def gradient_of(x: Tensor) -> Any:
    assert x.grad is not None
    return x.grad.data.tolist()


def test_gradients_add_up_until_cleared(xp: Any) -> None:
    x = leaf_on(xp, 1.0, 2.0)
    (x * 3).sum().backward()
    (x * 4).sum().backward()
    assert gradient_of(x) == [7.0, 7.0]
    backward([x * 3.0], [xp.asarray(np.array([1.0, 10.0]))])
    close_on(xp, x.grad, np.array([10.0, 37.0]))
    (x * 2.0).backward([1.0, 1.0])  # a list is made an array beside the root
    close_on(xp, x.grad, np.array([12.0, 39.0]))


def test_a_second_backward_says_what_to_write() -> None:
    x = leaf(1.0)
    y = (x * x).sum()
    y.backward(retain_graph=True)
    y.backward()
    assert gradient_of(x) == [4.0]
    with pytest.raises(AutogradError, match="pass retain_graph=True"):
        y.backward()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda x: x.detach().sum(), "needs no gradient"),
        (lambda x: x * 2, r"shape \(2,\), not one item; reduce it"),
    ],
)
def test_bad_roots(make: Any, words: str) -> None:
    with pytest.raises(AutogradError, match=words):
        make(leaf(1.0, 2.0)).backward()


def test_a_gradient_of_the_wrong_shape() -> None:
    with pytest.raises(AutogradError, match=r"shape \(2,\) has shape \(3,\)"):
        (leaf(1.0, 2.0) * 2).backward(np.ones(3))
    with pytest.raises(AutogradError, match="1 roots were given 2 gradients"):
        backward([leaf(1.0)], [None, None])


def test_several_roots_are_one_pass() -> None:
    x = leaf(3.0)
    y = x * x
    backward([y.sum(), (y * 2).sum()])
    assert gradient_of(x) == [18.0]


def test_saved_values_are_freed_as_it_goes() -> None:
    x = leaf(1.0, 2.0)
    hidden = np.exp(x)
    seen = weakref.ref(hidden.data)
    loss = (hidden * hidden).sum()
    del hidden
    assert seen() is not None
    loss.backward()
    assert seen() is None


def test_a_graph_is_freed_without_the_garbage_collector() -> None:
    x = leaf(1.0, 2.0)
    gc.disable()
    try:
        y = np.exp(np.tanh(x) * x)
        node = weakref.ref(y.grad_fn)
        del y
        assert node() is None
    finally:
        gc.enable()


# Changes after recording.


@pytest.mark.parametrize("how", ["setitem", "isub", "data", "view"])
def test_every_way_of_changing_in_place_is_noticed(how: str) -> None:
    x = leaf(1.0, 2.0)
    hidden = np.exp(x)
    y = hidden.sum()
    with no_grad():
        if how == "setitem":
            hidden[0] = 5.0
        elif how == "isub":
            hidden -= 5.0
        elif how == "data":
            hidden.data += 1
        else:
            hidden[1:] += 1.0
    with pytest.raises(AutogradError, match=r"the result 'y' of shape \(2,\) that 'exp' saved"):
        y.backward()


def test_a_change_through_the_tensor_whose_memory_was_taken_over_is_noticed() -> None:
    x, source = leaf(0.0, 0.0), tensor([1.0, 2.0])
    x.data = source
    y = (x * x).sum()
    source += 10.0
    with pytest.raises(AutogradError, match="'multiply' saved .* was changed in place"):
        y.backward()


def test_a_value_that_no_rule_needs_may_change() -> None:
    x, w = leaf(1.0, 2.0), leaf(3.0, 4.0)
    y = (x + w).sum()
    with no_grad():
        w += 1
    y.backward()
    assert gradient_of(x) == [1.0, 1.0]


def test_replacing_an_array_leaves_recorded_graphs_alone() -> None:
    """Two trainers step one shared model: each backward sees the values of its own forward."""
    x, w = leaf(1.0, 2.0), leaf(3.0, 4.0)
    first = (x * w * w).sum()
    w.data = w.data * 10
    with no_grad():
        w += 1  # in the new array: nothing that `first` saved
    second = (x * w).sum()
    first.backward()
    assert gradient_of(x) == [9.0, 16.0]
    assert gradient_of(w) == [6.0, 16.0]
    second.backward()
    assert gradient_of(x) == [9.0 + 31.0, 16.0 + 41.0]


def test_replacing_arrays_while_others_run_forward_and_backward() -> None:
    w = leaf(1.0)
    stop = threading.Event()
    wrong: list[float] = []

    def train() -> None:
        while not stop.is_set():
            y = w * w
            at = float(np.sqrt(y.item()))
            (slope,) = grad(y, w)
            if abs(slope.item() - 2 * at) > 1e-9:
                wrong.append(slope.item())

    def step() -> None:
        for _ in range(3000):
            replace_data(w, lambda array: array + 1.0)
        stop.set()

    in_threads(train, train, train, step)
    assert wrong == []
    assert w.item() == 3001.0


def test_in_place_operations_write_into_the_array(xp: Any) -> None:
    x = tensor(xp.asarray(np.array([1.0, 2.0, 3.0])))
    array = x.data
    with no_grad():
        x += 1.0
        x *= tensor(xp.asarray(np.array([1.0, 2.0, 3.0])))
        x[0] = 5.0
        x[1:] = x[1:] - 1.0
    assert x.data is array
    close_on(xp, x, np.array([5.0, 5.0, 11.0]))
    assert version_of(x) == 4
    x.fill(2.0)
    close_on(xp, x, np.full(3, 2.0))


def test_recorded_in_place_operations_are_differentiated(xp: Any) -> None:
    x = leaf_on(xp, 1.0, 2.0)
    total = tensor(xp.zeros(2))
    for _ in range(3):
        total += np.exp(x)
    total[0] = 7.0 * x[1]
    total *= 2
    total.sum().backward()
    close_on(xp, x.grad, np.array([0.0, 14 + 6 * np.exp(2.0)]))

    def assign(x: Any) -> Any:
        y = x * 1.0
        y[0] = x[1] * 2
        y *= x
        return y

    assert gradcheck(assign, x)


def test_a_part_that_was_copied_is_no_view(xp: Any) -> None:
    """CuPy's arrays were all taken for views, so that `rows += 1` was refused there alone."""
    x = leaf_on(xp, 1.0, 2.0, 3.0)
    rows = (x * 1.0)[xp.asarray(np.array([0, 2]))]
    rows += 1.0
    rows.sum().backward()
    close_on(xp, x.grad, np.array([1.0, 0.0, 1.0]))
    view = (x * 1.0)[1:]
    with pytest.raises(AutogradError, match="a view of another tensor"):
        view += 1.0


def test_in_place_operations_that_cannot_be_recorded() -> None:
    x = leaf(1.0, 2.0)
    with pytest.raises(AutogradError, match="a leaf that needs a gradient"):
        x += 1
    with pytest.raises(AutogradError, match="a leaf that needs a gradient"):
        x[0] = 1.0
    row = (x * 2)[0:1]
    with pytest.raises(AutogradError, match="a view"):
        row += 1
    y = x * 2
    with pytest.raises(ValueError, match=r"shape \(2,\) cannot hold a result of shape \(3, 2\)"):
        y += np.ones((3, 2))


# Grad mode and threads.


def test_no_grad_records_nothing_and_nests() -> None:
    x = leaf(1.0)
    with no_grad():
        assert not (x * 2).requires_grad
        with enable_grad():
            assert (x * 2).requires_grad
        assert not is_grad_enabled()
    assert is_grad_enabled()


def test_no_grad_decorates_and_is_restored_after_errors() -> None:
    @no_grad()
    def fail(x: Tensor) -> None:
        assert not is_grad_enabled()
        raise KeyError(x)

    with pytest.raises(KeyError):
        fail(leaf(1.0))
    assert is_grad_enabled()


def test_threads_do_not_see_each_others_grad_mode() -> None:
    with no_grad():
        assert in_threads(is_grad_enabled) == [True]


def test_backwards_in_threads_add_up(xp: Any) -> None:
    x = leaf_on(xp, 1.0)

    def work() -> None:
        for _ in range(200):
            (x * 1.0).sum().backward()

    in_threads(*[work] * 4)
    assert gradient_of(x) == [800.0]


# grad().


def test_grad_accumulates_nothing() -> None:
    x, w = leaf(2.0), leaf(3.0)
    h = x * w
    gx, gh = grad((h * h).sum(), [x, h])
    assert (gx.item(), gh.item()) == (36.0, 12.0)
    assert x.grad is None
    assert w.grad is None


def test_grad_of_what_is_not_used() -> None:
    x, y = leaf(2.0), leaf(3.0)
    with pytest.raises(AutogradError, match=r"no gradient reached inputs \[1\]"):
        grad(x * 2, [x, y])
    found = grad(x * 2, [x, y], allow_unused=True)
    assert found[1] is None
    with pytest.raises(AutogradError, match="input 0 of shape"):
        grad(x * 2, tensor([1.0]))
    with pytest.raises(AutogradError, match="pass a list"):
        grad([x * 2, x * 3], x, np.ones(1))


def test_third_derivative(xp: Any) -> None:
    x = leaf_on(xp, 2.0, -1.0)
    y = x**4
    for expected in ([32.0, -4.0], [48.0, 12.0], [48.0, -24.0]):
        (y,) = grad(y.sum(), x, create_graph=True)
        close_on(xp, y, np.array(expected))


def test_create_graph_in_backward() -> None:
    x = tensor(3.0, requires_grad=True)
    (x**3).backward(create_graph=True)
    assert x.grad is not None
    slope = x.grad
    x.grad = None
    slope.backward()
    assert gradient_of(x) == 18.0


def test_recorded_gradients_share_no_memory() -> None:
    """Both terms of a sum have one gradient: scaling that of one scaled the other's."""
    x, y = leaf(1.0), leaf(2.0)
    given = tensor([1.0])
    (x + y).backward(given, create_graph=True)
    of_x, of_y = grad((x + y).sum(), [x, y], create_graph=True)
    assert x.grad is not None
    with no_grad():
        x.grad *= 100.0
        of_x *= 100.0
    assert (gradient_of(y), given.data.tolist(), of_y.data.tolist()) == ([1.0], [1.0], [1.0])


def test_create_graph_uses_the_values_of_the_forward() -> None:
    x = tensor(3.0, requires_grad=True)
    y = x**3
    x.data = np.array(100.0)
    (slope,) = grad(y, x, create_graph=True)
    assert slope.item() == 27.0
    assert grad(slope, x)[0].item() == 18.0


# Hooks.


def test_tensor_hooks_see_and_change_gradients(xp: Any) -> None:
    x = leaf_on(xp, 1.0)
    y = x * 2
    seen: list[Any] = []
    places: list[bool] = []
    y.register_hook(lambda g: places.append(of(xp, g)))
    y.register_hook(lambda g: seen.append(g.data.tolist()))
    y.register_hook(lambda g: g * 10)
    x.register_hook(lambda g: g.data + 1)
    (y * 3).sum().backward()
    assert (seen, places) == ([[3.0]], [True])
    assert gradient_of(x) == [61.0]
    with pytest.raises(AutogradError, match="never be called"):
        tensor([1.0]).register_hook(lambda g: g)


def test_a_leaf_hook_is_called_once_with_the_whole_gradient() -> None:
    x = leaf(1.0)
    seen: list[Any] = []
    x.register_hook(lambda g: seen.append(g.item()))
    (x * 2 + x * 3 + x).sum().backward()
    assert seen == [6.0]


def test_tensor_hooks_are_recorded_under_create_graph() -> None:
    x = tensor(2.0, requires_grad=True)
    y = x * x
    y.register_hook(lambda g: g * x)
    (slope,) = grad(y, x, create_graph=True)
    assert slope.item() == 8.0
    assert grad(slope, x)[0].item() == 8.0


def test_node_hooks() -> None:
    x, w = leaf(2.0), leaf(5.0)
    y = x * w
    assert y.grad_fn is not None
    seen: list[Any] = []
    y.grad_fn.register_prehook(lambda gradients: (gradients[0] * 2,))

    def after(inputs: Any, outputs: Any) -> Any:
        seen.append((len(inputs), outputs[0].item()))
        return (inputs[0], None)

    with y.grad_fn.register_hook(after):
        y.sum().backward()
    assert seen == [(2, 2.0)]
    assert gradient_of(x) == [10.0]
    assert w.grad is None


def test_a_node_hook_that_returns_too_few() -> None:
    y = leaf(2.0) * leaf(3.0)
    assert y.grad_fn is not None
    y.grad_fn.register_hook(lambda inputs, outputs: inputs[:1])
    with pytest.raises(AutogradError, match="multiply returned 1 gradients, 2 are needed"):
        y.sum().backward()


def test_post_accumulate_hooks_are_given_the_target() -> None:
    x = leaf(1.0)
    seen: list[Any] = []

    def double(parameter: Tensor, target: Any) -> None:
        assert isinstance(target, GradientTarget)
        present = target.get(parameter)
        assert present is not None
        seen.append(present.item())
        target.replace(parameter, present * 2)

    handle = x.register_post_accumulate_hook(double)
    (x * 3 + x).sum().backward()
    assert (seen, gradient_of(x)) == ([4.0], [8.0])
    handle.remove()
    x.sum().backward()
    assert gradient_of(x) == [9.0]

    kept: list[Any] = []
    target = kept.append
    x.register_post_accumulate_hook(lambda parameter, given: kept.append(given))

    def accumulate(parameter: Tensor, gradient: Any) -> None:
        target(gradient.item())

    GraphTask([graph_root((x * 3).sum())], accumulate=accumulate).run()
    assert kept == [3.0, accumulate]
    assert isinstance(LocalGradients(), GradientTarget)


# The end of a pass.


class End(PassEnd):
    """Completed by the test; keeps what it was told."""

    def __init__(self, done: Callable[[], None] = lambda: None) -> None:
        self.told: list[Any] = []
        self.done = done

    def finish(self) -> End:
        self.told.append("finish")
        return self

    def abandon(self, cause: BaseException) -> None:
        self.told.append(cause)

    def wait(self) -> None:
        self.told.append("wait")
        self.done()

    def exception(self) -> BaseException | None:
        return None

    def then(self, callback: Callable[[Any], object], /) -> None:
        callback(self)


def ending_with(end: End, x: Tensor) -> Tensor:
    """Has `end` told of the backwards that reach `x`."""

    def hook(_: Tensor, target: Any) -> None:
        target.at_end(end)

    x.register_post_accumulate_hook(hook)
    return x


def test_a_backward_returns_when_its_ends_are_done() -> None:
    y = leaf(2.0)
    seen: list[Any] = []
    end = End(lambda: seen.append(gradient_of(y)))
    x = ending_with(end, leaf(3.0))
    (x * y).sum().backward()
    assert end.told == ["finish", "wait"]
    assert seen == [[3.0]]  # every leaf had its gradient
    y.sum().backward()
    assert end.told == ["finish", "wait"]


def test_what_an_end_raises_is_raised_by_backward() -> None:
    def fail() -> None:
        raise ArithmeticError("not done")

    first, second = End(fail), End()
    x, y = ending_with(first, leaf(1.0)), ending_with(second, leaf(1.0))
    with pytest.raises(ArithmeticError, match="not done"):
        (x * y).sum().backward()
    assert first.told[:2] == ["finish", "wait"]
    for told in (first.told, second.told):
        assert [type(each) for each in told if each not in ("finish", "wait")] == [ArithmeticError]


def test_a_rule_that_raises_abandons_the_ends() -> None:
    end = End()
    x, y = ending_with(end, leaf(1.0)), leaf(1.0)

    def fail(_: Tensor) -> None:
        assert x.grad is not None  # it came before
        raise KeyboardInterrupt

    y.register_hook(fail)
    with pytest.raises(KeyboardInterrupt):
        (y * 2 + (x * 3) * 1).sum().backward()
    assert [type(each) for each in end.told] == [KeyboardInterrupt]


def test_an_end_comes_before_the_end() -> None:
    target = LocalGradients()
    assert not target.has_ends
    target.finish()
    with pytest.raises(AutogradError, match="belongs to has run through already"):
        target.at_end(End())
    target.abandon(ArithmeticError())
    target.abandon(ArithmeticError())
    with pytest.raises(AutogradError, match="belongs to has failed already"):
        target.at_end(End())
    assert target.finish() == []
    assert target.earlier() == ()


def test_post_accumulate_hooks_are_for_leaves() -> None:
    with pytest.raises(AutogradError, match="only a leaf"):
        (leaf(1.0) * 2).register_post_accumulate_hook(lambda *_: None)


# Function.


class MulExp(Function):
    @staticmethod
    def forward(ctx: FunctionContext, x: Any, w: Any, scale: float) -> Any:
        assert is_array(x)
        y = np.exp(x) * w * scale
        ctx.save_for_backward(x, w, y)
        ctx.scale = scale  # type: ignore[attr-defined]
        return y

    @staticmethod
    def backward(ctx: FunctionContext, *gradients: Any) -> Any:
        x, _, y = ctx.saved_values
        (g,) = gradients
        return g * y, g * np.exp(x) * ctx.scale, None  # type: ignore[attr-defined]


class Split(Function):
    @staticmethod
    def forward(ctx: FunctionContext, *args: Any) -> Any:
        (x,) = args
        signs = np.sign(x).astype(np.int64)
        ctx.save_for_backward(x)
        return x * 2, x**2, signs

    @staticmethod
    def backward(ctx: FunctionContext, *gradients: Any) -> Any:
        (x,) = ctx.saved_values
        double, squared, signs = gradients
        assert signs is None
        total = 0 * x
        if double is not None:
            total = total + 2 * double
        if squared is not None:
            total = total + 2 * x * squared
        return total


def test_function_to_second_order(xp: Any) -> None:
    inputs = [leaf_on(xp, 0.1, 0.2), leaf_on(xp, 1.5, 2.0), 3.0]
    assert of(xp, MulExp.apply(*inputs))
    assert gradcheck(MulExp.apply, inputs)
    assert gradgradcheck(MulExp.apply, inputs)


def test_function_of_several_outputs() -> None:
    x = leaf(3.0, -1.0)
    doubled, squared, signs = Split.apply(x)
    assert signs.data.tolist() == [1, -1]
    assert not signs.requires_grad
    squared.sum().backward(retain_graph=True)
    assert gradient_of(x) == [6.0, -2.0]
    doubled.sum().backward(retain_graph=True)
    assert gradient_of(x) == [8.0, 0.0]
    assert gradgradcheck(lambda x: Split.apply(x)[:2], [leaf(1.0, 2.0)])


class WithSign(Function):
    @staticmethod
    def forward(ctx: FunctionContext, x: Any) -> Any:
        sign = np.sign(x)
        ctx.save_for_backward(sign)
        ctx.mark_non_differentiable(sign)
        return x * sign, sign

    @staticmethod
    def backward(ctx: FunctionContext, of_size: Any, of_sign: Any) -> Any:
        assert of_sign is None
        (sign,) = ctx.saved_values
        return of_size * sign


def test_function_may_have_an_output_that_needs_no_gradient() -> None:
    x = leaf(-2.0, 3.0)
    size, sign = WithSign.apply(x)
    assert (size.requires_grad, sign.requires_grad) == (True, False)
    (size * sign).sum().backward()
    assert gradient_of(x) == [1.0, 1.0]


def test_function_checks_what_it_is_given() -> None:
    x = leaf(1.0)
    y = MulExp.apply(x, 2.0, 1.0)
    y.sum().backward()
    with pytest.raises(AutogradError, match="'MulExp' saved for its gradient was freed"):
        y.sum().backward()
    y = MulExp.apply(x, 2.0, 1.0)
    with no_grad():
        x += 1
    with pytest.raises(AutogradError, match="'MulExp' saved for its gradient was changed"):
        y.sum().backward()
    with no_grad():
        assert not MulExp.apply(x, 2.0, 1.0).requires_grad


def test_function_that_returns_too_few_gradients() -> None:
    class Wrong(Function):
        @staticmethod
        def forward(ctx: FunctionContext, *args: Any) -> Any:
            return args[0] * args[1]

        @staticmethod
        def backward(ctx: FunctionContext, *gradients: Any) -> Any:
            return gradients[0]

    with pytest.raises(AutogradError, match="returned 1 gradients for 2 arguments"):
        Wrong.apply(leaf(1.0), leaf(2.0)).backward()


def test_function_that_lacks_a_backward() -> None:
    class Half(Function):
        @staticmethod
        def forward(ctx: FunctionContext, *args: Any) -> Any:
            return args[0]

    with pytest.raises(TypeError, match="Half has no backward"):
        Half.apply(leaf(1.0))


# Random programs.

UNARY = [np.tanh, np.sin, np.exp, lambda a: a * 0.5, lambda a: a.T, lambda a: a[::-1]]
BINARY = [
    lambda a, b: a + b,
    lambda a, b: a - 2 * b,
    lambda a, b: np.tanh(a) * b,
    lambda a, b: np.tanh(a @ b),
    lambda a, b: a + b.sum(axis=0),
    lambda a, b: np.concatenate([a[:1], b[1:]]),
]


@settings(derandomize=True, deadline=None, max_examples=40)
@given(
    st.lists(
        st.tuples(st.sampled_from(UNARY + BINARY), st.integers(0, 30), st.integers(0, 30)),
        min_size=1,
        max_size=8,
    )
)
def test_random_programs_against_finite_differences(program: list[Any]) -> None:
    def run(*inputs: Any) -> Any:
        values = list(inputs)
        for operation, i, j in program:
            a, b = values[i % len(values)], values[j % len(values)]
            values.append(np.tanh(operation(a, b) if operation in BINARY else operation(a)))
        return values[-1].sum() + values[len(values) // 2].mean()

    generator = np.random.default_rng(len(program))
    inputs = [tensor(generator.normal(size=(2, 2)) * 0.5, requires_grad=True) for _ in range(2)]
    gradcheck(run, inputs)
    gradgradcheck(run, inputs)
