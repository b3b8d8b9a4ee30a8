"""Products of tensors and matrices of scipy.sparse, in either order."""

from __future__ import annotations

import operator
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from telegrad.autograd import Tensor, gradcheck, no_grad, tensor
from telegrad.errors import AutogradError
from tests.autograd.finite_differences import check_second_along_a_line
from tests.gpu.stand_in.stand_in import stand_in

FORMATS = ["csr", "csc", "coo", "bsr", "dia", "lil", "dok"]
KINDS = [f"{layout}_{kind}" for layout in FORMATS for kind in ("array", "matrix")]


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).uniform(0.5, 1.5, shape)


def dense(dtype: Any = np.float64) -> Any:
    """Four rows, three columns, a row and some items of zeros."""
    values = numbers(4, 3, seed=1) * (numbers(4, 3, seed=2) > 0.9)
    values[2] = 0.0
    return values.astype(dtype)


@pytest.fixture(params=KINDS)
def matrix(request: pytest.FixtureRequest) -> Any:
    return getattr(sparse, request.param)(dense())


@pytest.mark.parametrize("shape", [(3,), (3, 2), (3, 1), (3, 0)])
def test_matrix_at_tensor(matrix: Any, shape: tuple[int, ...]) -> None:
    x = tensor(numbers(*shape), requires_grad=True)
    y = matrix @ x
    assert isinstance(y, Tensor)
    np.testing.assert_allclose(y.data, dense() @ x.data, rtol=1e-14)
    assert gradcheck(lambda x: matrix @ x, x)
    check_second_along_a_line(lambda x: (matrix @ x) ** 2, x)


@pytest.mark.parametrize("shape", [(4,), (2, 4), (1, 4), (0, 4)])
def test_tensor_at_matrix(matrix: Any, shape: tuple[int, ...]) -> None:
    x = tensor(numbers(*shape), requires_grad=True)
    y = x @ matrix
    assert isinstance(y, Tensor)
    np.testing.assert_allclose(y.data, x.data @ dense(), rtol=1e-14)
    assert gradcheck(lambda x: x @ matrix, x)
    check_second_along_a_line(lambda x: (x @ matrix) ** 2, x)


def test_transposed_and_both_sides(matrix: Any) -> None:
    x = tensor(numbers(4, 2), requires_grad=True)
    y = matrix.T @ x
    np.testing.assert_allclose(y.data, dense().T @ x.data, rtol=1e-14)
    assert gradcheck(lambda x: matrix @ (matrix.T @ x), x)
    z = tensor(numbers(3, 4), requires_grad=True)
    assert gradcheck(lambda z: matrix @ z @ matrix, z)
    check_second_along_a_line(lambda z: (matrix @ z @ matrix) ** 2, z)


def test_what_needs_no_gradient_gives_a_tensor_too(matrix: Any) -> None:
    x = tensor(numbers(3, 2))
    for y in (matrix @ x, x.T @ matrix.T, matrix.tocsr().dot(x)):
        assert isinstance(y, Tensor)
        assert not y.requires_grad
    with no_grad():
        assert isinstance(matrix @ tensor(numbers(3), requires_grad=True), Tensor)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128])
@pytest.mark.parametrize("of", [np.int64, np.float32, np.float64, np.complex128])
def test_dtypes_are_scipys(dtype: Any, of: Any) -> None:
    matrix = sparse.csr_array((dense() * 4).astype(of))
    x = tensor(numbers(3, 2).astype(dtype), requires_grad=True)
    y = matrix @ x
    assert y.dtype == (matrix @ x.data).dtype
    y.backward(np.ones(y.shape, y.dtype))
    assert x.grad is not None
    assert x.grad.dtype == dtype


def test_complex_numbers() -> None:
    matrix = sparse.csr_array(dense() * (1 + 2j))
    x = tensor(numbers(3, 2) * (1 - 1j), requires_grad=True)
    assert gradcheck(lambda x: matrix @ x, x)
    check_second_along_a_line(lambda x: (matrix @ x) * (matrix @ x), x)
    assert gradcheck(lambda x: matrix @ x, tensor(numbers(3), requires_grad=True))


ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "matmul": np.matmul,
}


@pytest.mark.parametrize("kind", ["csr_array", "csr_matrix", "coo_array"])
@pytest.mark.parametrize("name", ARITHMETIC)
def test_all_else_is_refused_in_words(kind: str, name: str) -> None:
    """Nothing cuts a gradient off, and nothing makes an array of matrices."""
    matrix = getattr(sparse, kind)(dense())
    x = tensor(numbers(4, 3), requires_grad=True)
    operate = ARITHMETIC[name]
    with pytest.raises(TypeError, match=rf"{name} of a tensor and a sparse matrix.*toarray"):
        operate(x, matrix)
    with pytest.raises((TypeError, AutogradError), match="sparse matrix|cut it off|Boolean"):
        operate(matrix, x)
    np.testing.assert_allclose((x + matrix.toarray()).data, x.data + dense())


def test_shapes_that_do_not_fit_say_so() -> None:
    matrix = sparse.csr_array(dense())
    with pytest.raises(ValueError, match="sparse product takes a matrix and a vector"):
        matrix @ tensor(numbers(2, 3, 2))
    with pytest.raises(ValueError, match="sparse product takes a matrix"):
        sparse.coo_array(np.ones(3)) @ tensor(numbers(3))
    with pytest.raises(ValueError, match="mismatch"):
        matrix @ tensor(numbers(4))


def test_scipys_own_arrays_are_made_of_tensors_as_before() -> None:
    x = tensor(dense())
    np.testing.assert_array_equal(sparse.csr_array(x).toarray(), dense())
    with pytest.raises(ValueError, match="requires_grad"):
        sparse.csr_array(tensor(dense(), requires_grad=True))


class _SparseOfGpu:
    """What telegrad uses of a matrix of cupyx.scipy.sparse."""

    ndim = 2

    def __init__(self, xp: Any, host: Any) -> None:
        self.xp, self.host, self.shape = xp, host, host.shape

    @property
    def T(self) -> _SparseOfGpu:
        return _SparseOfGpu(self.xp, self.host.T)

    def __matmul__(self, other: Any) -> Any:
        if not isinstance(other, self.xp.ndarray):
            return NotImplemented
        return self.xp.asarray(self.host @ other.get())


_SparseOfGpu.__module__ = "cupyx.scipy.sparse"


def test_matrices_of_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the stand-in: the product is that of the matrix' own library, never a copy to the host."""
    cupy = stand_in()
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    module = types.SimpleNamespace(issparse=lambda x: isinstance(x, _SparseOfGpu))
    monkeypatch.setitem(sys.modules, "cupyx.scipy.sparse", module)
    matrix = _SparseOfGpu(cupy, sparse.csr_array(dense()))
    x = tensor(cupy.asarray(numbers(3, 2)), requires_grad=True)
    z = tensor(cupy.asarray(numbers(2, 4)), requires_grad=True)
    assert gradcheck(lambda x: matrix @ x, x)
    assert gradcheck(lambda z: z @ matrix, z)
    check_second_along_a_line(lambda x: (matrix @ x) ** 2, x)
    with pytest.raises(ValueError, match=r"tensor.to\(device\)"):
        matrix @ tensor(numbers(3), requires_grad=True)
    with pytest.raises(ValueError, match=r"tensor.to\(device\)"):
        sparse.csr_array(dense()) @ x
