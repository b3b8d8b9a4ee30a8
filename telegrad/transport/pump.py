"""What moves the frames of one stream between its carrier and its connection.

    TaskPump     two tasks on the loop: one reads, one writes; any carrier
    DirectPump   whichever thread has something to write, or waits for a reply (`direct_pump`)

The writer's turn is given once: by `wake`, from the thread that found that nobody had it, and it
ends when `next_message` returns None.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, final

from telegrad.errors import DecodeError
from telegrad.transport.base import Carrier, CarrierClosedError
from telegrad.transport.loop import LoopThread
from telegrad.transport.tags import BadTagError

__all__ = ["READ_ERRORS", "Frames", "Gate", "Pump", "TaskPump"]

logger = logging.getLogger(__name__)

# What ends a stream when it comes out of reading: it broke, or the peer did what no worker does.
READ_ERRORS = (CarrierClosedError, BadTagError, DecodeError)

# How long a goodbye that answers another may take to leave before its carrier is closed.
FAREWELL_SECONDS = 1.0


class Gate(Protocol):
    """What a caller waits at; see `rpc.gate`."""

    def is_open(self) -> bool:
        """Tells whether it was opened."""

    def wake_with(self, wake: Callable[[], None] | None) -> None:
        """Says what wakes the waiting thread when it is opened by another one."""


class Frames(Protocol):
    """The connection's end of a stream: where its messages come from and go to."""

    def next_message(self) -> bytes | None:
        """Returns what to write next; None ends the writer's turn. In the thread that has it."""

    def written(self) -> None:
        """Hears that a message has left. In the thread that has the turn."""

    def take(self, message: bytes) -> None:
        """Takes a message that came. In one thread at a time.

        Raises:
            BadTagError: The peer did not write it, or not at this place.
            DecodeError: It breaks the protocol.
        """

    def failed(self, error: BaseException) -> None:
        """Hears that reading or writing came to an end; on the loop."""


class Pump(ABC):
    """Moves messages until it is let go."""

    @abstractmethod
    def start(self, preamble: bytes) -> None:
        """Begins, with the writer's turn; on the loop.

        Args:
            preamble: What has to be sent before the first frame.
        """

    @abstractmethod
    def wake(self) -> None:
        """Begins the writer's turn; from any thread."""

    @abstractmethod
    def let_go(self, farewell: Callable[[], bytes] | None) -> None:
        """Reads no more and writes no more; on the loop.

        Args:
            farewell: Makes a last message, behind all others; None for none.
        """

    @abstractmethod
    def drive(self, gate: Gate, seconds: float) -> None:
        """Reads in the calling thread until a gate is open, for so many seconds, or not at all."""


@final
class TaskPump(Pump):
    """Two tasks on the loop.

    Args:
        carrier: What moves the bytes.
        frames: The other end.
        loop: Where the tasks run.
        spawn: Starts them.
    """

    def __init__(
        self,
        carrier: Carrier,
        frames: Frames,
        loop: LoopThread,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._carrier = carrier
        self._frames = frames
        self._loop = loop
        self._spawn = spawn
        self._work = asyncio.Event()
        self._open = True
        self._farewell: Callable[[], bytes] | None = None

    def start(self, preamble: bytes) -> None:
        """Starts both tasks."""
        self._spawn(self._read())
        self._spawn(self._write(preamble))

    def wake(self) -> None:
        """Wakes the writing task."""
        if self._loop.is_loop_thread():
            self._work.set()
        else:
            self._loop.call_soon(self._work.set)

    def let_go(self, farewell: Callable[[], bytes] | None) -> None:
        """Ends both tasks; the writing one says the farewell."""
        self._open = False
        self._farewell = farewell
        self._work.set()
        if farewell is None:
            self._spawn(self._carrier.close())

    def _is_open(self) -> bool:
        return self._open

    async def _read(self) -> None:
        try:
            while self._is_open():
                message = await self._carrier.receive()
                if not self._is_open():
                    return
                self._frames.take(message)
        except READ_ERRORS as error:
            self._frames.failed(error)

    async def _write(self, preamble: bytes) -> None:
        try:
            if preamble:
                await self._carrier.send(preamble)
            while self._is_open():
                self._work.clear()
                message = self._frames.next_message()
                if message is None:
                    await self._work.wait()
                else:
                    await self._carrier.send(message)
                    self._frames.written()
            if self._farewell is not None:
                await self._say(self._farewell)
        except CarrierClosedError as error:
            self._frames.failed(error)
            if not self._is_open():  # let go with a farewell that could not be said
                await self._carrier.close()

    def drive(self, gate: Gate, seconds: float) -> None:
        """Returns at once: the loop alone reads."""

    async def _say(self, farewell: Callable[[], bytes]) -> None:
        try:
            async with asyncio.timeout(FAREWELL_SECONDS):
                await self._carrier.send(farewell())
        except TimeoutError:
            logger.debug("%s takes no farewell", self._carrier.description)
        finally:
            await self._carrier.close()
