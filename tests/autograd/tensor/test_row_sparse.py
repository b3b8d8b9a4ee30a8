"""Gradients of tables of which a step uses some rows: their form, their way and their cost."""

from __future__ import annotations

import copy
import pickle
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from telegrad import detect_anomaly, nn, optim
from telegrad.autograd import (
    RowSparse,
    Tensor,
    extend,
    grad,
    gradcheck,
    gradgradcheck,
    is_row_sparse,
    ops,
    tensor,
)
from telegrad.errors import AutogradError
from tests.gpu.comparison import close, on_gpu

embedding = ops.layers.embedding


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).uniform(0.5, 1.5, shape)


def table(*shape: int) -> Tensor:
    return tensor(numbers(*(shape or (5, 3))), requires_grad=True)


def used(weight: Any, rows: Any = (1, 3, 1), **options: Any) -> Tensor:
    """A number that depends on some rows, and quadratically."""
    result: Tensor = (embedding(weight, list(rows), sparse=True, **options) ** 2).sum()
    return result


def sparse_grad(weight: Tensor) -> RowSparse:
    found: Any = weight.grad
    assert is_row_sparse(found), type(found)
    return found


def row_sparse(*rows: int, of: int = 5, seed: int = 0) -> RowSparse:
    return RowSparse(np.array(rows, dtype=np.int64), numbers(len(rows), 3, seed=seed), (of, 3))


# -- embedding -------------------------------------------------------------------------------------


@pytest.mark.few(10)
@pytest.mark.parametrize("indices", [2, [1, 3, 1], [[0, 4], [4, 4]], [], np.zeros((2, 0), int)])
@pytest.mark.parametrize("shape", [(5,), (5, 3), (5, 2, 2), (5, 0)])
@pytest.mark.parametrize("sparse", [False, True])
def test_embedding(indices: Any, shape: tuple[int, ...], sparse: bool) -> None:
    weight = table(*shape)
    y = embedding(weight, indices, sparse=sparse)
    np.testing.assert_array_equal(y.data, weight.data[np.asarray(indices, dtype=int)])
    assert gradcheck(lambda w: embedding(w, indices, sparse=sparse), weight)
    assert gradgradcheck(lambda w: embedding(w, indices, sparse=sparse) ** 2, weight)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("padding_idx", [1, -4])
def test_the_row_of_padding_gets_no_gradient(sparse: bool, padding_idx: int) -> None:
    weight = table()
    (
        embedding(weight, [[1, 2], [1, 4]], padding_idx=padding_idx, sparse=sparse) ** 2
    ).sum().backward()
    found: Any = weight.grad
    if sparse:
        assert found.rows.tolist() == [2, 4]
    whole = found.to_dense() if sparse else found.data
    assert not whole[[0, 1, 3]].any()
    np.testing.assert_allclose(whole[[2, 4]], 2 * weight.data[[2, 4]])


def test_indices_are_those_of_the_call() -> None:
    weight, indices = table(), np.array([1, 2])
    y = embedding(weight, indices, sparse=True)
    indices[:] = 0
    y.sum().backward()
    assert sparse_grad(weight).rows.tolist() == [1, 2]


def test_what_names_no_row_is_refused() -> None:
    for rows in ([5], [-1], [0, 7]):
        with pytest.raises(IndexError, match="rows from .* of a table with rows from 0 to 4"):
            embedding(table(), rows)
    with pytest.raises(TypeError, match="named by integers, not by float64"):
        embedding(table(), [0.0])
    with pytest.raises(TypeError, match="named by integers, not by bool"):
        embedding(table(), [True])


def test_arrays_and_integer_tensors_do_too() -> None:
    plain = embedding(numbers(5, 3), [1, 1])
    assert isinstance(plain, np.ndarray)
    assert embedding(table(), tensor([1, 2], dtype=np.int32)).shape == (2, 3)


# -- what a RowSparse is ---------------------------------------------------------------------------


def test_coalesce_and_to_dense() -> None:
    gradient = RowSparse(np.array([3, 0, 3]), np.array([[1.0], [2.0], [4.0]]), (5, 1))
    once = gradient.coalesce()
    assert once.rows.tolist() == [0, 3]
    assert once.values.tolist() == [[2.0], [5.0]]
    assert gradient.to_dense().tolist() == once.to_dense().tolist() == [[2], [0], [0], [5], [0]]
    assert (gradient.shape, gradient.ndim, gradient.size) == ((5, 1), 2, 5)
    assert (gradient.dtype, gradient.device) == (np.dtype(np.float64), "cpu")


def test_without_rows() -> None:
    empty = row_sparse()
    assert empty.coalesce().rows.shape == (0,)
    assert not empty.to_dense().any()
    assert (empty + row_sparse(1)).rows.tolist() == [1]
    weight = table()
    embedding(weight, [], sparse=True).sum().backward()
    assert sparse_grad(weight).values.shape == (0, 3)
    before = weight.data.copy()
    optim.Adagrad([weight]).step()
    np.testing.assert_array_equal(weight.data, before)


def test_sums() -> None:
    left, right = row_sparse(1, 3), row_sparse(3, 4, seed=1)
    both = left + right
    assert is_row_sparse(both)
    assert both.rows.tolist() == [1, 3, 3, 4]
    expected = left.to_dense() + right.to_dense()
    np.testing.assert_allclose(both.to_dense(), expected)
    whole = numbers(5, 3, seed=2)
    before = whole.copy()
    for total in (left + whole, whole + left):
        assert isinstance(total, np.ndarray)
        np.testing.assert_allclose(total, whole + left.to_dense())
    np.testing.assert_array_equal(whole, before)
    with pytest.raises(AutogradError, match="do not add"):
        left + row_sparse(1, of=6)
    with pytest.raises(TypeError):
        left + numbers(4, 3)


def test_a_sum_never_has_more_rows_than_the_whole() -> None:
    total, expected = row_sparse(1, 3), row_sparse(1, 3).to_dense()
    for seed in range(9):
        more = row_sparse(3, 3, 0, seed=seed)
        total, expected = total + more, expected + more.to_dense()
        assert len(total.rows) <= 5
    np.testing.assert_allclose(total.to_dense(), expected)


def test_dtypes_copies_and_scaling() -> None:
    gradient = row_sparse(1, 3)
    assert gradient.astype(np.float32).dtype == np.float32
    assert gradient.astype(np.float64, copy=False) is gradient
    np.testing.assert_allclose((gradient * 0.5).to_dense(), gradient.to_dense() * 0.5)
    assert (np.float64(2) * gradient.astype(np.float32)).dtype == np.float32
    for same in (pickle.loads(pickle.dumps(gradient)), copy.deepcopy(gradient), gradient.copy()):
        np.testing.assert_array_equal(same.to_dense(), gradient.to_dense())
        assert not np.shares_memory(same.values, gradient.values)
    with pytest.raises(AutogradError, match="make no RowSparse"):
        RowSparse(np.array([1]), numbers(2, 3), (5, 3))


# -- where it goes ---------------------------------------------------------------------------------


def test_division_and_sign() -> None:
    g = row_sparse(3, 1)
    np.testing.assert_allclose((g / 4).to_dense(), g.to_dense() / 4)
    np.testing.assert_array_equal((-g).to_dense(), -g.to_dense())
    assert (g.astype(np.float32) / np.float64(3.0)).dtype == np.float32


def test_it_becomes_no_array_by_itself() -> None:
    with pytest.raises(TypeError, match=r"write to_dense\(\)"):
        np.asarray(row_sparse(3, 1))


def test_a_leaf_gets_one_and_adds_up() -> None:
    weight = table()
    used(weight).backward()
    assert sparse_grad(weight).rows.tolist() == [1, 3, 1]
    used(weight, [4]).backward()
    assert sparse_grad(weight).rows.tolist() == [1, 3, 1, 4]
    other = tensor(weight.data, requires_grad=True)
    (used(other) + used(other, [4])).backward()  # in one pass
    np.testing.assert_allclose(sparse_grad(weight).to_dense(), sparse_grad(other).to_dense())
    dense = tensor(weight.data, requires_grad=True)
    (embedding(dense, [1, 3, 1, 4]) ** 2).sum().backward()
    assert dense.grad is not None
    np.testing.assert_allclose(sparse_grad(weight).to_dense(), dense.grad.data)


@pytest.mark.parametrize("sparse_first", [True, False])
@pytest.mark.parametrize("one_pass", [True, False])
def test_with_a_dense_one_the_sum_is_dense(sparse_first: bool, one_pass: bool) -> None:
    weight = table()
    parts: list[Callable[[], Tensor]] = [lambda: used(weight), lambda: (weight**3).sum()]
    parts = parts if sparse_first else parts[::-1]
    if one_pass:
        (parts[0]() + parts[1]()).backward()
    else:
        for part in parts:
            part().backward()
    assert isinstance(weight.grad, Tensor)
    expected = 3 * weight.data**2
    np.add.at(expected, [1, 3, 1], 2 * weight.data[[1, 3, 1]])
    np.testing.assert_allclose(weight.grad.data, expected)


def test_what_is_accumulated_shares_no_memory() -> None:
    weight = table()
    seed = np.ones((3, 3))
    embedding(weight, [1, 3, 1], sparse=True).backward(seed)
    assert not np.shares_memory(sparse_grad(weight).values, seed)
    found: Any = grad(embedding(weight, [1, 3, 1], sparse=True), weight, seed)[0]
    assert not np.shares_memory(found.values, seed)


def test_create_graph_makes_it_dense() -> None:
    weight = table()
    (slope,) = grad(used(weight), weight, create_graph=True)
    assert isinstance(slope, Tensor)
    curvature: Any = grad(slope.sum(), weight)[0]
    expected = np.zeros((5, 3))
    expected[[1, 3]] = [[4.0], [2.0]]
    np.testing.assert_allclose(curvature.to_dense(), expected)
    used(weight).backward()  # a RowSparse, and then a recorded one
    used(weight).backward(create_graph=True)
    assert isinstance(weight.grad, Tensor)
    np.testing.assert_allclose(weight.grad.data, 2 * slope.data)


@pytest.mark.parametrize(
    "path", [lambda w: w * 2.0, lambda w: w[::-1], lambda w: w.reshape(5, 3), lambda w: w.T.T]
)
def test_an_operation_before_the_table_gets_an_array(path: Callable[[Tensor], Tensor]) -> None:
    weight = table()
    assert gradcheck(lambda w: used(path(w)), weight)
    used(path(weight)).backward()
    assert isinstance(weight.grad, Tensor)


def test_hooks_get_it_as_it_is() -> None:
    weight, seen = table(), list[Any]()
    weight.register_hook(seen.append)
    weight.register_post_accumulate_hook(lambda leaf, target: seen.append(leaf.grad))
    y = embedding(weight, [1, 3], sparse=True)
    assert y.grad_fn is not None
    y.grad_fn.register_hook(lambda results, given: seen.extend(results))
    y.sum().backward()
    assert [is_row_sparse(x) for x in seen] == [True, True, True]
    assert seen[2] is weight.grad


def test_a_hook_may_return_another_one_or_an_array() -> None:
    weight = table()
    handle = weight.register_hook(lambda g: g * 0.5)
    used(weight).backward()
    np.testing.assert_allclose(sparse_grad(weight).to_dense()[3], weight.data[3])
    handle.remove()
    weight.grad = None
    weight.register_hook(lambda g: g.to_dense())  # type: ignore[attr-defined]
    used(weight).backward()
    assert isinstance(weight.grad, Tensor)


def test_a_rule_of_ones_own_may_return_it() -> None:
    first_row = extend.primitive(
        "first_row",
        lambda a: a[0],
        "a",
        a=lambda g, shape: RowSparse(np.array([0]), g[None], shape),
    )
    weight = table()
    first_row(weight).sum().backward()
    assert sparse_grad(weight).rows.tolist() == [0]
    other = table()
    first_row(other * 2.0).sum().backward()
    assert other.grad is not None
    assert other.grad.data[:2].tolist() == [[2.0] * 3, [0.0] * 3]


def test_an_anomaly_in_its_values_is_found() -> None:
    weight = table()
    nowhere = extend.primitive(
        "nowhere",
        lambda a: a[0],
        "a",
        a=lambda g, shape: RowSparse(np.array([0]), g[None] * np.nan, shape),
    )
    with pytest.raises(AutogradError, match="backward of 'nowhere' made a NaN"), detect_anomaly():
        nowhere(weight).sum().backward()


# -- optimizers ------------------------------------------------------------------------------------

OPTIMIZERS: dict[str, Callable[[Tensor], optim.Optimizer]] = {
    "sgd": lambda p: optim.SGD([p], lr=0.1),
    "adagrad": lambda p: optim.Adagrad([p], lr=0.1, lr_decay=0.3, initial_accumulator_value=0.2),
}


def step(weight: Tensor, optimizer: optim.Optimizer) -> None:
    optimizer.zero_grad()
    used(weight).backward()
    optimizer.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_somebody_holds_is_not_written_into(name: str) -> None:
    weight = table()
    optimizer = OPTIMIZERS[name](weight)
    step(weight, optimizer)  # from here on the table is the tensor's alone
    holders: list[Callable[[], Any]] = [
        lambda: weight.data,
        lambda: weight.detach(),
        lambda: weight[1:3],
        lambda: (weight * weight, weight.T),
        lambda: memoryview(weight.data),  # type: ignore[arg-type]
    ]
    for hold in holders:
        held = hold()
        before = weight.data.copy()
        step(weight, optimizer)
        now = held[0] if isinstance(held, tuple) else held
        now = now.data if isinstance(now, Tensor) else np.asarray(now)
        expected = {True: before**2, False: before}[isinstance(held, tuple)]
        expected = expected[1:3] if now.shape == (2, 3) else expected
        np.testing.assert_array_equal(now, expected)
        assert not np.array_equal(weight.data, before)
        del held, now


def test_a_graph_recorded_before_keeps_its_values() -> None:
    weight = table()
    optimizer = optim.SGD([weight], lr=0.1)
    step(weight, optimizer)
    before = weight.data.copy()
    graph = (weight * weight).sum() + used(weight)
    step(weight, optimizer)
    (found,) = grad(graph, weight)
    expected = 2 * before
    np.add.at(expected, [1, 3, 1], 2 * before[[1, 3, 1]])
    np.testing.assert_allclose(found.data, expected)


def test_a_table_that_is_read_while_it_is_stepped_is_never_half_stepped() -> None:
    """A step changes all rows by the same; embedding in another thread sees no two states."""
    rows, width = 200, 64
    weight = tensor(np.zeros((rows, width)), requires_grad=True)
    everything = list(range(rows))
    gradient = RowSparse(np.arange(rows), np.ones((rows, width)), (rows, width))
    optimizer = optim.SGD([weight], lr=1.0)
    torn, done = [], threading.Event()

    def read() -> None:
        while not done.is_set():
            seen = embedding(weight, everything, sparse=True).data
            if seen.min() != seen.max():
                torn.append(seen)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(300):
            optimizer.apply({weight: gradient})  # type: ignore[dict-item]
    finally:
        done.set()
        reader.join()
    assert not torn
    assert weight.data.max() == weight.data.min() == -300.0


# -- what it costs ---------------------------------------------------------------------------------


ITEMS = 200_000  # rows of a table that is larger than all bounds


@contextmanager
def peak() -> Iterator[list[int]]:
    """Appends how many bytes were allocated at most at one time."""
    found: list[int] = []
    tracemalloc.start()
    try:
        yield found
        found.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("name", "width"), [("sgd", 64), ("adagrad", 8)])
def test_no_array_of_the_tables_size_is_made(name: str, width: int) -> None:
    weight = Tensor(np.zeros((ITEMS, width), dtype=np.float32), requires_grad=True)
    rows = np.random.default_rng(0).integers(0, ITEMS, 100)
    optimizer = OPTIMIZERS[name](weight)
    step: Any = RowSparse(rows, np.ones((100, width), np.float32), weight.shape)
    optimizer.apply({weight: step})
    with peak() as backward:
        for _ in range(3):
            (embedding(weight, rows, sparse=True) ** 2).sum().backward()
    with peak() as stepping:
        optimizer.step()
    assert sparse_grad(weight).values.shape == (300, width)
    assert backward[0] < 2e6
    assert stepping[0] < 2e6
    with peak() as dense:  # the count sees what is of the table's size
        np.zeros_like(weight.data)
    assert dense[0] >= weight.data.nbytes


# -- on CuPy arrays --------------------------------------------------------------------------------


def test_on_arrays_of_cupy(cupy: Any) -> None:
    weights = [tensor(cupy.asarray(numbers(5, 3)), requires_grad=True), table()]
    for weight in weights:
        optimizer = optim.Adagrad([weight], lr=0.1)
        for rows in ([1, 3, 1], [0, 1]):
            optimizer.zero_grad()
            (embedding(weight, rows, sparse=True, padding_idx=0) ** 2).sum().backward()
            used(weight).backward()
            optimizer.step()
    assert on_gpu(sparse_grad(weights[0]).values)
    close(weights[0], weights[1])
    gradient = sparse_grad(weights[0])
    assert gradient.to("cuda") is gradient
    np.testing.assert_allclose(gradient.to("cpu").to_dense(), sparse_grad(weights[1]).to_dense())
    for whole in (gradient.to_dense(), gradient + weights[0].data, weights[0].data + gradient):
        assert on_gpu(whole)
    assert gradcheck(lambda w: embedding(w, [1, 1], sparse=True), weights[0])


# -- nn --------------------------------------------------------------------------------------------


def test_the_module_gives_it() -> None:
    layer = nn.Embedding(6, 3, sparse=True, padding_idx=0)
    (layer(np.array([[1, 0], [4, 1]])) ** 2).sum().backward()
    assert sparse_grad(layer.weight).coalesce().rows.tolist() == [1, 4]
    before = sparse_grad(layer.weight)
    assert sparse_grad(layer.to("cpu").weight) is before
    assert nn.utils.clip_grad_norm_(layer.parameters(), 0.5) > 0.5
    np.testing.assert_allclose(np.linalg.norm(sparse_grad(layer.weight).to_dense()), 0.5, rtol=1e-5)
