"""saved_values: the same gradients from unpacked values, and nothing kept that was packed."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import telegrad as tg
from telegrad import nn
from telegrad.arrays import to_host
from telegrad.autograd import enable_grad, gradcheck, gradgradcheck, no_grad, once, tensor
from telegrad.errors import AutogradError
from tests.autograd.test_recomputation import (
    PROGRAMS,
    Cube,
    compiled,
    leaves,
    nested,
    plainly,
    same,
)
from tests.autograd.threads import in_threads
from tests.counting import functions_of

X = np.random.default_rng(3).normal(size=(3, 4))


class Packer:
    """Keeps bytes in place of arrays, and counts."""

    def __init__(self) -> None:
        self.packed: list[np.ndarray[Any, Any]] = []
        self.unpacked = 0

    def pack(self, array: Any) -> tuple[bytes, np.dtype[Any], tuple[int, ...]]:
        self.packed.append(array.copy())
        return array.tobytes(), array.dtype, array.shape

    def unpack(self, token: tuple[bytes, np.dtype[Any], tuple[int, ...]]) -> Any:
        self.unpacked += 1
        return np.frombuffer(token[0], token[1]).reshape(token[2])

    def block(self) -> tg.saved_values:
        return tg.saved_values(self.pack, self.unpack)


def x_leaf() -> Any:
    return tensor(X, requires_grad=True)


@pytest.mark.long
@given(PROGRAMS, st.booleans(), st.booleans(), st.sampled_from([plainly, tg.recompute]))
def test_programs_have_the_gradients_that_they_have_without_it(
    program: Any, leaf: bool, around_gradients: bool, run: Any
) -> None:
    """First and second order, with recompute inside, and with the gradients' values packed too."""
    results = []
    for block in (nullcontext(), Packer().block()):
        w, x = leaves()
        x = x if leaf else x.detach()
        tg.manual_seed(5)
        counts: list[float] = []
        with block:
            value = (run(compiled(run, program, w, counts), x) ** 2).sum() * (w**2).sum()
        wanted = [w, x] if leaf else [w]
        with block if around_gradients else nullcontext():
            first = tg.grad(value, wanted, create_graph=True)
        second = tg.grad(sum((each**2).sum() for each in first), wanted, allow_unused=True)
        results.append([value, *first, *(each for each in second if each is not None)])
    same(*results)


def test_a_block_inside_a_recomputed_function() -> None:
    results = []
    packer = Packer()
    for block in (nullcontext, packer.block):

        def function(h: Any, block: Any = block) -> Any:
            with block():
                return np.tanh(h * 2.0) * np.sin(h * 3.0)

        x = x_leaf()
        y = tg.recompute(function, x).sum()
        assert not packer.packed  # the first run saves nothing
        first = tg.grad(y, [x], create_graph=True)
        results.append([*first, *tg.grad((first[0] ** 2).sum(), [x])])
    assert packer.packed
    assert packer.unpacked
    same(*results)


def test_recompute_in_a_block_packs_only_what_stays() -> None:
    packer = Packer()

    def function(h: Any) -> Any:
        return np.exp(h) * once(lambda: np.tanh(h))

    x = x_leaf()
    with packer.block():
        y = tg.recompute(function, x * 1.0)
        (result,) = packer.packed  # that of tanh, which the second run does not compute
        z = y * y
    np.testing.assert_array_equal(result, np.tanh(X))
    assert len(packer.packed) > 1
    z.sum().backward()
    again = x_leaf()
    ((np.exp(again) * np.tanh(again)) ** 2).sum().backward()
    same([x.grad], [again.grad])


def test_packed_arrays_are_gone_and_so_are_tokens_after_the_backward() -> None:
    tokens: list[weakref.ref[Any]] = []
    made: list[weakref.ref[Any]] = []

    class Kept:
        def __init__(self, array: Any) -> None:
            self.array = array.copy()
            tokens.append(weakref.ref(self))

    def part(h: Any) -> Any:
        for _ in range(3):
            h = np.tanh(Cube.apply(h * 1.5))
            made.append(weakref.ref(h.data))
        return h

    x = x_leaf()
    with tg.saved_values(Kept, lambda token: token.array):
        y = part(x).sum()
    assert not any(each() is not None for each in made)
    assert all(each() is not None for each in tokens)
    y.backward(retain_graph=True)
    assert all(each() is not None for each in tokens)
    assert not any(each() is not None for each in made)
    y.backward()
    gc.collect()
    assert tokens
    assert not any(each() is not None for each in tokens)


def test_pack_gets_what_operations_save_but_no_leaves() -> None:
    packer = Packer()
    weight, x, scale = x_leaf(), tensor(X * 2.0), X * 3.0
    with packer.block():
        y = np.exp(weight * x)
        _ = y * scale
        _ = weight * 2.0  # saves a number
        with no_grad():
            _ = np.exp(weight)
    expected = [x.data, y.data, scale]
    assert len(packer.packed) == len(expected)
    for one, other in zip(packer.packed, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_function_saves_inputs_outputs_and_other_arrays() -> None:
    class Silu(tg.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            sigmoid = 1.0 / (1.0 + np.exp(-x))
            y = x * sigmoid
            ctx.save_for_backward(x, sigmoid, y, "name")
            return y

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            x, sigmoid, y, name = ctx.saved_values
            assert name == "name"
            assert type(sigmoid) is np.ndarray
            np.testing.assert_allclose(y if isinstance(y, np.ndarray) else y.data, X * sigmoid)
            return gradient * (sigmoid + x * sigmoid * (1.0 - sigmoid))

    packer = Packer()
    x = x_leaf()
    with packer.block():
        y = Silu.apply(x * 1.0)
    assert len(packer.packed) == 3
    (found,) = tg.grad(y.sum(), [x], create_graph=True)
    plain = x_leaf()
    (expected,) = tg.grad(Silu.apply(plain * 1.0).sum(), [plain])
    same([found], [expected])
    assert packer.unpacked == 3


def test_numeric_gradients_of_both_orders() -> None:
    packer = Packer()

    def packed(x: Any, w: Any) -> Any:
        with packer.block():
            return (np.tanh(x @ w) * np.sin(x)).sum()

    w = tensor(np.eye(4) + 0.1, requires_grad=True)
    assert gradcheck(packed, [x_leaf(), w])
    assert gradgradcheck(packed, [x_leaf(), w])
    assert packer.unpacked


def test_the_innermost_block_holds_and_ends_with_an_error() -> None:
    outer, inner = Packer(), Packer()
    x = x_leaf() * 1.0
    with outer.block():
        with pytest.raises(ZeroDivisionError), inner.block():
            np.sin(x)
            raise ZeroDivisionError
        assert (len(outer.packed), len(inner.packed)) == (0, 1)
        np.sin(x)
        assert (len(outer.packed), len(inner.packed)) == (1, 1)
    np.sin(x)
    assert (len(outer.packed), len(inner.packed)) == (1, 1)


def test_it_decorates_a_function_and_goes_with_detect_anomaly() -> None:
    packer = Packer()

    @tg.saved_values(packer.pack, packer.unpack)
    def function(x: Any) -> Any:
        with tg.detect_anomaly():
            return np.sin(np.sin(x))

    function(x_leaf()).sum().backward()
    assert len(packer.packed) == packer.unpacked == 1


def test_a_block_holds_in_its_thread_alone() -> None:
    packers = [Packer(), Packer()]
    x = x_leaf() * 1.0

    def work(packer: Packer) -> Any:
        with packer.block():
            in_threads(lambda: np.sin(x))  # another thread: not packed
            return np.tanh(x)

    in_threads(*[lambda packer=packer: work(packer) for packer in packers])
    assert [len(packer.packed) for packer in packers] == [1, 1]


def test_two_threads_unpack_one_graph_at_once() -> None:
    results = []
    for block in (nullcontext(), Packer().block()):
        x = x_leaf()
        with block:
            y = nested_sum(x)
        gradient = partial(tg.grad, y, [x], retain_graph=True)
        results.append([each[0] for each in in_threads(*[gradient] * 4)])
    same(*results)


def nested_sum(x: Any) -> Any:
    tg.manual_seed(5)
    return nested(plainly, tensor(np.eye(4), requires_grad=True), x)


def test_an_array_that_pack_returns_itself_stays_as_without_it() -> None:
    def unpack(token: Any) -> Any:
        raise AssertionError(token)

    x = x_leaf()
    with tg.saved_values(lambda array: array, unpack):
        data = tensor(X)
        y = x * data
    y.sum().backward(retain_graph=True)
    np.testing.assert_allclose(x.grad.data, X)
    data += 1.0
    with pytest.raises(AutogradError, match="'multiply' saved for its gradient was changed in"):
        y.sum().backward()


def test_a_packed_value_may_change() -> None:
    x = x_leaf()
    with Packer().block():
        data = tensor(X)
        y = x * data
    data += 1.0
    y.sum().backward()
    np.testing.assert_allclose(x.grad.data, X)


@pytest.mark.parametrize(
    ("came", "words"),
    [
        (lambda array: array[1:], "float64 of shape (2, 4) on cpu"),
        (lambda array: array.astype(np.float32), "float32 of shape (3, 4) on cpu"),
        (lambda array: array.tolist(), "a list"),
        (lambda array: None, "a NoneType"),
    ],
)
@pytest.mark.parametrize("create_graph", [False, True])
def test_unpack_that_returns_something_else(
    came: Callable[[Any], Any], words: str, create_graph: bool
) -> None:
    x = x_leaf()
    with tg.saved_values(lambda array: (array,), lambda token: came(token[0])):
        y = np.exp(x).sum()
    with pytest.raises(AutogradError) as caught:
        tg.grad(y, [x], create_graph=create_graph)
    message = str(caught.value)
    assert f"unpack returned {words} for the result 'y' that 'exp' saved" in message
    assert "pack got float64 of shape (3, 4) on cpu" in message


@pytest.mark.parametrize("operation", [np.exp, Cube.apply, lambda x: np.linalg.qr(x @ x.T)])
def test_an_error_of_pack_is_that_of_the_operation_and_an_error_of_unpack_of_the_backward(
    operation: Any,
) -> None:
    def fail(array: Any) -> Any:
        raise OSError("the disk is full")

    x = x_leaf()
    h = x * 1.0
    with tg.saved_values(fail, fail), pytest.raises(OSError, match="disk is full"):
        operation(h)
    h.sum().backward(retain_graph=True)  # the graph before it is whole
    with tg.saved_values(lambda array: 1, fail):
        y = np.exp(h).sum()
    with pytest.raises(OSError, match="disk is full"):
        y.backward(retain_graph=True)


def test_an_in_place_operation_that_cannot_pack_changes_nothing() -> None:
    def fail(array: Any) -> Any:
        raise OSError("the disk is full")

    h = x_leaf() * 1.0
    with tg.saved_values(fail, fail), pytest.raises(OSError, match="disk is full"):
        h *= X
    np.testing.assert_array_equal(h.data, X)


def test_pack_and_unpack_record_nothing() -> None:
    """Else a pack that computes with a parameter would pack without end."""
    parameter = tensor(2.0, requires_grad=True)

    def pack(array: Any) -> Any:
        product = parameter * array
        assert not product.requires_grad
        return product.data

    def unpack(token: Any) -> Any:
        quotient = np.exp(np.log(np.abs(token) / parameter)) * np.sign(token)
        assert not quotient.requires_grad
        return quotient.data

    x = x_leaf()
    with tg.saved_values(pack, unpack):
        y = np.sin(x * 1.0).sum()
        (found,) = tg.grad(y, [x], create_graph=True)
    np.testing.assert_allclose(found.data, np.cos(X))


def test_modules_train_as_without_it() -> None:
    results = []
    for block in (nullcontext, Packer().block):
        tg.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))
        with block():
            loss = nn.functional.cross_entropy(model(X), np.array([0, 2, 1]))
        loss.backward()
        results.append([loss, *[each.grad for each in model.parameters()]])
    same(*results)


def test_values_move_to_the_host_and_back(xp: Any) -> None:
    """The arrays of each library; those of a GPU are the reason for the block."""
    x: Any = tensor(xp.asarray(X), requires_grad=True)
    with tg.saved_values(lambda array: to_host(array).copy(), xp.asarray):
        y = np.tanh(x * 2.0).sum()
    y.backward()
    assert isinstance(x.grad.data, xp.ndarray)
    np.testing.assert_allclose(to_host(x.grad.data), 2.0 / np.cosh(2.0 * X) ** 2)


def test_a_map_of_a_file_reaches_a_rule_as_an_array(tmp_path: Any) -> None:
    kinds: list[type] = []

    class Square(tg.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x, x + x)
            return x * x

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            kinds.extend(map(type, ctx.saved_values))
            return gradient * ctx.saved_values[1]

    def pack(array: Any) -> Any:
        held = np.memmap(tmp_path / str(id(array)), array.dtype, "w+", shape=array.shape)
        held[...] = array
        return held

    x = x_leaf()
    with tg.saved_values(pack, lambda held: held):
        y = Square.apply(x * 1.0).sum()
    y.backward()
    np.testing.assert_allclose(x.grad.data, 2.0 * X)
    assert kinds == [np.ndarray, np.ndarray]


def test_grad_modes_and_blocks_inside_each_other() -> None:
    packer = Packer()
    h = x_leaf() * 1.0
    with no_grad(), packer.block():
        assert not np.sin(h).requires_grad
        assert not packer.packed
        with enable_grad():
            assert np.sin(h).requires_grad
    assert len(packer.packed) == 1


def test_without_a_block_a_call_and_its_gradient_run_as_many_functions_as_ever() -> None:
    """Six and four, this test's own two among them; so too once a block is over."""
    h = x_leaf() * 1.0
    made: list[Any] = []

    def call() -> None:
        made.append(np.multiply(h, X))

    def gradient() -> None:
        made.pop().grad_fn.backward((X,))

    call()
    gradient()  # the plan of the operation is made
    before = functions_of(call), functions_of(gradient)
    with Packer().block():
        packed = functions_of(call), functions_of(gradient)
        assert all(len(each) > len(usual) for each, usual in zip(packed, before, strict=True))
    assert (functions_of(call), functions_of(gradient)) == before
    assert [len(each) for each in before] == [6, 4], before
