"""einsum of random subscripts beside NumPy's, and its gradients beside finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telegrad.autograd import Tensor, gradcheck, tensor
from telegrad.autograd.ops import products
from telegrad.types import Shape
from tests.autograd.finite_differences import check_second_along_a_line
from tests.repeated import on_examples

LABELS = "aBcd"


@pytest.mark.parametrize("dtype", [">f8", ">f4", ">f2", ">c16"])
@pytest.mark.parametrize(
    "subscripts",
    ["ij,jk->ik", "ij,jk->i", "ij,kl->", "ij,ij->", "i,j->ij", "ij->i", "iij->j", "ij,jk,kl->il"],
)
def test_arrays_in_the_other_byte_order(subscripts: str, dtype: str) -> None:
    """NumPy refuses such a dtype for `dtype=` of a sum; of an axis of length 1, too."""
    terms = subscripts.split("->")[0].split(",")
    rng = np.random.default_rng(0)
    for length in (3, 1):
        given = [rng.normal(size=(3,) * len(term)).astype(dtype) for term in terms]
        given[-1] = given[-1][..., :length] if len(terms) > 1 else given[-1]
        results = []
        for kind in (np.dtype(dtype), np.dtype(dtype).newbyteorder("=")):
            leaves = [tensor(x.astype(kind), requires_grad=True) for x in given]
            y = np.einsum(subscripts, *leaves)
            y.backward(np.ones_like(y.data))
            results.append([y, *(x.grad for x in leaves)])
        for found, expected in zip(*results, strict=True):
            np.testing.assert_allclose(
                found.data, expected.data, rtol=1e-3 if "2" in dtype else 1e-6
            )


@st.composite
def calls(draw: Any, *, most: int = 3) -> tuple[str, list[Shape]]:
    """Subscripts with repeated labels, ellipses and axes that broadcast, and fitting shapes."""
    lengths = {label: draw(st.integers(1, 3)) for label in LABELS}
    width = draw(st.lists(st.integers(1, 2), max_size=2))
    terms, shapes = [], []
    for _ in range(draw(st.integers(1, most))):
        labels = draw(st.text(LABELS, max_size=3))
        # NumPy broadcasts a label of length 1, but not within one operand.
        shape = [
            lengths[x] if draw(st.integers(0, 5)) or labels.count(x) > 1 else 1 for x in labels
        ]
        if draw(st.integers(0, 3)) == 0:
            place = draw(st.integers(0, len(labels)))
            part = width[draw(st.integers(0, len(width))) :]
            labels = f"{labels[:place]}...{labels[place:]}"
            shape[place:place] = [n if draw(st.booleans()) else 1 for n in part]
        terms.append(labels)
        shapes.append(tuple(shape))
    subscripts = ",".join(terms)
    if draw(st.booleans()):
        seen = sorted(set(subscripts) - set(",."))
        out = draw(st.lists(st.sampled_from(seen), unique=True)) if seen else []
        if "..." in subscripts:
            out.insert(draw(st.integers(0, len(out))), "...")
        subscripts += "->" + "".join(out)
    return subscripts, shapes


def arrays(shapes: list[Shape]) -> list[Any]:
    generator = np.random.default_rng(8)
    return [generator.uniform(-1.0, 1.0, shape) for shape in shapes]


def leaves(given_arrays: list[Any]) -> list[Tensor]:
    return [Tensor(x, requires_grad=True) for x in given_arrays]


@on_examples(calls(most=4), st.sampled_from([False, True, "optimal"]), few=50, many=400)
def test_values_are_numpys(call: tuple[str, list[Shape]], optimize: Any) -> None:
    subscripts, shapes = call
    operands = arrays(shapes)
    expected = np.einsum(subscripts, *operands)
    found = np.einsum(subscripts, *map(Tensor, operands), optimize=optimize)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    np.testing.assert_allclose(found.data, expected, rtol=1e-12, atol=1e-13)


@on_examples(calls(), few=50, many=200)
def test_gradients_are_differences(call: tuple[str, list[Shape]]) -> None:
    subscripts, shapes = call
    assert gradcheck(lambda *x: np.einsum(subscripts, *x), leaves(arrays(shapes)))


@settings(max_examples=30)
@given(calls(most=2))
def test_gradients_of_gradients_are_differences(call: tuple[str, list[Shape]]) -> None:
    subscripts, shapes = call
    if np.prod([n for shape in shapes for n in shape]) <= 64:
        check_second_along_a_line(lambda *x: np.einsum(subscripts, *x), leaves(arrays(shapes)))


@settings(max_examples=60)
@given(calls(most=2))
def test_complex_gradients_are_differences(call: tuple[str, list[Shape]]) -> None:
    subscripts, shapes = call
    operands = [x + 0.5j * x[..., ::-1] if x.ndim else x for x in arrays(shapes)]
    assert gradcheck(lambda *x: np.einsum(subscripts, *x), leaves(operands))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ij,jk->ii", (2, 3), (3, 2)), "output subscript 'i' multiple times"),
        (("ij->ik", (2, 3)), "output subscript 'k' which never appeared"),
        (("ijk", (2, 3)), "too many subscripts"),
        (("i...->i", (2, 3)), "ellipsis"),
        (("ij,jk->ik", (2, 3), (4, 2)), "could not be broadcast"),
        (("ijl,jlk->ik", (2, 2, 3), (3, 2, 2)), "could not be broadcast"),
        (("ii->i", (2, 3)), "collapsing index 'i' don't match"),
        (("ij,jk", (2, 3)), "more operands"),
    ],
)  # fmt: skip
def test_what_means_nothing_is_refused_in_numpys_words(arguments: Any, message: str) -> None:
    subscripts, *shapes = arguments
    operands = leaves(arrays(shapes))
    with pytest.raises(ValueError, match=message):
        np.einsum(subscripts, *operands)


def test_labels_of_sublists_have_bounds() -> None:
    x = tensor([1.0], requires_grad=True)
    with pytest.raises(ValueError, match="from 0 to 51, not -1"):
        np.einsum(x, [-1])


@pytest.mark.parametrize("dtype", [np.int8, np.bool_, np.float16])
@pytest.mark.parametrize(
    "subscripts", ["ij,jk->ik", "ij,jk->jik", "ij,kl->", "ij->j", "ii", "i...,jk,l->j..."]
)
def test_other_dtypes_are_numpys(subscripts: str, dtype: Any) -> None:
    count = subscripts.partition("->")[0].count(",") + 1
    vector = np.array([1, 0], dtype)
    operands: list[Any] = [np.array([[1, 1], [0, 1]], dtype)] * min(count, 2) + [vector] * (
        count - 2
    )
    expected = np.einsum(subscripts, *operands)
    found = np.einsum(subscripts, *map(Tensor, operands))
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found.data, expected)


def test_options_that_have_no_meaning_for_gradients_are_refused() -> None:
    x = tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(TypeError, match="dtype"):
        np.einsum("i,i", x, x, dtype=np.float32)


def test_a_diagonal_is_a_view_as_in_numpy() -> None:
    x: Any = tensor([[1.0, 2.0], [3.0, 4.0]])
    diagonal = np.einsum("ii->i", x)
    assert np.shares_memory(diagonal.data, x.data)


def test_subscripts_are_worked_out_once() -> None:
    x, y = leaves(arrays([(2, 3), (3, 2)]))
    np.einsum("ij,jk->ki", x, y).sum().backward()
    remembered = [products.parse_subscripts, products.contraction, products.gradient_plan]
    before = [f.cache_info().misses for f in remembered]
    np.einsum("ij,jk->ki", y, x).sum().backward()
    assert [f.cache_info().misses for f in remembered] == before


def test_pairs_are_those_of_numpys_path() -> None:
    """In the order of the operands, the first pair here made an array of 10^6 items."""
    shapes = ((1000, 1), (1, 1000), (1000, 1))
    (first, _) = products.pair_order("ij,jk,kl->il", shapes, "greedy")
    assert first[:2] == (1, 2)
