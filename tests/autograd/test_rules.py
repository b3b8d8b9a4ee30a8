"""Every rule of the table against finite differences, NumPy's values and dtypes, and for harm.

A rule is proved by its samples (tests/autograd/samples); one without samples fails here.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from telegrad.arrays import is_inexact, sparse_product, to_device
from telegrad.autograd import Tensor, extend, gradcheck, gradgradcheck
from telegrad.autograd.extend import Operation, Tier
from telegrad.autograd.graph.dispatch import TABLE
from telegrad.autograd.graph.plan import sum_over_broadcast
from tests.autograd.samples.sample import Sample
from tests.autograd.samples.special import WITHOUT_PROTOCOL
from tests.autograd.samples.tables import SAMPLES

# Entries that are no function of NumPy; tests/autograd/operation_cases.py proves them.
OTHERS = {
    operator.getitem,
    operator.setitem,
    to_device,
    sum_over_broadcast,
    sparse_product,
    *WITHOUT_PROTOCOL,
}
FUNCTIONS = sorted(SAMPLES, key=lambda function: function.__name__)
NAMES = [function.__name__ for function in FUNCTIONS]
_ARRAYS = (np.ndarray, np.generic)
every_function = pytest.mark.parametrize("function", FUNCTIONS, ids=NAMES)


def test_every_rule_has_samples() -> None:
    ruled = {f for f in TABLE if TABLE.tier(f) in (Tier.SECOND_ORDER, Tier.FIRST_ORDER)}
    lacking = sorted(f.__name__ for f in ruled - SAMPLES.keys() - OTHERS)  # type: ignore[attr-defined]
    assert not lacking, f"give these samples in tests/autograd/samples: {lacking}"


def mapped(sample: Sample, change: Callable[[Any], Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a sample, those that are differentiated changed."""

    def visit(place: Any, x: Any) -> Any:
        if place in sample.fixed:
            return x
        if isinstance(x, (list, tuple)) and arrays_in(x, np.ndarray):
            return type(x)(visit(None, item) for item in x)
        return change(x) if isinstance(x, np.ndarray) and x.dtype.kind in "fc" else x

    arguments = [visit(i, x) for i, x in enumerate(sample.arguments)]
    return arguments, {name: visit(name, x) for name, x in sample.options.items()}


def arrays_in(tree: Any, kind: type | tuple[type, ...]) -> list[Any]:
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, (list, tuple)):
        return [x for part in tree for x in arrays_in(part, kind)]
    return [tree] if isinstance(tree, kind) else []


def as_function(function: Any, sample: Sample) -> tuple[Callable[..., Any], list[Tensor]]:
    """The sample's call as a function of its differentiated arrays, and these."""
    leaves: list[Tensor] = []
    mapped(sample, lambda x: leaves.append(Tensor(x, requires_grad=True)))

    def call(*given: Tensor) -> Any:
        waiting = map(sample.through, given) if sample.through else iter(given)
        arguments, options = mapped(sample, lambda _: next(waiting))
        return floating(function(*arguments, **options))

    return call, leaves


def floating(result: Any) -> Any:
    """Those outputs that need a gradient."""
    found = [x for x in arrays_in(result, Tensor) if x.requires_grad]
    return found[0] if isinstance(result, Tensor) and found else tuple(found)


def checked(function: Any, check: Callable[[Sample], None]) -> None:
    """Runs `check` on each sample and says which one failed."""
    for number, sample in enumerate(SAMPLES[function]):
        try:
            check(sample)
        except Exception as error:
            shapes = [x.shape for x in arrays_in([sample.arguments, sample.options], np.ndarray)]
            error.add_note(f"sample {number} of {function.__name__}: {shapes} {sample.options}")
            raise


def same(found: Any, expected: Any, exact: bool) -> None:
    if isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other, exact)
        return
    data = found.data if isinstance(found, Tensor) else found
    assert np.asarray(data).dtype == np.asarray(expected).dtype
    assert np.shape(data) == np.shape(expected)
    if exact:
        np.testing.assert_array_equal(data, expected)
    else:
        np.testing.assert_allclose(data, expected, rtol=1e-13, atol=1e-14)


@every_function
def test_value_is_numpys(function: Any) -> None:
    named: Any = extend.find(function)
    exact = isinstance(named, Operation)

    def check(sample: Sample) -> None:
        expected = function(*sample.arguments, **sample.options)
        arguments, options = mapped(sample, Tensor)
        for call in (function, named):
            found = call(*arguments, **options)
            same(found, expected, exact)
            assert arrays_in([found], Tensor)
        plain = named(*sample.arguments, **sample.options)
        same(plain, expected, True)
        assert not arrays_in(plain, Tensor)

    checked(function, check)


@every_function
def test_gradient(function: Any) -> None:
    def check(sample: Sample) -> None:
        call, leaves = as_function(function, sample)
        assert gradcheck(call, leaves)

    checked(function, check)


@every_function
def test_gradient_of_gradient(function: Any) -> None:
    if TABLE.tier(function) is not Tier.SECOND_ORDER:
        return

    def check(sample: Sample) -> None:
        call, leaves = as_function(function, sample)
        if sample.second:
            assert gradgradcheck(call, leaves)

    checked(function, check)


@every_function
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_dtypes_are_numpys(function: Any, dtype: Any) -> None:
    """Of short numbers, alone and beside longer ones; a gradient has its leaf's dtype."""

    def check(sample: Sample) -> None:
        for every in (1, 2):
            count = iter(range(99))

            def short(x: Any, count: Any = count, every: int = every) -> Any:
                kept = next(count) % every == 1 or x.dtype.kind == "c"
                return x if kept else x.astype(dtype)

            arguments, options = mapped(sample, short)
            if "dtype" in options:
                return
            with np.errstate(all="ignore"):
                try:
                    expected = function(*arguments, **options)
                except TypeError:  # as LAPACK's functions refuse half precision
                    if dtype is np.float16:
                        return
                    raise
                shortened = replace(sample, arguments=tuple(arguments), options=options)
                call, leaves = as_function(function, shortened)
                found = arrays_in([call(*leaves)], Tensor)
                wanted = arrays_in([expected], _ARRAYS)
                kinds = [np.asarray(x).dtype for x in wanted if np.asarray(x).dtype.kind in "fc"]
                assert [y.dtype for y in found] == kinds
                for y in found:
                    y.backward(np.ones(y.shape), retain_graph=True)
            for leaf in leaves:
                assert leaf.grad is None or leaf.grad.dtype == leaf.dtype

    checked(function, check)


@every_function
def test_brain_floats_are_not_passed_over(function: Any) -> None:
    """NumPy does not count bfloat16 among its floating-point dtypes."""
    if function in {np.linalg.lstsq, np.polymul}:
        return  # these say that they do not know it

    def short(x: Any) -> Any:
        return x if x.dtype.kind == "c" else x.astype(ml_dtypes.bfloat16)

    def check(sample: Sample) -> None:
        leaves: list[Tensor] = []

        def leaf(x: Any) -> Tensor:
            leaves.append(Tensor(short(x), requires_grad=True))
            return leaves[-1]

        plain, options = mapped(sample, short)
        if "dtype" in options:
            return
        with np.errstate(all="ignore"):
            try:
                expected = function(*plain, **options)
            except TypeError:
                return
            given, options = mapped(sample, leaf)
            found = arrays_in([function(*given, **options)], Tensor)
            for y, wanted in zip(found, arrays_in([expected], _ARRAYS), strict=True):
                if is_inexact(wanted.dtype):
                    y.backward(np.ones(y.shape, y.dtype), retain_graph=True)
        assert all(x.grad is None or x.grad.dtype == x.dtype for x in leaves)

    checked(function, check)


@every_function
def test_nothing_is_written_into(function: Any) -> None:
    def check(sample: Sample) -> None:
        call, leaves = as_function(function, sample)
        fixed = arrays_in([sample.arguments, sample.options], np.ndarray)
        before = [x.copy() for x in fixed], [x.data.copy() for x in leaves]
        for y in arrays_in([call(*leaves)], Tensor):
            gradient = np.ones(y.shape, y.dtype)
            gradient.flags.writeable = False
            y.backward(gradient, retain_graph=True)
        for left, right in zip(
            (*before[0], *before[1]), (*fixed, *(x.data for x in leaves)), strict=True
        ):
            np.testing.assert_array_equal(left, right)

    checked(function, check)
