"""The joint norm on CuPy arrays, in two launches, against that of NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telegrad import kernels, nn, optim, tensor
from tests.gpu.comparison import host, normal
from tests.gpu.launches import launches
from tests.kernels.strided import DTYPES, EDGES, agree, few, laid, layouts, small_grid

__all__ = ["small_grid"]

SIZES = st.lists(st.tuples(st.sampled_from(EDGES), st.sampled_from(DTYPES)), min_size=1, max_size=5)


@few
@given(SIZES, st.sampled_from([0.0, 0.5, 100.0, math.inf]), layouts)
def test_cupys_numbers_are_numpys(cupy: Any, sizes: Any, most: float, layout: str) -> None:
    arrays = [normal(i, n).astype(dtype) for i, (n, dtype) in enumerate(sizes)]
    there = [laid(cupy, x, layout) for x in arrays]
    found, expected = (kernels.joint_norm(each, most) for each in (there, arrays))
    for one, other in zip(found, expected, strict=True):
        agree(cupy, one, other, times=4, dtype=np.float32)
    for one, other in zip(
        kernels.scaled(there, found[1]), kernels.scaled(arrays, expected[1]), strict=True
    ):
        agree(cupy, one, other, times=4, dtype=np.float32 if one.itemsize > 2 else one.dtype)


@pytest.mark.usefixtures("small_grid")
@pytest.mark.parametrize("bad", [1.0, math.inf, math.nan, 1e30])
def test_more_chunks_than_blocks(cupy: Any, bad: float) -> None:
    arrays = [np.full(n, 0.5, np.float32) for n in (70_001, 3)]
    arrays[0][40_000] = bad
    norm, factor = kernels.joint_norm([cupy.asarray(x) for x in arrays], 1.0)
    wanted = np.linalg.norm(np.concatenate(arrays).astype(np.float64))
    np.testing.assert_allclose(host(norm), wanted, rtol=1e-6)
    np.testing.assert_allclose(host(factor), 1 / wanted, rtol=1e-5)


def test_launches_of_clipping_and_of_loss_scales(stand_in_cupy: Any) -> None:
    cupy = stand_in_cupy
    parameters: list[Any] = [
        tensor(cupy.ones((i, 3), dtype=np.float32), requires_grad=True) for i in range(1, 40)
    ]
    for p in parameters:
        p.grad = tensor(cupy.ones(p.shape, dtype=np.float32))
    with launches() as seen:
        nn.utils.clip_grad_norm_(parameters, 1.0)
    assert seen == ["norm_parts", "norm_finish", "flatten"]
    optimizer = optim.Adam(parameters)
    optimizer.step()  # makes the state
    with launches() as seen:
        _, factor = kernels.joint_norm([p.grad.data for p in parameters], 1.0)
        optimizer.step(scale=factor)
    assert seen == ["norm_parts", "norm_finish", "adam_step"]
    scale = optim.LossScale()
    scale.step(optimizer)
    with launches() as seen:
        scale.update()
        scale.step(optimizer)
    assert len(seen) < 20, seen  # for 39 parameters
    ours = ["flatten", "norm_parts", "norm_finish", "adam_step"]
    assert [name for name in seen if name in ours] == ours
