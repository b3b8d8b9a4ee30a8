"""What a thread, or an event loop, reads while it waits for futures: that which completes them.

Messages of workers past gRPC (of this host, or by `bulk_port`) need no other thread to be read:
whoever waits for a reply reads it (`transport.direct_pump`, `transport.loop_reader`), until it has
read several requests, which others do. Which worker's, the sources of futures tell that the library
notes with `comes_from`. Where several workers are to answer, all sockets are read.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from telegrad.rpc.blocking import Wait
from telegrad.types import WorkerInfo

if TYPE_CHECKING:
    from telegrad.rpc.gate import Drive, Gate

__all__ = ["Driven", "Reads", "drive_of", "drive_on"]


class Reads(Protocol):
    """What has who waits for a reply read what comes; see `Exchange`."""

    def drive(self, peer: WorkerInfo, gate: Gate, seconds: float) -> None:
        """Has the calling thread read until the gate opens, or so long, or not at all."""

    def drive_all(self, gate: Gate, seconds: float) -> None:
        """Does the same for what comes from all workers of this host."""

    def drive_on(
        self, peer: WorkerInfo, loop: asyncio.AbstractEventLoop
    ) -> Callable[[], None] | None:
        """Has the loop that runs in the calling thread read, until what is returned is called."""


class Driven:
    """For the library: the source of a future that a worker's message completes.

    Attributes:
        peer: That worker.
        reads: Has who waits read what comes from it; None where nothing does.
    """

    __slots__ = ()

    peer: WorkerInfo
    reads: Reads | None

    def drive(self, gate: Gate, seconds: float) -> None:
        """Reads what comes from the peer until the gate opens, or that long; for who waits."""
        if self.reads is not None:
            self.reads.drive(self.peer, gate, seconds)


def drive_of(source: object) -> Drive | None:
    """Returns what a thread does while it waits for a future; None for nothing.

    Args:
        source: Of that future, or several futures.
    """
    if isinstance(source, Driven):  # so for nearly all who ask
        return source.drive
    sources = _behind(source)
    if not sources:
        return None
    reads = sources[0].reads
    return sources[0].drive if len(sources) == 1 or reads is None else reads.drive_all


def drive_on(loop: asyncio.AbstractEventLoop, source: object) -> Sequence[Callable[[], None]]:
    """Has the loop that runs here read while a task awaits a future; returns what ends that.

    Args:
        loop: The one that runs.
        source: Of that future, or several futures.
    """
    sources = (source,) if isinstance(source, Driven) else _behind(source)
    return [
        end
        for each in sources
        if each.reads is not None and (end := each.reads.drive_on(each.peer, loop)) is not None
    ]


def _behind(source: object) -> Sequence[Driven]:
    """Returns what completes the pending ones of futures in the end, one for each worker."""
    found: dict[WorkerInfo, Driven] = {}
    places, last = [source], None
    seen: set[int] = set()  # several that others wait for, too
    while places:
        place = places.pop()
        if isinstance(place, Driven):
            if place.peer is not last:  # of a thousand calls most are of the same
                last = place.peer
                found.setdefault(last, place)
            continue
        if isinstance(place, weakref.ReferenceType):
            future = place()
            places.append(None if future is None else future._source)
        elif isinstance(place, tuple | Wait) and id(place) not in seen:
            seen.add(id(place))
            several = place.futures if isinstance(place, Wait) else place
            # One that is done has none; neither has one that no message completes.
            places += [source for each in several if (source := each._source) is not None]
    return tuple(found.values())
