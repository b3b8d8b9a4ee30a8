"""Whether operations are recorded, as a ContextVar: threads and tasks do not disturb each other."""

from __future__ import annotations

from contextlib import ContextDecorator
from contextvars import ContextVar, Token
from typing import Final

__all__ = ["ENABLED", "GradMode", "enable_grad", "is_grad_enabled", "no_grad"]

ENABLED: Final[ContextVar[bool]] = ContextVar("telegrad_grad_enabled", default=True)
"""Read by what runs once for each operation; all others ask `is_grad_enabled`."""


def is_grad_enabled() -> bool:
    """Tells whether operations on tensors that need a gradient are recorded here."""
    return ENABLED.get()


class GradMode(ContextDecorator):
    """Sets the grad mode inside a `with` block or a decorated function; nests, restores at exit."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._tokens: list[Token[bool]] = []

    def _recreate_cm(self) -> GradMode:
        return GradMode(enabled=self._enabled)  # a decorated function may run in several threads

    def __enter__(self) -> None:
        self._tokens.append(ENABLED.set(self._enabled))

    def __exit__(self, *exc_info: object) -> None:
        ENABLED.reset(self._tokens.pop())


class no_grad(GradMode):
    """Inside, operations record nothing and their results need no gradient.

    >>> from telegrad.autograd import tensor
    >>> w = tensor([1.0], requires_grad=True)
    >>> with no_grad():
    ...     (w * 2).requires_grad
    False
    """

    def __init__(self) -> None:
        super().__init__(enabled=False)


class enable_grad(GradMode):
    """Inside, operations are recorded again, whatever the block around it says."""

    def __init__(self) -> None:
        super().__init__(enabled=True)
