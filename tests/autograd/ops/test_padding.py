"""`np.pad`: what its samples cannot say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from telegrad.autograd import Tensor, tensor
from telegrad.errors import AutogradError
from tests.autograd.samples.sample import of_shape


def leaf(x: Any) -> Any:
    return Tensor(x, requires_grad=True)


def test_empty_leaves_what_was_there() -> None:
    x = leaf(of_shape((2, 3)))
    y = np.pad(x, ((1, 0), (0, 2)), "empty")
    assert y.shape == (3, 5)
    y[1:, :3].sum().backward()
    np.testing.assert_array_equal(x.grad.data, 1.0)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["even", "odd"])
@pytest.mark.parametrize("mode", ["reflect", "symmetric"])
def test_mirrors_are_numpys_however_wide(n: int, mode: Any, kind: Any) -> None:
    x = of_shape((n, 2), -1.0, 1.0)
    for width in range(12):
        pairs = ((width, 11 - width), (0, 0))
        expected = np.pad(x, pairs, mode, reflect_type=kind)
        found: Any = np.pad(leaf(x), pairs, mode, reflect_type=kind)
        np.testing.assert_allclose(found.data, expected, rtol=1e-13, atol=1e-13)


def test_integers_are_rounded_as_numpy_does() -> None:
    found: Any = np.pad(tensor([1, 2, 4]), 1, "mean")
    np.testing.assert_array_equal(found.data, np.pad(np.array([1, 2, 4]), 1, "mean"))


def test_equal_extrema_share() -> None:
    x = leaf(np.array([2.0, 1.0, 2.0]))
    np.pad(x, (3, 1), "maximum").sum().backward()
    np.testing.assert_array_equal(x.grad.data, [3.0, 1.0, 3.0])


def test_what_is_refused() -> None:
    x = leaf(of_shape((3,)))
    function: Any = lambda *_: None  # noqa: E731
    with pytest.raises(ValueError, match="knows no mode .*; it knows edge, linear_ramp"):
        np.pad(x, 1, function)
    with pytest.raises(TypeError, match="stat_length"):
        np.pad(x, 1, "edge", stat_length=2)
    with pytest.raises(AutogradError, match="no gradient with respect to constant_values"):
        np.pad(x, 1, constant_values=leaf(2.0))


def test_widths_by_axis() -> None:
    x = leaf(of_shape((2, 3)))
    modes: Any = ("constant", "edge")
    for mode in modes:
        expected = np.pad(x.data, ((0, 0), (1, 2)), mode)
        try:
            by_axis: Any = np.pad(x, {-1: (1, 2)}, mode)
        except TypeError:
            pytest.skip("this NumPy takes no widths by axis")
        np.testing.assert_array_equal(by_axis.data, expected)
        by_axis.sum().backward()
    np.testing.assert_array_equal(x.grad.data[:, 1], 2.0)
