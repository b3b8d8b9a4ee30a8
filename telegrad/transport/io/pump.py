"""The pumps, which move the frames of one stream between its carrier and its connection.

    TaskPump     tasks on the loop read and write; any carrier
    SocketPump   the thread that has something to write, or has the reader's role, does it
                 (`socket_pump`, `reader`)

The writer's turn is given once: by `wake`, from the thread that found it free, and it ends when
`next_message` returns None.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Protocol, final

from telegrad.errors import DecodeError
from telegrad.transport.base import Carrier, CarrierClosedError
from telegrad.transport.io.spin import Spin
from telegrad.transport.log import get_logger
from telegrad.transport.loop import LoopThread
from telegrad.transport.security.tags import BadTagError

logger = get_logger(__name__)

# Errors that end a stream: the carrier broke, or the peer broke the protocol.
READ_ERRORS = (CarrierClosedError, BadTagError, DecodeError)

# The longest time that a goodbye which answers another may take to leave before its carrier is
# closed.
FAREWELL_SECONDS = 1.0


class WaitGate(Protocol):
    """The object at which a thread waits.

    Attributes:
        shut: True until it is opened.
        wake: Wakes the waiting thread when another one opens it.
    """

    shut: bool
    wake: Callable[[], None] | None


class StreamEnd(Protocol):
    """The connection's end of a stream: the source and the receiver of its messages.

    Attributes:
        ending: True if it waits until the message last returned has left.
    """

    ending: bool

    def next_message(self) -> bytes | None:
        """Returns the next message; None ends the writer's turn. For the thread that has it."""

    def written(self) -> None:
        """Called, while it is `ending`, when a message has left."""

    def take(self, message: bytes) -> bool:
        """Takes a message that came; returns True if it brought a request. In one thread at a time.

        Raises:
            BadTagError: The peer did not write it, or not at this place.
            DecodeError: The message breaks the protocol.
        """

    def failed(self, error: BaseException) -> None:
        """Takes the error that ended reading or writing; on the loop."""


class Pump(ABC):
    """Moves messages until it is let go."""

    @abstractmethod
    def start(self, preamble: bytes) -> None:
        """Begins, with the writer's turn; on the loop.

        Args:
            preamble: The bytes to send before the first frame.
        """

    @abstractmethod
    def wake(self) -> None:
        """Begins the writer's turn; from any thread."""

    @abstractmethod
    def resume(self) -> None:
        """Writes what waits: a thread may have lost its turn by an exception; on the loop."""

    @abstractmethod
    def let_go(self, farewell: Callable[[], bytes] | None) -> None:
        """Stops reading and writing; on the loop.

        Args:
            farewell: Makes a last message, behind all others; None for none.
        """


@final
class TaskPump(Pump):
    """Two tasks on the loop: one reads, and one writes while the writer's turn is taken.

    Messages that come while another is on its way are written as one, when that one has left. From
    a message that it writes to the next one that comes, the loop polls before it sleeps.

    Args:
        spin: Seconds for which the loop polls; 0 where no other process answers.
    """

    def __init__(
        self,
        carrier: Carrier,
        frames: StreamEnd,
        loop: LoopThread,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        spin: float,
    ) -> None:
        self._carrier = carrier
        self._frames = frames
        self._loop = loop
        self._spawn = spawn
        self._spin = Spin(spin)
        self._woken = asyncio.Event()  # this and the following are for the loop alone
        self._writing = asyncio.Lock()
        self._open = True

    def start(self, preamble: bytes) -> None:
        """Starts both tasks."""
        self._spawn(self._run(self._read))
        self._spawn(self._run(partial(self._write, preamble)))

    def wake(self) -> None:
        """Wakes the task that writes."""
        self._loop.call(self._woken.set)

    def resume(self) -> None:
        """Wakes the task that writes."""
        self._woken.set()

    def let_go(self, farewell: Callable[[], bytes] | None) -> None:
        """Ends both tasks; the farewell is sent behind the message that is on its way."""
        self._open = False
        self._woken.set()
        self._spawn(self._end(farewell))

    def _is_open(self) -> bool:
        return self._open

    async def _run(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except READ_ERRORS as error:
            self._frames.failed(error)
        except Exception as error:  # a message may be lost, and with it this stream
            # Without this the stream stays up with the writer's turn taken, until the peer falls
            # silent.
            self._frames.failed(CarrierClosedError(repr(error)))
            raise  # for the log

    async def _read(self) -> None:
        while self._is_open():
            message = await self._carrier.receive()
            # It was let go while it waited: a message of a stream that has ended counts no more.
            if not self._is_open():
                return
            if self._loop.looks is self._spin:  # what comes next is for others to do
                self._loop.looks = None
            self._frames.take(message)

    async def _write(self, preamble: bytes) -> None:
        # This task alone writes. Threads that began a write themselves as they posted gained
        # nothing: an empty call took 472 and 483 us with that, 471 and 487 without; 1,000 calls at
        # once made 19,700 a second with it, 23,200 without.
        frames = self._frames
        while self._is_open():
            # Cleared before the look for messages: a wake that comes after the last look ends the
            # wait below.
            self._woken.clear()
            async with self._writing:
                while self._is_open() and (message := preamble or frames.next_message()):
                    preamble = b""
                    self._loop.looks = self._spin
                    await self._carrier.send(message)
                    if frames.ending:
                        frames.written()
            await self._woken.wait()

    async def _end(self, farewell: Callable[[], bytes] | None) -> None:
        try:
            if farewell is not None:
                async with asyncio.timeout(FAREWELL_SECONDS), self._writing:
                    await self._carrier.send(farewell())
        except (TimeoutError, CarrierClosedError):
            logger.debug("%s takes no farewell", self._carrier.description)
        finally:
            await self._carrier.close()
