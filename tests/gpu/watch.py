"""`Watch`: what the memory of GPUs of one process does, seen at the public methods of its parts."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest

from telegrad.arrays import DeviceMemory
from telegrad.transport.channels import shared_memory as slabs
from telegrad.transport.channels.device_memory import DEVICE_BOUNDS, DeviceSlabs, DeviceStream, Hold
from telegrad.transport.channels.ledger import Account, Block, Bounds
from telegrad.wire import Mode

__all__ = ["Watch", "out_there", "taken_there", "watch_there", "works_there"]


class Watch:
    """Follows the memory that one worker shares; in its process no other one shares any.

    Attributes:
        taken: How many blocks were ever taken.
        passed: Seconds by which the clock of what is opened from now on is fast.
        streams: The ends of streams that share memory, in their order.
        ended: Those that were closed.

    Args:
        patch: Undoes it.
        bounds: What the worker keeps to.
    """

    def __init__(self, patch: pytest.MonkeyPatch, bounds: Bounds = DEVICE_BOUNDS) -> None:
        self._held: set[Block[DeviceMemory]] = set()
        self.taken = 0
        self.passed = 0.0
        self.streams: list[DeviceStream] = []
        self.ended: set[DeviceStream] = set()
        self._begun: list[DeviceSlabs] = []
        # Slabs that are not freed yet; an account refers to those that it may still use.
        self._made: weakref.WeakKeyDictionary[DeviceMemory, Account[DeviceMemory]]
        self._made = weakref.WeakKeyDictionary()
        self._answers: dict[DeviceStream, dict[int, bool]] = {}

        def begin(clock: Callable[[], float]) -> DeviceSlabs:
            self._begun.append(DeviceSlabs(lambda: clock() + self.passed, bounds))
            return self._begun[-1]

        patch.setattr(slabs, "DeviceSlabs", begin)
        for owner, name, seen in (
            (DeviceSlabs, "open", self._opened),
            (DeviceSlabs, "take", self._taken),
            (DeviceSlabs, "free", self._freed),
            (DeviceStream, "tried", self._tried),
            (DeviceStream, "close", self._ended),
        ):
            patch.setattr(owner, name, _followed(getattr(owner, name), seen))

    @property
    def out(self) -> list[Block[DeviceMemory]]:
        """The blocks that are held or lent, by streams that have not ended."""
        return [block for block in list(self._held) if block.slab.account.open]

    @property
    def works(self) -> dict[int, bool]:
        """By the numbers of GPUs, what came of the trials of the newest stream."""
        return self._answers.get(self.streams[-1], {}) if self.streams else {}

    @property
    def out_bytes(self) -> int:
        """The bytes that are held or lent."""
        return sum(block.size for block in self.out)

    @property
    def slabs(self) -> int:
        """How many slabs there are from which blocks may be taken."""
        return len(self._made) - self.retired

    @property
    def retired(self) -> int:
        """How many slabs of streams that have ended are not freed yet."""
        return sum(not account.open for account in list(self._made.values()))

    @property
    def mappings(self) -> int:
        """How many slabs of others are open here."""
        return sum(each.mappings.count for each in self._begun)

    def _opened(self, stream: DeviceStream | None, devices: DeviceSlabs, *args: object) -> None:
        if stream is not None:
            self.streams.append(stream)

    def _taken(self, block: Block[DeviceMemory] | None, *args: object) -> None:
        if block is not None:
            self.taken += 1
            self._held.add(block)
            self._made[block.slab.memory] = block.slab.account

    def _freed(self, _: None, devices: object, number: int, block: Block[DeviceMemory]) -> None:
        self._held.discard(block)

    def _tried(self, _: None, stream: DeviceStream, hold: Hold, mode: Mode) -> None:
        if stream not in self.streams:  # it was there before this
            self.streams.append(stream)
        if mode in (Mode.OPENED, Mode.REFUSED):
            self._answers.setdefault(stream, {})[hold.number] = mode is Mode.OPENED

    def _ended(self, _: None, stream: DeviceStream) -> None:
        self.ended.add(stream)


def _followed(method: Any, seen: Any) -> Any:
    def both(*args: Any) -> Any:
        result = method(*args)
        seen(result, *args)
        return result

    return both


# -- in a worker of the test ------------------------------------------------------------------------

_THERE: list[Watch] = []


def watch_there() -> None:
    """Begins to watch in the process that is called, to its end."""
    if not _THERE:
        _THERE.append(Watch(pytest.MonkeyPatch()))


def out_there() -> int:
    return len(_THERE[0].out)


def taken_there() -> int:
    return _THERE[0].taken


def works_there() -> bool:
    return _THERE[0].works.get(0, False)
