"""SGD: its formula, that it replaces arrays, and that concurrent steps lose nothing."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from telegrad import nn, optim, tensor
from telegrad.types import Array
from tests.gpu.comparison import close_on, host, normal


def leaf(*values: float, dtype: Any = np.float64) -> Any:
    return tensor(list(values), dtype=dtype, requires_grad=True)


def test_the_formula() -> None:
    x = leaf(1.0, -2.0)
    optimizer = optim.SGD([x], lr=0.1, momentum=0.9, weight_decay=0.01)
    expected, velocity = x.data.copy(), np.zeros(2)
    for step in range(5):
        gradient = np.array([0.5, 1.0]) * (step + 1)
        x.grad = tensor(gradient)
        optimizer.step()
        velocity = 0.9 * velocity + gradient + 0.01 * expected
        expected = expected - 0.1 * velocity
        np.testing.assert_allclose(x.data, expected, rtol=1e-14)


def test_update_is_pure() -> None:
    optimizer = optim.SGD([leaf(1.0)], lr=0.1, momentum=0.9)
    parameter, gradient = np.array([1.0]), np.array([2.0])
    first, state = optimizer.update(parameter, gradient, {})
    again, _ = optimizer.update(parameter, gradient, {})
    assert (parameter.item(), gradient.item(), first.item(), again.item()) == (1.0, 2.0, 0.8, 0.8)
    velocity = state["momentum_buffer"]
    assert velocity.item() == 2.0
    _, later = optimizer.update(first, gradient, state)
    assert later["momentum_buffer"] is velocity  # what it remembers is its own
    assert first.item() == 0.8
    assert later["momentum_buffer"].item() == pytest.approx(3.8)
    with pytest.raises(AttributeError):
        optimizer.params = ()  # type: ignore[misc]


def test_arrays_are_replaced_and_never_written_into() -> None:
    x = leaf(1.0, 2.0)
    before = x.data
    loss = (x * x).sum()
    optimizer = optim.SGD([x], lr=0.1)
    optimizer.apply({x: np.array([1.0, 1.0])})
    assert x.data is not before
    assert before.tolist() == [1.0, 2.0]
    loss.backward()
    assert x.grad.data.tolist() == [2.0, 4.0]


def test_the_velocity_is_no_gradient_of_the_callers() -> None:
    x = leaf(0.0)
    optimizer = optim.SGD([x], lr=1.0, momentum=0.5)
    gradient = np.array([1.0])
    optimizer.apply({x: gradient})
    gradient[...] = 0.0  # as who zeroes gradients in place does
    optimizer.apply({x: gradient})
    assert x.data.tolist() == [-1.5]


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


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_training_on_cupys_arrays_is_that_on_numpys(
    cupy: Any, dtype: Any, subtests: pytest.Subtests
) -> None:
    images, labels = normal(0, 32, 64, dtype=dtype), np.random.default_rng(1).integers(0, 10, 32)
    batches = [(images, labels), (cupy.asarray(images), cupy.asarray(labels))]
    choices: list[dict[str, Any]] = [{}, {"momentum": 0.9}, {"momentum": 0.9, "weight_decay": 0.01}]
    for options in choices:
        with subtests.test(options=options):
            models = [perceptron(dtype), perceptron(dtype).to("cuda")]
            for model, (x, y) in zip(models, batches, strict=True):
                optimizer = optim.SGD(model.parameters(), lr=0.05, **options)
                for _ in range(5):
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(model(x), y).backward()
                    optimizer.step()
            for here, there in zip(*(model.parameters() for model in models), strict=True):
                close_on(cupy, there, here)


def perceptron(dtype: Any) -> nn.Sequential:
    rng = np.random.default_rng(1)
    return nn.Sequential(
        nn.Linear(64, 64, dtype=dtype, rng=rng), nn.ReLU(), nn.Linear(64, 10, dtype=dtype, rng=rng)
    )


def test_dtype_stays() -> None:
    x = leaf(1.0, dtype=np.float32)
    optimizer = optim.SGD([x], lr=0.1, momentum=0.5, weight_decay=0.1)
    for _ in range(2):
        optimizer.apply({x: np.ones(1)})
    assert x.dtype == np.float32


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


@pytest.mark.parametrize(
    "options",
    [
        {"lr": -1.0},
        {"lr": float("nan")},
        {"lr": 1.0, "momentum": -0.1},
        {"lr": 1.0, "weight_decay": -0.1},
    ],
)
def test_numbers_out_of_range(options: Any) -> None:
    with pytest.raises(ValueError, match="SGD needs lr >= 0"):
        optim.SGD([leaf(1.0)], **options)


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
