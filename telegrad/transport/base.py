"""The seams of the network tower's lowest floor: carrier, transport, receiver.

rpc, rendezvous        post(peer, envelope), on_envelope, on_lost
     │
Exchange               all connections of one worker: accept, dial, redial, close
     │
Connection             one peer: a pure Session, plus whichever carrier is up now
     │                 promise: every envelope is handed over exactly once, or the peer is lost
Carrier                one duplex stream of byte messages; may break at any moment
     │
Transport              makes carriers: inproc (queues), grpc (one duplex stream each),
                       local (a Unix socket each, which threads may use without the loop)
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Container
from typing import Any, Protocol

from telegrad.errors import WorkerLostError
from telegrad.types import WorkerInfo
from telegrad.wire import Buffer, Envelope

__all__ = [
    "Blocking",
    "Carrier",
    "CarrierClosedError",
    "Direct",
    "Listener",
    "Receiver",
    "Sending",
    "Transport",
    "WrappedCarrier",
]


class CarrierClosedError(ConnectionError):
    """The stream ended, whichever end or network ended it; never reaches users."""


class Direct(Protocol):
    """A carrier's messages without the loop: whoever has the role moves them. Nothing waits.

    Attributes:
        holds_more: Whether there may be a message that no poll tells of: it was read, and not taken.
    """

    holds_more: bool

    def fileno(self) -> int:
        """Returns what can be polled for the next message, by whoever has a role."""

    def begin_reading(self) -> bool:
        """Takes the reader's role, if it is free and the carrier not broken from here."""

    def end_reading(self) -> None:
        """Gives the reader's role back."""

    def begin_writing(self, *, wait: bool = True) -> bool:
        """Takes the writer's role, unless the carrier is broken from here.

        Args:
            wait: For whoever has it, for a moment; else False is returned, too.
        """

    def end_writing(self) -> None:
        """Gives the writer's role back."""

    def attach(self, descriptor: int) -> None:
        """Sends a descriptor beside the next message and closes it, by whoever has the writer's role."""

    def descriptor(self) -> int | None:
        """Returns the next descriptor that came, to be closed by whoever reads; None while none did."""

    def put(self, message: bytes) -> bool:
        """Sends a message, as far as there is room; returns whether all of it has left.

        Raises:
            CarrierClosedError: The carrier is broken.
        """

    def flush(self) -> bool:
        """Sends what there was no room for; returns whether all of it has left.

        Raises:
            CarrierClosedError: The carrier is broken.
        """

    def take(self) -> bytes | None:
        """Returns the next message; None while there is none.

        Raises:
            CarrierClosedError: There will be none any more.
        """

    def end(self) -> None:
        """Breaks the carrier at both ends and wakes who polls it; idempotent, never raises."""


class Blocking(Protocol):
    """A carrier's bytes, for two threads that block: one sends and one receives."""

    @property
    def is_loopback(self) -> bool:
        """Whether the other end is on this machine."""

    def begin_blocking(self) -> None:
        """Leaves the loop.

        Raises:
            CarrierClosedError: The carrier is broken.
        """

    def begin_direct(self) -> None:
        """Leaves the loop as a stream of messages: the carrier's `direct` moves them from now on.

        Raises:
            CarrierClosedError: The carrier is broken.
        """

    def put(self, *parts: Buffer) -> None:
        """Sends bytes; blocks until the system has taken all of them.

        Raises:
            CarrierClosedError: The carrier is broken.
        """

    def fill(self, place: memoryview) -> None:
        """Fills a place with the next bytes; blocks until they are all there.

        Raises:
            CarrierClosedError: The carrier broke before that.
        """

    def end(self) -> None:
        """Breaks the carrier at both ends and wakes who blocks; idempotent, never raises."""


class Sending(Protocol):
    """A message on its way; an asyncio Task is one."""

    def done(self) -> bool:
        """Whether it has left, or never will."""

    def result(self) -> None:
        """Hears how it ended, once, after it is done; in any thread.

        Raises:
            CarrierClosedError: The carrier is broken.
        """

    def add_done_callback(self, call: Callable[[Any], object], /) -> None:
        """Has the loop call something when it is done; on the loop."""


class Carrier(ABC):
    """A duplex stream of byte messages, in order, until it breaks.

    All methods run on the loop. One task sends and one receives at a time. A message that was
    sent when the carrier broke may or may not have arrived.
    """

    @property
    @abstractmethod
    def description(self) -> str:
        """Where the other end is, for logs and errors: `grpc://127.0.0.1:40231`."""

    @property
    def binding(self) -> bytes:
        """SHA-256 of the certificate, in DER form, that the listening end showed on this connection.

        Empty without TLS. The same at both ends, unless somebody is in between.
        """
        return b""

    @property
    def peer_names(self) -> frozenset[str] | None:
        """The names that the other end's certificate proves; None where none was asked of it."""
        return None

    @property
    def told(self) -> tuple[str, ...]:
        """What a hello on it says that this end is able to, as its carrier."""
        return ()

    @property
    def direct(self) -> Direct | None:
        """What moves its messages from any thread; None where only the loop can.

        Once it is used, `send` and `receive` are not.
        """
        return None

    @property
    def blocking(self) -> Blocking | None:
        """What two threads move its bytes with, as a lane; None where only the loop can.

        Once it is used, `send` and `receive` are not.
        """
        return None

    @property
    def begins_anywhere(self) -> bool:
        """Whether `begin` may be called in any thread, and not on the loop alone."""
        return False

    def begin(self, message: bytes) -> Sending:
        """Begins to send a message, when the one before has left; never waits.

        Raises:
            CarrierClosedError: The carrier is broken.
        """
        return asyncio.ensure_future(self.send(message))

    @abstractmethod
    async def send(self, message: bytes) -> None:
        """Sends one message; raises CarrierClosedError when the carrier is broken."""

    @abstractmethod
    async def receive(self) -> bytes:
        """Returns the next message; raises CarrierClosedError when there will be none."""

    @abstractmethod
    async def close(self) -> None:
        """Breaks the carrier at both ends; idempotent, never raises."""


class WrappedCarrier(Carrier):
    """A carrier that is another one, but for what a subclass changes.

    Args:
        inner: The other one.
    """

    def __init__(self, inner: Carrier) -> None:
        self._inner = inner

    @property
    def description(self) -> str:
        """As the other's."""
        return self._inner.description

    @property
    def binding(self) -> bytes:
        """As the other's."""
        return self._inner.binding

    @property
    def peer_names(self) -> frozenset[str] | None:
        """As the other's."""
        return self._inner.peer_names

    async def send(self, message: bytes) -> None:
        """Sends on the other."""
        await self._inner.send(message)

    async def receive(self) -> bytes:
        """Receives from the other."""
        return await self._inner.receive()

    async def close(self) -> None:
        """Closes the other."""
        await self._inner.close()


class Listener(ABC):
    """An open door of a transport."""

    @property
    @abstractmethod
    def endpoint(self) -> str:
        """What a peer dials: `grpc://127.0.0.1:40231`, `inproc://7`; empty if it is told elsewhere."""

    @abstractmethod
    async def close(self) -> None:
        """Accepts no more; carriers already accepted live on. Idempotent."""


class Transport(ABC):
    """One way of reaching other workers; makes carriers and knows nothing of sessions."""

    @property
    @abstractmethod
    def scheme(self) -> str:
        """The part before `://` of the endpoints that this transport dials."""

    @property
    def schemes(self) -> frozenset[str]:
        """All such parts, where it dials more than one kind."""
        return frozenset({self.scheme})

    def reaches(self, endpoint: str) -> bool:
        """Tells whether an endpoint of one of its schemes could be reached from this machine."""
        return True

    @property
    def told(self) -> tuple[str, ...]:
        """What a listener says of it in its hello, once it listens."""
        return ()

    @property
    def takes_frames(self) -> bool:
        """Whether streams of other transports may move to its carriers."""
        return False

    def named(self, info: WorkerInfo) -> Transport:
        """Returns the transport with which this worker listens; itself, unless doors are shared.

        Args:
            info: Whom those who dial this door want to reach.
        """
        return self

    @abstractmethod
    async def listen(self, accept: Callable[[Carrier], Awaitable[None]]) -> Listener:
        """Opens a door; `accept` is awaited in a task of its own for each carrier.

        Raises:
            OSError: The address or port cannot be had; the message names both and the remedy.
        """

    @abstractmethod
    async def dial(self, endpoint: str) -> Carrier:
        """Connects to an endpoint.

        Raises:
            ConnectionRefusedError: Nobody listens there; the process behind it is gone.
            ConnectionError: It cannot be reached now, for another reason; may be tried again.
        """


class Receiver(ABC):
    """What the floor above gives an Exchange. Must not block or raise.

    Called on the loop, but for replies and for the kinds in `anywhere`: those come in whatever thread
    read them.

    Attributes:
        anywhere: Kinds of requests that are taken in any thread.
    """

    anywhere: Container[str] = ()

    @abstractmethod
    def on_envelope(self, peer: WorkerInfo, envelope: Envelope) -> None:
        """Takes an envelope, exactly once each; complete with its buffers."""

    @abstractmethod
    def on_lost(self, peer: WorkerInfo, error: WorkerLostError) -> None:
        """Hears once that a peer is lost for good; nothing of it comes afterwards."""

    def loss_of(self, peer: WorkerInfo) -> WorkerLostError | None:
        """Returns why a peer is lost, as a new error, though no connection to it was ever made."""
        del peer
        return None

    def load(self) -> int:
        """Returns how many calls this worker serves; its peers are told."""
        return 0
