"""How the arguments of products, of linear algebra and of Fourier transforms are drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
from golden.builder import Builder, Value
from golden.domains import Drawing, axis_of, bounded, each, is_complex, real, vector

__all__ = ["MATRICES"]


# -- matrices from whatever there is -------------------------------------------------------------


def matrix(b: Builder, x: Value, *, batched: bool = True) -> Value:
    """At least 2 by 2, at most 4 by 4."""
    a = b.of(x)
    if a.ndim >= 2 and all(2 <= k <= 4 for k in a.shape[-2:]) and (batched or a.ndim == 2):
        return x
    if a.size in (4, 6, 8, 9, 12):
        return b.emit(
            "reshape", x, {4: (2, 2), 6: (2, 3), 8: (2, 4), 9: (3, 3), 12: (3, 4)}[a.size]
        )
    b.need(a.ndim < 2 and a.size <= 4)
    return b.emit("multiply", x, b.constant(3, a.size if a.size > 1 else 3))


def square(b: Builder, x: Value, *, batched: bool = True) -> Value:
    """Well conditioned, and not symmetric."""
    x = matrix(b, x, batched=batched)
    rows, columns = b.of(x).shape[-2:]
    if rows != columns:
        x = b.emit("matmul", x, b.constant(columns, rows))
    x = bounded(b, x)
    size = b.of(x).shape[-1]
    x = b.emit("add", x, np.eye(size) * float(2 ** b.one_of(1, 2)))
    b.need(float(np.linalg.cond(b.of(x)).max()) < 20)
    return x


def symmetric(b: Builder, x: Value) -> Value:
    """With eigenvalues apart."""
    x = square(b, real(b, x))
    x = b.emit("add", x, b.emit("matrix_transpose", x))
    x = b.emit("add", x, np.diag(np.arange(b.of(x).shape[-1]) * 3.0))
    values = np.linalg.eigvalsh(b.of(x))
    b.need(float(np.diff(values).min()) > 0.5 and float(np.abs(values).min()) > 0.2)
    return x


def definite(b: Builder, x: Value) -> Value:
    """Symmetric, with positive eigenvalues."""
    x = bounded(b, matrix(b, real(b, x)))
    product = b.emit("matmul", x, b.emit("matrix_transpose", x))
    return b.emit("add", product, np.eye(b.of(product).shape[-1]) * 1.5)


def tall(b: Builder, x: Value, *, batched: bool = True) -> Value:
    """Of full rank, with singular values apart, at least as many rows as columns."""
    x = matrix(b, real(b, x), batched=batched)
    rows, columns = b.of(x).shape[-2:]
    if rows < columns:
        x = b.emit("matrix_transpose", x)
    shape = b.of(x).shape[-2:]
    x = b.emit("add", bounded(b, x), np.eye(*shape) * np.arange(2.0, 2.0 + 3 * shape[1], 3.0))
    values = np.linalg.svd(b.of(x), compute_uv=False)
    b.need(float(-np.diff(values).max()) > 0.4 and float(values.min()) > 0.3)
    return x


# -- products ------------------------------------------------------------------------------------


def other(b: Builder, *shape: int) -> Any:
    """An operand of this shape: an earlier value's function, or numbers."""
    fitting = [k for k, a in enumerate(b.values) if a.shape == shape and a.dtype.kind == "f"]
    if fitting and b.rng.random() < 0.7:
        return Value(b.one_of(*fitting))
    return b.constant(*shape)


def swapped(b: Builder, name: str, x: Value, y: Any) -> None:
    b.emit(name, *((x, y) if b.rng.random() < 0.6 else (y, x)))


def multiplied(b: Builder, name: str) -> None:
    x = matrix(b, b.last)
    rows, columns = b.of(x).shape[-2:]
    ways: list[tuple[Any, ...]] = [
        (x, other(b, columns, 2)),
        (other(b, 2, rows), x),
        (x, other(b, columns)),
    ]
    ways += [(x, b.emit("matrix_transpose", x))] * 2
    if name.endswith("matmul") and b.of(x).ndim == 2:
        ways += [(other(b, rows), x), (other(b, 2, 2, rows), x)]
    b.need(name.endswith("matmul") or b.of(x).ndim == 2)
    b.emit(name, *ways[int(b.rng.integers(len(ways)))])


def of_vectors(b: Builder, name: str) -> None:
    x = vector(b, b.last)
    count = b.of(x).shape[0]
    short = name.removeprefix("linalg.")
    if short == "kron":
        b.need(count <= 4)
        swapped(b, name, x, other(b, 2))
    elif short == "outer":
        swapped(b, name, x, other(b, 3))
    elif short == "cross":
        b.need(count == 3)
        swapped(b, name, x, other(b, 3))
    else:
        swapped(b, name, x, other(b, count))


def of_matrices(b: Builder, name: str) -> None:
    x = matrix(b, real(b, b.last))
    shape = b.of(x).shape
    if name.endswith("vecdot"):
        b.emit(name, x, other(b, *shape[-1:]))
    elif name == "matvec":
        b.emit(name, x, other(b, shape[-1]))
    elif name == "vecmat":
        b.emit(name, other(b, shape[-2]), x)
    elif name == "inner":
        b.emit(name, x, other(b, 2, shape[-1]))


def contracted(b: Builder, name: str) -> None:
    x = matrix(b, b.last, batched=False)
    rows, columns = b.of(x).shape
    ways = [
        (other(b, columns, 2), 1),
        (other(b, rows, columns), 2),
        (other(b, 2, rows), ((0,), (1,))),
    ]
    y, axes = ways[int(b.rng.integers(3))]
    b.emit(name, x, y, axes=axes)


def summed(b: Builder, name: str) -> None:
    x = b.last
    a = b.of(x)
    if a.ndim == 3:
        k, m, n = a.shape
        ways = [
            ("bij->bji",),
            ("bij->j",),
            ("bij,bjk->bik", other(b, k, n, 2)),
            ("bij,j->bi", other(b, n)),
        ]
        ways += [("...j,j->...", other(b, n)), ("bij,bkj->bik", x)]
    elif a.ndim == 2:
        m, n = a.shape
        ways = [
            ("ij->ji",),
            ("ij->",),
            ("ij->j",),
            ("ij,jk->ik", other(b, n, 3)),
            ("ij,kj->ki", other(b, 2, n)),
        ]
        ways += [("ij,ij->i", x), ("ij,i->j", other(b, m)), ("ij,j,i->", other(b, n), other(b, m))]
        ways += [("ij,kj->ik", x)] + [("ii->i",), ("ii",)] * (m == n)
    else:
        b.need(a.ndim == 1)
        ways = [
            ("i,j->ij", other(b, 3)),
            ("i,i->", x),
            ("i,ij->j", other(b, a.shape[0], 2)),
            ("i,i->i", x),
        ]
    pattern, *others = ways[int(b.rng.integers(len(ways)))]
    order = [x, *others]
    if (
        others
        and len(others) == 1
        and b.rng.random() < 0.3
        and "->" in pattern
        and "." not in pattern
    ):
        left, _, right = pattern.partition("->")
        first, second = left.split(",")
        pattern, order = f"{second},{first}->{right}", order[::-1]
    b.emit(name, pattern, *order)


def chain(b: Builder, name: str) -> None:
    x = matrix(b, real(b, b.last), batched=False)
    rows, columns = b.of(x).shape
    b.emit(name, [other(b, 2, rows), x, other(b, columns, 2), b.constant(2, 3)])


# -- linear algebra --------------------------------------------------------------------------------


def on(prepare: Any, **options: Any) -> Drawing:
    return lambda b, name: b.emit(name, prepare(b, b.last), **options)


def solved(b: Builder, name: str) -> None:
    x = square(b, b.last)
    size = b.of(x).shape[-1]
    if b.rng.random() < 0.3:
        b.emit(name, b.constant(size, size) + 4 * np.eye(size), x)
    else:
        shape = (size, 2) if b.of(x).ndim > 2 else b.one_of((size,), (size, 2))
        b.emit(name, x, other(b, *shape))


def sign_and_log(b: Builder, name: str) -> None:
    b.emit(name, square(b, real(b, b.last)), pick=1)


def of_eigenvectors(b: Builder, name: str) -> None:
    """A function of a matrix by its eigenvectors, whose signs do not matter then."""
    x = symmetric(b, b.last)
    values, vectors = b.emit(name, x, pick=0), b.emit(name, x, pick=1)
    spread = b.emit("multiply", vectors, b.emit("expand_dims", b.emit("tanh", values), -2))
    if name == "linalg.eig":
        b.emit("real", b.emit("matmul", spread, b.emit("linalg.inv", vectors)))
    else:
        b.emit("matmul", spread, b.emit("matrix_transpose", vectors))


def of_eigenvalues(b: Builder, name: str) -> None:
    values = b.emit(name, square(b, real(b, b.last)))
    b.emit("real", b.emit("sum", b.emit("exp", bounded(b, values)), axis=-1))


def of_singular_vectors(b: Builder, name: str) -> None:
    x = tall(b, b.last)
    u, s, v = (b.emit(name, x, full_matrices=False, pick=k) for k in range(3))
    scaled = b.emit("multiply", u, b.emit("expand_dims", b.emit("log1p", s), -2))
    b.emit("matmul", scaled, v)


def of_orthogonal_factor(b: Builder, name: str) -> None:
    """Both factors, which are unique but for signs of columns: products are not."""
    x = tall(b, b.last)
    q, r = b.emit(name, x, pick=0), b.emit(name, x, pick=1)
    if b.rng.random() < 0.5:
        b.emit("abs", b.emit("add", b.emit("square", r), 0.5))
    else:
        b.emit("matmul", b.emit("square", q), b.emit("square", r))


def least_squares(b: Builder, name: str) -> None:
    x = tall(b, b.last, batched=False)
    b.emit(name, x, other(b, b.of(x).shape[0], 2), pick=0)


def normed(b: Builder, name: str) -> None:
    if name == "linalg.vector_norm":
        x = real(b, b.last)
        b.need(float(np.abs(b.of(x)).min()) > 0.02)
        b.emit(name, x, ord=b.one_of(1, 2, 3), axis=axis_of(b, x))
        return
    x = tall(b, b.last)
    order = b.one_of("fro", "nuc", 2, -2, 1, float("inf"))
    if name == "linalg.matrix_norm":
        b.emit(name, x, ord=order)
    elif b.rng.random() < 0.5:
        b.emit(name, x, ord=order, axis=(-2, -1), keepdims=b.one_of(True, False))
    else:
        b.emit(name, x, ord=b.one_of(None, 1, 2, 3), axis=-1)


def raised(b: Builder, name: str) -> None:
    b.emit(name, square(b, b.last), b.one_of(0, 1, 2, 3, -1, -2))


def tensor_equation(b: Builder, name: str) -> None:
    x = b.emit("reshape", square(b, real(b, four(b)), batched=False), (2, 2, 2, 2))
    if name == "linalg.tensorsolve":
        b.emit(name, x, b.constant(2, 2))
    else:
        b.emit(name, x, ind=2)


def four(b: Builder) -> Value:
    x = vector(b, b.last, 4)
    x = b.emit("getitem", x, slice(0, 4))
    return b.emit("outer", x, b.constant(4))


# -- Fourier -------------------------------------------------------------------------------------


def transformed(b: Builder, name: str) -> None:
    x = b.last
    short = name.removeprefix("fft.")
    if short in ("rfft", "ihfft", "rfft2", "rfftn"):
        x = real(b, x)
    b.need(b.of(x).ndim > 0)
    norm = b.one_of(None, "ortho", "forward", "backward")
    if short in ("fftshift", "ifftshift"):
        b.emit(name, x, b.one_of(None, axis_of(b, x)))
    elif short[-1] == "n":
        axes = tuple(range(b.of(x).ndim))
        options = b.one_of({}, {"axes": axes[::-1]}, {"axes": axes[-1:], "s": (3,)})
        b.emit(name, x, **options, norm=norm)
    elif short[-1] == "2":
        b.need(b.of(x).ndim > 1)
        b.emit(name, x, **b.one_of({}, {"axes": (-1, -2)}), norm=norm)
    else:
        b.emit(name, x, **b.one_of({}, {}, {"n": 4}, {"n": 3}), axis=axis_of(b, x), norm=norm)


def back(b: Builder, name: str) -> None:
    """What makes real numbers of a spectrum."""
    b.need(is_complex(b, b.last) or b.rng.random() < 0.3)
    transformed(b, name)


# fmt: off
MATRICES: dict[str, Drawing] = {
    "matmul": multiplied, "dot": multiplied, **each("outer kron cross vdot", of_vectors), **each("inner vecdot matvec vecmat", of_matrices),
    "linalg.matmul": multiplied, "linalg.outer": of_vectors, "linalg.cross": of_vectors, "linalg.vecdot": of_matrices, "linalg.tensordot": contracted,
    "tensordot": contracted, "einsum": summed, "linalg.multi_dot": chain,
    "linalg.inv": on(square), "linalg.det": on(square), "linalg.slogdet": sign_and_log, "linalg.solve": solved, "linalg.cholesky": on(definite), "linalg.matrix_power": raised,
    "linalg.eigh": of_eigenvectors, "linalg.eig": of_eigenvectors, "linalg.eigvalsh": on(symmetric), "linalg.eigvals": of_eigenvalues, "linalg.svd": of_singular_vectors,
    "linalg.svdvals": on(tall), "linalg.qr": of_orthogonal_factor, "linalg.pinv": on(tall), "linalg.lstsq": least_squares, "linalg.cond": on(tall),
    **each("linalg.norm linalg.matrix_norm linalg.vector_norm", normed), **each("linalg.tensorsolve linalg.tensorinv", tensor_equation),
    "linalg.trace": on(matrix), "linalg.diagonal": on(matrix),
    **each("fft.fft fft.ifft fft.rfft fft.ihfft fft.fftn fft.ifftn fft.rfftn fft.fft2 fft.ifft2 fft.rfft2 fft.fftshift fft.ifftshift", transformed),
    **each("fft.irfft fft.hfft fft.irfft2 fft.irfftn", back),
}
# fmt: on
