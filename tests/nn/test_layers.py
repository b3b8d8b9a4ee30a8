"""`functional.linear`: one operation for all leading axes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from telegrad import nn, tensor
from telegrad.autograd import gradcheck
from tests.autograd.finite_differences import check_second_along_a_line

F = nn.functional


def made(*shape: int, dtype: Any = np.float64) -> Any:
    rng = np.random.default_rng(sum(shape))
    values = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.standard_normal(shape)
    return tensor(values, dtype=dtype, requires_grad=True)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(3,), (4, 3), (2, 4, 3), (2, 0, 3), (2, 1, 2, 3)])
def test_gradients(shape: tuple[int, ...], bias: bool, dtype: Any) -> None:
    leaves = [made(*shape, dtype=dtype), made(2, 3, dtype=dtype)]
    leaves += [made(2, dtype=dtype)] if bias else []
    y = F.linear(*leaves)
    x, weight, *rest = (leaf.data for leaf in leaves)
    assert y.shape == (*shape[:-1], 2)
    np.testing.assert_allclose(y.data, x @ weight.T + (rest[0] if rest else 0), rtol=1e-13)
    assert gradcheck(F.linear, leaves)
    check_second_along_a_line(F.linear, leaves)


def test_views_and_arrays() -> None:
    x = np.random.default_rng(0).standard_normal((4, 3, 2))
    weight, bias = made(5, 3), made(5)
    expected = np.einsum("abc,db->acd", x, weight.data) + bias.data
    np.testing.assert_allclose(F.linear(x.swapaxes(1, 2), weight, bias).data, expected)
    np.testing.assert_allclose(F.linear(x.swapaxes(1, 2), weight.data, bias.data).data, expected)
    assert gradcheck(lambda w, b: F.linear(x.swapaxes(1, 2), w, b), [weight, bias])


def test_what_broadcasts_is_composed() -> None:
    x, weight = made(4, 3), made(2, 3)
    assert F.linear(x, made(3)).shape == (4,)
    assert F.linear(x, weight, made(4, 2)).shape == (4, 2)
    assert gradcheck(F.linear, [x, weight, made(1, 2)])


def test_dtypes_promote() -> None:
    x, weight = made(4, 3, dtype=np.float32), made(2, 3, dtype=np.float32)
    y = F.linear(x, weight, made(2))
    assert y.dtype == np.float64
    y.sum().backward()
    assert x.grad.dtype == weight.grad.dtype == np.float32
    assert F.linear(x, weight, made(2, dtype=np.float32)).dtype == np.float32


def test_short_dtypes_stay() -> None:
    """NumPy's product of two matrices of bfloat16 is one of float32."""
    for dtype in (np.float16, ml_dtypes.bfloat16):
        layer = nn.Linear(3, 2, dtype=dtype)
        for x in (np.ones((4, 3), dtype), np.ones((2, 4, 3), dtype)):
            y = layer(x)
            y.sum().backward()
            gradients: list[Any] = [each.grad for each in layer.parameters()]
            found = [y, F.linear(x, layer.weight), *gradients]
            assert [each.dtype for each in found] == [dtype] * 4
        assert layer(np.ones((4, 3), np.float32)).dtype == np.float32


def test_the_gradient_of_a_weight_lies_as_the_weight_does() -> None:
    layer = nn.Linear(3, 2)
    (layer(np.ones((5, 4, 3), np.float32)) ** 2).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.data.flags.c_contiguous
