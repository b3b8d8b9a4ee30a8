"""An array, and the count of the changes made in its memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from telegrad.types import Array

__all__ = ["Value"]


@final
class Value:
    """What a Tensor holds at one time, read and replaced as one: a recorded graph keeps it.

    The changes of one piece of memory are counted in one place, which views of it share: the
    Value that had the memory first.

    Args:
        array: The array.
        memory: The Value that counts, if another one had this memory before.

    Attributes:
        array: The array.
        counter: The Value that counts the changes, None for this one.
        changes: How often the memory was changed; counted in `counter` alone if there is one.
    """

    __slots__ = ("array", "changes", "counter")

    def __init__(self, array: Array, memory: Value | None = None) -> None:
        self.array = array
        self.counter: Value | None = memory if memory is None else memory.counter or memory
        self.changes = 0

    @property
    def version(self) -> int:
        """How often the memory was changed, by whatever Tensor."""
        return (self.counter or self).changes

    def bump(self) -> None:
        """Notes that the memory was changed."""
        (self.counter or self).changes += 1
