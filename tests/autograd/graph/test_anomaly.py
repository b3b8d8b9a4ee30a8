"""detect_anomaly: which line of the forward made a NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import telegrad as tg
from telegrad import nn
from telegrad.autograd import Function, enable_grad, no_grad, tensor
from telegrad.errors import AutogradError
from tests.autograd.threads import in_threads

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")


def leaf(*values: float) -> Any:
    return tensor(list(values), requires_grad=True)


def the_culprit(x: Any) -> Any:
    return np.sqrt(x)  # at 0 its slope is infinite


def loss(x: Any) -> Any:
    y = np.sin(x) * 1.0
    z = the_culprit(y)
    return (z * 0.0 + y).sum()


def words_of(call: Any) -> str:
    with pytest.raises(AutogradError) as caught:
        call()
    return str(caught.value)


def test_a_gradient_names_the_line_of_the_forward() -> None:
    with tg.detect_anomaly():
        value = loss(leaf(0.0, 1.0))
        words = words_of(value.backward)
    first, *lines = words.splitlines()
    assert first.startswith("the backward of 'sqrt' made a NaN, in the gradient of argument 0")
    assert lines[0].endswith(", in the_culprit")
    assert __file__ in lines[0]
    assert lines[1].strip() == "return np.sqrt(x)  # at 0 its slope is infinite"
    assert lines[2].endswith(", in loss")
    assert lines[3].strip() == "z = the_culprit(y)"


def test_the_backward_may_come_later_and_elsewhere() -> None:
    with tg.detect_anomaly():
        value = loss(leaf(0.0))
    assert "the_culprit" in in_threads(lambda: words_of(value.backward))[0]


def test_a_forward_names_its_line_at_once() -> None:
    with tg.detect_anomaly():
        words = words_of(lambda: np.log(leaf(-1.0)))
        assert words.startswith("'log' made a NaN; it was called at\n")
        assert "np.log(leaf(-1.0))" in words
        given = leaf(np.nan)
        assert np.isnan((given * 2).item())  # no operation has made it


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_a_nan_is_found_in_the_arrays_of_each_library(xp: Any) -> None:
    zero, one_below = (tensor(xp.asarray(np.array([x])), requires_grad=True) for x in (0.0, -1.0))
    with tg.detect_anomaly():
        value = np.sqrt(zero * 1.0) * 0.0
        with pytest.raises(AutogradError, match="the backward of 'sqrt' made a NaN"):
            value.sum().backward()
        with pytest.raises(AutogradError, match="'log' made a NaN"):
            np.log(one_below)


def test_the_forward_may_be_left_alone() -> None:
    with tg.detect_anomaly(forward=False):
        y = np.where([True, False], leaf(1.0, 2.0), np.log(leaf(-1.0, -1.0)))
        y.sum().backward()


def test_inside_a_module_it_is_the_line_that_calls_the_module() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    next(iter(model.parameters())).data = np.full((2, 2), np.inf, np.float32)
    with tg.detect_anomaly():
        words = words_of(lambda: model(tensor([[0.0, 1.0]], dtype=np.float32)))
    assert "model(tensor([[0.0, 1.0]]" in words
    assert "telegrad/nn" not in words.replace("tests", "")


def test_functions_of_the_user() -> None:
    class Bad(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient * np.nan

    with tg.detect_anomaly():
        value = Bad.apply(leaf(1.0)).sum()
        assert "the backward of 'Bad' made a NaN" in words_of(value.backward)


def test_second_order() -> None:
    x = leaf(0.0)
    with tg.detect_anomaly():
        (slope,) = tg.grad((x**1.5).sum(), x, create_graph=True)
        words = words_of(lambda: (slope * 0.0).sum().backward())
    assert "made a NaN" in words


def test_grad_modes_inside_keep_it_and_outside_it_is_over() -> None:
    with tg.detect_anomaly(), no_grad():
        assert np.isnan(np.log(leaf(-1.0)).item())  # nothing is recorded
        with enable_grad(), pytest.raises(AutogradError, match="made a NaN"):
            np.log(leaf(-1.0))
    assert np.isnan(np.log(leaf(-1.0)).item())
    with tg.detect_anomaly():
        pass
    loss(leaf(0.0)).backward()


def test_as_a_decorator_and_nested() -> None:
    @tg.detect_anomaly()
    def step() -> None:
        with tg.detect_anomaly():
            loss(leaf(0.0)).backward()

    for _ in range(2):
        assert "the_culprit" in words_of(step)


def test_with_a_checkpoint() -> None:
    with tg.detect_anomaly():
        value = tg.recompute(loss, leaf(0.0))
        assert "the_culprit" in words_of(value.backward)
    with tg.detect_anomaly(forward=False):
        value = tg.recompute(lambda x: np.log(x).sum(), leaf(1.0, 2.0))
        value.backward()


def test_a_nan_that_comes_in_is_passed_on() -> None:
    x = leaf(1.0, 2.0)
    with tg.detect_anomaly():
        (x * 3.0).backward(np.array([np.nan, 1.0]))
    np.testing.assert_array_equal(x.grad.data, [np.nan, 3.0])
