"""A TCP proxy in between: it counts and keeps what passes, and cuts, holds or alters it."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType

LOCALHOST = "127.0.0.1"
BLOCK = 2**16


class Proxy:
    """Passes connections on to a port of this machine.

    Args:
        port: Where to.

    Attributes:
        cuts: For each of the next connections, the bytes both ways after which it is cut; None if it
            is not.
        hold_after: Bytes both ways of one connection after which nothing passes any more.
        holds_from: The first connection that is held; 1 for all.
        alter_at: The byte, of those that a dialler sends on one connection, that is altered.
        connections: How many came.
        seen: All that passed, both ways.
    """

    def __init__(self, port: int) -> None:
        self.cuts: list[int | None] = []
        self.hold_after: int | None = None
        self.holds_from = 1
        self.alter_at: int | None = None
        self.connections = 0
        self.seen = bytearray()
        self._to = port
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._ending = threading.Event()
        self._listener = socket.create_server((LOCALHOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ending.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()  # what it has taken is in the list now
        for each in self._open:
            _shut(each)
        for thread in self._threads:
            thread.join()
        for each in (*self._open, self._listener):
            each.close()

    def _start(self, function: object, *args: object) -> None:
        thread = threading.Thread(target=function, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                here, _ = self._listener.accept()
                there = socket.create_connection((LOCALHOST, self._to))
            except OSError:
                return
            with self._lock:
                self.connections += 1
                self._open += [here, there]
                passed = _Passed(self.connections, self.cuts.pop(0) if self.cuts else None)
            self._start(self._pass_on, here, there, passed, True)
            self._start(self._pass_on, there, here, passed, False)

    def _pass_on(
        self, source: socket.socket, sink: socket.socket, passed: _Passed, dialler: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while block := bytearray(source.recv(BLOCK)):
                with self._lock:
                    before, passed.bytes = passed.bytes, passed.bytes + len(block)
                    cut = passed.cut
                    if cut is not None and passed.bytes > cut:
                        block = block[: max(0, cut - before)]
                    at = self.alter_at
                    if dialler and at is not None and passed.up <= at < passed.up + len(block):
                        block[at - passed.up] ^= 1
                    passed.up += len(block) if dialler else 0
                    self.seen += block
                    held = self.hold_after is not None and passed.bytes > self.hold_after
                    held = held and passed.number >= self.holds_from
                if held:
                    self._ending.wait()
                    break
                sink.sendall(block)
                if cut is not None and passed.bytes > cut:
                    break
        _shut(source)
        _shut(sink)


class _Passed:
    """What passed on one connection, both ways and from the dialler."""

    def __init__(self, number: int, cut: int | None) -> None:
        self.number = number
        self.cut = cut
        self.bytes = self.up = 0


def _shut(open_socket: socket.socket) -> None:
    with contextlib.suppress(OSError):
        open_socket.shutdown(socket.SHUT_RDWR)
