"""Hooks that send a part of the gradients and keep the rest, on ranks of a cluster."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import telegrad as tg
from telegrad import collectives as dist
from telegrad import nn
from telegrad.errors import TelegradError
from telegrad.parallel import (
    CommHook,
    DistributedDataParallel,
    ErrorFeedback,
    GradientBucket,
    allreduce_hook,
    int8_compress_hook,
    top_k_compress_hook,
)
from telegrad.testing import Cluster
from telegrad.types import Array
from tests.kernels.strided import few

N = 3
TENTH = partial(top_k_compress_hook, share=0.1)
HOOKS: list[Any] = [int8_compress_hook, TENTH]
IDS = ["8 bits", "the largest"]


@pytest.fixture
def ranks() -> Iterator[Cluster]:
    with Cluster(N) as cluster:
        yield cluster


def gradients(r: int, step: int, size: int) -> Array:
    return np.random.default_rng(100 * r + step).normal(size=size).astype(np.float32)


def in_steps(hook: CommHook, size: int, steps: int) -> tuple[list[Array], Array, int]:
    """Returns the averages of some steps, what is left after them, and the bytes sent."""
    group, state = dist.init_process_group(), ErrorFeedback()
    averages = []
    for step in range(steps):
        given_ = gradients(group.rank, step, size)
        bucket = GradientBucket(0, given_, (), True, group, f"step {step}")
        averages.append(hook(state, bucket).wait().copy())
    rest, sent = state.rest_of(bucket), group.statistics().bytes_sent
    dist.destroy_process_group()
    return averages, rest, sent


@few
@given(st.sampled_from(HOOKS), st.sampled_from([0, 1, 31, 257, 1025]), st.integers(1, 4))
def test_averages_and_rests_are_all_that_was_given(
    ranks: Cluster, hook: CommHook, size: int, steps: int
) -> None:
    found = ranks.run(in_steps, hook, size, steps)
    for averages, _, _ in found:
        for mine, first in zip(averages, found[0][0], strict=True):
            assert mine.tobytes() == first.tobytes()
    told = np.sum(found[0][0], axis=0) + np.mean([rest for _, rest, _ in found], axis=0)
    given_ = np.mean(
        [np.sum([gradients(r, i, size) for i in range(steps)], axis=0) for r in range(N)], axis=0
    )
    np.testing.assert_allclose(told, given_, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("hook", "share"), [(int8_compress_hook, 1 / 4), (TENTH, 1 / 5)])
def test_bytes_of_a_hook(ranks: Cluster, hook: CommHook, share: float) -> None:
    size = 100_000
    for _, _, sent in ranks.run(in_steps, hook, size, 1):
        assert sent == pytest.approx((N - 1) * 4 * size * share, rel=0.03)


def test_no_rest_of_a_bucket_that_is_no_more_is_kept() -> None:
    """The first backward has had more buckets; a rest of its last one stayed for ever."""
    a, b = (tg.tensor(np.zeros(3, np.float32), requires_grad=True) for _ in range(2))

    def rest_of(index: int, *parameters: tg.Tensor) -> Array:
        buffer = np.zeros(3 * len(parameters), np.float32)
        group = cast("dist.ProcessGroup", None)
        return state.rest_of(GradientBucket(index, buffer, parameters, False, group, "a bucket"))

    state = ErrorFeedback()
    first, later = rest_of(0, a), weakref.ref(rest_of(1, b))
    assert rest_of(0, a) is first
    assert later() is rest_of(1, b)
    assert rest_of(0, b, a).shape == (6,)
    assert later() is None


class Parts(nn.Module):
    """Two parameters, of which a call uses some."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Parameter(np.zeros(n, np.float32)) for n in (5, 300))

    def forward(self, slopes: dict[str, Array]) -> Any:
        return sum(np.sum(getattr(self, name) * slope) for name, slope in slopes.items())


USES = [["ab"] * N, ["a"] * N, ["b", "a", "a"], ["a"] * N, ["ab"] * N, ["b"] * N]  # by step, rank


def used_in_turns(hook: CommHook) -> tuple[Array, Array]:
    """Returns the averages of all steps, and the given gradients less the rests, of both parts."""
    group, state, module = dist.init_process_group(), ErrorFeedback(), Parts()
    model, buckets = DistributedDataParallel(module), []

    def kept(_: Any, bucket: GradientBucket) -> Any:
        buckets.append(bucket)
        return hook(state, bucket)

    model.register_comm_hook(state, kept)
    given_, found = ({"a": np.zeros(5), "b": np.zeros(300)} for _ in range(2))
    for step, uses in enumerate(USES):
        slopes = {
            name: gradients(group.rank, 10 * step + ord(name), given_[name].size)
            for name in uses[group.rank]
        }
        for name, slope in slopes.items():
            given_[name] += slope
        model(slopes).backward()
        for name, parameter in module.named_parameters():
            if parameter.grad is not None:
                found[name] += host(parameter.grad)
                parameter.grad = None
    rest = state.rest_of(buckets[-1])
    names = ["a" if each is module.a else "b" for each in buckets[-1].parameters]
    dist.destroy_process_group()
    averages, whole = (np.concatenate([each[name] for name in names]) for each in (found, given_))
    return averages, whole - rest


@pytest.mark.parametrize("hook", HOOKS, ids=IDS)
def test_the_rest_of_a_parameter_that_no_rank_uses_is_kept(ranks: Cluster, hook: CommHook) -> None:
    found = ranks.run(used_in_turns, hook)
    told = np.mean([each for _, each in found], axis=0)
    for averages, _ in found:
        np.testing.assert_allclose(averages, told, rtol=1e-5, atol=1e-5)


def of_another_dtype(hook: CommHook) -> bool:
    group = dist.init_process_group()
    bucket = GradientBucket(0, np.full(3, group.rank, np.complex64), (), True, group, "a bucket")
    found = hook(ErrorFeedback(), bucket).wait()
    dist.destroy_process_group()
    return bool((found == 1).all())


@pytest.mark.parametrize("hook", HOOKS, ids=IDS)
def test_complex_numbers_are_averaged_as_they_are(ranks: Cluster, hook: CommHook) -> None:
    assert ranks.run(of_another_dtype, hook) == [True] * N


def overflowing(hook: CommHook) -> tuple[bool, bool]:
    """One rank has a gradient that is not finite, in the first of two steps."""
    group, state = dist.init_process_group(), ErrorFeedback()
    finite = []
    for step in range(2):
        buffer = np.ones(10, np.float32)
        if group.rank == 1 and step == 0:
            buffer[3] = np.inf
        bucket = GradientBucket(0, buffer, (), True, group, f"step {step}")
        finite.append(bool(np.isfinite(hook(state, bucket).wait()).all()))
    dist.destroy_process_group()
    return finite[0], finite[1]


@pytest.mark.parametrize("hook", HOOKS, ids=IDS)
def test_a_loss_scale_sees_what_is_not_finite_and_the_next_step_is(
    ranks: Cluster, hook: CommHook
) -> None:
    assert ranks.run(overflowing, hook) == [(False, True)] * N


def host(value: Any) -> Array:
    return cast("Array", value.data)


# -- mistakes --------------------------------------------------------------------------------------


def mistakes() -> None:
    group = dist.init_process_group()
    bucket = GradientBucket(0, np.ones(4, np.float32), (), True, group, "a bucket")
    for hook in HOOKS:
        with pytest.raises(TypeError, match=r"register_comm_hook\(ErrorFeedback\(\), \w+_hook\)"):
            hook(cast("ErrorFeedback", None), bucket)
    for share in (0.0, -1.0, 1.5, np.nan):
        with pytest.raises(ValueError, match="share is a number above 0 and at most 1, not"):
            top_k_compress_hook(ErrorFeedback(), bucket, share=share)
    dist.destroy_process_group()


def test_a_mistake_is_refused(ranks: Cluster) -> None:
    ranks.run(mistakes)


def unlike_hooks(hooks: list[CommHook]) -> str:
    group = dist.init_process_group()
    model = DistributedDataParallel(nn.Linear(40, 10))
    hook = hooks[min(group.rank, 1)]
    state = None if hook is allreduce_hook else ErrorFeedback()
    model.register_comm_hook(state, hook)
    with pytest.raises(TelegradError) as caught:
        np.sum(model(np.ones((2, 40), np.float32))).backward()
    return str(caught.value)


@pytest.mark.parametrize("other", [partial(top_k_compress_hook, share=0.2), allreduce_hook])
def test_ranks_with_different_hooks_are_told_so(other: CommHook) -> None:
    with Cluster(N) as cluster:
        for said in cluster.run(unlike_hooks, [TENTH, other]):
            assert "bucket 0" in said


def fail(_: object, bucket: GradientBucket) -> Any:
    raise ArithmeticError("no average today")


def failing_on_one(hook: CommHook) -> str:
    rank = dist.init_process_group().rank
    model = DistributedDataParallel(nn.Linear(40, 10))
    model.register_comm_hook(ErrorFeedback(), fail if rank == 1 else hook)
    with pytest.raises(ArithmeticError) as caught:
        np.sum(model(np.ones((2, 40), np.float32))).backward()
    assert all(parameter.grad is None for parameter in model.parameters())
    return str(caught.value)


@pytest.mark.parametrize("hook", HOOKS, ids=IDS)
def test_a_rank_that_fails_fails_the_others(ranks: Cluster, hook: CommHook) -> None:
    for said in ranks.run(failing_on_one, hook):
        assert "no average today" in said
