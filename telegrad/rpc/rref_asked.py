"""A creation that was asked for here: what becomes of it, and who hears of it where it fails."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, final

from telegrad.rpc.fresh import fresh_copy, without_frames
from telegrad.rpc.future import Future, new_future
from telegrad.rpc.unread import watch_from

if TYPE_CHECKING:
    from telegrad.rpc.rref_calls import RRefCalls
    from telegrad.rpc.rref_ids import ForkId
    from telegrad.rpc.rref_reference import Reference
    from telegrad.rpc.unread import Origin

__all__ = ["Asked"]


@final
class Asked:
    """Waits for the reply to one creation request; is called when it has come.

    It keeps the reference that it makes a value for no longer than others do. That one keeps it: so
    when it is garbage too, and the creation failed, and nobody was told, the log is.

    Args:
        calls: Of the agent that asked.
        reference: To what is created.
        function: What creates it.
        origin: Where the program asked; None where telegrad itself did.
        used: The fork that is kept until then.

    Attributes:
        future: Of the reply.
    """

    __slots__ = (
        "_calls",
        "_fork",
        "_function",
        "_heard",
        "_origin",
        "_owner",
        "_reference",
        "_rref",
        "_untold",
        "_used",
        "future",
    )

    def __init__(
        self,
        calls: RRefCalls,
        reference: Reference,
        function: str,
        origin: Origin | None,
        used: ForkId | None,
    ) -> None:
        self._calls = calls
        self._reference = weakref.ref(reference)
        self._owner, self._rref, self._fork = reference.owner, reference.rref, reference.fork
        self._function = function
        self._origin = origin
        self._used = used
        self._heard = False
        self._untold: Future[Any] | None = None  # what tells the log, once it is garbage
        self.future: Future[Any] | None = None

    def __call__(self) -> None:
        """Hears that the reply has come; decodes nothing: it may be on a loop."""
        future, self.future = self.future, None
        assert future is not None
        if self._used is not None:
            self._calls.unuse(self._used)
        if future.failed:
            future.add_done_callback(self._fails)
        elif self._fork is not None:
            self._calls.registry.created(self._fork)

    def hear(self) -> None:
        """Says that somebody uses the reference, who is told where the creation failed."""
        self._heard = True  # first: `fail` looks at it last
        untold, self._untold = self._untold, None
        if untold is not None:
            untold.hand_on()

    def fail(self, error: BaseException, *, delivered: bool = True) -> None:
        """Tells everybody that there is no value.

        Args:
            error: Why.
            delivered: False only if the request is known not to have been handed over.
        """
        calls = self._calls
        agent, label = calls.registry.agent, f"rpc.remote of {self._function} on "
        untold = new_future(agent.submit, f"{label}{self._owner.name!r}")
        # Its frames would keep the reference, and so it would never be told.
        untold.try_set_exception(without_frames(fresh_copy(error)))
        self._untold = watch_from(agent, untold, self._origin)
        if self._heard:
            self.hear()
        told = calls.of_owner(self._owner, error)
        calls.creation_failed(self._rref, self._fork, told, delivered=delivered)

    def _fails(self, done: Future[Any]) -> None:
        error = done.exception()
        if error is None:
            return
        kept = self._reference()
        if kept is not None:
            kept.creation = None
        self.fail(error)
