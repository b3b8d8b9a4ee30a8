"""An array, and the count of the changes made in its memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from telegrad.types import Array

__all__ = ["Value", "Version"]


@final
class Version:
    """Counts the changes of one piece of memory; views of it share the counter."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def bump(self) -> None:
        """Notes that the memory was changed."""
        self.count += 1


@final
class Value:
    """What a Tensor holds at one time, read and replaced as one: a recorded graph keeps it."""

    __slots__ = ("array", "version")

    def __init__(self, array: Array, version: Version | None = None) -> None:
        self.array = array
        self.version = Version() if version is None else version
