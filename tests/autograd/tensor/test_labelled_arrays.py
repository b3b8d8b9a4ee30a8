"""Tensors beside arrays with labels of other libraries, which compute NumPy's ufuncs themselves."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import telegrad as tg
from telegrad.autograd import Tensor, tensor
from telegrad.errors import AutogradError


class Labelled:
    """An array with labels that takes part in NumPy's protocols as xarray's do."""

    __array_priority__ = 60

    def __init__(self, values: Any, labels: list[str]) -> None:
        self.values = values
        self.labels = labels

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.asarray(self.values, dtype=dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        plain = [x.values if isinstance(x, Labelled) else x for x in inputs]
        return Labelled(getattr(ufunc, method)(*plain, **kwargs), self.labels)

    def __rmul__(self, other: Any) -> Any:
        return np.multiply(other, self)


class Proud(Labelled):
    """An array that refuses Tensors."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return NotImplemented


OPERATORS: list[Callable[[Any, Any], Any]] = [
    operator.mul,
    operator.truediv,
    operator.pow,
    operator.matmul,
    operator.gt,
    np.multiply,
    np.logaddexp,
    tg.numpy.multiply,
    lambda t, x: np.multiply(x, t),
]


def test_labels_and_graph_stay() -> None:
    labelled = Labelled(np.array([3.0, 4.0]), ["a", "b"])
    for function in OPERATORS:
        for needs in (False, True):
            t = tensor([1.0, 2.0], requires_grad=needs)
            found = function(t, labelled)
            assert type(found) is Labelled
            assert found.labels == ["a", "b"]
            plain = function(np.array([1.0, 2.0]), labelled)
            np.testing.assert_array_equal(tg.as_tensor(found.values).data, plain.values)
    t = tensor([1.0, 2.0], requires_grad=True)
    OPERATORS[0](t, labelled).values.sum().backward()
    assert t.grad is not None
    assert t.grad.tolist() == [3.0, 4.0]


def test_what_cannot_be_is_refused() -> None:
    t, labels = tensor([1.0, 2.0], requires_grad=True), ["a", "b"]
    with pytest.raises(TypeError, match=r"multiply of a tensor and a Proud.*np\.asarray"):
        t * Proud(np.ones(2), labels)
    total = t * 2.0
    with pytest.raises(TypeError, match=r"cannot become a Labelled in place; write t = t \+ x"):
        total *= Labelled(np.ones(2), labels)


def test_functions_of_arrays_take_the_numbers() -> None:
    """As in NumPy, where `np.stack` and `np.where` return plain arrays."""
    t: Any = tensor([1.0, 2.0], requires_grad=True)
    labelled: Any = Labelled(np.array([3.0, 4.0]), ["a", "b"])
    found: list[Any] = [np.where([True, False], t, labelled), np.stack([t, labelled])]
    assert [type(each) for each in found] == [Tensor, Tensor]


def test_xarray() -> None:
    xr = pytest.importorskip("xarray", reason="xarray is not installed; Labelled stands in for it")
    array = xr.DataArray([3.0, 4.0], dims="side", coords={"side": ["a", "b"]})
    t = tensor([1.0, 2.0], requires_grad=True)
    for found in (t * array, array * t, np.multiply(t, array)):
        assert type(found) is xr.DataArray
        assert found.coords["side"].values.tolist() == ["a", "b"]
        assert found.data.requires_grad


def test_pandas() -> None:
    pd = pytest.importorskip("pandas", reason="pandas is not installed; Labelled stands in for it")
    for made in (pd.Series([3.0, 4.0]), pd.DataFrame([[3.0, 4.0]]), pd.Index([3.0, 4.0])):
        assert type(tensor([1.0, 2.0]) * made) is type(made)
        with pytest.raises(AutogradError, match="to_numpy"):
            tensor([1.0, 2.0], requires_grad=True) * made
