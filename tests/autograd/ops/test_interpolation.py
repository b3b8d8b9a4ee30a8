"""Interpolation, finite differences, polynomials and covariances: edges, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import telegrad.numpy as tnp
from telegrad.autograd import Tensor, tensor
from tests.autograd.samples.sample import of_shape

KNOTS, VALUES = np.array([0.0, 1.0, 3.0]), np.array([1.0, 2.0, -2.0])


def leaf(x: Any) -> Any:
    return Tensor(x, requires_grad=True)


def test_at_a_knot_the_slope_is_that_of_the_piece_that_begins_there() -> None:
    x = leaf(np.array([0.0, 1.0, 3.0, -1.0, 4.0]))
    np.interp(x, KNOTS, VALUES).sum().backward()
    np.testing.assert_array_equal(x.grad.data, [1.0, -2.0, -2.0, 0.0, 0.0])


def test_what_is_no_number_stays_none() -> None:
    x = leaf(np.array([np.nan, 0.5]))
    found: Any = np.interp(x, KNOTS, VALUES)
    np.testing.assert_array_equal(found.data, np.interp(x.data, KNOTS, VALUES))


def test_a_tensor_may_be_the_values_alone() -> None:
    values = leaf(VALUES)
    found: Any = np.interp([0.5, 2.0], KNOTS, values)
    assert found.dtype == np.float64
    found.sum().backward()
    np.testing.assert_allclose(values.grad.data, [0.5, 1.0, 0.5])


def test_what_is_refused() -> None:
    x = leaf(of_shape((3,)))
    table = leaf(of_shape((3, 3)))
    with pytest.raises(ValueError, match=r"vectors of one length, not \(3,\) and \(2,\)"):
        np.interp(x, KNOTS, VALUES[:2])
    with pytest.raises(ValueError, match="period must not be 0"):
        np.interp(x, KNOTS, VALUES, period=0)
    order: Any = 3
    with pytest.raises(ValueError, match="edge_order is 1 or 2, not 3"):
        np.gradient(x, edge_order=order)
    with pytest.raises(TypeError, match="3 spacings are given for 2 axes"):
        np.gradient(table, 1.0, 2.0, 3.0)
    with pytest.raises(ValueError, match="axis 0 of 1 items is too short; 2 are needed"):
        np.gradient(x[:1])
    with pytest.raises(ValueError, match="2 coordinates are given for 3 items"):
        np.gradient(x, KNOTS[:2])
    with pytest.raises(ValueError, match="must not be negative, it is -1"):
        np.polyder(x, -1)
    with pytest.raises(ValueError, match="must not be negative, it is -1"):
        np.polyint(x, -1)
    with pytest.raises(ValueError, match="2 constants are given for 3 integrations"):
        np.polyint(x, 3, [1.0, 2.0])
    with pytest.raises(TypeError, match="does not take cov"):
        np.polyfit(x, VALUES, 1, cov=True)
    with pytest.raises(ValueError, match="cov of arrays of one or two axes"):
        np.cov(leaf(np.ones((2, 2, 2))))


def test_warnings_are_numpys_and_their_place_is_the_caller() -> None:
    for polyfit in (np.polyfit, tnp.polyfit):
        with pytest.warns(np.exceptions.RankWarning) as caught:
            polyfit(leaf(np.ones(3)), VALUES, 1)
        assert caught[0].filename == __file__
    single = tensor(np.ones((2, 1)))
    with np.errstate(all="ignore"):
        with pytest.warns(RuntimeWarning, match="degrees of freedom") as caught:
            np.cov(single)
    assert caught[0].filename == __file__


def test_the_slope_of_i0_is_i1() -> None:
    """Tables: M. Abramowitz and I. A. Stegun (1964), table 9.8."""
    x = leaf(np.array([0.0, 1.0, 5.0, -1.0]))
    np.i0(x).sum().backward()
    expected = [0.0, 0.565159103992485, 24.335642142450524, -0.565159103992485]
    np.testing.assert_allclose(x.grad.data, expected, rtol=1e-13)
    large = leaf(np.array([700.0]))
    np.i0(large).sum().backward()
    # i1 / i0 = 1 - 1 / (2 x) - 1 / (8 x^2) - ... for large x
    ratio = large.grad.data[0] / np.i0(700.0)
    np.testing.assert_allclose(ratio, 1 - 1 / 1400 - 1 / (8 * 700**2), rtol=1e-9)
