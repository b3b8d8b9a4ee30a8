"""SGD: its formula, that it replaces arrays, and that concurrent steps lose nothing."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from telegrad import nn, optim, tensor
from telegrad.types import Array
from tests.gpu.comparison import host


def leaf(*values: float, dtype: Any = np.float64) -> Any:
    return tensor(list(values), dtype=dtype, requires_grad=True)


def test_apply_takes_its_own_parameters_only() -> None:
    x, y, other = leaf(1.0), leaf(1.0), leaf(1.0)
    optimizer = optim.SGD([x, y], lr=1.0)
    x.grad = tensor([100.0])
    optimizer.apply({x: tensor([0.25]), other: tensor([1.0])})
    assert [p.item() for p in (x, y, other)] == [0.75, 1.0, 1.0]
    with pytest.raises(ValueError, match=r"shape \(2,\) does not fit a parameter of \(1,\)"):
        optimizer.apply({x: np.ones(1), y: np.ones(2)})
    assert x.item() == 0.75
    optimizer.zero_grad()
    assert x.grad is None


def test_gradients_of_another_device_are_refused(cupy: Any) -> None:
    parameters = [tensor(cupy.zeros(2), requires_grad=True) for _ in range(2)]
    optimizer = optim.SGD(parameters, lr=1.0)
    with pytest.raises(ValueError, match="a step of arrays on different devices"):
        optimizer.apply({parameters[0]: cupy.ones(2), parameters[1]: np.ones(2)})
    assert host(parameters[0]).tolist() == [0.0, 0.0]  # none was stepped


def test_concurrent_steps_lose_nothing() -> None:
    x = leaf(0.0)
    optimizers = [optim.SGD([x], lr=1.0, momentum=0.0) for _ in range(4)]

    def work(optimizer: optim.SGD) -> None:
        for _ in range(500):
            optimizer.apply({x: np.array([-1.0])})

    threads = [threading.Thread(target=work, args=(optimizer,)) for optimizer in optimizers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert x.item() == 2000.0


def test_parameters_are_checked() -> None:
    x: Any = leaf(1.0)
    cases: list[tuple[Any, type[Exception], str]] = [
        ([], ValueError, "at least one parameter"),
        (x, TypeError, r"write \[param\]"),
        ([np.ones(1)], TypeError, "parameter 0 must be a Tensor, not ndarray"),
        ([x, x], ValueError, "given twice"),
        ([x * 2], ValueError, "parameter 0 is not a leaf"),
        ([tensor([1.0])], ValueError, "parameter 0 is not a leaf"),
    ]
    for params, error, words in cases:
        with pytest.raises(error, match=words):
            optim.SGD(params, lr=0.1)


def test_a_user_writes_an_optimizer_in_three_lines() -> None:
    class SignSGD(optim.Optimizer):
        def update(
            self, parameter: Array, gradient: Array, state: optim.State
        ) -> tuple[Array, optim.State]:
            return parameter - 0.5 * np.sign(gradient), state

    model = nn.Linear(1, 1)
    before = model.weight.item()
    SignSGD(model.parameters()).apply({model.weight: np.array([[3.0]])})
    assert model.weight.item() == pytest.approx(before - 0.5)


def test_gradients_without_their_parameters_are_refused_with_the_line() -> None:
    x = tensor(np.ones(2), requires_grad=True)
    optimizer = optim.SGD([x], lr=1.0)
    for wrong in ([np.ones(2)], np.ones(2), iter([np.ones(2)])):
        with pytest.raises(TypeError, match=r"write optimizer\.apply\(dict\(zip\("):
            optimizer.apply(wrong)  # type: ignore[arg-type]
    np.testing.assert_array_equal(x.data, np.ones(2))
    optimizer.apply(dict(zip([x], [np.ones(2)], strict=True)))
    np.testing.assert_array_equal(x.data, np.zeros(2))
