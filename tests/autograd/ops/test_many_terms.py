"""Gradients that are sums of thousands of terms, in dtypes too short to add them up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from telegrad import tensor
from telegrad.autograd import ops
from telegrad.nn import functional

N = 3000
ZEROS = np.zeros(N, np.int64)


OF_TABLES: dict[str, Callable[[Any], Any]] = {
    "index": lambda w: w[ZEROS],
    "take": lambda w: np.take(w, ZEROS, axis=0),
    "take_along_axis": lambda w: np.take_along_axis(w, np.zeros((N, 3), np.int64), 0),
    "embedding": lambda w: functional.embedding(ZEROS, w),
    "row sparse": lambda w: functional.embedding(ZEROS, w, sparse=True),
    "padding": lambda w: functional.embedding(ZEROS, w, padding_idx=1),
    "bias": lambda w: np.ones((N, 2, 3), w.dtype) + w,
    "broadcast_to": lambda w: np.broadcast_to(w[:1], (N, 3)) * w.dtype.type(1),
    "cumsum": lambda w: np.cumsum(np.broadcast_to(w[:1], (N, 3)), axis=0)[-1],
    "einsum": lambda w: np.einsum("nk,ij->j", np.ones((N, 3), w.dtype), w),
    "cumulative": lambda w: np.cumsum(np.tile(w, (1, 500)), axis=1) * w.dtype.type(0.01),
    "of a conv's bias": lambda w: functional.conv2d(
        np.ones((N, 1, 1, 2), w.dtype), np.ones((2, 1, 1, 1), w.dtype), w[:, 0]
    ),
    "of a conv's weight": lambda w: functional.conv2d(
        np.ones((N, 3, 1, 1), w.dtype), np.reshape(w, (2, 3, 1, 1))
    ),
    "of a conv's input": lambda w: functional.conv2d(
        np.reshape(w, (1, 1, 2, 3)), np.ones((2000, 1, 2, 3), w.dtype)
    ),
    "windows": lambda w: np.lib.stride_tricks.sliding_window_view(np.pad(w[0], (2999, 2999)), N),
    "of a cell's bias": lambda w: ops.sequences.recurrence(
        "rnn_relu",
        np.zeros((1, N, 3), w.dtype),
        (np.zeros((N, 2), w.dtype),),
        np.zeros((2, 3), w.dtype),
        np.zeros((2, 2), w.dtype),
        w[:, 0],
        np.zeros(2, w.dtype),
    )[0],
    "pooled": lambda w: functional.avg_pool2d(np.broadcast_to(w[:, :1, None], (2, 64, 64)), 64),
}


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", OF_TABLES)
def test_short_floats_are_added_up_in_float32(name: str, dtype: Any) -> None:
    def of(kind: Any) -> Any:
        w = tensor(np.full((2, 3), 0.25, dtype).astype(kind), requires_grad=True)
        y = OF_TABLES[name](w)
        (y * y.dtype.type(0.1)).sum(dtype=np.float32 if kind is dtype else None).backward()
        gradient: Any = w.grad
        whole = gradient.to_dense() if hasattr(gradient, "to_dense") else gradient.data
        return np.asarray(whole, np.float64)

    tolerance = 2.0 ** (-9 if dtype is np.float16 else -6)
    np.testing.assert_allclose(of(dtype), of(np.float64), rtol=tolerance)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize("name", ["index", "take_along_axis", "embedding"])
def test_a_million_terms_are_added_up_in_float64(name: str, dtype: Any) -> None:
    places = np.zeros(1_000_000, np.int64)
    of: Any = {
        "index": lambda w: w[places],
        "take_along_axis": lambda w: np.take_along_axis(w, places[:, None], 0),
        "embedding": lambda w: functional.embedding(places, w),
    }[name]
    w: Any = tensor(np.zeros((2, 1), dtype), requires_grad=True)
    of(w).backward(np.full((1_000_000, 1), 0.1, dtype))
    np.testing.assert_allclose(w.grad.data[:, 0], [100_000.0, 0.0], rtol=1e-6)


def test_rows_that_do_not_count_may_be_infinite() -> None:
    w: Any = tensor(np.zeros((2, 1)), requires_grad=True)
    g = np.array([[np.inf], [2.0]])
    for create_graph in (False, True):
        w.grad = None
        functional.embedding([0, 1], w, padding_idx=0).backward(g, create_graph=create_graph)
        np.testing.assert_array_equal(w.grad.data, [[0.0], [2.0]])
