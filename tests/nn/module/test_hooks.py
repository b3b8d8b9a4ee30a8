"""Hooks of modules: what they see, what they may replace, and when they are gone."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from telegrad import grad, nn, no_grad, tensor


class Product(nn.Module):
    def forward(self, a: Any, b: Any = 2.0) -> Any:
        return a * b


def test_arguments_and_output_may_be_replaced() -> None:
    module, seen = Product(), []
    first = module.register_forward_pre_hook(lambda m, args: seen.append((m, args)))
    second = module.register_forward_pre_hook(lambda m, args: (args[0] + 1.0, 5.0))
    third = module.register_forward_hook(lambda m, args, y: seen.append((args, y)))
    fourth = module.register_forward_hook(lambda m, args, y: y - 1.0)
    assert module(3.0, 4.0) == 19.0
    assert seen == [(module, (3.0, 4.0)), ((4.0, 5.0), 20.0)]
    second.remove()
    second.remove()
    assert module(3.0) == 5.0
    for handle in (first, third, fourth):
        handle.remove()
    assert module(3.0, b=4.0) == 12.0
    assert len(seen) == 4
    with module.register_forward_pre_hook(lambda m, args: 10.0):
        assert module(3.0) == 20.0
    assert module(3.0) == 6.0


def test_hooks_are_of_one_module() -> None:
    module, seen = nn.Linear(2, 2), []
    module.register_forward_hook(lambda *_: seen.append(1))
    nn.Linear(2, 2)(np.ones((1, 2), np.float32))
    assert not seen
    copied = copy.deepcopy(module)
    copied(np.ones((1, 2), np.float32))
    assert seen == [1]


def test_a_backward_hook_sees_both_sides() -> None:
    module, seen = Product(), []
    handle = module.register_full_backward_hook(lambda *args: seen.append(args))
    a, b = tensor([1.0, 2.0], requires_grad=True), tensor([3.0, 4.0], requires_grad=True)
    (module(a, b) * 10.0).sum().backward()
    ((owner, inputs, outputs),) = seen
    assert owner is module
    assert [g.data.tolist() for g in inputs] == [[30.0, 40.0], [10.0, 20.0]]
    assert [g.data.tolist() for g in outputs] == [[10.0, 10.0]]
    assert a.grad is not None
    assert a.grad.data.tolist() == [30.0, 40.0]
    handle.remove()
    module(a, b).sum().backward()
    assert len(seen) == 1


def test_a_backward_hook_may_replace_gradients() -> None:
    module = nn.Linear(2, 1, bias=False, dtype=np.float64)
    module.register_full_backward_hook(lambda m, inputs, outputs: (inputs[0] * 2.0,))
    x = tensor([[1.0, 2.0]], requires_grad=True)
    module(x).sum().backward()
    assert x.grad is not None
    assert module.weight.grad is not None
    np.testing.assert_array_equal(x.grad.data, 2 * module.weight.data)
    assert module.weight.grad.data.tolist() == [[1.0, 2.0]]


def test_a_backward_hook_without_inputs_that_need_a_gradient() -> None:
    module, seen = nn.Linear(2, 1), []
    module.register_full_backward_hook(lambda *args: seen.append(args[1:]))
    module(np.ones((1, 2), np.float32)).sum().backward()
    assert seen[0][0] == (None,)
    assert seen[0][1][0].data.tolist() == [[1.0]]
    with no_grad():
        module(np.ones((1, 2), np.float32))
    assert len(seen) == 1


def test_what_a_backward_hook_does_is_recorded_under_create_graph() -> None:
    class Several(nn.Module):
        def forward(self, x: Any) -> Any:
            return x * x, "words"

    module = Several()
    module.register_full_backward_hook(lambda m, inputs, outputs: (inputs[0] * 3.0,))
    x = tensor(2.0, requires_grad=True)
    y, words = module(x)
    assert words == "words"
    (slope,) = grad(y, x, create_graph=True)
    (bend,) = grad(slope, x)
    assert (slope.item(), bend.item()) == (12.0, pytest.approx(18.0))
