"""`Parameter`: a tensor that a module owns and an optimizer steps."""

from __future__ import annotations

from telegrad.autograd import Tensor

__all__ = ["Parameter"]


class Parameter(Tensor):
    """A leaf that, assigned to an attribute of a `Module`, is found by its `parameters()`.

    Args:
        data: An array, shared, or what NumPy makes one of.
        requires_grad: False for one that is not trained.
    """

    __slots__ = ()

    def __init__(self, data: object, *, requires_grad: bool = True) -> None:
        super().__init__(data, requires_grad=requires_grad)

    def __repr__(self) -> str:
        return f"Parameter({super().__repr__()})"
