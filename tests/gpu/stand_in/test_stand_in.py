"""What the stand-in refuses, and what telegrad makes of it: on CuPy itself under `make gpu`."""

from __future__ import annotations

import inspect
import operator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from telegrad.autograd import Tensor, no_grad, tensor
from telegrad.errors import AutogradError
from tests.gpu.comparison import close, host, on_gpu
from tests.gpu.stand_in.stand_in_signatures import ABSENT, SIGNATURES

DOCS = Path(__file__).parents[3] / "docs" / "gpu.md"


def found(home: Any, path: str) -> Any:
    for part in path.split("."):
        home = getattr(home, part, None)
    return home


def test_signatures_are_those_of_cupy(gpu: Any) -> None:
    for name, signature in SIGNATURES.items():
        own = inspect.signature(found(gpu, name)).parameters
        lacking = [x for x in signature.parameters if x not in own]
        assert not lacking, f"cupy.{name}{tuple(own)} has no {lacking}"


def test_what_is_absent_is_absent_from_cupy(gpu: Any) -> None:
    there = sorted(name for name in ABSENT if found(gpu, name) is not None)
    assert not there, f"CuPy {gpu.__version__} has these, and docs/gpu.md says that it does not"


# -- operators with an array of CuPy on the left -------------------------------------------------

FLOATS = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"]
INTEGERS = ["and_", "or_", "xor", "lshift", "rshift", "floordiv", "mod"]
COMPARISONS = ["eq", "ne", "lt", "le", "gt", "ge"]
NUMBERS = np.array([1.5, 2.0, 2.5]), np.array([2.0, 2.0, 1.0])


@pytest.mark.parametrize("needs", [True, False])
@pytest.mark.parametrize("name", [*FLOATS, *COMPARISONS])
def test_an_operator_with_an_array_on_the_left_gives_a_tensor(
    cupy: Any, name: str, needs: bool
) -> None:
    function, (a, b) = getattr(operator, name), NUMBERS
    x = tensor(cupy.asarray(b), requires_grad=needs)
    y = function(cupy.asarray(a), x)
    assert isinstance(y, Tensor)
    close(y, np.asarray(function(a, b)))
    if needs and name not in (*COMPARISONS, "floordiv"):
        y.sum().backward()
        here = tensor(b, requires_grad=True)
        function(a, here).sum().backward()
        close(x.grad, host(here.grad))
    with no_grad():
        assert isinstance(function(cupy.asarray(a), x), Tensor)


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_with_an_array_on_the_left(cupy: Any, name: str) -> None:
    function, a, b = getattr(operator, name), np.array([5, 6]), np.array([1, 2])
    y = function(cupy.asarray(a), tensor(cupy.asarray(b)))
    assert isinstance(y, Tensor)
    close(y, function(a, b))


def test_divmod_with_an_array_on_the_left(cupy: Any) -> None:
    a, b = NUMBERS
    both = divmod(cupy.asarray(a), tensor(cupy.asarray(b)))
    for y, expected in zip(both, divmod(a, b), strict=True):
        close(y, expected)


def test_ufuncs_of_numpy_and_of_cupy_take_tensors(cupy: Any) -> None:
    a, b = NUMBERS
    array = cupy.asarray(a)
    for needs in (True, False):
        x = tensor(cupy.asarray(b), requires_grad=needs)
        for y in (np.multiply(array, x), cupy.multiply(array, x), cupy.multiply(x, array)):
            assert isinstance(y, Tensor)
            assert y.requires_grad == needs
            close(y, a * b)
        assert isinstance(cupy.exp(x), Tensor)
        close(cupy.exp(x), np.exp(b))


def test_in_place_an_array_takes_what_needs_no_gradient(cupy: Any) -> None:
    a, b = NUMBERS
    array = cupy.asarray(a)
    x = tensor(cupy.asarray(b), requires_grad=True)
    same = array
    array += x.detach()
    array[1:] = x.detach()[1:]
    assert array is same
    np.testing.assert_array_equal(host(array), [a[0] + b[0], *b[1:]])
    with pytest.raises(AutogradError, match=r"write t\.detach\(\)"):
        array += x
    before = host(array).tolist()
    assert host(array).tolist() == before
    x.data += x.detach()
    close(x, 2 * b)


def test_a_tensor_on_the_host_beside_an_array_of_a_gpu(cupy: Any) -> None:
    with pytest.raises(ValueError, match="different devices"):
        _ = cupy.asarray(NUMBERS[0]) * tensor(NUMBERS[1])


# -- functions and options that CuPy lacks -------------------------------------------------------

# Calls of what CuPy lacks and telegrad does not compose.
REFUSED: dict[str, Any] = {
    "einsum_path": lambda t: np.einsum_path("i,i", t, t),
    "geomspace": lambda t: np.geomspace(t, 2 * t, 3),
    "histogram_bin_edges": np.histogram_bin_edges,
    "isnat": np.isnat,
    "spacing": np.spacing,
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_cupy_lacks_raises_in_words(cupy: Any, name: str) -> None:
    with pytest.raises(TypeError, match=rf"CuPy \S+ has no np\.{name}; .* tensor\.to\('cpu'\)"):
        REFUSED[name](tensor(cupy.asarray(NUMBERS[0])))


def test_docs_name_what_cupy_lacks() -> None:
    text = DOCS.read_text()
    assert REFUSED.keys() <= ABSENT
    for name in REFUSED:
        assert f"`{name}`" in text
    for name in ABSENT - REFUSED.keys():
        assert f"`{name}`" in text, f"{name} is composed: docs/gpu.md names it among these"


def test_a_special_function_that_cupy_lacks(cupy: Any) -> None:
    special = pytest.importorskip("scipy.special")
    with pytest.raises(TypeError, match=r"CuPy has no scipy\.special\.dawsn; .*to\('cpu'\)"):
        special.dawsn(tensor(cupy.asarray(NUMBERS[0])))


def test_an_option_that_cupy_lacks(cupy: Any) -> None:
    x = tensor(cupy.asarray(NUMBERS[0]))
    with pytest.raises(TypeError, match=r"argsort of CuPy arrays takes fewer options.*'stable'"):
        np.argsort(x, stable=True)


# -- options that CuPy's reductions lack ---------------------------------------------------------

MASK = np.array([[True, False, True], [False, False, True]])
ITEMS = np.array([[3.0, -1.0, 2.0], [0.5, 4.0, -2.0]])


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int32", "complex64"])
@pytest.mark.parametrize("axis", [None, 0, -1])
def test_reductions_take_numpys_options(cupy: Any, dtype: str, axis: Any) -> None:
    a = ITEMS.astype(dtype)
    there = tensor(cupy.asarray(a))
    calls: list[Any] = [
        lambda x, mask: np.sum(x, axis=axis, initial=2, where=mask),
        lambda x, mask: np.prod(x, axis=axis, initial=2, where=mask),
        lambda x, mask: np.mean(x, axis=axis, where=mask, keepdims=True),
        lambda x, mask: np.var(x, axis=axis, where=mask),
        lambda x, mask: np.var(x, axis=axis, correction=1),
        lambda x, mask: np.std(x, axis=axis, where=mask, ddof=0.5),
    ]
    if dtype != "complex64":
        calls += [
            lambda x, mask: np.max(x, axis=axis, initial=3, where=mask),
            lambda x, mask: np.min(x, axis=axis, initial=-1, where=mask),
            lambda x, mask: np.nanmax(x, axis=axis, initial=3, where=mask),
        ]
    mask = MASK.copy()
    mask[1, 1] = True  # an item of each line: no line's count is 0
    for call in calls:
        with np.errstate(invalid="ignore"):
            expected = call(a, mask)
        close(call(there, cupy.asarray(mask)), np.asarray(expected))
    if dtype != "complex64":
        with pytest.raises(ValueError, match="needs initial"):
            np.max(there, where=cupy.asarray(mask))


def test_an_extremum_of_nothing(cupy: Any) -> None:
    nothing = np.zeros((2, 0))
    close(np.max(tensor(cupy.asarray(nothing)), axis=1, initial=1.0), np.ones(2))


def test_lengths_of_transforms(cupy: Any) -> None:
    a = np.arange(6.0).reshape(3, 2)
    x = tensor(cupy.asarray(a))
    for s, axes in (((-1, 3), (1, 0)), ((3, 2), (1, 0)), ((2, 3), (0, 1)), ((4, 1), (-2, -1))):
        close(np.fft.fft2(x, s, axes), np.fft.fft2(a, s, axes))
        close(np.fft.ifftn(x, s, axes), np.fft.ifftn(a, s, axes))


def test_places_of_splits_far_outside(cupy: Any) -> None:
    a = np.arange(5.0)
    for places in ([-99], [-99, 99], [3, -99, 2]):
        there = np.array_split(tensor(cupy.asarray(a)), places)
        for part, expected in zip(there, np.array_split(a, places), strict=True):
            close(part, expected)


def test_common_items_of_arrays_in_any_order(cupy: Any) -> None:
    a, b = np.array([3.0, 1.0, 2.0]), np.array([5.0, 3.0, 2.0, 0.0])
    x, y = (tensor(cupy.asarray(each)) for each in (a, b))
    for alone in (False, True):
        close(np.intersect1d(x, y, alone), np.intersect1d(a, b, alone))


def test_shapes_of_full_like(cupy: Any) -> None:
    x = tensor(cupy.asarray(ITEMS), requires_grad=True)
    for shape in (None, (), (2,), (4, 1)):
        made = np.full_like(x, 1.5, shape=shape)
        assert on_gpu(made)
        close(made, np.full_like(ITEMS, 1.5, shape=shape))
