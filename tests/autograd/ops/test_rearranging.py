"""What samples cannot say of functions that move, choose and order items: memory, ties, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import telegrad.numpy as tnp
from telegrad.autograd import Tensor, grad, tensor
from telegrad.errors import AutogradError

untyped: Any = np  # NumPy's types know nothing of Tensors

VIEWS: list[Callable[[Any], Any]] = [
    lambda a: untyped.moveaxis(a, 0, -1),
    lambda a: untyped.rollaxis(a, 1),
    untyped.flip,
    untyped.rot90,
    untyped.matrix_transpose,
    untyped.diagonal,
    untyped.diag,
    lambda a: untyped.split(a, 2)[1],
    lambda a: untyped.array_split(a, [1], axis=1)[0],
    lambda a: untyped.unstack(a)[1],
    lambda a: untyped.hsplit(a, 2)[1],
    untyped.atleast_3d,
    lambda a: untyped.broadcast_arrays(a, 1.0)[0],
    lambda a: untyped.reshape(a, (4, 1), order="C"),
]


@pytest.mark.parametrize("function", VIEWS)
def test_views_are_views_as_numpys_are(function: Any) -> None:
    a = np.array([[1.0, 2.0], [3.0, 4.0]])
    assert np.shares_memory(function(a), a)
    t = Tensor(a)
    assert np.shares_memory(function(t).data, a)


def test_a_change_of_what_a_view_shows_is_noticed() -> None:
    source = tensor([[1.0, 2.0], [3.0, 4.0]])
    part = untyped.split(source, 2)[0]
    weights = tensor([1.0, 2.0], requires_grad=True)
    y = (weights * part).sum()
    source[0, 0] = 7.0
    assert part.data.tolist() == [[7.0, 2.0]]
    with pytest.raises(AutogradError, match="changed"):
        y.backward()


def test_indices_may_change_after_they_were_used() -> None:
    t = tensor([1.0, 2.0, 3.0], requires_grad=True)
    indices = np.array([0, 0, 2])
    y = untyped.take(t, indices)
    indices[:] = 1
    y.sum().backward()
    assert t.grad is not None
    assert t.grad.tolist() == [2.0, 0.0, 1.0]


def test_an_array_chosen_from_by_a_tensor_gives_a_tensor() -> None:
    rows = tensor([1, 0])
    assert untyped.take(np.array([5.0, 6.0]), rows).data.tolist() == [6.0, 5.0]
    assert isinstance(untyped.compress(rows == 1, np.array([5.0, 6.0])), Tensor)
    assert isinstance(untyped.delete(np.array([5.0, 6.0]), rows[1:]), Tensor)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (np.sort, [1.0, 2.0, 4.0, 3.0]),
        (lambda t: untyped.partition(t, [0, 1, 2, 3]).sum(), [1.0, 1.0, 1.0, 1.0]),
        (np.unique, [1.0, 0.0, 3.0, 2.0]),
        (np.union1d, None),
    ],
)
def test_equal_items_each_count_once_or_the_first_does(function: Any, expected: Any) -> None:
    t = tensor([1.0, 1.0, 3.0, 2.0], requires_grad=True)
    if expected is None:
        function(t, t).sum().backward()
        expected = [1.0, 0.0, 1.0, 1.0]
    else:
        y = function(t)
        (y * np.arange(1.0, 1.0 + y.size)).sum().backward()
    assert t.grad is not None
    assert t.grad.tolist() == expected


def test_quantiles_beside_what_is_no_number() -> None:
    gaps = np.array([[1.0, np.nan, 3.0], [np.nan, np.nan, np.nan], [2.0, 4.0, np.inf]])
    t = tensor(gaps, requires_grad=True)
    with np.errstate(invalid="ignore"):
        assert np.isnan(untyped.median(t, axis=1).data).tolist() == [True, True, False]
    y = untyped.nanmedian(t, axis=1)
    np.testing.assert_array_equal(y.data, [2.0, np.nan, 4.0])
    y[[0, 2]].sum().backward()
    assert t.grad is not None
    np.testing.assert_array_equal(t.grad, [[0.5, 0.0, 0.5], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]])


@pytest.mark.parametrize("function", [untyped.quantile, untyped.nanquantile])
def test_a_quantile_that_is_an_item_has_the_slope_of_the_piece_that_begins_there(
    function: Any,
) -> None:
    numbers = np.array([0.0, 4.0, 1.0])
    for where, slope in ((0.0, 2.0), (0.5, 6.0), (1.0, 6.0)):
        q = tensor(where, requires_grad=True)
        y = function(numbers, q)
        y.backward()
        assert y.item() == np.quantile(numbers, where)
        assert q.grad is not None
        assert q.grad.item() == slope
    q = tensor([0.5, 1.0], requires_grad=True)
    with np.errstate(invalid="ignore"):
        y = function(np.array([0.0, np.inf, 1.0]), q)
        y[0].backward()
    assert y.data.tolist() == [1.0, np.inf]
    assert q.grad is not None
    assert q.grad.data[0] == 0.0
    assert function(np.array([3.0]), q).requires_grad


def test_quantiles_where_infinity_stands_beside() -> None:
    numbers = np.array([np.inf, 1.0, 2.0, -np.inf])
    for q, expected in ((0.0, -np.inf), (1.0, np.inf), (0.5, 1.0)):
        assert untyped.quantile(tensor(numbers), q, method="lower").item() == expected
    assert untyped.quantile(tensor(numbers), [0.0, 0.5, 1.0]).data.tolist() == [
        -np.inf,
        1.5,
        np.inf,
    ]


def test_the_median_of_nothing_is_no_number() -> None:
    t = tensor(np.zeros((2, 0)), requires_grad=True)
    with pytest.warns(RuntimeWarning):
        y = untyped.median(t, axis=1)
    assert np.isnan(y.data).tolist() == [True, True]
    y.sum().backward()
    assert t.grad is not None
    assert t.grad.shape == (2, 0)


def test_a_number_counts_as_an_axis_where_numpy_lets_it() -> None:
    t = tensor(2.0, requires_grad=True)
    assert untyped.squeeze(t, 0).shape == ()
    assert untyped.take(t, [0, 0], -1).data.tolist() == [2.0, 2.0]
    assert untyped.repeat(t, 3, 0).shape == (3,)
    assert untyped.trim_zeros(t).shape == ()


def test_zeros_are_trimmed_and_get_no_gradient() -> None:
    numbers = np.array([0.0, 1.0, 0.0, 2.0, 0.0])
    for trim in ("fb", "f", "b"):
        t = tensor(numbers, requires_grad=True)
        y = untyped.trim_zeros(t, trim)
        assert y.data.tolist() == np.trim_zeros(numbers, trim).tolist()
        (y * y).sum().backward()
        assert t.grad is not None
        assert t.grad.tolist() == (2 * numbers).tolist()
    framed = np.pad(np.array([[1.0, 2.0], [3.0, 4.0]]), 2)
    assert untyped.trim_zeros(tensor(framed)).shape == (2, 2)
    assert untyped.trim_zeros(tensor(framed), "f", 1).shape == (6, 4)
    assert untyped.trim_zeros(tensor(np.zeros(3))).shape == (0,)


def test_sets_pass_gradients_to_what_is_in_them() -> None:
    for function, of_first, of_second in (
        (untyped.setdiff1d, [1.0, 0.0, 2.0], [0.0, 0.0]),
        (untyped.setxor1d, [1.0, 0.0, 2.0], [0.0, 3.0]),
        (untyped.intersect1d, [0.0, 1.0, 0.0], [0.0, 0.0]),
    ):
        first = tensor([1.0, 5.0, 2.0], requires_grad=True)
        second = tensor([5.0, 7.0], requires_grad=True)
        y = function(first, second)
        assert y.data.tolist() == function(first.data, second.data).tolist()
        (y * np.arange(1.0, 1.0 + y.size)).sum().backward()
        assert first.grad is not None
        assert first.grad.tolist() == of_first
        assert second.grad is None or second.grad.tolist() == of_second
    places = untyped.intersect1d(first, second, return_indices=True)[1:]
    assert [x.data.tolist() for x in places] == [[1], [0]]


def test_average_tells_what_it_divided_by() -> None:
    t = tensor([[1.0, 2.0], [3.0, 6.0]], requires_grad=True)
    mean, total = untyped.average(t, axis=0, returned=True)
    assert (mean.data.tolist(), total.data.tolist()) == ([2.0, 4.0], [2.0, 2.0])
    with pytest.raises(ZeroDivisionError, match="weights"):
        untyped.average(t, axis=0, weights=[1.0, -1.0])
    with pytest.raises(TypeError, match="axis"):
        untyped.average(t, weights=[1.0, 2.0])


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda t: tnp.quantile(np.ones(3), t, method="hazen"), AutogradError, "respect to q"),
        (lambda t: np.histogram(t), AutogradError, "with respect to a"),
        (lambda t: untyped.take(t, [0, 7]), IndexError, "out of bounds"),
        (lambda t: untyped.take(t, [0], axis=3), np.exceptions.AxisError, "axis 3"),
        (lambda t: untyped.squeeze(t[None], axis=2), np.exceptions.AxisError, "axis 2"),
        (lambda t: untyped.expand_dims(t, 5), np.exceptions.AxisError, "axis 5"),
        (lambda t: untyped.moveaxis(t[None], (0, 1), 0), ValueError, "as many"),
        (lambda t: untyped.split(t, 2), ValueError, "equal division"),
        (lambda t: untyped.block([[t], t]), ValueError, "same depth"),
        (lambda t: untyped.choose([3, 0, 0], [t, t]), ValueError, "from 0 to 1"),
        (lambda t: untyped.select([t], [t]), TypeError, "bool"),
        (lambda t: untyped.select([t > 1], [t, t]), ValueError, "as many choices"),
        (lambda t: untyped.diag(t[None, None]), ValueError, "one axis or two"),
        (lambda t: untyped.sort(t, order="x"), TypeError, "fields"),
        (lambda t: untyped.diff(t, -1), ValueError, "negative"),
        (lambda t: untyped.ediff1d(t, to_end=1j), TypeError, "cannot become"),
        (lambda t: untyped.reshape(t[::2], 2, copy=False), None, ""),
        (lambda t: untyped.reshape(t[None][:, ::2].T, (1, 2), copy=False), None, ""),
        (lambda t: untyped.concatenate([t], dtype=int), TypeError, "same_kind"),
        (lambda t: untyped.trim_zeros(t, "x"), ValueError, "trim"),
    ],
)
def test_refusals(call: Any, error: Any, words: str) -> None:
    t = tensor([1.0, 2.0, 3.0], requires_grad=True)
    if error is None:
        call(t)
        return
    with pytest.raises(error, match=words):
        call(t)


def test_no_view_where_there_is_none() -> None:
    t = tensor([[1.0, 2.0], [3.0, 4.0]])
    with pytest.raises(ValueError, match="without a copy"):
        untyped.reshape(t.T, 4, copy=False)
    assert not np.shares_memory(untyped.reshape(t, 4, copy=True).data, t.data)


def test_the_result_of_piecewise_is_of_the_dtype_of_its_argument() -> None:
    t = tensor([1.0, 2.0], dtype=np.float32, requires_grad=True)
    y = untyped.piecewise(t, [t < 1.5], [lambda x: x * 2, lambda x: x * np.float64(3)])
    assert y.dtype == np.float32
    (found,) = grad(y.sum(), [t])
    assert found.tolist() == [2.0, 3.0]
