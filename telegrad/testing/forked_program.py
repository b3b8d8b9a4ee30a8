"""The server that programs are forked from, and what a program does before its first line."""

from __future__ import annotations

import builtins
import ctypes
import fcntl
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
import types
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import BuiltinImporter, SourceFileLoader
from typing import Any, final

import numpy as np

from telegrad.testing.fork_server import ForkedProcess, shared_fork_server

PRELOADED = ("telegrad.launch.cli", "telegrad.parallel", "telegrad.testing")
MOST_DESCRIPTORS = 250
POLL_SECONDS = 0.0002


@final
@dataclass(frozen=True, slots=True)
class _ForkRequest:
    """A program to start, and the descriptors that came with it, by its numbers for them."""

    words: list[str]
    directory: str
    environment: dict[str, str]
    descriptors: dict[int, int]
    new_session: bool
    preload: list[str] | None


def serve(descriptor: int, path: list[str]) -> None:
    """Forks programs until the socket ends; returns in each program once that has ended.

    Args:
        descriptor: The socket to the process that the tests run in.
        path: The start of `sys.path` in an interpreter that is executed, without its first entry.
    """
    for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        if entry in path:
            path.remove(entry)
    _serve(socket.socket(fileno=descriptor), path, PRELOADED)


def _serve(control: socket.socket, path: list[str], preload: Sequence[str]) -> None:
    for name in preload:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # else the first collection of each program copies all that the server has
    with warnings.catch_warnings():
        # Python 3.12 warns where BLAS has threads; BLAS ends them before a fork by itself.
        warnings.simplefilter("ignore", DeprecationWarning)
        request = _serve_until_forked(control)
    if request is not None:
        _become(request, path)


def _serve_until_forked(control: socket.socket) -> _ForkRequest | None:
    """Returns what a program has to do, in the program; None in the server, at the end."""
    on_interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the programs
    while (request := _receive(control)) is not None:
        read, write = os.pipe()
        middle = os.fork()
        if not middle:
            parent = os.getpid()
            pid = os.fork()
            if pid:
                os.write(write, pid.to_bytes(8, "big"))
                os._exit(0)
            while os.getppid() == parent:
                time.sleep(POLL_SECONDS)
            if request.new_session:
                os.setsid()
            signal.signal(signal.SIGINT, on_interrupt)
            control.close()
            os.close(read)
            os.close(write)
            return request
        os.waitpid(middle, 0)  # from here on the program is a child of whoever asked for it
        os.close(write)
        number_of_program = os.read(read, 8)
        os.read(read, 1)  # until the program has closed the pipe: it may be signalled now
        control.sendall(number_of_program)
        for number in (read, *request.descriptors.values()):
            os.close(number)
    return None


def _receive(control: socket.socket) -> _ForkRequest | None:
    length, received, _, _ = socket.recv_fds(control, 8, MOST_DESCRIPTORS)
    if not length:
        return None
    body = control.recv(int.from_bytes(length, "big"), socket.MSG_WAITALL)
    fields = json.loads(body)
    numbers = fields.pop("descriptors")
    return _ForkRequest(descriptors=dict(zip(numbers, received, strict=True)), **fields)


def _become(request: _ForkRequest, path: list[str]) -> None:
    """Runs a program to its end, as the last thing that `__main__` of this process does."""
    _show_command([sys.executable, *request.words])
    _take_descriptors(request.descriptors)
    read_by_grpc = {name: text for name, text in os.environ.items() if name.startswith("GRPC_")}
    os.environ.clear()
    os.environ.update(read_by_grpc | request.environment)
    os.chdir(request.directory)
    if request.preload is not None:
        _fork_own_server(request, path)
    np.random.seed()  # `random` seeds itself after a fork, `secrets` and `uuid` ask the kernel
    search = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    _run(request.words, [*search, *path])


def _fork_own_server(request: _ForkRequest, path: list[str]) -> None:
    """Forks a server of this process' own, which has to have one thread as yet."""
    control, theirs = socket.socketpair()
    if os.fork():
        theirs.close()
        shared_fork_server().attach(control)
        subprocess.Popen = ForkedProcess  # type: ignore[assignment, misc]
        return
    control.close()
    null = os.open(os.devnull, os.O_RDWR)
    for number in request.descriptors:
        os.dup2(null, number)
    _serve(theirs, path, request.preload or ())
    sys.exit()


def _show_command(words: list[str]) -> None:
    """Replaces the command that the kernel shows of this process, as setproctitle does."""
    with open("/proc/self/stat", "rb") as file:
        start, end = file.read().rpartition(b")")[2].split()[45:47]
    room = int(end) - int(start)
    shown = b"".join(os.fsencode(word) + b"\0" for word in words)[: room - 1]
    ctypes.memmove(int(start), shown.ljust(room, b"\0"), room)


def _take_descriptors(wanted: dict[int, int]) -> None:
    """Gives the descriptors that came the numbers that they are to have."""
    above = 1 + max(*wanted, *wanted.values())
    moved = {number: fcntl.fcntl(came, fcntl.F_DUPFD, above) for number, came in wanted.items()}
    for came in wanted.values():
        os.close(came)
    for number, copy in moved.items():
        os.dup2(copy, number)
        os.close(copy)


def _run(words: list[str], path: list[str]) -> None:
    """Runs `-c code`, `-m module` or a file as an interpreter does."""
    main: Any = types.ModuleType("__main__")
    main.__builtins__, main.__loader__ = builtins, BuiltinImporter
    sys.modules["__main__"] = sys.modules["__mp_main__"] = main  # as multiprocessing has it
    sys.orig_argv = [sys.executable, *words]
    sys.excepthook = lambda kind, error, trace: _show(main, kind, error, trace)
    if words[0] == "-m":
        sys.argv, sys.path = words[1:], [os.getcwd(), *path]
        runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]
    elif words[0] == "-c":
        sys.argv, sys.path = ["-c", *words[2:]], ["", *path]
        exec(compile(words[1], "<string>", "exec", dont_inherit=True), vars(main))
    else:
        file = os.path.abspath(words[0])
        sys.argv, sys.path = words, [os.path.dirname(os.path.realpath(file)), *path]
        main.__file__, main.__cached__ = file, None
        main.__loader__ = SourceFileLoader("__main__", file)
        with open(file, "rb") as source:
            code = compile(source.read(), file, "exec", dont_inherit=True)
        exec(code, vars(main))


def _show(
    main: types.ModuleType,
    kind: type[BaseException],
    error: BaseException,
    trace: types.TracebackType | None,
) -> None:
    """Shows an error of the program from the program's first frame on."""
    while trace is not None and trace.tb_frame.f_globals is not vars(main):
        trace = trace.tb_next
    sys.__excepthook__(kind, error.with_traceback(trace), trace)
