"""The parts that upper packages keep on an agent, one of each class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar, final

from telegrad.errors import NotInitializedError

T = TypeVar("T")


class Find(Protocol):
    """Finds a part by its class."""

    def __call__(self, cls: type[T], /) -> T | None:
        """Returns the part; None where there is none."""


@final
class Attachments:
    """The attached parts, found by their class: `agent.attachments[Container]`.

    All methods may be called from any thread; each operation is atomic.

    Args:
        worker: This worker's name, for errors.

    Attributes:
        find: Returns the attached part of a class; None where there is none.
        rref_counts: Returns the numbers of owned and of user RRefs, for `statistics`.
    """

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._parts: dict[type[Any], Any] = {}
        self.find: Find = self._parts.get
        self.rref_counts: Callable[[], tuple[int, int]] = _no_rrefs

    def attach(self, part: object) -> None:
        """Keeps a part; a part of its class that was attached before is replaced."""
        self._parts[type(part)] = part

    def __getitem__(self, cls: type[T]) -> T:
        """Returns the attached part of a class.

        Raises:
            NotInitializedError: No such part was attached.
        """
        part: T | None = self._parts.get(cls)
        if part is None:
            raise NotInitializedError(f"{cls.__name__} does not run on agent {self._worker!r}")
        return part


def _no_rrefs() -> tuple[int, int]:
    return 0, 0
