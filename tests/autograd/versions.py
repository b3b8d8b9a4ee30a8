"""The count of changes in place, which a rule that saved the array compares."""

from __future__ import annotations

from telegrad.autograd import Tensor

__all__ = ["version_of"]


def version_of(tensor: Tensor) -> int:
    """Returns the version of a tensor's array; views of one array share it."""
    return tensor._value.version
