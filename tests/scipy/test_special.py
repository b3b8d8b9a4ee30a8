"""`telegrad.scipy.special` beside SciPy: names, values, derivatives, and when its rules are found.

The ufuncs' derivatives are proved by tests/autograd/ops/test_rules.py, with the samples of
tests/autograd/samples/special.py.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import special

import telegrad as tg
from telegrad.autograd import Tensor, grad, gradcheck, gradgradcheck, no_grad, tensor
from telegrad.errors import AutogradError
from tests.array_libraries import cupy, gpu
from tests.autograd.samples.special import SPECIAL, WITHOUT_PROTOCOL
from tests.gpu.comparison import close_on

__all__ = ["cupy", "gpu"]

ROOT = Path(__file__).parent.parent.parent
ours = tg.scipy.special


def numbers(*shape: int, low: float = -1.0, high: float = 2.0, seed: int = 0) -> Any:
    return np.random.default_rng(seed).uniform(low, high, shape)


def run(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0, done.stderr


# -- names ----------------------------------------------------------------------------------------


def test_names_and_signatures_are_scipys() -> None:
    assert set(ours.__all__) == set(special.__all__)
    for function in (*SPECIAL, *WITHOUT_PROTOCOL):
        here = getattr(ours, function.__name__)
        assert here is not function
        assert here.__name__ == ("digamma" if function is special.psi else function.__name__)
        assert here.__module__ == "telegrad.scipy.special"
        try:
            expected = inspect.signature(function)
        except ValueError:
            continue  # a ufunc, before NumPy 2.4
        assert inspect.signature(here) == expected


def test_what_has_no_rule_raises() -> None:
    x = tensor([0.5], requires_grad=True)
    with pytest.raises(AutogradError, match="no gradient rule") as found:
        ours.struve(1.0, x)
    assert "help(telegrad.scipy.special) lists" in str(found.value)
    assert "numpy.md" not in str(found.value)  # that page has NumPy's functions alone
    assert "log_softmax" in str(ours.__doc__)
    with pytest.raises(AutogradError, match="no gradient with respect to x1"):
        special.gammainc(x, 1.0)
    with no_grad():
        assert ours.struve(1.0, x).data == special.struve(1.0, 0.5)
    with pytest.raises(AutogradError, match="cut it off"):
        special.logsumexp(x)  # no ufunc: SciPy asks for an array


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("zeta", lambda x: ours.zeta(x, 2.0)),
        ("zeta", ours.zeta),
        ("zeta", lambda x: special.zeta(x, 2.0)),
        ("lambertw", ours.lambertw),
        ("struve", lambda x: special.struve(1.0, x)),
    ],
)
def test_the_error_has_the_public_name(name: str, call: Callable[[Tensor], object]) -> None:
    """Where SciPy has a function around a ufunc, the error was that of `_zeta`, one of NumPy's."""
    with pytest.raises(AutogradError, match=f"^{name} has no gradient rule") as found:
        call(tensor([1.5], requires_grad=True))
    assert "help(telegrad.scipy.special) lists SciPy's" in str(found.value)


# -- what is no ufunc -----------------------------------------------------------------------------

AXES: list[Any] = [None, 0, -1, (0, 2), (1,), ()]


def same(found: Any, expected: Any) -> None:
    assert isinstance(found, Tensor)
    assert (found.dtype, found.shape) == (np.asarray(expected).dtype, np.shape(expected))
    np.testing.assert_allclose(found.data, expected, rtol=1e-6 if found.dtype == "f4" else 1e-13)


@pytest.mark.few(4)
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_logsumexp(axis: Any, keepdims: bool, weighted: bool) -> None:
    a = numbers(2, 3, 2)
    b = numbers(3, 1, low=0.2, seed=1) if weighted else None
    options = {"axis": axis, "keepdims": keepdims}
    x = tensor(a, requires_grad=True)
    same(ours.logsumexp(x, b=b, **options), special.logsumexp(a, b=b, **options))
    inputs = [x] if b is None else [x, tensor(b, requires_grad=True)]

    def call(x: Tensor, b: Any = None) -> Tensor:
        result: Tensor = ours.logsumexp(x, b=b, **options)
        return result

    assert gradcheck(call, inputs)
    assert gradgradcheck(call, inputs)


@pytest.mark.parametrize("axis", [None, 0, -1])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i8"])
def test_logsumexp_of_what_is_hard(axis: Any, dtype: str) -> None:
    """Ties; numbers that are nothing, or everything, beside the others; and no numbers."""
    rows = [[3, 3, 1], [1000, -1000, 0], [0, -40, -40], [-700, -720, -700]]
    far = [[-np.inf, -np.inf, -np.inf], [np.inf, 1, 2], [np.nan, 1, 2], [-np.inf, 0, 0]]
    shapes: list[Any] = [rows, *rows, rows[0][0]]
    if dtype != "i8":
        shapes += [far, *far, *[[each] for each in far]]
    for numbers_of in shapes:
        a = np.array(numbers_of, dtype)
        if axis is not None and a.ndim == 0:
            continue
        with np.errstate(invalid="ignore"):
            same(ours.logsumexp(Tensor(a), axis=axis), special.logsumexp(a, axis=axis))


def test_logsumexp_of_nothing() -> None:
    empty = np.zeros((2, 0))
    same(ours.logsumexp(Tensor(empty), axis=1), special.logsumexp(empty, axis=1))
    tiny = ours.logsumexp(Tensor(np.array([0.0, -40.0]))).item()
    assert tiny == pytest.approx(np.exp(-40.0), rel=1e-12)  # which 1 + exp(-40) has lost


def test_logsumexp_with_signs() -> None:
    a, b = numbers(2, 3), np.array([[1.0, -9.0, 0.5], [1.0, 2.0, -0.5]])
    x, weights = tensor(a, requires_grad=True), tensor(b, requires_grad=True)
    for axis in (None, 1):
        value, signs = ours.logsumexp(x, axis, weights, return_sign=True)
        expected = special.logsumexp(a, axis, b, return_sign=True)
        same(value, expected[0])
        same(signs, expected[1])
        assert not signs.requires_grad
        # SciPy 1.15.0 gives nan for some positive sums, too.
        same(ours.logsumexp(x, axis, b), np.where(expected[1] < 0, np.nan, expected[0]))

        def call(x: Tensor, b: Tensor, axis: Any = axis) -> Tensor:
            result: Tensor = ours.logsumexp(x, axis, b, return_sign=True)[0]
            return result

        assert gradcheck(call, [x, weights])
        assert gradgradcheck(call, [x, weights])


@pytest.mark.parametrize(
    ("a", "b", "shares"),
    [
        ([np.inf, 1.0], None, [1.0, 0.0]),
        ([np.inf, -np.inf, np.inf], None, [0.5, 0.0, 0.5]),
        ([-np.inf, -np.inf], None, [0.0, 0.0]),
        ([-np.inf, 1.0], None, [0.0, 1.0]),
        ([1.0, 2.0], 0.0, [0.0, 0.0]),
        ([np.inf, 1.0], [0.0, 2.0], [0.0, 1.0]),
        ([np.nan, 1.0], [0.0, 2.0], [0.0, 1.0]),
        ([1e4, 1.0], [0.0, 2.0], [0.0, 1.0]),
        ([np.inf, np.inf, 1.0], [3.0, 1.0, 1.0], [0.75, 0.25, 0.0]),
    ],
)
def test_shares_of_items_that_are_infinite_or_masked(a: Any, b: Any, shares: Any) -> None:
    for keepdims in (False, True):
        x = tensor(np.array([a, a]), requires_grad=True)
        y = ours.logsumexp(x, axis=1, b=b, keepdims=keepdims)
        (slope,) = grad([y], [x], [np.full(y.shape, 2.0)], create_graph=True)
        np.testing.assert_allclose(slope.data, 2 * np.array([shares, shares]))
    plain = tensor(np.array(a), requires_grad=True)
    ours.logsumexp(plain, b=b).backward()
    assert plain.grad is not None
    np.testing.assert_allclose(plain.grad.data, shares)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_slopes_that_are_small_beside_the_values(dtype: Any) -> None:
    """Computed from the values they would cancel."""
    far = np.array([9.0, 11.0, 30.0, 700.0, 1e4, np.inf], dtype)
    u = 0.5 / far.astype(np.longdouble) ** 2
    series = [
        sum(np.prod(range(1, 2 * k, 2), dtype=np.longdouble) * (s * u) ** k for k in range(1, 30))
        for s in (-1, 1)
    ]
    x = np.array([-100.0, -40.0, -15.0, -1.0], dtype)
    cases: list[tuple[Any, Any, Any]] = [
        (ours.erfcx, far, 2 / np.sqrt(np.pi) * series[0]),
        (ours.dawsn, far, -series[1]),
        (ours.dawsn, -far, -series[1]),
        (ours.expm1, x, np.exp(x)),
        (np.expm1, x, np.exp(x)),
        (
            ours.expit,
            -x,
            np.exp(x.astype(np.longdouble)) / (1 + np.exp(x.astype(np.longdouble))) ** 2,
        ),
    ]
    for function, at, exact in cases:
        t = tensor(at, requires_grad=True)
        (slope,) = grad([function(t)], [t], [np.ones_like(at)], create_graph=True)
        tolerance = 3e-5 if dtype is np.float32 else 1e-12
        np.testing.assert_allclose(slope.data, exact.astype(dtype), rtol=tolerance, atol=1e-40)
        (bend,) = grad([slope], [t], [np.ones_like(at)])
        assert np.isfinite(bend.data).all()


def test_logsumexp_does_not_overflow() -> None:
    a = np.array([[1000.0, 999.0], [-np.inf, 3.0], [-np.inf, -np.inf]])
    x = tensor(a, requires_grad=True)
    y = ours.logsumexp(x, axis=1)
    same(y, special.logsumexp(a, axis=1))
    y.sum().backward()
    assert x.grad is not None
    expected = [special.softmax(a[0]), [0.0, 1.0], [0.0, 0.0]]
    np.testing.assert_allclose(x.grad.data, expected, rtol=1e-12)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("axis", [*AXES, 1])
def test_softmax(name: str, axis: Any) -> None:
    if axis == ():
        return  # of nothing
    a = numbers(2, 3, 2)
    x = tensor(a, requires_grad=True)
    mine, theirs = getattr(ours, name), getattr(special, name)
    same(mine(x, axis=axis), theirs(a, axis=axis))
    same(mine(x.astype(np.float32), axis), theirs(a.astype(np.float32), axis))
    assert gradcheck(lambda x: mine(x, axis), x)
    assert gradgradcheck(lambda x: mine(x, axis), x)


@pytest.mark.parametrize("n", [0, 1, 3])
def test_polygamma(n: int) -> None:
    a = numbers(2, 3, low=0.5)
    x = tensor(a, requires_grad=True)
    same(ours.polygamma(n, x), special.polygamma(n, a))
    assert gradcheck(lambda x: ours.polygamma(n, x), x)
    assert gradgradcheck(lambda x: ours.polygamma(n, x), x)


def test_products_with_zero_have_slopes() -> None:
    """Where SciPy says that 0 log 0 is 0."""
    x, y = tensor([0.0, 0.0, 2.0], requires_grad=True), tensor([0.0, 3.0, 3.0], requires_grad=True)
    special.xlogy(x, y).sum().backward()
    assert x.grad is not None
    assert y.grad is not None
    np.testing.assert_allclose(x.grad.data, [0.0, np.log(3.0), np.log(3.0)])
    np.testing.assert_allclose(y.grad.data, [0.0, 0.0, 2.0 / 3.0])


def bessel_slope(function: Any, n: int, x: Any, k: int, sign: int) -> Any:
    """The k-th derivative of iv(n, x) or jv(n, x), by DLMF 10.29.1 and 10.6.1."""
    if k == 0:
        return function(n, x)
    below, above = (bessel_slope(function, n + step, x, k - 1, sign) for step in (-1, 1))
    return (below + sign * above) / 2


def test_bessel_functions_near_0_have_exact_derivatives_of_higher_order() -> None:
    """The quotient i1(x) / x is finite there, but its derivatives cancel."""
    places = np.array([1e-100, 1e-8, 1e-4, 0.1, 0.9999, 1.0001, 3.0])
    x = np.concatenate([-places, places])
    cases: dict[str, tuple[Any, int, int]] = {
        "i0": (special.iv, 0, 1),
        "i1": (special.iv, 1, 1),
        "j0": (special.jv, 0, -1),
        "j1": (special.jv, 1, -1),
    }
    for name, (function, n, sign) in cases.items():
        leaf = tensor(x, requires_grad=True)
        y = getattr(ours, name)(leaf)
        for order in (1, 2, 3):
            (y,) = grad(y.sum(), leaf, create_graph=True)
            wanted = bessel_slope(function, n, x, order, sign)
            np.testing.assert_allclose(y.data, wanted, rtol=1e-12, err_msg=f"{name}, {order}")
    leaf = tensor(x, requires_grad=True)
    (slope,) = grad(ours.i1e(leaf).sum(), leaf, create_graph=True)
    (bend,) = grad(slope.sum(), leaf)
    terms = [bessel_slope(special.iv, 1, np.abs(x), k, 1) for k in range(3)]
    bends = np.sign(x) * np.exp(-np.abs(x)) * (terms[2] - 2 * terms[1] + terms[0])
    np.testing.assert_allclose(bend.data, bends, rtol=1e-12)
    at_0 = tensor([0.0, -0.0], requires_grad=True)
    (slope,) = grad(ours.i1(at_0).sum(), at_0, create_graph=True)
    (bend,) = grad(slope.sum(), at_0)
    np.testing.assert_array_equal([slope.data, bend.data], [[0.5, 0.5], [0.0, 0.0]])


# -- when it is found -----------------------------------------------------------------------------


def test_without_a_tensor_it_is_scipy() -> None:
    a = numbers(3, low=0.2, high=0.8)
    for function in (special.erf, special.logsumexp, special.softmax):
        found = getattr(ours, function.__name__)(a)
        assert type(found) is type(function(a))
        np.testing.assert_array_equal(found, function(a))
    assert ours.logsumexp([1.0, 2.0]) == special.logsumexp([1.0, 2.0])


@pytest.mark.long
def test_scipy_imported_after_a_miss_is_found() -> None:
    run(
        "import numpy as np, telegrad as tg\n"
        "x = tg.tensor([0.5], requires_grad=True)\n"
        "np.sinc(x)\n"  # loads the rules of NumPy's functions
        "from scipy import special\n"
        "special.erf(x).backward(np.ones(1)); assert x.grad is not None\n"
    )


@pytest.mark.parametrize("name", ["logsumexp", "softmax", "log_softmax"])
def test_cupy_arrays_go_to_cupys_kernels(cupy: Any, name: str) -> None:
    """The ufuncs do so in tests/autograd/ops/test_rules.py."""
    a = numbers(2, 3, low=0.5)
    here, there = tensor(a, requires_grad=True), tensor(cupy.asarray(a), requires_grad=True)
    function = getattr(ours, name)
    for x in (here, there):
        (function(x, axis=0) ** 2).sum().backward()
    close_on(cupy, function(there, axis=0), function(here, axis=0))
    close_on(cupy, there.grad, here.grad)
    assert isinstance(function(cupy.asarray(a)), cupy.ndarray)
