"""Type aliases and the description of a worker, which all packages share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Array", "DTypeLike", "Rank", "Shape", "WorkerInfo", "WorkerName"]

Array: TypeAlias = npt.NDArray[Any]
"""A NumPy array, or a CuPy array: telegrad treats both alike."""

DTypeLike: TypeAlias = npt.DTypeLike
"""A dtype, or a name or type that NumPy makes one of."""

Shape: TypeAlias = tuple[int, ...]
"""The lengths of an array's axes."""

Rank: TypeAlias = int
"""A worker's place in the job, from 0."""

WorkerName: TypeAlias = str
"""A worker's name: `[A-Za-z0-9._-]`, up to 63 characters."""

Scalar: TypeAlias = bool | int | float | complex | np.generic


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A member of the job; equal by value.

    Attributes:
        name: The worker's name: `[A-Za-z0-9._-]`, up to 63 characters; names that
            differ only in case count as equal.
        rank: The worker's place in the job, from 0.
        incarnation: A number that tells this process from earlier and later ones of the same name.

    Example:
        >>> from telegrad import rpc
        >>> with rpc.init_rpc("trainer"):
        ...     me = rpc.get_worker_info()
        ...     me.name, me.rank
        ('trainer', 0)
    """

    name: WorkerName
    rank: Rank
    incarnation: int

    def __hash__(self) -> int:
        return self.incarnation  # unique; every message looks its worker up several times
