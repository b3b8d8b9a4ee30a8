"""A sweep: work that is done in parts, one for each turn of the loop, until none is left."""

from __future__ import annotations

from collections.abc import Callable
from typing import final


@final
class Sweep:
    """Does a part of some work each time it is called, and the rest in the loop's next turns.

    What else the loop has to do comes between two parts. All calls are the loop's.

    Args:
        part: Does a part.
        is_left: Returns True if there is more.
        after: Calls a function on the loop, some seconds later.

    Example:
        >>> later, left = [], ["a", "b"]
        >>> sweep = Sweep(left.pop, lambda: bool(left), lambda seconds, call: later.append(call))
        >>> sweep(), left, len(later)
        (None, ['a'], 1)
        >>> later.pop()(), left, len(later)
        (None, [], 0)
    """

    __slots__ = ("_after", "_goes_on", "_is_left", "_part")

    def __init__(
        self,
        part: Callable[[], object],
        is_left: Callable[[], bool],
        after: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self._part = part
        self._is_left = is_left
        self._after = after
        self._goes_on = False

    def __call__(self) -> None:
        """Does a part; sees to it that the next one follows."""
        self._part()
        if self._is_left() and not self._goes_on:
            self._goes_on = True
            self._after(0.0, self._go_on)

    def _go_on(self) -> None:
        self._goes_on = False
        self()
