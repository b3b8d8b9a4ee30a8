"""Normalisation: groups against rows one by one, dtypes, and refusals.

The golden tests have the numbers of the layers that torch was asked for, to second order.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from telegrad import nn
from telegrad.autograd import Tensor, grad, gradcheck
from tests.autograd.finite_differences import check_second_along_a_line
from tests.nn.reference import normalized

F = nn.functional


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape)


def leaf(*shape: int, seed: int = 0) -> Tensor:
    return Tensor(normal(*shape, seed=seed), requires_grad=True)


@pytest.mark.parametrize("given", [(True, True), (True, False), (False, True), (False, False)])
def test_second_order_of_groups(given: Any) -> None:
    """The golden tests have that of the other layers."""
    parts = [leaf(3, seed=1) if one else None for one in given]

    def groups(x: Any, *rest: Any) -> Any:
        waiting = iter(rest)
        weight, bias = (next(waiting) if one else None for one in given)
        return F.group_norm(x, 3, weight, bias)

    leaves = [leaf(2, 3, 4), *[part for part in parts if part is not None]]
    check_second_along_a_line(groups, leaves)


@pytest.mark.parametrize(
    ("shape", "groups"),
    [((2, 4), 2), ((3, 4, 3), 1), ((2, 6, 2, 2), 3), ((1, 3, 2), 3), ((0, 4, 3), 2)],
)
def test_group_norm(shape: Any, groups: int) -> None:
    channels = shape[1]
    x, weight, bias = normal(*shape), normal(channels, seed=1), normal(channels, seed=2)
    rows = x.reshape(shape[0] * groups, int(np.prod(shape[1:])) // groups)
    expected = normalized(rows, 1e-3).reshape(shape)
    np.testing.assert_allclose(F.group_norm(x, groups, eps=1e-3).data, expected, atol=1e-13)
    found = F.group_norm(x, groups, weight, bias, 1e-3)
    factor, shift = (part.reshape(-1, *[1] * (x.ndim - 2)) for part in (weight, bias))
    np.testing.assert_allclose(found.data, expected * factor + shift, atol=1e-13)
    leaves = [Tensor(a, requires_grad=True) for a in (x, weight, bias)]
    assert gradcheck(lambda x, w, b: F.group_norm(x, groups, w, b), leaves)


def test_running_statistics_are_replaced_and_not_written_into() -> None:
    mean, variance = Tensor(np.zeros(3)), Tensor(np.ones(3))
    kept = mean.data
    F.batch_norm(normal(4, 3), mean, variance, training=True)
    assert mean.data.all()
    assert not kept.any()
    assert F.batch_norm(normal(0, 3), mean, variance).shape == (0, 3)


def test_a_far_mean_leaves_the_variance_right() -> None:
    """The difference of squares would be nothing but rounding here."""
    x = (normal(64, 32) + 3000).astype(np.float32)
    y = F.layer_norm(x, (32,), eps=0.0).data
    exact = normalized(x.astype(np.float64), 0.0)
    assert np.abs(y - exact).max() < 2e-3
    z = F.batch_norm(x, None, None, training=True, eps=0.0).data
    exact = normalized(x.T.astype(np.float64), 0.0).T
    assert np.abs(z - exact).max() < 2e-3


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16])
def test_dtypes(dtype: Any) -> None:
    x = Tensor(normal(4, 3).astype(dtype) * 100, requires_grad=True)
    weight = Tensor(np.ones(3, dtype), requires_grad=True)
    mean, variance = Tensor(np.zeros(3, dtype)), Tensor(np.full(3, 1e4, dtype))
    functions: list[Any] = [
        lambda x, w: F.layer_norm(x, (3,), w, w),
        lambda x, w: F.batch_norm(x, None, None, w, w, training=True),
        lambda x, w: F.batch_norm(x, mean, variance, w, w),
        lambda x, w: F.rms_norm(x, (3,), w),
        lambda x, w: F.group_norm(x, 1, w, w),
    ]
    eps = float(np.spacing(np.ones((), dtype)))
    # The squares would be too large for float16.
    factors = normal(4, 3).astype(dtype)
    for function in functions:
        y = function(x, weight)
        found = [y, *grad((y * factors).sum(), [x, weight])]
        assert [each.dtype for each in found] == [dtype] * 3
        exact = [Tensor(each.data.astype(np.float64), requires_grad=True) for each in (x, weight)]
        y = function(*exact)
        expected = [y, *grad((y * factors.astype(np.float64)).sum(), exact)]
        for one, other in zip(found, expected, strict=True):
            close = 8 * eps * max(0.01, float(np.abs(other.data).max()))
            np.testing.assert_allclose(one.data.astype(np.float64), other.data, atol=close, rtol=0)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_short_numbers_are_added_up_in_float32(dtype: Any) -> None:
    """In bfloat16, 256 + 1 is 256; in float16 it is so from 2048 on."""
    x, bias = np.ones((4096, 2), dtype), Tensor(np.ones(2, dtype), requires_grad=True)
    for y in (
        F.layer_norm(x, (2,), None, bias),
        F.batch_norm(x, None, None, None, bias, training=True),
        F.group_norm(x, 1, None, bias),
        F.linear(x, np.ones((2, 2), dtype), bias),
    ):
        assert [g.data.tolist() for g in grad(y.sum(), [bias])] == [[4096.0, 4096.0]]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16])
def test_the_default_eps_of_rms_norm_is_that_of_the_computation(dtype: Any) -> None:
    y = F.rms_norm(np.array([[0.01, 0.02]], dtype), (2,))  # the values are those of PyTorch 2.13
    np.testing.assert_allclose(y.data.astype(np.float64), [[0.6323, 1.2646]], rtol=2e-3)


def test_a_result_changed_in_place_does_not_change_gradients() -> None:
    """Without a weight the result is the standardised array itself, but not its memory."""
    x = leaf(3, 4)
    y = F.layer_norm(x, (4,))
    y.data[...] = 0.0
    y.backward(normal(3, 4, seed=5))
    again = leaf(3, 4)
    F.layer_norm(again, (4,)).backward(normal(3, 4, seed=5))
    assert x.grad is not None
    assert again.grad is not None
    np.testing.assert_array_equal(x.grad.data, again.grad.data)


def test_what_scales_begins_with_ones_and_what_shifts_with_zeros() -> None:
    for module in (nn.LayerNorm((2, 3)), nn.BatchNorm1d(4)):
        weight, bias = module.parameters()
        assert np.all(weight.data == 1)
        assert np.all(bias.data == 0)
    first = {name: value.tolist() for name, value in nn.BatchNorm1d(2).named_buffers()}
    assert first == {"running_mean": [0, 0], "running_var": [1, 1], "num_batches_tracked": 0}


def test_modules() -> None:
    assert list(nn.GroupNorm(1, 3).state_dict()) == ["weight", "bias"]
    assert not nn.GroupNorm(1, 3, affine=False).state_dict()
    x = normal(4, 6)
    found = nn.GroupNorm(2, 6, dtype=np.float64)(x)
    np.testing.assert_allclose(found.data, F.group_norm(x, 2).data, atol=1e-15)
    assert repr(nn.LayerNorm((2, 3))) == "LayerNorm((2, 3))"


def test_what_they_refuse() -> None:
    x = np.zeros((2, 3))
    refused: list[tuple[Any, str]] = [
        (lambda: F.layer_norm(x, (2,)), r"of shape \(\.\.\., \*\(2,\)\) is needed, not \(2, 3\)"),
        (lambda: F.layer_norm(x[:, :0], (0,)), "all lengths positive"),
        (lambda: F.layer_norm(x, (3,), np.zeros(2)), r"weight has shape \(2,\), \(3,\) needed"),
        (lambda: F.batch_norm(x, None, None), "pass training=True"),
        (lambda: F.batch_norm(x[:1], None, None, training=True), "more than one value"),
        (lambda: F.batch_norm(x[:0], None, None, training=True), "more than one value"),
        (lambda: F.batch_norm(x[0], None, None, training=True), r"\(n, channels, ...\), not"),
        (lambda: F.batch_norm(x, None, None, x[0, :2], training=True), "weight has shape"),
        (lambda: nn.BatchNorm2d(3)(x), r"BatchNorm2d\(3\) does not take an input of shape"),
        (lambda: nn.BatchNorm1d(2)(x), r"BatchNorm1d\(2\) does not take"),
        (lambda: F.group_norm(x, 2), r"not \(2, 3\) with 2 groups"),
        (lambda: F.group_norm(x[0], 1), r"\(n, channels, \.\.\.\)"),
        (lambda: F.group_norm(x[:, :, None][:, :, :0], 1), "all lengths but n are positive"),
        (lambda: F.group_norm(x, 1, x[0, :2]), r"weight has shape \(2,\), \(3,\) needed"),
        (lambda: nn.GroupNorm(2, 3), "3 channels do not make 2 equal groups"),
        (lambda: nn.GroupNorm(0, 3), "lengths are positive"),
        (lambda: nn.GroupNorm(2, 4)(x), r"GroupNorm\(2, 4\) does not take"),
        (lambda: nn.LayerNorm(0), "lengths are positive"),
        (lambda: nn.LayerNorm(2, dtype=np.int64), "floating-point"),
    ]
    for call, words in refused:
        with pytest.raises(ValueError, match=words):
            call()
