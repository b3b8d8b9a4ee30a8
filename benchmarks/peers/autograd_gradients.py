"""HIPS autograd as one of the peers that benchmarks/autograd.py measures."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any

import autograd
import autograd.numpy
import autograd.scipy.special
import numpy
import perceptron
import repetitions
import small_functions


def step_of_perceptron() -> Callable[[], list[Any]]:
    """See perceptron.by_hand."""
    np = autograd.numpy
    state = perceptron.parameters()
    velocities = [numpy.zeros_like(each) for each in state]
    x, labels = perceptron.data()
    rows = numpy.arange(len(labels))

    def loss(state: list[Any]) -> Any:
        w1, b1, w2, b2, w3, b3 = state
        h = np.maximum(x @ w1 + b1, 0)
        h = np.maximum(h @ w2 + b2, 0)
        z = h @ w3 + b3
        return np.mean(autograd.scipy.special.logsumexp(z, axis=1) - z[rows, labels])

    gradient_of = autograd.grad(loss)

    def step() -> list[Any]:
        gradients = gradient_of(state)
        for each, velocity, gradient in zip(state, velocities, gradients, strict=True):
            velocity *= perceptron.MOMENTUM
            velocity += gradient
            each -= perceptron.LEARNING_RATE * velocity
        return list(gradients)

    return step


def chain() -> Callable[[], list[Any]]:
    """Two thousand operations on ten numbers, one after the other."""
    x = numpy.full(10, 0.5)

    def function(y: Any) -> Any:
        for _ in range(1000):
            y = y * 0.999 + 0.001
        return autograd.numpy.sum(y)

    gradient_of = autograd.grad(function)
    return lambda: [gradient_of(x)]


def small(function: Callable[..., Any]) -> Callable[[], list[Any]]:
    """A small function and its gradients."""
    free, fixed = small_functions.inputs(function.__name__)

    def of(arrays: list[Any]) -> Any:
        return function(Numpy, autograd.scipy.special, *arrays, *fixed)

    gradient_of = autograd.grad(of)
    return lambda: list(gradient_of(free))


Numpy = autograd.numpy

if __name__ == "__main__":
    cases: dict[str, repetitions.Case] = {"perceptron": step_of_perceptron, "chain": chain}
    cases |= {each.__name__: partial(small, each) for each in small_functions.FUNCTIONS}
    repetitions.serve(version("autograd"), cases)
