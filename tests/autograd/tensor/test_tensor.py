"""Tensor as an array: construction, NumPy's functions, protocols, refusals."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from telegrad.autograd import Tensor, as_tensor, no_grad, tensor
from telegrad.errors import AutogradError
from tests.autograd.versions import version_of
from tests.gpu.comparison import close_on, host, of, on_gpu


class Named(Tensor):
    """A Tensor of the user's own."""

    name = ""


def leaf(*values: float) -> Any:
    return tensor(list(values), requires_grad=True)


def test_tensor_copies_and_as_tensor_shares() -> None:
    source = np.zeros(2)
    copied, shared = tensor(source), as_tensor(source)
    source[0] = 1.0
    assert copied.data.tolist() == [0.0, 0.0]
    assert shared.data.tolist() == [1.0, 0.0]
    assert as_tensor(shared) is shared


def test_what_it_knows_of_itself() -> None:
    x = tensor([[1, 2, 3]], dtype=np.float32)
    assert (x.shape, x.ndim, x.size, x.device) == ((1, 3), 2, 3, "cpu")
    assert x.dtype == np.float32
    assert (len(x), x.is_leaf, x.requires_grad, x.grad_fn, x.output_nr) == (1, True, False, None, 0)
    assert tensor(2.5).item() == 2.5
    assert [float(tensor(2.5)), int(tensor(2.5)), bool(tensor(0.0))] == [2.5, 2, False]
    assert [10, 11, 12][tensor(1)] == 11
    with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
        [1, 2, 3][tensor(1.0)]
    with pytest.raises(ValueError):
        x.item()
    with pytest.raises(TypeError):
        len(tensor(1.0))


def test_it_tells_of_an_array_of_cupy(cupy: Any) -> None:
    array = cupy.asarray(np.array([[1.0, 2.0]]))
    x = as_tensor(array)
    assert x.data is array
    assert (x.device, x.shape, x.ndim, x.size, len(x)) == ("cuda:0", (1, 2), 2, 2, 1)
    assert repr(x) == "tensor([[1., 2.]], device='cuda:0')"
    assert x.sum().item() == float(x.sum()) == 3.0
    assert bool((x > 0).all())
    copied = tensor(x)
    assert on_gpu(copied)
    assert not cupy.may_share_memory(copied.data, array)
    assert tensor([1.0], device="cuda").device == "cuda:0"
    assert tensor(array, device="cpu").device == "cpu"
    deep = copy.deepcopy(tensor(x, requires_grad=True))
    assert on_gpu(deep)
    assert deep.requires_grad


def test_only_floats_need_gradients() -> None:
    for bad in ([1, 2], [True]):
        with pytest.raises(AutogradError, match="only floating-point tensors"):
            tensor(bad, requires_grad=True)
    x = leaf(1.0)
    with pytest.raises(AutogradError, match="only floating-point tensors"):
        x.data = np.array([1])
    assert tensor([1.0], dtype=ml_dtypes.bfloat16, requires_grad=True).requires_grad


def test_what_is_no_number_is_refused() -> None:
    for bad in ("text", [object()], None):
        with pytest.raises(TypeError, match="not an array of numbers"):
            tensor(bad)


def test_a_detached_result_shares_its_array() -> None:
    y = leaf(1.0) * 2
    y.requires_grad = True
    assert not y.detach().requires_grad
    assert y.detach().data is y.data


@pytest.mark.parametrize("name", ["__add__", "__rsub__", "__neg__", "__eq__", "__iadd__"])
def test_operators_have_names_and_words_of_their_own(name: str) -> None:
    method = getattr(Tensor, name)
    assert method.__name__ == name
    assert method.__qualname__.endswith(f"Operators.{name}")
    assert "np." in method.__doc__


def test_hash_is_by_identity_and_equality_elementwise() -> None:
    x, y = tensor([1.0, 2.0]), tensor([1.0, 3.0])
    assert (x == y).data.tolist() == [True, False]
    assert (x != y).data.tolist() == [False, True]
    table = {x: "x", y: "y"}
    assert (table[x], table[y]) == ("x", "y")
    assert tensor([1.0, 2.0]) not in table


@pytest.mark.parametrize(
    ("func", "name"),
    [
        (np.add.reduce, "np.add.reduce"),
        (np.multiply.accumulate, "np.multiply.accumulate"),
        (np.poly, "np.poly"),
        (np.emath.sqrt, r"np\.lib\..*\.sqrt"),
    ],
)
def test_functions_without_a_rule_do_not_cut_silently(func: Any, name: str) -> None:
    x = leaf(1.0, 2.0)
    with pytest.raises(AutogradError, match=f"^{name} has no gradient rule"):
        func(x)
    with no_grad():
        np.testing.assert_array_equal(_data(func(x)), func(x.data))
    np.testing.assert_array_equal(_data(func(x.detach())), func(x.data))


def _data(x: Any) -> Any:
    return x.data if isinstance(x, Tensor) else x


def test_options_without_a_rule_are_refused() -> None:
    x = leaf(1.0, 2.0)
    with pytest.raises(TypeError, match="where"):
        np.exp(x, where=np.array([True, False]))
    with pytest.raises(TypeError, match="out"):
        np.add(x, x, out=x)
    with pytest.raises(TypeError, match="out"):
        np.cumsum(x.detach(), out=np.zeros(2))
    with pytest.raises(TypeError, match="out"):
        np.floor(x, out=x.detach())


def test_a_parameter_that_tensors_do_not_support_is_named() -> None:
    with pytest.raises(TypeError, match=r"^broadcast_to\(\) got .* 'subok'"):
        np.broadcast_to(leaf(1.0, 2.0), (2, 2), subok=True)


def test_views_share_memory_and_version() -> None:
    x = tensor([[1.0, 2.0], [3.0, 4.0]])
    row = x[0]
    row += 10.0
    assert x.data.tolist() == [[11.0, 12.0], [3.0, 4.0]]
    assert version_of(row) is version_of(x)
    assert version_of(x[[0]]) is not version_of(x)
    x[x > 11.0] = 0.0
    assert row.data.tolist() == [11.0, 0.0]


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_arrays_with_arithmetic_of_their_own_are_refused() -> None:
    x = tensor([[1.0, 1.0], [2.0, 0.0]], requires_grad=True)
    masked = np.ma.array(x.data, mask=x.data == 1.0)
    for other in (np.matrix([[1.0, 2.0], [3.0, 4.0]]), masked):
        for compute in (lambda: np.multiply(x, other), lambda: x * other, lambda: x @ other):  # noqa: B023
            with pytest.raises(TypeError, match=r"pass np\.asarray"):
                compute()
    with pytest.raises(TypeError, match=r"pass x\.filled"):
        tensor(masked)
    with pytest.raises(AutogradError, match="gave objects"):
        x * np.array([2, 3.0], dtype=object)


def test_arrays_of_other_subclasses_are_arrays(tmp_path: Path) -> None:
    x = leaf(1.0, 2.0)
    np.save(tmp_path / "array.npy", np.array([3.0, 4.0]))
    y = x * np.load(tmp_path / "array.npy", mmap_mode="r")
    y.sum().backward()
    assert type(y.data) is np.ndarray
    assert x.grad.data.tolist() == [3.0, 4.0]


def test_leaves_are_copied_and_pickled() -> None:
    x = leaf(1.0, 2.0)
    (x * 3).sum().backward()
    for other in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert other.grad.data.tolist() == [3.0, 3.0]
    named = Named([1.0], requires_grad=True)
    named.name = "weight"
    for other in (copy.deepcopy(named), pickle.loads(pickle.dumps(named))):
        assert type(other) is Named
        assert other.name == "weight"


def test_arrays_on_both_sides_of_an_operator(xp: Any) -> None:
    x = tensor(xp.asarray(np.array([1.0, 2.0])), requires_grad=True)
    array: Any = xp.asarray(np.array([3.0, 4.0]))
    for result in (array * x, x * array, np.multiply(array, x), [3.0, 4.0] * x, x * [3.0, 4.0]):
        assert isinstance(result, Tensor)
        close_on(xp, result, np.array([3.0, 8.0]))
        assert result.requires_grad
    close_on(xp, array @ x, np.array(11.0))
    assert isinstance(array == x, Tensor)
    close_on(xp, x * np.float64(2.0), np.array([2.0, 4.0]))
    close_on(xp, x ** np.float32(2.0), np.array([1.0, 4.0]))
    (x ** np.float32(2.0)).sum().backward()
    close_on(xp, x.grad, np.array([2.0, 4.0]))
    (2.0**x).sum().backward()


def test_conditions_that_are_no_arrays(xp: Any) -> None:
    x = tensor(xp.asarray(np.array([1.0, 2.0])), requires_grad=True)
    np.where(True, x, 0.0).sum().backward()
    np.where(np.bool_(False), 0.0, x).sum().backward()
    np.where([True, False], x, 0.0).sum().backward()
    close_on(xp, x.grad, np.array([3.0, 2.0]))


def test_functions_of_numpy_without_a_rule(xp: Any) -> None:
    x: Any = tensor(xp.asarray(np.array([3.0, 1.0, 2.0])), requires_grad=True)
    constants: list[Any] = [np.argsort(x), np.isfinite(x), x > 1, np.floor(x), x.astype(np.int64)]
    for result in constants:
        assert not result.requires_grad
    assert np.result_type(x, np.float32) == np.float64
    assert host(np.argsort(x)).tolist() == [1, 2, 0]
    assert host(np.isfinite(x)).tolist() == [True] * 3
    assert np.argmax(x).item() == 0
    assert bool(np.allclose(x, x + 1e-12))
    assert host(np.zeros_like(x)).tolist() == [0.0] * 3
    assert of(xp, np.zeros_like(x))
    assert np.shape(x) == (3,)


def test_devices_are_not_mixed(cupy: Any) -> None:
    x, here = tensor(cupy.ones(2), requires_grad=True), np.ones(2)
    for mix in (
        lambda: x * here,
        lambda: here * x,
        lambda: np.concatenate([tensor(here), x]),
        lambda: np.where(here > 0, x, 0.0),
        lambda: x @ here,
    ):
        with pytest.raises(ValueError, match=r"on different devices \(cpu, cuda:0\); move one"):
            mix()
    with pytest.raises(ValueError, match="a root and its gradient of arrays on different devices"):
        (x * 2.0).backward(here)


def test_a_device_that_is_none() -> None:
    with pytest.raises(ValueError, match="no such device: 'gpu'"):
        tensor([1.0], device="gpu")
    assert tensor([1.0], device="cpu").device == "cpu"
