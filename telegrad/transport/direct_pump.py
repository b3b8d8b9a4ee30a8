"""Moving the frames of a stream without a hop to the loop.

    write   the thread that posts has the writer's turn, and writes; what the socket has no room for
            the loop sends, with the turn
    read    the loop, by a descriptor of epoll's that stands for the socket (`_readable`); while a
            caller waits for a reply the socket is taken out of that, and its thread reads (`drive`)

A thread that reads hands over replies itself, its own among them; everything else goes to the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import select
import threading
import time
from collections.abc import Callable
from typing import final

from telegrad.transport.base import CarrierClosedError, Direct
from telegrad.transport.interrupts import Shield
from telegrad.transport.loop import LoopThread, handing_context
from telegrad.transport.pump import READ_ERRORS, Frames, Gate, Pump

__all__ = ["DirectPump"]

NOBODY = 0  # no thread has this number
BATCH = 64  # messages that the loop reads of one stream before others have their turn
LONGEST_POLL = 3600.0  # seconds; the argument of poll() is a C int of milliseconds
# A thread that posts again so soon posts many: it leaves them to the loop, which writes them as one.
BURST_SECONDS = 50e-6


@final
class DirectPump(Pump):
    """Moves messages in whatever thread wants them moved.

    Args:
        direct: What moves the bytes.
        frames: The other end.
        loop: Who reads when nobody waits.

    Raises:
        CarrierClosedError: It has ended here already.
    """

    def __init__(self, direct: Direct, frames: Frames, loop: LoopThread) -> None:
        if (descriptor := direct.fileno()) < 0:
            raise CarrierClosedError("the local stream was closed before it was used")
        self._direct = direct
        self._frames = frames
        self._loop = loop
        self._context = handing_context()  # in which a waiting thread reads
        self._last_write = 0.0
        self._draining = False  # on the loop alone
        self._fds_lock = threading.Lock()  # guards the next four
        self._open = True
        self._driver = NOBODY
        self._epoll = select.epoll()
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()  # of the thread that drives
        self._poll.register(self._event, select.POLLIN)
        self._poll.register(descriptor, select.POLLIN)
        self._epoll.register(descriptor, select.EPOLLIN)

    def start(self, preamble: bytes) -> None:
        """Has the loop read, and writes what waits."""
        asyncio.get_running_loop().add_reader(self._epoll.fileno(), self._readable)
        self._write(preamble)
        self._loop.call_soon(
            self._readable
        )  # what came behind the handshake is in the buffer of the socket's object

    def wake(self) -> None:
        """Writes, here; one of many in a row is left to the loop."""
        now = time.monotonic()
        burst = now - self._last_write < BURST_SECONDS
        self._last_write = now
        if burst and not self._loop.is_loop_thread():
            self._loop.call_soon(self._write)
        else:
            self._write()

    def let_go(self, farewell: Callable[[], bytes] | None) -> None:
        """Ends the stream, behind a last message if the socket has room for it. Idempotent."""
        loop = asyncio.get_running_loop()
        with self._fds_lock:
            if not self._open:
                return
            self._open = False
            loop.remove_reader(self._epoll.fileno())
        if self._draining:
            self._draining = False
            loop.remove_writer(self._direct.fileno())
            self._direct.end_writing()
        elif farewell is not None and self._direct.begin_writing(wait=False):
            with contextlib.suppress(CarrierClosedError):
                self._direct.put(farewell())
            self._direct.end_writing()
        self._direct.end()
        self._close_unused()

    def drive(self, gate: Gate, seconds: float) -> None:
        """Reads here until the gate is open; returns at once where another thread does."""
        with Shield() as shield:
            if not self._begin_drive():
                return
            deadline = time.monotonic() + seconds
            try:
                gate.wake_with(self._wake_driver)
                self._read_until(gate, deadline, shield)
            except READ_ERRORS as error:
                self._loop.call_soon(self._frames.failed, error)
            except BaseException as error:  # raised by a signal handler: a message may be lost
                if not shield.in_poll:
                    self._loop.call_soon(self._frames.failed, CarrierClosedError(repr(error)))
                raise
            finally:
                gate.wake_with(None)
                self._end_drive()

    def _read_until(self, gate: Gate, deadline: float, shield: Shield) -> None:
        direct = self._direct
        while not gate.is_open():
            if (message := direct.take()) is not None:
                self._context.run(self._frames.take, message)
                continue
            left = deadline - time.monotonic()
            if left <= 0:
                return
            milliseconds = math.ceil(1000 * min(left, LONGEST_POLL))
            ready = shield.poll(self._poll, milliseconds)
            if any(fd == self._event for fd, _ in ready):
                os.eventfd_read(self._event)

    def _begin_drive(self) -> bool:
        if not self._direct.begin_reading():
            return False
        with self._fds_lock:
            if self._open:
                self._driver = threading.get_ident()
                self._epoll.unregister(self._direct.fileno())
                return True
        self._direct.end_reading()
        return False

    def _end_drive(self) -> None:
        with self._fds_lock:
            self._driver = NOBODY
            if self._open:
                self._epoll.register(self._direct.fileno(), select.EPOLLIN)
        more = self._direct.holds_more
        self._direct.end_reading()
        if more:
            self._loop.call_soon(self._readable)
        self._close_unused()

    def _wake_driver(self) -> None:
        """Wakes the thread that drives, if its gate was opened by another."""
        with self._fds_lock:
            if self._driver not in (NOBODY, threading.get_ident()):
                os.eventfd_write(self._event, 1)

    def _close_unused(self) -> None:
        with self._fds_lock:
            if not self._open and self._driver == NOBODY and not self._epoll.closed:
                self._epoll.close()
                os.close(self._event)

    def _readable(self) -> None:
        """Reads what is there; on the loop."""
        if not self._open or not self._direct.begin_reading():
            return
        try:
            for _ in range(BATCH):
                if (message := self._direct.take()) is None:
                    return
                self._frames.take(message)
        except READ_ERRORS as error:
            self._frames.failed(error)
            return
        finally:
            self._direct.end_reading()
        self._loop.call_soon(self._readable)  # the rest may be in the buffer, which no poll sees

    def _write(self, preamble: bytes = b"") -> None:
        """Writes until nothing is left, in the thread that has the turn."""
        direct = self._direct
        if not direct.begin_writing():
            return  # the stream has ended, and the next one begins with the turn
        kept = False
        try:
            message: bytes | None = preamble or self._frames.next_message()
            while message is not None:
                kept = not direct.put(message)
                if kept:
                    self._loop.call_soon(self._drain)
                    return
                self._frames.written()
                message = self._frames.next_message()
        except CarrierClosedError as error:
            self._loop.call_soon(self._frames.failed, error)
        except BaseException as error:  # raised by a signal handler: half a frame may have left
            self._loop.call_soon(self._frames.failed, CarrierClosedError(repr(error)))
            raise
        finally:
            if not kept:
                direct.end_writing()

    def _drain(self) -> None:
        """Sends what the socket had no room for, as it gets some; on the loop."""
        if not self._open:
            self._direct.end_writing()
            return
        self._draining = True
        asyncio.get_running_loop().add_writer(self._direct.fileno(), self._writable)

    def _writable(self) -> None:
        try:
            if not self._direct.flush():
                return
        except CarrierClosedError as error:
            self._frames.failed(error)  # which lets go
            return
        self._draining = False
        asyncio.get_running_loop().remove_writer(self._direct.fileno())
        self._direct.end_writing()
        self._frames.written()
        self._write()
