"""value_and_grad, vjp, jvp, jacobian, hessian, hvp, and grad over trees, beside known derivatives."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

import telegrad as tg
from telegrad.autograd import Tensor, gradcheck, no_grad, tensor
from telegrad.autograd.differentiate import flatten, tree_map
from telegrad.errors import AutogradError
from tests.gpu.comparison import close_on

A = np.array([[1.0, 2.0, 0.5], [-1.0, 0.25, 3.0]])
X = np.array([0.5, -1.0, 2.0])
T = np.array([1.0, 0.5, -2.0])


@dataclass(frozen=True)
class Layer:
    weight: Any
    bias: Any
    name: str = "layer"


class Pair(NamedTuple):
    first: Any
    second: Any


def model(layer: Layer, pair: Pair, options: dict[str, Any]) -> Any:
    hidden = np.tanh(layer.weight @ pair.first + layer.bias)
    return np.sum(hidden * pair.second) * options["scale"][0]


LAYER, PAIR = Layer(A, np.array([0.1, 0.2])), Pair(X, np.array([2.0, -1.0]))
OPTIONS = {"scale": [1.5, "unused", None, 3]}


def known() -> tuple[Any, Layer, Pair]:
    """The value and the gradients of `model`, by hand."""
    hidden = np.tanh(A @ X + LAYER.bias)
    back = 1.5 * PAIR.second * (1 - hidden**2)
    value = 1.5 * np.sum(hidden * PAIR.second)
    return value, Layer(np.outer(back, X), back), Pair(back @ A, 1.5 * hidden)


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found.data if isinstance(found, Tensor) else found, expected, 1e-12)


def test_trees_come_back_as_they_were() -> None:
    counts: defaultdict[str, list[int]] = defaultdict(list, a=[1])
    tree = [counts, OrderedDict(b=(2,)), Layer(3, [4, None]), Pair(5, ()), "text"]
    leaves, rebuild = flatten(tree)
    assert leaves == [1, 2, 3, 4, "layer", 5, "text"]
    other = rebuild(leaves)
    assert other == tree
    assert [type(x) for x in other] == [type(x) for x in tree]
    assert other[0]["new"] == []
    assert tree_map(lambda x: x, Layer(1, 2)) == Layer(1, 2)


def test_value_and_gradient_of_trees() -> None:
    value, (layer, pair, options) = tg.value_and_grad(model, (0, 1, 2))(LAYER, PAIR, OPTIONS)
    expected, of_layer, of_pair = known()
    close(value, expected)
    assert (type(layer), type(pair), layer.name) == (Layer, Pair, None)
    close(layer.weight, of_layer.weight)
    close(layer.bias, of_layer.bias)
    close(pair.first, of_pair.first)
    close(pair.second, of_pair.second)
    close(options["scale"][0], expected / 1.5)
    assert options["scale"][1:] == [None] * 3
    assert not value.requires_grad
    assert not layer.weight.requires_grad


def test_one_argument_gives_one_tree_and_others_stay() -> None:
    seen: list[Any] = []

    def loss(x: Any, other: Any, *, factor: float) -> Any:
        seen.append(other)
        return (x * other).sum() * factor

    _, gradient = tg.value_and_grad(loss, 0)(X, T, factor=2.0)
    close(gradient, 2 * T)
    assert seen[0] is T
    _, (gradient,) = tg.value_and_grad(loss, [-1])(X, T, factor=2.0)
    close(gradient, 2 * X)


def test_has_aux_and_what_is_not_used() -> None:
    def loss(x: Any, y: Any) -> Any:
        return (x**2).sum(), {"mean": x.mean(), "name": "aux"}

    (value, aux), (of_x, of_y) = tg.value_and_grad(loss, (0, 1), has_aux=True)(X, T)
    close(value, (X**2).sum())
    assert aux["name"] == "aux"
    assert not aux["mean"].requires_grad
    close(of_x, 2 * X)
    close(of_y, 0 * T)


def test_parameters_outside_are_constants_and_keep_their_gradient() -> None:
    w = tensor(T, requires_grad=True)
    _, gradient = tg.value_and_grad(lambda x: (w * x).sum())(X)
    close(gradient, T)
    assert w.grad is None


def test_arguments_are_not_touched_and_no_grad_does_not_matter() -> None:
    x = tensor(X, requires_grad=True)
    with no_grad():
        _, gradient = tg.value_and_grad(lambda x: (x**3).sum())(x)
    close(gradient, 3 * X**2)
    assert x.grad is None


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: tg.value_and_grad(lambda x: x)(X), "not one item"),
        (lambda: tg.value_and_grad(lambda x: 1.0)(X), "needs a Tensor of one item"),
        (lambda: tg.value_and_grad(lambda x: x.sum())(np.arange(3)), "no floating-point array"),
        (lambda: tg.vjp(lambda x: x, X)[1]([T, T]), "of 1 outputs was given 2"),
        (lambda: tg.jvp(lambda x: x, [X], [T, T]), "of 1 primals was given 2"),
        (lambda: tg.hvp(lambda x: x.sum(), [X], []), "of 1 primals was given 0"),
        (lambda: tg.jacobian(lambda x: [1.0])(X), "needs Tensors as outputs"),
        (lambda: tg.jacobian(lambda x: x * 1j)(X), "jacobian of complex outputs"),
        (lambda: tg.hessian(lambda x: (abs(x) ** 2).sum())(X * 1j), "jacobian of complex outputs"),
    ],
)
def test_what_cannot_be_done(call: Any, words: str) -> None:
    with pytest.raises(AutogradError, match=words):
        call()


def test_argnums_out_of_range() -> None:
    with pytest.raises(ValueError, match="argnums 2 is out of range: 1 positional arguments"):
        tg.value_and_grad(lambda x: x.sum(), 2)(X)
    with pytest.raises(ValueError, match="name an argument twice"):
        tg.value_and_grad(lambda x, y: (x * y).sum(), (0, -2))(X, X)


def outputs_of(x: Any, tree: dict[str, Any]) -> dict[str, Any]:
    """Two outputs whose Jacobians are known."""
    return {"product": A @ x * tree["s"], "square": x * x}


def jacobians(s: float) -> tuple[Any, Any, Any]:
    return A * s, A @ X, np.diag(2 * X)


def test_vjp_may_be_pulled_again() -> None:
    outputs, pull = tg.vjp(outputs_of, X, {"s": 3.0})
    by_x, by_s, square = jacobians(3.0)
    close(outputs["product"], A @ X * 3)
    v, u = np.array([1.0, -2.0]), T
    for factor in (1.0, 10.0):
        of_x, of_tree = pull({"product": factor * v, "square": factor * u})
        close(of_x, factor * (v @ by_x + u @ square))
        close(of_tree["s"], factor * (v @ by_s))
    assert not outputs["product"].requires_grad


def test_jvp_of_trees() -> None:
    outputs, changes = tg.jvp(outputs_of, [X, {"s": 3.0}], [T, {"s": 0.5}])
    by_x, by_s, square = jacobians(3.0)
    close(outputs["square"], X * X)
    close(changes["product"], by_x @ T + by_s * 0.5)
    close(changes["square"], square @ T)


def test_jvp_of_complex_numbers() -> None:
    z, t = np.array([1 + 2j, 0.5 - 1j]), np.array([1j, 2.0 + 0j])
    close(tg.jvp(lambda z: z * z, [z], [t])[1], 2 * z * t)


def test_jvp_of_a_constant_is_zero() -> None:
    _, changes = tg.jvp(lambda x: (x, tensor([5.0])), [X], [T])
    close(changes[0], T)
    close(changes[1], [0.0])


def test_jacobian_of_trees() -> None:
    by_x, by_s, square = jacobians(3.0)
    found = tg.jacobian(outputs_of, (0, 1))(X, {"s": 3.0})
    close(found["product"][0], by_x)
    close(found["product"][1]["s"], by_s)
    close(found["square"][0], square)
    close(found["square"][1]["s"], 0 * X)
    assert found["product"][0].shape == (2, 3)
    assert tg.jacobian(lambda x: x[:0])(X).shape == (0, 3)


def rosenbrock(x: Any) -> Any:
    return np.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def hessian_of_rosenbrock(x: Any) -> Any:
    h = np.diag(-400 * x[:-1], 1) + np.diag(-400 * x[:-1], -1)
    diagonal = np.zeros_like(x)
    diagonal[:-1] = 1200 * x[:-1] ** 2 - 400 * x[1:] + 2
    diagonal[1:] += 200
    return h + np.diag(diagonal)


def test_hessian_and_its_product() -> None:
    expected = hessian_of_rosenbrock(X)
    close(tg.hessian(rosenbrock)(X), expected)
    value, (product,) = tg.hvp(rosenbrock, [X], [T])
    close(value, rosenbrock(X))
    close(product, expected @ T)


def test_hessian_of_trees() -> None:
    found = tg.hessian(lambda p: p["a"] ** 2 * p["b"].sum())({"a": 2.0, "b": X})
    close(found["a"]["a"], 2 * X.sum())
    close(found["a"]["b"], np.full(3, 4.0))
    close(found["b"]["a"], np.full(3, 4.0))
    close(found["b"]["b"], np.zeros((3, 3)))


@pytest.mark.parametrize(
    "compute",
    [
        lambda x, t: tg.value_and_grad(rosenbrock)(x)[1],
        lambda x, t: tg.vjp(lambda x: x * x, x)[1](t)[0],
        lambda x, t: tg.jvp(lambda x: x * x, [x], [t])[1],
        lambda x, t: tg.jacobian(lambda x: x * x)(x),
        lambda x, t: tg.hvp(rosenbrock, [x], [t])[1][0],
        lambda x, t: tg.hessian(rosenbrock)(x),
    ],
)
def test_on_cupys_arrays_they_find_the_same(cupy: Any, compute: Any) -> None:
    close_on(cupy, compute(cupy.asarray(X), cupy.asarray(T)), compute(X, T))


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: tg.value_and_grad(rosenbrock, create_graph=True)(x),
        lambda x: tg.vjp(lambda x: x**3, x, create_graph=True)[1](x)[0],
        lambda x: tg.jvp(lambda x: x**3, [x], [x * 2], create_graph=True),
        lambda x: tg.jacobian(lambda x: x**3 * x[0], create_graph=True)(x),
        lambda x: tg.hvp(rosenbrock, [x], [x], create_graph=True)[1][0],
        lambda x: tg.hessian(lambda x: (x**4).sum(), create_graph=True)(x),
    ],
)
def test_with_create_graph_all_of_it_can_be_differentiated(compute: Any) -> None:
    assert gradcheck(lambda x: tuple(flatten(compute(x * 1.0))[0]), tensor(X, requires_grad=True))


def test_grad_over_trees() -> None:
    parameters: dict[str, Any] = {
        "w": tensor(X, requires_grad=True),
        "rest": [tensor(T, requires_grad=True)],
    }
    w, other = parameters["w"], parameters["rest"][0]
    outputs = {"a": (w * other).sum(), "b": (w.sum(),)}
    found = tg.grad(outputs, parameters, retain_graph=True)
    close(found["w"], T + 1)
    close(found["rest"][0], X)
    with pytest.raises(AutogradError, match="2 roots were given 1 gradients"):
        tg.grad(outputs, parameters, [1.0])
    of_pair = tg.grad(outputs["a"], Pair(w, None), retain_graph=True)
    assert type(of_pair) is Pair
    close(of_pair.first, T)
    for flat in (w, [w], iter([w])):
        found = tg.grad(iter([outputs["a"]]), flat, retain_graph=True)
        assert type(found) is tuple
        close(found[0], T)
    with pytest.raises(AutogradError, match="input 1 must be a Tensor, not str"):
        tg.grad(outputs, [w, "text"])


@pytest.mark.parametrize("name", ["sin", "exp", "tanh", "square"])
def test_elementwise_grad_is_the_diagonal_of_the_jacobian(name: str) -> None:
    function = getattr(np, name)
    slopes = tg.elementwise_grad(function)(A)
    assert slopes.shape == A.shape
    close(slopes.reshape(-1), np.diag(tg.jacobian(function)(A.reshape(-1)).numpy()))
    second = tg.elementwise_grad(tg.elementwise_grad(function, create_graph=True))(X)
    close(second, np.diag(tg.jacobian(tg.elementwise_grad(function, create_graph=True))(X).numpy()))


def test_elementwise_grad_adds_up_what_depends_on_one_item() -> None:
    found = tg.elementwise_grad(lambda x, y: (x * y, {"a": x * x[0], "b": 3}), (0, 1))(X, T)
    close(found[0], tg.value_and_grad(lambda x: np.sum(x * T) + np.sum(x * x[0]))(X)[1].numpy())
    close(found[1], X)
    assert gradcheck(
        lambda x: tg.elementwise_grad(lambda x: x**3, create_graph=True)(x * 1.0),
        tensor(X, requires_grad=True),
    )


@pytest.mark.parametrize("name", ["value_and_grad", "elementwise_grad", "jacobian", "hessian"])
@pytest.mark.parametrize("second", [X, tensor(X), 2.0, [X], (X, T), [0, X], True, "x", None])
def test_an_argument_in_the_place_of_argnums_is_refused_with_the_line(
    name: str, second: Any
) -> None:
    verb = getattr(tg, name)
    with pytest.raises(TypeError, match=rf"{name} returns a function: write {name}\(f\)\(x\)"):
        verb(lambda x: x, second)
    with pytest.raises(TypeError, match=rf"takes a function first.* write {name}\(f\)\(x\)"):
        verb(X, lambda x: x)


UNTYPED: Any = tg  # for calls that the types refuse as well


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (
            lambda f: UNTYPED.grad(f),
            r"value_and_grad\(f\)\(x\)\[1\], or elementwise_grad\(f\)\(x\)",
        ),
        (lambda f: UNTYPED.grad(f, X), r"value_and_grad\(f\)\(x\)\[1\]"),
        (lambda f: UNTYPED.grad(tensor(X, requires_grad=True)), r"grad\(outputs, inputs\)"),
        (lambda f: UNTYPED.vjp(f), r"write vjp\(f, x\)"),
        (lambda f: UNTYPED.vjp(X, f), r"write vjp\(f, x\)"),
        (lambda f: UNTYPED.jvp(f, X, X), r"write jvp\(f, \[x\], \[t\]\)"),
        (lambda f: UNTYPED.hvp(f, X, X), r"write hvp\(f, \[x\], \[t\]\)"),
    ],
)
def test_other_libraries_forms_are_refused_with_the_line(call: Any, line: str) -> None:
    with pytest.raises(TypeError, match=line):
        call(lambda x: x * 2.0)
