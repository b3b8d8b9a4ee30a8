"""LocalWorkers: further workers for a program that already runs, such as a notebook.

agent = rpc.init_rpc("me")                       # a job of one
with launch.LocalWorkers(2) as workers:          # now a job of three
    rpc.rpc_sync(workers.names[0], np.square, (x,))
"""

from __future__ import annotations

import base64
import builtins
import contextlib
import importlib
import json
import math
import multiprocessing.spawn
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
import traceback
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, final

from telegrad._distributed import invite, is_project_module, join_invited, settle
from telegrad.errors import (
    DuplicateNameError,
    InvalidUseError,
    RendezvousError,
    RendezvousTimeoutError,
    TelegradError,
)
from telegrad.launch.env import FORK_SUPPORT, thread_limits
from telegrad.launch.log_relay import LineChannel, LineSplitter, LogPiece
from telegrad.launch.policy import describe
from telegrad.launch.worker_process import exit_code
from telegrad.rpc.seams import seconds
from telegrad.transport import cores, open_process, shared_loop_thread
from telegrad.wire import is_tool, main_namespace, main_stays_here

# -- one local worker, seen from the program: its process, messages and output -------------------

READ_BYTES = 1 << 16
GONE = "is gone"  # the ending of a process that the program itself has reaped
# The path is an argument, so that telegrad is found in the same place as in the program.
BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from {} import main; main(int(sys.argv[2]), int(sys.argv[3]))"
)


@final
class LocalProcess:
    """A process in a session of its own, so that an interrupt of the program does not reach it.

    Args:
        environ: The environment of the process.
        label: The prefix of its output lines, until it has a name.
        module: The module whose `main` it runs, with its end of the socket and our process id.
        descriptors: Further file descriptors that it gets, by the same numbers.
        told: Called in another thread after each message of the process, and after the last.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        label: str,
        *,
        module: str = __name__,
        descriptors: Sequence[int] = (),
        told: Callable[[], object] = lambda: None,
    ) -> None:
        self.name = label
        self.loaded: dict[
            str, tuple[str, int]
        ] = {}  # by module: its file, and when that was written
        self._told = told
        self._received: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._told_to_leave = False
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-u", "-c", BOOTSTRAP.format(module)),
                    *(json.dumps(own_path()), str(theirs.fileno()), str(os.getpid())),
                ],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                pass_fds=[theirs.fileno(), *descriptors],
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
        """True if the process runs."""
        return not self._exited(0.0)

    def send(self, verb: str, **fields: object) -> None:
        """Sends the process a message; dropped if the process is gone."""
        self._channel.send(verb, **fields)

    def next_message(self, timeout: float = 0.0) -> dict[str, Any] | None:
        """Returns the next message of the process; None if there is none within `timeout`."""
        with contextlib.suppress(queue.Empty):
            return self._received.get(timeout=timeout) if timeout else self._received.get_nowait()
        return None

    def expect(self, verb: str, deadline: float, timeout: float) -> dict[str, Any]:
        """Returns the next message of the process, which must have this verb.

        Args:
            verb: The expected verb.
            deadline: The end of the wait, on the monotonic clock.
            timeout: Seconds that the whole start may take, for the error.

        Raises:
            RendezvousTimeoutError: The message did not come in time.
            DuplicateNameError: Another worker has its name.
            RendezvousError: It failed for another reason, or is gone.
        """
        try:
            message = self._received.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise RendezvousTimeoutError(
                f"local worker {self.name!r} was not {verb} within {timeout:g} s; give it longer "
                "with timeout=, or look at what it wrote"
            ) from None
        if message is None:
            raise RendezvousError(
                f"local worker {self.name!r} {self.ending()} before it was {verb}"
            )
        if message["verb"] == "failed":
            raise self._failure(message["type"], message["error"])
        return message

    def _failure(self, kind: str, words: str) -> Exception:
        if kind == DuplicateNameError.__name__:
            return DuplicateNameError(words)
        why = f"{kind}: {words}" if words else kind
        return RendezvousError(f"local worker {self.name!r} did not start: {why}")

    def leave(self) -> None:
        """Tells the process to finish the calls that it serves and to exit; does not wait."""
        self._told_to_leave = True
        self._channel.send("leave")

    def terminate(self) -> None:
        """Sends the process SIGTERM; does not wait."""
        self._told_to_leave = True
        if not self._reaped():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def end(self, deadline: float) -> None:
        """Waits for its exit until the deadline, kills the rest of its session, and reaps it."""
        self._told_to_leave = True
        self._exited(max(0.0, deadline - time.monotonic()))
        try:
            if not self._reaped():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
        finally:
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
            descriptor = open_process(self.pid)
        except ProcessLookupError:  # the program has reaped it by a wait for any child
            return True
        try:
            return bool(readable([descriptor], timeout))
        finally:
            os.close(descriptor)

    def _reaped(self) -> bool:
        """Returns True if the program has reaped it, so that its number may be another's."""
        try:
            exit_code(self.pid)
        except ChildProcessError:
            return True
        return False

    def ending(self) -> str:
        """Returns in words in which way the process ended."""
        if not self._exited(1.0):
            return "closed its line"
        try:
            code = exit_code(self.pid)
        except ChildProcessError:
            code = None
        return GONE if code is None else describe(code)

    def _read(self) -> None:
        for message in self._channel.messages():
            if message["verb"] == "imported":
                name = message["name"]
                known = is_project_module(name)
                self._channel.send("known", name=name, known=known, path=own_path())
            elif message["verb"] == "loaded":
                files = {name: (path, written) for name, path, written in message["files"]}
                self.loaded = self.loaded | files  # a cell's thread may iterate over the former
            elif message["verb"] != "served":  # by which it only finds out if we are still there
                self._received.put(message)
                self._told()
        self._received.put(None)
        self._told()

    def _relay(self) -> None:
        """Passes its output on, line by line, until the pipes are closed or it was reaped.

        A child that it started in another session may hold the pipes open for ever.
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
            end = self.ending()
            if end != describe(0) and not self._told_to_leave:  # `end` may have reaped it meanwhile
                self._show("stderr", end.encode())

    def _pass_on(self, key: selectors.SelectorKey) -> bool:
        """Passes on the content of a pipe; returns True if there may be more."""
        kind, splitter = key.data
        data = os.read(key.fd, READ_BYTES)
        self._show_all(kind, splitter.feed(data) if data else splitter.finish())
        return bool(data)

    def _show_all(self, kind: str, pieces: Iterable[LogPiece]) -> None:
        for piece in pieces:
            if not piece.in_place:
                self._show(kind, piece.text)

    def _show(self, kind: str, line: bytes) -> None:
        """Writes to the present standard stream: a notebook's cell, a test's capture."""
        stream = sys.stdout if kind == "stdout" else sys.stderr
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.write(f"[{self.name}] {line.decode(errors='replace')}\n")
            stream.flush()


def own_path() -> list[str]:
    """Returns the module search path of this process as absolute paths."""
    return [os.path.abspath(entry) for entry in sys.path]


# -- the program's script, imported by local workers as multiprocessing's spawn does -------------

LOADING = "TELEGRAD_LOADING_SCRIPT"  # in a worker's environment while it imports the script


def own_script() -> dict[str, str]:
    """Returns the way in which `multiprocessing` makes another process import our `__main__`.

    That is `init_main_from_path` with its file, or `init_main_from_name` with its name after
    `python -m`. It is empty in a notebook, at a prompt, and if another program runs the user's
    code, as pytest does.
    """
    main = main_namespace(sys.modules["__main__"])
    if main_stays_here():
        return {}
    path = os.path.abspath(main["__file__"])
    if is_tool(path):
        return {}
    name = getattr(main.get("__spec__"), "name", "")
    if name:
        return {"init_main_from_name": name}
    return {"init_main_from_path": path}


def load_script(script: dict[str, str], arguments: list[str]) -> None:
    """Runs the script as `__mp_main__`, so that it defines its functions but skips its main part.

    Args:
        script: What `own_script` returned; without a script `__main__` is empty.
        arguments: The script's `sys.argv`.

    Raises:
        BaseException: Any error that the script raises.
    """
    sys.argv = arguments
    sys.modules["__main__"] = types.ModuleType("__main__")
    os.environ[LOADING] = "1"
    try:
        multiprocessing.spawn.prepare(script)
    finally:
        del os.environ[LOADING]


# -- the workers ---------------------------------------------------------------------------------

START_SECONDS = 60.0  # two interpreters that import NumPy and gRPC take 1 s; a busy machine, 20
LEAVE_SECONDS = 5.0  # from the order to leave until the interpreter must have ended
# Variables that `telegrad run` sets for a worker, and that this worker's local workers must not
# get.
OWN_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TELEGRAD_JOB",
    "TELEGRAD_NAME",
)


@final
class LocalWorkers:
    """Processes on this host that join the job of this program and serve its calls.

    They serve functions of this program's script, and of the modules that the program has imported
    from outside the standard library and site-packages. They import the script as multiprocessing's
    `spawn` does: everything but definitions belongs under `if __name__ == "__main__":`. A changed
    module is not imported again: make new workers. A notebook (or IPython) warns of that before the
    first cell that runs after the edit, once for each module. The workers' output appears here,
    with their name in front.

    Their ranks and names follow the job's: `worker1`, `worker2` beside a program that is a job of
    one. They end when the block is left, when `close()` or `rpc.shutdown()` is called, and within a
    second when this process ends in any other way. Calls to one that ended raise WorkerLostError.

    Args:
        n: The number of workers; by default the number of names.
        names: The workers' names; by default `worker` and their rank.
        timeout: Seconds until all of them have joined, above 0.

    Raises:
        NotInitializedError: `rpc.init_rpc` was not called before.
        RendezvousError: One did not start, for the reason in the message; all are ended.
        DuplicateNameError: A worker of the job has one of the names.
        InvalidUseError: The script was being imported by a local worker when it made this.
        ValueError: The number and the names do not fit, or there are none.

    Attributes:
        names: The names of the workers, by rank.

    Example:
        >>> import numpy as np
        >>> from telegrad import launch, rpc
        >>> with rpc.init_rpc("me"), launch.LocalWorkers(1) as workers:
        ...     rpc.rpc_sync(workers.names[0], np.cumsum, ([1, 2, 3],))
        array([1, 3, 6])
    """

    def __init__(
        self,
        n: int | None = None,
        *,
        names: Sequence[str] | None = None,
        timeout: float = START_SECONDS,
    ) -> None:
        refuse_while_loading("LocalWorkers", "one of them")
        wanted = _checked_names(n, names)
        timeout = seconds(timeout, START_SECONDS)
        deadline = time.monotonic() + min(timeout, threading.TIMEOUT_MAX)
        self._pid = os.getpid()
        self._lock = threading.Lock()  # guards `_closed`
        self._closed = False
        self._processes: list[LocalProcess] = []
        self.names: tuple[str, ...] = ()
        agent, invitation = invite()
        try:
            self._start(len(wanted), invitation)
            for process, name in zip(self._processes, wanted, strict=True):
                process.send("join", name=name)
                joined = process.expect("joined", deadline, timeout)
                process.name = joined["name"]
            for process in self._processes:
                process.send("settle")
            for process in self._processes:
                process.expect("settled", deadline, timeout)
            settle(agent)
        except BaseException:
            self._end(time.monotonic())
            raise
        self.names = tuple(process.name for process in self._processes)
        self._warned: set[str] = set()
        self._cells = _cells_of_notebook()
        if self._cells is not None:
            self._cells.register("pre_run_cell", self._warn_of_edits)
        agent.life.after_close(self.close)

    def close(self) -> None:
        """Ends the workers: each finishes its calls, for at most 2 s, and leaves. Idempotent."""
        with self._lock:
            if self._closed or self._pid != os.getpid():  # in a forked child they are not ours
                return
            self._closed = True
        if self._cells is not None:
            self._cells.unregister("pre_run_cell", self._warn_of_edits)
        for process in self._processes:
            process.leave()
        self._end(time.monotonic() + LEAVE_SECONDS)

    def __enter__(self) -> LocalWorkers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._closed:
            return f"<LocalWorkers {', '.join(self.names)}: closed>"
        states = [
            f"{process.name} (process {process.pid}{'' if process.living else ', ended'})"
            for process in self._processes
        ]
        return f"<LocalWorkers {', '.join(states)}>"

    def _warn_of_edits(self, _: object) -> None:
        """Warns of files that were written since workers have imported them; runs before a cell."""
        for process in self._processes:
            for name, (path, time_then) in process.loaded.items():
                if name not in self._warned and _written_since(path, time_then):
                    self._warned.add(name)
                    words = (
                        f"{name!r} was edited after {process.name!r} imported it; local workers "
                        "keep the old one: close() them and make new ones, and reload it here"
                    )
                    warnings.warn_explicit(words, UserWarning, path, 1)

    def _start(self, n: int, invitation: bytes) -> None:
        environ = {key: value for key, value in os.environ.items() if key not in OWN_VARIABLES}
        environ = FORK_SUPPORT | environ | thread_limits(os.environ, n + 1, cores())
        for i in range(n):
            process = LocalProcess(environ, f"local {i + 1}")
            self._processes.append(process)
            process.send(
                "start",
                invitation=base64.b64encode(invitation).decode(),
                script=own_script(),
                arguments=sys.argv,
            )

    def _end(self, deadline: float) -> None:
        for process in self._processes:
            process.end(deadline)


def _cells_of_notebook() -> Any:
    """Returns IPython's events of cells; None in another program."""
    get_ipython = vars(builtins).get("get_ipython")  # IPython puts it there while a cell runs
    return None if get_ipython is None else get_ipython().events


def _written_since(path: str, then: int) -> bool:
    try:
        return os.stat(path).st_mtime_ns != then
    except OSError:  # it is gone, as in the middle of an editor's save
        return False


def refuse_while_loading(what: str, by: str) -> None:
    """Checks that no process that this script started is importing it here.

    Raises:
        InvalidUseError: It is; the script starts `what` outside its main part.
    """
    if LOADING in os.environ:
        raise InvalidUseError(
            f"this script starts {what} while {by} imports it; put what the program "
            'does under `if __name__ == "__main__":`, and leave the functions outside'
        )


def _checked_names(n: int | None, names: Sequence[str] | None) -> list[str]:
    """Returns a name for each worker; "" if the job is to give it one."""
    if isinstance(names, str):
        raise TypeError(f"names must be a list of str (got {names!r}); write [{names!r}]")
    count = n if n is not None else len(names or ())
    if isinstance(count, bool) or not isinstance(count, int):
        raise TypeError(f"LocalWorkers takes a number of workers (got {n!r})")
    if count < 1:
        raise ValueError(
            f"LocalWorkers needs at least one worker (got {count}); write LocalWorkers(2)"
        )
    if names is not None and len(names) != count:
        raise ValueError(
            f"names must be as many as workers (names: {len(names)}, workers: {count})"
        )
    return list(names) if names is not None else [""] * count


# -- the main program of a local worker ----------------------------------------------------------
#
#     program                                   worker
#     start {invitation, script, path} ───────▶ runs the script as `__mp_main__`
#     join {name}                      ───────▶ becomes a member of the running job
#                                      ◀─────── joined {name, rank}
#     settle                           ───────▶ learns of all workers that joined before
#                                      ◀─────── settled
#                                      ◀─────── imported {name}: may I import this module?
#     known {name, known, path}        ───────▶
#                                      ◀─────── loaded {files}: what that import has loaded
#     leave                            ───────▶ finishes the calls it serves, leaves, exits
#                                      ◀─────── served
#
# After it has joined it calls shutdown() like any worker whose own part is done: it serves until
# every other worker has called it too. When the program is gone it ends at once, with all its
# children.

ANSWER_SECONDS = 10.0  # the program answers from a thread of its own, whatever else it does
LONGEST_POLL_SECONDS = 3600.0  # poll() takes milliseconds, as a C int
DRAIN_SECONDS = 2.0  # for calls that are being served when the workers are closed
CLOSE_SECONDS = 5.0  # after that; the program ends the process earlier
LEFT = "its LocalWorkers were closed"


def main(descriptor: int, program: int) -> None:
    """Serves until told to leave, until all have shut down, or until the program is gone.

    Args:
        descriptor: The worker's end of the socket to the program.
        program: The program's process id.
    """
    start_thread("local-program-watch", end_with, program)
    channel = LineChannel(socket.socket(fileno=descriptor))
    worker = _Worker(channel)
    start_thread("local-control", worker.read)
    worker.run()


@final
class _Importer:
    """Imports, on demand, those of the user's modules that the program has imported.

    It does not import on the loop, which has the Context of the first call that posted to a peer:
    only protocol messages are read there, and no honest worker names a class in them.
    """

    def __init__(self, channel: LineChannel) -> None:
        self._channel = channel
        self._lock = threading.Lock()  # guards the open questions
        self._asked: dict[str, Future[dict[str, Any]]] = {}

    def answer(self, answer: dict[str, Any]) -> None:
        """Takes the program's answer about a module."""
        with self._lock:
            asked = self._asked.pop(answer["name"], None)
        if asked is not None:
            asked.set_result(answer)

    def __call__(self, name: str) -> None:
        if shared_loop_thread().is_loop_thread():
            return
        if name not in sys.modules and not self._program_has(name):
            return
        before = set(sys.modules)
        try:
            importlib.invalidate_caches()  # the file may have been written a moment ago
            importlib.import_module(name)
        except Exception:  # raised by the user's module
            sys.stderr.write(f"this worker cannot import {name!r}, which the program has:\n")
            traceback.print_exc()
        if files := list(_files_of(set(sys.modules) - before)):
            self._channel.send("loaded", files=files)

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


def _files_of(modules: Iterable[str]) -> Iterator[tuple[str, str, int]]:
    """Yields those modules that are of the user's project, with their files and these's times."""
    for name in modules:
        path = getattr(sys.modules.get(name), "__file__", None)
        if isinstance(path, str) and is_project_module(name):
            with contextlib.suppress(OSError):
                yield name, path, os.stat(path).st_mtime_ns


@final
class _Worker:
    """The work of the main thread, and its orders from the control thread."""

    def __init__(self, channel: LineChannel) -> None:
        self._channel = channel
        self._importer = _Importer(channel)
        self._orders: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def read(self) -> None:
        """Takes the program's messages; ends the process after the last: nobody needs it then."""
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
            load_script(start["script"], start["arguments"])
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
        self._channel.send("joined", name=agent.info.name, rank=agent.info.rank)
        while (order := self._orders.get())["verb"] != "ended":
            if order["verb"] == "settle":
                with contextlib.suppress(TelegradError):  # the coordinator is gone: so are we
                    settle(agent)
                self._channel.send("settled")
            elif order["verb"] == "leave":
                agent.drain(time.monotonic() + DRAIN_SECONDS)
                agent.leave_within(CLOSE_SECONDS, LEFT)
        serving.join()
        if not self._channel.send("served"):
            end_session()  # the program is gone, which the job may have told before the watch did

    def _serve(self, shut_down: Callable[[], None]) -> None:
        try:
            shut_down()
        except TelegradError:
            pass  # ordered to leave at once, or the program's coordinator is gone
        finally:
            self._orders.put({"verb": "ended"})


def end_session() -> None:
    """Ends this process and all its children, at once."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def end_with(program: int) -> None:
    """Ends this process and its children with the program, which may be over already.

    A child of the program may hold our socket's other end open, so the socket tells nothing.
    """
    try:
        descriptor = open_process(program)
    except ProcessLookupError:
        end_session()
    if os.getppid() != program:  # it is gone, and another process may have its number already
        end_session()
    while not readable([descriptor], math.inf):
        pass
    end_session()


def readable(descriptors: Iterable[int], timeout: float) -> set[int]:
    """Returns those descriptors, of any number, that can be read within `timeout`.

    It waits for an hour at most.
    """
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    limit = min(max(0.0, timeout), LONGEST_POLL_SECONDS)
    return {descriptor for descriptor, _ in poll.poll(math.ceil(1000 * limit))}


def start_thread(name: str, target: Callable[..., object], *args: object) -> None:
    """Starts a daemon thread."""
    threading.Thread(target=target, args=args, name=name, daemon=True).start()
