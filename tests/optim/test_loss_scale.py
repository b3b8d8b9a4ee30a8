"""`LossScale` in one process: steps equal plain ones, overflows are skipped, misuse is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telegrad import nn, optim, tensor
from telegrad.autograd import RowSparse, Tensor
from telegrad.parallel import DistributedOptimizer
from tests.gpu.comparison import close_on, host


def leaf(value: Any = 1.0) -> Tensor:
    return tensor(np.asarray(value, float), requires_grad=True)


@given(st.lists(st.booleans(), max_size=12), st.integers(1, 3))
def test_steps_equal_plain_ones_without_those_that_overflow(
    overflows: list[bool], interval: int
) -> None:
    x, plain = leaf([1.0, -2.0]), leaf([1.0, -2.0])
    optimizer, reference = (optim.Adam([p], lr=0.1) for p in (x, plain))
    scale = optim.LossScale(4.0, interval=interval)
    value, good = 4.0, 0
    for overflow in overflows:
        optimizer.zero_grad()
        scale.scale((x * x).sum() * (math.inf if overflow else 1.0)).backward()
        scale.step(optimizer)
        scale.update()
        good = 0 if overflow else good + 1
        value *= 0.5 if overflow else 2.0 if good == interval else 1.0
        good %= interval
        assert scale.value == value
        if not overflow:
            reference.zero_grad()
            (plain * plain).sum().backward()
            reference.step()
    np.testing.assert_allclose(x.data, plain.data, rtol=1e-12)


def test_it_stands_in_for_the_gradients_of_several_optimizers() -> None:
    x, y = leaf(), leaf()
    first, second = optim.SGD([x], lr=0.5), optim.SGD([y], lr=0.5)
    scale = optim.LossScale(8.0)
    scale.scale(x + y * math.inf).backward()
    scale.step(first)
    scale.step(second)
    scale.update()
    assert (x.item(), y.item(), scale.value) == (0.5, 1.0, 4.0)


def test_gradients_are_unscaled_once_before_clipping(xp: Any) -> None:
    x = tensor(xp.asarray(np.array([3.0, 4.0])), requires_grad=True)
    optimizer, scale = optim.SGD([x], lr=1.0), optim.LossScale(16.0)
    scale.scale((x * x).sum() / 2).backward()
    scale.unscale_(optimizer)
    close_on(xp, x.grad, np.array([3.0, 4.0]))
    nn.utils.clip_grad_norm_([x], 1.0)
    scale.step(optimizer)
    np.testing.assert_allclose(host(x.data), [2.4, 3.2], rtol=1e-5)


def test_row_sparse_gradients(xp: Any) -> None:
    table = tensor(xp.asarray(np.ones((3, 2))), requires_grad=True)
    optimizer, scale = optim.SGD([table], lr=1.0), optim.LossScale(2.0)
    for factor in (math.inf, 1.0):
        values = xp.asarray(np.full((1, 2), 2.0 * factor))
        table.grad = RowSparse(xp.asarray(np.array([1])), values, (3, 2))  # type: ignore[assignment]
        scale.step(optimizer)
        scale.update()
    close_on(xp, table.data, np.array([[1.0, 1.0], [-1.0, -1.0], [1.0, 1.0]]))


def test_misuse_is_refused() -> None:
    x = leaf()
    optimizer, scale = optim.SGD([x], lr=0.5), optim.LossScale(8.0)
    with pytest.raises(ValueError, match="no optimizer has stepped since the last update"):
        scale.update()
    scale.scale(x * 1.0).backward()
    scale.unscale_(optimizer)
    with pytest.raises(ValueError, match="unscaled already; call update"):
        scale.unscale_(optimizer)
    scale.step(optimizer)
    with pytest.raises(ValueError, match="has stepped already; call update"):
        scale.step(optimizer)
    with pytest.raises(TypeError, match="steps an Optimizer, not a DistributedOptimizer"):
        scale.step(object.__new__(DistributedOptimizer))  # type: ignore[arg-type]
    half = tensor(np.ones(2, np.float16), requires_grad=True)
    half.grad = tensor(np.ones(2, np.float16))
    with pytest.raises(ValueError, match=r"keep the parameters in float32.*nn.autocast"):
        scale.step(optim.SGD([half], lr=0.5))


def test_the_state_goes_into_numbers_and_back(xp: Any) -> None:
    x = tensor(xp.asarray(np.ones(2)), requires_grad=True)
    optimizer, scale = optim.Adam([x]), optim.LossScale(8.0, interval=5)
    scale.scale(x.sum()).backward()
    scale.step(optimizer)
    scale.update()
    assert scale.state_dict() == {"value": 8.0, "good_steps": 1}
    again = optim.LossScale(interval=5)
    again.load_state_dict(scale.state_dict())
    assert again == optim.LossScale(8.0, interval=5, good_steps=1)
    other = optim.Adam([x])
    other.load_state_dict(optimizer.state_dict())
    for each in (optimizer, other):
        each.step()
    assert {type(state["step"]) for state in other.state_dict()["state"].values()} == {int}
