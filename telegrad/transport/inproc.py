"""The transport between agents of one process: queues of bytes, never of objects."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Awaitable, Callable
from typing import final

from telegrad.transport.base import Carrier, CarrierClosedError, Listener, Transport

# Messages that wait unread before send() waits too; as little as a socket buffer would hold.
QUEUE_LENGTH = 16


@final
class InprocNetwork:
    """The place in which in-process listeners find each other; pass one to each transport.

    All transports of one network must be used on one loop.

    Attributes:
        listeners: The open listeners by their endpoints.
        numbers: The numbers of the next ones.
    """

    def __init__(self) -> None:
        self.listeners: dict[str, _InprocListener] = {}
        self.numbers = itertools.count(1)


@final
class InprocTransport(Transport):
    """Reaches the other agents of the same InprocNetwork; endpoints are `inproc://<number>`.

    Args:
        network: The network in which the listeners of this transport are found.
    """

    scheme = "inproc"
    schemes = frozenset({"inproc"})

    def __init__(self, network: InprocNetwork) -> None:
        self._network = network

    async def listen(self, accept: Callable[[Carrier], Awaitable[None]]) -> Listener:
        """Opens a listener under the next free number of the network."""
        return _InprocListener(self._network, accept)

    async def dial(self, endpoint: str) -> Carrier:
        """Connects to a listener of the network; refused if it is closed or was never there."""
        listener = self._network.listeners.get(endpoint)
        if listener is None:
            raise ConnectionRefusedError(f"nobody listens at {endpoint}")
        there, here = _Pipe(), _Pipe()
        listener.take(_InprocCarrier("inproc://dialler", there, here))
        return _InprocCarrier(endpoint, here, there)


@final
class _InprocListener(Listener):
    def __init__(
        self, network: InprocNetwork, accept: Callable[[Carrier], Awaitable[None]]
    ) -> None:
        self.endpoint = f"inproc://{next(network.numbers)}"
        network.listeners[self.endpoint] = self
        self._network = network
        self._accept = accept
        self._accepting: set[asyncio.Future[None]] = set()

    def take(self, carrier: Carrier) -> None:
        """Awaits `accept` in a task of its own."""
        task = asyncio.ensure_future(self._accept(carrier))
        self._accepting.add(task)
        task.add_done_callback(self._accepting.discard)

    async def close(self) -> None:
        self._network.listeners.pop(self.endpoint, None)


@final
class _Pipe:
    """One direction: a short queue of messages with an end."""

    def __init__(self) -> None:
        self._messages: deque[bytes] = deque()
        self._ended = False
        self._changed = asyncio.Event()

    async def put(self, message: bytes) -> None:
        while len(self._messages) >= QUEUE_LENGTH and not self._ended:
            await self._wait()
        if self._ended:
            raise CarrierClosedError("the in-process carrier is closed")
        self._messages.append(message)
        self._changed.set()

    async def get(self) -> bytes:
        while not self._messages and not self._ended:
            await self._wait()
        if not self._messages:
            raise CarrierClosedError("the in-process carrier is closed")
        message = self._messages.popleft()
        self._changed.set()
        return message

    def end(self) -> None:
        self._ended = True
        self._changed.set()

    def clear(self) -> None:
        self._messages.clear()

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()


@final
class _InprocCarrier(Carrier):
    def __init__(self, description: str, incoming: _Pipe, outgoing: _Pipe) -> None:
        self.description = description
        self._incoming = incoming
        self._outgoing = outgoing

    async def send(self, message: bytes) -> None:
        if not isinstance(message, bytes):
            raise TypeError(f"a message is bytes, not {type(message).__name__}")
        await self._outgoing.put(message)

    async def receive(self) -> bytes:
        return await self._incoming.get()

    async def close(self) -> None:
        self._outgoing.end()  # the other end may still read the messages that were sent before
        self._incoming.end()
        self._incoming.clear()
