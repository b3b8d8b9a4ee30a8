"""The sockets that a waiting thread, or event loop, reads.

Messages of workers that bypass gRPC (of this host, or by a direct port) need no other thread to
be read. The thread that waits for a reply reads (`transport.io.reader`), until it has read
several requests, which others run. The source of a future, which the library records with
`comes_from`, tells if a message completes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from telegrad.rpc.future.gate import Gate
from telegrad.rpc.future.waits import behind


class Reads(Protocol):
    """Lets a thread that waits for a reply read arrived messages; see `SocketReader`."""

    def wait(self, gate: Gate, seconds: float) -> None:
        """Reads in the calling thread until the gate opens, or for so long, or not at all."""

    def await_on(self, loop: asyncio.AbstractEventLoop) -> Callable[[], None] | None:
        """Reads on the loop of the calling thread, until the returned function is called."""

    def hold(self) -> None:
        """Leaves arrived messages to the waits that the calling thread begins soon."""

    def release(self, thread: int) -> None:
        """Ends that for a thread; idempotent."""


class Driven:
    """For the library: the source of a future that a worker's message completes.

    Attributes:
        reads: Lets a waiting thread read arrived messages; None where nothing does.
    """

    __slots__ = ()

    reads: Reads | None


def reads_of(source: object) -> Reads | None:
    """Returns the reader of the message that completes a future in the end, or one of several."""
    if isinstance(source, Driven):  # nearly all are
        return source.reads
    found = (each.reads for each in behind((source,)) if isinstance(each, Driven))
    return next((reads for reads in found if reads is not None), None)
