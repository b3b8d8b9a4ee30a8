"""A backward in two halves gives the gradients of one backward, and runs each rule once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from telegrad import nn
from telegrad.autograd import Function, Tensor, recompute
from telegrad.autograd.seams import HalvedBackward, edge_of, graph_root

RNG = np.random.default_rng(0)


def linear(n: int) -> nn.Linear:
    return nn.Linear(n, n, dtype=np.float64, rng=RNG)


class Cube(Function):
    """A node that cannot run its rules apart."""

    @staticmethod
    def forward(ctx: Any, x: Any, w: Any) -> Any:
        ctx.save_for_backward(x, w)
        return x**3 * w

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        x, w = ctx.saved_values
        return 3 * x**2 * w * g, (x**3 * g).sum(0)


class Cubed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(RNG.normal(size=4))

    def forward(self, x: Tensor) -> Tensor:
        return Cube.apply(x, self.w)  # type: ignore[no-any-return]


class Shared(nn.Module):
    """One weight used two times, a branch without the input, and an input used two times."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = linear(4)
        self.alone = nn.Parameter(RNG.normal(size=4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(np.tanh(self.layer(x))) * x
        return y + np.exp(self.alone) * self.alone


class Again(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Sequential(linear(4), nn.Tanh(), linear(4))

    def forward(self, x: Tensor) -> Tensor:
        return recompute(self.inside, x)  # type: ignore[no-any-return]


MAKE: list[Callable[[], nn.Module]] = [
    lambda: linear(4),
    nn.Tanh,
    Cubed,
    Shared,
    Again,
    lambda: nn.LayerNorm(4, dtype=np.float64),
]


def halved(model: nn.Module, x: Tensor, gradient: Any) -> tuple[Any, dict[int, Any]]:
    edge = edge_of(x)
    halves = HalvedBackward([graph_root(model(x), gradient)], [] if edge is None else [edge])
    inputs = halves.run_inputs()
    found: dict[int, Any] = {}

    def accumulate(leaf: Tensor, g: Any) -> None:
        assert id(leaf) not in found
        found[id(leaf)] = g

    halves.run_weights(accumulate)
    return inputs.get(edge) if edge is not None else None, found


@given(st.lists(st.sampled_from(range(len(MAKE))), min_size=1, max_size=5), st.booleans())
@settings(max_examples=60, deadline=None)
def test_both_halves_are_the_whole(kinds: list[int], needed: bool) -> None:
    model = nn.Sequential(*(MAKE[k]() for k in kinds))
    array, gradient = RNG.normal(size=(3, 4)), RNG.normal(size=(3, 4))
    x = Tensor(array, requires_grad=needed)
    if not (needed or list(model.parameters())):
        return
    found, weights = halved(model, x, gradient)
    model(x).backward(gradient)
    if needed:
        assert x.grad is not None
        np.testing.assert_allclose(found, x.grad.data, rtol=1e-12)
    for parameter in model.parameters():
        assert parameter.grad is not None
        np.testing.assert_allclose(weights[id(parameter)], parameter.grad.data, rtol=1e-12)


def test_the_first_half_runs_no_rule_of_a_weight(monkeypatch: Any) -> None:
    from telegrad.autograd.graph.call_node import CallNode  # noqa: PLC0415

    ran: Counter[str] = Counter()
    whole = CallNode.backward

    def counted(self: Any, gradients: Any, rules: Any = None) -> Any:
        used = self._plan.rules if rules is None else rules
        ran[self.name] += len(list(used))
        return whole(self, gradients, rules)

    monkeypatch.setattr(CallNode, "backward", counted)
    model = nn.Sequential(linear(4), nn.Tanh(), linear(4))
    x = Tensor(RNG.normal(size=(3, 4)), requires_grad=True)
    y = model(x)
    edge = edge_of(x)
    assert edge is not None
    halves = HalvedBackward([graph_root(y, np.ones((3, 4)))], [edge])
    halves.run_inputs()
    assert ran.pop("linear") == 2
    assert ran.total() == 1
    halves.run_weights(lambda leaf, g: None)
    assert ran["linear"] == 4
    assert ran.total() == 5


def test_a_hook_of_a_node_sees_its_gradients_once() -> None:
    model, seen = linear(4), list[Any]()
    x = Tensor(RNG.normal(size=(3, 4)), requires_grad=True)
    y = model(x)
    assert y.grad_fn is not None
    y.grad_fn.register_hook(lambda inputs, outputs: seen.append([g is None for g in inputs]))
    edge = edge_of(x)
    assert edge is not None
    halves = HalvedBackward([graph_root(y, np.ones((3, 4)))], [edge])
    halves.run_inputs()
    weights: list[Tensor] = []
    halves.run_weights(lambda leaf, g: weights.append(leaf))
    assert seen == [[False, False, False]]
    assert {id(leaf) for leaf in weights} == {id(p) for p in model.parameters()}
