"""Embedding: what it looks up, and the gradients of the rows used."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from telegrad import nn, tensor
from telegrad.autograd import RowSparse
from tests.nn.functional_call import close, normal


def test_rows_are_looked_up() -> None:
    table = nn.Embedding(5, 3, dtype=np.float64, rng=np.random.default_rng(0))
    indices = np.array([[4, 0], [4, 1]])
    close(table(indices), table.weight.data[indices])
    close(table(indices.tolist()), table.weight.data[indices])
    close(table(tensor(indices)), nn.functional.embedding(indices, table.weight.data))
    assert table(np.zeros((0, 2), int)).shape == (0, 2, 3)
    assert nn.Embedding(5, 3).weight.dtype == np.float32
    assert list(table.state_dict()) == ["weight"]


@pytest.mark.parametrize("sparse", [False, True])
def test_the_padding_row_is_zero_and_stays(sparse: bool) -> None:
    table = nn.Embedding(4, 2, padding_idx=-1, sparse=sparse)
    assert table.padding_idx == 3
    assert not table.weight.data[3].any()
    table([3, 1]).sum().backward()
    gradient: Any = table.weight.grad
    dense = gradient.to_dense() if isinstance(gradient, RowSparse) else gradient.data
    assert isinstance(gradient, RowSparse) == sparse
    assert dense.tolist() == [[0, 0], [1, 1], [0, 0], [0, 0]]


def test_a_given_table() -> None:
    given = normal(4, 2)
    table = nn.Embedding.from_pretrained(given)
    assert not table.weight.requires_grad
    given[...] = 0
    assert table.weight.data.all()
    assert nn.Embedding.from_pretrained(tensor(given), freeze=False).weight.requires_grad


def test_messages() -> None:
    with pytest.raises(ValueError, match="positive lengths"):
        nn.Embedding(0, 2)
    with pytest.raises(ValueError, match="padding_idx 4 is none of 4 rows"):
        nn.Embedding(4, 2, padding_idx=4)
    with pytest.raises(ValueError, match="floating-point, not int64"):
        nn.Embedding(4, 2, dtype=np.int64)
    with pytest.raises(IndexError):
        nn.Embedding(4, 2)([4])
    with pytest.raises(TypeError, match="integers"):
        nn.Embedding(4, 2)([0.5])
