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
TILED = st.sampled_from([1, 31, 32, 33, 64, 65, 130])


@st.composite
def cases(draw: Any, lengths: Any = LENGTHS) -> Any:
    lead, queries, keys = draw(LEADS), draw(lengths), draw(lengths)
    shape = (*lead, queries, keys)
    # Of a bias: its last axes, some of them of length 1.
    axes = draw(st.none() | st.integers(1, len(shape)))
    bias = None
    if axes is not None:
        bias = tuple(n if draw(st.booleans()) else 1 for n in shape[len(shape) - axes :])
    return lead, queries, keys, bias


def both(
    cupy: Any,
    case: Any,
    dtype: Any,
    layout: str,
    *,
    causal: bool,
    masked: bool,
    wanted: bool = False,
    length: int = 5,
    values: int = 3,
) -> None:
    lead, queries, keys, shape = case
    generator = np.random.default_rng(queries + keys)

    def drawn(*sizes: int) -> Any:
        return (0.7 * generator.normal(size=sizes)).astype(dtype)

    shapes = (queries, length), (keys, length), (keys, values)
    q, k, v = (drawn(*lead, *shape) for shape in shapes)
    bias = None if shape is None else drawn(*shape)
    if bias is not None and masked:
        bias[generator.random(bias.shape) < 0.4] = -np.inf
    g, of_weights = drawn(*lead, queries, values), drawn(*lead, queries, keys) if wanted else None
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
    here = kernels.attention_backward(
        g, result, sums, (q, k, v), bias, 0.4, of_weights, causal=causal
    )
    results = kernels.attention_backward(
        there(g), found, made, parts, there(bias), 0.4, there(of_weights), causal=causal
    )
    for actual, expected in zip(results, here, strict=True):
        agree(cupy, actual, expected, times=100)


@few
@given(cases(), st.sampled_from(DTYPES), layouts, st.booleans(), st.booleans(), st.booleans())
def test_cupys_numbers_are_numpys(
    cupy: Any, case: Any, dtype: Any, layout: str, causal: bool, masked: bool, wanted: bool
) -> None:
    both(cupy, case, dtype, layout, causal=causal, masked=masked, wanted=wanted)


@few
@given(
    cases(TILED),
    st.sampled_from(DTYPES),
    layouts,
    st.booleans(),
    st.booleans(),
    st.sampled_from([1, 31, 33, 64, 65]),
    st.sampled_from([1, 32, 70]),
)
def test_tiles_find_the_numbers_of_numpy(
    cupy: Any,
    monkeypatch: pytest.MonkeyPatch,
    case: Any,
    dtype: Any,
    layout: str,
    causal: bool,
    masked: bool,
    length: int,
    values: int,
) -> None:
    monkeypatch.setattr(attention, "MOST", 0)
    sizes: Any = {"length": length, "values": values}
    both(cupy, case, dtype, layout, causal=causal, masked=masked, **sizes)


@pytest.mark.usefixtures("small_grid")
def test_more_tiles_than_a_grid(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "MOST", 0)
    case = (2, 3), 70, 70, (1, 3, 1, 70)
    both(cupy, case, np.float32, "plain", causal=True, masked=True)


@pytest.mark.parametrize("shift", [1e4, -1e4])
def test_tiles_with_large_scores(cupy: Any, monkeypatch: pytest.MonkeyPatch, shift: float) -> None:
    monkeypatch.setattr(attention, "MOST", 0)
    bias = shift + 3e3 * np.random.default_rng(0).normal(size=(1, 130))
    q, k, v = (normal(i, 1, n, 4) for i, n in enumerate((2, 130, 130)))
    expected = kernels.attention_forward(q, k, v, bias, 0.5)
    q, k, v, bias = map(cupy.asarray, (q, k, v, bias))
    found = kernels.attention_forward(q, k, v, bias, 0.5)
    for there, here in zip(found, expected, strict=True):
        agree(cupy, there, here, times=1e4)


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


@pytest.mark.parametrize("many", [False, True], ids=["few", "many"])
@pytest.mark.parametrize("keys", [8, 5])
@pytest.mark.parametrize("weights", [False, True])
def test_dropped_weights_are_those_of_numpy(
    cupy: Any, monkeypatch: pytest.MonkeyPatch, keys: int, weights: bool, many: bool
) -> None:
    if many:  # in parts, or in tiles if no weights are wanted
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


@pytest.mark.parametrize("tiled", [False, True])
def test_launches(stand_in_cupy: Any, monkeypatch: pytest.MonkeyPatch, tiled: bool) -> None:
    if tiled:
        monkeypatch.setattr(attention, "MOST", 0)
    q, k, v = (
        tensor(stand_in_cupy.asarray(normal(i, 2, 3, 5, 4, dtype=np.float32)), requires_grad=True)
        for i in range(3)
    )
    with launches() as forward:
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    with launches() as backward:
        y.backward(y.data)
    assert len(forward) <= 3, forward
    assert len(backward) <= 6, backward
    assert ("gemm" not in forward + backward) is tiled
    if tiled:
        assert forward == ["attention_tiles"]
        assert backward == ["attention_along", "attention_tile_gradients"]


def test_what_is_computed_in_tiles(stand_in_cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short floats are, only where one matrix of weights is too much; nothing is, with weights."""
    monkeypatch.setattr(attention, "MOST", 6 * 7)
    for dtype, keys, tiled in [
        (np.float32, 7, True),
        (np.float32, 3, False),
        (np.float64, 7, True),
        (np.float16, 7, False),
        (np.float16, 8, True),
    ]:
        shapes = (2, 6, 4), (2, keys, 4), (2, keys, 4)
        q, k, v = (stand_in_cupy.ones(shape, dtype) for shape in shapes)
        for weights in (None, stand_in_cupy.empty((2, 6, keys), dtype)):
            with launches() as names:
                kernels.attention_forward(q, k, v, None, 0.5, weights)
            assert (names == ["attention_tiles"]) is (tiled and weights is None), (dtype, keys)


def test_launches_of_a_transformer_layer(stand_in_cupy: Any) -> None:
    layer = nn.TransformerEncoderLayer(64, 4, dim_feedforward=128, dropout=0.1).to("cuda")
    x = tensor(stand_in_cupy.asarray(normal(0, 8, 2, 64, dtype=np.float32)), requires_grad=True)
    with launches() as names:
        y = layer(x)
        y.backward(y.data)
    assert len(names) <= 60, names
