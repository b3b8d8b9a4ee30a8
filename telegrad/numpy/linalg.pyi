"""The types of `telegrad.numpy.linalg`; see `telegrad.numpy`."""

from typing import Any, Literal, NamedTuple, overload

from telegrad.autograd import Tensor
from telegrad.autograd.function_types import Function

__all__: list[str]

def __getattr__(name: str) -> Any: ...

class _Eig(NamedTuple):
    eigenvalues: Tensor
    eigenvectors: Tensor

class _QR(NamedTuple):
    Q: Tensor
    R: Tensor

class _SVD(NamedTuple):
    U: Tensor
    S: Tensor
    Vh: Tensor

class _Slogdet(NamedTuple):
    sign: Tensor
    logabsdet: Tensor

eig: Function[_Eig]
eigh: Function[_Eig]
lstsq: Function[tuple[Tensor, Tensor, Tensor, Tensor]]
slogdet: Function[_Slogdet]

@overload
def qr(a: Tensor, mode: Literal["reduced", "complete"] = "reduced") -> _QR: ...
@overload
def qr(a: Any, mode: str = "reduced") -> Any: ...
@overload
def svd(
    a: Tensor,
    full_matrices: bool = True,
    compute_uv: Literal[True] = True,
    hermitian: bool = False,
) -> _SVD: ...
@overload
def svd(
    a: Any, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False
) -> Any: ...

_tensor: Function[Tensor]

cholesky = cond = cross = det = diagonal = eigvals = eigvalsh = inv = matmul = matrix_norm = _tensor
matrix_power = matrix_rank = matrix_transpose = multi_dot = norm = outer = pinv = solve = _tensor
svdvals = tensordot = tensorinv = tensorsolve = trace = vecdot = vector_norm = _tensor
