"""The interfaces of the lowest layer of the network: carrier, transport, receiver.

rpc, rendezvous        post(peer, envelope), on_envelope, on_lost
     │
Exchange               all connections of one worker: accept, dial, redial, close
     │
Connection             one peer: a pure Session, plus the carrier that is up now
     │                 promise: every envelope is handed over exactly once, or the peer is lost
Carrier                one duplex stream of byte messages; may break at any moment
     │
Transport              makes carriers: inproc (queues), grpc (one duplex stream each),
                       local, tcp (a socket each, which threads may use without the loop)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Container
from typing import Protocol

from telegrad.errors import WorkerLostError
from telegrad.types import WorkerInfo
from telegrad.wire import Buffer, Envelope

HEADER_BYTES = 4  # before each message on a socket: its length, big-endian


class CarrierClosedError(ConnectionError):
    """The stream ended, by one of its ends or the network; never reaches users."""


class Direct(Protocol):
    """A carrier's bytes without the loop: the threads that have the roles move them.

    Nothing here waits, but `send_all` and `fill`.

    Attributes:
        holds_more: True if there may be a message that no poll tells of: it was read, and not
            taken.
    """

    holds_more: bool

    def fileno(self) -> int:
        """Returns the descriptor to poll for the next message, for a thread that has a role."""

    def begin_reading(self) -> bool:
        """Takes the reader's role, if it is free and the carrier was not broken by this end."""

    def end_reading(self) -> None:
        """Gives the reader's role back."""

    def begin_writing(self, *, wait: bool = True) -> bool:
        """Takes the writer's role, unless this end has broken the carrier.

        Args:
            wait: True to wait a moment for the thread that has it; else False is returned then,
                too.
        """

    def end_writing(self) -> None:
        """Gives the writer's role back."""

    def attach(self, descriptor: int) -> None:
        """Sends a descriptor beside the next message and closes it; for the writer."""

    def descriptor(self) -> int | None:
        """Returns the next descriptor that came, which the reader has to close; None for none."""

    def put(self, message: bytes) -> bool:
        """Sends a message, as far as there is room; returns True if all of it has left.

        Raises:
            CarrierClosedError: The carrier is broken.
        """

    def flush(self) -> bool:
        """Sends bytes for which there was no room; returns True if all of them have left.

        Raises:
            CarrierClosedError: The carrier is broken.
        """

    def take(self) -> bytes | None:
        """Returns the next message; None while there is none.

        Raises:
            CarrierClosedError: There will be no message any more.
        """

    def accept_all(self) -> None:
        """Takes messages of any size that is allowed: the peer has proved itself."""

    def send_all(self, *parts: Buffer) -> None:
        """Sends bytes of a lane; blocks until the system has taken all of them.

        Raises:
            CarrierClosedError: The carrier is broken.
        """

    def fill(self, place: memoryview) -> None:
        """Fills a place with the next bytes of a lane; blocks until they are all there.

        Raises:
            CarrierClosedError: The carrier broke before that.
        """

    def end(self) -> None:
        """Breaks the carrier at both ends and wakes waiting threads; idempotent, never raises."""


class Carrier(ABC):
    """A duplex stream of byte messages, in order, until it breaks.

    All methods run on the loop. One task sends and one receives at a time. A message that was
    sent when the carrier broke may or may not have arrived.

    Attributes:
        description: The address of the other end, for logs and errors: `grpc://127.0.0.1:40231`.
        binding: The SHA-256 of the certificate, in DER form, that the listener showed on this
            connection, once it is secure; the same at both ends, unless somebody is in between.
            Empty without TLS.
        peer_names: The names that the other end's certificate proves; None where none was asked
            for.
        told: The capabilities of this end, as its carrier, for a hello on it.
        direct: The object that moves its messages from any thread; None where only the loop can.
            Once it is used, `send` and `receive` are not.
        takes_over: True if it carries no stream of its own: lanes, or a stream that has moved to
            it.
        polled: True if another process answers, so that it pays to poll for the answer.
    """

    description: str
    binding: bytes = b""
    peer_names: frozenset[str] | None = None
    told: tuple[str, ...] = ()
    direct: Direct | None = None
    takes_over: bool = False
    polled: bool = False

    async def secure(self) -> None:
        """Finishes what the carrier needs before its first message, such as a handshake of TLS.

        Raises:
            CarrierClosedError: The carrier is broken, or one end refuses the other.
        """
        return

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
    """A carrier that delegates to another one, except for the methods that a subclass changes.

    Args:
        inner: The other carrier.
    """

    def __init__(self, inner: Carrier) -> None:
        self._inner = inner
        self.description = inner.description
        self.binding, self.peer_names = inner.binding, inner.peer_names
        self.polled = inner.polled

    async def send(self, message: bytes) -> None:
        """Sends on the other carrier."""
        await self._inner.send(message)

    async def receive(self) -> bytes:
        """Receives from the other carrier."""
        return await self._inner.receive()

    async def close(self) -> None:
        """Closes the other carrier."""
        await self._inner.close()


class Listener(ABC):
    """An open address of a transport, at which peers arrive.

    Attributes:
        endpoint: The endpoint, such as `grpc://127.0.0.1:40231`; empty if peers learn it elsewhere.
    """

    endpoint: str

    @abstractmethod
    async def close(self) -> None:
        """Accepts no more; carriers already accepted live on. Idempotent."""


class Transport(ABC):
    """A means of reaching other workers; makes carriers and knows nothing of sessions.

    Attributes:
        scheme: The part before `://` of the endpoints at which it listens.
        schemes: All such parts of the endpoints that it dials.
        told: The capabilities of this transport for a listener's hello, once it listens.
    """

    scheme: str
    schemes: frozenset[str]
    told: tuple[str, ...] = ()

    def reaches(self, endpoint: str) -> bool:
        """Returns True if an endpoint of one of its schemes could be reached from this machine."""
        return True

    @abstractmethod
    async def listen(self, accept: Callable[[Carrier], Awaitable[None]]) -> Listener:
        """Opens a listener; `accept` is awaited in a task of its own for each carrier.

        Raises:
            OSError: The address or port cannot be had; the message names both and the remedy.
        """

    async def listen_as(
        self, info: WorkerInfo, accept: Callable[[Carrier], Awaitable[None]]
    ) -> Listener:
        """Opens a listener for one worker, where several share a transport; see `listen`.

        Args:
            info: The worker that diallers of this listener want to reach.
            accept: As for `listen`.
        """
        return await self.listen(accept)

    @abstractmethod
    async def dial(self, endpoint: str) -> Carrier:
        """Connects to an endpoint.

        Raises:
            ConnectionRefusedError: Nobody listens there; the process behind it is gone.
            ConnectionError: The endpoint cannot be reached now, for another reason; may be tried
                again.
        """


class Receiver(ABC):
    """The interface of the layer above an Exchange. Must not block or raise.

    It is called on the loop, except for replies and for the kinds in `anywhere`: those come in the
    thread that read them.

    Attributes:
        anywhere: Kinds of requests that are taken in any thread.
    """

    anywhere: Container[str] = ()

    @abstractmethod
    def on_envelope(self, peer: WorkerInfo, envelope: Envelope) -> None:
        """Takes an envelope, exactly once each; complete with its buffers."""

    @abstractmethod
    def on_lost(self, peer: WorkerInfo, error: WorkerLostError) -> None:
        """Called once when a peer is lost for good; nothing of the peer comes afterwards."""

    def loss_of(self, peer: WorkerInfo) -> WorkerLostError | None:
        """Returns why a peer is lost, as a new error, though no connection to it was ever made."""
        return None

    def memory(self, kind: str, size: int) -> memoryview | None:
        """Returns memory for a received buffer; None for fresh memory. In any thread, quick.

        Args:
            kind: The kind of its envelope.
            size: Its bytes.
        """
        return None

    def takes_failed(self, envelope: Envelope) -> bool:
        """Returns True if an envelope with a `failure` fails only the call that it belongs to.

        Else this worker has missed a message that others rely on, so the peer is lost. In any
        thread, quick.
        """
        return False

    def load(self) -> int:
        """Returns how many calls this worker serves; its peers are told."""
        return 0
