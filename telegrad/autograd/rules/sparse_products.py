"""Products with sparse matrices, which are constant: the gradient is that of the dense factor."""

from __future__ import annotations

from telegrad.arrays import sparse_product
from telegrad.autograd.extend import Operation, primitive

__all__: list[str] = []

product: Operation  # declared, as its rule names it

# fmt: off
product = primitive("sparse_product", sparse_product, "dense", stands_for=(sparse_product,), complex_rule="holomorphic", options={"matrix": None},
                    dense=lambda g, matrix: product(g, matrix=matrix.T))
# fmt: on
