"""Steps go over big arrays block by block: what comes out is what comes out of all at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from telegrad import tensor
from telegrad.optim import optimizer as blocks
from tests.optim.test_formulas import every_case


def stepped(monkeypatch: Any, block_bytes: int, make: Any, options: Any, grads: Any) -> Any:
    """The parameter and the state after steps in blocks of so many bytes."""
    monkeypatch.setattr(blocks, "BLOCK_BYTES", block_bytes)
    start = np.random.default_rng(1).standard_normal(grads[0].shape).astype(np.float32)
    x = tensor(start, requires_grad=True)
    optimizer = make([x], **options)
    for g in grads:
        before, kept = x.data, x.data.copy()
        optimizer.apply({x: g})
        np.testing.assert_array_equal(before, kept)  # a graph may hold it
    return x.data, optimizer.state_dict()["state"][0]


@every_case
@pytest.mark.parametrize("shape", [(7, 30), (211,), (1, 97), (5, 3, 4), (0, 4)])
def test_blocks_change_nothing(
    monkeypatch: Any, make: Any, options: Any, shape: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(2)
    grads = [rng.standard_normal(shape).astype(np.float32) for _ in range(3)]
    whole, kept = stepped(monkeypatch, 1 << 20, make, options, grads)
    for turned in (grads, [np.asfortranarray(g) for g in grads]):
        found, state = stepped(monkeypatch, 256, make, options, turned)
        np.testing.assert_array_equal(found, whole)
        assert state.keys() == kept.keys()
        for key, value in state.items():
            np.testing.assert_array_equal(value, kept[key])


def test_blocks_are_views_of_all_rows() -> None:
    a, b = np.zeros((1000, 100)), np.zeros((1000, 100), np.float32)
    found = list(blocks.in_blocks(a, b))
    assert len(found) == 4
    for one, other in found:
        assert one.nbytes <= blocks.BLOCK_BYTES
        one += 1
        other += 1
    assert a.min() == a.max() == b.min() == b.max() == 1


def test_a_long_row_is_a_block() -> None:
    assert [x.shape for (x,) in blocks.in_blocks(np.zeros((2, 10**5)))] == [(1, 10**5)] * 2


def test_small_arrays_are_left_whole() -> None:
    for a in (np.zeros(()), np.zeros((3, 4)), np.zeros((0, 5))):
        ((found,),) = blocks.in_blocks(a)
        assert found is a
