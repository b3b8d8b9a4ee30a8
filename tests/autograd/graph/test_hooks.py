"""retain_grad, removable hooks, requires_grad_, and which saved value an error names."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import telegrad as tg
from telegrad.autograd import tensor
from telegrad.errors import AutogradError
from tests.gpu.comparison import close_on


def leaf(*values: float) -> Any:
    return tensor(list(values), requires_grad=True)


def test_a_result_keeps_its_gradient(xp: Any) -> None:
    x = tensor(xp.asarray(np.array([1.0, 2.0])), requires_grad=True)
    y = x * 3
    y.retain_grad()
    y.retain_grad()  # once is enough
    loss = (y * y).sum()
    loss.backward(retain_graph=True)
    close_on(xp, y.grad, np.array([6.0, 12.0]))
    loss.backward()
    close_on(xp, y.grad, np.array([12.0, 24.0]))  # they add up, as those of leaves


def test_it_keeps_what_hooks_have_made_of_it() -> None:
    x = leaf(1.0)
    y = x * 3
    y.retain_grad()
    y.register_hook(lambda g: g * 10)
    y.sum().backward()
    assert y.grad is not None
    assert y.grad.data.tolist() == [10.0]
    assert x.grad.data.tolist() == [30.0]


def test_grad_fills_nothing_and_create_graph_keeps_the_graph() -> None:
    x = leaf(2.0)
    y: Any = x * x
    y.retain_grad()
    tg.grad((y * y).sum(), x, retain_graph=True)
    before = y.grad
    assert before is None
    (y * y).sum().backward(create_graph=True)
    assert y.grad is not None
    assert tg.grad(y.grad.sum(), x)[0].data.tolist() == [8.0]


def test_one_output_of_several() -> None:
    x = leaf(5.5)
    whole, part = np.modf(x * 1.0)
    whole.retain_grad()
    (whole * 2 + part).sum().backward()
    assert whole.grad is not None
    assert whole.grad.data.tolist() == [2.0]
    assert part.grad is None


def test_leaves_keep_theirs_and_constants_have_none() -> None:
    x = leaf(1.0)
    x.retain_grad()
    (x * 2).sum().backward()
    assert x.grad.data.tolist() == [2.0]
    with pytest.raises(AutogradError, match="none to retain"):
        tensor([1.0]).retain_grad()


def test_retaining_keeps_neither_the_tensor_nor_the_graph() -> None:
    x = leaf(1.0)
    gc.disable()
    try:
        y = x * 2
        y.retain_grad()
        array, node = weakref.ref(y.data), weakref.ref(y.grad_fn)
        z = y + 1
        del y
        assert array() is None
        z.sum().backward()
        del z
        assert node() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("hook", [lambda g: g[:1], lambda g: 2.0, lambda g: g.sum()])
def test_a_hook_that_returns_another_shape_is_refused(hook: Any) -> None:
    x = leaf(1.0, 2.0)
    y = x * x
    y.register_hook(hook)
    with pytest.raises(AutogradError, match=r"in the place of one of shape \(2,\)"):
        y.sum().backward()
    z = x * x
    assert z.grad_fn is not None
    z.grad_fn.register_prehook(lambda gradients: tuple(map(hook, gradients)))
    with pytest.raises(AutogradError, match="a hook of multiply returned"):
        z.sum().backward()


def test_hooks_are_removed() -> None:
    x = leaf(1.0)
    y = x * 2
    assert y.grad_fn is not None
    calls: list[str] = []
    handles = [
        x.register_hook(lambda g: calls.append("leaf")),
        y.register_hook(lambda g: calls.append("result")),
        y.grad_fn.register_hook(lambda inputs, outputs: calls.append("node")),
        y.grad_fn.register_prehook(lambda outputs: calls.append("before")),
        x.register_post_accumulate_hook(lambda tensor, target: calls.append("after")),
    ]
    loss = y.sum()
    loss.backward(retain_graph=True)
    assert calls == ["result", "before", "node", "leaf", "after"]
    for handle in handles:
        handle.remove()
        handle.remove()  # the second time does nothing
    loss.backward(retain_graph=True)
    with y.register_hook(lambda g: calls.append("block")):
        loss.backward(retain_graph=True)
    loss.backward()
    assert calls[5:] == ["block"]


def test_requires_grad_in_place() -> None:
    x = tensor([1.0])
    assert x.requires_grad_() is x
    assert x.requires_grad
    assert not x.requires_grad_(False).requires_grad
    with pytest.raises(AutogradError, match="only floating-point"):
        tensor([1]).requires_grad_()
    with pytest.raises(AutogradError, match=r"write t\.detach"):
        (leaf(1.0) * 2).requires_grad_(False)


@pytest.mark.parametrize(
    ("compute", "name"),
    [
        (lambda x, y: y * x, "the argument 'x1' of shape (2,) that 'multiply' saved"),
        (lambda x, y: x / y, "the argument 'x2' of shape (2,) that 'divide' saved"),
        (lambda x, y: y @ x, "the argument 'x1' of shape (2,) that 'matmul' saved"),
    ],
)
def test_the_error_names_the_operation_and_the_saved_value(compute: Any, name: str) -> None:
    x, y = leaf(1.0, 2.0), tensor([3.0, 4.0])
    loss = compute(x, y).sum()
    y += 1.0
    with pytest.raises(AutogradError) as caught:
        loss.backward()
    assert str(caught.value).startswith(f"{name} for its gradient was changed in place since")
    assert "version 1, saved at 0" in str(caught.value)
