"""Operations that leave arrays on the GPUs: the way of a call, and the base of their backends."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar, final

from telegrad.arrays import Moment, empty_beside
from telegrad.collectives.algorithms import dissemination
from telegrad.collectives.link import Backend, Link, Steps
from telegrad.collectives.messages import Signature
from telegrad.collectives.reduction import (
    JoinedArrays,
    PremulSum,
    Reduction,
    cut_rows,
    items_of,
)
from telegrad.types import Array, DTypeLike, Shape

T = TypeVar("T")

# Returns the call of a rank that was heard.
CallOf: TypeAlias = Callable[[int], Signature]


class DeviceBackend(Backend):
    """A backend for the caller's arrays: of CuPy, of any shape and strides, on one GPU.

    Args:
        link: The operation; all ranks have entered it.
        called: The moment of the call on the caller's stream.
    """

    def __init__(self, link: Link, called: Moment) -> None:
        self._link = link
        self._called = called

    async def barrier(self) -> None:
        """Returns when every rank has called it, whatever the GPUs do."""
        await dissemination.barrier(self._link)

    @abstractmethod
    async def send(self, array: Array) -> None:
        """Sends an array to the receiver of a message."""

    @abstractmethod
    async def receive(self, array: Array) -> int:
        """Replaces an array by that of the sender of a message; returns the sender's rank."""

    @property
    def _ranks(self) -> range:
        return range(self._link.size)

    def _shape_of(self, r: int) -> Shape:
        return self._link.call_of(r).shape or ()

    def _own_parts(self) -> list[Shape]:
        """Returns the shapes of the parts that all ranks have for this one."""
        return [self._link.call_of(r).parts[self._link.rank] for r in self._ranks]

    def _parts_to_scatter(self, root: int) -> Sequence[Shape]:
        """Returns the shapes of the root's parts; raises unless those of all ranks fit."""
        stated = self._link.call_of(root).parts
        for r in self._ranks:
            if stated[r : r + 1] != (self._shape_of(r),):
                raise self._link.mismatch(sorted({root, r}))
        return stated

    def _multiplied(
        self, parts: Sequence[Array], op: Reduction, whole: Array | None
    ) -> tuple[Sequence[Array], Array | None]:
        """Returns parts, and the array that they are cut of, times the factor of PREMUL_SUM."""
        if not isinstance(op, PremulSum):
            return parts, whole
        if whole is None:
            return [op.times(part) for part in parts], None
        whole = op.times(whole)
        return cut_rows(whole, [len(part) for part in parts]), whole

    def _new(self, shape: Shape, dtype: DTypeLike) -> Array:
        return empty_beside(self._called, shape, dtype)

    def _new_joined(self, shapes: Sequence[Shape], dtype: DTypeLike) -> JoinedArrays:
        return JoinedArrays(self._new((items_of(shapes),), dtype), shapes)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class OnDevice(Generic[T]):
    """The way of an operation that leaves its arrays on the GPU.

    Attributes:
        arrays: The arrays; the way is open if each rank has all of them on one GPU.
        run: Runs or enqueues the operation and returns its value.
        heard: True if it needs the calls of all ranks.
        by_nccl: False if NCCL has no such reduction for the dtype.
    """

    arrays: Sequence[Array]
    run: Callable[[DeviceBackend, CallOf], Steps[T]]
    heard: bool = False
    by_nccl: bool = True


def times(array: Array, op: Reduction) -> Array:
    """Returns the array, times the factor of PREMUL_SUM."""
    return op.times(array) if isinstance(op, PremulSum) else array


def is_contiguous(array: Array) -> bool:
    """Returns True if the items lie one after the other, in C order."""
    return bool(array.flags.c_contiguous)


def flat_of(array: Array) -> Array:
    """Returns the items as one contiguous axis: of the array itself, or of a copy."""
    return (array if is_contiguous(array) else array.copy()).reshape(-1)
