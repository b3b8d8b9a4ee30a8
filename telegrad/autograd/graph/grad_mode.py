"""Whether operations are recorded, as a ContextVar: threads and tasks do not disturb each other.

What wants to see each node as it is recorded (`recompute`, `detect_anomaly`) is a `Watcher`. It
stands in the same ContextVar, so that a step that nobody watches pays for no second one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ContextDecorator, contextmanager
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from telegrad.autograd.graph.node import Node

__all__ = [
    "ENABLED",
    "GradMode",
    "Watched",
    "Watcher",
    "enable_grad",
    "is_grad_enabled",
    "no_grad",
    "set_mode",
    "watched_by",
    "watchers",
]


class Watcher(ABC):
    """Sees what is recorded in its context."""

    @abstractmethod
    def recorded(self, node: Node, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Hears of a node that was just made.

        Args:
            node: What was recorded.
            inputs: What it was computed from; Tensors come as arrays.
            outputs: The arrays that it has given.
        """


class Watched(NamedTuple):
    """A grad mode with watchers; true where operations are recorded."""

    enabled: bool
    watchers: tuple[Watcher, ...]

    def __bool__(self) -> bool:
        return self.enabled

    def recorded(self, node: Node, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Tells the watchers, the outermost one first."""
        for watcher in self.watchers:
            watcher.recorded(node, inputs, outputs)


ENABLED: Final[ContextVar[bool | Watched]] = ContextVar("telegrad_grad_enabled", default=True)
"""Read by what runs once for each operation; all others ask `is_grad_enabled`."""


def is_grad_enabled() -> bool:
    """Tells whether operations on tensors that need a gradient are recorded here."""
    return bool(ENABLED.get())


def watchers() -> tuple[Watcher, ...]:
    """Returns who sees what is recorded here."""
    mode = ENABLED.get()
    return mode.watchers if isinstance(mode, Watched) else ()


@contextmanager
def watched_by(*seeing: Watcher) -> Iterator[None]:
    """Has these, and none else, see what is recorded in the block; leaves open whether it is."""
    token = ENABLED.set(Watched(is_grad_enabled(), seeing))
    try:
        yield
    finally:
        ENABLED.reset(token)


def set_mode(enabled: bool) -> Token[bool | Watched]:
    """Sets the grad mode and leaves the watchers; returns what `ENABLED.reset` wants after it."""
    mode = ENABLED.get()
    return ENABLED.set(Watched(enabled, mode[1]) if type(mode) is Watched else enabled)


class GradMode(ContextDecorator):
    """Sets the grad mode inside a `with` block or a decorated function; nests, restores at exit."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = bool(enabled)
        self._tokens: list[Token[bool | Watched]] = []

    def _recreate_cm(self) -> GradMode:
        return GradMode(enabled=self._enabled)  # a decorated function may run in several threads

    def __enter__(self) -> None:
        self._tokens.append(set_mode(self._enabled))

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
    """Inside, operations are recorded again, whatever the block around it says.

    >>> from telegrad.autograd import no_grad, tensor
    >>> x = tensor(2.0, requires_grad=True)
    >>> with no_grad(), enable_grad():
    ...     y = x * x
    >>> y.requires_grad
    True
    """

    def __init__(self) -> None:
        super().__init__(enabled=True)
