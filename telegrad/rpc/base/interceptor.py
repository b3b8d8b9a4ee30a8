"""The seam through which RRefs and distributed autograd see every call.

An interceptor sees requests and replies that carry user values. Interceptors form a chain in the
order in which they were added: RRef, then dist_autograd. `outgoing` runs in this order, as does
`incoming`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from telegrad.rpc.base.call_record import CallRecord
from telegrad.types import WorkerInfo


@dataclass(slots=True)
class Message:
    """For the library: a request or reply, between the codec and the session.

    Attributes:
        peer: The receiver, or the sender; may be this worker itself.
        reply: True if it is the reply of `call`, else its request.
        call: This end's record of the call.
        externals: The objects lifted out of the document; `incoming` may replace items in place.
        headers: Plain msgpack values that travel beside the document, by interceptor name.
        cause: At `undelivered`, the reason why an incoming message is not decoded, if it is known.
        final: False for a reply that others will follow: an item of a stream.
    """

    peer: WorkerInfo
    reply: bool
    call: CallRecord
    externals: list[object]
    headers: dict[str, object] = field(default_factory=dict)
    cause: BaseException | None = None
    final: bool = True


class Interceptor(ABC):
    """For the library: adds to messages that are sent and rebuilds from those that arrive.

    It never blocks. Most messages carry nothing beside their document but arrays of NumPy: no other
    externals and no headers. An interceptor that has nothing to do with such a message may say so,
    and is not shown it (`hears_all`, `speaks`).

    Attributes:
        hears_all: True if `incoming` sees also messages without headers, and without externals or
            with arrays alone.
    """

    hears_all = True

    def speaks(self, call: CallRecord, *, reply: bool) -> bool:
        """Returns True if `outgoing` must see a message without externals, or with arrays alone.

        Of the reply of a call without a `state` it is asked only where an interceptor hears all.

        Args:
            call: This end's record of the call.
            reply: True if it is the reply.
        """
        del call, reply
        return True

    @property
    @abstractmethod
    def name(self) -> str:
        """Its key in `Message.headers` and `CallRecord.state`."""

    @abstractmethod
    def outgoing(self, message: Message) -> None:
        """Runs in the thread that calls or returns, once the whole document is encoded.

        The state that it records is undone by `undelivered`. If it raises, the interceptors that
        ran before it get `undelivered`, and the call fails with its exception.
        """

    @abstractmethod
    def incoming(self, message: Message) -> None:
        """Runs where the message is decoded.

        For a request that is inside the contextvars.Context in which the user's function will run,
        so ambient values are set there; for a reply it is the thread that reads it.
        """

    @abstractmethod
    def undelivered(self, message: Message) -> None:
        """Called when an outgoing message is known not to have been handed over.

        Also called for an incoming message that will never be decoded (its waiter is gone, or
        decoding failed): then `message.externals` is empty and only `headers` tell what it held.
        """
