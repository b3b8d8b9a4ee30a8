"""The pumps, which move the frames of one stream between its carrier and its connection.

    TaskPump     a task on the loop reads; messages are begun where they are posted, or on the loop;
                 any carrier
    SocketPump   the thread that has something to write, or has the reader's role, does it
                 (`socket_pump`, `reader`)

The writer's turn is given once: by `wake`, from the thread that found it free, and it ends when
`next_message` returns None.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, final

from telegrad.errors import DecodeError
from telegrad.transport.base import Carrier, CarrierClosedError, Sending
from telegrad.transport.io.spin import Spin
from telegrad.transport.loop import LoopThread
from telegrad.transport.security.tags import BadTagError

__all__ = ["READ_ERRORS", "Pump", "StreamEnd", "TaskPump", "WaitGate"]

logger = logging.getLogger(__name__)

# Errors of reading that end a stream: the carrier broke, or the peer broke the protocol.
READ_ERRORS = (CarrierClosedError, BadTagError, DecodeError)

# The longest time that a goodbye which answers another may take to leave before its carrier is
# closed.
FAREWELL_SECONDS = 1.0

# A message that has left is kept until the next one, which saves a turn of the loop, up to this
# size.
KEPT_BYTES = 64 * 2**10


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
        """Hears, while it is `ending`, that a message has left."""

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
    def let_go(self, farewell: Callable[[], bytes] | None) -> None:
        """Stops reading and writing; on the loop.

        Args:
            farewell: Makes a last message, behind all others; None for none.
        """


@final
class TaskPump(Pump):
    """One task on the loop that reads, and messages that are begun one after the other.

    A message is begun in the thread that posted it, where the carrier allows it. A thread that
    writes several times without an answer leaves its messages to the loop, which writes many as
    one. Messages that come while another is on its way are written when that one has left.

    From a message that it begins to the next one that comes, the loop polls before it sleeps.

    Args:
        carrier: Moves the bytes.
        frames: The connection's end of the stream.
        loop: The loop of the carrier.
        spawn: Starts tasks.
        spin: Seconds for which the loop polls.
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
        self._anywhere = carrier.begins_anywhere
        self._spin = Spin(spin if self._anywhere else 0.0)  # other carriers have no other process
        self._answered = False  # a message came since a thread began one here
        self._begin_lock = threading.Lock()  # guards the next three; one message at a time
        self._open = True
        self._sending: Sending | None = None  # the last message that was begun
        self._held: bytes | None = None  # the next message, while that one is on its way

    def start(self, preamble: bytes) -> None:
        """Starts the task that reads, and begins the first message."""
        self._spawn(self._read())
        self._write(preamble)

    def wake(self) -> None:
        """Begins a message, here or on the loop."""
        if self._anywhere and self._answered and not self._loop.is_loop_thread():
            self._answered = False
            self._write()
        else:
            self._loop.call_soon(self._write)

    def let_go(self, farewell: Callable[[], bytes] | None) -> None:
        """Ends the task and begins no more messages; the farewell is sent behind the last one."""
        with self._begin_lock:
            self._open = False
        self._settle()
        self._spawn(self._end(farewell))

    def _is_open(self) -> bool:
        return self._open

    async def _read(self) -> None:
        try:
            while self._is_open():
                message = await self._carrier.receive()
                if not self._is_open():
                    return
                self._answered = True
                if self._loop.looks is self._spin:  # what comes next is for others to do
                    self._loop.looks = None
                self._frames.take(message)
        except READ_ERRORS as error:
            self._frames.failed(error)

    def _write(self, preamble: bytes = b"") -> None:
        """Begins the messages that can be begun now, with the turn; the loop does the rest."""
        try:
            over = self._begin(preamble)
        except CarrierClosedError as error:
            self._loop.call_soon(self._frames.failed, error)
        except BaseException as error:  # raised by a signal handler: a message may be lost
            self._loop.call_soon(self._frames.failed, CarrierClosedError(repr(error)))
            raise
        else:
            if not over:
                self._loop.call_soon(self._go_on)

    def _begin(self, preamble: bytes) -> bool:
        """Begins a message, if the last one has left; returns True if the turn is over."""
        with self._begin_lock:
            if not self._open:
                return True  # the next stream begins with the turn
            if not self._has_left():
                return False
            message = preamble or self._held or self._frames.next_message()
            self._held = None
            if message is None:
                return True
            self._loop.looks = self._spin
            self._sending = self._carrier.begin(message)
            if len(message) > KEPT_BYTES:
                return False  # it may take long: the next message is chosen when it has left
            self._held = self._frames.next_message()
            over = self._held is None
        if over and self._frames.ending:
            self._loop.call_soon(self._settle)
        return over

    def _has_left(self) -> bool:
        """Forgets the last message if it has left, under the lock; returns True if none is left."""
        sending = self._sending
        if sending is None:
            return True
        if not sending.done():
            return False
        self._sending = None
        try:
            sending.result()
        except asyncio.CancelledError as error:
            raise CarrierClosedError("the loop has ended") from error
        if self._frames.ending:
            self._frames.written()
        return True

    def _go_on(self) -> None:
        """Writes when the last message has left; on the loop, with the turn."""
        sending = self._sending
        if sending is None or sending.done():
            self._write()
        else:
            sending.add_done_callback(lambda _: self._write())

    def _settle(self, _: object = None) -> None:
        """Forgets the last message when it has left; on the loop."""
        try:
            with self._begin_lock:
                sending = None if self._has_left() else self._sending
            if sending is not None:
                sending.add_done_callback(self._settle)
        except CarrierClosedError as error:
            self._frames.failed(error)

    async def _end(self, farewell: Callable[[], bytes] | None) -> None:
        try:
            if farewell is not None:
                await self._say(farewell)
        finally:
            await self._carrier.close()

    async def _say(self, farewell: Callable[[], bytes]) -> None:
        try:
            async with asyncio.timeout(FAREWELL_SECONDS):
                await self._left()
                if self._held is not None:
                    await self._carrier.send(self._held)
                await self._carrier.send(farewell())
        except (TimeoutError, CarrierClosedError):
            logger.debug("%s takes no farewell", self._carrier.description)

    async def _left(self) -> None:
        """Waits until the last message has left."""
        sending = self._sending
        if sending is None or sending.done():
            return
        left = asyncio.Event()
        sending.add_done_callback(lambda _: left.set())
        await left.wait()
