"""Clipping: the norms, and that gradients are replaced."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from telegrad import nn, tensor
from telegrad.autograd import RowSparse, Tensor
from tests.gpu.comparison import close_on, host

clip_norm, clip_value = nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_


def leaves(*gradients: Any) -> list[Any]:
    made: list[Any] = []
    for gradient in gradients:
        is_sparse = isinstance(gradient, RowSparse)
        zeros = np.zeros(gradient.shape) if is_sparse else np.zeros_like(gradient)
        x: Any = tensor(zeros, requires_grad=True)
        x.grad = gradient if is_sparse else tensor(gradient)
        made.append(x)
    return made


@pytest.mark.parametrize("order", [1.0, 2.0, 3.0, math.inf])
@pytest.mark.parametrize("limit", [0.5, 10.0, math.inf, math.nan])
def test_the_norm_is_the_same_on_a_gpu(cupy: Any, order: float, limit: float) -> None:
    gradients = [np.array([[1.0, -2.0]]), np.array([0.5]), np.zeros((0, 2))]
    if not limit < math.inf:
        gradients.append(np.array([limit]))
        limit = 1.0
    here, there = leaves(*gradients), leaves(*gradients)
    for p in there:
        if p.grad.size:  # the empty one stays in host memory
            p.grad = tensor(cupy.asarray(p.grad.data))
    norm = clip_norm(there, limit, norm_type=order)
    assert isinstance(norm, Tensor)
    np.testing.assert_allclose(norm.item(), clip_norm(here, limit, norm_type=order))
    for p, q in zip(here, there, strict=True):
        if p.grad.size:
            close_on(cupy, q.grad, p.grad.data)


@pytest.mark.parametrize("order", [1.0, 2.0, 3.0, math.inf])
def test_the_norm_of_all_together(order: float) -> None:
    rng = np.random.default_rng(0)
    gradients = [rng.normal(size=(2, 3)), rng.normal(size=4), np.array(-2.0), np.zeros((0, 2))]
    whole = np.concatenate([g.ravel() for g in gradients])
    norm = float(np.linalg.norm(whole, order))
    params = [*leaves(*gradients), tensor(1.0, requires_grad=True)]
    kept = [p.grad for p in params]
    assert clip_norm(params, 10 * norm, norm_type=order) == pytest.approx(norm)
    assert all(p.grad is g for p, g in zip(params, kept, strict=True))
    assert clip_norm(iter(params), norm / 2, norm_type=order) == pytest.approx(norm)
    for p, before, given in zip(params, kept, gradients, strict=False):
        assert p.grad is not before
        np.testing.assert_allclose(p.grad.data, given / 2, rtol=1e-5)
        np.testing.assert_array_equal(before.data, given)


@pytest.mark.parametrize(("order", "norm"), [(1.0, 7.0), (2.0, 5.0), (math.inf, 4.0)])
def test_the_norm_of_several_devices(cupy: Any, order: float, norm: float) -> None:
    here, there = leaves(np.array([3.0]), np.array([4.0]))
    there.grad = tensor(cupy.asarray(there.grad.data))
    assert clip_norm([here, there], norm / 2, norm_type=order) == pytest.approx(norm)
    np.testing.assert_allclose(here.grad.data, [1.5], rtol=1e-5)
    np.testing.assert_allclose(host(there.grad), [2.0], rtol=1e-5)


def test_row_sparse_gradients() -> None:
    sparse = RowSparse(np.array([1, 1]), np.array([[1.0], [2.0]]), (3, 1))
    (p,) = leaves(sparse)
    assert clip_norm(p, 1.5) == pytest.approx(3.0)
    assert isinstance(p.grad, RowSparse)
    np.testing.assert_allclose(p.grad.to_dense(), [[0.0], [1.5], [0.0]], rtol=1e-6)
    (p,) = leaves(sparse)
    clip_value(p, 2.5)
    assert p.grad.to_dense().tolist() == [[0.0], [2.5], [0.0]]


def test_values(xp: Any) -> None:
    (p,) = leaves(xp.asarray(np.array([-3.0, 0.5, 2.0])))
    before = p.grad
    clip_value([p], 1.0)
    close_on(xp, p.grad, np.array([-1.0, 0.5, 1.0]))
    close_on(xp, before, np.array([-3.0, 0.5, 2.0]))


def test_what_is_not_finite() -> None:
    for bad in (math.inf, math.nan):
        params = leaves(np.array([bad, 1.0]))
        with pytest.raises(ValueError, match=f"the gradients' norm of order 2.0 is {bad}"):
            clip_norm(params, 1.0, error_if_nonfinite=True)
        assert params[0].grad.data[1] == 1.0
        assert str(clip_norm(params, 1.0)) == str(bad)
    with pytest.raises(ValueError, match="max_norm must not be negative, it is nan"):
        clip_norm([], math.nan)
    for order in (0, 0.0, -1, -math.inf, math.nan):
        params = leaves(np.array([3.0, 1.0]))
        with pytest.raises(ValueError, match="norm_type must be positive, or math.inf; it is"):
            clip_norm(params, 1.0, norm_type=order)
        assert params[0].grad.data.tolist() == [3.0, 1.0]
    with pytest.raises(ValueError, match="clip_value must not be negative, it is -1"):
        clip_value([], -1)
    assert clip_norm([], 1.0) == 0.0


def test_dtype_stays() -> None:
    x: Any = tensor(np.ones(3), dtype=np.float32, requires_grad=True)
    (x * 100.0).sum().backward()
    clip_norm(x, 1.0)
    assert x.grad.dtype == np.float32


def test_squares_of_float16_do_not_overflow() -> None:
    x = tensor(np.zeros(2, np.float16), requires_grad=True)
    x.grad = tensor(np.array([300.0, 400.0], np.float16))
    assert clip_norm([x], 5.0) == 500.0
    assert x.grad.dtype == np.float16
    np.testing.assert_allclose(x.grad.data, [3.0, 4.0], rtol=1e-3)
