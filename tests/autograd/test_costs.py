"""How many Python functions run for a step of a small network: its price where time cannot be told.

Each takes some 0.1 us, and three times that where a step stands between messages. What NumPy computes
for such a step takes 60 to 200 us.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from telegrad import Tensor, autograd, nn, optim
from tests.counting import functions_of

F = nn.functional
SIZES = (64, 128, 64, 10)

# Beside each what it was before optional arrays came by position, leaves were met in one place, and a
# gradient that nobody else holds was handed over; and before one loop went through a graph.
MOST: dict[str, int] = {
    "forward": 66,  # 156, 72
    "grad": 92,  # 252, 112
    "backward": 82,  # 256, 114
    "sgd": 57,  # 219, 67; two of them see that groups were edited
}


@pytest.fixture
def parts() -> dict[str, Callable[[], Any]]:
    rng = np.random.default_rng(0)
    params: list[Tensor] = []
    for given, returned in itertools.pairwise(SIZES):
        for shape in ((returned, given), (returned,)):
            values = rng.standard_normal(shape).astype(np.float32)
            params.append(autograd.tensor(values, requires_grad=True))
    x = autograd.tensor(rng.standard_normal((32, 64)).astype(np.float32))
    labels = rng.integers(0, 10, 32)

    def forward() -> Tensor:
        h = F.relu(F.linear(x, params[0], params[1]))
        h = F.relu(F.linear(h, params[2], params[3]))
        return F.cross_entropy(F.linear(h, params[4], params[5]), labels)

    losses = [forward() for _ in range(8)]
    optimizer = optim.SGD(params, lr=0.01, momentum=0.9)
    gradients: dict[Any, Any] = {each: each.data.copy() for each in params}

    def backward() -> None:
        for each in params:
            each.grad = None
        losses.pop().backward()

    return {
        "forward": forward,
        "grad": lambda: autograd.grad(losses.pop(), params),
        "backward": backward,
        "sgd": lambda: optimizer.apply(gradients),
    }


@pytest.mark.parametrize("part", list(MOST))
def test_a_step_of_a_small_network(part: str, parts: dict[str, Callable[[], Any]]) -> None:
    run = parts[part]
    for _ in range(2):
        run()
    functions = functions_of(run)
    assert 10 < len(functions) <= MOST[part], "\n".join([str(len(functions)), *functions])
