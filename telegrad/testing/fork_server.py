"""Starts Python programs by forking a process that has already imported telegrad.

Executing an interpreter that imports NumPy, gRPC and telegrad costs 1.1 s of processor time, a fork
of one that has done so 0.04 s.

    tests ── command, environment, descriptors ──▶ server ─ fork ─▶ middle ─ fork ─▶ program
      ▲                                                             exits              │
      └────────────────────────────── its parent from then on ◀────────────────────────┘

The middle process exits at once. The kernel gives its orphan to the process that the tests run in,
which asks for orphans meanwhile (PR_SET_CHILD_SUBREAPER). So a program is a child of whoever
started it, and everything that holds for an executed one holds for it: waiting, signals, exit
codes, the kernel's death signal.

A program differs from an executed one in four ways: more modules are imported than it asked for,
strings have the same hashes in all programs of one server, its output is not buffered, and it has
the limits and the umask that the server was started with.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import inspect
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from subprocess import Popen
from typing import Any, final

# An interpreter or a library reads these while it starts, and never again.
READ_AT_START = ("LANG", "LC_", "LD_", "MALLOC_", "MKL_", "OMP_", "OPENBLAS_", "PYTHON", "TZ")
# A forked program does with these what an interpreter does.
READ_LATER = ("PYTHONPATH", "PYTHONUNBUFFERED")
# Likewise; what a program leaves out, telegrad has set in the server as it would in the program.
READ_BY_GRPC = "GRPC_"

# The path comes as an argument, so that telegrad is found where this process has found it.
BOOTSTRAP = (
    "import json, sys; own, sys.path[:] = sys.path[1:], json.loads(sys.argv[1]); "
    "from telegrad.testing.forked_program import serve; serve(int(sys.argv[2]), own)"
)
PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37
CLOSE_SECONDS = 5.0
# The first program waits for the imports of the server, too: 1 s, and 20 s on a busy machine.
START_SECONDS = 60.0


@final
class ForkServer:
    """The process that programs are forked from; the first of them starts it.

    All methods may be called from any thread. The server ends with the process that it serves.
    """

    def __init__(self) -> None:
        # Guards the rest, and the socket: one request and its answer, for START_SECONDS at most.
        self._lock = threading.Lock()
        self._process: Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._owner = 0
        self._environment: dict[str, str] = {}

    def can_fork(self, command: Sequence[str], environment: Mapping[str, str]) -> bool:
        """Returns True if a command starts as the server has started; starts the server.

        It has to be executed by this interpreter without options, and to have the server's value
        of every variable that is read at the start.
        """
        if sys.platform != "linux" or command[0] != sys.executable:
            return False
        kind = words_of_program(command)[:1]
        if kind not in (["-c"], ["-m"]) and (not kind or kind[0].startswith("-")):
            return False
        with self._lock:
            self._ensure_running()
            own = self._environment
        names = {name for name in (*own, *environment) if name.startswith(READ_AT_START)}
        asked = {name for name in environment if name.startswith(READ_BY_GRPC)}
        return all(
            environment.get(name) == own.get(name) for name in (names | asked) - {*READ_LATER}
        )

    def start(
        self,
        command: Sequence[str],
        *,
        directory: str | os.PathLike[str] | None,
        environment: Mapping[str, str],
        descriptors: Mapping[int, int],
        new_session: bool,
        preload: Sequence[str] | None = None,
    ) -> int:
        """Starts a program as a child of this process, which has to wait for it.

        Args:
            command: One that `can_fork` accepts.
            directory: Where it runs; None: where this process does.
            environment: Its whole environment.
            descriptors: What it has open, by its numbers: the numbers of this process.
            new_session: True to begin a session.
            preload: Has the Python programs that it starts itself forked from what it is at its
                start, with these modules imported. None executes them.

        Returns:
            Its process id.

        Raises:
            OSError: The server is gone, or has not answered within START_SECONDS and was ended.
        """
        request = {
            "words": words_of_program(command),
            "directory": os.path.abspath(directory or "."),
            "environment": dict(environment),
            "descriptors": list(descriptors),
            "new_session": new_session,
            "preload": None if preload is None else [*preload],
        }
        body = json.dumps(request).encode()
        with self._lock, _adopting_orphans():
            control = self._ensure_running()
            length = len(body).to_bytes(8, "big")
            try:
                socket.send_fds(control, [length], list(descriptors.values()))
                control.sendall(body)
                pid = int.from_bytes(control.recv(8), "big")  # written at once, so read at once
            except TimeoutError:
                self._end()  # a late answer would be taken for that to the next request
                raise
        if not pid:
            raise ConnectionError("the process that programs are forked from has ended")
        return pid

    def close(self) -> None:
        """Ends the server; its programs go on. Idempotent; the next program starts another one."""
        with self._lock:
            self._end()

    def attach(self, control: socket.socket) -> None:
        """Takes a fork of this process as the server; it is told what to do through a socket."""
        with self._lock:
            self._control = control
            self._control.settimeout(START_SECONDS)
            self._owner, self._environment = os.getpid(), dict(os.environ)

    def _ensure_running(self) -> socket.socket:
        if self._control is not None and self._owner == os.getpid():
            if self._process is None or self._process.poll() is None:
                return self._control
        else:
            atexit.register(self.close)
        self._end()
        self._control, theirs = socket.socketpair()
        self._control.settimeout(START_SECONDS)
        self._owner, self._environment = os.getpid(), dict(os.environ)
        options = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        path = json.dumps([os.path.abspath(entry) for entry in sys.path])
        with theirs:
            self._process = Popen(
                [sys.executable, *options, "-uc", BOOTSTRAP, path, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        return self._control

    def _end(self) -> None:
        control, process = self._control, self._process
        self._control = self._process = None
        if control is not None:
            control.close()
        if process is not None and self._owner == os.getpid():
            try:
                process.wait(CLOSE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class ForkedProcess(Popen[Any]):
    """A `subprocess.Popen` that is forked where that makes no difference, and else executed.

    Args:
        args: The command.
        server: What it is forked from.
        preload: As of `ForkServer.start`.
        options: Those of `subprocess.Popen`.
    """

    def __init__(
        self,
        args: Sequence[str],
        *,
        server: ForkServer | None = None,
        preload: Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        self._server = shared_fork_server() if server is None else server
        self._preload = preload
        super().__init__(args, **options)

    def _execute_child(self, *given: Any) -> None:
        """Replaces what `subprocess.Popen` calls once it has made the pipes."""
        execute = super()._execute_child  # type: ignore[misc]
        call = inspect.signature(execute).bind(*given).arguments
        environment = os.environ if call["env"] is None else call["env"]
        if call["shell"] or not self._server.can_fork(call["args"], environment):
            execute(*given)
            return
        streams = enumerate([call["p2cread"], call["c2pwrite"], call["errwrite"]])
        self.pid = self._server.start(
            call["args"],
            directory=call["cwd"],
            environment=environment,
            descriptors={i: i if stream == -1 else stream for i, stream in streams}
            | {number: number for number in call["pass_fds"]},
            new_session=call["start_new_session"],
            preload=self._preload,
        )
        self._child_created = True
        ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(call[end] for end in ends))  # type: ignore[attr-defined]


def words_of_program(command: Sequence[str]) -> list[str]:
    """Returns a command without the interpreter, and without the option for unbuffered output."""
    return [*command[2:]] if [*command[1:2]] == ["-u"] else [*command[1:]]


def shared_fork_server() -> ForkServer:
    """Returns the server of this process."""
    return _shared.get()


_shared: ContextVar[ForkServer] = ContextVar(
    "telegrad_fork_server",
    default=ForkServer(),  # noqa: B039
)


@contextlib.contextmanager
def _adopting_orphans() -> Iterator[None]:
    """Makes this process the parent of what its descendants leave behind, inside the block."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    before = ctypes.c_int()
    prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)
