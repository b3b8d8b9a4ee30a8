"""Every operation with a gradient rule on arrays of the GPU, to second order: the same table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from telegrad.autograd import Tensor, gradcheck, gradgradcheck, tensor
from tests.autograd.operation_cases import CASES, in_dtype
from tests.gpu.comparison import close, moved, on_gpu


def case(xp: Any, name: str) -> tuple[Any, list[Any]]:
    func, inputs = CASES[name]
    return func, [moved(xp, x) for x in inputs]


@pytest.mark.parametrize("name", CASES)
def test_gradient(xp: Any, name: str) -> None:
    assert gradcheck(*case(xp, name))


@pytest.mark.parametrize("name", CASES)
def test_gradient_of_gradient(xp: Any, name: str) -> None:
    assert gradgradcheck(*case(xp, name))


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient_are_those_of_numpy(xp: Any, name: str) -> None:
    func, inputs = CASES[name]
    there, here = in_dtype([moved(xp, x) for x in inputs], np.float64), in_dtype(inputs, np.float64)
    results = [func(*there), func(*here)]
    close(*results)
    for result in results:
        result.sum().backward()
    for x, y in zip(there, here, strict=True):
        if isinstance(x, Tensor):
            close(x.grad, y.grad)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("name", CASES)
def test_dtype_stays(xp: Any, name: str, dtype: Any) -> None:
    func, inputs = case(xp, name)
    short = in_dtype(inputs, dtype)
    result = func(*short)
    assert on_gpu(result)
    result.sum().backward()
    for x in short:
        if isinstance(x, Tensor):
            assert x.grad is not None
            assert x.grad.dtype == dtype
            assert on_gpu(x.grad)
    if not any(word in name for word in ("array", "astype")):
        assert result.dtype == dtype


def test_moving_is_an_operation(xp: Any) -> None:
    x = tensor([1.0, 2.0], requires_grad=True)

    def there_and_back(a: Tensor) -> Tensor:
        assert not on_gpu(a)
        there = a.to("cuda")
        assert on_gpu(there)
        return (there * there * there).to("cpu") * a

    assert gradcheck(there_and_back, x)
    assert gradgradcheck(there_and_back, x)
    there_and_back(x).sum().backward()
    assert x.grad is not None
    assert not on_gpu(x.grad)
    assert x.to("cpu") is x
    y = x.to("cuda:0")
    assert y.to("cuda") is y
    assert (y.device, y.requires_grad, x.detach().to("cuda").requires_grad) == (
        "cuda:0",
        True,
        False,
    )
    with pytest.raises(ValueError, match="no such device"):
        x.to("gpu")
