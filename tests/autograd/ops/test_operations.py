"""Indices and operations that are no function of NumPy: values, and differences to second order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from telegrad.autograd import Tensor, gradcheck, gradgradcheck, ops, tensor
from tests.autograd.finite_differences import check_along_a_line, check_second_along_a_line
from tests.gpu.comparison import close_on, moved, of, on_gpu

MASK = np.array([[True, False, True], [False, True, False]])
ROWS = np.array([1, 0, 1])
LABELS = np.array([2, 0])


def positive(*shape: int, seed: int = 0) -> Tensor:
    """Numbers from 0.5 to 2, all distinct: away from kinks, ties and poles."""
    size = int(np.prod(shape))
    order = np.random.default_rng(seed).permutation(size)
    return tensor((0.5 + 1.5 * (order + 0.3) / max(size, 1)).reshape(shape), requires_grad=True)


def signed(*shape: int, seed: int = 0) -> Tensor:
    return tensor(1.3 * positive(*shape, seed=seed).data - 1.51, requires_grad=True)


S23, B3 = signed(2, 3), positive(3, seed=2)

# What is no function of NumPy: tests/autograd/samples has those. A function, and its inputs.
# fmt: off
CASES: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "power 0":               (lambda a: a**0 * a,                            [S23]),
    "sigmoid":               (ops.sigmoid,                                   [S23]),
    "relu":                  (lambda a: ops.relu(a) * a,                     [S23]),
    "getitem slice":         (lambda a: a[:, ::-2]**2,                       [S23]),
    "getitem rows":          (lambda a, rows: a[rows]**2,                    [S23, ROWS]),
    "getitem pairs":         (lambda a, rows: a[rows, [2, 2, 2]]**2,         [S23, ROWS]),
    "getitem list":          (lambda a: a[[0, 0, 1]]**2,                     [S23]),
    "getitem list in tuple": (lambda a: a[([0, 0, 1],)]**2,                  [S23]),
    "getitem range":         (lambda a: a[range(2)]**2,                      [S23]),
    "getitem none":          (lambda a: a[None, np.int64(1)][[]]**2 * 1.0,   [S23]),
    "getitem mask":          (lambda a, mask: a[mask]**2,                    [S23, MASK]),
    "put":                   (lambda a, b: ops.put(a, b, index=0)**2,        [S23, B3]),
    "scatter":               (lambda a: ops.scatter(a, index=([1, 1],), into=(3, 3))**2, [S23]),
    "softmax":               (ops.softmax,                                   [S23]),
    "log_softmax":           (ops.log_softmax,                               [S23]),
    "cross_entropy":         (ops.cross_entropy,                             [S23, LABELS]),
    "cross_entropy batch":   (lambda a: ops.cross_entropy(a, [[0], [1]]),    [signed(2, 1, 3)]),
    "cross_entropy mean":    (lambda a: ops.cross_entropy(a, [0, 2], mean=True), [S23]),
    "iterate":               (lambda a: sum(row * row for row in a),         [S23]),
    "diamond":               (lambda a: np.tanh(a) * np.exp(a) + a * a,      [S23]),
}
# fmt: on


def arrays_of(inputs: list[Any]) -> list[Any]:
    """The inputs of a case without their place in a graph."""
    return [x.data if isinstance(x, Tensor) else x for x in inputs]


def in_dtype(inputs: list[Any], dtype: Any) -> list[Any]:
    """The inputs of a case, its Tensors as leaves of another dtype."""
    return [
        tensor(x.data, dtype=dtype, requires_grad=True) if isinstance(x, Tensor) else x
        for x in inputs
    ]


def check_value_and_gradient(xp: Any, name: str) -> None:
    """Both are those of NumPy; exactly so on NumPy's arrays."""
    function, inputs = CASES[name]
    there = in_dtype([moved(xp, x) for x in inputs], np.float64)
    here = in_dtype(inputs, np.float64)
    expected = function(*arrays_of(inputs))
    results = [function(*there), function(*here)]
    close_on(xp, results[0], expected)
    np.testing.assert_array_equal(results[1].data, getattr(expected, "data", expected))
    for result in results:
        result.sum().backward()
    for found, wanted in zip(there, here, strict=True):
        if isinstance(wanted, Tensor):
            close_on(xp, found.grad, wanted.grad)


def check_gradient(xp: Any, name: str) -> None:
    function, inputs = CASES[name]
    assert gradcheck(function, [moved(xp, x) for x in inputs])


def check_second_gradient(xp: Any, name: str) -> None:
    function, inputs = CASES[name]
    check_second_along_a_line(function, [moved(xp, x) for x in inputs])


def check_dtype_stays(xp: Any, name: str, dtype: Any) -> None:
    function, inputs = CASES[name]
    short = in_dtype([moved(xp, x) for x in inputs], dtype)
    result = function(*short)
    assert of(xp, result)
    result.sum().backward()
    for x in short:
        if isinstance(x, Tensor):
            assert x.grad is not None
            assert x.grad.dtype == dtype
            assert of(xp, x.grad)
    assert result.dtype == dtype


ASPECTS: dict[str, Callable[[Any, str], None]] = {
    "value and gradient": check_value_and_gradient,
    "gradient by differences": check_gradient,
    "second gradient": check_second_gradient,
    "float16": lambda xp, name: check_dtype_stays(xp, name, np.float16),
    "float32": lambda xp, name: check_dtype_stays(xp, name, np.float32),
}


@pytest.mark.parametrize("name", CASES)
def test_operation(xp: Any, name: str, subtests: pytest.Subtests) -> None:
    for aspect, check in ASPECTS.items():
        with subtests.test(aspect):
            check(xp, name)


def test_moving_is_an_operation(cupy: Any) -> None:
    x = tensor([1.0, 2.0], requires_grad=True)

    def there_and_back(a: Tensor) -> Tensor:
        assert not on_gpu(a)
        there = a.to("cuda")
        assert on_gpu(there)
        return (there * there * there).to("cpu") * a

    assert gradcheck(there_and_back, x)
    assert gradgradcheck(there_and_back, x)
    there_and_back(x).sum().backward()
    assert x.grad is not None
    assert not on_gpu(x.grad)
    assert x.to("cpu") is x
    y = x.to("cuda:0")
    assert y.to("cuda") is y
    assert (y.device, y.requires_grad, x.detach().to("cuda").requires_grad) == (
        "cuda:0",
        True,
        False,
    )
    with pytest.raises(ValueError, match="no such device"):
        x.to("gpu")


def test_equal_items_share_the_gradient() -> None:
    x = tensor([1.0, 2.0, 2.0], requires_grad=True)
    x.max().backward()
    assert x.grad is not None
    assert x.grad.data.tolist() == [0.0, 0.5, 0.5]
    y = tensor([1.0, 2.0], requires_grad=True)
    z = tensor([1.0, 1.0], requires_grad=True)
    np.maximum(y, z).sum().backward()
    assert y.grad is not None
    assert z.grad is not None
    assert (y.grad.data.tolist(), z.grad.data.tolist()) == ([0.5, 1.0], [0.5, 0.0])


@pytest.mark.parametrize("index", [range(-2, 2), (range(-2, 2),), [np.int64(0), 0, -1, 1]])
def test_an_index_of_any_kind_may_repeat(index: Any) -> None:
    """`range(-2, 2)` of two items names each of them twice; the gradient had 1 for it."""
    x = tensor([1.0, 2.0], requires_grad=True)
    x[index].sum().backward()
    assert x.grad is not None
    assert x.grad.data.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("kind", ["list", "array", "tensor", "in a tuple", "in a list"])
@pytest.mark.parametrize("how", ["read", "assign"])
def test_an_index_may_be_changed_after_its_use(kind: str, how: str) -> None:
    """As a shuffled permutation is: the gradient went to the items that it names later."""
    raw: Any = [0, 1] if kind in ("list", "in a list") else np.array([0, 1])
    held = tensor(raw) if kind == "tensor" else raw
    index = (held,) if kind == "in a tuple" else [held] if kind == "in a list" else held
    x = tensor([1.0, 2.0, 3.0], requires_grad=True)
    if how == "read":
        y = x[index]
        expected = [1.0, 1.0, 0.0]
    else:
        y = x * 1.0
        y[index] = 0.0
        expected = [0.0, 0.0, 1.0]
    changed: Any = held.data if isinstance(held, Tensor) else held
    changed[0], changed[1] = 2, 2
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.data.tolist() == expected


@pytest.mark.parametrize("reduce", [np.mean, np.max, np.min])
def test_a_16_bit_dtype_need_not_hold_the_number_of_items(reduce: Any) -> None:
    """float16 ends at 65504: the gradient of a longer mean was 0."""
    x = tensor(np.ones(100_000), dtype=np.float16, requires_grad=True)
    reduce(x).backward(np.array(1000.0))
    assert x.grad is not None
    np.testing.assert_array_equal(x.grad.data, np.full(100_000, 0.01, np.float16))


def test_power_at_zero() -> None:
    x = tensor([0.0, 2.0], requires_grad=True)
    (x**2 + x**0 + x**1).sum().backward()
    assert x.grad is not None
    assert x.grad.data.tolist() == [1.0, 5.0]


def test_gradgradcheck_finds_a_gradient_that_is_cut_off() -> None:
    def cut(g: Any, a: Any) -> Any:
        result = g * np.cos(a)
        return result.detach() if isinstance(result, Tensor) else result

    wrong = ops.exp.__class__("wrong", np.sin, "a", a=cut)
    assert gradcheck(wrong, [S23])
    with pytest.raises(RuntimeError, match="the gradient of input 0 is wrong"):
        gradgradcheck(wrong, [S23])
    with pytest.raises(RuntimeError, match="the gradient of input 0 is wrong"):
        check_second_along_a_line(wrong, [S23])


def test_differences_along_a_line_find_one_wrong_item() -> None:
    """The derivative of one item of six is wrong by a tenth of a percent."""
    factor = np.array([[1.0, 1.0, 1.0], [1.0, 1.001, 1.0]])

    def slope(g: Any, a: Any) -> Any:
        here = a.detach() if isinstance(a, Tensor) else a
        return g * np.cos(here + factor * (a - here))

    for_first = ops.exp.__class__("wrong", np.sin, "a", a=lambda g, a: g * np.cos(a) * factor)
    check_along_a_line(np.sin, [S23])
    with pytest.raises(RuntimeError, match="the gradient of input 0 is wrong"):
        check_along_a_line(for_first, [S23])
    wrong = ops.exp.__class__("wrong", np.sin, "a", a=slope)
    check_second_along_a_line(np.sin, [S23])
    with pytest.raises(RuntimeError, match="the gradient of input 0 is wrong"):
        check_second_along_a_line(wrong, [S23])


def test_gradcheck_wants_float64() -> None:
    with pytest.raises(RuntimeError, match="float64"):
        gradcheck(np.exp, tensor([1.0], dtype=np.float32, requires_grad=True))
