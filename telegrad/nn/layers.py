"""Linear layers, and modules that are applied one after the other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, SupportsIndex, overload

import numpy as np

from telegrad.autograd import Tensor, as_tensor, ops
from telegrad.nn.module import Module, Parameter, drawn
from telegrad.types import DTypeLike


def linear(x: Any, weight: Any, bias: Any = None) -> Tensor:
    """Returns `x @ weight.T + bias`.

    Args:
        x: The input, shape (..., in_features).
        weight: The matrix, shape (out_features, in_features).
        bias: The shift, shape (out_features,), or None.

    >>> linear(np.array([1.0, 2.0]), np.array([[3.0, 4.0]]), np.array([0.5]))
    tensor([11.5])
    """
    x = as_tensor(x)
    shape = weight.shape
    if len(shape) != 2 or not x.ndim or (bias is not None and bias.shape != shape[:1]):
        broadcast: Tensor = x @ weight.T
        return broadcast if bias is None else broadcast + bias
    product: Tensor = ops.layers.linear(x, weight, bias)
    return product


class Linear(Module):
    """`x @ weight.T + bias`.

    Weight and bias are drawn uniformly from ±1/sqrt(in_features), in float64 and then rounded, so
    that one seed gives the same numbers in every dtype.

    Args:
        in_features: The length of the last axis of the input.
        out_features: The length of the last axis of the output.
        bias: True to add a bias.
        dtype: The dtype of the parameters; floating-point.
        rng: The generator of their first values; None for the generator of `manual_seed`.

    Raises:
        ValueError: A length is not positive, or `dtype` is not floating-point.

    Attributes:
        weight: The matrix, of shape (out_features, in_features).
        bias: The shift, of shape (out_features,), or None.

    >>> Linear(3, 2, rng=np.random.default_rng(0))(np.ones((5, 3), np.float32)).shape
    (5, 2)
    """

    _shown = "{in_features}, {out_features}"
    _usual: ClassVar = {"bias": True}
    bias: Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        dtype: DTypeLike = np.float32,
        rng: np.random.Generator | None = None,
    ) -> None:
        super().__init__()
        if in_features <= 0 or out_features <= 0:
            raise ValueError(
                f"a linear layer needs positive lengths, not {in_features} and {out_features}"
            )
        bound = 1 / math.sqrt(in_features)
        self.in_features = in_features
        self.out_features = out_features
        self.weight = drawn(rng, bound, (out_features, in_features), dtype)
        self.bias = drawn(rng, bound, (out_features,), dtype) if bias else None

    def forward(self, x: Any) -> Tensor:
        """Returns the output for `x` of shape (..., in_features)."""
        if x.shape[-1:] != (self.in_features,):
            raise ValueError(
                f"{self!r} needs an input of shape (..., {self.in_features}), not {x.shape}"
            )
        return linear(x, self.weight, self.bias)


class Identity(Module):
    """Returns its argument; it fills the place of a module that is not needed.

    >>> Identity()(np.array([1.0, 2.0]))
    array([1., 2.])
    """

    def forward(self, x: Any) -> Any:
        """Returns `x`."""
        return x


class Sequential(Module):
    """Modules applied one after the other; the parameters of the i-th are named `i.<name>`.

    Args:
        modules: The modules in their order; or one mapping from names to modules.

    Raises:
        TypeError: An item is not a Module.

    >>> from telegrad.nn import ReLU
    >>> model = Sequential(Linear(4, 8), ReLU(), Linear(8, 2))
    >>> [name for name, _ in model.named_parameters()]
    ['0.weight', '0.bias', '2.weight', '2.bias']
    """

    def __init__(self, *modules: Module | Mapping[str, Module]) -> None:
        super().__init__()
        first = modules[0] if len(modules) == 1 else None
        named = first if isinstance(first, Mapping) else dict(enumerate(modules))
        for name, module in named.items():
            self.add_module(str(name), module)  # type: ignore[arg-type]  # or it raises

    def append(self, module: Module) -> Sequential:
        """Adds `module` at the end and returns this object."""
        self.add_module(str(len(self)), module)
        return self

    def forward(self, x: Any) -> Any:
        """Returns the output of the last module."""
        for _, module in self.named_children():
            x = module(x)
        return x

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(tuple(self._modules.values()))

    @overload
    def __getitem__(self, index: SupportsIndex) -> Module: ...

    @overload
    def __getitem__(self, index: slice) -> Sequential: ...

    def __getitem__(self, index: SupportsIndex | slice) -> Module | Sequential:
        modules = tuple(self)
        return Sequential(*modules[index]) if isinstance(index, slice) else modules[index]
