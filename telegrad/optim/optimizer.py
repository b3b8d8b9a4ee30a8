"""`Optimizer`: a pure update per parameter, and the two ways to apply it.

    step()             with each parameter's own `grad`
    apply(gradients)   with gradients from elsewhere: a distributed autograd context

Both replace arrays and never write into them, so graphs recorded before keep their values, and
several optimizers may step one parameter from several threads: each update is atomic.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from telegrad.arrays import check_devices
from telegrad.autograd import Gradient, Tensor
from telegrad.types import Array

__all__ = ["Optimizer", "State"]

State: TypeAlias = Mapping[str, Array]
"""What an optimizer remembers of one parameter; empty at first; replaced, never written into."""


class Optimizer(ABC):
    """Steps parameters; subclasses write `update`.

    Args:
        params: Leaves that need a gradient, each at most once; at least one.

    Raises:
        TypeError: One of them is no Tensor.
        ValueError: There are none, one is given twice, is no leaf, or needs no gradient.
    """

    def __init__(self, params: Iterable[Tensor]) -> None:
        self._params = _checked(params)
        self._states: dict[Tensor, State] = {}

    @property
    def params(self) -> tuple[Tensor, ...]:
        """The parameters, in the order given."""
        return self._params

    @abstractmethod
    def update(self, parameter: Array, gradient: Array, state: State) -> tuple[Array, State]:
        """Returns the new array and the new state; changes and keeps none of its arguments.

        Args:
            parameter: The present array.
            gradient: Of the same shape and dtype.
            state: What this returned last for this parameter; empty the first time.
        """

    def step(self) -> None:
        """Steps each parameter that has a `grad`; one without is left alone."""
        self.apply({p: p.grad for p in self._params if p.grad is not None})

    def apply(self, gradients: Mapping[Tensor, Gradient]) -> None:
        """Steps each own parameter that `gradients` has; what is not an own one is ignored.

        Args:
            gradients: By parameter, by identity; arrays or Tensors in the parameter's shape.

        Raises:
            ValueError: A gradient has another shape or is on another device; no parameter was
                stepped.
        """
        own = [(p, _array(gradients[p])) for p in self._params if p in gradients]
        for parameter, gradient in own:
            if gradient.shape != parameter.shape:
                raise ValueError(
                    f"a gradient of shape {gradient.shape} for a parameter of shape "
                    f"{parameter.shape}"
                )
            check_devices("a step", parameter.data, gradient)
        for parameter, gradient in own:
            self._apply_one(parameter, gradient)

    def _apply_one(self, parameter: Tensor, gradient: Array) -> None:
        def replace(array: Array) -> Array:  # runs under the parameter's lock, and so the state too
            state = self._states.get(parameter, {})
            exact = gradient.astype(array.dtype, copy=False)
            updated, self._states[parameter] = self.update(array, exact, state)
            return updated

        parameter.replace_data(replace)

    def zero_grad(self) -> None:
        """Sets the `grad` of every parameter to None."""
        for parameter in self._params:
            parameter.grad = None


def _array(gradient: Gradient) -> Array:
    return gradient.data if isinstance(gradient, Tensor) else gradient


def _checked(params: Iterable[Tensor]) -> tuple[Tensor, ...]:
    if isinstance(params, Tensor):
        raise TypeError("params is one tensor, not several; write [param]")
    found = tuple(params)
    if not found:
        raise ValueError("an optimizer needs at least one parameter")
    for i, parameter in enumerate(found):
        if not isinstance(parameter, Tensor):
            raise TypeError(f"parameter {i} is no Tensor but {type(parameter).__name__}")
        if not parameter.is_leaf or not parameter.requires_grad:
            raise ValueError(f"parameter {i} is no leaf that needs a gradient: {parameter!r}")
    if len(set(found)) != len(found):
        raise ValueError("a parameter is given twice")
    return found
