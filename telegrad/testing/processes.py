"""The workers of a cluster as processes of their own, over gRPC on loopback.

The test's process hosts the coordinator, as `telegrad run` does, so that any rank may be killed.
Each worker gets its functions through a pipe of its own, in the encoding of the wire. When the pipe
ends, because the test's process died, the worker dies too.
"""

from __future__ import annotations

import itertools
import multiprocessing.spawn
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, final

from telegrad.errors import TelegradError, WorkerLostError
from telegrad.rendezvous import COORDINATOR_NAME
from telegrad.rpc import RpcOptions
from telegrad.testing.channel import Channel
from telegrad.testing.fault_plan import FaultPlan
from telegrad.testing.fork_server import ForkedProcess
from telegrad.testing.job import Job
from telegrad.testing.worker_process import over_faults
from telegrad.testing.workers import Workers
from telegrad.transport import GrpcTransport, find_tls
from telegrad.wire import name_of

START_SECONDS = 40.0  # an interpreter that imports NumPy and gRPC on two loaded cores
WORKER = "import sys; from telegrad.testing.worker_process import main; main(int(sys.argv[1]))"


@final
class _TestWorker:
    """One process and the calls that it has not answered."""

    def __init__(self, rank: int, process: ForkedProcess, pipe: Connection) -> None:
        self.rank = rank
        self.process = process
        self.channel = Channel(pipe)
        self.pending: dict[int, Future[Any]] = {}
        self.lock = threading.Lock()
        self.reader = threading.Thread(
            target=self._read, name=f"cluster-reader-{rank}", daemon=True
        )
        self.reader.start()

    def ask(self, number: int, verb: str, name: str, args: Sequence[Any]) -> Future[Any]:
        """Sends one request; its answer completes the future."""
        future: Future[Any] = Future()
        with self.lock:
            self.pending[number] = future
        try:
            self.channel.send([number, verb, name], list(args))
        except OSError:
            self._fail()
        except BaseException:
            with self.lock:
                self.pending.pop(number, None)
            raise
        return future

    def _read(self) -> None:
        try:
            while True:
                (number,), read = self.channel.receive()
                with self.lock:
                    future = self.pending.pop(number)
                try:
                    error, value = read()
                except TelegradError as unreadable:
                    error, value = unreadable, None
                if error is None:
                    future.set_result(value)
                else:
                    future.set_exception(error)
        except (EOFError, OSError):
            self._fail()

    def _fail(self) -> None:
        with self.lock:
            failed, self.pending = self.pending, {}
        for future in failed.values():
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(1.0)
            code = self.process.returncode
            future.set_exception(
                WorkerLostError(
                    f"the process of worker{self.rank} ended in the middle (exit code: {code})",
                    worker=f"worker{self.rank}",
                    reason=f"exit code {code}",
                )
            )


@final
class Processes(Workers):
    """n processes and the coordinator that they meet at.

    Args:
        n: The number of workers.
        options: The options of each of them.
        faults: The faults of each worker's network.
    """

    def __init__(self, n: int, options: RpcOptions | None, faults: FaultPlan | None = None) -> None:
        self._n = n
        self._job = Job(n, options)
        self._faults = faults
        self._numbers = itertools.count(1)
        self._workers: dict[int, _TestWorker] = {}

    def start(self) -> None:
        """Starts the coordinator and the processes; returns when each has joined."""
        options = self._job.options
        tls = None if options.insecure else find_tls(options.tls, os.environ, COORDINATOR_NAME)
        self._job.listen(over_faults(GrpcTransport(tls=tls), self._faults))
        for r in range(self._n):
            self._workers[r] = self._start(r)
        joined = [self._ask(r, "join", "") for r in range(self._n)]
        for future in joined:
            future.result(START_SECONDS)

    def submit(self, rank: int, func: Callable[..., Any], args: Sequence[Any]) -> Future[Any]:
        """Sends the function by name; its module is imported on every worker first."""
        name = name_of(func)
        for r in self._workers:
            if self._alive(r) and r != rank:
                self._ask(r, "import", name).result(START_SECONDS)
        return self._ask(rank, "call", name, args)

    def kill(self, rank: int) -> None:
        """Sends SIGKILL and waits for the process."""
        process = self._workers[rank].process
        process.kill()
        process.wait()

    def close(self, *, graceful: bool, timeout: float) -> None:
        """Lets each worker shut down, kills those that do not, and reaps all."""
        if graceful:
            left = [self._ask(r, "leave", "") for r in self._workers if self._alive(r)]
            for future in left:
                with suppress(Exception):
                    future.result(timeout)
        for worker in self._workers.values():
            with suppress(subprocess.TimeoutExpired):
                worker.process.wait(GRACEFUL_EXIT if graceful else 0.0)
            worker.process.kill()
            worker.process.wait()
            worker.reader.join()
            worker.channel.close()
        self._workers.clear()
        self._job.close()

    def _start(self, rank: int) -> _TestWorker:
        """Starts a process and gives it what multiprocessing gives a process that it spawns."""
        name = f"cluster-worker{rank}"
        preparation = multiprocessing.spawn.get_preparation_data(name)
        del preparation["authkey"]  # it is only for processes that multiprocessing starts
        here, there = multiprocessing.Pipe()
        with there:
            process = ForkedProcess(
                [sys.executable, "-c", WORKER, str(there.fileno())],
                env=os.environ | self._job.environment(rank),
                stdin=subprocess.DEVNULL,
                pass_fds=[there.fileno()],
            )
        here.send(preparation)
        here.send((self._job.options, self._faults))
        return _TestWorker(rank, process, here)

    def _alive(self, rank: int) -> bool:
        return self._workers[rank].process.poll() is None

    def _ask(self, rank: int, verb: str, name: str, args: Sequence[Any] = ()) -> Future[Any]:
        return self._workers[rank].ask(next(self._numbers), verb, name, args)


GRACEFUL_EXIT = 5.0  # seconds from the answer to `leave` until the interpreter has ended
