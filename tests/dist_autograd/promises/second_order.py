"""Random programs over parts that live on several workers, or all here, and penalties on gradients."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import telegrad as tg
from telegrad import dist_autograd, rpc
from telegrad.autograd import Function, FunctionContext, Tensor, tensor
from telegrad.types import Array

SIZE = 3


class Softened(Function):
    """x / (1 + x^2), by rules of its own."""

    @staticmethod
    def forward(ctx: FunctionContext, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x / (1 + x * x)

    @staticmethod
    def backward(ctx: FunctionContext, gradient: Any) -> Any:
        (x,) = ctx.saved_values
        return gradient * (1 - x * x) / (1 + x * x) ** 2


OPERATIONS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "tanh": lambda a, b, w: np.tanh(a * w) + b,
    "product": lambda a, b, w: a * b * w,
    "matmul": lambda a, b, w: np.outer(a, w) @ np.sin(b),
    "softened": lambda a, b, w: Softened.apply(a + b * w),
    "linear": lambda a, b, w: a - 2.0 * b,  # its gradients need none
    "unused": lambda a, b, w: b * 1.0,
}


@dataclass(frozen=True)
class Step:
    """One value more: computed by the last part of the route from two earlier values."""

    operation: str
    route: tuple[int, ...]
    first: int
    second: int


def random_steps(rng: random.Random, parts: int) -> list[Step]:
    """Returns the steps of a program; routes lead over up to three parts, and back."""
    return [
        Step(
            rng.choice(list(OPERATIONS)),
            tuple(rng.randrange(parts) for _ in range(rng.randint(1, 3))),
            rng.randint(max(0, k - 1), k + 1),
            rng.randint(0, k + 1),
        )
        for k in range(rng.randint(2, 5))
    ]


class Part:
    """Has a weight that is the same wherever it is made."""

    def __init__(self, seed: int) -> None:
        values = np.random.default_rng(seed).normal(size=SIZE)
        self.weight = tensor(values, requires_grad=True)

    def step(self, operation: str, rest: Sequence[Any], a: Any, b: Any) -> Any:
        """Computes here, or a part of it, and goes on to the next of the route."""
        if not rest:
            return OPERATIONS[operation](a, b, self.weight)
        inner = call(rest[0], operation, rest[1:], np.sin(a), b)
        return inner * self.weight + a

    def gradient(self, context_id: int) -> Tensor:
        """The gradient of the weight in a context, as it is; zero if there is none."""
        found = dist_autograd.get_gradients(context_id)
        return found.get(self.weight, tensor(np.zeros(SIZE)))

    def penalty(self, context_id: int) -> Any:
        return penalty_on([self.gradient(context_id)])

    def array(self, context_id: int) -> Array:
        return self.gradient(context_id).data


def call(part: Any, operation: str, rest: Sequence[Any], a: Any, b: Any) -> Any:
    at = part.rpc_sync() if isinstance(part, rpc.RRef) else part
    return at.step(operation, list(rest), a, b)


def run_steps(steps: Sequence[Step], parts: Sequence[Any], leaves: Sequence[Any]) -> Any:
    """Returns the sum of the last two values."""
    values = list(leaves)
    for step in steps:
        first, *rest = (parts[i] for i in step.route)
        a, b = values[step.first], values[step.second]
        values.append(call(first, step.operation, rest, a, b))
    return (values[-1] * values[-2]).sum()


def leaves_of(seed: int) -> list[Tensor]:
    rng = np.random.default_rng(seed)
    return [tensor(rng.normal(size=SIZE), requires_grad=True) for _ in range(2)]


def penalty_on(gradients: Sequence[Any]) -> Any:
    total: Any = 0.0
    for gradient in gradients:
        total = total + (gradient * gradient).sum()
    return total


def local(steps: Sequence[Step], parts: int, seed: int) -> tuple[list[Array], list[Array]]:
    """Returns the gradients of a program here, and those of the penalty on all of them."""
    here = [Part(i) for i in range(parts)]
    wanted = [*leaves_of(seed), *(part.weight for part in here)]
    value = run_steps(steps, here, wanted[:2])
    first = tg.grad(value, wanted, create_graph=True, allow_unused=True)
    second = tg.grad(penalty_on([g for g in first if g is not None]), wanted, allow_unused=True)
    return _arrays(first), _arrays(second)


def _arrays(gradients: Sequence[Tensor | None]) -> list[Array]:
    return [np.zeros(SIZE) if g is None else g.data for g in gradients]
