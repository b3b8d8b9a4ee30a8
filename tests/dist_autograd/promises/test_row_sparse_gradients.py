"""Gradients of some rows travel as these rows, and stay rows in the context."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from telegrad import dist_autograd, nn, optim, rpc
from telegrad.autograd import RowSparse, Tensor, ops, tensor
from telegrad.dist_autograd.seams import ROW_SPARSE, TENSOR
from telegrad.errors import DecodeError
from telegrad.parallel import DistributedOptimizer, parameter_rrefs
from telegrad.testing import Cluster
from telegrad.wire import describe, describe_held, land, rebuild

ROWS, SIZE = 1000, 3
TABLE = np.random.default_rng(0).normal(size=(ROWS, SIZE))


def look_up(table: Any, rows: list[int]) -> Any:
    return ops.layers.embedding(table, rows, sparse=True)


def pass_on(table: Tensor, to: str, rows: list[int]) -> Any:
    """The table is received, and sent on as it came."""
    return rpc.rpc_sync(to, look_up, (table, rows))


def dense_of(rows: list[int], factor: float = 1.0) -> Any:
    whole = np.zeros((ROWS, SIZE))
    np.add.at(whole, rows, factor)
    return whole


def rows_of(gradient: Any) -> RowSparse:
    assert isinstance(gradient, RowSparse), type(gradient)
    return gradient


def is_rows(gradient: Any, rows: list[int], factor: float = 1.0) -> None:
    gradient = rows_of(gradient)
    assert gradient.coalesce().rows.tolist() == sorted(set(rows))
    np.testing.assert_array_equal(gradient.to_dense(), dense_of(rows, factor))


def kinds_of_ways() -> None:
    """Sent, sent on, from two workers, of a result, beside a dense one."""
    table = tensor(TABLE, requires_grad=True)
    with dist_autograd.context() as context_id:
        loss = rpc.rpc_sync("worker1", look_up, (table, [1, 3, 1])).sum()
        dist_autograd.backward(context_id, [loss])
        is_rows(dist_autograd.get_gradients(context_id)[table], [1, 3, 1])
        loss = rpc.rpc_sync("worker1", pass_on, (table, "worker2", [7])).sum()
        dist_autograd.backward(context_id, [loss])
        is_rows(dist_autograd.get_gradients(context_id)[table], [1, 3, 1, 7])
    with dist_autograd.context() as context_id:
        both = [rpc.rpc_sync(f"worker{r}", look_up, (table, [r, 5])).sum() for r in (1, 2)]
        dist_autograd.backward(context_id, [both[0] + both[1]], retain_graph=True)
        is_rows(dist_autograd.get_gradients(context_id)[table], [1, 5, 2, 5])
        (found,) = dist_autograd.grad(context_id, both, table)
        is_rows(found, [1, 5, 2, 5])
    with dist_autograd.context() as context_id:
        loss = rpc.rpc_sync("worker1", look_up, (table * 2.0, [4])).sum()
        dist_autograd.backward(context_id, [loss])
        dense: Any = dist_autograd.get_gradients(context_id)[table]
        np.testing.assert_array_equal(dense.data, dense_of([4], 2.0))
    with dist_autograd.context() as context_id:
        mixed = rpc.rpc_sync("worker1", look_up, (table, [4])).sum() + table.sum()
        dist_autograd.backward(context_id, [mixed])
        np.testing.assert_array_equal(
            dist_autograd.get_gradients(context_id)[table].data, dense_of([4]) + 1.0
        )
    assert table.grad is None


def test_every_way_that_rows_take(cluster: Cluster) -> None:
    cluster.call(0, kinds_of_ways)


def recorded() -> None:
    """They are dense where the pass is recorded, and can be differentiated."""
    table = tensor(TABLE, requires_grad=True)
    with dist_autograd.context() as context_id:
        squares = (rpc.rpc_sync("worker1", look_up, (table, [1, 3])) ** 2).sum()
        (first,) = dist_autograd.grad(context_id, squares, table, create_graph=True)
        (second,) = dist_autograd.grad(context_id, (first * first).sum(), table)
    assert isinstance(first, Tensor)
    assert first.requires_grad
    found = rows_of(second).to_dense()
    np.testing.assert_allclose(found, 8.0 * TABLE * dense_of([1, 3]), rtol=1e-12)


def test_under_create_graph_they_are_whole(cluster: Cluster) -> None:
    cluster.call(0, recorded)


def add_up_over_passes() -> None:
    """Rows and rows stay rows; with an array or a Tensor they become that."""
    table = tensor(TABLE, requires_grad=True)
    with dist_autograd.context() as context_id:
        values = rpc.rpc_sync("worker1", look_up, (table, [1, 3]))
        for times in (1, 2):
            dist_autograd.backward(context_id, [values.sum()], retain_graph=True)
            is_rows(dist_autograd.get_gradients(context_id)[table], [1, 3] * times)
        dist_autograd.backward(context_id, [values.sum()], create_graph=True)
        whole = dist_autograd.get_gradients(context_id)[table]
        np.testing.assert_array_equal(whole.data, dense_of([1, 3], 3.0))


def test_passes_add_up(cluster: Cluster) -> None:
    cluster.call(0, add_up_over_passes)


class Words(nn.Module):
    """A table on one worker, as on a parameter server."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(TABLE.copy())

    def forward(self, rows: list[int]) -> Any:
        return look_up(self.table, rows)

    def values(self) -> Any:
        return self.table.data

    def gradient(self, context_id: int) -> Any:
        return dist_autograd.get_gradients(context_id)[self.table]


def steps_of_a_table() -> None:
    words = rpc.remote("worker1", Words)
    optimizer = DistributedOptimizer(optim.SGD, parameter_rrefs(words), lr=0.5)
    with dist_autograd.context() as context_id:
        dist_autograd.backward(context_id, [words.rpc_sync().forward([2, 2, 9]).sum()])
        is_rows(words.rpc_sync().gradient(context_id), [2, 2, 9])  # rows travel as a value, too
        optimizer.step(context_id)
    found = words.rpc_sync().values()
    np.testing.assert_allclose(found, TABLE - 0.5 * dense_of([2, 2, 9]))


def test_the_optimizer_steps_these_rows(cluster: Cluster) -> None:
    cluster.call(0, steps_of_a_table)


def hooks_on_rows() -> None:
    """A hook sees rows, on the leaf and on what was received of it, and may return rows."""
    table = tensor(TABLE, requires_grad=True)
    seen.clear()
    table.register_hook(doubles)
    with dist_autograd.context() as context_id:
        loss = rpc.rpc_sync("worker1", look_up_hooked, (table, [6])).sum()
        dist_autograd.backward(context_id, [loss])
        is_rows(dist_autograd.get_gradients(context_id)[table], [6], 4.0)
    assert seen == [RowSparse, RowSparse]


seen: list[type] = []


def doubles(gradient: Any) -> Any:
    seen.append(type(gradient))
    return gradient * 2.0


def look_up_hooked(table: Tensor, rows: list[int]) -> Any:
    table.register_hook(doubles)
    return look_up(table, rows)


def test_hooks_on_rows(cluster: Cluster) -> None:
    cluster.call(0, hooks_on_rows)


def test_bytes_are_those_of_the_rows() -> None:
    gradient = RowSparse(np.array([5, 1, 5]), np.arange(9.0).reshape(3, 3), (10**9, 3))
    metadata, buffers = describe([gradient])
    assert sum(len(bytes(each)) for each in buffers) == 3 * 8 + 9 * 8
    (again,) = rebuild(metadata, [bytearray(each) for each in buffers])
    assert isinstance(again, RowSparse)
    assert again.shape == gradient.shape
    np.testing.assert_array_equal(again.rows, gradient.rows)
    np.testing.assert_array_equal(again.values, gradient.values)


@pytest.mark.parametrize(
    ("rows", "shape", "words"),
    [
        (np.array([1, 10]), [10, 3], "of 10 rows names others"),
        (np.array([-1, 1]), [10, 3], "of 10 rows names others"),
        (np.array([1, 2]), [10, 4], "make no RowSparse"),
        (np.array([1, 2]), [], "make no RowSparse"),
        (np.array([1.0, 2.0]), [10, 3], "not of a vector of rows"),
        (np.array([1, 2]), [10, -3], "is not"),
        (np.array([1, 2]), "no shape", "is not"),
    ],
)
def test_garbage(rows: Any, shape: Any, words: str) -> None:
    first, own = describe_held(rows)
    second, others = describe_held(np.zeros((2, 3)))
    buffers = [bytearray(each) for each in (*own, *others)]
    with pytest.raises(DecodeError, match=words):
        ROW_SPARSE.rebuild([first, second, shape], buffers, land)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_as_many_buffers_as_arrays(count: int) -> None:
    line, _ = describe_held(np.zeros(2, np.int64))
    with pytest.raises(DecodeError, match="not an array"):
        ROW_SPARSE.rebuild([line, line, [10]], [bytearray(16)] * count, land)


@pytest.mark.parametrize(
    "line", [None, b"", [], ["array"], ["tensor", ["array", []]], ["array", 1]]
)
def test_what_is_held_is_an_array(line: Any) -> None:
    for external, meta in ((TENSOR, line), (ROW_SPARSE, [line, line, [10]])):
        with pytest.raises(DecodeError):
            external.rebuild(meta, [bytearray(8)], land)
