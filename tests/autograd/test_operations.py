"""Every operation against finite differences, to second order; one line each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from telegrad.autograd import Tensor, gradcheck, gradgradcheck, ops, tensor

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


A23, B23, B3, C21 = positive(2, 3), positive(2, 3, seed=1), positive(3, seed=2), positive(2, 1)
S23, S34, S4 = signed(2, 3), signed(3, 4), signed(4)
Case = tuple[Callable[..., Any], list[Any]]

# fmt: off
CASES: dict[str, Case] = {
    "add":                   (lambda a, b: a + b,                            [S23, B3]),
    "add scalar":            (lambda a: 2 + a + 1.5,                         [S23]),
    "subtract":              (lambda a, b: a - b,                            [S23, C21]),
    "subtract from scalar":  (lambda a: 1 - a,                               [S23]),
    "multiply":              (lambda a, b: a * b,                            [S23, B3]),
    "multiply by array":     (lambda a: B23.data * a,                        [S23]),
    "divide":                (lambda a, b: a / b,                            [S23, B3]),
    "divide scalar":         (lambda a: 2 / a,                               [A23]),
    "power":                 (lambda a, b: a**b,                             [A23, B3]),
    "power 2":               (lambda a: a**2,                                [S23]),
    "power 0":               (lambda a: a**0 * a,                            [S23]),
    "power of scalar":       (lambda a: 2**a,                                [S23]),
    "negative":              (lambda a: -a * a,                              [S23]),
    "positive":              (lambda a: +a * a,                              [S23]),
    "absolute":              (lambda a: abs(a) * a,                          [S23]),
    "square":                (np.square,                                     [S23]),
    "sqrt":                  (np.sqrt,                                       [A23]),
    "exp":                   (np.exp,                                        [S23]),
    "expm1":                 (np.expm1,                                      [S23]),
    "log":                   (np.log,                                        [A23]),
    "log1p":                 (np.log1p,                                      [A23]),
    "sin":                   (np.sin,                                        [S23]),
    "cos":                   (np.cos,                                        [S23]),
    "tanh":                  (np.tanh,                                       [S23]),
    "sigmoid":               (ops.sigmoid,                                   [S23]),
    "relu":                  (lambda a: ops.relu(a) * a,                     [S23]),
    "maximum":               (lambda a, b: np.maximum(a, b) * a,             [A23, B3]),
    "minimum":               (lambda a, b: np.minimum(a, b) * a,             [A23, B3]),
    "clip":                  (lambda a: np.clip(a, -0.2, 0.21) * a,          [S23]),
    "clip below":            (lambda a: a.clip(0.21) * a,                    [S23]),
    "where":                 (lambda a, b: np.where(MASK, a, b) * a,         [S23, B3]),
    "astype":                (lambda a: a.astype(np.float64) * a,            [S23]),
    "copy":                  (lambda a: np.copy(a) * a,                      [S23]),
    "sum":                   (lambda a: np.sum(a) * a,                       [S23]),
    "sum axis":              (lambda a: a.sum(axis=0) * a,                   [S23]),
    "sum axis keepdims":     (lambda a: a.sum(-1, keepdims=True) * a,        [S23]),
    "sum axes":              (lambda a: np.sum(a, axis=(0, 2)) * B3,         [signed(2, 3, 2)]),
    "mean":                  (lambda a: np.mean(a) * a,                      [S23]),
    "mean axis":             (lambda a: a.mean(axis=-1)**2,                  [S23]),
    "max":                   (lambda a: np.max(a) * a,                       [S23]),
    "max axis":              (lambda a: a.max(axis=1, keepdims=True) * a,    [S23]),
    "min axis":              (lambda a: a.min(axis=0) * a,                   [S23]),
    "reshape":               (lambda a: a.reshape(3, -1)**2,                 [S23]),
    "ravel":                 (lambda a: np.ravel(a)**2,                      [S23]),
    "squeeze":               (lambda a: np.squeeze(a) * a,                   [C21]),
    "expand_dims":           (lambda a: np.expand_dims(a, 1) * a,            [S23]),
    "transpose":             (lambda a: a.T @ a,                             [S23]),
    "transpose axes":        (lambda a: np.transpose(a, (2, 0, 1))**2,       [signed(2, 3, 2)]),
    "swapaxes":              (lambda a: a.swapaxes(0, 1)**2,                 [S23]),
    "broadcast_to":          (lambda a: np.broadcast_to(a, (2, 3))**2,       [B3]),
    "getitem int":           (lambda a: a[1]**2,                             [S23]),
    "getitem slice":         (lambda a: a[:, ::-2]**2,                       [S23]),
    "getitem newaxis":       (lambda a: a[..., None, 0]**2,                  [S23]),
    "getitem rows":          (lambda a: a[ROWS]**2,                          [S23]),
    "getitem list":          (lambda a: a[[0, 0, 1]]**2,                     [S23]),
    "getitem pairs":         (lambda a: a[ROWS, [2, 2, 2]]**2,               [S23]),
    "getitem mask":          (lambda a: a[MASK]**2,                          [S23]),
    "getitem by tensor":     (lambda a: a[a > 0]**2,                         [S23]),
    "put":                   (lambda a, b: ops.put(a, b, index=0)**2,        [S23, B3]),
    "scatter":               (lambda a: ops.scatter(a, index=([1, 1],), into=(3, 3))**2, [S23]),
    "concatenate":           (lambda a, b: np.concatenate([a, b], axis=1)**2, [S23, C21]),
    "concatenate flat":      (lambda a, b: np.concatenate([a, b], axis=None)**2, [S23, B3]),
    "stack":                 (lambda a, b: np.stack([a, b, a], axis=-1)**2,  [S23, B23]),
    "matmul":                (lambda a, b: a @ b,                            [S23, S34]),
    "matmul array":          (lambda b: S23.data @ b,                        [S34]),
    "matmul vector":         (lambda a, b: a @ b,                            [S23, B3]),
    "matmul of vector":      (lambda a, b: a @ b,                            [B3, S34]),
    "matmul vectors":        (lambda a, b: a @ b,                            [B3, signed(3)]),
    "matmul batch":          (lambda a, b: a @ b,                            [signed(2, 2, 3), signed(2, 3, 2)]),
    "matmul broadcast":      (lambda a, b: a @ b,                            [signed(2, 1, 2, 3), S34]),
    "matmul batch vector":   (lambda a, b: a @ b,                            [signed(2, 2, 3), B3]),
    "matmul vector batch":   (lambda a, b: a @ b,                            [B3, signed(2, 3, 2)]),
    "softmax":               (ops.softmax,                                   [S23]),
    "log_softmax":           (ops.log_softmax,                               [S23]),
    "cross_entropy":         (lambda a: ops.cross_entropy(a, LABELS),        [S23]),
    "cross_entropy batch":   (lambda a: ops.cross_entropy(a, [[0], [1]]),    [signed(2, 1, 3)]),
    "iterate":               (lambda a: sum(row * row for row in a),         [S23]),
    "diamond":               (lambda a: np.tanh(a) * np.exp(a) + a * a,      [S23]),
}
# fmt: on


@pytest.mark.parametrize("name", CASES)
def test_gradient(name: str) -> None:
    func, inputs = CASES[name]
    assert gradcheck(func, inputs)


@pytest.mark.parametrize("name", CASES)
def test_gradient_of_gradient(name: str) -> None:
    func, inputs = CASES[name]
    assert gradgradcheck(func, inputs)


@pytest.mark.parametrize("name", CASES)
def test_value_is_what_arrays_give(name: str) -> None:
    func, inputs = CASES[name]
    expected = func(*[x.data for x in inputs])
    np.testing.assert_array_equal(func(*inputs).data, _data(expected))


def _data(x: Any) -> Any:
    return x.data if isinstance(x, Tensor) else x


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("name", CASES)
def test_dtype_stays(name: str, dtype: Any) -> None:
    func, inputs = CASES[name]
    short = [tensor(x.data, dtype=dtype, requires_grad=True) for x in inputs]
    result = func(*short)
    result.sum().backward()
    for x in short:
        assert x.grad is not None
        assert x.grad.dtype == dtype
    if not any(word in name for word in ("array", "sum axes", "astype")):
        assert result.dtype == dtype


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


def test_a_repeated_index_adds_up() -> None:
    x = tensor([1.0, 2.0], requires_grad=True)
    x[np.array([0, 0, 1])].sum().backward()
    assert x.grad is not None
    assert x.grad.data.tolist() == [2.0, 1.0]


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


def test_an_empty_list_is_an_index() -> None:
    x = tensor([1.0, 2.0], requires_grad=True)
    x[[]].sum().backward()
    assert x.grad is not None
    assert x.grad.data.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("reduce", [np.mean, np.max, np.min])
def test_a_16_bit_dtype_need_not_hold_the_number_of_items(reduce: Any) -> None:
    """float16 ends at 65504: the gradient of a longer mean was 0."""
    x = tensor(np.ones(100_000), dtype=np.float16, requires_grad=True)
    reduce(x).backward(np.array(1000.0))
    assert x.grad is not None
    np.testing.assert_array_equal(x.grad.data, np.full(100_000, 0.01, np.float16))


def test_complex_results_are_refused() -> None:
    """A rule for real numbers is a wrong one for complex numbers: |x * i| had -1 at x = 2."""
    x = tensor([2.0], requires_grad=True)
    with pytest.raises(RuntimeError, match="multiply .* gave complex128.*detach"):
        x * 1j
    assert (x.detach() * 1j).dtype == np.complex128


def test_power_at_zero() -> None:
    x = tensor([0.0, 2.0], requires_grad=True)
    (x**2 + x**0 + x**1).sum().backward()
    assert x.grad is not None
    assert x.grad.data.tolist() == [1.0, 5.0]


def test_gradcheck_finds_a_wrong_rule() -> None:
    wrong = ops.exp.__class__("wrong", np.sin, "a", a=lambda g, a: g * np.cos(a) * 1.01)
    with pytest.raises(RuntimeError, match="the gradient of input 0 is wrong"):
        gradcheck(wrong, [S23])


def test_gradgradcheck_finds_a_gradient_that_is_cut_off() -> None:
    def cut(g: Any, a: Any) -> Any:
        result = g * np.cos(a)
        return result.detach() if isinstance(result, Tensor) else result

    wrong = ops.exp.__class__("wrong", np.sin, "a", a=cut)
    assert gradcheck(wrong, [S23])
    with pytest.raises(RuntimeError, match="the gradient of input 0 is wrong"):
        gradgradcheck(wrong, [S23])


def test_gradcheck_wants_float64() -> None:
    with pytest.raises(RuntimeError, match="float64"):
        gradcheck(np.exp, tensor([1.0], dtype=np.float32, requires_grad=True))
