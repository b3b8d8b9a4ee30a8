"""The backend of ranks that have a GPU each: NCCL runs the operations on the GPUs' arrays.

A method enqueues and returns: it waits for no GPU. It may be called once all ranks are known to
have entered the same operation, as NCCL compares nothing and a kernel without its counterparts
never ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import final

from telegrad.arrays import Communicator, Moment
from telegrad.collectives.algorithms import direct
from telegrad.collectives.link import Link
from telegrad.collectives.on_device import DeviceBackend, flat_of, is_contiguous, times
from telegrad.collectives.reduction import PremulSum, ReduceOp, Reduction, combining
from telegrad.types import Array, Shape


@final
class NcclBackend(DeviceBackend):
    """The backend of one operation.

    Args:
        link: The operation; all ranks have entered it.
        communicator: The connections between the GPUs of all ranks.
        called: The moment of the call on the caller's stream.
    """

    def __init__(self, link: Link, communicator: Communicator, called: Moment) -> None:
        super().__init__(link, called)
        self._communicator = communicator

    async def broadcast(self, flat: Array, root: int) -> None:
        """Replaces `flat` by that of rank `root`."""
        with self._in_place(flat) as own:
            self._communicator.broadcast(own, root)

    async def all_reduce(self, flat: Array, op: Reduction) -> None:
        """Replaces `flat` by the reduction over all ranks, combined in NCCL's order."""
        with self._in_place(flat, op) as own:
            self._communicator.all_reduce(own, combining(op).value)

    async def reduce(self, flat: Array, op: Reduction, root: int) -> None:
        """Replaces `flat` at rank `root` by the reduction over all ranks."""
        if self._link.rank == root:
            with self._in_place(flat, op) as own:
                self._communicator.reduce(own, combining(op).value, root)
        else:
            with self._communicator.after(self._called):
                self._communicator.reduce(flat_of(times(flat, op)), combining(op).value, root)

    async def all_gather(
        self, array: Array, shape_of: Callable[[int], Shape] | None = None, *, heard: bool = False
    ) -> list[Array]:
        """Returns a copy of each rank's array; needs the calls of all ranks."""
        shapes = list(map(shape_of or self._shape_of, self._ranks))
        found = self._new_joined(shapes, array.dtype)
        if len(set(shapes)) > 1:
            self._exchange([array] * len(found), found)
        else:
            with self._with_outputs():
                self._communicator.all_gather(flat_of(array), found.flat)
        return found

    async def gather(self, array: Array, root: int) -> list[Array] | None:
        """Returns a copy of each rank's array at rank `root`, None elsewhere."""
        mine = self._link.rank == root
        found = [self._new(self._shape_of(r), array.dtype) for r in self._ranks if mine]
        with self._with_outputs():
            received = {r: each.reshape(-1) for r, each in enumerate(found)}
            self._communicator.exchange({root: flat_of(array)}, received)
        return found if mine else None

    async def scatter(self, flat: Array, parts: Sequence[Array], root: int) -> None:
        """Replaces `flat` by the part that rank `root` has for this one; compares all shapes."""
        self._parts_to_scatter(root)
        with self._in_place(flat) as own:
            sent = {r: flat_of(part) for r, part in enumerate(parts)}
            self._communicator.exchange(sent, {root: own})

    async def all_to_all(self, parts: Sequence[Array], whole: Array | None = None) -> list[Array]:
        """Returns the parts that all ranks have for this one."""
        direct.check_wanted(self._link)
        found = self._new_joined(self._own_parts(), parts[0].dtype)
        self._exchange(parts, found)
        return found

    async def reduce_scatter(
        self, parts: Sequence[Array], op: Reduction, whole: Array | None = None
    ) -> Array:
        """Returns the reduction of the parts that all ranks have for this one, in NCCL's order."""
        own = parts[self._link.rank]
        out = self._new(own.shape, own.dtype)
        with self._with_outputs():
            into = out.reshape(-1)
            parts, whole = self._multiplied(parts, op, whole)
            name = combining(op).value
            if whole is not None and len({part.shape for part in parts}) == 1:
                self._communicator.reduce_scatter(flat_of(whole), into, name)
            else:
                self._communicator.reduce_parts(list(map(flat_of, parts)), into, name)
        return out

    async def send(self, array: Array) -> None:
        """Sends an array to the receiver, the second of the communicator's two ranks."""
        with self._communicator.after(self._called):
            self._communicator.exchange({1: flat_of(array)}, {})

    async def receive(self, array: Array) -> int:
        """Replaces an array by that of the sender, the first of two ranks; returns its rank."""
        with self._in_place(array) as own:
            self._communicator.exchange({}, {0: own})
        return await self._link.sender()

    def _exchange(self, parts: Sequence[Array], found: Sequence[Array]) -> None:
        """Sends a part to each rank, and writes what each sends to an array."""
        with self._with_outputs():
            sent = {r: flat_of(part) for r, part in enumerate(parts)}
            received = {r: each.reshape(-1) for r, each in enumerate(found)}
            self._communicator.exchange(sent, received)

    @contextmanager
    def _with_outputs(self) -> Iterator[None]:
        """Runs a block that enqueues after all that the caller's stream has to do by now.

        The memory of a new array may have been that of an old one, which the stream still uses.
        """
        with self._called.current():
            allocated = Moment(self._called.number)
        with self._communicator.after(self._called, allocated):
            yield

    @contextmanager
    def _in_place(self, array: Array, op: Reduction = ReduceOp.SUM) -> Iterator[Array]:
        """Yields the items as one contiguous axis; afterwards, they are those of the array.

        Those of PREMUL_SUM are multiplied before.
        """
        with self._communicator.after(self._called):
            if isinstance(op, PremulSum):
                array[...] = op.times(array)
            flat = flat_of(array)
            yield flat
            if not is_contiguous(array):
                array[...] = flat.reshape(array.shape)
