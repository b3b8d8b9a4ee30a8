"""The processes that `parallel.spawn` starts: a coordinator here, and a function that each runs.

    program                                      process of rank r
    directory: token, sockets, arguments
    start {script, arguments}           ───────▶ runs the script as `__mp_main__`, then fn(r, *args)
                                        ◀─────── done, failed {error, traceback, time, lost}
                                                 or left {code, time}: it has called exit
    SIGTERM, if another one has failed  ───────▶

A process that ends without a message was killed. Its loss fails calls of other ranks soon after, so
it counts as the first failure; else the earliest time does. A rank that fails since it has lost
another one is a consequence: the failure of the other one is waited for.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import contextvars
import functools
import importlib
import inspect
import json
import math
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from telegrad.arrays import SharedMemory, shared_below
from telegrad.errors import InvalidUseError, WorkerLostError
from telegrad.launch.local_workers import (
    GONE,
    LOADING,
    LocalProcess,
    end_with,
    load_script,
    own_script,
    readable,
    refuse_while_loading,
    start_thread,
)
from telegrad.launch.log_relay import LineChannel
from telegrad.launch.policy import GRACE
from telegrad.launch.policy import describe as ending_of
from telegrad.launch.run import RunOptions, environment_of, serving
from telegrad.launch.supervisor import Watcher
from telegrad.rpc.seams import decode_error
from telegrad.transport import open_process, write_token_file
from telegrad.wire import (
    decode,
    describe,
    encode,
    encode_exception,
    import_missing_with,
    names,
    rebuild,
)


def start(
    fn: Callable[..., object], args: tuple[Any, ...], n: int, *, daemon: bool
) -> SpawnedProcesses:
    """Starts the processes; see `telegrad.parallel.spawn`."""
    refuse_while_loading("processes by parallel.spawn()", "one of them")
    if inspect.iscoroutinefunction(fn) or not callable(fn):
        raise TypeError(
            f"spawn takes a plain function, not {fn!r}; for an async def, write one that calls "
            "asyncio.run()"
        )
    if not isinstance(args, tuple):
        raise TypeError(f"args must be a tuple, not {args!r}; for one argument write (x,)")
    if isinstance(n, bool) or not isinstance(n, int):
        raise TypeError(f"nprocs must be an integer, not {n!r}")
    if n < 1:
        raise ValueError(f"nprocs must be at least 1 (got {n})")
    call = _SpawnedCall.of(fn, args)
    return SpawnedProcesses(call, n, daemon=daemon)


# -- in the program ------------------------------------------------------------------------------

# From the end of a process until its last message is read: it was written before.
LAST_MESSAGE_SECONDS: Final = 1.0
# From the failure of a rank that has lost another one until that other one is no more waited for. A
# rank whose function fails says goodbye where it leaves `with rpc.init_rpc():`, for 5 s at most.
CAUSE_SECONDS: Final = 5.0


@final
class SpawnedProcesses:
    """The processes of one call of `spawn`; see `telegrad.parallel.ProcessContext`.

    Args:
        call: The call that each makes.
        n: The number of processes.
        daemon: True if the end of the program ends them; False if it waits for them.
    """

    def __init__(self, call: _SpawnedCall, n: int, *, daemon: bool) -> None:
        self._what = call.name
        self._daemon = daemon
        self._pid = os.getpid()
        self._joining = threading.RLock()  # one thread at a time waits, or ends them
        self._closing = self._closed = False
        self._first: Callable[[], BaseException] | None = None  # makes the first failure
        self._cut_short: list[int] = []  # ranks that `close` has ended
        self._processes: list[LocalProcess] = []
        self._messages: dict[int, dict[str, Any]] = {}
        self._running: dict[int, int] = {}  # ranks that have not ended, with their descriptors
        self._losses_end = math.inf  # when a loss that a rank has raised is told as the failure
        self._held = contextlib.ExitStack()
        self._wake, self._waking = socket.socketpair()
        self._wake.setblocking(False)
        self._waking.setblocking(False)
        try:
            self._start(call, n)
        except BaseException:
            self.close()
            raise
        atexit.register(self._at_exit)

    def _start(self, call: _SpawnedCall, n: int) -> None:
        directory = tempfile.mkdtemp(prefix="telegrad-")  # 0700
        watcher = Watcher(directory)
        self._held.callback(watcher.dismiss)
        self._held.callback(shutil.rmtree, directory, ignore_errors=True)
        token_file, file = (os.path.join(directory, name) for name in ("token", "call"))
        options = RunOptions(command=(), script="spawn", workers=n)
        job, token = options.job, write_token_file(token_file)
        self._coordinator, port = self._held.enter_context(serving(options, job, token, None))
        environment = environment_of(options, job, token_file, port)
        call.write(file)
        for r in range(n):
            environ = environment.of(r)
            environ.pop(LOADING, None)
            process = LocalProcess(
                environ,
                str(r),
                module=__name__,
                descriptors=call.descriptors,
                told=self._note_message,
            )
            self._processes.append(process)
            watcher.add(process.pid)
            self._running[r] = open_process(process.pid)
            process.send("start", script=own_script(), arguments=sys.argv, call=file, rank=r)

    def pids(self) -> list[int]:
        """Returns the process ids, by rank."""
        return [process.pid for process in self._processes]

    def join(self, timeout: float | None = None) -> bool:
        """Waits for the end of all; see `ProcessContext.join`."""
        end = math.inf if timeout is None else time.monotonic() + timeout
        try:
            with self._joining:
                while self._running and not self._closing:
                    self._first = self._collect()
                    if self._first is not None:
                        break
                    now = time.monotonic()
                    if self._running and now >= end:
                        return False
                    if self._running:
                        self._wait(min(end, self._losses_end) - now)
                self.close()
                if self._first is not None:
                    raise self._first()
                if self._cut_short:
                    ranks = ", ".join(map(str, self._cut_short))
                    raise InvalidUseError(
                        f"{self._what} has no result at ranks {ranks}: close() has ended their "
                        "processes; call join() before close(), or before the block ends"
                    )
                return True
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends those that still run."""
        if self._pid != os.getpid():  # in a forked child they are not ours
            return
        self._closing = True
        self._note_message()  # a thread that waits for them closes them, too
        with self._joining:
            if self._closed:
                return
            self._closed = True
            deadline = time.monotonic() + GRACE
            with contextlib.ExitStack() as last:  # the rest is done, whichever of it fails
                last.callback(atexit.unregister, self._at_exit)
                for held in (self._waking, self._wake, self._held):
                    last.callback(held.close)
                last.callback(self._close_running)
                for process in reversed(self._processes):
                    last.callback(process.end, deadline)
                if self._first is None:
                    self._first = self._collect()
                self._cut_short = sorted(self._running)
                for process in self._processes:
                    process.terminate()

    def __enter__(self) -> SpawnedProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _close_running(self) -> None:
        for descriptor in self._running.values():
            os.close(descriptor)
        self._running.clear()

    def _at_exit(self) -> None:
        ends_well = getattr(sys, "last_value", None) is None  # else of an uncaught error
        try:
            if not self._daemon and ends_well and self._pid == os.getpid():
                self.join()
        except Exception:  # of the user's function; nobody else hears of it
            traceback.print_exc()
        finally:
            self.close()

    def _note_message(self) -> None:
        with contextlib.suppress(OSError):  # it is awake already, or over
            self._waking.send(b"1")

    def _wait(self, timeout: float) -> None:
        wake = self._wake.fileno()
        if wake in readable([wake, *self._running.values()], timeout):
            with contextlib.suppress(BlockingIOError):
                self._wake.recv(4096)

    def _collect(self) -> Callable[[], BaseException] | None:
        """Notes what has ended; returns what makes the error of the first failure, if any."""
        failures: list[tuple[bool, float, Callable[[], BaseException]]] = []
        over = readable(self._running.values(), 0.0)
        for r, descriptor in list(self._running.items()):
            process, ended = self._processes[r], descriptor in over
            wait = LAST_MESSAGE_SECONDS if ended else 0.0
            if r not in self._messages and (message := process.next_message(wait)) is not None:
                self._messages[r] = message
            said = self._messages.get(r, {"verb": "nothing"})
            make: Callable[[], BaseException]
            if said["verb"] == "failed":
                make = functools.partial(self._failure, r, said)
                failures.append((said["lost"], said["time"], make))
            elif said["verb"] == "left":
                how = ending_of(said["code"])
                make = functools.partial(self._loss, r, how, said["verb"])
                failures.append((False, said["time"], make))
            elif ended:
                os.close(self._running.pop(r))
                how = process.ending()
                good = how == ending_of(0) or (how == GONE and said["verb"] == "done")
                if not good:
                    make = functools.partial(self._loss, r, how, said["verb"])
                    failures.append((False, 0.0, make))
                self._coordinator.ended(r, how="exit code 0" if good else how)
        if not failures:
            return None
        is_consequence, _, first = min(failures, key=lambda failure: failure[:2])
        if is_consequence and len(failures) < len(self._running):
            now = time.monotonic()
            self._losses_end = min(self._losses_end, now + CAUSE_SECONDS)
            if now < self._losses_end:
                return None
        return first

    def _failure(self, r: int, message: dict[str, Any]) -> BaseException:
        error = decode_error(decode(base64.b64decode(message["error"])))
        error.add_note(
            f"raised by {self._what} at rank {r} (process {self._processes[r].pid}):\n"
            f"{message['traceback'].rstrip()}"
        )
        return error

    def _loss(self, r: int, how: str, said: str) -> WorkerLostError:
        when = f"after {self._what} had returned" if said == "done" else f"in {self._what}"
        pid = self._processes[r].pid
        return WorkerLostError(
            f"the process of rank {r} ({pid}) {how}, {when}; its output is above",
            worker=f"worker{r}",
            reason=how,
        )


# -- the call, as a file that all processes read -------------------------------------------------
#
# A header in JSON says how many bytes belong to each part: the document, the metadata of its
# externals, and their buffers. Arrays in shared memory stand there with no items; the header has
# their places.


@final
class _SpawnedCall:
    """A function and its arguments, encoded.

    Attributes:
        name: The function's name, for errors.
        descriptors: The descriptors of the shared memory below arguments.
    """

    def __init__(self, name: str, parts: list[Any], places: dict[int, list[Any]]) -> None:
        self.name = name
        self.descriptors = sorted({place[0] for place in places.values()})
        self._parts = parts
        self._places = places

    @classmethod
    def of(cls, fn: Callable[..., object], args: tuple[Any, ...]) -> _SpawnedCall:
        """Encodes a call.

        Raises:
            EncodeError: The function or an argument cannot travel.
        """
        encoded = encode({"fn": fn, "args": args}, name=None)
        places: dict[int, list[Any]] = {}
        externals: list[Any] = [*encoded.externals]
        for i, array in enumerate(externals):
            memory = shared_below(array) if type(array) is np.ndarray else None
            if memory is not None:
                base = np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
                offset = array.__array_interface__["data"][0] - base
                size = len(memory)
                places[i] = [memory.descriptor, size, offset, array.shape, array.strides]
                externals[i] = np.empty(0, array.dtype)
        metadata, buffers = describe(externals)
        name = getattr(fn, "__qualname__", repr(fn))
        if getattr(fn, "__module__", "") in names.MAIN_NAMES and names.main_stays_here():
            raise names.main_stays_error(name)
        return cls(name, [encoded.document, metadata, *buffers], places)

    def write(self, path: str) -> None:
        """Writes the file."""
        sizes = [memoryview(part).nbytes for part in self._parts]
        with open(path, "wb") as file:
            file.write(json.dumps({"sizes": sizes, "places": self._places}).encode() + b"\n")
            for part in self._parts:
                file.write(part)


def _read_call(path: str) -> tuple[Callable[..., object], list[Any]]:
    """Returns the function and the arguments of a file; in a process, whose script is loaded."""
    with Path(path).open("rb") as file:
        header = json.loads(file.readline())
        document, metadata, *buffers = [bytearray(size) for size in header["sizes"]]
        for part in (document, metadata, *buffers):
            file.readinto(part)
    externals = rebuild(bytes(metadata), buffers)
    mapped: dict[int, np.ndarray[Any, Any]] = {}
    for i, (descriptor, size, offset, shape, strides) in header["places"].items():
        if descriptor not in mapped:
            memory = SharedMemory.of(descriptor, size)
            memory.descriptor, memory.travels = descriptor, True
            mapped[descriptor] = np.frombuffer(memory, np.uint8)
        empty: Any = externals[int(i)]
        externals[int(i)] = np.ndarray(shape, empty.dtype, mapped[descriptor], offset, strides)
    import_missing_with(importlib.import_module)
    call = decode(bytes(document), externals, functions=names.load)
    return call["fn"], [*call["args"]]


# -- in a process --------------------------------------------------------------------------------


def main(descriptor: int, program: int) -> None:
    """Runs the function of a spawned process.

    Args:
        descriptor: The process's end of the socket to the program.
        program: The program's process id.
    """
    start_thread("spawn-program-watch", end_with, program)
    channel = LineChannel(socket.socket(fileno=descriptor))
    order = next(channel.messages())
    try:
        load_script(order["script"], order["arguments"])
        fn, args = contextvars.Context().run(_read_call, order["call"])
        fn(order["rank"], *args)
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        channel.send("left" if code else "done", code=code, time=time.monotonic())
        raise
    except BaseException as error:
        _send_failure(channel, error)
        sys.exit(1)
    channel.send("done")


def _send_failure(channel: LineChannel, error: BaseException) -> None:
    now = time.monotonic()
    shown = traceback.TracebackException.from_exception(error)
    shown.stack.pop(0)  # of `main`
    channel.send(
        "failed",
        time=now,
        lost=isinstance(error, WorkerLostError),
        error=base64.b64encode(encode(encode_exception(error)).document).decode(),
        traceback="".join(shown.format()),
    )
