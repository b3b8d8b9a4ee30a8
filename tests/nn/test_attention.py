"""Attention against loops written out in NumPy, with every mask, and its gradients.

Torch's numbers for several heads are in the golden tests.
"""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import numpy as np
import pytest

from telegrad import nn, tensor
from telegrad.autograd import gradcheck
from telegrad.kernels import attention as kernel
from telegrad.nn.attention import attend
from telegrad.nn.functional import scaled_dot_product_attention
from tests.autograd.finite_differences import check_second_along_a_line
from tests.nn.functional_call import as_function, close, normal


def by_loops(q: Any, k: Any, v: Any, may_read: Any, added: Any) -> Any:
    """For one batch and head."""
    read, weights = np.zeros((len(q), v.shape[1])), np.zeros((len(q), len(k)))
    added = np.broadcast_to(added, weights.shape)
    for i in range(len(q)):
        for j in range(len(k)):
            if may_read[i, j]:
                weights[i, j] = math.exp(q[i] @ k[j] / math.sqrt(len(q[i])) + added[i, j])
        if weights[i].any():
            weights[i] /= weights[i].sum()
        for j in range(len(k)):
            read[i] += weights[i, j] * v[j]
    return read


def three(lead: tuple[int, ...] = (2, 2)) -> tuple[Any, Any, Any]:
    return normal(*lead, 3, 4), normal(*lead, 5, 4, seed=1), normal(*lead, 5, 2, seed=2)


MASKS: list[dict[str, Any]] = [
    {},
    {"is_causal": True},
    {"attn_mask": np.arange(15).reshape(3, 5) % 4 > 0},
    {"attn_mask": np.array([[True] * 5, [False] * 5, [True] * 5])},
    {"attn_mask": normal(2, 1, 3, 5, seed=5)},
    {"attn_mask": np.ones((1, 5), bool), "is_causal": True, "scale": 0.5},
]


@pytest.mark.parametrize("options", MASKS)
def test_attention_is_the_loop(options: Any) -> None:
    q, k, v = three()
    found = scaled_dot_product_attention(q, k, v, **options)
    mask = options.get("attn_mask", np.ones((3, 5), bool))
    scale = options.get("scale", 0.5)
    for b in range(2):
        for h in range(2):
            allowed = mask if mask.dtype == bool else np.ones((3, 5), bool)
            allowed = np.broadcast_to(allowed, (3, 5))
            if options.get("is_causal"):
                allowed = allowed & (np.arange(5) <= np.arange(3)[:, None])
            added = 0.0 if mask.dtype == bool else mask[b, 0]
            close(found[b, h], by_loops(q[b, h] * scale * 2, k[b, h], v[b, h], allowed, added))


@pytest.mark.parametrize("options", MASKS[1:5])
def test_gradients(options: Any) -> None:
    leaves = [tensor(a, requires_grad=True) for a in three((2, 1))]
    if "attn_mask" in options and options["attn_mask"].ndim == 4:
        options = {"attn_mask": tensor(options["attn_mask"])}

    def call(q: Any, k: Any, v: Any) -> Any:
        return scaled_dot_product_attention(q, k, v, **options)

    assert gradcheck(call, leaves)
    if "is_causal" in options:
        check_second_along_a_line(call, leaves)


def test_blocks_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for block in (1, 30, 1 << 20):  # one head each, two, all
        monkeypatch.setattr(kernel, "BLOCK", block)
        leaves = [tensor(a, requires_grad=True) for a in three((2, 5))]
        mask = normal(2, 1, 3, 5, seed=6) > 0
        y = scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], mask)
        (y * y).sum().backward()
        results.append([y.data, *(leaf.grad.data for leaf in leaves if leaf.grad is not None)])
    for other in results[1:]:
        for found, expected in zip(other, results[0], strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


def test_a_mask_may_be_learned_and_leading_axes_broadcast() -> None:
    q, k, v = (tensor(a, requires_grad=True) for a in three((1,)))
    mask = tensor(normal(3, 5, seed=7), requires_grad=True)
    shared = tensor(normal(2, 1, 3, 4), requires_grad=True)
    assert gradcheck(scaled_dot_product_attention, [q, k, v, mask])
    assert gradcheck(scaled_dot_product_attention, [shared, k, v])


def test_large_scores_do_not_overflow() -> None:
    q = np.full((2, 4), 1e4, np.float32)
    y = scaled_dot_product_attention(q, q, np.eye(2, dtype=np.float32))
    assert y.data.tolist() == [[0.5, 0.5], [0.5, 0.5]]


def test_dropped_weights() -> None:
    q, k, v = three()
    nn.manual_seed(0)
    rows = [scaled_dot_product_attention(q, k, v, dropout_p=0.5).data for _ in range(400)]
    whole = scaled_dot_product_attention(q, k, v).data
    assert np.abs(np.mean(rows, axis=0) - whole).max() < 0.25
    assert not scaled_dot_product_attention(q, k, v, dropout_p=1.0).data.any()
    layer = nn.MultiheadAttention(4, 2, dropout=0.5, dtype=np.float64)
    x = normal(3, 1, 4)
    assert not np.allclose(layer(x, x, x)[0].data, layer(x, x, x)[0].data)
    layer.eval()
    close(layer(x, x, x)[0], layer(x, x, x)[0])


def test_attention_to_itself_by_one_product() -> None:
    layer = nn.MultiheadAttention(4, 2, dtype=np.float64)
    x = normal(3, 2, 4)
    later = ~np.tri(3, dtype=bool)
    expected = layer(x, x.copy(), x, attn_mask=later)[0].data  # by three products
    for found in (
        layer(x, x, x, need_weights=False, is_causal=True)[0],
        layer(x, x.copy(), x, need_weights=False, is_causal=True)[0],
        layer(x, x, x, attn_mask=later)[0],
        layer(x, x, x, attn_mask=np.broadcast_to(later, (4, 3, 3)))[0],
    ):
        close(found, expected)
    close(layer(x[:, 0], x[:, 0], x[:, 0], need_weights=False)[0], layer(x, x, x)[0].data[:, 0])


@pytest.mark.parametrize("need_weights", [False, True])
def test_gradients_of_heads(need_weights: bool) -> None:
    layer = nn.MultiheadAttention(2, 2, dtype=np.float64, rng=np.random.default_rng(0))
    x = tensor(normal(2, 1, 2), requires_grad=True)

    def attend(x: Any) -> Any:
        y, weights = layer(x, x, x, need_weights=need_weights)
        return y if weights is None else (y, weights)

    call, parameters = as_function(layer, attend)
    assert gradcheck(call, [x, *parameters])
    check_second_along_a_line(call, [x, *parameters])


@pytest.mark.parametrize("part", [slice(1, 2), slice(2)])
def test_gradients_of_weights(part: slice) -> None:
    leaves = [tensor(a, requires_grad=True) for a in three((2, 1))]
    hidden = np.where(np.arange(15).reshape(3, 5) % 4 > 0, 0.0, -math.inf)

    def call(q: Any, k: Any, v: Any) -> Any:
        return attend(q, k, v, hidden, weights=True)[part]

    used = leaves if part.start is None else leaves[:2]
    assert gradcheck(lambda *x: call(*x, *leaves[len(x) :]), used)
    check_second_along_a_line(lambda *x: call(*x, *leaves[len(x) :]), used)


@pytest.mark.parametrize("need_weights", [False, True])
def test_a_step_never_holds_weights_and_their_gradient(need_weights: bool) -> None:
    layer = nn.MultiheadAttention(32, 8, batch_first=True)
    x = normal(2, 256, 32).astype(np.float32)
    pairs = 2 * 8 * 256 * 256 * x.itemsize
    tracemalloc.start()
    try:
        y, _ = layer(x, x, x, need_weights=need_weights)
        y.sum().backward()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < (1.8 if need_weights else 0.8) * pairs


def test_first_values_are_pytorchs() -> None:
    layer = nn.MultiheadAttention(8, 2)
    state = layer.state_dict()
    assert not state["in_proj_bias"].any()
    assert not state["out_proj.bias"].any()
    assert np.abs(state["in_proj_weight"]).max() <= math.sqrt(6 / 32)


def test_messages() -> None:
    x = np.ones((3, 2, 4))
    layer = nn.MultiheadAttention(4, 2)
    with pytest.raises(ValueError, match="num_heads divides"):
        nn.MultiheadAttention(5, 2)
    with pytest.raises(ValueError, match=r"the last of lengths \(4, 4, 4\)"):
        layer(x, x, x[..., :3])
    with pytest.raises(ValueError, match="do not fit values of shape"):
        layer(x, x, x[:2])
    with pytest.raises(ValueError, match=r"attn_mask has shape \(3, 2\), \(3, 3\) or"):
        layer(x, x, x, attn_mask=np.zeros((3, 2), bool))
    with pytest.raises(ValueError, match=r"key_padding_mask has shape \(3, 3\), \(2, 3\) needed"):
        layer(x, x, x, key_padding_mask=np.zeros((3, 3), bool))
    with pytest.raises(ValueError, match="is a probability, not 2"):
        scaled_dot_product_attention(x, x, x, dropout_p=2)
    with pytest.raises(ValueError, match="3 keys have 2 values"):
        scaled_dot_product_attention(x[:, 0], x[:, 0], x[:2, 0])


@pytest.mark.parametrize(
    "mask",
    [
        np.tri(3, dtype=np.int64),
        np.tri(3, dtype=np.uint8),
        np.tri(3, dtype=np.int64).tolist(),
        tensor(np.tri(3, dtype=np.int32)),
        np.tri(3, dtype=np.complex128),
    ],
    ids=["int64", "uint8", "lists", "Tensor", "complex128"],
)
def test_masks_of_numbers_that_are_not_floats_are_refused(mask: Any) -> None:
    # Added to the scores, 0 and 1 would mask nothing.
    x = normal(3, 1, 4)
    layer = nn.MultiheadAttention(4, 2, dtype=np.float64)
    encoder = nn.TransformerEncoderLayer(4, 2, dim_feedforward=4, dtype=np.float64)
    with pytest.raises(TypeError, match=r"attn_mask has dtype \w+; .* True where a query may read"):
        scaled_dot_product_attention(x[:, 0], x[:, 0], x[:, 0], mask)
    with pytest.raises(TypeError, match=r"attn_mask has dtype \w+; .* a query does not read a key"):
        layer(x, x, x, attn_mask=mask)
    with pytest.raises(TypeError, match="attn_mask has dtype"):
        encoder(x, mask)
    with pytest.raises(TypeError, match=r"key_padding_mask has dtype \w+; .* does not read a key"):
        layer(x, x, x, key_padding_mask=mask[0])
    with pytest.raises(TypeError, match="key_padding_mask has dtype"):
        encoder(x, src_key_padding_mask=mask[0])


def test_masks_of_bools_and_of_floats_may_be_lists() -> None:
    x = normal(3, 1, 4)
    layer = nn.MultiheadAttention(4, 2, dtype=np.float64)
    later = ~np.tri(3, dtype=bool)
    expected = layer(x, x, x, is_causal=True)[0]
    for mask in (later.tolist(), tensor(later), np.where(later, -np.inf, 0.0).tolist()):
        close(layer(x, x, x, attn_mask=mask)[0], expected)


@pytest.mark.parametrize("norm_first", [False, True])
def test_a_layer_of_an_encoder_is_its_parts(norm_first: bool) -> None:
    layer = nn.TransformerEncoderLayer(
        4, 2, dim_feedforward=6, activation="gelu", norm_first=norm_first, dtype=np.float64
    )
    layer.eval()
    x = normal(3, 2, 4)

    def attend(x: Any) -> Any:
        return layer.self_attn(x, x, x, attn_mask=~np.tri(3, dtype=bool))[0]

    def feed(x: Any) -> Any:
        return layer.linear2(nn.functional.gelu(layer.linear1(x)))

    if norm_first:
        middle = x + attend(layer.norm1(x))
        expected = middle + feed(layer.norm2(middle))
    else:
        middle = layer.norm1(x + attend(x))
        expected = layer.norm2(middle + feed(middle))
    close(layer(x, is_causal=True), expected)
    layer.train()
    assert not np.allclose(layer(x).data, layer(x).data)
    with pytest.raises(ValueError, match="not 'cube'"):
        nn.TransformerEncoderLayer(4, 2, activation="cube")
