"""Determinants of singular matrices, gradients of Cholesky factors, norms at their kinks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from telegrad import numpy as tnp
from telegrad.autograd import Tensor, extend, grad, tensor
from telegrad.autograd.extend import Tier
from telegrad.errors import AutogradError
from tests.autograd.samples.algebra.linear_systems import hermitian
from tests.autograd.samples.sample import complex_numbers, of_shape

SINGULAR = {
    "rank 2, det exactly 0": np.array([[1.0, 2.0, 0.5], [2.0, 4.0, 1.0], [0.0, 1.0, 3.0]]),
    "rank 2, det not quite 0": np.arange(1.0, 10.0).reshape(3, 3),
    "rank 1": np.ones((3, 3)),
    "rank 0": np.zeros((3, 3)),
    "regular": of_shape((3, 3)) + np.eye(3),
    "tiny": 1e-130 * (of_shape((3, 3)) + np.eye(3)),
    "of four": np.diag([1.0, 2.0, 0.0, 3.0])[::-1],
    "one number": np.zeros((1, 1)),
}


def leaf(x: Any) -> Any:
    return Tensor(x, requires_grad=True)


def minor(a: Any, i: int, j: int) -> Any:
    return np.delete(np.delete(a, i, 0), j, 1)


def cofactors(a: Any) -> Any:
    """By their definition."""
    n = len(a)
    found = [[(-1) ** (i + j) * np.linalg.det(minor(a, i, j)) for j in range(n)] for i in range(n)]
    return np.array(found)


@pytest.mark.parametrize("a", SINGULAR.values(), ids=SINGULAR.keys())
def test_the_gradient_of_det_is_the_matrix_of_cofactors(a: Any) -> None:
    """Where the inverse was used for them, a singular matrix raised, or gave digits of rounding."""
    x = leaf(a)
    tnp.linalg.det(x).backward()
    expected = cofactors(a)
    scale = np.abs(expected).max() or 1.0
    np.testing.assert_allclose(x.grad.data / scale, expected / scale, atol=1e-13)


@pytest.mark.parametrize("a", SINGULAR.values(), ids=SINGULAR.keys())
def test_the_second_derivative_of_det_is_of_minors(a: Any) -> None:
    if len(a) < 3:
        return
    x = leaf(a)
    (first,) = grad(tnp.linalg.det(x), [x], create_graph=True)
    (second,) = grad(first[0, 0], [x])
    expected = np.zeros_like(a)
    expected[1:, 1:] = cofactors(minor(a, 0, 0))
    np.testing.assert_allclose(second.data, expected, atol=1e-12)


def test_one_singular_matrix_of_several() -> None:
    a = np.stack([np.ones((2, 2)), [[1.0, 2.0], [3.0, 4.0]]])
    x = leaf(a)
    tnp.linalg.det(x).sum().backward()
    np.testing.assert_allclose(x.grad.data, [[[1, -1], [-1, 1]], [[4, -3], [-2, 1]]], atol=1e-14)


def third_derivative_of_det(a: Any) -> Any:
    x = leaf(a)
    y: Any = tnp.linalg.det(x)
    for i in range(3):
        (slopes,) = grad(y, [x], create_graph=True)
        y = slopes[i, i]
    return y.item()


def test_the_third_derivative_of_det_is_of_regular_matrices_alone() -> None:
    assert abs(third_derivative_of_det(SINGULAR["regular"]) - 1.0) < 1e-12
    with pytest.raises(AutogradError, match="cofactors_slope has no gradient with respect to a"):
        third_derivative_of_det(SINGULAR["rank 1"])


def test_slogdet_of_a_singular_matrix_has_no_gradient() -> None:
    x = leaf(np.ones((2, 2)))
    sign, logarithm = tnp.linalg.slogdet(x)
    assert (sign.item(), logarithm.item()) == (0.0, -np.inf)
    with pytest.raises(np.linalg.LinAlgError, match="Singular"):
        logarithm.backward()


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_the_gradient_of_cholesky_is_hermitian(upper: bool, dtype: Any) -> None:
    part = of_shape((3, 3)) if dtype is np.float64 else complex_numbers((3, 3))
    x = leaf(hermitian(part @ part.conj().T + np.eye(3)))
    factor = tnp.linalg.cholesky(x, upper=upper)
    factor.backward(of_shape((3, 3), seed=1) + 0 * part)
    np.testing.assert_allclose(x.grad.data, hermitian(x.grad.data), atol=1e-14)


@pytest.mark.parametrize("order", [None, 1, 2, 3, 0.5, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_the_norm_of_a_zero_vector_has_gradient_zero(order: Any, dtype: Any) -> None:
    x = leaf(np.zeros(3, dtype))
    tnp.linalg.norm(x, order).backward()
    assert x.grad.data.tolist() == [0.0, 0.0, 0.0]
    x = leaf(np.array([[0.0, 0.0], [0.0, 2.0]], dtype))
    y = tnp.linalg.norm(x, 2 if order == -np.inf else order, axis=1).sum()
    (first,) = grad(y, [x], create_graph=True)
    np.testing.assert_allclose(first.data, [[0, 0], [0, 1]])
    (second,) = grad(np.real(first).sum(), [x], allow_unused=True)
    assert second is None or np.isfinite(second.data).all()


@pytest.mark.parametrize("order", ["fro", "nuc", 2, -2, 1, -1, np.inf, -np.inf])
def test_the_norm_of_a_zero_matrix_has_gradient_zero(order: Any) -> None:
    x = leaf(np.zeros((2, 3)))
    tnp.linalg.norm(x, order).backward()
    assert (x.grad.data == 0).all()


def test_ties_share_the_gradient_of_a_norm() -> None:
    x = leaf(np.array([2.0, -2.0, 1.0]))
    tnp.linalg.norm(x, np.inf).backward()
    assert x.grad.data.tolist() == [0.5, -0.5, 0.0]
    y = leaf(3.0 * np.eye(2))
    tnp.linalg.norm(y, 2).backward()
    np.testing.assert_allclose(y.grad.data, 0.5 * np.eye(2), atol=1e-15)


def test_a_norm_of_many_powers_does_not_overflow() -> None:
    x = leaf(np.array([1e-60, 3e10, 4e10]))
    tnp.linalg.norm(x, 20).backward()
    ratio = (3 / 4) ** 20
    slope = (1 + ratio) ** (1 / 20 - 1)
    np.testing.assert_allclose(x.grad.data, [0.0, slope * (3 / 4) ** 19, slope], atol=1e-15)


def test_counting_norms_and_ranks_are_constant() -> None:
    x = leaf(np.array([1.0, 0.0, 3.0]))
    y = tnp.linalg.norm(x, 0)
    assert y.item() == 2.0
    assert grad(y, [x], allow_unused=True) == (None,)
    assert extend.tier_of(np.linalg.matrix_rank) is Tier.CONSTANT


def test_vectors_of_two_items_have_no_cross_product() -> None:
    x: Any = tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(ValueError, match="vectors of 3 items, not of 2 and 2; append a 0"):
        np.cross(x, x)
    with pytest.raises(ValueError, match="two vectors, not 1 and 2 axes"):
        np.linalg.outer(x, np.ones((1, 1)))


def test_many_matrices_are_multiplied_in_the_cheapest_order() -> None:
    """Of lengths 1000, 1, 1000, 1, 1000 no pair need make 10^6 items but the last."""
    a: Any = [leaf(np.ones(shape)) for shape in ((1000, 1), (1, 1000), (1000, 1), (1, 1000))]
    last = tnp.linalg.multi_dot(a).grad_fn
    assert max(np.prod(shape) for shape, _ in last._inputs) <= 1000
