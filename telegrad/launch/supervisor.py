"""The supervisor: starts the workers, passes their output on, and ends all of them.

One thread does it all: a selector over the workers' pipes and the signals. A worker that exited
stays unreaped until the end. Its process id names its session, and must not be given to another
process while the session may have members to end.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import final

from telegrad.launch import worker_process
from telegrad.launch.env import JobEnvironment
from telegrad.launch.log_relay import LogRelay
from telegrad.launch.nodes import DONE, ENDED, FAILED, GONE, SIGNAL, Event, Nodes
from telegrad.launch.policy import GRACE, Policy, describe, exit_status

READ_BYTES = 1 << 16
DRAIN_READS = 64  # a pipe holds 64 KiB; a process that still writes after that will be ended
LEFTOVER_GRACE = 2.0  # multiprocessing's resource tracker needs milliseconds
LEFTOVER_POLL = 0.02
SAY_AFTER = 2.0  # most nodes end together
NODE_LOST = 1  # the exit code for a lost launcher, which had no code
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
WATCH = (sys.executable, "-I", "-S", worker_process.__file__)


@final
class Watcher:
    """A process that ends the workers' sessions when the launcher is killed.

    Args:
        directory: The directory with the token and the workers' sockets, which it removes then.
    """

    def __init__(self, directory: str) -> None:
        self._process = subprocess.Popen(
            [*WATCH, directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def add(self, pid: int) -> None:
        """Adds a session to watch over."""
        self._write(b"+%d\n" % pid)

    def dismiss(self) -> None:
        """Ends the watcher, as nothing is left to do."""
        self._write(b"done\n")
        self._process.communicate()

    def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line)
            self._process.stdin.flush()


@final
class Supervisor:
    """One run of one program in several workers; used by the main thread.

    Args:
        command: The program and its arguments.
        environment: The environment of the workers.
        relay: Takes the workers' output.
        watcher: Gets the session of each worker.
        nodes: The launchers of the other hosts; None if there are none.
        on_ended: Called for each rank, on other hosts too, that has exited with 0 and has left no
            process that could still join in its place. Only at the coordinator's launcher.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: JobEnvironment,
        relay: LogRelay,
        watcher: Watcher,
        nodes: Nodes | None = None,
        on_ended: Callable[[int], None] | None = None,
    ) -> None:
        self._command = list(command)
        self._environment = environment
        self._relay = relay
        self._watcher = watcher
        self._nodes = nodes
        self._on_ended = on_ended
        self._policy = Policy(set(environment.ranks))
        self._workers: dict[int, subprocess.Popen[bytes]] = {}
        self._signals = 0  # the number of signals that this launcher got itself
        self._unread = False  # True if the reader of our own stdout or stderr has closed it
        self._selector = selectors.DefaultSelector()

    def run(self) -> int:
        """Starts the workers and waits until all have ended; returns the launcher's exit code."""
        with self._selector, _signal_socket() as signals:
            take = functools.partial(self._take_signals, signals)
            self._selector.register(signals, selectors.EVENT_READ, take)
            if self._nodes is not None:
                self._selector.register(self._nodes.wake, selectors.EVENT_READ, self._take_events)
            try:
                self._start()
                while self._policy.living:
                    self._step(self._pause())
                self._finish()
                self._wait_for_nodes()
            finally:
                self._end_everything()
        self._report()
        return self._exit_code()

    def _start(self) -> None:
        for rank in self._environment.ranks:
            worker = subprocess.Popen(
                self._command,
                env=self._environment.of(rank),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
            self._workers[rank] = worker
            self._watcher.add(worker.pid)
            for stream, pipe in (("stdout", worker.stdout), ("stderr", worker.stderr)):
                assert pipe is not None
                os.set_blocking(pipe.fileno(), False)
                self._selector.register(pipe, selectors.EVENT_READ, (rank, stream))

    def _pause(self) -> float | None:
        due = self._policy.next_tick
        return None if due is None else max(0.0, due - time.monotonic())

    def _step(self, pause: float | None) -> None:
        """Waits for the next event and handles it."""
        for key, _ in self._selector.select(pause):
            if callable(key.data):
                key.data()
            else:
                self._guarded_read(key)
        self._send(self._policy.tick(time.monotonic()))

    def _take_signals(self, source: socket.socket) -> None:
        for number in source.recv(256):
            if number in SIGNALS:
                self._signals += 1
                self._tell(SIGNAL, code=number)
                self._take_signal(number)
        self._collect()

    def _tell(self, kind: str, rank: int = -1, code: int = 0) -> None:
        """Sends an event to the launchers of other hosts, if there are any."""
        if self._nodes is None:
            return
        node = self._nodes.node
        if kind != FAILED:
            self._nodes.tell(Event(kind, node, code=code))
            return
        text = tuple(line.decode(errors="replace") for line in self._relay.end_of(rank))
        began = self._relay.last_traceback(rank)
        age = 0.0 if began is None else time.monotonic() - began.at
        self._nodes.tell(Event(kind, node, rank, code, text, age))

    def _wait_for_nodes(self) -> None:
        """Waits until the workers of all hosts have ended, or until a second signal."""
        if self._nodes is None:
            return
        culprit = self._policy.culprit
        if culprit is not None:
            self._tell(FAILED, culprit.rank, culprit.code)
        self._tell(DONE)
        say_at = time.monotonic() + SAY_AFTER
        while not self._nodes.all_done and self._signals < 2:
            left = say_at - time.monotonic()
            if left <= 0:
                self._say("the workers here have ended; waiting for those of the other nodes")
                say_at = math.inf
            pause = self._pause()
            due = math.inf if pause is None else pause
            wait = min(due, max(left, 0.0))
            self._step(None if math.isinf(wait) else wait)

    def _take_events(self) -> None:
        """Handles the events from the launchers of other hosts."""
        assert self._nodes is not None
        for event in self._nodes.take():
            if event.node == self._nodes.node:
                continue
            if event.kind == SIGNAL:
                self._say(f"node {event.node} got {signal.Signals(event.code).name}")
                self._take_signal(event.code)
            elif event.kind == ENDED and self._on_ended is not None:
                self._on_ended(event.rank)
            elif event.kind in (FAILED, GONE) and self._policy.failed_elsewhere(time.monotonic()):
                end = f"; the workers here get {GRACE:g} s to end" if self._policy.living else ""
                self._say(f"{event.words}{end}")

    def _take_signal(self, number: int) -> None:
        sends = self._policy.signalled(number, time.monotonic())
        name = signal.Signals(number).name
        if signal.SIGKILL in sends:
            self._say(f"{name} again: killing the workers")
        elif number == signal.SIGINT:
            self._say("interrupted; the workers were too. Once more kills them")
        else:
            self._say(f"{name}: ending the workers")
        self._send(sends)

    def _collect(self) -> None:
        """Finds the workers that have exited; does not reap them."""
        for rank in sorted(self._policy.living):
            if rank not in self._workers:
                continue
            pid = self._workers[rank].pid
            code = worker_process.exit_code(pid)
            if code is None:
                continue
            self._drain(rank)
            began = self._relay.last_traceback(rank)
            place = self._relay.lines if began is None else began.number
            first = self._policy.exited(rank, code, time.monotonic(), place)
            if code == 0 and not worker_process.session_members([pid]):
                self._ended(rank)
            if first:
                self._tell(FAILED, rank, code)
            if first and self._policy.living:
                self._say(f"rank {rank} {describe(code)}; the others get {GRACE:g} s to end")

    def _ended(self, rank: int) -> None:
        """Makes nobody wait for a rank that will not join any more."""
        if self._on_ended is not None:
            self._on_ended(rank)
        elif self._nodes is not None:
            self._nodes.tell(Event(ENDED, self._nodes.node, rank))

    def _drain(self, rank: int) -> None:
        """Reads the rest of the output in the pipes of a worker that exited."""
        for key in list(self._selector.get_map().values()):
            if not callable(key.data) and key.data[0] == rank:
                for _ in range(DRAIN_READS):
                    if not self._guarded_read(key):
                        break

    def _guarded_read(self, key: selectors.SelectorKey) -> bool:
        """Passes on the content of a pipe; returns True if there was any.

        When our own output has no reader any more, the run ends, as any program in a pipe does.
        """
        assert not isinstance(key.fileobj, int)
        if key.fileobj not in self._selector.get_map():
            return False  # closed in this same step, when its worker's exit was noticed
        rank, stream = key.data
        try:
            data = os.read(key.fd, READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._selector.unregister(key.fileobj)
        try:
            self._relay.feed(rank, stream, data)
        except BrokenPipeError:
            if not self._unread:
                self._unread = True
                self._tell(SIGNAL, code=signal.SIGTERM)
                self._send(self._policy.signalled(signal.SIGPIPE, time.monotonic()))
        return bool(data)

    def _send(self, sends: Sequence[int]) -> None:
        living = [self._workers[rank].pid for rank in self._policy.living if rank in self._workers]
        for number in sends:
            if number == signal.SIGKILL:
                worker_process.kill_sessions(living, signal.SIGKILL)
                continue
            for pid in living:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def _finish(self) -> None:
        """Gives the workers' children a moment to end by themselves, then reports what is left."""
        leaders = [worker.pid for worker in self._workers.values()]
        if worker_process.kill_sessions(leaders, signal.SIGTERM):
            end = time.monotonic() + LEFTOVER_GRACE
            while worker_process.session_members(leaders) and time.monotonic() < end:
                self._step(LEFTOVER_POLL)
        for rank in self._workers:
            self._drain(rank)
        for key in list(self._selector.get_map().values()):
            if not callable(key.data):
                rank, stream = key.data
                with contextlib.suppress(BrokenPipeError):
                    self._relay.feed(rank, stream, b"")

    def _end_everything(self) -> None:
        """Kills the rest of every session and reaps the workers."""
        leaders = [worker.pid for worker in self._workers.values()]
        worker_process.kill_sessions(leaders, signal.SIGKILL)
        for worker in self._workers.values():
            worker.wait()
            for pipe in (worker.stdout, worker.stderr):
                if pipe is not None:
                    pipe.close()

    def _report(self) -> None:
        """Shows, as the last output, the reason for which the run failed."""
        culprit, elsewhere = self._policy.culprit, self._failure_elsewhere()
        with contextlib.suppress(BrokenPipeError):
            self._relay.clear()
            if elsewhere is not None:
                self._relay.show(elsewhere.rank, [line.encode() for line in elsewhere.text])
                self._say(elsewhere.words)
            elif culprit is not None:
                self._relay.show_traceback_last(culprit.rank)
                self._say(f"rank {culprit.rank} {describe(culprit.code)}")

    def _failure_elsewhere(self) -> Event | None:
        """Returns the event that ended the job, if that was on another host."""
        first = None if self._nodes is None else self._nodes.first_failure
        if first is None or self._nodes is None or first.node == self._nodes.node:
            return None
        return first

    def _exit_code(self) -> int:
        elsewhere = self._failure_elsewhere()
        if elsewhere is None:
            return self._policy.exit_code
        return exit_status(elsewhere.code) if elsewhere.kind == FAILED else NODE_LOST

    def _say(self, text: str) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._relay.say(text)


@contextlib.contextmanager
def _signal_socket() -> Iterator[socket.socket]:
    """Turns the launcher's signals into bytes to read, one for each."""
    receiver, sender = socket.socketpair()
    with receiver, sender:
        receiver.setblocking(False)
        sender.setblocking(False)
        previous_fd = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        previous = {
            number: signal.signal(number, lambda *_: None) for number in (*SIGNALS, signal.SIGCHLD)
        }
        try:
            yield receiver
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(previous_fd)
