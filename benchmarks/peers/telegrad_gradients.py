"""telegrad as one of the peers that benchmarks/autograd.py measures."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy
import perceptron
import repetitions
import small_functions
import steps

import telegrad.numpy
from telegrad import autograd, nn, optim
from telegrad.scipy import special


def step_of_perceptron() -> Callable[[], list[Any]]:
    """See perceptron.by_hand."""
    state = [autograd.tensor(each, requires_grad=True) for each in perceptron.parameters()]
    w1, b1, w2, b2, w3, b3 = state
    optimizer = optim.SGD(state, lr=perceptron.LEARNING_RATE, momentum=perceptron.MOMENTUM)
    x, labels = perceptron.data()

    def step() -> list[Any]:
        h = nn.functional.relu(x @ w1 + b1)
        h = nn.functional.relu(h @ w2 + b2)
        loss = nn.functional.cross_entropy(h @ w3 + b3, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return [each.grad for each in state]

    return step


def step_of(name: str) -> Callable[[], list[Any]]:
    """A step of a network of modules; see steps.py."""
    network = steps.NETWORKS[name](nn)
    network.load_state_dict(steps.state(network.state_shapes()))
    params = list(network.parameters())
    optimizer = optim.SGD(params, lr=steps.LEARNING_RATE, momentum=steps.MOMENTUM)
    x, labels = steps.data(name)
    x = autograd.tensor(x)

    def step() -> list[Any]:
        y = network(x)
        loss = (y * y).mean() if labels is None else nn.functional.cross_entropy(y, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return [each.grad for each in params]

    return step


def chain() -> Callable[[], list[Any]]:
    """Two thousand operations on ten numbers, one after the other."""
    x = autograd.tensor(numpy.full(10, 0.5), requires_grad=True)

    def run() -> list[Any]:
        y = x
        for _ in range(1000):
            y = y * 0.999 + 0.001
        return list(autograd.grad(y.sum(), x))

    return run


def small(function: Callable[..., Any]) -> Callable[[], list[Any]]:
    """A small function and its gradients."""
    free, fixed = small_functions.inputs(function.__name__)
    tensors = [autograd.tensor(each, requires_grad=True) for each in free]

    def run() -> list[Any]:
        value = function(telegrad.numpy, special, *tensors, *fixed)
        return list(autograd.grad(value, tensors))

    return run


if __name__ == "__main__":
    cases: dict[str, repetitions.Case] = {"perceptron": step_of_perceptron, "chain": chain}
    cases |= {name: partial(step_of, name) for name in steps.NETWORKS}
    cases |= {each.__name__: partial(small, each) for each in small_functions.FUNCTIONS}
    repetitions.serve(version("telegrad"), cases)
