"""Tensors as arrays of other libraries and back: DLPack, array interfaces, copies, pickles, print."""

from __future__ import annotations

import cmath
import copy
import math
import pickle
import warnings
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import telegrad as tg
from telegrad.autograd import Tensor, as_tensor, no_grad, tensor
from telegrad.errors import AutogradError
from telegrad.nn import Parameter
from tests.gpu.comparison import close, normal, on_gpu


class OnlyDlpack:
    """Another library's array."""

    def __init__(self, array: Any, device: tuple[int, int] = (1, 0)) -> None:
        self.array = array
        self.device = device

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


class OnlyInterface:
    """An array of a library that knows `__array_interface__` alone."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.__array_interface__ = array.__array_interface__


def test_dlpack_out_shares_memory() -> None:
    x = tensor([1.0, 2.0])
    out = np.from_dlpack(x)
    x += 1.0
    assert out.tolist() == [2.0, 3.0]
    assert x.__dlpack_device__() == (1, 0)


def test_dlpack_in_shares_memory() -> None:
    source = np.arange(6.0).reshape(2, 3)[:, ::2]
    for other in (source, OnlyDlpack(source), Tensor(source)):
        t = tg.from_dlpack(other)
        source[0, 0] = 7.0
        assert t[0, 0].item() == 7.0
        if np.from_dlpack(source).flags.writeable:  # NumPy 2.2.0 to 2.2.2 give it away read-only
            t[0, 0] = 0.0
            assert source[0, 0] == 0.0
        assert t.shape == (2, 2)


def test_dlpack_of_what_does_not_speak_it() -> None:
    with pytest.raises(TypeError, match="list has no __dlpack__"):
        tg.from_dlpack([1.0])
    with pytest.raises(RuntimeError, match="needs CuPy, which is not installed"):
        tg.from_dlpack(OnlyDlpack(np.zeros(1), (2, 0)))


def test_array_interface_both_ways() -> None:
    x = tensor([[1.0, 2.0]])
    out = np.asarray(OnlyInterface(x))
    assert np.shares_memory(out, x.data)
    assert np.shares_memory(np.asarray(x), x.data)
    source = np.zeros(3)
    assert np.shares_memory(as_tensor(OnlyInterface(source)).data, source)


@pytest.mark.parametrize("dtype", ["float16", "complex64", "int8", "bool", ml_dtypes.bfloat16])
def test_every_dtype_becomes_an_array(dtype: Any) -> None:
    x = tensor([1, 0], dtype=dtype)
    assert np.asarray(x).dtype == x.dtype
    assert np.array(x, copy=True).dtype == x.dtype
    assert np.asarray(x).tolist() == [1, 0]


@pytest.mark.parametrize(
    "convert",
    [
        np.asarray,
        np.from_dlpack,
        tg.from_dlpack,
        lambda x: x.__array_interface__,
        lambda x: x.numpy(),
        lambda x: x.cupy(),
        lambda x: x.__dlpack__(),
    ],
)
def test_what_needs_a_gradient_refuses_in_words(convert: Any) -> None:
    for x in (tensor([1.0], requires_grad=True), tensor([1.0], requires_grad=True) * 2):
        with pytest.raises(AutogradError, match=r"write t\.detach\(\)\.numpy\(\)"):
            convert(x)
    assert convert is not None


def test_under_no_grad_it_does_not_refuse_and_keeps_no_graph() -> None:
    x = tensor([1.0], requires_grad=True) * 2
    with no_grad():
        assert np.asarray(x) is x.data  # with the Tensor as its base, it would keep the graph
        assert np.from_dlpack(x).tolist() == [2.0]


def test_a_copy_that_is_not_wanted() -> None:
    x = tensor([1.0])
    with pytest.raises(ValueError):
        np.array(x, dtype=np.float32, copy=False)
    assert np.shares_memory(np.array(x, copy=False), x.data)


def test_a_gpu_is_asked_for_where_there_is_none() -> None:
    with pytest.raises(RuntimeError, match="needs CuPy"):
        tensor([1.0]).cupy()
    assert not hasattr(tensor([1.0]), "__cuda_array_interface__")


def test_ways_out_of_a_gpu(cupy: Any) -> None:
    values = normal(2, 3)
    x: Any = tensor(cupy.asarray(values), requires_grad=True)
    for convert in (x.cupy, x.numpy, x.__dlpack__):
        with pytest.raises(AutogradError, match="needs a gradient"):
            convert()
    assert x.detach().cupy() is x.data
    assert on_gpu(tensor([1.0]).cupy())
    with no_grad():
        np.testing.assert_array_equal(x.numpy(), values)
    assert type(x.detach().numpy()) is np.ndarray
    assert not hasattr(x, "__array_interface__")
    assert x.tolist() == values.tolist()
    assert x.item(1) == values[1]
    assert (x.itemsize, x.nbytes) == (8, 24)
    assert f"{x.sum():.3f}" == f"{values.sum():.3f}"


class OnlyCuda:
    """An array of a library that knows the CUDA array interface alone."""

    def __init__(self, array: Any) -> None:
        self.__cuda_array_interface__ = array.__cuda_array_interface__
        self.array = array


@pytest.mark.xp
def test_dlpack_and_the_cuda_interface(gpu: Any) -> None:
    array = gpu.arange(3.0)
    for t in (tg.from_dlpack(array), tg.from_dlpack(Tensor(array)), as_tensor(OnlyCuda(array))):
        t += 1.0
    np.testing.assert_array_equal(array.get(), [3.0, 4.0, 5.0])
    assert Tensor(array).__cuda_array_interface__ == array.__cuda_array_interface__


@pytest.mark.xp
def test_pickles_of_a_gpu(gpu: Any) -> None:
    values = normal(2, 3)
    x = pickle.loads(pickle.dumps(tensor(gpu.asarray(values), requires_grad=True)))
    close(x, values)
    assert x.requires_grad


@pytest.mark.parametrize(
    "make", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_copies_and_pickles(make: Any) -> None:
    for x in (
        tensor(1.5),
        tensor(np.zeros((0, 3), np.float32)),
        Parameter(np.ones(2)),
        tensor([1.0], dtype=ml_dtypes.bfloat16),
        tensor(np.arange(4.0)[::2], requires_grad=True),
        tensor([[1.0, 2.0]]).T,
    ):
        other = make(x)
        assert type(other) is type(x)
        assert (other.dtype, other.shape, other.requires_grad) == (
            x.dtype,
            x.shape,
            x.requires_grad,
        )
        np.testing.assert_array_equal(other.data, x.data)
        assert np.shares_memory(other.data, x.data) == (make is copy.copy and x.size > 0)
    with pytest.raises(AutogradError, match=r"not results \(this one is of multiply\)"):
        make(tensor([1.0], requires_grad=True) * 2)


def test_a_pickle_of_shared_parameters_shares_them() -> None:
    w = Parameter(np.ones(2))
    first, second = pickle.loads(pickle.dumps([w, w]))
    assert first is second


def test_repr_of_much_and_of_little() -> None:
    assert len(repr(tensor(np.zeros((1000, 1000))))) < 1000
    assert repr(tensor(np.zeros((1000, 1000)))).endswith("shape=(1000, 1000))")
    assert repr(tensor(np.zeros((0, 3)))) == "tensor([], shape=(0, 3))"
    assert repr(tensor(2.0)) == "tensor(2.)"
    assert repr(tensor([1j])) == "tensor([0.+1.j], dtype=complex128)"
    x = tensor([1.0], dtype=np.float32, requires_grad=True)
    assert repr(x) == "tensor([1.], dtype=float32, requires_grad=True)"
    assert repr(x.sum()) == "tensor(1., dtype=float32, grad_fn=<sum>)"


def test_a_number_that_leaves_the_graph_is_warned_of_where_it_does() -> None:
    def first_of_array(t: Any) -> None:
        np.zeros(1)[0] = t

    t, several = tensor(4.0, requires_grad=True), tensor([1.0, 2.0], requires_grad=True)
    calls: list[Any] = [
        lambda: float(t),
        lambda: math.sqrt(t * t),
        lambda: cmath.sqrt(t),
        lambda: np.fromiter(several, float),
        lambda: first_of_array(t),
    ]
    for call in calls:
        with pytest.warns(UserWarning, match=r"gets no gradient; write np\.sqrt\(t\)") as found:
            call()
        assert {warning.filename for warning in found} == {__file__}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [t.item(), t.tolist(), f"{t:.1f}", int(t), bool(t)] == [4.0, 4.0, "4.0", 4, True]
        assert math.sqrt(t.detach()) == math.sqrt(tensor(4.0)) == 2.0
        with no_grad():
            assert math.sqrt(t) == 2.0
