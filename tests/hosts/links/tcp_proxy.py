"""A TCP proxy that delays, throttles, stalls and breaks what passes through it, by a seed.

    dialler ──▶ 127.0.0.2:port  proxy  127.0.0.1:port ◀── a worker that advertises 127.0.0.2

It knows bytes alone, so that it breaks connections at any of them: inside a frame, a TLS record, a
handshake.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, final

__all__ = ["Behaviour", "TcpProxy", "in_front_of"]

CHUNK: Final = 65536
BACKLOG: Final = 100
LOOK: Final = 0.01  # seconds
UNDER_WAY: Final = 64  # chunks that one direction of a connection may hold: 4 MiB
LIMIT: Final = 10.0  # seconds for the proxy itself to begin and to end


@dataclass
class Behaviour:
    """What a proxy does; any of it may be changed at any time, by any thread.

    Attributes:
        delay: Seconds that each byte takes each way.
        rate: Bytes in a second, each way of each connection; 0 for no bound.
        stalled: Whether nothing is handed on, and connections stay open.
        resets: How many connections are reset from now on, each after so many bytes as the seed says.
        longest: The most bytes before a reset; as many are below a tenth of it as above, and so on.
    """

    delay: float = 0.0
    rate: float = 0.0
    stalled: bool = False
    resets: int = 0
    longest: int = 4 * 2**20


@final
class TcpProxy:
    """Hands on what comes to one address to another one, on a loop and a thread of its own.

    Args:
        host: Where it listens.
        target: To whom it hands on; the port is the same.
        port: Of both.
        behaviour: What it does wrong.
        seed: Chooses after how many bytes connections are reset.
    """

    def __init__(
        self, host: str, target: str, port: int, behaviour: Behaviour, *, seed: int = 0
    ) -> None:
        self.behaviour = behaviour
        self.accepted = 0
        self.resets = 0
        self._address, self._target, self._port = host, target, port
        self._random = random.Random(seed)
        self._writers: set[asyncio.StreamWriter] = set()
        self._handlers: set[asyncio.Task[None]] = set()
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="tcp-proxy")

    def __enter__(self) -> TcpProxy:
        self._thread.start()
        assert self._ready.wait(LIMIT), "the proxy does not listen"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(LIMIT)
        assert not self._thread.is_alive(), "the proxy does not end"

    def reset_all(self) -> None:
        """Resets all connections that there are now."""
        done = asyncio.run_coroutine_threadsafe(self._reset_all(), self._loop)
        done.result(LIMIT)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        with socket.create_server((self._address, self._port), backlog=BACKLOG) as listening:
            listening.setblocking(False)
            self._ready.set()
            stopping = asyncio.ensure_future(self._stop.wait())
            while not stopping.done():
                accepting = asyncio.ensure_future(self._loop.sock_accept(listening))
                await asyncio.wait({accepting, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if accepting.done():
                    self._begin(accepting.result()[0])
                else:
                    accepting.cancel()  # which accepts nothing any more
        for handler in self._handlers:
            handler.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)

    def _begin(self, sock: socket.socket) -> None:
        """Begins to hand on what an accepted connection brings."""
        self.accepted += 1
        sock.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
        )  # asyncio does so for its own alone
        handler = asyncio.ensure_future(self._hand_on(sock))
        self._handlers.add(handler)
        handler.add_done_callback(self._handlers.discard)
        handler.add_done_callback(lambda _: sock.close())  # also of one that never ran

    async def _reset_all(self) -> None:
        for writer in [*self._writers]:
            _reset(writer)

    async def _hand_on(self, sock: socket.socket) -> None:
        """Hands on both directions of a connection until one breaks or both have ended."""
        pair: list[asyncio.StreamWriter] = []
        left = self._bytes_to_reset()
        try:
            from_here, here = await asyncio.open_connection(sock=sock)
            pair.append(here)
            from_there, there = await asyncio.open_connection(self._target, self._port)
            pair.append(there)
            self._writers.update(pair)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(from_here, there, left))
                group.create_task(self._pump(from_there, here, left))
        except* OSError:
            pass
        finally:
            self._writers.difference_update(pair)
            for each in pair:
                _reset(each)

    async def _going_on(self) -> None:
        """Waits while everything is to stand still."""
        while self.behaviour.stalled:  # noqa: ASYNC110 - any thread may change it
            await asyncio.sleep(LOOK)

    def _bytes_to_reset(self) -> list[int] | None:
        """Draws how many bytes a connection hands on, both ways together, in a cell that shrinks."""
        if self.behaviour.resets <= 0:
            return None
        return [int(self.behaviour.longest ** self._random.uniform(0.3, 1.0))]

    def _break_after(self, left: list[int], data: bytes, writer: asyncio.StreamWriter) -> None:
        """Raises ConnectionResetError where a connection is to break within what comes next."""
        left[0] -= len(data)
        if left[0] <= 0 < self.behaviour.resets:
            writer.write(data[: left[0] or None])
            self.behaviour.resets -= 1
            self.resets += 1
            raise ConnectionResetError("as the seed says")

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: list[int] | None
    ) -> None:
        """Hands on one direction until it ends; raises ConnectionResetError where it is to break."""
        under_way: asyncio.Queue[tuple[float, bytes | None]] = asyncio.Queue(UNDER_WAY)

        async def read() -> None:
            data: bytes | None = b"something"
            while data:
                try:
                    data = await reader.read(CHUNK)
                except OSError:
                    data = None
                await under_way.put((self._loop.time() + self.behaviour.delay, data))

        reading = asyncio.ensure_future(read())
        try:
            while True:
                due, data = await under_way.get()
                await asyncio.sleep(max(0.0, due - self._loop.time()))
                await self._going_on()
                if data is None:
                    raise ConnectionResetError("as the other side is")
                if not data:
                    writer.write_eof()
                    return
                if left is not None:
                    self._break_after(left, data, writer)
                writer.write(data)
                await writer.drain()
                if self.behaviour.rate:
                    await asyncio.sleep(len(data) / self.behaviour.rate)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Ends a connection so that the other end hears of a reset, not of an orderly end."""
    sock = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@contextlib.contextmanager
def in_front_of(port: int, behaviour: Behaviour, *, seed: int = 0) -> Iterator[TcpProxy]:
    """Runs a proxy at 127.0.0.2 before a port of 127.0.0.1."""
    with TcpProxy("127.0.0.2", "127.0.0.1", port, behaviour, seed=seed) as proxy:
        yield proxy
