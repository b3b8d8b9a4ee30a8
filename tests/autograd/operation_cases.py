"""The operations that have gradient rules, one line each: a function, and inputs away from kinks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from telegrad.autograd import Tensor, ops, tensor

__all__ = ["CASES", "Case", "arrays_of", "in_dtype", "positive", "signed"]

MASK = np.array([[True, False, True], [False, True, False]])
ROWS = np.array([1, 0, 1])
LABELS = np.array([2, 0])


def positive(*shape: int, seed: int = 0) -> Tensor:
    """Numbers from 0.5 to 2, all distinct: away from kinks, ties and poles."""
    size = int(np.prod(shape))
    order = np.random.default_rng(seed).permutation(size)
    return tensor((0.5 + 1.5 * (order + 0.3) / max(size, 1)).reshape(shape), requires_grad=True)


def signed(*shape: int, seed: int = 0) -> Tensor:
    return tensor(1.3 * positive(*shape, seed=seed).data - 1.51, requires_grad=True)


A23, B23, B3, C21 = positive(2, 3), positive(2, 3, seed=1), positive(3, seed=2), positive(2, 1)
S23, S34, S4 = signed(2, 3), signed(3, 4), signed(4)
Case = tuple[Callable[..., Any], list[Any]]

# fmt: off
CASES: dict[str, Case] = {
    "add":                   (lambda a, b: a + b,                            [S23, B3]),
    "add scalar":            (lambda a: 2 + a + 1.5,                         [S23]),
    "subtract":              (lambda a, b: a - b,                            [S23, C21]),
    "subtract from scalar":  (lambda a: 1 - a,                               [S23]),
    "multiply":              (lambda a, b: a * b,                            [S23, B3]),
    "multiply by array":     (lambda a, b: b * a,                            [S23, B23.data]),
    "divide":                (lambda a, b: a / b,                            [S23, B3]),
    "divide scalar":         (lambda a: 2 / a,                               [A23]),
    "power":                 (lambda a, b: a**b,                             [A23, B3]),
    "power 2":               (lambda a: a**2,                                [S23]),
    "power 0":               (lambda a: a**0 * a,                            [S23]),
    "power of scalar":       (lambda a: 2**a,                                [S23]),
    "negative":              (lambda a: -a * a,                              [S23]),
    "positive":              (lambda a: +a * a,                              [S23]),
    "absolute":              (lambda a: abs(a) * a,                          [S23]),
    "square":                (np.square,                                     [S23]),
    "sqrt":                  (np.sqrt,                                       [A23]),
    "exp":                   (np.exp,                                        [S23]),
    "expm1":                 (np.expm1,                                      [S23]),
    "log":                   (np.log,                                        [A23]),
    "log1p":                 (np.log1p,                                      [A23]),
    "sin":                   (np.sin,                                        [S23]),
    "cos":                   (np.cos,                                        [S23]),
    "tanh":                  (np.tanh,                                       [S23]),
    "sigmoid":               (ops.sigmoid,                                   [S23]),
    "relu":                  (lambda a: ops.relu(a) * a,                     [S23]),
    "maximum":               (lambda a, b: np.maximum(a, b) * a,             [A23, B3]),
    "minimum":               (lambda a, b: np.minimum(a, b) * a,             [A23, B3]),
    "clip":                  (lambda a: np.clip(a, -0.2, 0.21) * a,          [S23]),
    "clip below":            (lambda a: a.clip(0.21) * a,                    [S23]),
    "where":                 (lambda a, b, mask: np.where(mask, a, b) * a,   [S23, B3, MASK]),
    "astype":                (lambda a: a.astype(np.float64) * a,            [S23]),
    "copy":                  (lambda a: np.copy(a) * a,                      [S23]),
    "sum":                   (lambda a: np.sum(a) * a,                       [S23]),
    "sum axis":              (lambda a: a.sum(axis=0) * a,                   [S23]),
    "sum axis keepdims":     (lambda a: a.sum(-1, keepdims=True) * a,        [S23]),
    "sum axes":              (lambda a, b: np.sum(a, axis=(0, 2)) * b,       [signed(2, 3, 2), B3]),
    "mean":                  (lambda a: np.mean(a) * a,                      [S23]),
    "mean axis":             (lambda a: a.mean(axis=-1)**2,                  [S23]),
    "max":                   (lambda a: np.max(a) * a,                       [S23]),
    "max axis":              (lambda a: a.max(axis=1, keepdims=True) * a,    [S23]),
    "min axis":              (lambda a: a.min(axis=0) * a,                   [S23]),
    "reshape":               (lambda a: a.reshape(3, -1)**2,                 [S23]),
    "ravel":                 (lambda a: np.ravel(a)**2,                      [S23]),
    "squeeze":               (lambda a: np.squeeze(a) * a,                   [C21]),
    "expand_dims":           (lambda a: np.expand_dims(a, 1) * a,            [S23]),
    "transpose":             (lambda a: a.T @ a,                             [S23]),
    "transpose axes":        (lambda a: np.transpose(a, (2, 0, 1))**2,       [signed(2, 3, 2)]),
    "swapaxes":              (lambda a: a.swapaxes(0, 1)**2,                 [S23]),
    "broadcast_to":          (lambda a: np.broadcast_to(a, (2, 3))**2,       [B3]),
    "getitem int":           (lambda a: a[1]**2,                             [S23]),
    "getitem slice":         (lambda a: a[:, ::-2]**2,                       [S23]),
    "getitem newaxis":       (lambda a: a[..., None, 0]**2,                  [S23]),
    "getitem rows":          (lambda a, rows: a[rows]**2,                    [S23, ROWS]),
    "getitem list":          (lambda a: a[[0, 0, 1]]**2,                     [S23]),
    "getitem pairs":         (lambda a, rows: a[rows, [2, 2, 2]]**2,         [S23, ROWS]),
    "getitem mask":          (lambda a, mask: a[mask]**2,                    [S23, MASK]),
    "getitem by tensor":     (lambda a: a[a > 0]**2,                         [S23]),
    "put":                   (lambda a, b: ops.put(a, b, index=0)**2,        [S23, B3]),
    "scatter":               (lambda a: ops.scatter(a, index=([1, 1],), into=(3, 3))**2, [S23]),
    "concatenate":           (lambda a, b: np.concatenate([a, b], axis=1)**2, [S23, C21]),
    "concatenate flat":      (lambda a, b: np.concatenate([a, b], axis=None)**2, [S23, B3]),
    "stack":                 (lambda a, b: np.stack([a, b, a], axis=-1)**2,  [S23, B23]),
    "matmul":                (lambda a, b: a @ b,                            [S23, S34]),
    "matmul array":          (lambda b, a: a @ b,                            [S34, S23.data]),
    "matmul vector":         (lambda a, b: a @ b,                            [S23, B3]),
    "matmul of vector":      (lambda a, b: a @ b,                            [B3, S34]),
    "matmul vectors":        (lambda a, b: a @ b,                            [B3, signed(3)]),
    "matmul batch":          (lambda a, b: a @ b,                            [signed(2, 2, 3), signed(2, 3, 2)]),
    "matmul broadcast":      (lambda a, b: a @ b,                            [signed(2, 1, 2, 3), S34]),
    "matmul batch vector":   (lambda a, b: a @ b,                            [signed(2, 2, 3), B3]),
    "matmul vector batch":   (lambda a, b: a @ b,                            [B3, signed(2, 3, 2)]),
    "softmax":               (ops.softmax,                                   [S23]),
    "log_softmax":           (ops.log_softmax,                               [S23]),
    "cross_entropy":         (ops.cross_entropy,                             [S23, LABELS]),
    "cross_entropy batch":   (lambda a: ops.cross_entropy(a, [[0], [1]]),    [signed(2, 1, 3)]),
    "cross_entropy mean":    (lambda a: ops.cross_entropy(a, [0, 2], mean=True), [S23]),
    "iterate":               (lambda a: sum(row * row for row in a),         [S23]),
    "diamond":               (lambda a: np.tanh(a) * np.exp(a) + a * a,      [S23]),
}
# fmt: on


def arrays_of(inputs: list[Any]) -> list[Any]:
    """The inputs of a case without their place in a graph."""
    return [x.data if isinstance(x, Tensor) else x for x in inputs]


def in_dtype(inputs: list[Any], dtype: Any) -> list[Any]:
    """The inputs of a case, its Tensors as leaves of another dtype."""
    return [
        tensor(x.data, dtype=dtype, requires_grad=True) if isinstance(x, Tensor) else x
        for x in inputs
    ]
