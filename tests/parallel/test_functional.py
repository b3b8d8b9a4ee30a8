"""Gradients through collectives, against differences of the sum of all ranks' losses."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import telegrad as tg
from telegrad import collectives as dist
from telegrad import dist_autograd
from telegrad.autograd import Tensor, no_grad
from telegrad.collectives import ReduceOp
from telegrad.errors import CallTimeoutError, CollectiveMismatchError, InvalidUseError
from telegrad.parallel import functional
from telegrad.testing import Cluster
from telegrad.types import Array
from tests.patience import with_more_time

STEP = 1e-5
Outputs = list[Tensor]
Verb = Callable[[int, Sequence[Any]], Outputs]  # of the rank and its Tensors
Shapes = Any  # a list for each rank, of tuples
SUM = ReduceOp.SUM
PICKS = [ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT]


@pytest.fixture(scope="module")
def clusters() -> Iterator[dict[int, Cluster]]:
    with Cluster(2) as two, Cluster(3) as three:
        yield {2: two, 3: three}


@pytest.fixture
def pair() -> Iterator[Cluster]:
    with Cluster(2) as cluster:
        yield cluster


# -- each verb, on Tensors whose shapes the ranks have drawn ---------------------------------------


def cases(name: str, draw: Any, n: int) -> tuple[ReduceOp, Verb, Shapes]:
    """Returns a reduction, a function that calls the verb, and the shapes of each rank's Tensors."""
    root = draw(st.integers(0, n - 1))
    op = draw(st.sampled_from([ReduceOp.SUM, ReduceOp.AVG, *PICKS])) if "reduce" in name else SUM
    width = draw(st.sampled_from([(), (2,)]))
    count = st.integers(0, 3)
    lengths = draw(st.lists(count, min_size=n, max_size=n))
    table = [draw(st.lists(count, min_size=n, max_size=n)) for _ in range(n)]
    own: Shapes = [[(rows, *width)] for rows in lengths]
    each = [(rows, *width) for rows in lengths]
    if name == "all_reduce":
        return op, lambda _, x: [functional.all_reduce(x[0], op)], [[(2, *width)]] * n
    if name == "reduce":
        return op, lambda _, x: [functional.reduce(x[0], root, op)], [[(2, *width)]] * n
    if name == "broadcast":
        return op, lambda _, x: [functional.broadcast(x[0], root)], [[(2, *width)]] * n
    if name == "all_gather":
        return op, lambda _, x: functional.all_gather(x[0]), own
    if name == "gather":
        return op, lambda _, x: functional.gather(x[0], root), own
    if name == "all_gather_single":
        shapes = own if draw(st.booleans()) else [[()]] * n
        return op, lambda _, x: [functional.all_gather_single(x[0])], shapes
    if name == "scatter":
        shapes = [[each[r], *(each if r == root else [])] for r in range(n)]
        return op, lambda _, x: [functional.scatter(x[0], x[1:] or None, root)], shapes
    if name == "reduce_scatter":
        return op, lambda _, x: [functional.reduce_scatter(x, op)], [each] * n
    if name == "reduce_scatter_single":
        splits = lengths if draw(st.booleans()) else None
        shapes = [[(sum(lengths) if splits else 2 * n, *width)]] * n
        return op, functools.partial(reduce_scatter_single, op, splits), shapes
    if name == "all_to_all":
        return (
            op,
            lambda _, x: functional.all_to_all(x),
            [[(rows, *width) for rows in row] for row in table],
        )
    assert name == "all_to_all_single"
    if draw(st.booleans()):
        shapes = [[(n * rows, *width)] for rows in lengths]
        return op, lambda _, x: [functional.all_to_all_single(x[0])], shapes
    known = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    return op, functools.partial(split, table, known), [[(sum(row), *width)] for row in table]


def reduce_scatter_single(
    op: ReduceOp, splits: list[int] | None, _: int, tensors: Sequence[Any]
) -> Outputs:
    return [functional.reduce_scatter_single(tensors[0], op, split_sizes=splits)]


def split(table: list[list[int]], known: list[bool], rank: int, tensors: Sequence[Any]) -> Outputs:
    """Sends parts of any lengths; only some ranks know which lengths come."""
    came = [row[rank] for row in table] if known[rank] else None
    return [functional.all_to_all_single(tensors[0], came, table[rank])]


def drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    """Returns numbers that differ by more than a step: an extreme has no kink near them."""
    x = rng.permutation(np.arange(1.0, 1.0 + np.prod(shape, dtype=int))).reshape(shape) * 0.1
    x = x + rng.integers(0, 2**20, shape) * 2.0**-10
    return np.asarray((x + 1j * x[::-1] if np.dtype(dtype).kind == "c" and shape else x), dtype)


def weights(outputs: Outputs, seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    made = []
    for y in outputs:
        w: Any = rng.uniform(0.5, 1.5, y.shape)
        made.append(w + 1j * rng.uniform(0.5, 1.5, y.shape) if y.dtype.kind == "c" else w)
    return made


def real(x: Any) -> Any:
    return np.real(x) if x.dtype.kind == "c" else x


def loss_of(verb: Verb, rank: int, tensors: Sequence[Tensor], degree: int) -> Tensor:
    """Returns this rank's loss, of other results than on the next rank."""
    outputs = verb(rank, tensors)
    used = outputs[:1] if rank == 1 else outputs
    each = zip(used, weights(used, rank), strict=True)
    total: Any = sum(real(w * y**degree).sum() for y, w in each)
    return tg.as_tensor(total)


def slope_of_loss(verb: Verb, rank: int, tensors: Sequence[Tensor], *, order: int) -> Tensor:
    """Returns the loss, or a weighted sum of its gradients on this rank."""
    if order == 1:  # the losses need not be alike
        return loss_of(verb, rank, tensors, 1 + rank)
    loss = loss_of(verb, rank, tensors, 3)
    found = tg.autograd.grad([loss], tensors, create_graph=True, allow_unused=True)
    some = [each for each in found if each is not None]
    total: Any = sum(real(w * g).sum() for g, w in zip(some, weights(some, 7 + rank), strict=True))
    return tg.as_tensor(total)


def check_gradients(verb: Verb, arrays: list[list[Array]], order: int = 1) -> None:
    """Compares all ranks' gradients with the slopes of their sum; runs on every rank."""
    me = dist.init_process_group().rank
    own = arrays[me]

    def total(way: list[list[Array]], step: float) -> float:
        moved = [x + step * each for x, each in zip(own, way[me], strict=True)]
        tensors = [tg.tensor(x, requires_grad=True) for x in moved]
        return over_all(slope_of_loss(verb, me, tensors, order=order).item())

    try:
        tensors = [tg.tensor(x, requires_grad=True) for x in own]
        slope_of_loss(verb, me, tensors, order=order).backward()
        rng = np.random.default_rng(0)
        way = [[drawn(rng, x.shape, x.dtype) for x in each] for each in arrays]
        expected = (total(way, STEP) - total(way, -STEP)) / (2 * STEP)
        slope = sum(
            float(np.sum(np.real(np.conj(x.grad.data) * each)))
            for x, each in zip(tensors, way[me], strict=True)
            if x.grad is not None
        )
        np.testing.assert_allclose(over_all(slope), expected, 1e-6, 1e-6)
    finally:
        dist.destroy_process_group()  # a group that has failed does not recover


def over_all(number: float) -> float:
    sums = np.array(number)
    dist.all_reduce(sums)
    return float(sums)


@pytest.mark.few(1)
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", functional.__all__)
@pytest.mark.parametrize(
    "examples", [6, pytest.param(40, marks=pytest.mark.long)], ids=["some", "many"]
)
def test_gradients_of_every_verb(
    clusters: dict[int, Cluster], name: str, order: int, examples: int
) -> None:
    @settings(max_examples=examples)
    @given(data=st.data(), n=st.sampled_from([2, 3]), seed=st.integers(0, 2**16))
    def check(data: st.DataObject, n: int, seed: int) -> None:
        op, verb, shapes = cases(name, data.draw, n)
        dtypes = [np.float64] if op in PICKS else [np.float64, np.complex128]
        dtype, rng = data.draw(st.sampled_from(dtypes)), np.random.default_rng(seed)
        arrays = [[drawn(rng, shape, dtype) for shape in own] for own in shapes]
        clusters[n].run(check_gradients, verb, arrays, order)

    check()


# -- values ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.int32, np.bool_, np.float16, np.float32, np.complex64])
def test_values_are_those_of_the_collectives_and_new(pair: Cluster, dtype: Any) -> None:
    def step() -> None:
        rank = dist.init_process_group().rank
        x = np.array([rank, 1, 2]).astype(dtype)
        reductions = [ReduceOp.MAX] if dtype is np.bool_ else [SUM, ReduceOp.PRODUCT]
        for op in reductions:
            expected = x.copy()
            dist.all_reduce(expected, op)
            y = functional.all_reduce(tg.tensor(x), op)
            np.testing.assert_array_equal(y.data, expected)
            assert y.dtype == dtype
            assert not y.requires_grad
        np.testing.assert_array_equal(functional.broadcast(x).data, np.array([0, 1, 2], dtype))
        np.testing.assert_array_equal(x, np.array([rank, 1, 2]).astype(dtype))
        np.testing.assert_array_equal(
            functional.all_gather_single(x).data, dist.all_gather_single(x)
        )
        zeros = functional.reduce(x, 1, reductions[0]) if rank == 0 else None
        if rank == 1:
            functional.reduce(x, 1, reductions[0])
        assert zeros is None or not zeros.data.any()

    pair.run(step)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.complex64])
def test_gradients_have_the_dtype_of_the_tensor(pair: Cluster, dtype: Any) -> None:
    def step() -> Any:
        rank = dist.init_process_group().rank
        x = tg.tensor(np.array([1, 2]).astype(dtype), requires_grad=True)
        y: Any = functional.all_reduce(x, ReduceOp.AVG)
        np.real(y * (rank + 1)).sum().backward()
        assert y.dtype == dtype
        assert x.grad is not None
        return x.grad.data

    for gradient in pair.run(step):
        assert gradient.dtype == dtype
        np.testing.assert_array_equal(gradient, np.array([1.5, 1.5], dtype))


@pytest.mark.parametrize("op", [ReduceOp.MAX, ReduceOp.MIN])
def test_equal_extremes_share_the_gradient(pair: Cluster, op: ReduceOp) -> None:
    def step() -> list[float]:
        rank = dist.init_process_group().rank
        sign = 1.0 if op is ReduceOp.MAX else -1.0
        x = tg.tensor(sign * np.array([3.0, 2.0 + rank]), requires_grad=True)
        functional.all_reduce(x, op).sum().backward()
        assert x.grad is not None
        return list(x.grad.data)

    assert pair.run(step) == [[1.0, 0.0], [1.0, 2.0]]


def test_a_product_with_zeros_has_exact_gradients(pair: Cluster) -> None:
    def step() -> list[float]:
        rank = dist.init_process_group().rank
        x = tg.tensor([0.0, 0.0 if rank else 5.0], requires_grad=True)
        functional.all_reduce(x, ReduceOp.PRODUCT).sum().backward()
        assert x.grad is not None
        return list(x.grad.data)

    assert pair.run(step) == [[0.0, 0.0], [0.0, 10.0]]


def test_the_plain_collective_runs_where_no_gradient_is_wanted(pair: Cluster) -> None:
    """MAX of Tensors without a gradient sends no more than the collective does."""

    def sent(verb: Callable[..., object], x: Any) -> int:
        before = dist.world_group().statistics().bytes_sent
        verb(x, ReduceOp.MAX)
        return dist.world_group().statistics().bytes_sent - before

    def step() -> None:
        dist.init_process_group()
        x = tg.tensor(np.ones(2**17), requires_grad=True)
        with no_grad():
            without = sent(functional.all_reduce, x)
        assert without == sent(dist.all_reduce, x.data.copy())

    pair.run(step)


# -- what the ranks must agree on ------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted({*functional.__all__} - {"scatter"}))
def test_ranks_that_differ_in_requires_grad_hear_so_at_once(pair: Cluster, name: str) -> None:
    def step() -> None:
        rank = dist.init_process_group().rank
        x = tg.tensor([1.0, 2.0], requires_grad=rank == 0)
        several = name in ("all_to_all", "reduce_scatter")
        getattr(functional, name)([x, x] if several else x)

    with pytest.raises(CollectiveMismatchError) as raised:
        pair.run(step)
    for flag in (True, False):
        assert f"functional.{name}, requires_grad={flag}" in str(raised.value)


def test_backwards_in_another_order_are_a_mismatch_that_names_the_operations(
    pair: Cluster,
) -> None:
    def step() -> None:
        rank = dist.init_process_group().rank
        x = tg.tensor([1.0, 2.0], requires_grad=True)
        first = functional.all_reduce(x, label="first")
        second = functional.all_reduce(x)
        for y in (first, second) if rank else (second, first):
            y.sum().backward()

    with pytest.raises(
        CollectiveMismatchError, match=r"first, backward of functional.all_reduce \(operation 1\)"
    ) as raised:
        pair.run(step)
    assert "backward of functional.all_reduce (operation 2)" in str(raised.value)


def leaves_the_result_out(limit: float) -> None:
    rank = dist.init_process_group().rank
    x = tg.tensor([1.0, 2.0], requires_grad=True)
    y = functional.all_reduce(x, timeout=limit)
    if rank == 0:
        y.sum().backward()


def check_left_out(limit: float) -> None:
    """The limit is that of the forward, too, to which both ranks come."""
    with (
        Cluster(2) as cluster,
        pytest.raises(
            CallTimeoutError, match=r"backward of functional.all_reduce \(operation 1\)"
        ) as raised,
    ):
        cluster.run(leaves_the_result_out, limit)
    assert "rank 1" in str(raised.value)


def test_a_rank_whose_loss_leaves_the_result_out_is_named() -> None:
    with_more_time(check_left_out, 0.2, 4.0)


def test_a_factor_is_refused_with_the_way_to_write_it(pair: Cluster) -> None:
    def step() -> None:
        dist.init_process_group()
        functional.all_reduce(tg.tensor([1.0]), ReduceOp.PREMUL_SUM(2.0))  # type: ignore[arg-type]

    with pytest.raises(ValueError, match=r"multiply the Tensor by the factor"):
        pair.run(step)


def test_wrong_arguments_are_refused(pair: Cluster) -> None:
    def step() -> None:
        dist.init_process_group()
        x: Any = tg.tensor([1.0 + 1j], requires_grad=True)
        with pytest.raises(ValueError, match=r"MAX has no meaning for the dtype complex128"):
            functional.all_reduce(x, ReduceOp.MAX)
        with pytest.raises(TypeError, match=r"takes a list of Tensors, not Tensor"):
            functional.all_to_all(x)
        with pytest.raises(TypeError, match=r"label must be a str, not 3"):
            functional.all_reduce(x, label=3)  # type: ignore[arg-type]

    pair.run(step)


# -- programs --------------------------------------------------------------------------------------


def test_inside_a_distributed_backward(pair: Cluster) -> None:
    def step() -> Any:
        rank = dist.init_process_group().rank
        x = tg.tensor([1.0, 2.0], requires_grad=True)
        with dist_autograd.context() as context:
            y = functional.all_reduce(x)
            dist_autograd.backward(context, [(y * (rank + 1)).sum()])
            return dist_autograd.get_gradients(context)[x].data.tolist()

    assert pair.run(step) == [[3.0, 3.0], [3.0, 3.0]]


def test_in_a_group_of_some_ranks(clusters: dict[int, Cluster]) -> None:
    def step() -> Any:
        rank = dist.init_process_group().rank
        try:
            some = dist.new_group([2, 0])
            if rank == 1:
                return None
            x = tg.tensor([1.0 + rank], requires_grad=True)
            y = functional.broadcast(x, 2, some)
            parts = functional.gather(y * (rank + 1), 0, some)
            sum(part.sum() for part in parts).backward()  # type: ignore[union-attr]
            return y.item(), None if x.grad is None else x.grad.item()
        finally:
            dist.destroy_process_group()

    assert clusters[3].run(step) == [(3.0, 0.0), None, (3.0, 4.0)]


def test_second_derivatives_by_what_one_rank_alone_has(pair: Cluster) -> None:
    """The gradient on rank 0 is constant, and that on rank 1 depends on its weight."""

    def step() -> Any:
        rank = dist.init_process_group().rank
        x, weight = (tg.tensor(value, requires_grad=True) for value in (2.0, 3.0))
        y: Any = functional.all_reduce(x)
        loss = y * weight if rank else y
        (slope,) = tg.autograd.grad([loss], [x], create_graph=True)
        (slope * slope).backward()  # of 1 + weight
        return None if weight.grad is None else weight.grad.item()

    assert pair.run(step) == [None, 16.0]


def test_a_graph_that_is_kept_runs_back_twice(pair: Cluster) -> None:
    def step() -> Any:
        dist.init_process_group()
        x = tg.tensor([1.0], requires_grad=True)
        loss = functional.all_reduce(x).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        return x.grad and x.grad.item()

    assert pair.run(step) == [4.0, 4.0]


def in_a_block() -> tuple[str, str, bool]:
    dist.init_process_group()
    x = tg.tensor(np.ones(3), requires_grad=True)
    y = functional.all_reduce(x)
    with dist.coalesced():
        with pytest.raises(InvalidUseError) as forward:
            functional.all_reduce(x)
        with pytest.raises(InvalidUseError) as backward:
            y.sum().backward()
    functional.all_reduce(x).sum().backward()
    assert x.grad is not None
    return (
        str(forward.value),
        str(backward.value),
        bool((x.grad.data == dist.get_world_size()).all()),
    )


def test_a_block_of_coalesced_takes_no_differentiable_calls() -> None:
    """It would hand on values that are not reduced yet."""
    with Cluster(2) as cluster:
        for forward, backward, right in cluster.run(in_a_block):
            assert "functional.all_reduce cannot be coalesced" in forward
            assert "functional.all_reduce cannot be coalesced" in backward
            assert right


def keeps_inputs() -> bool:
    dist.init_process_group()
    x = tg.tensor(np.ones(3), requires_grad=True)
    hidden = x * 2.0
    seen = weakref.ref(hidden)
    total = functional.all_reduce(hidden).sum()
    del hidden
    gc.collect()
    gone = seen() is None
    total.backward()
    return gone


def test_the_graph_does_not_keep_the_inputs_of_a_sum() -> None:
    with Cluster(2) as cluster:
        assert cluster.run(keeps_inputs) == [True, True]
