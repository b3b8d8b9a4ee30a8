"""Every rule of the table: NumPy's values and dtypes, finite differences of both orders, no harm.

A rule is proved by its samples (tests/autograd/samples); one without samples fails here. There is
one test a rule and array library, with a subtest for each aspect.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from scipy import special

from telegrad.arrays import is_inexact, sparse_product, to_device
from telegrad.autograd import Tensor, extend, gradcheck, gradgradcheck
from telegrad.autograd.extend import Operation, Tier
from telegrad.autograd.graph.dispatch import TABLE
from tests.array_libraries import CUPY_PLACES, NUMPY_PLACES
from tests.autograd.finite_differences import check_along_a_line, check_second_along_a_line
from tests.autograd.samples.arrangement.axis_order import AXIS_ORDER
from tests.autograd.samples.arrangement.diagonals import DIAGONALS, GRIDS
from tests.autograd.samples.arrangement.selection import SELECTION
from tests.autograd.samples.arrangement.sorting import ORDER_STATISTICS, SORTING
from tests.autograd.samples.arrangement.splitting import SPLITTING
from tests.autograd.samples.arrangement.stacking import STACKING
from tests.autograd.samples.differences import CONDITIONS, DIFFERENCES, WEIGHTING
from tests.autograd.samples.sample import Sample
from tests.autograd.samples.special import WITHOUT_PROTOCOL
from tests.autograd.samples.tables import SAMPLES
from tests.gpu.comparison import close, host
from tests.gpu.stand_in.stand_in_special import NAMES as SPECIAL_NAMES

# Entries that are no function of NumPy; tests/autograd/ops/test_operations.py proves them.
OTHERS = {
    operator.getitem,
    operator.setitem,
    to_device,
    sparse_product,
    *WITHOUT_PROTOCOL,
}
FUNCTIONS = sorted(SAMPLES, key=lambda function: function.__name__)
_ARRAYS = (np.ndarray, np.generic)

# Options that CuPy's functions of that name do not take, as of CuPy 13, and that have no twin.
ABSENT_OPTIONS = {"order", "casting", "mean"}
ABSENT = {np.linalg.eig, np.linalg.eigvals, special.dawsn}
KNOWN = {
    id(x) for home in (np, np.linalg, np.fft, np.lib.stride_tricks) for x in vars(home).values()
}
ON_STAND_IN = [
    f for f in FUNCTIONS if f not in ABSENT and (id(f) in KNOWN or f.__name__ in SPECIAL_NAMES)
]
SAMPLES_ON_CUPY = 4  # of all samples on NumPy's arrays
# The outputs whose vectors have a free sign, with the axis along which a vector lies.
PHASES = {np.linalg.eigh: {1: -2}, np.linalg.svd: {0: -2, 2: -1}}
# Functions that move, choose and order items: CuPy's differ most there, and run on all samples.
REARRANGING = {
    *AXIS_ORDER, *CONDITIONS, *DIAGONALS, *DIFFERENCES, *GRIDS, *ORDER_STATISTICS, *SELECTION,
    *SORTING, *SPLITTING, *STACKING, *WEIGHTING,
}  # fmt: skip


# Read before any test runs: the examples of telegrad/autograd/extend.py enter rules of their own.
RULED = {f for f in TABLE.functions() if TABLE.tier(f) in (Tier.SECOND_ORDER, Tier.FIRST_ORDER)}


def test_every_rule_has_samples() -> None:
    lacking = sorted(f.__name__ for f in RULED - SAMPLES.keys() - OTHERS)  # type: ignore[attr-defined]
    assert not lacking, f"give these samples in tests/autograd/samples: {lacking}"


# -- samples ---------------------------------------------------------------------------------------


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


def floating(result: Any) -> Any:
    """Those outputs that need a gradient."""
    found = [x for x in arrays_in(result, Tensor) if x.requires_grad]
    return found[0] if isinstance(result, Tensor) and found else tuple(found)


@dataclass
class Prepared:
    """A sample of a function with what all aspects have in common, computed once."""

    function: Any
    sample: Sample

    @cached_property
    def expected(self) -> Any:
        """What NumPy's function returns."""
        return self.function(*self.sample.arguments, **self.sample.options)

    @cached_property
    def leaves(self) -> list[Tensor]:
        """The arrays that are differentiated."""
        leaves: list[Tensor] = []
        mapped(self.sample, lambda x: leaves.append(Tensor(x, requires_grad=True)))
        return leaves

    def call(self, *given: Tensor) -> Any:
        """The sample's call as a function of its differentiated arrays."""
        through = self.sample.through
        waiting = map(through, given) if through else iter(given)
        arguments, options = mapped(self.sample, lambda _: next(waiting))
        return floating(self.function(*arguments, **options))

    def __str__(self) -> str:
        arrays = arrays_in([self.sample.arguments, self.sample.options], np.ndarray)
        return f"{self.function.__name__}: {[x.shape for x in arrays]} {self.sample.options}"


Aspect = Callable[[Prepared], None]


def check_all(check: Aspect, samples: Iterable[Prepared]) -> None:
    """Runs a check on each sample and says which one failed."""
    for number, sample in enumerate(samples):
        try:
            check(sample)
        except Exception as error:
            error.add_note(f"sample {number} of {sample}")
            raise


# -- aspects on NumPy's arrays ---------------------------------------------------------------------


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


def check_value(prepared: Prepared) -> None:
    sample = prepared.sample
    named: Any = extend.find(prepared.function)
    arguments, options = mapped(sample, Tensor)
    for call in (prepared.function, named):
        found = call(*arguments, **options)
        same(found, prepared.expected, isinstance(named, Operation))
        assert arrays_in([found], Tensor)
    plain = named(*sample.arguments, **sample.options)
    same(plain, prepared.expected, True)
    assert not arrays_in(plain, Tensor)


def check_gradient(prepared: Prepared) -> None:
    check_along_a_line(prepared.call, prepared.leaves)


def has_second(prepared: Prepared) -> bool:
    return TABLE.tier(prepared.function) is Tier.SECOND_ORDER and prepared.sample.second


def check_second_gradient(prepared: Prepared) -> None:
    if has_second(prepared):
        check_second_along_a_line(prepared.call, prepared.leaves)


def check_dtypes_with(dtype: Any) -> Aspect:
    """Short numbers, alone and beside longer ones; a gradient has its leaf's dtype."""

    def check(prepared: Prepared) -> None:
        sample, function = prepared.sample, prepared.function
        if "dtype" in sample.options:
            return
        for every in (1, 2):
            count = iter(range(99))

            def short(x: Any, count: Any = count, every: int = every) -> Any:
                kept = next(count) % every == 1 or x.dtype.kind == "c"
                return x if kept else x.astype(dtype)

            arguments, options = mapped(sample, short)
            with np.errstate(all="ignore"):
                try:
                    expected = function(*arguments, **options)
                except TypeError:  # as LAPACK's functions refuse half precision
                    if dtype is np.float16:
                        return
                    raise
                shortened = replace(sample, arguments=tuple(arguments), options=options)
                beside = Prepared(function, shortened)
                found = arrays_in([beside.call(*beside.leaves)], Tensor)
                wanted = arrays_in([expected], _ARRAYS)
                kinds = [np.asarray(x).dtype for x in wanted if np.asarray(x).dtype.kind in "fc"]
                assert [y.dtype for y in found] == kinds
                for y in found:
                    y.backward(np.ones(y.shape), retain_graph=True)
            for leaf in beside.leaves:
                assert leaf.grad is None or leaf.grad.dtype == leaf.dtype

    return check


def check_brain_floats(prepared: Prepared) -> None:
    """NumPy does not count bfloat16 among its floating-point dtypes."""
    if prepared.function in {np.linalg.lstsq, np.polymul}:
        return  # these say that they do not know it
    if "dtype" in prepared.sample.options:
        return
    leaves: list[Tensor] = []

    def short(x: Any) -> Any:
        return x if x.dtype.kind == "c" else x.astype(ml_dtypes.bfloat16)

    def leaf(x: Any) -> Tensor:
        leaves.append(Tensor(short(x), requires_grad=True))
        return leaves[-1]

    plain, options = mapped(prepared.sample, short)
    with np.errstate(all="ignore"):
        try:
            expected = prepared.function(*plain, **options)
        except TypeError:
            return
        given, options = mapped(prepared.sample, leaf)
        found = arrays_in([prepared.function(*given, **options)], Tensor)
        for y, wanted in zip(found, arrays_in([expected], _ARRAYS), strict=True):
            if is_inexact(wanted.dtype):
                y.backward(np.ones(y.shape, y.dtype), retain_graph=True)
    assert all(x.grad is None or x.grad.dtype == x.dtype for x in leaves)


def check_byte_order(prepared: Prepared) -> None:
    """NumPy's functions take no dtype of the other byte order for `dtype=`, only such arrays."""
    results = []
    for order in "=S":  # the machine's, and the other one

        def ordered(x: Any, order: Any = order) -> Any:
            return Tensor(x.data.astype(x.dtype.newbyteorder(order)), requires_grad=True)

        leaves = [ordered(x) for x in prepared.leaves]
        found = arrays_in([prepared.call(*leaves)], Tensor)
        for y in found:
            y.backward(np.ones(y.shape, y.dtype), retain_graph=True)
        results.append([*found, *(x.grad for x in leaves if x.grad is not None)])
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(other.data, one.data, rtol=1e-12, atol=1e-12)


def check_nothing_is_written_into(prepared: Prepared) -> None:
    sample = prepared.sample
    leaves = [Tensor(x.data, requires_grad=True) for x in prepared.leaves]
    read = [*arrays_in([sample.arguments, sample.options], np.ndarray), *(x.data for x in leaves)]
    before = [x.copy() for x in read]
    for y in arrays_in([prepared.call(*leaves)], Tensor):
        gradient = np.ones(y.shape, y.dtype)
        gradient.flags.writeable = False
        y.backward(gradient, retain_graph=True)
    for left, right in zip(before, read, strict=True):
        np.testing.assert_array_equal(left, right)


ON_NUMPY: dict[str, Aspect] = {
    "nothing is written into": check_nothing_is_written_into,
    "value": check_value,
    "byte order": check_byte_order,
    "gradient": check_gradient,
    "second gradient": check_second_gradient,
    "float16": check_dtypes_with(np.float16),
    "float32": check_dtypes_with(np.float32),
    "bfloat16": check_brain_floats,
}


# -- aspects on CuPy's arrays ----------------------------------------------------------------------


def on_cupy(function: Any, sample: Sample) -> bool:
    """Tells whether a sample is one of those that CuPy can compute."""
    return function in REARRANGING or not ABSENT_OPTIONS & sample.options.keys()


def moved(tree: Any, place: Callable[[Any], Any]) -> Any:
    """The arrays that are not differentiated, moved too."""
    if isinstance(tree, dict):
        return {name: moved(x, place) for name, x in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(moved(x, place) for x in tree)
    return place(tree) if isinstance(tree, np.ndarray) else tree


def phases(function: Any, found: list[Tensor], expected: list[Tensor]) -> list[Any]:
    """Factors that turn the expected outputs into those found, which are as valid.

    LAPACK and cuSOLVER choose eigenvectors and singular vectors with other signs, or phases.
    """
    factors: list[Any] = [np.ones((), y.dtype) for y in expected]
    for k, axis in PHASES.get(function, {}).items() if len(found) > 1 else ():
        here, there = host(expected[k]), host(found[k])
        turned = np.sum(here.conj() * there, axis=axis, keepdims=True)
        factors[k] = turned / np.abs(turned)
    return factors


def outputs_and_leaves(
    prepared: Prepared, place: Callable[[Any], Any], like: list[Tensor] | None = None
) -> tuple[list[Tensor], list[Tensor], list[Any]]:
    """All outputs for arrays that `place` makes, and the leaves after a backward of each output.

    With the outputs of another library, `like`, the gradients that come in are turned as the
    outputs are; the factors are the third result.
    """
    leaves: list[Tensor] = []

    def leaf(x: Any) -> Tensor:
        leaves.append(Tensor(place(x), requires_grad=True))
        return leaves[-1]

    arguments, options = mapped(prepared.sample, leaf)
    outputs = arrays_in(
        [prepared.function(*moved(arguments, place), **moved(options, place))], Tensor
    )
    factors = phases(prepared.function, outputs, like or outputs)
    for seed, (y, factor) in enumerate(zip(outputs, factors, strict=True)):
        if y.requires_grad:
            incoming = np.random.default_rng(seed).uniform(0.5, 1.5, y.shape).astype(y.dtype)
            y.backward(place(incoming * factor), retain_graph=True)
    return outputs, leaves, factors


def check_on(xp: Any) -> Aspect:
    """Values and gradients are NumPy's, and CuPy's arrays."""

    def check(prepared: Prepared) -> None:
        here, here_leaves, _ = outputs_and_leaves(prepared, lambda x: x)
        there, there_leaves, factors = outputs_and_leaves(prepared, xp.asarray, here)
        for found, expected, factor in zip(there, here, factors, strict=True):
            close(found, host(expected) * factor)
        for found, expected in zip(there_leaves, here_leaves, strict=True):
            assert (found.grad is None) == (expected.grad is None)
            if expected.grad is not None:
                close(found.grad, expected.grad)

    return check


# -- tests -----------------------------------------------------------------------------------------


def pairs() -> list[Any]:
    """Each library with the functions that it has: SciPy's are CuPy's, too, but not the stand-in's."""
    has = {
        "numpy": FUNCTIONS,
        "stand-in": ON_STAND_IN,
        "gpu": [f for f in FUNCTIONS if f not in ABSENT],
    }
    return [
        pytest.param(
            place,
            function,
            id=f"{function.__name__}-{place}",
            marks=[] if place == "numpy" else [pytest.mark.xp],
        )
        for place in [*NUMPY_PLACES, *CUPY_PLACES]
        for function in has[place]
    ]


@pytest.mark.parametrize(("xp", "function"), pairs(), indirect=["xp"])
def test_rule(xp: Any, function: Any, subtests: pytest.Subtests) -> None:
    samples = [Prepared(function, sample) for sample in SAMPLES[function]]
    if xp is not np:
        most = None if function in REARRANGING else SAMPLES_ON_CUPY
        check_all(check_on(xp), [each for each in samples if on_cupy(function, each.sample)][:most])
        return
    for name, check in ON_NUMPY.items():
        with subtests.test(name):
            check_all(check, samples)


@pytest.mark.long
@pytest.mark.parametrize("function", FUNCTIONS, ids=[each.__name__ for each in FUNCTIONS])
def test_each_item_of_the_gradients(function: Any) -> None:
    def check(prepared: Prepared) -> None:
        assert gradcheck(prepared.call, prepared.leaves)
        if has_second(prepared):
            assert gradgradcheck(prepared.call, prepared.leaves)

    check_all(check, [Prepared(function, sample) for sample in SAMPLES[function]])
