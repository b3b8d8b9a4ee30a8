"""Tensor's methods and operators beside those of NumPy's arrays: names, signatures, values, dtypes."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from telegrad.autograd import Tensor, gradcheck, no_grad, tensor
from telegrad.errors import AutogradError
from tests.autograd.versions import version_of

A23 = np.array([[0.5, -1.25, 2.0], [3.5, 0.75, -0.5]])
ROUND = np.array([True, False, True])

# What of NumPy's arrays a Tensor has not: raw memory, files, and what writes behind the graph.
ABSENT = {
    "base", "byteswap", "ctypes", "dump", "dumps", "flags", "flat", "getfield", "put", "resize",
    "setfield", "setflags", "strides", "to_device", "tobytes", "tofile", "tostring", "view",
}  # fmt: skip

# fmt: off
METHODS: dict[str, Callable[[Any], Any]] = {
    "sum":           lambda a: a.sum(0, np.float32, None, keepdims=True, initial=1.0, where=ROUND),
    "prod":          lambda a: a.prod(1, keepdims=True, initial=2.0),
    "mean":          lambda a: a.mean(axis=(0, 1), dtype=np.float32, where=ROUND),
    "var":           lambda a: a.var(0, None, None, 1, keepdims=True),
    "var, another":  lambda a: a.var(ddof=1, where=ROUND),
    "std":           lambda a: a.std(axis=1, ddof=1),
    "max":           lambda a: a.max(1, None, keepdims=True, initial=0.6, where=ROUND),
    "min":           lambda a: a.min(0),
    "argmax":        lambda a: a.argmax(0, keepdims=True),
    "argmin":        lambda a: a.argmin(),
    "any":           lambda a: (a > 3).any(0, keepdims=True, where=ROUND),
    "all":           lambda a: (a > 3).all(axis=1),
    "cumsum":        lambda a: a.cumsum(1, np.float32),
    "cumprod":       lambda a: a.cumprod(),
    "reshape":       lambda a: a.reshape(3, -1),
    "ravel":         lambda a: a.ravel(),
    "flatten":       lambda a: a.flatten(),
    "squeeze":       lambda a: a[:1].squeeze(0),
    "transpose":     lambda a: a.transpose(1, 0),
    "swapaxes":      lambda a: a.swapaxes(0, 1),
    "T":             lambda a: a.T,
    "mT":            lambda a: a.mT,
    "diagonal":      lambda a: a.diagonal(1, 0, 1),
    "trace":         lambda a: a.trace(1),
    "take":          lambda a: a.take([0, 0, 1], axis=1),
    "compress":      lambda a: a.compress([True, False], axis=0),
    "repeat":        lambda a: a.repeat(2, axis=0),
    "argsort":       lambda a: a.argsort(0),
    "argpartition":  lambda a: a.argpartition(1, axis=None)[1],
    "searchsorted":  lambda a: np.sort(a, axis=None).searchsorted([0.6, 9.0], side="right"),
    "nonzero":       lambda a: (a > 1).nonzero()[0],
    "clip":          lambda a: a.clip(-1.0, max=1.0),
    "round":         lambda a: a.round(1),
    "conj":          lambda a: a.conj(),
    "conjugate":     lambda a: a.conjugate(),
    "real":          lambda a: a.real,
    "imag":          lambda a: a.imag,
    "dot":           lambda a: a.dot(a.T),
    "astype":        lambda a: a.astype(np.int32, casting="unsafe"),
    "copy":          lambda a: a.copy(),
    "itemsize":      lambda a: np.asarray(a.itemsize + a.nbytes),
    "tolist":        lambda a: np.asarray(a.tolist()),
    "item":          lambda a: np.asarray([a.item(4), a.item(1, 2), a.item((0, 1))]),
    "choose":        lambda a: (a > 0).astype(int).choose([np.zeros(3), a]),
}
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
    "//": operator.floordiv, "%": operator.mod, "**": operator.pow,
    "divmod 0": lambda a, b: divmod(a, b)[0], "divmod 1": lambda a, b: divmod(a, b)[1],
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt,
    ">=": operator.ge,
}
WHOLE: dict[str, Callable[[Any, Any], Any]] = {
    "&": operator.and_, "|": operator.or_, "^": operator.xor, "<<": operator.lshift,
    ">>": operator.rshift, "//": operator.floordiv, "%": operator.mod, "@": operator.matmul,
}
IN_PLACE: dict[str, Callable[[Any, Any], Any]] = {
    "+=": operator.iadd, "-=": operator.isub, "*=": operator.imul, "/=": operator.itruediv,
    "//=": operator.ifloordiv, "%=": operator.imod, "**=": operator.ipow, "@=": operator.imatmul,
    "&=": operator.iand, "|=": operator.ior, "^=": operator.ixor, "<<=": operator.ilshift,
    ">>=": operator.irshift,
}
# fmt: on


def plain(x: Any) -> Any:
    return x.data if isinstance(x, Tensor) else x


def test_every_method_of_an_array_is_one_of_a_tensor() -> None:
    array = np.zeros((1, 1))
    # NumPy 2.2 still lists methods that raise.
    names = {name for name in dir(array) if name[0] != "_" and hasattr(array, name)}
    assert names - set(dir(Tensor)) == ABSENT & names


@pytest.mark.parametrize("name", sorted({name.split(",")[0] for name in METHODS}))
def test_parameters_are_numpys(name: str) -> None:
    ours, numpys = getattr(Tensor, name), getattr(np.ndarray, name)
    try:
        expected = inspect.signature(numpys).parameters
    except (ValueError, TypeError):  # before NumPy 2.4 it does not tell
        return
    found = inspect.signature(ours).parameters
    for wanted in expected.values():
        if wanted.kind is not wanted.VAR_KEYWORD and wanted.name not in {"shape", "axes", "args"}:
            assert wanted.name in found
            same = found[wanted.name].default
            assert same == wanted.default or (same is None and wanted.default is np._NoValue)
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    order = [x.name for x in expected.values() if x.kind in positional]
    assert [x.name for x in found.values() if x.kind in positional][: len(order)] == order


@pytest.mark.parametrize("name", METHODS)
def test_methods_give_what_numpys_give(name: str) -> None:
    expected = METHODS[name](A23)
    found = METHODS[name](Tensor(A23))
    np.testing.assert_array_equal(plain(found), expected)
    assert plain(found).dtype == np.asarray(expected).dtype
    assert isinstance(found, Tensor) or name in {"itemsize", "tolist", "item"}


UNRECORDED = {
    "argmax", "argmin", "any", "all", "argsort", "argpartition", "searchsorted", "nonzero", "round",
    "imag", "astype", "itemsize", "tolist", "item", "choose",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(METHODS.keys() - UNRECORDED))
def test_methods_are_recorded(name: str) -> None:
    if name in {"sum", "mean", "cumsum"}:  # their samples above change the dtype
        assert gradcheck(lambda x: getattr(x, name)(axis=0), Tensor(A23, requires_grad=True))
    else:
        assert gradcheck(METHODS[name], Tensor(A23, requires_grad=True))


def test_out_is_refused() -> None:
    x = tensor([1.0])
    calls: list[Any] = [x.sum, x.max, x.cumsum, x.round, x.argmax, x.any]
    for call in calls:
        with pytest.raises(TypeError, match="out"):
            call(out=np.zeros(()))


def test_flatten_and_clone_have_memory_of_their_own() -> None:
    x = tensor([[1.0, 2.0]], requires_grad=True)
    for other in (x.flatten(), x.clone(), x.copy()):
        assert other.requires_grad
        assert not np.shares_memory(other.data, x.data)
    assert np.shares_memory(x.ravel().data, x.data)


def test_astype_says_what_may_be_lost() -> None:
    x = tensor([1.5], requires_grad=True)
    with pytest.raises(TypeError, match="cannot cast float64 to int64 by the rule 'safe'"):
        x.astype(np.int64, casting="safe")
    assert x.astype(np.float64, copy=False) is x
    with pytest.raises(ValueError, match="order"):
        x.astype(np.float32, order="F")


def test_mT_needs_matrices() -> None:
    with pytest.raises(ValueError, match="two axes"):
        _ = tensor([1.0]).mT


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_operators_are_numpys(name: str, dtype: Any) -> None:
    """Between tensors, and with arrays, lists, Python's and NumPy's scalars on either side."""
    do = OPERATORS[name]
    a, b = np.array([[1, 2, 3], [4, 5, 6]], dtype), np.array([2, 3, 2], dtype)
    others: list[Any] = [2, 2.5, np.float32(2), np.float64(2), b, [2, 3, 2]]
    for other in others:
        for left, right in ((a, other), (other, a)):
            expected = do(left, right)
            found = do(*(Tensor(x) if x is a else x for x in (left, right)))
            assert isinstance(found, Tensor)
            if name == "**":  # NumPy 2.2 takes a float64 in the exponent for a number of Python's
                expected = np.power(left, right)
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found.data, expected)
    np.testing.assert_array_equal(do(Tensor(a), Tensor(b)).data, do(a, b))


@pytest.mark.parametrize("name", WHOLE)
def test_operators_of_whole_numbers(name: str) -> None:
    do = WHOLE[name]
    a, b = np.array([[6, 5], [12, 9]]), np.array([[3, 1], [2, 1]])
    for left, right in ((Tensor(a), Tensor(b)), (Tensor(a), b), (a, Tensor(b))):
        np.testing.assert_array_equal(do(left, right).data, do(a, b))
    if name != "@":
        np.testing.assert_array_equal(do(13, Tensor(b)).data, do(13, b))
        np.testing.assert_array_equal(do(Tensor(a), 3).data, do(a, 3))


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_operators_write_into_the_array(name: str) -> None:
    do = IN_PLACE[name]
    whole = name[:1] in "&|^<>"
    a = np.array([[6, 5], [12, 9]], np.int64 if whole else np.float64)
    b = np.array([[3, 1], [2, 1]], a.dtype)
    t = Tensor(a.copy())
    held, version = t.data, version_of(t)
    assert do(t, Tensor(b)) is t
    assert t.data is held
    assert version_of(t) == version + 1
    np.testing.assert_array_equal(t.data, do(a.copy(), b))


@pytest.mark.parametrize("name", ["+=", "-=", "*=", "/=", "%=", "**=", "@="])
def test_in_place_operators_are_recorded(name: str) -> None:
    def compute(x: Any, y: Any) -> Any:
        z = x * 1.0
        return IN_PLACE[name](z, y) * z

    a = np.array([[2.5, 1.5], [3.5, 1.25]])
    b = np.array([[1.1, 1.3], [0.8, 2.2]])
    assert gradcheck(compute, [Tensor(a, requires_grad=True), Tensor(b, requires_grad=True)])


def test_a_recorded_change_keeps_to_numpys_casting() -> None:
    x = tensor([1.0], dtype=np.float32, requires_grad=True)
    y = x * 2
    y += np.array([1.0])
    assert y.dtype == np.float32
    count = tensor([1])
    with pytest.raises(TypeError, match="cannot hold a result of float64 in place"):
        count += x
    with pytest.raises(TypeError):
        count += 0.5  # NumPy's own words


def test_contains_iter_index_and_numbers() -> None:
    x = tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    assert 3.0 in x
    assert 5.0 not in x
    first, second = x
    assert (first + second).data.tolist() == [4.0, 6.0]
    with pytest.raises(TypeError, match=r"t\.item\(\)"):
        iter(tensor(1.0))
    assert complex(tensor(1 + 2j)) == 1 + 2j
    assert list(range(5))[tensor(2) : tensor(4)] == [2, 3]
    assert f"{tensor(2.5, requires_grad=True):.2f}" == "2.50"
    assert f"{tensor([2.5])}" == "tensor([2.5])"
    with pytest.raises(TypeError, match="of one number"):
        f"{x:.2f}"
    with pytest.raises(ValueError):
        bool(x)


def test_sort_partition_and_fill_change_in_place() -> None:
    x = tensor([3.0, 1.0, 2.0])
    view = x[:2]
    x.sort()
    assert x.data.tolist() == [1.0, 2.0, 3.0]
    assert view.data.tolist() == [1.0, 2.0]
    x.data[...] = [3.0, 1.0, 2.0]
    x.partition(1)
    assert x.data[1] == 2.0
    x.fill(7)
    assert x.data.tolist() == [7.0] * 3
    assert version_of(x) == 3
    w = tensor([3.0, 1.0, 2.0], requires_grad=True)
    y = w * 1
    y.sort()
    (y * np.array([1.0, 10.0, 100.0])).sum().backward()
    assert w.grad is not None
    assert w.grad.data.tolist() == [100.0, 1.0, 10.0]
    with pytest.raises(AutogradError, match="a leaf that needs a gradient"):
        w.sort()
    with no_grad():
        w.sort(kind="stable")
    assert w.data.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    "index",
    [
        1,
        (0, -1),
        slice(None, None, -1),
        (..., None, 0),
        (slice(None), [2, 0]),
        ([0, 1, 1], [2, 0, 0]),
        A23 > 0,
        (np.array([True, False]),),
        (Tensor(np.array([1, 0])), Tensor(np.array(2))),
        Tensor(A23 > 1),
        (None, 1, ..., [0, 0]),
        (),
        [],
    ],
)
def test_all_indexing_and_assignment(index: Any) -> None:
    parts = index if isinstance(index, tuple) else (index,)
    of_numpy = tuple(plain(part) for part in parts)
    x = Tensor(A23.copy(), requires_grad=True)
    np.testing.assert_array_equal(x[index].data, A23[of_numpy])
    assert gradcheck(lambda x: x[index] * 2, x)

    value = 1.0 + np.arange(A23[of_numpy].size).reshape(A23[of_numpy].shape)

    def assign(x: Any, value: Any) -> Any:
        y = x * 1.0
        y[index] = value
        return y * y

    expected = A23.copy()
    expected[of_numpy] = value
    given = Tensor(value, requires_grad=True)
    np.testing.assert_array_equal(assign(x, given).data, expected**2)
    assert gradcheck(assign, [x, given])
    assert gradcheck(lambda x: assign(x, 2.5), x)
    target = Tensor(A23.copy())
    target[index] = value
    np.testing.assert_array_equal(target.data, expected)
    assert version_of(target) == 1
