"""What a rank called, in a form that two ranks can compare."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from telegrad.types import Shape

__all__ = ["Signature", "dtype_label"]

_FREE_SHAPE = frozenset({"all_gather"})  # each rank has one of its own
_TWINS = {"recv": "send"}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """One call of a collective operation, as every member must have made it.

    Attributes:
        operation: The verb.
        op: The name of the ReduceOp; empty where there is none.
        root: The rank in the job that the data comes from; -1 where there is none.
        dtype: The label of the dtype; empty where there is no array.
        shape: Of the array; None where there is none.
        label: What the caller calls it; empty where it said nothing.
    """

    operation: str
    op: str = ""
    root: int = -1
    dtype: str = ""
    shape: Shape | None = None
    label: str = ""

    def fits(self, other: Signature) -> bool:
        """Tells whether two ranks that called these take part in one operation.

        >>> three = Signature(operation="all_reduce", op="SUM", dtype="float32", shape=(3,))
        >>> three.fits(Signature(operation="all_reduce", op="SUM", dtype="float32", shape=(4,)))
        False
        """
        same = (self._verb, self.op, self.root, self.dtype, self.label) == (
            other._verb,
            other.op,
            other.root,
            other.dtype,
            other.label,
        )
        return same and (self.shape == other.shape or self.operation in _FREE_SHAPE)

    @property
    def _verb(self) -> str:
        return _TWINS.get(self.operation, self.operation)

    def __str__(self) -> str:
        """Writes it as a call.

        >>> print(Signature(operation="broadcast", root=1, dtype="float32", shape=(3,)))
        broadcast(src=1, dtype=float32, shape=(3,))
        """
        parts = [f"op={self.op}"] if self.op else []
        parts += [f"src={self.root}"] if self.root >= 0 else []
        parts += [f"dtype={self.dtype}", f"shape={self.shape}"] if self.shape is not None else []
        call = f"{self.operation}({', '.join(parts)})"
        return f"{call} for {self.label!r}" if self.label else call


def dtype_label(dtype: Any) -> str:
    """Returns a dtype in words that are the same on every host that lays it out the same.

    >>> import numpy as np
    >>> dtype_label(np.dtype("float32")), dtype_label(np.dtype(">f4"))
    ('float32', '>f4')
    """
    return dtype.str if dtype.str[0] == ">" else str(dtype)
