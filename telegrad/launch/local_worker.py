"""The main program of a local worker: joins the job of the program that started it, and serves.

    program                                   worker
    start {invitation, script, path} ───────▶ runs the script as `__mp_main__`
                                     ◀─────── ready
    join {name}                      ───────▶ becomes a member on top of the job
                                     ◀─────── joined {name, rank}
    settle                           ───────▶ hears of all who joined before
                                     ◀─────── settled
                                     ◀─────── imported {name}: may I import this module?
    known {name, known, path}        ───────▶
    leave                            ───────▶ finishes what it serves, leaves, exits

After it has joined it calls shutdown() like any worker whose own part is done: it serves until
every other one has called it too. When the program is gone it ends at once, with all that it
started.
"""

from __future__ import annotations

import base64
import contextlib
import importlib
import os
import queue
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, final

from telegrad.distributed import join_invited, settle
from telegrad.errors import TelegradError
from telegrad.launch.line_channel import LineChannel
from telegrad.launch.script import load_script
from telegrad.transport import shared_loop_thread

__all__ = ["main"]

ANSWER_SECONDS = 10.0  # the program answers from a thread of its own, whatever else it does
DRAIN_SECONDS = 2.0  # what a call that is being served gets when the workers are closed
CLOSE_SECONDS = 5.0  # from then on; before that the program ends the process
LEFT = "its LocalWorkers were closed"


def main(descriptor: int, program: int) -> None:
    """Serves until told to leave, until all have shut down, or until the program is gone.

    Args:
        descriptor: Our end of the socket to the program.
        program: Its process id.
    """
    _start_thread("local-program-watch", _end_with, program)
    channel = LineChannel(socket.socket(fileno=descriptor))
    worker = _Worker(channel)
    _start_thread("local-control", worker.read)
    worker.run()


@final
class _Importer:
    """Imports what the program has imported of the user's own modules, when it is asked for.

    Not on the loop, which inherits the Context of who first posted to a peer: there only protocol
    messages are read, in which no honest worker names a class.
    """

    def __init__(self, channel: LineChannel) -> None:
        self._channel = channel
        self._lock = threading.Lock()  # guards the questions that are not answered
        self._asked: dict[str, Future[dict[str, Any]]] = {}

    def answer(self, answer: dict[str, Any]) -> None:
        """Takes what the program says of a module."""
        with self._lock:
            asked = self._asked.pop(answer["name"], None)
        if asked is not None:
            asked.set_result(answer)

    def __call__(self, name: str) -> None:
        if shared_loop_thread().is_loop_thread():
            return
        if name not in sys.modules and not self._program_has(name):
            return
        try:
            importlib.invalidate_caches()  # it may have been written a moment ago
            importlib.import_module(name)
        except Exception:  # whatever the user's module raises
            sys.stderr.write(f"this worker cannot import {name!r}, which the program has:\n")
            traceback.print_exc()

    def _program_has(self, name: str) -> bool:
        root = name.partition(".")[0]
        if root in sys.stdlib_module_names or root == "telegrad":
            return False
        with self._lock:
            first = name not in self._asked
            asked = self._asked.setdefault(name, Future())
        if first:
            self._channel.send("imported", name=name)
        try:
            answer = asked.result(ANSWER_SECONDS)
        except TimeoutError:
            return False
        sys.path[:] = answer["path"]
        return bool(answer["known"])


@final
class _Worker:
    """What the main thread does, and what the control thread tells it."""

    def __init__(self, channel: LineChannel) -> None:
        self._channel = channel
        self._importer = _Importer(channel)
        self._orders: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def read(self) -> None:
        """Takes what the program says; when it says no more, nobody needs this process."""
        for message in self._channel.messages():
            if message["verb"] == "known":
                self._importer.answer(message)
            else:
                self._orders.put(message)
        end_session()

    def run(self) -> None:
        """Prepares, joins, and serves in a thread until the job or the program ends it."""
        try:
            start = self._orders.get()
            kind, what = start["script"]
            load_script(kind, what, start["arguments"])
            self._channel.send("ready")
            join = self._orders.get()
            if join["verb"] == "leave":
                return
            agent = join_invited(
                base64.b64decode(start["invitation"]), name=join["name"], importer=self._importer
            )
        except BaseException as error:
            if not isinstance(error, TelegradError):
                traceback.print_exc()
            self._channel.send("failed", type=type(error).__name__, error=str(error))
            sys.exit(1)
        serving = threading.Thread(target=self._serve, args=(agent.shutdown,), name="local-serve")
        serving.start()
        self._channel.send("joined", name=agent.name, rank=agent.rank)
        while (order := self._orders.get())["verb"] != "ended":
            if order["verb"] == "settle":
                with contextlib.suppress(TelegradError):  # the coordinator is gone: so are we
                    settle(agent)
                self._channel.send("settled")
            elif order["verb"] == "leave":
                agent.drain(time.monotonic() + DRAIN_SECONDS)
                agent.leave_within(CLOSE_SECONDS, LEFT)
        serving.join()

    def _serve(self, shut_down: Callable[[], None]) -> None:
        try:
            shut_down()
        except TelegradError:
            pass  # told to leave at once, or the program's coordinator is gone
        finally:
            self._orders.put({"verb": "ended"})


def end_session() -> None:
    """Ends this process and what it has started, at once."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _end_with(program: int) -> None:
    """Waits for the end of the program; its child may hold our socket's other end open."""
    try:
        descriptor = os.pidfd_open(program)
    except ProcessLookupError:
        end_session()
    if os.getppid() != program:  # gone, and its number may be another process' already
        end_session()
    select.select([descriptor], [], [])
    end_session()


def _start_thread(name: str, target: Callable[..., object], *args: object) -> None:
    threading.Thread(target=target, args=args, name=name, daemon=True).start()
