"""Decompositions where something is free: phases, rotations, the vectors that complete a basis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from telegrad.autograd import Tensor, gradcheck, tensor
from telegrad.errors import AutogradError
from tests.autograd.finite_differences import check_second_along_a_line
from tests.autograd.samples.algebra.decompositions import complex_matrix, matrix
from tests.autograd.samples.algebra.linear_systems import hermitian
from tests.autograd.samples.sample import of_shape

TURNING = np.array([[0.3, -1.2, 0.5], [0.9, 0.4, -0.3], [0.2, 0.1, 2.0]])


def adjoint(x: Any) -> Any:
    return np.conjugate(np.swapaxes(x, -1, -2))


def size(x: Any) -> Any:
    """Squared absolute values, which have no phase."""
    return np.real(x * np.conjugate(x))


def projection(x: Any) -> Any:
    return x @ adjoint(x)


def of_eigh(a: Any) -> Any:
    values, vectors = np.linalg.eigh(hermitian(a))
    return vectors @ (np.exp(values)[..., None] * adjoint(vectors)), size(vectors)


def of_eig(a: Any) -> Any:
    values, vectors = np.linalg.eig(a)
    power = vectors @ (np.exp(values)[..., None] * np.linalg.inv(vectors))
    return power, size(vectors), size(adjoint(vectors) @ vectors)


def of_svd(a: Any) -> Any:
    u, s, vh = np.linalg.svd(a, full_matrices=False)
    return (u * np.sqrt(s)[..., None, :]) @ vh, size(u), size(vh)


def of_full_svd(a: Any) -> Any:
    u, s, vh = np.linalg.svd(a)
    n = s.shape[-1]
    return (
        (u[..., :n] * s[..., None, :] ** 2) @ vh[..., :n, :],
        projection(u[..., n:]),
        projection(adjoint(vh)[..., n - 1 :]),
    )


def of_complete_qr(a: Any) -> Any:
    q, r = np.linalg.qr(a, mode="complete")
    n = a.shape[-1]
    return q[..., :n], r, projection(q[..., n:])


CASES: list[tuple[Callable[..., Any], Any]] = [
    (of_eigh, complex_matrix(2, 2)),
    (of_eigh, matrix(3, 3)),
    (of_eig, complex_matrix(2, 2)),
    (of_eig, TURNING),
    (of_svd, complex_matrix(2, 2)),
    (of_svd, complex_matrix(3, 2)),
    (of_svd, complex_matrix(2, 1, 2)),
    (of_full_svd, complex_matrix(3, 1)),
    (of_full_svd, complex_matrix(1, 3)),
    (of_full_svd, matrix(4, 2)),
    (of_complete_qr, matrix(4, 2)),
    (of_complete_qr, complex_matrix(3, 1)),
]
NAMES = [f"{function.__name__}-{a.dtype.kind}{a.shape}" for function, a in CASES]


@pytest.mark.parametrize(("function", "a"), CASES, ids=NAMES)
def test_what_does_not_depend_on_the_choice_has_a_gradient(function: Any, a: Any) -> None:
    x = Tensor(a, requires_grad=True)
    assert gradcheck(function, x)
    check_second_along_a_line(function, x)


def test_the_gradient_of_a_hermitian_matrix_is_hermitian() -> None:
    a = Tensor(hermitian(complex_matrix(3, 3)), requires_grad=True)
    values, vectors = np.linalg.eigh(a)
    (values[0] + size(vectors[0, 1]) + np.linalg.svd(a, hermitian=True).S[0]).backward()
    assert a.grad is not None
    np.testing.assert_allclose(a.grad.data, adjoint(a.grad.data), atol=1e-14)
    below = Tensor(a.data, requires_grad=True)
    np.real(np.linalg.pinv(below, hermitian=True)[1, 0]).backward()
    assert below.grad is not None
    np.testing.assert_allclose(below.grad.data, adjoint(below.grad.data), atol=1e-14)


def test_one_triangle_is_read() -> None:
    a = hermitian(complex_matrix(3, 3))
    uplo: Any
    for uplo, triangle in (("L", np.tril(a)), ("U", np.triu(a))):
        leaves: Any = [Tensor(x, requires_grad=True) for x in (a, triangle)]
        for x in leaves:
            values, vectors = np.linalg.eigh(x, uplo)
            (values[0] + size(vectors[0, 1])).backward()
        np.testing.assert_allclose(leaves[0].grad.data, leaves[1].grad.data, atol=1e-13)


@pytest.mark.parametrize("values", [np.linalg.eigvalsh, np.linalg.eigvals, np.linalg.svdvals])
def test_equal_values_alone_have_a_gradient(values: Any) -> None:
    a: Any = tensor(np.eye(3), requires_grad=True)
    np.real(values(a)).sum().backward()
    np.testing.assert_allclose(a.grad.data, np.eye(3), atol=1e-15)


@pytest.mark.parametrize(
    "loss",
    [
        lambda a: np.linalg.eigh(a)[1][:, 1],
        lambda a: of_eigh(a)[0],  # has a derivative, but not by way of the vectors
        lambda a: np.linalg.eig(a)[1][:, 0],
        lambda a: np.linalg.svd(a)[0][:, 1],
        lambda a: np.linalg.svd(a)[2][1],
    ],
)
def test_vectors_of_equal_values_raise(loss: Any) -> None:
    a = tensor(np.diag([1.0, 1.0, 3.0]), requires_grad=True)
    with pytest.raises(AutogradError, match="has no gradient here: values are equal"):
        loss(a).sum().backward()


def test_vectors_of_the_value_0_raise() -> None:
    a = tensor(np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]), requires_grad=True)
    u, s, vh = np.linalg.svd(a, full_matrices=False)
    with pytest.raises(AutogradError, match="svd has no gradient here: values are 0"):
        ((u * s) @ vh).sum().backward()


def test_vectors_beside_equal_values_have_a_gradient() -> None:
    a = Tensor(np.diag([1.0, 1.0, 3.0]), requires_grad=True)

    def largest(x: Any) -> Any:
        values, vectors = np.linalg.eigh(hermitian(x))
        u, s, vh = np.linalg.svd(x)
        return values[2] * projection(vectors[:, 2:]), s[0] * u[:, :1] @ vh[:1]

    assert gradcheck(largest, a)


def test_a_matrix_without_full_rank_has_no_gradient_of_qr() -> None:
    a = tensor(np.ones((2, 2)) * [[1.0, 0.0]], requires_grad=True)
    with pytest.raises(np.linalg.LinAlgError):
        np.linalg.qr(a)[0].sum().backward()


def test_qr_raw_is_refused() -> None:
    with pytest.raises(TypeError, match="knows the modes reduced, complete and r, not 'raw'"):
        np.linalg.qr(tensor(np.eye(2)), mode="raw")


def test_results_keep_their_names() -> None:
    a = tensor(matrix(3, 2))
    assert np.linalg.svd(a).Vh.shape == (2, 2)
    assert np.linalg.qr(a).R.shape == (2, 2)
    assert np.linalg.eigh(a[:2]).eigenvectors.shape == (2, 2)
    assert np.linalg.eig(a[:2]).eigenvalues.shape == (2,)
    rank: Any = np.linalg.lstsq(a, of_shape((3,)))[2]
    assert rank.item() == 2
    assert not rank.requires_grad


def test_least_squares_of_deficient_rank() -> None:
    """The shortest solution: what changes the rank is left out of the gradient."""
    column, row = of_shape((3, 1)), of_shape((1, 2), seed=1)

    def solution(x: Any, y: Any, b: Any) -> Any:
        return np.linalg.lstsq(x @ y, b)[0], np.linalg.pinv(x @ y)

    leaves = [Tensor(x, requires_grad=True) for x in (column, row, of_shape((3,), seed=2))]
    assert gradcheck(solution, leaves)
