"""The counted reference in an RRef object, and the description of an RRef that travels."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, final

from telegrad.errors import InvalidUseError, OwnerLostError, ValueNotFoundError
from telegrad.rpc.call.user_call import UserCall, mode_of

if TYPE_CHECKING:
    from telegrad.errors import WorkerLostError
    from telegrad.rpc.future.future import Future
    from telegrad.rpc.rref.protocol import ForkId, RRefId
    from telegrad.rpc.rref.table import RRefRegistry
    from telegrad.types import WorkerInfo

__all__ = [
    "CONSTANTS",
    "Arrival",
    "CheckFound",
    "Counted",
    "Method",
    "Reference",
    "RunMethod",
    "call_method",
    "find_method",
    "gone_error",
    "name_of_class",
    "name_of_type",
    "owner_lost_error",
    "read_attribute",
    "released_error",
    "word_of",
]


# Values of these classes never change, and a copy says all there is to know of them.
CONSTANTS: Final = (type(None), bool, int, float, str, bytes)
LONGEST_CONSTANT = 256  # characters or bytes that are sent to somebody who may not want them
LARGEST_CONSTANT = 2**62


class Hears(Protocol):
    """Hears how a creation has ended; `Asked` is the one."""

    def hear(self) -> None:
        """Hears that the reference is used: its user is told of a failure."""


@final
class Reference:
    """The content of an RRef object: one handle of the owner's table or one fork of a user's.

    Attributes:
        registry: The RRefs among which it is counted.
        rref: The id of the value.
        fork: This user's fork; None on the owner.
        owner: The worker that holds the value.
        creation: The future of its creation if that was asked for here; None once it was read.
        asked: Hears how its creation has ended, until somebody uses this; see `Asked`.
        made: The time at which it was made, on the monotonic clock.
        methods: Names that are known to be methods of the value.
        whence: The place where the program got it, for the report of leaks; shown by `str`.
        released: True if it was let go, on purpose or as garbage.
    """

    __slots__ = (
        "__weakref__",
        "_constant",
        "_type_name",
        "asked",
        "creation",
        "fork",
        "made",
        "methods",
        "owner",
        "registry",
        "released",
        "rref",
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
        self.released = False  # first: what follows may be interrupted, and be let go all the same
        self.registry = registry
        self.rref = rref
        self.fork = fork
        self.owner = owner
        self._type_name = type_name
        self._constant: tuple[object] | None = None
        self.creation: Future[Any] | None = None
        self.asked: Hears | None = None
        self.made = time.monotonic()
        self.methods: frozenset[str] = frozenset()
        self.whence: object = "an argument of a call"

    @property
    def type_name(self) -> str:
        """The class of the value as `module.qualname` where known, else ""."""
        if self.creation is not None:
            self._read_creation()
        return self._type_name

    @type_name.setter
    def type_name(self, name: str) -> None:
        self._type_name = name

    @property
    def constant(self) -> tuple[object] | None:
        """The value, where it came with the news that it is there."""
        if self.creation is not None:
            self._read_creation()
        return self._constant

    def _read_creation(self) -> None:
        """Takes what the owner has said of the value, once it has."""
        creation = self.creation
        if creation is None or not creation.done() or creation._failed:
            return
        try:
            word = creation.value()
        except Exception:  # garbage: who wants to know more asks the owner
            word = ""
        if isinstance(word, str):
            self._type_name = word
        elif isinstance(word, list) and len(word) == 1 and type(word[0]) in CONSTANTS:
            self._type_name, self._constant = name_of_type(word[0]), (word[0],)
        self.creation = None  # last: others look at what is set by then

    def hears(self) -> None:
        """Notes that it is used: its user is told if its creation failed."""
        asked, self.asked = self.asked, None
        if asked is not None:
            asked.hear()

    def release(self) -> None:
        """Lets go; idempotent."""
        self._note()
        self.registry.drain()

    def _note(self) -> None:
        if not self.released:
            self.released = True
            self.registry.garbage.put(self.rref if self.fork is None else self.fork)

    __del__ = _note


class Counted:
    """The base of `RRef`: an object that stands for one reference.

    Attributes:
        _reference: The counted reference.
    """

    __slots__ = ("_reference",)

    _reference: Reference


@dataclass(frozen=True, slots=True)
class Arrival:
    """An RRef that came in a message, as its sender described it."""

    rref: RRefId
    fork: ForkId
    owner: WorkerInfo
    type_name: str
    failed: bool = False


def released_error(reference: Reference) -> InvalidUseError:
    """Returns the error for a use after `release()`."""
    return InvalidUseError(
        f"this RRef to a value at {reference.owner.name!r} was released; "
        "use it before release(), or inside its `with` block"
    )


def gone_error(rref: RRefId) -> ValueNotFoundError:
    """Returns the error for a value that its owner does not have."""
    return ValueNotFoundError(
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


def word_of(value: object) -> object:
    """Returns what an owner says of a value that it has created, to whoever had it created.

    The name of its class; or `[value]`, where that is small and never changes.

    >>> word_of(7), word_of([7])
    ([7], 'list')
    """
    cls = type(value)
    if cls in CONSTANTS:
        if cls is int:
            fits = -LARGEST_CONSTANT < value < LARGEST_CONSTANT  # type: ignore[operator]
        else:
            fits = cls not in (str, bytes) or len(value) <= LONGEST_CONSTANT  # type: ignore[arg-type]
        if fits:
            return [value]
    return name_of_class(cls)


# -- methods of an RRef's value: how a request names one, and how the owner finds and calls it ---

# Checks that what a value gave under a name may be called: (value, found).
CheckFound: TypeAlias = Callable[[object, object], None]
# (value, method, args, kwargs, check)
RunMethod: TypeAlias = Callable[[object, str, list[Any], dict[str, Any], CheckFound], UserCall]


@final
@dataclass(slots=True)  # frozen ones take three times as long to make
class Method:
    """One method of an RRef's value, with its arguments."""

    reference: Reference
    name: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    @property
    def label(self) -> str:
        """Its name in messages."""
        return f"{self.reference.type_name or 'RRef'}.{self.name}"

    def payload(self) -> dict[str, object]:
        """Returns the body of the request."""
        return {
            "rref": list(self.reference.rref),
            "method": self.name,
            "args": list(self.args),
            "kwargs": dict(self.kwargs),
        }


def call_method(
    value: object, method: str, args: list[Any], kwargs: dict[str, Any], check: CheckFound
) -> UserCall:
    """Returns what calls a method of a value; an attribute is read, where no arguments came.

    Raises:
        AttributeError: The value has none of this name.
        CallRefusedError: `check` refuses it.
        TypeError: It is an attribute, and there are arguments.
    """
    name, found = find_method(value, method)
    if callable(found):
        check(value, found)
        return UserCall(found, args, kwargs, mode_of(found), name)
    if method == "__call__":
        cls = type(value).__qualname__
        article = "an" if cls[:1].lower() in "aeiou" else "a"
        raise TypeError(f"{article} {cls} cannot be called; name a method: rref.rpc_sync().m(...)")
    if args or kwargs:
        raise TypeError(
            f"{name} is no method but {type(found).__name__}; an attribute is read without arguments"
        )
    return UserCall(lambda: found, name=name)


def find_method(value: object, method: str) -> tuple[str, object]:
    """Returns what a method is called in messages, and what the value gives under its name.

    Raises:
        AttributeError: The value has none of this name.
    """
    name = f"{name_of_class(type(value))}.{method}"
    return name, value if method == "__call__" else getattr(value, method)


def read_attribute(value: object, name: str) -> list[object]:
    """Returns the answer to `rref.read`."""
    found = getattr(value, name)
    return [True, None] if callable(found) else [False, found]
