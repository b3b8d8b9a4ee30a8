r"""The relay of the workers' output: whole lines, each with its rank in front.

    written by a worker          on a terminal                  elsewhere
    text\n                       [0] text\n                     [0] text\n
    text\r\n                     [0] text\n                     [0] text\n
    text\r                       [0] text, in place             nothing
    text (and the pipe ends)     [0] text\n                     [0] text\n

A line of one worker is never broken by another's. Nothing is decoded: bytes are passed on. The file
also holds the lines of JSON between a program and its local workers.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import BytesIO, RawIOBase
from typing import Any, NamedTuple, final

from telegrad.transport import escaped

# -- the relay -----------------------------------------------------------------------------------

LONGEST_LINE = 1 << 20  # a worker that never writes a newline must not fill our memory
TAIL_LINES = 200  # kept of each worker's stderr; a traceback with its causes fits
LAST_LINES = 20  # shown of a worker that failed without a traceback
TRACEBACK = b"Traceback (most recent call last):"
CHAIN_LINKS = (  # these words precede a traceback that belongs to the one above it
    b"direct cause of the following",
    b"another exception occurred",
    b"remote traceback, from",
)
CLEAR = b"\r\x1b[K"


@dataclass(frozen=True, slots=True)
class LogPiece:
    """A line, or a text that ended with a carriage return.

    Attributes:
        text: The text without its end.
        in_place: True if the next piece is to overwrite it.
    """

    text: bytes
    in_place: bool = False


@final
@dataclass(slots=True)
class LineSplitter:
    r"""Cuts one stream into pieces.

    Text before `\r` is returned as an in-place piece at once, and again as a line if `\n` follows.

    >>> splitter = LineSplitter()
    >>> splitter.feed(b"one\ntwo\rthr")
    [LogPiece(text=b'one', in_place=False), LogPiece(text=b'two', in_place=True)]
    >>> splitter.finish()
    [LogPiece(text=b'thr', in_place=False)]
    """

    _rest: bytes = b""
    _returned: bytes | None = None

    def feed(self, data: bytes) -> list[LogPiece]:
        """Takes the bytes that were read; returns the complete pieces."""
        pieces: list[LogPiece] = []
        while data:
            returned, self._returned = self._returned, None
            if returned is not None and data.startswith(b"\n"):
                pieces.append(LogPiece(returned))
                data = data[1:]
                continue
            end = _first_end(data)
            if end < 0:
                self._rest += data
                break
            text, mark, data = self._rest + data[:end], data[end : end + 1], data[end + 1 :]
            self._rest = b""
            if mark == b"\n":
                pieces.append(LogPiece(text))
                continue
            self._returned = text or returned or b""  # a terminal driver may write "\r\r\n"
            if text and not data.startswith(b"\n"):
                pieces.append(LogPiece(text, in_place=True))
        if len(self._rest) > LONGEST_LINE:
            pieces.append(LogPiece(self._rest))
            self._rest = b""
        return pieces

    def finish(self) -> list[LogPiece]:
        """Returns the last line if it lacks a newline."""
        rest, self._rest, self._returned = self._rest, b"", None
        return [LogPiece(rest)] if rest else []


def _first_end(data: bytes) -> int:
    newline, carriage = data.find(b"\n"), data.find(b"\r")
    if newline < 0 or carriage < 0:
        return max(newline, carriage)
    return min(newline, carriage)


@final
class Screen:
    """One of the launcher's own streams, which knows if an in-place text stands there.

    Args:
        stream: The stream; unbuffered, so that a failed write is never tried again at exit.
        terminal: True if the stream is a terminal.
        columns: The terminal's width; longer in-place texts are cut, as they would scroll.
    """

    def __init__(self, stream: RawIOBase | BytesIO, *, terminal: bool, columns: int = 80) -> None:
        self._stream = stream
        self._terminal = terminal
        self._columns = columns
        self._in_place = False

    def write(self, piece: LogPiece, prefix: bytes = b"") -> bool:
        """Writes a piece; returns True if that was a whole line.

        Raises:
            BrokenPipeError: Nobody reads the stream any more.
        """
        if piece.in_place:
            if self._terminal:
                self._put(CLEAR + (prefix + piece.text)[: self._columns - 1])
                self._in_place = True
            return False
        self.clear()
        self._put(prefix + piece.text + b"\n")
        return True

    def clear(self) -> None:
        """Removes the in-place text."""
        if self._in_place:
            self._in_place = False
            self._put(CLEAR)

    def _put(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            written = self._stream.write(view)
            if written is None:  # a full pipe that its reader has made non-blocking
                select.select([], [self._stream], [])
            else:
                view = view[written:]


class _Line(NamedTuple):
    """A line of a worker, with its number in the whole output and the time."""

    number: int
    at: float
    text: bytes


@final
@dataclass(slots=True)
class _Stream:
    """One stream of one worker."""

    splitter: LineSplitter = field(default_factory=LineSplitter)
    tail: deque[_Line] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))


@final
class LogRelay:
    """The relay from all workers' streams to the launcher's; used by one thread.

    Args:
        out: The screen for stdout.
        err: The screen for stderr.
        verb: The command after `telegrad`, which begins the launcher's own lines.

    Attributes:
        lines: The number of workers' lines that were written so far, to both streams.
    """

    def __init__(self, out: Screen, err: Screen, verb: str = "run") -> None:
        self._verb = verb
        self._screens = {"stdout": out, "stderr": err}
        self._streams: dict[tuple[int, str], _Stream] = {}
        self.lines = 0

    def feed(self, rank: int, stream: str, data: bytes) -> None:
        """Takes a worker's output to `stdout` or `stderr`; b"" means that the stream ended."""
        source = self._streams.setdefault((rank, stream), _Stream())
        pieces = source.splitter.feed(data) if data else source.splitter.finish()
        for piece in pieces:
            self._clear_others(stream)
            if self._screens[stream].write(piece, b"[%d] " % rank):
                self.lines += 1
                source.tail.append(_Line(self.lines, time.monotonic(), piece.text))

    def say(self, text: str) -> None:
        """Writes words of the launcher's own to stderr, which are not counted.

        They may quote others: further lines are indented, so that none looks like a line of the
        launcher or of a worker.
        """
        self._clear_others("stderr")
        text = escaped(text, lines=True, most=len(text)).replace("\n", "\n    ")
        self._screens["stderr"].write(LogPiece(f"telegrad {self._verb}: {text}".encode()))

    def last_traceback(self, rank: int) -> _Line | None:
        """Returns the line with which a worker's last traceback began; None if there is none."""
        lines = (line for line in reversed(self._stderr(rank)) if line.text.startswith(TRACEBACK))
        return next(lines, None)

    def show_traceback_last(self, rank: int) -> None:
        """Repeats a worker's last traceback, or its last lines, unless they are the last output."""
        kept = self._end_of(rank)
        if not kept or kept[0].number == self.lines - len(kept) + 1:
            return
        self.show(rank, [line.text for line in kept])

    def end_of(self, rank: int) -> list[bytes]:
        """Returns the last traceback of a worker, or its last lines."""
        return [line.text for line in self._end_of(rank)]

    def show(self, rank: int, lines: Sequence[bytes]) -> None:
        """Writes lines of a worker, perhaps one of another host, to stderr."""
        for line in lines:
            self._clear_others("stderr")
            if self._screens["stderr"].write(LogPiece(line), b"[%d] " % rank):
                self.lines += 1

    def clear(self) -> None:
        """Removes the in-place texts."""
        for screen in self._screens.values():
            screen.clear()

    def _end_of(self, rank: int) -> list[_Line]:
        tail = self._stderr(rank)
        began = _first_of_chain(tail)
        return tail[began:] if began is not None else tail[-LAST_LINES:]

    def _stderr(self, rank: int) -> list[_Line]:
        source = self._streams.get((rank, "stderr"))
        return list(source.tail) if source is not None else []

    def _clear_others(self, stream: str) -> None:
        for name, screen in self._screens.items():
            if name != stream:
                screen.clear()


def _first_of_chain(tail: list[_Line]) -> int | None:
    """Returns the start of the last traceback, including the causes and local part before it."""
    began = None
    for i in reversed(range(len(tail))):
        if not tail[i].text.startswith(TRACEBACK):
            continue
        began = i
        before = b"\n".join(line.text for line in tail[max(0, i - 3) : i])
        if not any(link in before for link in CHAIN_LINKS):
            break
    return began


# -- messages between a program and its local workers: lines of JSON over a pair of sockets ------


@final
class LineChannel:
    """One end of the pair of sockets. Any thread may send; one thread reads.

    Args:
        end: The socket; closed together with the channel.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._reader = end.makefile("rb")
        self._lock = threading.Lock()  # guards writes: a line is never broken

    def send(self, verb: str, **fields: object) -> bool:
        """Sends a message; returns True if the other end is still there."""
        line = json.dumps({"verb": verb, **fields}).encode() + b"\n"
        try:
            with self._lock:
                self._socket.sendall(line)
        except OSError:
            return False
        return True

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yields the messages that arrive, until the other end is closed or gone."""
        try:
            for line in self._reader:
                yield json.loads(line)
        except (OSError, ValueError):  # closed here, or cut off in the middle
            return
        finally:
            self._reader.close()  # it would keep the descriptor open

    def close(self) -> None:
        """Ends both directions, including a read that waits; idempotent."""
        with contextlib.suppress(OSError):  # the other end has closed before
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
