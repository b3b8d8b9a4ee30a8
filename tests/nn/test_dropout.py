"""Dropout: what is left out, how much of it, and the gradient."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from telegrad import manual_seed, nn
from telegrad.autograd import Tensor, gradcheck, gradgradcheck

F = nn.functional


def test_items_are_left_out_and_the_others_grow() -> None:
    x = np.full((50, 200), 3.0)
    y = F.dropout(x, 0.25, rng=np.random.default_rng(0)).data
    assert set(np.unique(y).tolist()) == {0.0, 4.0}
    assert (y == 0).mean() == pytest.approx(0.25, abs=0.02)
    # Not by rows or columns.
    assert (y == 0).mean(axis=0).max() < 0.6
    assert (y == 0).mean(axis=1).min() > 0.1


def test_the_ends() -> None:
    x = Tensor(np.array([1.0, -2.0, np.inf]), requires_grad=True)
    assert F.dropout(x, 0.0) is x
    assert F.dropout(x, 0.7, training=False) is x
    nothing = F.dropout(Tensor(np.ones(3), requires_grad=True), 1.0)
    assert nothing.data.tolist() == [0.0, 0.0, 0.0]
    assert F.dropout(np.zeros((0, 2)), 0.5).shape == (0, 2)


def test_gradients_pass_where_items_did() -> None:
    x = Tensor(np.ones((20, 5)), requires_grad=True)
    y = F.dropout(x, 0.5, rng=np.random.default_rng(0))
    y.sum().backward()
    assert x.grad is not None
    np.testing.assert_array_equal(x.grad.data, y.data)

    def call(x: Any) -> Any:
        return F.dropout(x, 0.3, rng=np.random.default_rng(1)) ** 2

    leaf = Tensor(np.random.default_rng(2).normal(size=(3, 4)), requires_grad=True)
    assert gradcheck(call, leaf)
    assert gradgradcheck(call, leaf)


def test_the_module() -> None:
    layer = nn.Dropout(0.5, rng=np.random.default_rng(0))
    x = np.ones(100)
    first, second = layer(x).data, layer(x).data
    assert (first != second).any()
    again = nn.Dropout(0.5, rng=np.random.default_rng(0))
    np.testing.assert_array_equal(again(x).data, first)
    same = copy.deepcopy(again)
    np.testing.assert_array_equal(same(x).data, second)
    np.testing.assert_array_equal(layer.eval()(x).data, x)
    assert repr(layer) == "Dropout(0.5)"
    drawn = []
    for _ in range(2):
        manual_seed(3)
        drawn.append(nn.Dropout()(x).data)
    np.testing.assert_array_equal(drawn[0], drawn[1])


@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan")])
def test_what_is_no_probability(p: float) -> None:
    with pytest.raises(ValueError, match="a probability is from 0 to 1"):
        nn.Dropout(p)
    with pytest.raises(ValueError, match="a probability is from 0 to 1"):
        F.dropout(np.ones(2), p)
