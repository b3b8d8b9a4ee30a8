"""Turns: what the ranks of a `join()` block tell each other before each operation of the module.

    rank 0   backward   backward   backward   out          out     last of all: rank 1
    rank 1   backward   backward   backward   backward     out
    rank 2   backward   out        out        out          out
             ─────────  shadowed by rank 2 ─  by 0 and 2   over

Each turn is one `all_gather` of one number. A rank that is out of inputs keeps taking turns: it
learns what the others do next, and does its part of it without inputs.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final

import numpy as np

from telegrad.errors import CollectiveMismatchError
from telegrad.types import Array


class Turn(enum.IntEnum):
    """What a rank does next."""

    OUT = 0
    FORWARD = 1
    BACKWARD = 2


# Ends the label of each operation outside of a block. So the errors of ranks that are out of step
# name the mistake that is made most often, also on a rank that has gone on to other operations.
UNEVEN = "; ranks with different numbers of inputs need `with model.join():`"

_WORDS = {Turn.FORWARD: "began a forward", Turn.BACKWARD: "began a backward"}


@final
@dataclass(frozen=True, slots=True)
class Roll:
    """What all ranks do next.

    Attributes:
        active: The ranks, in the group, that have inputs.
        turn: What these do; OUT if there are none.
    """

    active: tuple[int, ...]
    turn: Turn


def read_roll(turns: Sequence[int], names: Sequence[object]) -> Roll:
    """Returns what the ranks do next.

    Args:
        turns: The turn of each rank.
        names: The ranks as errors name them.

    Raises:
        CollectiveMismatchError: Two ranks that have inputs do different things.

    >>> read_roll([Turn.BACKWARD, Turn.OUT, Turn.BACKWARD], [0, 1, 2])
    Roll(active=(0, 2), turn=<Turn.BACKWARD: 2>)
    """
    active = tuple(r for r, turn in enumerate(turns) if turn != Turn.OUT)
    if not active:
        return Roll((), Turn.OUT)
    first = Turn(turns[active[0]])
    for r in active:
        if turns[r] != first:
            raise CollectiveMismatchError(
                f"inside DistributedDataParallel.join() rank {names[active[0]]} {_WORDS[first]}, "
                f"but rank {names[r]} {_WORDS[Turn(turns[r])]}; every rank must run the same "
                "forwards and backwards for each of its inputs"
            )
    return Roll(active, first)


class Gathers(Protocol):
    """The functions of a process group that turns need."""

    @property
    def ranks(self) -> Sequence[int]:
        """The ranks of the job, by rank in the group."""

    def gather(self, array: Array, label: str) -> Any:
        """Starts to send `array` to every rank; the result has the arrays of all ranks."""


@final
class Turns:
    """The turns of one `join()` block at one rank.

    Args:
        group: The group of the module.
        keep_divisor: True to divide sums by the number of all ranks, False by that of those that
            have inputs.

    Attributes:
        last: The ranks, in the group, that had inputs when any had; all of them at first.
    """

    def __init__(self, group: Gathers, *, keep_divisor: bool) -> None:
        self.last = tuple(range(len(group.ranks)))
        self._group = group
        self._keep_divisor = keep_divisor
        self._number = 0

    def start(self, turn: Turn) -> Any:
        """Starts to tell the other ranks; returns the handle of the operation."""
        self._number += 1
        label = (
            f"turn {self._number} of DistributedDataParallel.join(divide_by_initial_world_size="
            f"{self._keep_divisor})"
        )
        return self._group.gather(np.array([turn], np.int8), label)

    def read(self, found: Sequence[Array]) -> Roll:
        """Returns what all ranks do next, from the result of `start`; raises as `read_roll`."""
        roll = read_roll([int(each[0]) for each in found], self._group.ranks)
        if roll.active:
            self.last = roll.active
        return roll

    def take(self, turn: Turn) -> Roll:
        """Tells the others, waits for their turns, returns what all do; raises as `read_roll`."""
        return self.read(self.start(turn).wait())

    def factor(self, roll: Roll) -> float:
        """Returns the factor that turns the mean over all ranks into that of the block."""
        return 1.0 if self._keep_divisor else len(self._group.ranks) / len(roll.active)
