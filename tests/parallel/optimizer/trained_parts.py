"""A model in parts that live on several workers, small enough to be trained here as well."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from telegrad import dist_autograd, optim, rpc
from telegrad.autograd import Tensor, tensor
from telegrad.nn import Module, Parameter
from telegrad.parallel import DistributedOptimizer, StepResult, parameter_rrefs
from telegrad.types import Array

__all__ = [
    "XS",
    "Part",
    "close",
    "grouped",
    "here",
    "loss_of",
    "make_parts",
    "mean_steps",
    "rrefs_of",
    "step",
    "step_here",
    "values",
]

XS = np.random.default_rng(0).uniform(0.5, 1.5, size=(12, 3))


class Part(Module):
    """Two parameters, one of them squared, so that gradients depend on where they are taken."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        rng = np.random.default_rng(seed)
        self.w = Parameter(rng.uniform(0.5, 1.5, size=3))
        self.b = Parameter(rng.uniform(0.5, 1.5, size=(1,)))

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = (self.w * self.w * x).sum() + (self.b * self.b * x[:1]).sum()
        return total

    def data(self) -> list[Array]:
        return [self.w.data, self.b.data]


def make_parts(workers: Iterable[str]) -> list[rpc.RRef[Part]]:
    """Makes one part on each worker; part `i` is the same wherever it is."""
    return [rpc.remote(worker, Part, (i,)) for i, worker in enumerate(workers)]


def rrefs_of(parts: Iterable[rpc.RRef[Any]]) -> list[rpc.RRef[Parameter]]:
    return [rref for part in parts for rref in parameter_rrefs(part)]


def grouped(params: Sequence[Any]) -> list[dict[str, Any]]:
    """Groups that go across parts: all `w`, and all `b` with options of their own."""
    return [{"params": params[::2]}, {"params": params[1::2], "lr": 0.02, "momentum": 0.5}]


def loss_of(parts: Sequence[Any], x: Array) -> Tensor:
    """The loss, of parts of this worker or of references."""
    given = tensor(x)
    calls = [each.rpc_sync().forward if isinstance(each, rpc.RRef) else each for each in parts]
    total: Tensor = sum((call(given) for call in calls), tensor(0.0, dtype=np.float64))
    return total


def step(
    optimizer: DistributedOptimizer,
    parts: Sequence[rpc.RRef[Part]],
    x: Array,
    timeout: float | None = None,
) -> StepResult:
    """Makes one step."""
    with dist_autograd.context() as context_id:
        loss = optimizer.scale_loss(loss_of(parts, x))
        dist_autograd.backward(context_id, [loss])
        return optimizer.step(context_id, timeout)


def values(parts: Iterable[Any]) -> list[Array]:
    """The parameters of parts of this worker, or of references."""
    found = [
        part.rpc_sync().data() if isinstance(part, rpc.RRef) else part.data() for part in parts
    ]
    return [array for arrays in found for array in arrays]


def here(
    n: int, xs: Iterable[Array], optimizer_class: type[optim.Optimizer], **options: Any
) -> list[Array]:
    """Returns the parameters of n parts after steps in this process, one for each of `xs`."""
    parts = [Part(i) for i in range(n)]
    optimizer = optimizer_class([p for part in parts for p in part.parameters()], **options)
    for x in xs:
        step_here(optimizer, parts, x)
    return values(parts)


def step_here(optimizer: optim.Optimizer, parts: Sequence[Part], x: Array) -> None:
    """Makes one step of parts of this worker."""
    optimizer.zero_grad()
    loss_of(parts, x).backward()
    optimizer.step()


def close(actual: Sequence[Array], expected: Sequence[Array]) -> None:
    assert len(actual) == len(expected)
    for left, right in zip(actual, expected, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-12)


def mean_steps(n: int, rounds: Iterable[Array | Sequence[Array]], **options: Any) -> list[Array]:
    """The parameters of n parts after steps, each with the mean of some losses."""
    parts = [Part(i) for i in range(n)]
    optimizer = optim.SGD([p for part in parts for p in part.parameters()], **options)
    for xs in rounds:
        optimizer.zero_grad()
        for x in xs:
            (loss_of(parts, x) / len(xs)).backward()
        optimizer.step()
    return values(parts)
