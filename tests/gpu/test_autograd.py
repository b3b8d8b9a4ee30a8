"""Tensors whose array is on the GPU: backward, changes in place, indices, what is refused."""

from __future__ import annotations

import copy
import threading
from typing import Any

import numpy as np
import pytest

from telegrad.autograd import (
    Function,
    FunctionContext,
    Tensor,
    as_tensor,
    backward,
    grad,
    gradcheck,
    gradgradcheck,
    no_grad,
    tensor,
)
from telegrad.errors import AutogradError
from tests.gpu.comparison import close, host, normal, on_gpu


def leaf(xp: Any, values: Any, dtype: Any = np.float64) -> Any:
    return tensor(xp.asarray(np.asarray(values, dtype)), requires_grad=True)


def test_a_tensor_tells_of_its_array(xp: Any) -> None:
    array = xp.asarray(np.array([[1.0, 2.0]]))
    x = as_tensor(array)
    assert x.data is array
    assert (x.device, x.shape, x.ndim, x.size, len(x)) == ("cuda:0", (1, 2), 2, 2, 1)
    assert repr(x) == "tensor([[1., 2.]], device='cuda:0')"
    assert type(x.numpy()) is np.ndarray
    assert x.sum().item() == float(x.sum()) == 3.0
    assert bool((x > 0).all())
    copied = tensor(x)
    assert on_gpu(copied)
    assert not xp.may_share_memory(copied.data, array)
    assert tensor([1.0], device="cuda").device == "cuda:0"
    assert tensor(array, device="cpu").device == "cpu"
    deep = copy.deepcopy(tensor(x, requires_grad=True))
    assert on_gpu(deep)
    assert deep.requires_grad


def test_gradients_add_up_on_the_gpu(xp: Any) -> None:
    x = leaf(xp, [1.0, 2.0])
    for _ in range(2):
        (x * x).sum().backward()
    close(x.grad, np.array([4.0, 8.0]))
    backward([x * 3.0], [xp.asarray(np.array([1.0, 10.0]))])
    close(x.grad, np.array([7.0, 38.0]))
    (x * 2.0).backward([1.0, 1.0])  # a list is made an array beside the root
    close(x.grad, np.array([9.0, 40.0]))
    (second,) = grad((x**3).sum(), x, create_graph=True)
    (third,) = grad(second.sum(), x)
    close(third, 6 * np.array([1.0, 2.0]))


def test_arrays_on_both_sides_of_an_operator(xp: Any) -> None:
    x, array = leaf(xp, [1.0, 2.0]), xp.asarray(np.array([3.0, 4.0]))
    for result in (array * x, x * array, np.multiply(array, x), [3.0, 4.0] * x, x * [3.0, 4.0]):
        assert isinstance(result, Tensor)
        close(result, np.array([3.0, 8.0]))
        assert result.requires_grad
    close(array @ x, np.array(11.0))
    assert isinstance(array == x, Tensor)
    close(x * np.float64(2.0), np.array([2.0, 4.0]))
    close(x ** np.float32(2.0), np.array([1.0, 4.0]))
    (x ** np.float32(2.0)).sum().backward()
    close(x.grad, np.array([2.0, 4.0]))


def test_devices_are_not_mixed(xp: Any) -> None:
    x, here = leaf(xp, [1.0, 2.0]), np.ones(2)
    for mix in (
        lambda: x * here,
        lambda: here * x,
        lambda: np.concatenate([tensor(here), x]),
        lambda: np.where(here > 0, x, 0.0),
        lambda: x @ here,
    ):
        with pytest.raises(ValueError, match=r"on different devices \(cpu, cuda:0\); move one"):
            mix()
    with pytest.raises(ValueError, match="a root and its gradient of arrays on different devices"):
        (x * 2.0).backward(here)


def test_conditions_that_are_no_arrays(xp: Any) -> None:
    x = leaf(xp, [1.0, 2.0])
    np.where(True, x, 0.0).sum().backward()
    np.where(np.bool_(False), 0.0, x).sum().backward()
    np.where([True, False], x, 0.0).sum().backward()
    close(x.grad, np.array([3.0, 2.0]))
    (2.0**x).sum().backward()


def test_changes_in_place(xp: Any) -> None:
    x = tensor(xp.asarray(np.array([1.0, 2.0, 3.0])))
    with no_grad():
        x += 1.0
        x *= tensor(xp.asarray(np.array([1.0, 2.0, 3.0])))
        x[0] = 5.0
        x[1:] = x[1:] - 1.0
    close(x, np.array([5.0, 5.0, 11.0]))
    w = leaf(xp, [1.0, 2.0, 3.0])
    y = x * w
    with no_grad():
        x -= 1.0
    with pytest.raises(AutogradError, match="changed in place"):
        y.sum().backward()
    z = w * 1.0
    z[0] = 7.0
    z += w
    z.sum().backward()
    close(w.grad, np.array([1.0, 2.0, 2.0]))


def test_a_part_that_was_copied_is_no_view(xp: Any) -> None:
    """CuPy's arrays were all taken for views, so that `rows += 1` was refused there alone."""
    x = leaf(xp, [1.0, 2.0, 3.0])
    rows = (x * 1.0)[xp.asarray(np.array([0, 2]))]
    rows += 1.0
    rows.sum().backward()
    close(x.grad, np.array([1.0, 0.0, 1.0]))
    view = (x * 1.0)[1:]
    with pytest.raises(AutogradError, match="a view of another tensor"):
        view += 1.0


@pytest.mark.parametrize(
    "index",
    [
        [0, 0, 2],
        ([0, 0, 2],),
        range(2),
        np.array([0, 0, 2]),
        [],
        slice(None, None, 2),
        np.int64(1),
        None,
    ],
)
def test_indices(xp: Any, index: Any) -> None:
    source = normal(0, 3, 2)
    here, there = tensor(source, requires_grad=True), leaf(xp, source)
    results = [x[index] ** 2 for x in (here, there)]
    close(results[1], results[0])
    for result in results:
        result.sum().backward()
    close(there.grad, here.grad)


class Cube(Function):
    @staticmethod
    def forward(ctx: FunctionContext, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: FunctionContext, *gradients: Any) -> Any:
        (x,) = ctx.saved_values
        return gradients[0] * 3 * x**2


def test_a_function_of_the_users_own(xp: Any) -> None:
    x = leaf(xp, [1.0, -2.0])
    assert gradcheck(Cube.apply, x)
    assert gradgradcheck(Cube.apply, x)
    assert on_gpu(Cube.apply(x))


def test_hooks_see_gradients_on_the_gpu(xp: Any) -> None:
    x, seen = leaf(xp, [1.0, 2.0]), []

    def hook(gradient: Tensor) -> Tensor:
        seen.append(on_gpu(gradient))
        return gradient * 2.0

    x.register_hook(hook)
    (x * x).sum().backward()
    assert seen == [True]
    close(x.grad, np.array([4.0, 8.0]))


def test_functions_of_numpy_without_a_rule(xp: Any) -> None:
    x = tensor(xp.asarray(np.array([3.0, 1.0, 2.0])))
    assert host(np.argsort(x)).tolist() == [1, 2, 0]
    assert host(np.isfinite(x)).tolist() == [True] * 3
    assert np.argmax(x).item() == 0
    assert bool(np.allclose(x, x + 1e-12))
    assert host(np.zeros_like(x)).tolist() == [0.0] * 3
    assert np.shape(x) == (3,)


def test_backward_in_several_threads(xp: Any) -> None:
    x = leaf(xp, np.ones(100))

    def work() -> None:
        for _ in range(20):
            (x * 2.0).sum().backward()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    close(x.grad, np.full(100, 160.0))
