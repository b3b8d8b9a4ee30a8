"""What an RRef object holds, and what is said of one that travels."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from telegrad.errors import OwnerLostError

if TYPE_CHECKING:
    from telegrad.errors import WorkerLostError
    from telegrad.rpc.future import Future
    from telegrad.rpc.rref_ids import ForkId, RRefId
    from telegrad.rpc.rref_registry import RRefRegistry
    from telegrad.types import WorkerInfo

__all__ = [
    "Arrival",
    "Counted",
    "Reference",
    "gone_error",
    "name_of_class",
    "name_of_type",
    "owner_lost_error",
    "released_error",
]


@final
class Reference:
    """What an RRef object holds: one handle of the owner's table or one fork of a user's.

    Attributes:
        registry: Where it is counted.
        rref: Which value.
        fork: This user's fork; None on the owner.
        owner: Who holds the value.
        type_name: The class of the value as `module.qualname` where known, else "".
        creation: The future of its creation where that was asked for here.
        untold: What tells the log that the creation failed, once nobody else can hear of it.
        made: When, on the monotonic clock.
        methods: Names that are known to be methods of the value.
        whence: Where the program got it, for the report of what is never let go; shown by `str`.
    """

    __slots__ = (
        "__weakref__",
        "_let_go",
        "creation",
        "fork",
        "made",
        "methods",
        "owner",
        "registry",
        "rref",
        "type_name",
        "untold",
        "whence",
    )

    def __init__(
        self,
        registry: RRefRegistry,
        rref: RRefId,
        fork: ForkId | None,
        owner: WorkerInfo,
        type_name: str = "",
    ) -> None:
        self._let_go = False
        self.registry = registry
        self.rref = rref
        self.fork = fork
        self.owner = owner
        self.type_name = type_name
        self.creation: Future[Any] | None = None
        self.untold: Future[Any] | None = None
        self.made = time.monotonic()
        self.methods: frozenset[str] = frozenset()
        self.whence: object = "an argument of a call"

    @property
    def released(self) -> bool:
        """Whether it was let go on purpose."""
        return self._let_go

    def hears(self) -> None:
        """Says that somebody uses it, who is told where its creation failed."""
        untold, self.untold = self.untold, None
        if untold is not None:
            untold.hand_on()

    def release(self) -> None:
        """Lets go; idempotent."""
        self._note()
        self.registry.drain()

    def _note(self) -> None:
        if not self._let_go:
            self._let_go = True
            self.registry.garbage.put(self.rref if self.fork is None else self.fork)

    def __del__(self) -> None:
        self._note()


class Counted:
    """The base of `RRef`: an object that stands for one reference.

    Attributes:
        reference: What is counted. For the library.
    """

    __slots__ = ("reference",)

    reference: Reference


@dataclass(frozen=True, slots=True)
class Arrival:
    """An RRef that came in a message, as its sender described it."""

    rref: RRefId
    fork: ForkId
    owner: WorkerInfo
    type_name: str
    failed: bool = False


def released_error(reference: Reference) -> RuntimeError:
    """Returns the error for a use after `release()`."""
    return RuntimeError(
        f"this RRef to a value at {reference.owner.name!r} was released; "
        "use it before release(), or inside its `with` block"
    )


def gone_error(rref: RRefId) -> LookupError:
    """Returns the error for a value that its owner does not have."""
    return LookupError(
        f"the value of RRef {rref.creator}.{rref.number} is not at its owner: its creation was "
        "given up, or every worker that held it let go or was lost"
    )


def owner_lost_error(owner: WorkerInfo, lost: WorkerLostError | None) -> OwnerLostError:
    """Returns the error for a value whose owner is lost."""
    reason = lost.reason if lost is not None else "lost"
    return OwnerLostError(
        f"worker {owner.name!r} (incarnation {owner.incarnation}) owned this RRef's value and "
        f"is lost ({reason}); create the value again on a living worker",
        worker=owner.name,
        incarnation=owner.incarnation,
        last_seen=0.0 if lost is None else lost.last_seen,
        reason=reason,
    )


def name_of_type(value: object) -> str:
    """Returns what is shown for a value's class."""
    return name_of_class(type(value))


def name_of_class(cls: type) -> str:
    """Returns `module.qualname`, or the bare name of a builtin."""
    return (
        cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    )
