"""Calls that go out together: the same values as NumPy's, one operation, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telegrad import collectives as dist
from telegrad.collectives import ReduceOp, Work
from telegrad.collectives.messages import (
    GroupKey,
    OperationId,
    OperationMessage,
    Signature,
    pack_call,
)
from telegrad.errors import DecodeError, InvalidUseError
from telegrad.testing import Cluster
from telegrad.types import Array
from tests.collectives import remote_code
from tests.collectives.algorithms.test_algorithms import UFUNCS, meaningful
from tests.collectives.promises.test_programs import DTYPES, LAYOUTS, laid_out, values_of

VERBS = ["all_reduce", "broadcast", "all_gather_single", "reduce_scatter_single"]
# verb, op, dtype, root, layout, lengths of first axes, seed
Step = tuple[str, str, str, int, str, list[int], int]


@st.composite
def steps(draw: st.DrawFn, n: int) -> Step:
    dtype = draw(st.sampled_from(["float32", "int8", "complex64", ">f4", "bfloat16"]))
    ops = [op.name for op in ReduceOp if meaningful(op, DTYPES[dtype])]
    return (
        draw(st.sampled_from(VERBS)),
        draw(st.sampled_from(ops[:3])),
        dtype,
        draw(st.integers(0, n - 1)),
        draw(st.sampled_from(LAYOUTS)),
        draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)),
        draw(st.integers(0, 2**16)),
    )


def collect(step: Step) -> tuple[Callable[[], Array], Array]:
    """Makes one call; returns a function for its result, and NumPy's result."""
    verb, op_name, dtype_name, root, layout, lengths, seed = step
    r, n, dtype, op = dist.get_rank(), dist.get_world_size(), DTYPES[dtype_name], ReduceOp[op_name]
    rng = np.random.default_rng(seed)
    tail = () if layout == "0-d" else (2,)

    def combined(arrays: list[Array]) -> Array:
        total: Any = reduce(UFUNCS[op], arrays)
        return (total / n).astype(dtype) if op is ReduceOp.AVG else np.asarray(total)

    if verb == "all_gather_single":
        rows = [values_of(rng, (lengths[q], *tail), dtype) for q in range(n)]
        work = dist.all_gather_single(laid_out(rows[r], layout, verb), async_op=True)
        return work.wait, np.concatenate(rows)
    if verb == "reduce_scatter_single":
        whole = [values_of(rng, (sum(lengths), *tail), dtype) for _ in range(n)]
        own = laid_out(whole[r], layout, verb)
        work = dist.reduce_scatter_single(own, op, async_op=True, split_sizes=lengths)
        return work.wait, np.split(combined(whole), np.cumsum(lengths)[:-1])[r]
    head = () if layout == "0-d" else (lengths[0],)
    each = [values_of(rng, (*head, *tail), dtype) for _ in range(n)]
    own = laid_out(each[r], layout, verb)
    if verb == "broadcast":
        dist.broadcast(own, root)
        return lambda: own, each[root]
    dist.all_reduce(own, op)
    return lambda: own, combined(each)


def run_block(block: list[Step], async_op: bool) -> list[bytes]:
    """Runs a block and compares it; returns the bytes that must be equal on all ranks."""
    remote_code.begin()
    operations = dist.world_group().statistics().operations
    with dist.coalesced(async_op=async_op) as calls:
        found = [collect(step) for step in block]
    if async_op:
        calls.work.wait()
    assert dist.world_group().statistics().operations == operations + bool(block)
    for step, (get, wanted) in zip(block, found, strict=True):
        value = get()
        assert (value.dtype, value.shape) == (np.dtype(DTYPES[step[2]]), wanted.shape)
        rtol = 2e-2 if "reduce" in step[0] else 0
        np.testing.assert_allclose(value.astype(complex), wanted.astype(complex), rtol=rtol)
    same = zip(block, found, strict=True)
    return [get().tobytes() for step, (get, _) in same if step[0] != "reduce_scatter_single"]


@pytest.mark.parametrize(("n", "processes"), [(2, False), (3, False), (4, False), (2, True)])
@pytest.mark.long
def test_blocks(n: int, processes: bool) -> None:
    with Cluster(n, processes=processes) as cluster:

        @settings(max_examples=30)
        @given(st.lists(steps(n), max_size=8), st.booleans())
        def check(block: list[Step], async_op: bool) -> None:
            first, *others = cluster.run(run_block, block, async_op)
            assert all(each == first for each in others), "bitwise equal on all ranks"

        check()


def large_and_small() -> tuple[float, ...]:
    """Joins arrays, of which the sum of the bytes alone takes another algorithm."""
    remote_code.begin()
    r, n = dist.get_rank(), dist.get_world_size()
    arrays = [np.full(20_000 * i + 1, r + 1.0) for i in range(4)]
    sent = dist.world_group().statistics().messages_sent
    with dist.coalesced():
        for array in arrays:
            dist.all_reduce(array)
        dist.broadcast(arrays[0][:0], 1)
    dist.barrier()
    assert dist.world_group().statistics().messages_sent - sent < 8 * (n - 1)
    return tuple({float(value) for array in arrays for value in array})


def test_arrays_of_all_sizes_share_their_messages() -> None:
    with Cluster(3) as cluster:
        assert cluster.run(large_and_small) == [(6.0,)] * 3


def refused(func: Callable[[], object]) -> str:
    with pytest.raises(InvalidUseError) as raised:
        func()
    return str(raised.value)


def with_wrong_calls() -> list[float]:
    remote_code.begin()
    x, other = np.ones(3), np.ones(2)
    with dist.coalesced() as block:
        dist.all_reduce(x)
        assert "barrier cannot be coalesced" in refused(dist.barrier)
        assert "all_gather cannot be" in refused(lambda: dist.all_gather(x))
        assert "send cannot be" in refused(lambda: dist.send(x, 1))
        assert "recv cannot be" in refused(lambda: dist.irecv(x))
        assert "all_gather_object cannot" in refused(lambda: dist.all_gather_object(1))
        assert "recv_object_list cannot" in refused(lambda: dist.recv_object_list([1]))
        assert "send_object_list cannot" in refused(
            lambda: dist.send_object_list([1], 1 - dist.get_rank())
        )
        assert "monitored_barrier cannot" in refused(dist.monitored_barrier)
        assert "write async_op=True" in refused(lambda: dist.all_gather_single(x))
        assert "write coalesced(timeout=)" in refused(lambda: dist.all_reduce(x, timeout=1.0))
        work = dist.all_reduce(other, async_op=True)
        assert "wait for it after the block" in refused(work.wait)
        assert "wait for it after the block" in refused(lambda: asyncio.run(awaited(work)))
        with pytest.raises(InvalidUseError, match="coalesced cannot be"), dist.coalesced():
            pass
        assert "that has ended has a Work" in refused(lambda: block.work)
        with pytest.raises(ValueError, match="read-only"):
            dist.all_reduce(np.broadcast_to(x, (2, 3)))
    assert work.wait() is None
    assert "coalesced(async_op=True)" in refused(lambda: block.work)
    return [*x.tolist(), *other.tolist()]


async def awaited(work: Work[None]) -> None:
    await work


def test_wrong_calls() -> None:
    """They are refused one by one, and the others of the block go on."""
    with Cluster(2) as cluster:
        assert cluster.run(with_wrong_calls) == [[2.0] * 5] * 2


def raises_inside() -> list[float]:
    remote_code.begin()
    x = np.ones(2)
    with pytest.raises(ZeroDivisionError), dist.coalesced():
        work = dist.all_reduce(x, async_op=True)
        raise ZeroDivisionError
    assert "nothing was sent, since the block" in refused(work.wait)
    for first, second in ((x, x), (x, x[1:]), (x[:1], x)):
        with pytest.raises(InvalidUseError, match="use the same memory"), dist.coalesced():
            dist.all_reduce(first)
            dist.all_gather_single(second, async_op=True)
    assert dist.world_group().statistics().operations == 0
    pair = np.ones((2, 2))
    with dist.coalesced():  # memory between each other's items, and the same one read twice
        dist.all_reduce(pair[:, 0])
        dist.all_reduce(pair[:, 1])
    with dist.coalesced():
        twice = [dist.all_gather_single(x, async_op=True) for _ in range(2)]
    assert [work.wait().tolist() for work in twice] == [[1.0] * 4] * 2
    with dist.coalesced(async_op=True) as block:
        pass
    block.work.wait()
    return pair.ravel().tolist()


def test_a_block_that_raises_sends_nothing() -> None:
    with Cluster(2) as cluster:
        assert cluster.run(raises_inside) == [[2.0] * 4] * 2


def groups_and_tasks() -> list[float]:
    remote_code.begin()
    inner, outer, now = np.ones(1), np.ones(1), np.ones(1)
    pair, other = dist.new_group([0, 1]), dist.new_group([1, 0])
    with dist.coalesced():
        dist.all_reduce(outer)
        with dist.coalesced(pair):
            dist.all_reduce(inner, group=pair)
            dist.all_reduce(outer[:0])
            dist.all_reduce(now, group=other)
            assert (now.item(), inner.item()) == (2.0, 1.0)
        assert (inner.item(), outer.item()) == (2.0, 1.0)
    asyncio.run(outlives(now))
    return [inner.item(), outer.item(), now.item()]


async def outlives(array: Array) -> None:
    """A task that was made in a block, and calls when the block is over."""

    async def call() -> None:
        await dist.all_reduce(array, async_op=True)

    async with asyncio.TaskGroup() as tasks:
        with dist.coalesced():
            tasks.create_task(call())


def test_other_groups_and_later_calls_are_not_collected() -> None:
    with Cluster(2) as cluster:
        assert cluster.run(groups_and_tasks) == [[2.0, 2.0, 4.0]] * 2


def different_calls() -> list[str]:
    remote_code.begin()
    x = np.ones(3)
    with dist.coalesced(async_op=True) as block:
        dist.all_reduce(x)
        if dist.get_rank():
            work = dist.all_reduce(np.ones(2), ReduceOp.MAX, async_op=True)
        else:
            work = dist.all_reduce(np.ones(2), ReduceOp.MIN, async_op=True)
    return [remote_code.refusal(block.work.wait), remote_code.refusal(work.wait)]


def test_every_work_of_a_block_tells_how_the_calls_differ() -> None:
    with Cluster(2) as cluster:
        for said in cluster.run(different_calls):
            for words in said:
                assert words.startswith("CollectiveMismatchError: operation 1 of group 'world'")
                assert "called coalesced(all_reduce(op=SUM, dtype=float64, shape=(3,)), " in words
                assert "op=MIN" in words
                assert "op=MAX" in words


SIGNATURES = st.builds(
    Signature,
    operation=st.sampled_from(VERBS),
    root=st.integers(-1, 3),
    shape=st.none() | st.tuples(st.integers(0, 3)),
    parts=st.lists(st.tuples(st.integers(0, 3)), max_size=2).map(tuple),
    label=st.text(max_size=3),
)


@given(SIGNATURES, st.lists(SIGNATURES, max_size=3).map(tuple), st.none() | st.just((0, 1, 2)))
def test_calls_travel(alone: Signature, calls: tuple[Signature, ...], channel: Any) -> None:
    together = Signature(operation="coalesced", calls=calls)
    for called in (alone, together):
        message = OperationMessage(GroupKey("m", 1), OperationId(3, channel), pack_call(called), 4)
        assert OperationMessage.unpack(message.pack())[0].signature == called
    assert together.fits(together)
    assert not together.fits(Signature(operation="coalesced", calls=(*calls, alone)))


@pytest.mark.parametrize("k", range(10))
@pytest.mark.parametrize("wrong", [(3,), 1.5, [[[]]], {}, [None], b"x"])
def test_calls_that_are_none(k: int, wrong: object) -> None:
    body = Signature(operation="coalesced", calls=(Signature(operation="barrier"),)).to_wire()
    body[k] = wrong
    with pytest.raises(DecodeError):
        Signature.from_wire(body)
    with pytest.raises(DecodeError):
        Signature.from_wire(body[:k])


def beside_another_thread() -> list[float]:
    remote_code.begin()
    x, y = np.ones(2), np.ones(2)
    with dist.coalesced():
        dist.all_reduce(x)
        asyncio.run(asyncio.to_thread(dist.all_reduce, y))  # with a copy of the context
        assert y.tolist() == [2.0, 2.0]
        assert x.tolist() == [1.0, 1.0]
    return x.tolist()


def test_calls_of_other_threads_are_not_collected() -> None:
    with Cluster(2) as cluster:
        assert cluster.run(beside_another_thread) == [[2.0, 2.0]] * 2
