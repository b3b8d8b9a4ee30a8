"""When buckets are reduced, what is in them, and what is left when a pass fails."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telegrad.autograd import (
    Completion,
    GradientTarget,
    GraphTask,
    LocalGradients,
    Tensor,
    backward,
    grad,
    is_row_sparse,
    ops,
    tensor,
)
from telegrad.autograd.seams import graph_root
from telegrad.errors import AutogradError, CollectiveMismatchError, WorkerLostError
from telegrad.parallel.hooks import GradientBucket
from telegrad.parallel.join import UNEVEN
from telegrad.parallel.reducer import Reducer
from telegrad.rpc import Future
from telegrad.types import Array, DTypeLike
from tests.parallel.fake_group import FakeGroup, FakeJob, FakeModel

N = 3
T = TypeVar("T", bound=GradientTarget)


class Rank:
    """Four parameters of two items each, two to a bucket, and their reducer."""

    def __init__(self, group: FakeGroup, dtypes: Sequence[DTypeLike] = (np.float64,) * 4) -> None:
        self.group = group
        self.parameters = [tensor([1.0, 2.0], dtype=d, requires_grad=True) for d in dtypes]
        self.reducer = self.reduce()

    def reduce(self, limit: int = 32, sparse: Sequence[int] = ()) -> Reducer:
        return Reducer(FakeModel(self.parameters, sparse), limit, self.group)

    def loss(self, *used: int) -> Tensor:
        """A sum in which parameter i has the gradient 10 i + rank."""
        total: Any = 0.0
        for i in used:
            total = total + (self.parameters[i] * (10.0 * i + self.group.rank)).sum()
        return total  # type: ignore[no-any-return]

    def begin(self, *used: int) -> tuple[GradientTarget, list[Completion]]:
        """Runs a backward up to where it would wait."""
        return begin(self.loss(*used), LocalGradients())

    def gradients(self) -> list[float | None]:
        return [None if p.grad is None else float(p.grad.data[0]) for p in self.parameters]


def begin(loss: Tensor, target: T) -> tuple[T, list[Completion]]:
    GraphTask([graph_root(loss)], accumulate=target).run()
    return target, target.finish()


def make(n: int = N) -> tuple[FakeJob, list[Rank]]:
    job = FakeJob(n)
    return job, [Rank(group) for group in job.groups]


def backward_on(ranks: Sequence[Rank], used: Callable[[int], Sequence[int]]) -> None:
    """One backward on every rank; the waits are over as the last one has started all."""
    completions = [c for r, rank in enumerate(ranks) for c in rank.begin(*used(r))[1]]
    for completion in completions:
        completion.wait()


def everything(_: int) -> Sequence[int]:
    return range(4)


def test_gradients_are_averaged_on_every_rank() -> None:
    job, ranks = make()
    backward_on(ranks, everything)
    assert [rank.gradients() for rank in ranks] == [[1.0, 11.0, 21.0, 31.0]] * N
    assert job.groups[0].reductions == [
        f"DistributedDataParallel backward 1, bucket 0{UNEVEN}",
        f"DistributedDataParallel backward 1, bucket 1{UNEVEN}",
    ]
    assert job.groups[0].sizes[:2] == [2 * 2 + 2, 2 * 2 + 2]  # with one more item per parameter


def test_a_bucket_is_reduced_while_backward_computes_what_is_before_it() -> None:
    job, ranks = make(1)
    seen: list[tuple[int, int]] = []

    def note(i: int, _: Tensor) -> None:
        seen.append((i, len(job.groups[0].labels)))

    rank = ranks[0]
    # The graph is a chain: parameter 3 has its gradient first.
    x: Any = tensor([1.0, 1.0])
    for i, parameter in enumerate(rank.parameters):
        x = x * parameter
        parameter.register_hook(partial(note, i))
    begin(x.sum(), LocalGradients())
    assert seen == [(3, 0), (2, 0), (1, 1), (0, 1)]
    assert len(job.groups[0].reductions) == 2


def test_buckets_are_started_in_their_order_whichever_is_filled_first() -> None:
    job, ranks = make(1)
    rank = ranks[0]
    x: Any = tensor([1.0, 1.0])
    for i in (2, 3, 0, 1):  # 1 and 0 have their gradients first, which are in bucket 1
        x = x * rank.parameters[i]
    started: list[int] = []
    for parameter in rank.parameters:
        parameter.register_post_accumulate_hook(
            lambda *_: started.append(len(job.groups[0].labels))
        )
    begin(x.sum(), LocalGradients())
    assert started == [0, 0, 0, 2]
    assert [label.removesuffix(UNEVEN)[-1] for label in job.groups[0].reductions] == ["0", "1"]


def chain(rank: Rank, *used: int) -> Any:
    """A product in which the last parameter has its gradient first."""
    x: Any = tensor([1.0, 1.0])
    for i in used:
        x = x * rank.parameters[i]
    return x.sum()


def test_buckets_are_filled_in_the_order_of_the_first_rank_after_the_first_backward() -> None:
    job, ranks = make(2)
    used = (2, 0, 3), (0, 1, 2, 3)  # the first rank: 3, then 0, then 2; it has no 1
    for rank, parameters in zip(ranks, used, strict=True):
        begin(chain(rank, *parameters), LocalGradients())
    for rank in ranks:
        assert [bucket.members for bucket in rank.reducer.buckets] == [(3, 0), (2, 1)]
    backward_on(ranks, everything)
    assert [label.split(", ")[1] for label in job.groups[0].reductions] == [
        f"bucket {b}{UNEVEN}" for b in (0, 1, 0, 1)
    ]
    # All ranks asked for the order once.
    assert [len(set(group.labels)) for group in job.groups] == [5, 5]


def test_one_bucket_needs_no_order() -> None:
    job = FakeJob(1)
    rank = Rank(job.groups[0])
    rank.reducer = rank.reduce(limit=1000)
    begin(chain(rank, 0, 1, 2, 3), LocalGradients())
    assert len(job.groups[0].labels) == 1


def test_a_failed_pass_changes_no_order() -> None:
    job, ranks = make(2)
    target, _ = begin(chain(ranks[0], 2, 0, 3), LocalGradients())
    loss = WorkerLostError("lost", worker="worker1", incarnation=1, last_seen=0.0, reason="gone")
    job.fail(loss)
    target.abandon(loss)
    assert [bucket.members for bucket in ranks[0].reducer.buckets] == [(3, 2), (1, 0)]


def test_gradients_are_views_of_the_buffers_of_their_pass() -> None:
    job, ranks = make(2)
    backward_on(ranks, everything)
    first = [p.grad.data for p in ranks[0].parameters if p.grad is not None]
    buffers = [array for array, _ in job.groups[0].started[:2]]
    for gradient in first:
        assert sum(np.shares_memory(gradient, buffer) for buffer in buffers) == 1
    for rank in ranks:
        for parameter in rank.parameters:
            parameter.grad = None
    backward_on(ranks, everything)
    assert [gradient[0] for gradient in first] == [0.5, 10.5, 20.5, 30.5]  # not written again
    assert not any(np.shares_memory(array, first[0]) for array, _ in job.groups[0].started[3:])


@pytest.mark.parametrize("hooked", [False, True])
@pytest.mark.parametrize(
    ("used", "expected"),
    [
        ([(0, 3), (0, 3), (0, 1, 2, 3)], [1.0, 12 / 3, 22 / 3, 31.0]),  # zeros for the others
        ([(0,), (1,), (2,)], [0.0, 11 / 3, 22 / 3, None]),
        ([(0, 3)] * N, [1.0, None, None, 31.0]),  # left alone
    ],
)
def test_ranks_may_use_different_parameters(
    used: list[Sequence[int]], expected: list[float | None], hooked: bool
) -> None:
    ranks = make_hooked()[1] if hooked else make()[1]
    backward_on(ranks, lambda r: used[r])
    for rank in ranks:
        assert rank.gradients() == [None if x is None else pytest.approx(x) for x in expected]


def test_no_sync_keeps_gradients_apart_until_the_next_backward() -> None:
    job, ranks = make()
    for rank in ranks:
        with rank.reducer.no_sync(), rank.reducer.no_sync():
            backward([rank.loss(0, 1)])
        with rank.reducer.no_sync():
            backward([rank.loss(1)])
    assert not job.groups[0].labels
    assert [rank.gradients()[1] for rank in ranks] == [20.0, 22.0, 24.0]
    backward_on(ranks, lambda r: (1, 2))
    assert [rank.gradients() for rank in ranks] == [[1.0, 33.0, 21.0, None]] * N


def test_two_backwards_add_up() -> None:
    job, ranks = make()
    backward_on(ranks, everything)
    backward_on(ranks, everything)
    assert [rank.gradients() for rank in ranks] == [[2.0, 22.0, 42.0, 62.0]] * N
    assert job.groups[1].labels[-1] == f"DistributedDataParallel backward 2, bucket 1{UNEVEN}"
    assert ranks[0].reducer.passes == 2


def test_rows_of_a_table_that_was_not_declared_are_averaged_as_an_array() -> None:
    _, ranks = make()
    for rank in ranks:
        rows = ops.layers.embedding(rank.parameters[0], [1, 1], sparse=True)
        begin((rows * float(rank.group.rank)).sum(), LocalGradients())
    for rank in ranks:
        found = rank.parameters[0].grad
        assert isinstance(found, Tensor)
        assert found.data.tolist() == [0.0, 2.0]


def lookup(rank: Rank, words: Sequence[int]) -> Any:
    """A sum over rows of parameter 0, whose gradient at each looked-up row is rank + 1."""
    rows = ops.layers.embedding(rank.parameters[0], words, sparse=True)
    return (rows * (rank.group.rank + 1.0)).sum()


def make_sparse(n: int = 2) -> list[Rank]:
    ranks = make(n)[1]
    for rank in ranks:
        rank.reducer = rank.reduce(sparse=[0])
    return ranks


def test_rows_are_averaged_as_rows() -> None:
    ranks = make_sparse(3)
    for rank, words in zip(ranks, ([1, 1], [], [1, 0]), strict=True):
        loss = lookup(rank, words) if words else rank.loss(1)  # rank 1 looks nothing up
        begin(loss, LocalGradients())
    for rank in ranks:
        found: Any = rank.parameters[0].grad
        assert is_row_sparse(found)
        assert found.rows.tolist() == [0, 1]
        assert found.values.tolist() == [1.0, pytest.approx(5 / 3)]


def test_rows_of_no_sync_are_added_before_they_are_averaged() -> None:
    ranks = make_sparse()
    for rank in ranks:
        with rank.reducer.no_sync():
            backward([lookup(rank, [0])])
    for rank in ranks:
        begin(lookup(rank, [0, 1]), LocalGradients())
    for rank in ranks:
        found: Any = rank.parameters[0].grad
        assert found.to_dense().tolist() == [3.0, 1.5]


def test_a_table_with_a_dense_gradient_on_one_rank_has_one_on_all() -> None:
    ranks = make_sparse()
    begin(lookup(ranks[0], [1]), LocalGradients())
    begin(ranks[1].loss(0), LocalGradients())
    for rank in ranks:
        found = rank.parameters[0].grad
        assert isinstance(found, Tensor)
        assert found.data.tolist() == [0.5, 1.0]


def test_a_table_that_no_rank_uses_is_left_alone() -> None:
    ranks = make_sparse()
    for rank in ranks:
        begin(rank.loss(1, 2), LocalGradients())
    assert [rank.parameters[0].grad for rank in ranks] == [None, None]


# -- parameters that come and go -----------------------------------------------------------------


def replace(rank: Rank, i: int) -> None:
    rank.parameters[i] = tensor([1.0, 2.0], requires_grad=True)
    rank.reducer.watch(rank.parameters)


CHANGES: dict[str, Callable[[Rank, int], Any]] = {
    "freeze": lambda rank, i: rank.parameters[i].requires_grad_(False),
    "unfreeze": lambda rank, i: rank.parameters[i].requires_grad_(True),
    "replace": replace,
    "resize": lambda rank, i: setattr(rank.parameters[i], "data", np.ones(3 + i)),
    "nothing": lambda rank, i: None,
}


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(
    changes=st.lists(st.tuples(st.sampled_from(sorted(CHANGES)), st.integers(0, 3)), max_size=6),
    hooked=st.booleans(),
    averaged=st.lists(st.booleans(), min_size=6, max_size=6),
)
def test_after_any_changes_each_gradient_is_the_mean(
    changes: list[tuple[str, int]], hooked: bool, averaged: list[bool]
) -> None:
    ranks = make_hooked()[1] if hooked else make()[1]
    for (what, i), synchronised in zip(changes, averaged, strict=False):
        for rank in ranks:
            CHANGES[what](rank, i)
            for parameter in rank.parameters:
                parameter.grad = None
            rank.reducer.synchronised = synchronised
        trained = [p.requires_grad for p in ranks[0].parameters]
        if not any(trained):
            continue
        backward_on(ranks, everything)
        for rank in ranks:
            own = 1.0 if synchronised else float(rank.group.rank)
            assert rank.gradients() == [
                10.0 * i + own if needed else None for i, needed in enumerate(trained)
            ]


def test_an_unchanged_model_sends_nothing_for_it() -> None:
    job, ranks = make(2)
    for _ in range(3):
        backward_on(ranks, everything)
    assert len(job.groups[0].labels) == 3 * 2 + 1  # buckets, and the order once


def test_models_that_changed_differently_fail_on_every_rank() -> None:
    _, ranks = make(2)
    backward_on(ranks, everything)
    for i, rank in enumerate(ranks):
        rank.parameters.append(tensor([1.0, 2.0], requires_grad=True))
        rank.parameters[i].requires_grad_(False)
    for (completion,) in [rank.begin(2)[1] for rank in ranks]:
        with pytest.raises(CollectiveMismatchError, match="different models"):
            completion.wait()


# -- hooks ---------------------------------------------------------------------------------------


def mean_through(group: FakeGroup, seen: list[GradientBucket], bucket: GradientBucket) -> Any:
    """A hook that averages as is done without one."""
    seen.append(bucket)
    return group.start(bucket.buffer, bucket.label).then(lambda _: bucket.buffer)


def make_hooked(n: int = N) -> tuple[FakeJob, list[Rank], list[GradientBucket]]:
    job, ranks = make(n)
    seen: list[GradientBucket] = []
    for rank in ranks:
        rank.reducer.hook = partial(mean_through, rank.group, seen)
    return job, ranks, seen


def test_a_hook_averages_the_gradients_alone() -> None:
    job, ranks, seen = make_hooked(2)
    backward_on(ranks, everything)
    assert [rank.gradients() for rank in ranks] == [[0.5, 10.5, 20.5, 30.5]] * 2
    assert job.groups[0].sizes[:2] == [4, 4]  # without an item per parameter
    own = seen[:2]
    assert [(b.index, b.is_last, len(b.parameters)) for b in own] == [(0, False, 2), (1, True, 2)]
    assert own[0].parameters == (ranks[0].parameters[3], ranks[0].parameters[2])
    assert all(np.shares_memory(each, own[0].buffer) for each in own[0].gradients())


def test_a_hook_may_return_another_array() -> None:
    _, ranks = make(1)

    def twice(bucket: GradientBucket) -> Future[Array]:
        future: Future[Array] = Future()
        future.set_result(bucket.buffer * 2)
        return future

    ranks[0].reducer.hook = twice
    begin(ranks[0].loss(*range(4)), LocalGradients())
    assert ranks[0].gradients() == [0.0, 20.0, 40.0, 60.0]


def test_a_hook_does_not_get_rows() -> None:
    ranks = make_sparse()
    seen: list[GradientBucket] = []
    for rank in ranks:
        rank.reducer.hook = partial(mean_through, rank.group, seen)
        begin(lookup(rank, [1]) + rank.loss(1, 3), LocalGradients())
    found: list[Any] = [parameter.grad for parameter in ranks[0].parameters]
    assert found[0].to_dense().tolist() == [0.0, 1.5]
    assert (found[1].data[0], found[2], found[3].data[0]) == (10.5, None, 30.5)
    # The bucket of rows is the last one: the hook does not wait for it.
    assert [bucket.is_last for bucket in seen if bucket.index == 1] == [True, True]
    assert {bucket.index for bucket in seen} == {0, 1}


def failing(_: GradientBucket) -> Any:
    raise ArithmeticError("no average today")


def failing_later(_: GradientBucket) -> Any:
    future: Future[Array] = Future()
    future.set_exception(ArithmeticError("no average today"))
    return future


def of(value: Any) -> Callable[[GradientBucket], Any]:
    def hook(_: GradientBucket) -> Any:
        future: Future[Any] = Future()
        future.set_result(value)
        return future

    return hook


@pytest.mark.parametrize(
    ("hook", "error", "words"),
    [
        (failing, ArithmeticError, "no average today"),
        (failing_later, ArithmeticError, "no average today"),
        (lambda bucket: bucket.buffer, TypeError, "must return a Future of the averaged bucket"),
        (of(None), ValueError, "must return a bucket's average as an array of .*, not NoneType"),
        (of(np.zeros(3)), ValueError, r"of shape \(4,\) and dtype float64, not shape \(3,\) and"),
        (of(np.zeros(4, np.float32)), ValueError, "not shape .4,. and dtype float32"),
    ],
)
def test_a_hook_that_fails_ends_the_pass_on_every_rank(
    hook: Callable[[GradientBucket], Any], error: type[Exception], words: str
) -> None:
    job, ranks, _ = make_hooked(2)
    ranks[1].reducer.hook = hook
    waiting = ranks[0].begin(*range(4))[1]
    with pytest.raises(error, match=words):
        backward([ranks[1].loss(*range(4))])
    assert isinstance(job.aborted, error)
    assert ranks[1].gradients() == [None] * 4
    with pytest.raises(error):
        waiting[0].wait()


def test_grad_is_not_averaged() -> None:
    job, ranks = make()
    (found,) = grad(ranks[2].loss(1), ranks[2].parameters[1])
    assert found.data.tolist() == [12.0, 12.0]
    assert not job.groups[2].labels


# -- gradients kept elsewhere ------------------------------------------------------------------


class Kept(GradientTarget):
    """Like the passes of a context: each has gradients of its own."""

    def __init__(self, *earlier: Kept) -> None:
        super().__init__()
        self.arrays: dict[Tensor, Array] = {}
        self.before = earlier

    def __call__(self, tensor: Tensor, gradient: Any) -> None:
        self.arrays[tensor] = gradient

    def get(self, tensor: Tensor) -> Tensor | None:
        return Tensor(self.arrays[tensor]) if tensor in self.arrays else None

    def replace(self, tensor: Tensor, gradient: Tensor | None) -> None:
        self.arrays.pop(tensor, None)
        if gradient is not None:
            self.arrays[tensor] = gradient.data

    def earlier(self) -> Sequence[Kept]:
        return self.before


def test_the_target_of_the_pass_has_the_averages() -> None:
    _, ranks = make()
    targets = [begin(rank.loss(0, 3), Kept())[0] for rank in ranks]
    for rank, target in zip(ranks, targets, strict=True):
        assert rank.gradients() == [None] * 4
        assert [float(target.arrays[rank.parameters[i]][0]) for i in (0, 3)] == [1.0, 31.0]


def test_what_no_sync_left_in_earlier_passes_is_averaged_with_this_one() -> None:
    _, ranks = make()
    before = []
    for rank in ranks:
        with rank.reducer.no_sync():
            before.append(begin(rank.loss(0, 1), Kept())[0])
    for rank, first in zip(ranks, before, strict=True):
        begin(rank.loss(1, 2), Kept(first))
    for rank, first in zip(ranks, before, strict=True):
        assert not first.arrays, rank


# -- failures ----------------------------------------------------------------------------------


def fail(_: Tensor) -> None:
    raise ArithmeticError("no gradient today")


def test_a_failed_reduction_takes_all_gradients_away() -> None:
    job, ranks = make()
    for rank in ranks:
        with rank.reducer.no_sync():
            backward([rank.loss(0)])
    began = [rank.begin(*range(4)) for rank in ranks[:2]]  # the third is lost
    loss = WorkerLostError("lost", worker="worker2", incarnation=1, last_seen=0.0, reason="gone")
    job.fail(loss)
    for rank, (target, completions) in zip(ranks, began, strict=False):
        with pytest.raises(WorkerLostError, match="lost"):
            completions[0].wait()
        target.abandon(loss)
        assert rank.gradients() == [None] * 4
        for _ in range(2):
            with pytest.raises(
                AutogradError, match="since its backward 1 failed.*new process group"
            ):
                backward([rank.loss(3)])


def test_a_rule_that_raises_aborts_the_group() -> None:
    job, ranks = make()
    waiting = ranks[0].begin(*range(4))[1]
    parameter = ranks[1].parameters[0]

    parameter.register_hook(fail)
    with pytest.raises(ArithmeticError, match="no gradient today"):
        backward([ranks[1].loss(*range(4))])
    assert ranks[1].gradients() == [None] * 4
    assert isinstance(job.aborted, ArithmeticError)
    with pytest.raises(ArithmeticError):
        waiting[0].wait()


def test_a_failure_before_the_first_parameter_leaves_the_group_alone() -> None:
    job, ranks = make()
    loss = ranks[0].loss(0)

    loss.register_hook(fail)
    with pytest.raises(ArithmeticError):
        backward([loss])
    assert job.aborted is None
    backward_on(ranks, everything)


def test_a_pass_that_fails_when_all_is_averaged_is_heard_of_by_the_other_ranks() -> None:
    """They stepped, this rank did not, and all went on with parameters that differ."""
    job, ranks = make()
    targets = [rank.begin(*range(4))[0] for rank in ranks]
    assert job.reduced == 3  # two buckets, and the order for further passes
    targets[1].abandon(ArithmeticError("in a part of the pass elsewhere"))
    assert isinstance(job.aborted, ArithmeticError)
    with pytest.raises(AutogradError, match="since its backward 1 failed"):
        backward([ranks[1].loss(3)])
    with pytest.raises(ArithmeticError):
        backward([ranks[0].loss(3)])


def test_a_reduction_that_failed_stops_the_backward() -> None:
    job, ranks = make(2)
    rank = ranks[0]
    x: Any = tensor([1.0, 1.0])
    for parameter in rank.parameters:
        x = x * parameter
    # Its first bucket is under way when this hook is called.
    rank.parameters[1].register_hook(lambda _: job.fail(ArithmeticError("broken")))
    with pytest.raises(ArithmeticError, match="broken"):
        backward([x.sum()])
    assert rank.gradients() == [None] * 4
    assert len(job.groups[0].labels) == 1


def test_a_group_of_one_goes_on_after_a_failure() -> None:
    _, ranks = make(1)
    rank = ranks[0]

    with rank.parameters[0].register_hook(fail), pytest.raises(ArithmeticError):
        backward([rank.loss(*range(4))])
    assert rank.gradients() == [None] * 4
    backward([rank.loss(*range(4))])
    assert rank.gradients() == [0.0, 10.0, 20.0, 30.0]


def test_two_passes_at_once_are_refused() -> None:
    _, ranks = make()
    ranks[0].begin(0)
    with pytest.raises(AutogradError, match="while its backward 1 is under way; run one at a time"):
        ranks[0].begin(1)


def test_create_graph_is_refused() -> None:
    _, ranks = make(1)
    rank = ranks[0]
    loss = (rank.parameters[0] * rank.parameters[0]).sum()
    with pytest.raises(AutogradError, match=r"create_graph=True does not go through"):
        loss.backward(create_graph=True)
    with rank.reducer.no_sync():
        loss.backward(create_graph=True)


def test_a_task_that_accumulates_elsewhere_is_refused() -> None:
    _, ranks = make(1)
    loss = ranks[0].loss(0)
    task = GraphTask([graph_root(loss)], accumulate=lambda tensor, gradient: None)
    with pytest.raises(AutogradError, match="needs a GradientTarget to accumulate in"):
        task.run()


def test_a_new_reducer_takes_the_place_of_the_old_one() -> None:
    job, ranks = make(1)
    old, ranks[0].reducer = ranks[0].reducer, ranks[0].reduce(limit=1)
    ranks[0].begin(*range(4))
    assert len(job.groups[0].reductions) == 4
    assert old.passes == 0


def test_a_reducer_that_is_gone_reduces_nothing() -> None:
    job, ranks = make(2)
    gone = weakref.ref(ranks[0].reducer)
    del ranks[0].reducer
    assert gone() is None
    backward([ranks[0].loss(0)])
    assert not job.groups[0].labels


def test_a_pass_that_is_over_leaves_nothing_behind() -> None:
    _, ranks = make(1)
    gc.disable()
    try:
        target, _ = begin(ranks[0].loss(*range(4)), Kept())
        gone = weakref.ref(target)
        del target
        assert gone() is None
    finally:
        gc.enable()


def test_gradients_have_the_dtype_of_their_parameters() -> None:
    dtypes = (np.float32, np.float64, np.float32, np.float64)
    job = FakeJob(2)
    ranks = [Rank(group, dtypes) for group in job.groups]
    backward_on(ranks, everything)
    for rank in ranks:
        assert [p.grad.dtype for p in rank.parameters if p.grad is not None] == list(dtypes)
        assert rank.gradients() == [0.5, 10.5, 20.5, 30.5]
