"""What an event of the counting tables asks for, carried out once their lock is released."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, final

from telegrad.rpc.future import Future
from telegrad.rpc.rref_protocol import Send
from telegrad.rpc.rref_reference import CONSTANTS

__all__ = ["Outcome"]


@final
@dataclass(slots=True)
class Outcome:
    """Of one event.

    Attributes:
        sends: Messages to post.
        freed: What is to be dropped: values, which are futures, and errors.
        orphans: Values that will never be created.
        settled: What waits for forks that are no longer pending.
    """

    sends: list[Send] = field(default_factory=list)
    freed: list[object] = field(default_factory=list)
    orphans: list[Future[Any]] = field(default_factory=list)
    settled: list[Callable[[], None]] = field(default_factory=list)

    @property
    def runs_code(self) -> bool:
        """Whether dropping what is freed may run code, which takes its time: a finaliser."""
        return not all(isinstance(each, Future) and _is_constant(each) for each in self.freed)

    def tell(self) -> None:
        """Tells whom it concerns here; blocks nowhere."""
        for orphan in self.orphans:
            orphan.try_set_exception(
                LookupError("the worker that was to create this value gave up or was lost")
            )
        for waiter in self.settled:
            waiter()


def _is_constant(value: Future[Any]) -> bool:
    return value.done() and not value.failed and type(value.value()) in CONSTANTS
