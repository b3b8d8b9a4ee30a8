"""torch as one of the peers that benchmarks/autograd.py measures."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import perceptron
import repetitions
import small_functions
import steps
import torch
import torch_functions


def step_of_perceptron() -> Callable[[], list[Any]]:
    """See perceptron.by_hand."""
    state = [torch.from_numpy(each).requires_grad_() for each in perceptron.parameters()]
    w1, b1, w2, b2, w3, b3 = state
    optimizer = torch.optim.SGD(state, lr=perceptron.LEARNING_RATE, momentum=perceptron.MOMENTUM)
    x, labels = map(torch.from_numpy, perceptron.data())

    def step() -> list[Any]:
        h = torch.relu(torch.addmm(b1, x, w1))
        h = torch.relu(torch.addmm(b2, h, w2))
        loss = torch.nn.functional.cross_entropy(torch.addmm(b3, h, w3), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return [each.grad for each in state]

    return step


def step_of(name: str) -> Callable[[], list[Any]]:
    """A step of a network of modules; see steps.py."""
    network = steps.NETWORKS[name](torch.nn)
    shapes = {key: tuple(x.shape) for key, x in network.state_dict().items()}
    start = {key: torch.from_numpy(a) for key, a in steps.state(shapes).items()}
    network.load_state_dict(start)
    params = list(network.parameters())
    optimizer = torch.optim.SGD(params, lr=steps.LEARNING_RATE, momentum=steps.MOMENTUM)
    x, labels = steps.data(name)
    x = torch.from_numpy(x)
    labels = None if labels is None else torch.from_numpy(labels)

    def step() -> list[Any]:
        y = network(x)
        loss = (y * y).mean() if labels is None else torch.nn.functional.cross_entropy(y, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return [each.grad for each in params]

    return step


def chain() -> Callable[[], list[Any]]:
    """Two thousand operations on ten numbers, one after the other."""
    x = torch.full((10,), 0.5, dtype=torch.float64, requires_grad=True)

    def run() -> list[Any]:
        y = x
        for _ in range(1000):
            y = y * 0.999 + 0.001
        return list(torch.autograd.grad(y.sum(), x))

    return run


def small(function: Callable[..., Any]) -> Callable[[], list[Any]]:
    """A small function and its gradients."""
    free, fixed = small_functions.inputs(function.__name__)
    arrays = [torch.from_numpy(each).requires_grad_() for each in free]
    others = [torch.from_numpy(each) for each in fixed]

    def run() -> list[Any]:
        return list(torch.autograd.grad(function(*arrays, *others), arrays))

    return run


if __name__ == "__main__":
    torch.set_num_threads(1)
    cases: dict[str, repetitions.Case] = {"perceptron": step_of_perceptron, "chain": chain}
    cases |= {name: partial(step_of, name) for name in steps.NETWORKS}
    cases |= {each.__name__: partial(small, each) for each in torch_functions.FUNCTIONS}
    repetitions.serve(torch.__version__, cases)
