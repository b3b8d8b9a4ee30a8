"""Functions that move, choose and order items on arrays of the GPU: the samples of their rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from telegrad.autograd import Tensor
from tests.autograd.samples.axis_order import AXIS_ORDER
from tests.autograd.samples.diagonals import DIAGONALS, GRIDS
from tests.autograd.samples.differences import CONDITIONS, DIFFERENCES, WEIGHTING
from tests.autograd.samples.sample import Sample, Table
from tests.autograd.samples.selection import SELECTION
from tests.autograd.samples.sorting import ORDER_STATISTICS, SORTING
from tests.autograd.samples.splitting import SPLITTING
from tests.autograd.samples.stacking import STACKING
from tests.gpu.comparison import host, on_gpu

TABLE: Table = {
    **AXIS_ORDER,
    **CONDITIONS,
    **DIAGONALS,
    **DIFFERENCES,
    **GRIDS,
    **ORDER_STATISTICS,
    **SELECTION,
    **SORTING,
    **SPLITTING,
    **STACKING,
    **WEIGHTING,
}


def changed(tree: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(tree, (list, tuple)):
        return type(tree)(changed(part, change) for part in tree)
    if isinstance(tree, dict):
        return {name: changed(part, change) for name, part in tree.items()}
    return change(tree) if isinstance(tree, np.ndarray) else tree


def tensors(tree: Any) -> list[Tensor]:
    if isinstance(tree, (list, tuple)):
        return [x for part in tree for x in tensors(part)]
    return [tree] if isinstance(tree, Tensor) else []


def computed(function: Any, sample: Sample, place: Callable[[Any], Any]) -> list[Any]:
    """Results, and the gradients of what they are made of."""
    leaves: list[Tensor] = []

    def moved(x: Any) -> Any:
        array = place(x)
        if x.dtype.kind not in "fc":
            return array
        leaves.append(Tensor(array, requires_grad=True))
        return leaves[-1]

    def given(name: Any, x: Any) -> Any:
        return changed(x, place if name in sample.fixed else moved)

    arguments = [given(i, x) for i, x in enumerate(sample.arguments)]
    options = {name: given(name, x) for name, x in sample.options.items()}
    results = tensors(function(*arguments, **options))
    for seed, y in enumerate(results):
        if y.requires_grad:
            noise = np.random.default_rng(seed).normal(size=y.shape)
            y.backward(place(noise), retain_graph=True)
    return [*(y.data for y in results), *(x.grad for x in leaves if x.grad is not None)]


@pytest.mark.parametrize("function", TABLE, ids=lambda function: function.__name__)
def test_values_and_gradients_are_those_of_numpy(xp: Any, function: Any) -> None:
    for sample in TABLE[function]:
        there = computed(function, sample, xp.asarray)
        here = computed(function, sample, lambda x: x)
        assert all(on_gpu(x) for x in there)
        assert len(there) == len(here)
        for one, other in zip(there, here, strict=True):
            np.testing.assert_allclose(host(one), other, rtol=1e-12, atol=1e-14)
