"""Primitives: several outputs, array options, kernels, complex numbers, calling as NumPy does."""

from __future__ import annotations

import gc
from collections import namedtuple
from typing import Any

import numpy as np
import pytest

from telegrad import numpy as tnp
from telegrad.autograd import Tensor, extend, grad, gradcheck, gradgradcheck, no_grad, tensor
from telegrad.autograd.graph.plan import Plan
from telegrad.errors import AutogradError
from tests.autograd.samples.sample import complex_numbers, of_shape

Polar = namedtuple("Polar", "radius angle")


def leaf(*shape: int, seed: int = 0) -> Any:
    return Tensor(of_shape(shape, seed=seed), requires_grad=True)


def to_polar(x: Any, y: Any) -> Polar:
    return Polar(np.hypot(x, y), np.arctan2(y, x))


def polar_x(g: Any, radius: Any, x: Any, y: Any) -> Any:
    parts = [] if g[0] is None else [g[0] * x / radius]
    parts += [] if g[1] is None else [-g[1] * y / (radius * radius)]
    return sum(parts)


def polar_y(g: Any, radius: Any, x: Any, y: Any) -> Any:
    parts = [] if g[0] is None else [g[0] * y / radius]
    parts += [] if g[1] is None else [g[1] * x / (radius * radius)]
    return sum(parts)


def product_both(g: Any, a: Any, b: Any) -> list[Any]:
    return [g * b, g * a]


product = extend.primitive(
    "product", np.multiply, "a b", complex_rule="holomorphic", a=product_both, b=lambda g, a: g * a
)


@pytest.mark.parametrize("needs", [(True, True), (True, False), (False, True)])
def test_a_rule_finds_the_gradients_of_the_next_arguments_too(needs: Any) -> None:
    a, b = leaf(2, 3), leaf(3, seed=1)
    z = Tensor(complex_numbers((2, 3)), requires_grad=True)
    for pair in ((a, b), (b, a), (z, z.detach().requires_grad_())):
        leaves = [part for part, one in zip(pair, needs, strict=True) if one]

        def called(*rest: Any, pair: Any = pair) -> Any:
            waiting = iter(rest)
            return product(
                *[next(waiting) if one else x.data for x, one in zip(pair, needs, strict=True)]
            )

        assert gradcheck(called, leaves)
        assert gradgradcheck(called, leaves)


polar = extend.primitive("polar", to_polar, "x y", outputs="radius angle", x=polar_x, y=polar_y)


def test_several_outputs() -> None:
    x, y = leaf(2, 3), leaf(3, seed=1)
    result = polar(x, y)
    assert type(result) is Polar
    assert (result.radius.output_nr, result.angle.output_nr) == (0, 1)
    assert result.radius.grad_fn is result.angle.grad_fn
    assert gradcheck(polar, [x, y])
    assert gradgradcheck(polar, [x, y])


@pytest.mark.parametrize("which", [0, 1])
def test_an_output_that_no_gradient_reaches(which: int) -> None:
    x, y = leaf(2), leaf(2, seed=1)
    assert gradcheck(lambda x, y: polar(x, y)[which], [x, y])
    assert gradgradcheck(lambda x, y: polar(x, y)[which], [x, y])


def test_a_list_of_outputs() -> None:
    halves = extend.primitive(
        "halves", lambda a: np.split(a, 2), "a", outputs="*", view=True,
        a=lambda g: np.concatenate([np.zeros(2) if part is None else part for part in g]),
    )  # fmt: skip
    x = leaf(4)
    first, second = halves(x)
    assert isinstance(halves(x), list)
    second.sum().backward(retain_graph=True)
    assert x.grad is not None
    assert x.grad.data.tolist() == [0.0, 0.0, 1.0, 1.0]
    with pytest.raises(AutogradError, match="view"):
        first += 1.0


def test_lists_of_any_length_leave_nothing_behind() -> None:
    def plans() -> int:
        return sum(isinstance(each, Plan) for each in gc.get_objects())

    before = plans()
    for n in range(2, 40):
        parts = [leaf(2, seed=k) for k in range(n)]
        (first, *_) = grad(tnp.stack(parts).sum(), parts)
        assert first.shape == (2,)
    del first, parts
    gc.collect()
    assert plans() <= before + 5  # those of the sum, which serve for every length


def test_an_output_that_is_no_float_needs_no_gradient() -> None:
    mantissa, exponent = np.frexp(leaf(3))
    assert mantissa.requires_grad
    assert not exponent.requires_grad


def test_an_option_that_is_an_array() -> None:
    def forward(a: Any, axis: Any = None, weights: Any = 1.0) -> Any:
        return np.sum(a * weights, axis=axis)

    weighted = extend.primitive(
        "weighted", forward, "a", arrays="weights", options={"axis": None},
        a=lambda g, shape, weights, axis: np.broadcast_to(
            g if axis is None else np.expand_dims(g, axis), shape) * (1.0 if weights is None else weights),
        weights=lambda g, a, axis: (g if axis is None else np.expand_dims(g, axis)) * a,
    )  # fmt: skip
    a, w = leaf(2, 3), leaf(3, seed=1)
    for call in (
        lambda a, w: weighted(a, weights=w),
        lambda a, w: weighted(a, 1, w),
        lambda a, w: weighted(a, axis=0, weights=w),
        lambda a, w: weighted(a=a, weights=w),
    ):
        assert gradcheck(call, [a, w])
        assert gradgradcheck(call, [a, w])
    assert gradcheck(weighted, [a])
    assert gradcheck(lambda w: weighted(a.data, weights=w), [w])


def test_a_mask_that_is_a_tensor() -> None:
    x = leaf(3)
    mask: Any = tensor([True, False, True])
    np.sum(x, where=mask).backward()
    assert x.grad is not None
    assert x.grad.data.tolist() == [1.0, 0.0, 1.0]


def test_a_mask_that_was_changed_since_is_noticed() -> None:
    x = leaf(3)
    mask: Any = tensor([True, False, True])
    y = np.sum(x, where=mask)
    mask[0] = False
    with pytest.raises(AutogradError, match="changed in place"):
        y.backward()


def test_an_argument_without_a_rule_is_refused_beside_one_that_has_one() -> None:
    condition = leaf(2)
    with pytest.raises(AutogradError, match="no gradient with respect to condition"):
        np.where(condition, leaf(2), 0.0)
    with no_grad():
        np.where(condition, leaf(2), 0.0)


def test_an_option_that_needs_a_gradient_is_refused() -> None:
    with pytest.raises(AutogradError, match="sum has no gradient with respect to initial"):
        np.sum(leaf(2), initial=leaf())
    assert np.sum(leaf(2), initial=leaf().detach()).requires_grad


def test_options_are_given_as_numpy_takes_them() -> None:
    x = leaf(2, 3)
    expected = x.data.sum(0, keepdims=True)
    for y in (
        np.sum(x, 0, None, None, True),
        np.sum(a=x, axis=0, keepdims=True),
        np.sum(x, 0, keepdims=True, out=None),
        np.sum(x, axis=tensor(0), keepdims=True),
    ):
        np.testing.assert_array_equal(y.data, expected)
    with pytest.raises(TypeError, match="sum of tensors does not take out"):
        np.sum(x, out=np.zeros(()))
    with pytest.raises(TypeError, match="add of tensors does not take where"):
        np.add(x, 1.0, where=np.array([True, False, True]))
    with pytest.raises(TypeError, match="takes 1 arguments, 8 were given"):
        extend.find(np.sum)(x, 0, None, None, True, 0, True, 1)  # type: ignore[misc]


def test_a_kernel_for_each_array_library(cupy: Any) -> None:
    twice = extend.primitive(
        "twice", lambda a: 2 * a, "a", kernels={"cupy": lambda a: a + a}, a=lambda g: g + g
    )
    assert twice(np.ones(2)).tolist() == [2.0, 2.0]
    used = extend.primitive(
        "used", lambda a: 1 / 0, "a", kernels={"cupy": lambda a: a + a}, a=lambda g: g + g
    )
    assert used(tensor(cupy.asarray(np.ones(2)), requires_grad=True)).requires_grad


def test_a_rule_that_gives_none() -> None:
    half = extend.primitive("half", np.add, "a b", a=lambda g: g, b=lambda g: None)
    a, b = leaf(2), leaf(2, seed=1)
    found = grad(half(a, b).sum(), [a, b], allow_unused=True)
    assert found[1] is None
    assert found[0] is not None


def test_what_stands_for_a_function_is_entered_once() -> None:
    with pytest.raises(ValueError, match="entered twice"):
        extend.primitive("sin", np.sin, "x", stands_for=(np.sin,), x=lambda g: g)


def test_a_rule_for_real_numbers_refuses_complex_ones() -> None:
    """A rule for real numbers is a wrong one for complex numbers: |x * i| had -1 at x = 2."""
    square = extend.primitive("real_square", lambda a: a * a, "a", a=lambda g, a: 2 * g * a)
    z = Tensor(complex_numbers((2,)), requires_grad=True)
    with pytest.raises(RuntimeError, match="real_square .* gave complex128.*detach"):
        square(z)
    magnitude = extend.primitive("magnitude", np.abs, "a", a=lambda g, a: g * a)
    with pytest.raises(RuntimeError, match="magnitude .* gave complex128.*detach"):
        magnitude(z)
    assert square(z.detach()).dtype == np.complex128


def test_the_gradient_of_a_complex_number_is_the_direction_of_ascent() -> None:
    """That of PyTorch: dL/dx + i dL/dy, for |z|^2 = x^2 + y^2 it is 2z."""
    z = tensor(3.0 + 4.0j, requires_grad=True)
    (abs(z) ** 2).backward()
    assert z.grad is not None
    assert np.isclose(z.grad.item(), 6.0 + 8.0j)
    x = tensor(2.0, requires_grad=True)
    abs(x * 1j).backward()
    assert x.grad is not None
    assert x.grad.item() == 1.0
    with pytest.raises(AutogradError, match="complex.*real part"):
        (z * z).backward()
