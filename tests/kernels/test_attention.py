"""Attention on CuPy arrays: the kernels against their twins of NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telegrad import kernels, nn
from telegrad.autograd import grad, ops, tensor
from telegrad.kernels import attention
from tests.gpu.comparison import normal
from tests.gpu.launches import launches
from tests.kernels.strided import DTYPES, agree, few, laid, layouts, small_grid

__all__ = ["small_grid"]

LEADS = st.sampled_from([(), (2,), (2, 3), (1, 2, 2), (0, 2)])
LENGTHS = st.sampled_from([1, 2, 7, 33, 70])


@st.composite
def cases(draw: Any) -> Any:
    lead, queries, keys = draw(LEADS), draw(LENGTHS), draw(LENGTHS)
    shape = (*lead, queries, keys)
    # Of a bias: its last axes, some of them of length 1.
    axes = draw(st.none() | st.integers(1, len(shape)))
    bias = None
    if axes is not None:
        bias = tuple(n if draw(st.booleans()) else 1 for n in shape[len(shape) - axes :])
    return lead, queries, keys, bias


def both(
    cupy: Any, case: Any, dtype: Any, layout: str, *, causal: bool, masked: bool, wanted: bool
) -> None:
    lead, queries, keys, shape = case
    generator = np.random.default_rng(queries + keys)

    def drawn(*sizes: int) -> Any:
        return (0.7 * generator.normal(size=sizes)).astype(dtype)

    q, k, v = (drawn(*lead, n, length) for n, length in ((queries, 5), (keys, 5), (keys, 3)))
    bias = None if shape is None else drawn(*shape)
    if bias is not None and masked:
        bias[generator.random(bias.shape) < 0.4] = -np.inf
    g, of_weights = drawn(*lead, queries, 3), drawn(*lead, queries, keys) if wanted else None
    weights = np.empty((*lead, queries, keys), dtype) if wanted else None

    def there(array: Any) -> Any:
        return None if array is None else laid(cupy, array, layout)

    parts: Any = tuple(map(there, (q, k, v)))
    own = None if weights is None else cupy.empty(weights.shape, dtype=dtype)
    with np.errstate(divide="ignore", invalid="ignore"):
        result, sums = kernels.attention_forward(q, k, v, bias, 0.4, weights, causal=causal)
    given = *parts, there(bias), 0.4, own
    found, made = kernels.attention_forward(*given, causal=causal)
    agree(cupy, found, result, times=10)
    agree(cupy, made, sums, times=10, dtype=dtype)
    if weights is not None:
        agree(cupy, own, weights, times=10)
    out = [np.empty_like(each) for each in (q, k, v)]
    kernels.attention_backward(
        g, result, sums, (q, k, v), bias, 0.4, tuple(out), of_weights, causal=causal
    )
    results = [cupy.empty(each.shape, dtype=dtype) for each in (q, k, v)]
    kernels.attention_backward(
        there(g),
        found,
        made,
        parts,
        there(bias),
        0.4,
        tuple(results),
        there(of_weights),
        causal=causal,
    )
    for actual, expected in zip(results, out, strict=True):
        agree(cupy, actual, expected, times=100)


@few
@given(cases(), st.sampled_from(DTYPES), layouts, st.booleans(), st.booleans(), st.booleans())
def test_cupys_numbers_are_numpys(
    cupy: Any, case: Any, dtype: Any, layout: str, causal: bool, masked: bool, wanted: bool
) -> None:
    both(cupy, case, dtype, layout, causal=causal, masked=masked, wanted=wanted)


@pytest.mark.usefixtures("small_grid")
@pytest.mark.parametrize("keys", [40, 1100])
def test_more_rows_than_a_grid(cupy: Any, keys: int) -> None:
    case = (2, 3), 9, keys, (1, 3, 1, keys)
    both(cupy, case, np.float32, "plain", causal=True, masked=True, wanted=True)


@pytest.mark.parametrize("shape", [(3, 1, 6), (9, 6), (2, 3, 9, 6)])
def test_parts_of_the_leading_axes(cupy: Any, monkeypatch: pytest.MonkeyPatch, shape: Any) -> None:
    monkeypatch.setattr(attention, "MOST", 2 * 9 * 6)
    case = (2, 3), 9, 6, shape
    both(cupy, case, np.float32, "plain", causal=True, masked=True, wanted=True)


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("keys", [8, 5])
@pytest.mark.parametrize("weights", [False, True])
def test_dropped_weights_are_those_of_numpy(
    cupy: Any, monkeypatch: pytest.MonkeyPatch, keys: int, weights: bool, parts: bool
) -> None:
    if parts:
        monkeypatch.setattr(attention, "MOST", 4 * 6 * keys)
    arrays = [normal(i, 2, 3, n, 4) for i, n in enumerate((6, keys, keys))]
    found = []
    for move in (np.asarray, cupy.asarray):
        q, k, v = (tensor(move(each), requires_grad=True) for each in arrays)
        how: Any = {"weights": weights, "causal": True, "seed": 12345, "p": 0.3}
        y, w = ops.sequences.attention(q, k, v, None, 0.5, **how)
        total = (y * y).sum()
        if weights:
            total = total + (w * w * w).sum()
        first = grad(total, [q, k, v], create_graph=True)
        second = grad(sum((each * each).sum() for each in first), [q, k, v])
        found.append([y, *first, *second, *([w] if weights else [])])
    for here, there in zip(*found, strict=True):
        agree(cupy, there.data, here.data, times=100)


def test_launches(stand_in_cupy: Any) -> None:
    q, k, v = (
        tensor(stand_in_cupy.asarray(normal(i, 2, 3, 5, 4, dtype=np.float32)), requires_grad=True)
        for i in range(3)
    )
    with launches() as forward:
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    with launches() as backward:
        y.backward(y.data)
    assert len(forward) <= 3, forward
    counted = [name for name in backward if name != "array"]  # but for the leaves' own copies
    assert len(counted) <= 6, counted


def test_launches_of_a_transformer_layer(stand_in_cupy: Any) -> None:
    layer = nn.TransformerEncoderLayer(64, 4, dim_feedforward=128, dropout=0.1).to("cuda")
    x = tensor(stand_in_cupy.asarray(normal(0, 8, 2, 64, dtype=np.float32)), requires_grad=True)
    with launches() as names:
        y = layer(x)
        y.backward(y.data)
    counted = [name for name in names if name != "array"]  # but for the leaves' own copies
    assert len(counted) <= 60, counted
