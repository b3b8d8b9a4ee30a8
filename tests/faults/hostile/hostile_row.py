"""One line of the table of hostile cases: a verb that waits, and which worker's loss ends it.

witness   rank 0: hosts the coordinator, has no part in any verb, goes on working
caller    waits in the verbs
callee    what they wait for, or through whom
owner     what the callee waits for, or where an argument or another answer is
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from telegrad.errors import EvictedError, OwnerLostError, WorkerLostError
from tests.faults.remote_code import gate

__all__ = ["ROLES", "VICTIMS", "Row", "Table", "lost", "prepared", "row"]

ROLES = ("witness", "caller", "callee", "owner")  # by rank
VICTIMS = ROLES[1:]

Ends = Mapping[str, type[WorkerLostError] | type[Exception]]
Wait = Callable[[str], object]
W = TypeVar("W", bound=Wait)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A verb in its middle.

    Attributes:
        name: Of the row, and of the gates that its functions stop at.
        covers: The public names that it stands for.
        wait: Calls the verb and waits; what it returns does not matter, what it raises does.
        at: The roles that call it.
        held: The roles where a function of the tests is stopped at the gate of the row's name.
        middle: Tells, where `wait` was called, whether it waits; None where `held` says enough.
        ends: The error at those who wait, by the victim; whose loss is no reason is not in it.
        cancels: The roles where the held function is told that nobody wants its value, by victim.
        prepare: What the members do before, all of them at once; its result is `prepared(name)`.
        members: Who prepares.
        via: The roles where a function that was called waits in its turn, and notes how that ended.
        given_up: The error at a caller of the verb that is given up itself; None for none.
        cut_off: The same where it was cut off, and has given up the others before it hears that.
        refused: The error of a call of the verb after that.
    """

    name: str
    covers: tuple[str, ...]
    wait: Wait
    at: tuple[str, ...] = ("caller",)
    held: tuple[str, ...] = ("callee",)
    middle: Callable[[str], bool] | None = None
    ends: Ends = field(default_factory=dict)
    cancels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    prepare: Wait | None = None
    members: tuple[str, ...] = ("caller",)
    via: tuple[str, ...] = ()
    given_up: type[Exception] | None = EvictedError
    cut_off: tuple[type[Exception] | None, ...] = ()
    refused: type[Exception] | None = EvictedError


Table = dict[str, Row]

_prepared: dict[str, object] = {}


def row(table: Table, *covers: str, **rest: object) -> Callable[[W], W]:
    """Adds the function to a table, under its own name."""

    def add(wait: W) -> W:
        name = wait.__name__
        assert name not in table, name
        made = Row(name=name, covers=covers, wait=wait, **rest)  # type: ignore[arg-type]
        own = made.cut_off or tuple(made.ends.values()) or (made.given_up,)
        table[name] = replace(made, cut_off=own)
        return wait

    return add


def lost(*victims: str, owner_of_value: str = "") -> Ends:
    """Returns `ends` for a verb that any of these ends; one of them may own the value."""
    return {each: OwnerLostError if each == owner_of_value else WorkerLostError for each in victims}


def prepare(row: Row) -> None:
    """Keeps what a row needs here; others may wait for this at the same time."""
    if row.prepare is not None:
        _prepared[row.name] = row.prepare(row.name)
    gate(f"{row.name} prepared").set()


def prepared(name: str) -> object:
    """Returns what `prepare` has kept for a row."""
    return _prepared[name.partition(" ")[0]]
