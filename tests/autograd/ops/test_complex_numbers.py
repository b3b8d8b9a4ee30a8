"""Complex numbers through items, where a phase has no direction, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from telegrad.autograd import Tensor, gradcheck, gradgradcheck
from tests.autograd.samples.sample import complex_numbers

Z = complex_numbers((2, 2))
W = complex_numbers((2, 2), seed=3)


def leaf(x: Any) -> Tensor:
    return Tensor(x, requires_grad=True)


def test_items() -> None:
    def changed(x: Any, y: Any) -> Any:
        whole = x * 1
        whole[0] = y[1] * whole[1, ::-1]
        return whole[[0, 0, 1]], whole[whole.data.real > 0.3], whole.T

    assert gradcheck(changed, [leaf(Z), leaf(W)])
    assert gradgradcheck(changed, [leaf(Z), leaf(Z.real)])


def test_comparisons_are_constant() -> None:
    x: Any = leaf(Z)
    for result in (x == x, x != W, np.isreal(x), np.iscomplex(x), np.isnan(x), np.isfinite(x)):
        assert not result.requires_grad
        assert result.dtype == np.bool_
    assert np.iscomplexobj(x)
    assert not np.isrealobj(x)


@pytest.mark.parametrize("function", [np.absolute, np.sign, np.angle, lambda z: np.angle(z, True)])
def test_at_0_where_there_is_no_direction_the_gradient_is_0(function: Any) -> None:
    x: Any = leaf(np.array([0.0, 0.3 + 0.4j]))
    function(x).backward(np.ones(2))
    assert x.grad.data[0] == 0
    assert np.isfinite(x.grad.data).all()
    assert x.grad.data[1] != 0


def test_the_angle_of_real_numbers_is_constant() -> None:
    x: Any = leaf(np.array([-1.0, 0.0, 2.0]))
    np.angle(x).sum().backward()
    np.testing.assert_array_equal(x.grad.data, 0.0)


def test_real_if_close() -> None:
    x: Any = leaf(np.array([1.0, 2.0]) + 0j)
    y: Any = np.real_if_close(x)
    assert y.dtype == np.float64
    y.backward(np.array([3.0, 4.0]))
    np.testing.assert_array_equal(x.grad.data, [3.0, 4.0])
    z: Any = leaf(Z)
    assert np.real_if_close(z) is z
