"""Moving the frames of a stream without a hop to the loop.

    write   the thread that posts has the writer's turn, and writes; what the socket has no room for
            the loop sends, with the turn
    read    whoever watches all sockets of the exchange: its leader, or the loop (`handle_set`); a
            caller that waits for a reply takes the socket out of those, and reads itself (`drive`),
            unless what comes is requests: to hand them over takes a wake-up each
    gather  what is posted by a thread that posts one request after the other leaves with every
            thirty-second, when somebody waits, or when the loop looks, each millisecond. The
            socket is not watched until then, and read when the loop looks: who posts is held up at the
            interpreter's lock seldom

Who reads hands over replies, and requests that any thread may take; everything else goes to the loop.
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
from telegrad.transport.io.handle_set import LONGEST_POLL, MOST_REQUESTS, NOBODY, HandleSet
from telegrad.transport.io.loop_reader import LoopReader
from telegrad.transport.io.pump import READ_ERRORS, Frames, Gate, Pump
from telegrad.transport.io.spin import Shield, Spin
from telegrad.transport.loop import LoopThread, handing_context

__all__ = ["GATHERED", "DirectPump"]

BATCH = 64  # messages that are read of one stream before others have their turn
# A thread that posts again so soon posts many: it leaves them to the loop, which writes them as one.
BURST_SECONDS = 50e-6
# So many requests in a row of that kind, and what is posted is gathered: who sends three calls and does
# not wait for their replies has each written at once. A wake-up of the loop takes longer than a write.
BURSTS = 4
# At 15 us a request half a millisecond: the other end has something to do while more is gathered.
GATHERED = 32
LOOK_SECONDS = 0.001  # between two looks of the loop, as the executor's; it counts no less


@final
class DirectPump(Pump):
    """Moves messages in whatever thread wants them moved.

    Args:
        direct: What moves the bytes.
        frames: The other end.
        loop: Who does what threads leave over.
        handles: Where the socket is watched while nobody waits for this peer.
        spin: Seconds for which a thread that waits looks before it sleeps.

    Attributes:
        gathers: Whether the writer's turn is kept for whoever comes first; see `hurry`.

    Raises:
        CarrierClosedError: It has ended here already.
    """

    def __init__(
        self, direct: Direct, frames: Frames, loop: LoopThread, handles: HandleSet, spin: float
    ) -> None:
        if (descriptor := direct.fileno()) < 0:
            raise CarrierClosedError("the local stream was closed before it was used")
        self._handles = handles
        self._descriptor = descriptor
        self._longest_spin = spin
        self._spin = Spin(spin)
        self._direct = direct
        self._frames = frames
        self._loop = loop
        self._context = handing_context()  # in which a waiting thread reads
        self._last_write = 0.0
        self._bursts = 0  # in a row
        self._kept_turn = threading.Lock()  # free while the turn is kept for who takes this
        self._kept_turn.acquire()
        self._draining = False  # on the loop alone
        self._reader: LoopReader | None = None  # on a loop of the user's
        self._fds_lock = threading.Lock()  # guards the next nine
        self._open = True
        self.gathers = False
        self._out_for_posts = False  # one of those below is who posts
        self._gathered = 0  # how often the turn was kept
        self._seen = -1  # of that, when the loop looked
        self._out = 0  # how many read it themselves, so that others do not watch
        self._watched = False
        self._driver = NOBODY
        self._shield = Shield()  # of the thread that drives, which alone looks at it
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = _poll_of(self._event, descriptor)  # of the thread that drives

    def start(self, preamble: bytes) -> None:
        """Has the socket watched, and writes what waits."""
        with self._fds_lock:
            self._watched = True
            if self._open:
                self._handles.add(self._descriptor, self)
                if self._out:
                    self._handles.pause(self._descriptor)
        self._write(preamble)
        # What came behind the handshake is in the buffer of the socket's object.
        self._loop.call_soon(self.read)

    def wake(self, *, request: bool = False) -> None:
        """Writes, here; of many in a row replies are left to who leads, or the loop, requests gathered.

        Args:
            request: Whether who posts is going to wait for a reply, most likely.
        """
        now = time.monotonic()
        burst = now - self._last_write < BURST_SECONDS
        self._last_write = now
        if not burst or self._loop.is_loop_thread():
            self._bursts = 0
            self._write()
            return
        self._bursts += 1
        if self._handles.defer(self._write_many):
            return
        if not request:
            self._loop.call_soon(self._write_many)
        elif self._bursts < BURSTS:
            self._write()
        else:
            self._keep_turn()

    def hurry(self) -> None:
        """Writes what is gathered, if nobody does; from any thread."""
        with Shield():
            if self._kept_turn.acquire(blocking=False):
                self._write_many()

    def end_gathering(self) -> None:
        """Writes what is gathered, and has the socket watched: somebody begins to read all of them."""
        with Shield(), self._fds_lock:
            self._give_back()
        self.hurry()

    def let_go(self, farewell: Callable[[], bytes] | None) -> None:
        """Ends the stream, behind a last message if the socket has room for it. Idempotent."""
        loop = asyncio.get_running_loop()
        with self._fds_lock:
            if not self._open:
                return
            self._open = False
            self._handles.remove(self._descriptor)
        if self._draining:
            self._draining = False
            loop.remove_writer(self._direct.fileno())
            self._direct.end_writing()
        elif farewell is not None and self._direct.begin_writing(wait=False):
            with contextlib.suppress(CarrierClosedError):
                self._direct.put(farewell())
            self._direct.end_writing()
        self._direct.end()
        if self._reader is not None:
            self._reader.close()
        self._close_unused()

    def drive(self, gate: Gate, seconds: float) -> None:
        """Reads here until the gate is open; returns at once where another thread does."""
        if self.gathers:
            self.hurry()
        # A signal handler may wait here while its own thread, below, polls: it reads in its turn.
        is_inner = self._driver == threading.get_ident() and self._shield.polling
        with Shield() as shield:
            if not is_inner and not self._begin_drive():
                return
            outer, self._shield = self._shield, shield
            poll, most = self._poll, float(MOST_REQUESTS)
            if is_inner:  # a poll object must not be polled twice at once; and nobody else can read
                poll, most = _poll_of(self._event, self._descriptor), math.inf
            deadline = time.monotonic() + seconds
            try:
                gate.wake_with(self._wake_driver)
                self._read_until(gate, deadline, most, shield, poll)
            except READ_ERRORS as error:
                self._loop.call_soon(self._frames.failed, error)
            except BaseException as error:  # raised by a signal handler: a message may be lost
                if not shield.in_wait:
                    self._loop.call_soon(self._frames.failed, CarrierClosedError(repr(error)))
                raise
            finally:
                gate.wake_with(None)
                self._shield = outer
                if is_inner:
                    os.eventfd_write(self._event, 1)  # its reply may have come, or be in the buffer
                else:
                    self._end_drive()

    def drive_on(self, loop: asyncio.AbstractEventLoop) -> Callable[[], None] | None:
        """Has a loop of the user's read here, the one that runs; see `Pump`."""
        if self.gathers:
            loop.call_soon(self.hurry)  # when all coroutines have posted that are ready to
        reader = self._reader
        if reader is None or reader.loop is not loop:
            if reader is not None and not reader.loop.is_closed():
                return None  # another loop does
            if self._loop.is_loop_thread():
                return None  # it reads anyway
            with self._fds_lock:
                if not self._open or self._reader is not reader:
                    return None
                left, reader = reader, LoopReader(self, self._descriptor, loop, self._longest_spin)
                self._reader = reader
            if left is not None:
                left.close()
        return reader.begin()

    def moved(self, size: int) -> None:
        """Hears that big parts of so many bytes went, or came, for which a wait may last longer."""
        self._spin.moved(size)
        self._handles.moved(size)
        if (reader := self._reader) is not None:
            reader.moved(size)

    def take_out(self) -> None:
        """Has telegrad's threads watch the socket no more, while a loop of the user's does."""
        with self._fds_lock:
            self._pause()

    def put_back(self) -> None:
        """Has them watch it again."""
        with self._fds_lock:
            self._resume()

    def tick(self) -> None:
        """Looks whether whoever reads comes to do so; on the loop, now and then."""
        if self._reader is not None:
            self._reader.tick()

    def _read_until(
        self, gate: Gate, deadline: float, most: float, shield: Shield, poll: select.poll
    ) -> None:
        direct = self._direct
        ready, requests = direct.holds_more, 0
        while not gate.is_open() and (requests < most or self._is_out_for_others()):
            if ready:
                if (message := direct.take()) is not None:
                    requests += self._context.run(self._frames.take, message)
                ready = message is not None and direct.holds_more
                continue
            left = deadline - time.monotonic()
            if left <= 0:
                return
            milliseconds = math.ceil(1000 * min(left, LONGEST_POLL))
            for descriptor, _ in shield.wait(self._spin.poll, poll.poll, milliseconds):
                if descriptor == self._event:
                    with contextlib.suppress(BlockingIOError):  # a signal handler has read it
                        os.eventfd_read(descriptor)
                    ready = ready or direct.holds_more
                else:
                    ready = True

    def _is_out_for_others(self) -> bool:
        """Whether nobody watches the socket when this thread leaves: a loop of the user's has it, too.

        That may be the loop that this very thread runs, and holds up.
        """
        return self._out > 1 + self._out_for_posts

    def _begin_drive(self) -> bool:
        if not self._direct.begin_reading():
            return False
        with self._fds_lock:
            if self._open:
                self._driver = threading.get_ident()
                self._pause()
                return True
        self._direct.end_reading()
        return False

    def _end_drive(self) -> None:
        with self._fds_lock:
            self._driver = NOBODY
            self._resume()
        more = self._direct.holds_more
        self._direct.end_reading()
        if more:
            self._loop.call_soon(self.read)
        self._close_unused()

    def _pause(self) -> None:
        """Has nobody else watch the socket. Holds the lock."""
        self._out += 1
        if self._out == 1 and self._open:
            self._handles.pause(self._descriptor)

    def _resume(self) -> None:
        """Ends what `_pause` began; who has read leaves it to others, those who wait. Holds the lock."""
        self._out -= 1 + self._out_for_posts
        self._out_for_posts = False
        if not self._out and self._open and self._watched:
            self._handles.resume(self._descriptor)

    def _give_back(self) -> None:
        """Has the socket watched that was not while somebody posts. Holds the lock."""
        if self._out_for_posts:
            self._out_for_posts = False
            self._resume()

    def _wake_driver(self) -> None:
        """Wakes the thread that drives, if its gate was opened by another."""
        with self._fds_lock:
            if self._driver not in (NOBODY, threading.get_ident()):
                os.eventfd_write(self._event, 1)

    def _close_unused(self) -> None:
        with self._fds_lock:
            if not self._open and self._driver == NOBODY and self._event >= 0:
                os.close(self._event)
                self._event = -1

    def read(self) -> int:
        """Reads what is there, unless somebody else does; on the loop, or in the thread that leads.

        Returns:
            How many messages brought requests.
        """
        direct, take, requests = self._direct, self._frames.take, 0
        if not self._open or not direct.begin_reading():
            return 0
        try:
            for _ in range(BATCH):
                if (message := direct.take()) is None:
                    return requests
                requests += take(message)
                if not direct.holds_more:
                    return requests  # if there is more, whoever polls next is told
        except READ_ERRORS as error:
            self._fail(error)
            return requests
        except BaseException as error:  # a message may be lost, and with it this stream
            self._fail(CarrierClosedError(repr(error)))
            if not isinstance(error, Exception):  # raised by a signal handler
                raise
            return requests
        finally:
            direct.end_reading()
        self._loop.call_soon(self.read)  # the rest may be in the buffer, which no poll sees
        return requests

    def _fail(self, error: Exception) -> None:
        """Ends the stream on the loop; in the reader's role, so that the descriptor is open still."""
        self._handles.pause(self._descriptor)
        self._loop.call_soon(self._frames.failed, error)

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

    def _write_many(self) -> None:
        """Writes what threads have left to others; they go on to post, perhaps at once."""
        self._write()
        self._last_write = time.monotonic()

    def _keep_turn(self) -> None:
        """Leaves the turn to whoever comes first; the loop comes each millisecond."""
        with Shield(), self._fds_lock:
            if not self._out_for_posts:
                self._out_for_posts = True
                self._pause()
            if not self.gathers:
                self.gathers = True
                self._handles.gathering.add(self)
                handing_context().run(self._loop.call_soon, self._look)
            self._gathered += 1
            self._kept_turn.release()

    def _look(self) -> None:
        """Writes what is gathered, and reads what came; on the loop, until no more is gathered."""
        with self._fds_lock:
            over = not self._open or self._gathered == self._seen
            self._seen = self._gathered
            # Or somebody does who waits; a loop of the user's that is held up is given up by the tick.
            reads = self._out == self._out_for_posts
            if over:  # first: who keeps the turn from now on has the loop look again
                self.gathers = False
                self._handles.gathering.discard(self)
                self._give_back()
        self.hurry()
        if not over:
            if reads:
                self.read()
            self._loop.loop.call_later(LOOK_SECONDS, self._look)

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


def _poll_of(*descriptors: int) -> select.poll:
    poll = select.poll()
    for each in descriptors:
        poll.register(each, select.POLLIN)
    return poll
