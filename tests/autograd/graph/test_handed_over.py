"""What a backward computes for a leaf becomes its `grad` without a copy, if nobody else has it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from telegrad.autograd import Function, FunctionContext, Tensor, grad, tensor

HELD: list[Any] = []
MADE: list[weakref.ref[Any]] = []


class Made(Function):
    """Its gradient is what `make` returns; forgets it, but for what `HELD` keeps."""

    @staticmethod
    def forward(ctx: FunctionContext, *args: Any) -> Any:
        x, ctx.make = args  # type: ignore[attr-defined]
        return x.sum()

    @staticmethod
    def backward(ctx: FunctionContext, *gradients: Any) -> Any:
        made = ctx.make()  # type: ignore[attr-defined]
        MADE.append(weakref.ref(made if made.base is None else made.base))
        return made, None


@pytest.fixture(autouse=True)
def nothing_is_held() -> Any:
    HELD.clear()
    MADE.clear()
    yield
    HELD.clear()
    MADE.clear()


def kept(array: Any) -> Any:
    HELD.append(array)
    return array


def read_only() -> Any:
    array = np.ones((2, 3))
    array.flags.writeable = False
    return array


class Lent:
    """Memory of another library on the GPU, as it says."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.__cuda_array_interface__ = array.__cuda_array_interface__


def gradient_of(xp: Any, make: Callable[[], Any]) -> Tensor:
    x = tensor(xp.zeros((2, 3)), requires_grad=True)
    Made.apply(x, make).backward()
    assert x.grad is not None
    return x.grad


@pytest.mark.parametrize(
    "make",
    [
        lambda xp: xp.ones((2, 3)),
        lambda xp: xp.ones((3, 2)).T,
        lambda xp: xp.ones(6).reshape(2, 3),
    ],
)
def test_an_array_that_nobody_else_has_is_kept(xp: Any, make: Any) -> None:
    found = gradient_of(xp, lambda: make(xp))
    assert MADE[0]() is (found.data if found.data.base is None else found.data.base)


def is_a_copy(found: Tensor) -> None:
    """Nothing that something else holds shows through, and it keeps no more memory than it shows."""
    for array in HELD:
        array[...] = 7.0
    assert found.tolist() == [[1.0] * 3] * 2
    assert found.data.base is None
    assert HELD or MADE[0]() is None


@pytest.mark.parametrize(
    "make",
    [
        lambda xp: kept(xp.ones((2, 3))),
        lambda xp: kept(xp.ones((2, 3)))[:],
        lambda xp: kept(xp.ones(6)).reshape(2, 3),
        lambda xp: kept(xp.ones((3, 2)).T),
        lambda xp: xp.ones((4, 3))[:2],  # would keep twice as much
    ],
)
def test_any_other_is_copied(xp: Any, make: Any) -> None:
    is_a_copy(gradient_of(xp, lambda: make(xp)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.broadcast_to(kept(np.ones(3)), (2, 3)),
        lambda: np.frombuffer(kept(np.ones(6)).data).reshape(2, 3),
        read_only,
    ],
)
def test_what_may_not_be_written_into_or_is_lent_is_copied(make: Any) -> None:
    found = gradient_of(np, make)
    is_a_copy(found)
    assert found.data.flags.writeable


def test_what_another_library_lends_on_a_gpu_is_copied(cupy: Any) -> None:
    is_a_copy(gradient_of(cupy, lambda: cupy.asarray(Lent(kept(cupy.ones((2, 3)))))))


def test_leaves_that_get_one_array_have_one_each() -> None:
    x, y, z = (tensor(np.zeros(3), requires_grad=True) for _ in range(3))
    (x + y + z).backward(np.ones(3))
    arrays = [leaf.grad.data for leaf in (x, y, z) if leaf.grad is not None]
    for i, array in enumerate(arrays):
        array += i
    assert [array.tolist() for array in arrays] == [[1.0] * 3, [2.0] * 3, [3.0] * 3]


def test_what_the_caller_and_hooks_have_stays_theirs() -> None:
    x = tensor(np.zeros(3), requires_grad=True)
    given = np.ones(3)
    x.backward(given)
    y = tensor(np.zeros(3), requires_grad=True)
    y.register_hook(lambda g: HELD.append(g.data))
    (y * 2).sum().backward()
    middle = (y * 2).sum(keepdims=True)
    middle.retain_grad()
    middle.backward(np.ones(1))
    for leaf in (x, y, middle):
        assert leaf.grad is not None
        leaf.grad.data[...] = 7.0
    assert given.tolist() == [1.0] * 3
    assert HELD[0].tolist() == [2.0] * 3


@pytest.mark.parametrize(
    ("make", "own"),
    [(lambda: np.ones((2, 3)), True), (lambda: kept(np.ones((2, 3))), False), (read_only, False)],
)
def test_a_sum_is_in_the_memory_of_the_gradient_that_nobody_else_has(make: Any, own: bool) -> None:
    x = tensor(np.zeros((2, 3)), requires_grad=True)
    Made.apply(x, lambda: np.full((2, 3), 4.0)).backward()
    before = x.grad
    Made.apply(x, make).backward()
    assert before is not None
    assert x.grad is not None
    assert (MADE[1]() is x.grad.data) == own
    assert before.tolist() == [[4.0] * 3] * 2
    assert x.grad.tolist() == [[5.0] * 3] * 2
    assert all((array == 1.0).all() for array in HELD)


def test_grad_copies_nothing_that_nobody_else_has() -> None:
    x = tensor(np.zeros((2, 3)), requires_grad=True)
    (found,) = grad(Made.apply(x, lambda: np.ones((2, 3))), x)
    assert MADE[0]() is found.data
    (other,) = grad(Made.apply(x, lambda: kept(np.ones((2, 3)))), x)
    assert not np.shares_memory(other.data, HELD[0])


@pytest.mark.parametrize("twice", [False, True])
def test_what_grad_returns_has_memory_of_its_own(twice: bool) -> None:
    x, y, z = (tensor(np.zeros(3), requires_grad=True) for _ in range(3))
    given = np.ones(3)
    asked = [x, y, x, z] if twice else [x, y, z]
    found = [each.data for each in grad(x + y + z, asked, given)]
    for i, array in enumerate(found):
        array += i
    assert [array.tolist() for array in found] == [[1.0 + i] * 3 for i in range(len(asked))]
    assert given.tolist() == [1.0] * 3


def test_what_grad_returns_is_not_what_the_graph_keeps() -> None:
    x, factor = tensor(np.zeros(3), requires_grad=True), np.full(3, 2.0)
    loss = (x * factor).sum()
    for _ in range(2):
        (found,) = grad(loss, x, retain_graph=True)
        assert found.data.tolist() == [2.0] * 3
        found.data[...] = 7.0
    picked = Made.apply(x, lambda: factor)
    for _ in range(2):
        (found,) = grad(picked, x, retain_graph=True)
        found.data[...] = 7.0
    assert factor.tolist() == [2.0] * 3


def with_two_uses(make: Callable[[], Any]) -> tuple[Tensor, list[Any]]:
    """The gradient of what is used twice, and the arrays that its two uses gave."""
    made: list[Any] = []

    def noted() -> Any:
        array = make()
        made.append(weakref.ref(array))
        return array

    x = tensor(np.zeros((2, 3)), requires_grad=True)
    between = x * 1.0
    found: list[Tensor] = []
    between.register_hook(found.append)
    (Made.apply(between, noted) + Made.apply(between, noted)).backward()
    return found[0], made


def test_what_nobody_else_has_is_added_to_in_place() -> None:
    total, (first, second) = with_two_uses(lambda: np.ones((2, 3)))
    assert total.data is first()
    assert second() is None
    assert total.tolist() == [[2.0] * 3] * 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: kept(np.ones((2, 3))),
        lambda: kept(np.ones((3, 2))).T,
        lambda: np.broadcast_to(np.ones(3), (2, 3)),
        read_only,
    ],
)
def test_what_others_may_have_is_added_to_in_an_array_of_its_own(make: Any) -> None:
    total, (first, second) = with_two_uses(make)
    assert total.data is not first()
    assert total.data is not second()
    assert total.tolist() == [[2.0] * 3] * 2
    assert all((array == 1.0).all() for array in HELD)
