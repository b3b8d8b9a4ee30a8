"""What Tensor and the functions of functions do with arrays of the GPU, as with those of the host."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import telegrad as tg
from telegrad.arrays import is_cupy
from telegrad.autograd import Tensor, gradcheck, no_grad, tensor
from telegrad.errors import AutogradError
from tests.gpu.comparison import close, host, normal, on_gpu

W, X = normal(1, 3, 3), normal(2, 3)


def leaf(xp: Any, values: Any) -> Any:
    return tensor(xp.asarray(np.asarray(values, np.float64)), requires_grad=True)


def loss(x: Any) -> Any:
    return (np.tanh(x * x) * x).sum()


def test_functions_of_functions(xp: Any) -> None:
    x, t = xp.asarray(X), xp.asarray(X[::-1].copy())
    functions: list[Callable[[Any, Any], Any]] = [
        lambda x, t: tg.value_and_grad(loss)(x)[1],
        lambda x, t: tg.vjp(lambda x: x * x, x)[1](t)[0],
        lambda x, t: tg.jvp(lambda x: x * x, [x], [t])[1],
        lambda x, t: tg.jacobian(lambda x: x * x)(x),
        lambda x, t: tg.hvp(loss, [x], [t])[1][0],
        lambda x, t: tg.hessian(loss)(x),
    ]
    for compute in functions:
        close(compute(x, t), compute(X, X[::-1].copy()))


def test_a_checkpoint(xp: Any) -> None:
    x, w = leaf(xp, X), leaf(xp, W)
    assert gradcheck(lambda x, w: tg.recompute(lambda x: np.tanh(w @ x) * x, x).sum(), [x, w])


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_a_nan_is_found(xp: Any) -> None:
    with tg.detect_anomaly():
        value = np.sqrt(leaf(xp, [0.0]) * 1.0) * 0.0
        with pytest.raises(AutogradError, match="the backward of 'sqrt' made a NaN"):
            value.sum().backward()
        with pytest.raises(AutogradError, match="'log' made a NaN"):
            np.log(leaf(xp, [-1.0]))


def test_ways_out(xp: Any) -> None:
    x = leaf(xp, X)
    ways: list[Callable[[], Any]] = [x.cupy, x.numpy, x.__dlpack__]
    for convert in ways:
        with pytest.raises(AutogradError, match="needs a gradient"):
            convert()
    assert x.detach().cupy() is x.data
    assert is_cupy(tensor([1.0]).cupy())
    with no_grad():
        np.testing.assert_array_equal(x.numpy(), X)
    assert not hasattr(x, "__array_interface__")
    assert x.tolist() == X.tolist()
    assert x.item(1) == X[1]
    assert (x.itemsize, x.nbytes) == (8, 24)
    assert f"{x.sum():.3f}" == f"{X.sum():.3f}"


def test_dlpack_and_the_cuda_interface(gpu: Any) -> None:
    array = gpu.arange(3.0)
    for t in (tg.from_dlpack(array), tg.from_dlpack(Tensor(array)), tg.as_tensor(_Cuda(array))):
        t += 1.0
    np.testing.assert_array_equal(array.get(), [3.0, 4.0, 5.0])
    assert Tensor(array).__cuda_array_interface__ == array.__cuda_array_interface__


class _Cuda:
    """An array of a library that knows the CUDA array interface alone."""

    def __init__(self, array: Any) -> None:
        self.__cuda_array_interface__ = array.__cuda_array_interface__
        self.array = array


def test_pickles(gpu: Any) -> None:
    x = pickle.loads(pickle.dumps(leaf(gpu, X)))
    close(x, tensor(X))
    assert x.requires_grad


def test_assignment_and_changes_in_place(xp: Any) -> None:
    x = leaf(xp, [1.0, 2.0])

    def assign(x: Any) -> Any:
        y = x * 1.0
        y[0] = x[1] * 2
        y *= x
        return y

    assert gradcheck(assign, x)
    t = tensor(xp.asarray(np.array([3.0, 1.0])))
    t += 1.0
    t[0] = 7.0
    t.fill(2.0)
    assert on_gpu(t)
    np.testing.assert_array_equal(host(t), [2.0, 2.0])
    assert t._value.version == 3


def test_a_result_keeps_its_gradient(xp: Any) -> None:
    x = leaf(xp, X)
    y = x * 2
    y.retain_grad()
    (y * y).sum().backward()
    close(y.grad, tensor(4 * X))
