"""One local worker as the program that started it sees it: a process, its messages, its output."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any, final

from telegrad.distributed import is_project_module
from telegrad.errors import DuplicateNameError, RendezvousError, RendezvousTimeoutError
from telegrad.launch.line_channel import LineChannel
from telegrad.launch.log_relay import LineSplitter, Piece
from telegrad.launch.policy import describe

__all__ = ["LocalProcess"]

READ_BYTES = 1 << 16
# The path comes as an argument, so that telegrad is found where the program has found it.
BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from telegrad.launch.local_worker import main; main(int(sys.argv[2]), int(sys.argv[3]))"
)


@final
class LocalProcess:
    """A process in a session of its own, so that an interrupt of the program does not reach it.

    Args:
        environ: Its environment.
        label: What stands before the lines that it writes, until it has a name.
    """

    def __init__(self, environ: Mapping[str, str], label: str) -> None:
        self.name = label
        self._received: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._told_to_leave = False
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-u", "-c", BOOTSTRAP),
                    *(json.dumps(own_path()), str(theirs.fileno()), str(os.getpid())),
                ],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._channel = LineChannel(ours)
        self._relaying, self._to_relay = os.pipe()  # ends the relay when its session is dead
        self._threads = [
            threading.Thread(target=target, name=f"{name}-{self._process.pid}", daemon=True)
            for name, target in (("local-reader", self._read), ("local-output", self._relay))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def living(self) -> bool:
        """Whether it runs."""
        return not self._exited(0.0)

    def send(self, verb: str, **fields: object) -> None:
        """Tells it something; dropped when it is gone."""
        self._channel.send(verb, **fields)

    def expect(self, verb: str, deadline: float, timeout: float) -> dict[str, Any]:
        """Returns its next message, which must be of this verb.

        Args:
            verb: What it is to say.
            deadline: Until when, of the monotonic clock.
            timeout: How long the whole start may take, for the error.

        Raises:
            RendezvousTimeoutError: It did not say it in time.
            DuplicateNameError: Another worker has its name.
            RendezvousError: It failed otherwise, or is gone.
        """
        try:
            message = self._received.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise RendezvousTimeoutError(
                f"local worker {self.name!r} was not {verb} within {timeout:g} s; give it longer "
                "with timeout=, or look at what it wrote"
            ) from None
        if message is None:
            raise RendezvousError(f"local worker {self.name!r} {self._end()} before it was {verb}")
        if message["verb"] == "failed":
            raise self._failure(message["type"], message["error"])
        return message

    def _failure(self, kind: str, words: str) -> Exception:
        if kind == DuplicateNameError.__name__:
            return DuplicateNameError(words)
        why = f"{kind}: {words}" if words else kind
        return RendezvousError(f"local worker {self.name!r} did not start: {why}")

    def leave(self) -> None:
        """Tells it to finish what it serves and to exit; does not wait."""
        self._told_to_leave = True
        self._channel.send("leave")

    def end(self, deadline: float) -> None:
        """Waits for its exit until the deadline, kills what is left of its session, and reaps it."""
        self._told_to_leave = True
        self._exited(max(0.0, deadline - time.monotonic()))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # not reaped yet, so the number is still its own
        self._process.wait()
        self._channel.close()
        os.close(self._to_relay)
        for thread in self._threads:
            thread.join()
        os.close(self._relaying)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def _exited(self, timeout: float) -> bool:
        """Waits for its exit; does not reap it."""
        if self._process.returncode is not None:
            return True
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:  # whoever waits for every child of the program has reaped it
            return True
        try:
            return bool(select.select([descriptor], [], [], timeout)[0])
        finally:
            os.close(descriptor)

    def _end(self) -> str:
        """Says how it ended."""
        if not self._exited(1.0):
            return "closed its line"
        try:
            ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return "is gone"
        if ended is None:
            return "is gone"
        code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        return describe(code)

    def _read(self) -> None:
        for message in self._channel.messages():
            if message["verb"] == "imported":
                name = message["name"]
                known = is_project_module(name)
                self._channel.send("known", name=name, known=known, path=own_path())
            else:
                self._received.put(message)
        self._received.put(None)

    def _relay(self) -> None:
        """Passes on what it writes, line by line, until the pipes are closed or it was reaped.

        What it has started in a session of its own may hold the pipes open for ever.
        """
        with selectors.DefaultSelector() as selector:
            for kind, pipe in (("stdout", self._process.stdout), ("stderr", self._process.stderr)):
                assert pipe is not None
                selector.register(pipe, selectors.EVENT_READ, (kind, LineSplitter()))
            selector.register(self._relaying, selectors.EVENT_READ)
            reaped = False
            while not reaped and len(selector.get_map()) > 1:
                ready = selector.select()
                reaped = any(key.data is None for key, _ in ready)
                for key, _ in selector.select(0.0) if reaped else ready:
                    if key.data is not None and not self._pass_on(key):
                        selector.unregister(key.fileobj)
            for kind, splitter in filter(None, (key.data for key in selector.get_map().values())):
                self._show_all(kind, splitter.finish())
        if not self._told_to_leave:
            self._exited(1.0)
            end = self._end()
            if end != describe(0):
                self._show("stderr", end.encode())

    def _pass_on(self, key: selectors.SelectorKey) -> bool:
        """Passes on what a pipe holds; returns whether there may be more."""
        kind, splitter = key.data
        data = os.read(key.fd, READ_BYTES)
        self._show_all(kind, splitter.feed(data) if data else splitter.finish())
        return bool(data)

    def _show_all(self, kind: str, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            if not piece.in_place:
                self._show(kind, piece.text)

    def _show(self, kind: str, line: bytes) -> None:
        """Writes to whatever stands for the stream now: a notebook's cell, a test's capture."""
        stream = sys.stdout if kind == "stdout" else sys.stderr
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.write(f"[{self.name}] {line.decode(errors='replace')}\n")
            stream.flush()


def own_path() -> list[str]:
    """Returns where this process finds modules, whatever its directory is later."""
    return [os.path.abspath(entry) for entry in sys.path]
