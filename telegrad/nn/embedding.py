"""Embedding: a table of vectors, looked up by integers."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from telegrad.arrays import as_array, namespace
from telegrad.autograd import Tensor, current_generator, ops
from telegrad.nn.module import Module, Parameter, check_floating
from telegrad.types import DTypeLike


def embedding(
    indices: Any, weight: Any, *, padding_idx: int | None = None, sparse: bool = False
) -> Tensor:
    """Returns the rows of `weight` that `indices` name.

    Args:
        indices: Integers from 0, of any shape.
        weight: The table, shape (rows, length).
        padding_idx: A row that gets no gradient; None for none.
        sparse: True to make the gradient of `weight` a `RowSparse`, which holds only the rows used.

    Returns:
        A Tensor of shape `(*indices.shape, length)`.

    Raises:
        TypeError: `indices` are not integers.
        IndexError: An index names no row.

    >>> table = np.array([[0.0, 0.0], [1.0, 2.0], [3.0, 4.0]])
    >>> embedding(np.array([2, 1]), table)
    tensor([[3., 4.],
            [1., 2.]])
    """
    found = ops.layers.embedding(weight, indices, padding_idx=padding_idx, sparse=sparse)
    return found if isinstance(found, Tensor) else Tensor(found)


class Embedding(Module):
    """A table of vectors, drawn from the normal distribution.

    Args:
        num_embeddings: The number of vectors.
        embedding_dim: The length of each vector.
        padding_idx: A row that starts at zero and is not trained; negative numbers count from the
            end.
        sparse: True to make the gradient of the table a `RowSparse`; SGD without momentum and
            Adagrad then step only the rows used.
        dtype: The dtype of the parameters; floating-point.
        rng: The generator of their first values; None for the generator of `manual_seed`.

    Raises:
        ValueError: A length is not positive, `padding_idx` names no row, or `dtype` is not
            floating-point.

    Attributes:
        weight: The table, shape (num_embeddings, embedding_dim).

    >>> table = Embedding(10, 4, padding_idx=0)
    >>> table([[1, 2, 0]]).shape, bool(table.weight.data[0].any())
    ((1, 3, 4), False)
    """

    _shown = "{num_embeddings}, {embedding_dim}"
    _usual: ClassVar = {"padding_idx": None}

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        padding_idx: int | None = None,
        sparse: bool = False,
        dtype: DTypeLike = np.float32,
        rng: np.random.Generator | None = None,
    ) -> None:
        super().__init__()
        if num_embeddings <= 0 or embedding_dim <= 0:
            raise ValueError(
                f"an embedding needs positive lengths, not {num_embeddings} and {embedding_dim}"
            )
        check_floating(dtype)
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ValueError(f"padding_idx {padding_idx} is none of {num_embeddings} rows")
        generator = current_generator() if rng is None else rng
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        self.sparse = sparse
        table = generator.normal(size=(num_embeddings, embedding_dim)).astype(dtype)
        if self.padding_idx is not None:
            table[self.padding_idx] = 0
        self.weight = Parameter(table)

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Any,
        *,
        freeze: bool = True,
        padding_idx: int | None = None,
        sparse: bool = False,
    ) -> Embedding:
        """Returns an `Embedding` with a copy of a given table.

        Args:
            embeddings: The table, shape (rows, length).
            freeze: True for a table that is not trained.
            padding_idx: A row that is not trained, as for the class.
            sparse: True for a `RowSparse` gradient, as for the class.
        """
        given: Any = embeddings.data if isinstance(embeddings, Tensor) else as_array(embeddings)
        made = cls(*given.shape, padding_idx=padding_idx, sparse=sparse, dtype=given.dtype)
        made.weight = Parameter(namespace(given).array(given), requires_grad=not freeze)
        return made

    def forward(self, indices: Any) -> Tensor:
        """Returns the vectors, shape `(*indices.shape, embedding_dim)`.

        Raises:
            TypeError: `indices` are not integers.
            IndexError: An index names no row.
        """
        return embedding(indices, self.weight, padding_idx=self.padding_idx, sparse=self.sparse)
