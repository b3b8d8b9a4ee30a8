"""Every operation against finite differences, to second order; one line each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from telegrad.autograd import Tensor, gradcheck, gradgradcheck, ops, tensor
from tests.autograd.operation_cases import CASES, arrays_of, in_dtype, signed

S23 = signed(2, 3)


@pytest.mark.parametrize("name", CASES)
def test_gradient(name: str) -> None:
    func, inputs = CASES[name]
    assert gradcheck(func, inputs)


@pytest.mark.parametrize("name", CASES)
def test_gradient_of_gradient(name: str) -> None:
    func, inputs = CASES[name]
    assert gradgradcheck(func, inputs)


@pytest.mark.parametrize("name", CASES)
def test_value_is_what_arrays_give(name: str) -> None:
    func, inputs = CASES[name]
    expected = func(*arrays_of(inputs))
    np.testing.assert_array_equal(func(*inputs).data, _data(expected))


def _data(x: Any) -> Any:
    return x.data if isinstance(x, Tensor) else x


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("name", CASES)
def test_dtype_stays(name: str, dtype: Any) -> None:
    func, inputs = CASES[name]
    short = in_dtype(inputs, dtype)
    result = func(*short)
    result.sum().backward()
    for x in short:
        if isinstance(x, Tensor):
            assert x.grad is not None
            assert x.grad.dtype == dtype
    if not any(word in name for word in ("array", "astype")):
        assert result.dtype == dtype


def test_equal_items_share_the_gradient() -> None:
    x = tensor([1.0, 2.0, 2.0], requires_grad=True)
    x.max().backward()
    assert x.grad is not None
    assert x.grad.data.tolist() == [0.0, 0.5, 0.5]
    y = tensor([1.0, 2.0], requires_grad=True)
    z = tensor([1.0, 1.0], requires_grad=True)
    np.maximum(y, z).sum().backward()
    assert y.grad is not None
    assert z.grad is not None
    assert (y.grad.data.tolist(), z.grad.data.tolist()) == ([0.5, 1.0], [0.5, 0.0])


def test_a_repeated_index_adds_up() -> None:
    x = tensor([1.0, 2.0], requires_grad=True)
    x[np.array([0, 0, 1])].sum().backward()
    assert x.grad is not None
    assert x.grad.data.tolist() == [2.0, 1.0]


@pytest.mark.parametrize("index", [range(-2, 2), (range(-2, 2),), [np.int64(0), 0, -1, 1]])
def test_an_index_of_any_kind_may_repeat(index: Any) -> None:
    """`range(-2, 2)` of two items names each of them twice; the gradient had 1 for it."""
    x = tensor([1.0, 2.0], requires_grad=True)
    x[index].sum().backward()
    assert x.grad is not None
    assert x.grad.data.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("kind", ["list", "array", "tensor", "in a tuple", "in a list"])
@pytest.mark.parametrize("how", ["read", "assign"])
def test_an_index_may_be_changed_after_its_use(kind: str, how: str) -> None:
    """As a shuffled permutation is: the gradient went to the items that it names later."""
    raw: Any = [0, 1] if kind in ("list", "in a list") else np.array([0, 1])
    held = tensor(raw) if kind == "tensor" else raw
    index = (held,) if kind == "in a tuple" else [held] if kind == "in a list" else held
    x = tensor([1.0, 2.0, 3.0], requires_grad=True)
    if how == "read":
        y = x[index]
        expected = [1.0, 1.0, 0.0]
    else:
        y = x * 1.0
        y[index] = 0.0
        expected = [0.0, 0.0, 1.0]
    changed: Any = held.data if isinstance(held, Tensor) else held
    changed[0], changed[1] = 2, 2
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.data.tolist() == expected


def test_an_empty_list_is_an_index() -> None:
    x = tensor([1.0, 2.0], requires_grad=True)
    x[[]].sum().backward()
    assert x.grad is not None
    assert x.grad.data.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("reduce", [np.mean, np.max, np.min])
def test_a_16_bit_dtype_need_not_hold_the_number_of_items(reduce: Any) -> None:
    """float16 ends at 65504: the gradient of a longer mean was 0."""
    x = tensor(np.ones(100_000), dtype=np.float16, requires_grad=True)
    reduce(x).backward(np.array(1000.0))
    assert x.grad is not None
    np.testing.assert_array_equal(x.grad.data, np.full(100_000, 0.01, np.float16))


def test_power_at_zero() -> None:
    x = tensor([0.0, 2.0], requires_grad=True)
    (x**2 + x**0 + x**1).sum().backward()
    assert x.grad is not None
    assert x.grad.data.tolist() == [1.0, 5.0]


def test_gradcheck_finds_a_wrong_rule() -> None:
    wrong = ops.exp.__class__("wrong", np.sin, "a", a=lambda g, a: g * np.cos(a) * 1.01)
    with pytest.raises(RuntimeError, match="the gradient of input 0 is wrong"):
        gradcheck(wrong, [S23])


def test_gradgradcheck_finds_a_gradient_that_is_cut_off() -> None:
    def cut(g: Any, a: Any) -> Any:
        result = g * np.cos(a)
        return result.detach() if isinstance(result, Tensor) else result

    wrong = ops.exp.__class__("wrong", np.sin, "a", a=cut)
    assert gradcheck(wrong, [S23])
    with pytest.raises(RuntimeError, match="the gradient of input 0 is wrong"):
        gradgradcheck(wrong, [S23])


def test_gradcheck_wants_float64() -> None:
    with pytest.raises(RuntimeError, match="float64"):
        gradcheck(np.exp, tensor([1.0], dtype=np.float32, requires_grad=True))
